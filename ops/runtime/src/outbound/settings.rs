//! Settings for requests to customers' URLs.

use std::{
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    sync::{Arc, PoisonError, RwLock},
};

use clap::Args;
use ipnet::IpNet;

use super::target::TargetRules;

/// The addresses on which this process itself listens. They are never dialled. Each server adds its own at start.
#[derive(Debug, Clone, Default)]
pub struct OwnListeners(Arc<RwLock<Vec<SocketAddr>>>);

impl OwnListeners {
    /// Adds an address.
    pub fn add(&self, listener: SocketAddr) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).push(listener);
    }

    /// True if dialling `target` would reach one of them.
    pub(super) fn answer_at(&self, target: SocketAddr) -> bool {
        let of_own = |listener: &SocketAddr| {
            listener.port() == target.port()
                && (listener.ip() == target.ip()
                    || listener.ip().is_unspecified()
                        && (target.ip().is_loopback() || super::address::is_own(target.ip())))
        };
        self.0.read().unwrap_or_else(PoisonError::into_inner).iter().any(of_own)
    }
}

/// Settings of every process that calls addresses customers named, or stores them. One group of the process: the ingress checks
/// with it what the stages dial.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Addresses that customers name")]
#[group(skip)]
pub struct OutboundSettings {
    /// Networks that webhooks may reach although they are private, and by plain http, as CIDRs, comma-separated. For receivers beside
    /// the engine, and for trying out. Empty: the public internet by https, nothing else.
    #[arg(long, env = "POSTRIDER_WEBHOOK_ALLOW_NETWORKS", value_delimiter = ',')]
    pub webhook_allow_networks: Vec<IpNet>,
    /// Certificates in PEM that webhook receivers' may be signed by, beside the public authorities.
    #[arg(long, env = "POSTRIDER_WEBHOOK_CA_FILE")]
    pub webhook_ca_file: Option<PathBuf>,
    /// Domains of the platform itself, comma-separated: no tenant may claim them or a subdomain, and no webhook is sent there.
    #[arg(long, env = "POSTRIDER_PLATFORM_DOMAINS", default_value = "postrider.dev", value_delimiter = ',')]
    pub platform_domains: Vec<String>,
    /// DNS servers that are asked for domains' records and webhooks' hosts, comma-separated, with or without a port. Empty: those of
    /// the system.
    #[arg(long, env = "POSTRIDER_DNS_SERVERS", value_delimiter = ',', value_parser = dns_server)]
    pub dns_servers: Vec<SocketAddr>,
    /// The addresses on which this process listens.
    #[arg(skip)]
    pub own_listeners: OwnListeners,
}

impl Default for OutboundSettings {
    fn default() -> Self {
        Self {
            webhook_allow_networks: Vec::new(),
            webhook_ca_file: None,
            platform_domains: vec!["postrider.dev".to_owned()],
            dns_servers: Vec::new(),
            own_listeners: OwnListeners::default(),
        }
    }
}

impl OutboundSettings {
    /// The rules for URLs that follow from these settings.
    #[must_use]
    pub fn rules(&self) -> TargetRules {
        TargetRules { allowed: self.webhook_allow_networks.clone(), own_domains: self.platform_domains.clone() }
    }
}

fn dns_server(text: &str) -> Result<SocketAddr, std::net::AddrParseError> {
    const DNS_PORT: u16 = 53;
    let text = text.trim();
    text.parse().or_else(|_| text.parse::<IpAddr>().map(|address| SocketAddr::new(address, DNS_PORT)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        settings: OutboundSettings,
    }

    #[test]
    fn dns_servers_may_leave_out_the_port() {
        let command = Command::try_parse_from(["test", "--dns-servers", "127.0.0.1:5353,1.1.1.1,::1"]).unwrap();
        let expected: Vec<SocketAddr> =
            ["127.0.0.1:5353", "1.1.1.1:53", "[::1]:53"].iter().map(|text| text.parse().unwrap()).collect();
        assert_eq!(command.settings.dns_servers, expected);
    }

    #[test]
    fn by_default_nothing_private_may_be_reached() {
        let settings = Command::try_parse_from(["test"]).unwrap().settings;
        assert!(settings.webhook_allow_networks.is_empty() && settings.dns_servers.is_empty());
        assert_eq!(settings.rules(), OutboundSettings::default().rules());
    }

    #[test]
    fn an_own_listener_is_known_by_any_of_its_names() {
        let own = OwnListeners::default();
        own.add("0.0.0.0:8080".parse().unwrap());
        own.add("10.1.2.3:9000".parse().unwrap());
        for target in ["127.0.0.1:8080", "127.0.0.2:8080", "10.1.2.3:9000"] {
            assert!(own.answer_at(target.parse().unwrap()), "{target}");
        }
        for target in ["127.0.0.1:8081", "192.0.2.77:8080", "10.1.2.4:9000"] {
            assert!(!own.answer_at(target.parse().unwrap()), "{target}");
        }
    }
}
