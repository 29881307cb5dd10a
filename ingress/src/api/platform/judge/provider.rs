//! Whether the relay and the providers answer.

use super::{Check, Status};
use crate::api::platform::facts::Ping;

/// A way out that has not answered for so long is down.
const SILENT_PROVIDER_SECONDS: i64 = 120;
/// A way out that nobody has asked for so long.
const UNASKED_PROVIDER_SECONDS: i64 = 180;

pub(super) fn check(pings: Option<&[Ping]>) -> Check {
    let check = Check::new("provider", "sending", "The way out", "");
    let Some(pings) = pings else { return check.unseen() };
    let fix = &[
        "check the relay's or provider's own status",
        "check smtp-url and what lies between",
        "mail waits and goes out when it is back",
    ];
    let Some(worst) = pings.iter().max_by_key(|ping| (standing(ping), ping.asked_seconds)) else {
        return Check { observation: "never asked".to_owned(), ..check }.because(
            Status::Warn,
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
    let check = Check { observation: observed.join("; "), ..check };
    match standing(worst) {
        Status::Ok => check,
        Status::Warn if worst.ok => check.because(
            Status::Warn,
            format!("{} was not asked for {} s", worst.provider, worst.asked_seconds),
            &["see whether the stage delivery runs"],
            "relay-unreachable",
        ),
        status => check.because(status, format!("{} does not answer", worst.provider), fix, "relay-unreachable"),
    }
}

fn standing(ping: &Ping) -> Status {
    match (ping.ok, ping.answered_seconds) {
        (false, Some(seconds)) if seconds < SILENT_PROVIDER_SECONDS => Status::Warn,
        (false, _) => Status::Crit,
        (true, _) if ping.asked_seconds >= UNASKED_PROVIDER_SECONDS => Status::Warn,
        (true, _) => Status::Ok,
    }
}
