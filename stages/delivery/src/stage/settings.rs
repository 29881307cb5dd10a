//! The stage's settings.

use std::{path::PathBuf, time::Duration};

use secrecy::{ExposeSecret, SecretString};

use super::{IN_FLIGHT_PER_CONNECTION, routes::RouteSettings};
use crate::{
    pace::{self, Pacer},
    provider::{ClientSettings, HostPolicy},
};
use ledger::{fence::LedgerSettings, quota::QuotaDefaults};
use smtp::{Relay, SmtpSettings, SmtpSettingsError, SmtpTimeouts};

/// Settings of the delivery stage.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Delivery")]
#[group(skip)]
pub struct Settings {
    /// The relay that takes mail: `smtp://[user:password@]host[:port][?tls=none|opportunistic|required]` or `smtps://…`.
    #[arg(
        long,
        env = "POSTRIDER_SMTP_URL",
        hide_env_values = true,
        default_value = "smtp://127.0.0.1:25?tls=opportunistic"
    )]
    pub smtp_url: SecretString,
    /// Certificate authorities (PEM) to trust beside Mozilla's, for a relay with a certificate of your own.
    #[arg(long, env = "POSTRIDER_SMTP_CA_FILE")]
    pub smtp_ca_file: Option<PathBuf>,
    /// The name said in EHLO. The host's name if not set; large receivers want one that resolves back to this machine.
    #[arg(long, env = "POSTRIDER_SMTP_HELLO_NAME")]
    pub smtp_hello_name: Option<String>,
    /// Connections campaigns may hold to the relay. More raise the rate until the relay or the ledger is the limit.
    #[arg(long, env = "POSTRIDER_SMTP_CONNECTIONS", default_value_t = 256)]
    pub smtp_connections: usize,
    /// Connections kept for transactional mail, beside those of campaigns. As many groups of it are worked on at once, at least four.
    #[arg(long, env = "POSTRIDER_SMTP_PRIORITY_CONNECTIONS", default_value_t = 16)]
    pub smtp_priority_connections: usize,
    /// Longest wait for a connection to the relay and for its TLS handshake.
    #[arg(long, env = "POSTRIDER_SMTP_CONNECT_TIMEOUT", default_value = "30s", value_parser = humantime::parse_duration)]
    pub smtp_connect_timeout: Duration,
    /// Longest wait for the answer to a command before a mail, and for the answers to a mail's envelope where they are awaited before its
    /// body is sent.
    #[arg(long, env = "POSTRIDER_SMTP_COMMAND_TIMEOUT", default_value = "2m", value_parser = humantime::parse_duration)]
    pub smtp_command_timeout: Duration,
    /// Longest wait for the body to be taken and answered, each. Giving up here leaves a send in state `unknown`, and transactional
    /// mail that a crash left fenced is tried once more only after twice this time and `smtp-command-timeout`. RFC 5321 asks for ten
    /// minutes.
    #[arg(long, env = "POSTRIDER_SMTP_FINAL_TIMEOUT", default_value = "10m", value_parser = humantime::parse_duration)]
    pub smtp_final_timeout: Duration,
    /// Most transactions at once to one receiver (a recipient domain, or all of one large operator) through the platform's relay, and
    /// through each tenant's own connection. Transactional mail counts and never waits for it: it has fewer connections of its own.
    #[arg(long, env = "POSTRIDER_DOMAIN_CONNECTIONS", default_value_t = 1_000)]
    pub domain_connections: usize,
    /// Mails a second from one sending domain to one receiver, at most, in each process. 0: as many as it takes. Deferrals slow a
    /// receiver's mail down in any case, and good answers bring it back.
    #[arg(long, env = "POSTRIDER_PACE_CEILING", default_value_t = 0.0)]
    pub pace_ceiling: f64,
    /// Longest a provider behind an HTTP API may take over one mail. Giving up here leaves a send in state `unknown`.
    #[arg(long, env = "POSTRIDER_PROVIDER_TIMEOUT", default_value = "30s", value_parser = humantime::parse_duration)]
    pub provider_timeout: Duration,
    /// Mails at once on their way to one tenant's own provider, in each lane.
    #[arg(long, env = "POSTRIDER_PROVIDER_CONNECTIONS", default_value_t = 16)]
    pub provider_connections: usize,
    /// How often the platform's relay is asked whether it would take mail. Hidden: only tests change it.
    #[arg(long, hide = true, env = "POSTRIDER_PROVIDER_PING_INTERVAL", default_value = "30s", value_parser = humantime::parse_duration)]
    pub provider_ping_interval: Duration,
    /// Hosts that a provider connection may name beside the provider's own, as `host:port`, comma-separated; these may also speak
    /// plain http. For stand-ins in tests; leave it empty otherwise.
    #[arg(long, env = "POSTRIDER_PROVIDER_ALLOW_HOSTS", value_delimiter = ',')]
    pub provider_allow_hosts: Vec<String>,
    /// Whether mail is signed here (DKIM). Set it to false where the relay signs: it saves most of the CPU of a mail.
    #[arg(long, env = "POSTRIDER_DKIM_SIGN", default_value_t = true, action = clap::ArgAction::Set)]
    pub dkim_sign: bool,
    /// Batches of campaigns worked on at once.
    #[arg(long, env = "POSTRIDER_DELIVERY_WORKERS", default_value_t = 8)]
    pub delivery_workers: usize,
    /// How long the ledger writer collects a group while it is busy. Tests take longer.
    #[arg(skip = ledger::fence::WINDOW)]
    pub ledger_window: Duration,
    /// The send quota. One setting of the process: the ingress gates with it, the fence holds it.
    #[arg(skip)]
    pub quota: QuotaDefaults,
}

/// The time a fence's lease adds to the relay's timeouts: to begin, and for the commit of the result.
const LEDGER_MARGIN: Duration = Duration::from_secs(20);

impl Settings {
    /// Checks the rules between settings.
    pub(super) fn check(&self) -> Result<(), SmtpSettingsError> {
        const TIMEOUT_MIN: Duration = Duration::from_millis(100);
        let ceiling_fits = self.pace_ceiling == 0.0 || (pace::FLOOR..=1e6).contains(&self.pace_ceiling);
        let provider_fits = self.provider_connections > 0 && self.provider_ping_interval >= Duration::from_secs(1);
        let rules = [
            (self.delivery_workers > 0, "delivery needs at least one worker"),
            (self.smtp_final_timeout >= TIMEOUT_MIN, "smtp-final-timeout is too short to send anything"),
            (ceiling_fits, "pace-ceiling must be 0, or 0.1 to 1000000"),
            (provider_fits, "provider-connections and provider-ping-interval must be at least one"),
            (self.provider_timeout >= TIMEOUT_MIN, "provider-timeout is too short to send anything"),
        ];
        match rules.into_iter().find(|(is_kept, _)| !is_kept) {
            Some((_, rule)) => Err(SmtpSettingsError::Value(rule)),
            None => Ok(()),
        }
    }

    /// The pacer with its limits.
    pub(super) fn pacer(&self) -> Pacer {
        Pacer::new(self.domain_connections, Some(self.pace_ceiling).filter(|ceiling| *ceiling > 0.0))
    }

    /// The SMTP pool of one lane.
    pub(super) fn smtp(&self, connections: usize) -> Result<SmtpSettings, SmtpSettingsError> {
        let relay: Relay = self.smtp_url.expose_secret().parse()?;
        let mut smtp = SmtpSettings::new(relay, self.smtp_hello_name.clone().unwrap_or_else(host_name));
        smtp.max_connections = connections;
        smtp.ca_file.clone_from(&self.smtp_ca_file);
        smtp.timeouts = SmtpTimeouts {
            connect: self.smtp_connect_timeout,
            command: self.smtp_command_timeout,
            body: self.smtp_final_timeout,
            last: self.smtp_final_timeout,
            ..SmtpTimeouts::default()
        };
        Ok(smtp)
    }

    /// Groups of transactional messages worked on at once: as many as there are connections, because a worker is free only when the last
    /// mail of its group is answered. At least four, so that tenants' connections leave one free. Workers without work take turns at one
    /// pull and cost nothing.
    pub(super) fn priority_workers(&self) -> usize {
        self.smtp_priority_connections.max(4)
    }

    /// The settings of tenants' routes. One tenant's connection uses at most half of a lane's workers, and the connections of all tenants
    /// leave a quarter to the mail of the platform's relay.
    pub(super) fn route_settings(&self) -> Result<RouteSettings, SmtpSettingsError> {
        let client = ClientSettings {
            connections: self.provider_connections,
            timeout: self.provider_timeout,
            // The limit of the whole exchange must not end first: then it would be unknown whether a mail left that had no connection.
            connect_timeout: self.smtp_connect_timeout.min(self.provider_timeout / 2),
            smtp: self.smtp(self.provider_connections)?,
        };
        let lanes = [self.delivery_workers, self.priority_workers()];
        Ok(RouteSettings {
            client,
            host_policy: HostPolicy::allowing(&self.provider_allow_hosts),
            workers: lanes.map(|workers| workers.div_ceil(2)),
            workers_of_all: lanes.map(|workers| workers.saturating_sub((workers / 4).max(1)).max(1)),
            in_memory: self.smtp_connections * IN_FLIGHT_PER_CONNECTION,
        })
    }

    /// How long a fenced send may stay without a result before it becomes `unknown`. Longer than any worker waits.
    pub(super) fn fence_lease(&self) -> Duration {
        // A provider with idempotency keys is asked three times.
        (self.smtp_command_timeout + self.smtp_final_timeout * 2).max(self.provider_timeout * 3) + LEDGER_MARGIN
    }

    pub(super) fn ledger(&self) -> LedgerSettings {
        LedgerSettings { window: self.ledger_window, fence_lease: self.fence_lease(), quota: self.quota }
    }
}

/// This host's name, or an address literal, which RFC 5321 §4.1.4 takes from a host without one.
fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = name.trim();
    let fits = !name.is_empty()
        && name.len() <= 253
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-.".contains(&byte));
    if fits { name.to_owned() } else { "[127.0.0.1]".to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{Args, Command, FromArgMatches};

    fn settings(arguments: &[&str]) -> Settings {
        let command = Settings::augment_args(Command::new("test"));
        let matches = command.get_matches_from(std::iter::once("test").chain(arguments.iter().copied()));
        Settings::from_arg_matches(&matches).unwrap()
    }

    #[test]
    fn the_defaults_work() {
        let settings = settings(&["--smtp-url", "smtp://127.0.0.1:2525?tls=none"]);
        assert!(settings.check().is_ok());
        assert!(settings.smtp(4).unwrap().check().is_ok());
    }

    #[test]
    fn a_connection_is_given_up_before_the_whole_exchange() {
        let client = settings(&[]).route_settings().unwrap().client;
        assert!(client.connect_timeout < client.timeout, "{client:?}");
    }

    #[test]
    fn tenants_connections_leave_a_worker_of_each_lane_free() {
        // Those of one connection, those of all.
        for (workers, bulk, priority) in
            [(1, [1, 1], [2, 3]), (2, [1, 1], [2, 3]), (4, [2, 3], [2, 3]), (16, [8, 12], [8, 12])]
        {
            let workers = workers.to_string();
            let settings = settings(&["--delivery-workers", &workers, "--smtp-priority-connections", &workers]);
            let routes = settings.route_settings().unwrap();
            assert_eq!([routes.workers[0], routes.workers_of_all[0]], bulk, "{workers}");
            assert_eq!([routes.workers[1], routes.workers_of_all[1]], priority, "{workers}");
            assert!(priority[1] < settings.priority_workers(), "{workers}");
        }
    }

    #[test]
    fn a_fence_outlives_the_longest_transaction() {
        let settings = settings(&["--smtp-command-timeout", "50s", "--smtp-final-timeout", "5s"]);
        // The envelope, the body, its answer.
        assert!(settings.fence_lease() > Duration::from_secs(60));
    }

    #[test]
    fn the_relays_password_does_not_print() {
        assert!(!format!("{:?}", settings(&["--smtp-url", "smtp://u:secret@relay"])).contains("secret"));
    }
}
