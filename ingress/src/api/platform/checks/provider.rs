//! The relay and the providers: do they answer?

use super::{HealthCheck, HealthStatus};
use crate::api::platform::facts::ProviderPing;

/// A relay or provider without an answer for so long is down.
const SILENT_PROVIDER_SECONDS: i64 = 120;
/// A relay or provider that was not pinged for so long is a warning.
const UNASKED_PROVIDER_SECONDS: i64 = 180;

pub(super) fn check(pings: Option<&[ProviderPing]>) -> HealthCheck {
    let check = HealthCheck::new("provider", "sending", "Relay and providers", "");
    let Some(pings) = pings else { return check.unavailable() };
    let fix = &[
        "check the relay's or provider's own status",
        "check smtp-url and what lies between",
        "mail waits and goes out when it is back",
    ];
    let Some(worst) = pings.iter().max_by_key(|ping| (status_of(ping), ping.asked_seconds)) else {
        return check.observed("never asked").because(
            HealthStatus::Warn,
            "no delivery process has pinged it yet",
            &["see whether the stage delivery runs"],
            "relay-unreachable",
        );
    };
    let observed: Vec<String> = pings
        .iter()
        .map(|ping| match (&ping.error_code, ping.latency_ms) {
            (_, Some(latency)) if ping.ok => {
                format!("{} answered in {latency} ms, {} s ago", ping.provider, ping.asked_seconds)
            }
            (Some(code), _) => format!("{} said {code}, {} s ago", ping.provider, ping.asked_seconds),
            _ => format!(
                "{} {}, {} s ago",
                ping.provider,
                if ping.ok { "answered" } else { "did not answer" },
                ping.asked_seconds
            ),
        })
        .collect();
    let check = check.observed(observed.join("; "));
    match status_of(worst) {
        HealthStatus::Ok => check,
        HealthStatus::Warn if worst.ok => check.because(
            HealthStatus::Warn,
            format!("{} was not asked for {} s", worst.provider, worst.asked_seconds),
            &["see whether the stage delivery runs"],
            "relay-unreachable",
        ),
        status => check.because(status, format!("{} does not answer", worst.provider), fix, "relay-unreachable"),
    }
}

fn status_of(ping: &ProviderPing) -> HealthStatus {
    match (ping.ok, ping.answered_seconds) {
        (false, Some(seconds)) if seconds < SILENT_PROVIDER_SECONDS => HealthStatus::Warn,
        (false, _) => HealthStatus::Crit,
        (true, _) if ping.asked_seconds >= UNASKED_PROVIDER_SECONDS => HealthStatus::Warn,
        (true, _) => HealthStatus::Ok,
    }
}
