//! What an operator can set about the ingress.

use std::{net::SocketAddr, time::Duration};

use clap::Args;
use domains::DomainSettings;
use ipnet::IpNet;
use ledger::{confirmations::ConfirmationSettings, quota::QuotaDefaults};
use runtime::OutboundSettings;

/// The settings of the ingress. Each is a flag `--some-name` and an environment variable `POSTRIDER_SOME_NAME`.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Ingress")]
#[group(skip)]
pub struct Settings {
    /// Where the API, the tracking links and the unsubscribe page listen. Port 0 takes a free one.
    #[arg(long, env = "POSTRIDER_HTTP_ADDR", default_value = "127.0.0.1:8080")]
    pub http_addr: SocketAddr,
    /// Requests each API key may make in any sixty seconds, over all ingress processes; more are answered 429. 0 switches the limit off.
    #[arg(long, env = "POSTRIDER_RATE_LIMIT_PER_MINUTE", default_value_t = 120)]
    pub rate_limit_per_minute: u32,
    /// Rows one import may have; more are answered 413 `too_many_rows`.
    #[arg(long, env = "POSTRIDER_IMPORT_MAX_ROWS", default_value_t = 50_000)]
    pub import_max_rows: usize,
    /// Longest a request may take before its caller is answered 503. A write has this time twice: to be admitted, not counting the time of
    /// its body, and to take effect. One in progress goes on, for ten minutes at most.
    #[arg(long, env = "POSTRIDER_HTTP_REQUEST_TIMEOUT", default_value = "60s", value_parser = humantime::parse_duration)]
    pub http_request_timeout: Duration,
    /// Longest a caller may take to send its headers, and then its body, before it is answered 408.
    #[arg(long, env = "POSTRIDER_HTTP_BODY_TIMEOUT", default_value = "20s", value_parser = humantime::parse_duration)]
    pub http_body_timeout: Duration,
    /// One-off messages each tenant may send in an hour, however many people each is for, over all ingress processes. More are answered
    /// 429 `message_rate_exceeded`. 0 switches the limit off.
    #[arg(long, env = "POSTRIDER_MESSAGE_RATE_PER_HOUR", default_value_t = 120)]
    pub message_rate_per_hour: u32,
    /// Tests of campaigns each tenant may send in an hour, to up to ten addresses each, over all ingress processes. More are answered 429
    /// `test_rate_exceeded`. 0 switches the limit off.
    #[arg(long, env = "POSTRIDER_CAMPAIGN_TEST_RATE_PER_HOUR", default_value_t = 60)]
    pub campaign_test_rate_per_hour: u32,
    /// Longest a caller of `POST /v1/messages` waits for the outcome before it is answered 504 `dispatch_pending`; the dispatch
    /// goes on. Shorter than `http-request-timeout`.
    #[arg(long, env = "POSTRIDER_MESSAGE_TIMEOUT", default_value = "30s", value_parser = humantime::parse_duration)]
    pub message_timeout: Duration,
    /// Connections each ingress process serves at once; more are closed as soon as they come.
    #[arg(long, env = "POSTRIDER_HTTP_CONNECTIONS", default_value_t = 10_000)]
    pub http_connections: usize,
    /// Connections of one address, an IPv6 network of 64 bits being one, that each ingress process serves at once; more are closed as soon
    /// as they come. `trusted-proxies` have no such limit. 0 switches the limit off.
    #[arg(long, env = "POSTRIDER_HTTP_CONNECTIONS_PER_ADDRESS", default_value_t = 1_000)]
    pub http_connections_per_address: usize,
    /// Networks of the proxies in front of the ingress, as CIDRs, comma-separated. Only these are believed when they say for whom they
    /// ask (`X-Forwarded-For`, `Forwarded`).
    #[arg(long, env = "POSTRIDER_TRUSTED_PROXIES", value_delimiter = ',')]
    pub trusted_proxies: Vec<IpNet>,
    /// Names of this installation that tenants' DNS records point to.
    #[command(flatten)]
    pub domain_targets: DomainTargets,
    /// Whether domains that tenants add from now on are warmed up: what campaigns send from them in a day is limited, to more every day,
    /// and the rest waits for the next. `postrider warmup` changes it for one domain.
    #[arg(long, env = "POSTRIDER_WARMUP_NEW_DOMAINS", default_value_t = false, action = clap::ArgAction::Set)]
    pub warmup_new_domains: bool,
    /// Settings of the assistant endpoint.
    #[command(flatten)]
    pub assistant: mcp::Settings,
    /// The hosts that webhooks may reach, the platform's own domains, the DNS servers. The stages of the process go by the same.
    #[command(flatten)]
    pub outbound: OutboundSettings,
    /// Settings of provider webhooks.
    #[command(flatten)]
    pub hooks: HookSettings,
    /// When domains are looked at again.
    #[command(flatten)]
    pub rechecks: Rechecks,
    /// The send quota. One setting of the process: the ingress gates with it, delivery's fence holds it.
    #[arg(skip)]
    pub quota: QuotaDefaults,
    /// How often contacts are asked to confirm their consent. One setting of the process: the audience stage sends by it.
    #[arg(skip)]
    pub confirmations: ConfirmationSettings,
}

/// Where the names of this installation are that tenants' DNS records point to.
#[derive(Debug, Clone, Args)]
pub struct DomainTargets {
    /// What tenants' `send.<domain>` points to: a name with an MX for bounces and an SPF record. Changing it makes domains fail
    /// their next check.
    #[arg(long, env = "POSTRIDER_RETURN_PATH_TARGET", default_value = "return.postrider.dev")]
    pub return_path_target: String,
    /// What tenants' SPF records include.
    #[arg(long, env = "POSTRIDER_SPF_INCLUDE", default_value = "spf.postrider.dev")]
    pub spf_include: String,
    /// What tenants' `link.<domain>` points to: this ingress, as recipients reach it. All tenants' links work under this name, even if
    /// its domain is a tenant's: name the host of `public-url` here if that begins with `link.`.
    #[arg(long, env = "POSTRIDER_TRACKING_TARGET", default_value = "link.postrider.dev")]
    pub tracking_target: String,
}

impl DomainTargets {
    /// As the checks of records take them.
    pub(crate) fn settings(&self) -> DomainSettings {
        DomainSettings {
            return_path_target: self.return_path_target.clone(),
            spf_include: self.spf_include.clone(),
            tracking_target: self.tracking_target.clone(),
        }
    }
}

/// When domains are looked at again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Args)]
#[command(next_help_heading = "Domain checks")]
#[group(skip)]
pub struct Rechecks {
    /// How often the DNS records of a verified domain are looked at again.
    #[arg(long, env = "POSTRIDER_DOMAIN_RECHECK", default_value = "24h", value_parser = humantime::parse_duration)]
    pub domain_recheck: Duration,
    /// How often the DNS records of a domain that is not verified, or degraded, are looked at again.
    #[arg(long, env = "POSTRIDER_DOMAIN_RECHECK_SOON", default_value = "1h", value_parser = humantime::parse_duration)]
    pub domain_recheck_soon: Duration,
    /// How long callers of `verify` get the result of the last check before the DNS is asked again.
    #[arg(long, env = "POSTRIDER_DOMAIN_CHECK_FRESH", default_value = "10s", value_parser = humantime::parse_duration)]
    pub domain_check_fresh: Duration,
}

/// Settings of `/hooks`.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Provider events")]
#[group(skip)]
pub struct HookSettings {
    /// Requests a second that each ingress process takes for one provider connection; more are answered 429 and come again.
    #[arg(long, env = "POSTRIDER_HOOK_RATE_PER_SECOND", default_value_t = 1_000)]
    pub hook_rate_per_second: u32,
    /// Hosts, as `host:port`, that SNS certificates and confirmations may come from beside Amazon's own, also by plain http; for
    /// stand-ins.
    #[arg(long, env = "POSTRIDER_HOOK_SNS_HOSTS", value_delimiter = ',')]
    pub hook_sns_hosts: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        settings: Settings,
    }

    #[test]
    fn the_defaults_are_those_of_the_documentation() {
        let settings = Command::try_parse_from(["test"]).unwrap().settings;
        assert_eq!((settings.rate_limit_per_minute, settings.import_max_rows), (120, 50_000));
        assert_eq!(settings.outbound.platform_domains, ["postrider.dev"]);
        assert!(settings.outbound.dns_servers.is_empty());
    }
}
