//! What operators have paused. It is intended, and mail waits because of it.

use super::{HealthCheck, HealthStatus, SENDING};
use crate::api::platform::facts::PauseFacts;

pub(super) fn check(pauses: Option<&PauseFacts>) -> HealthCheck {
    let check = HealthCheck::new("paused", "sending", "What operators have paused", "nothing is paused");
    let Some(pauses) = pauses else { return check.unavailable() };
    if let Some(since) = pauses.held_at {
        let reason = pauses.held_reason.as_deref().unwrap_or("no reason is given");
        let check = check.observed(format!(
            "all mail is paused since {}: the database was restored",
            since.format("%Y-%m-%d %H:%M UTC")
        ));
        return check.because(
            HealthStatus::Crit,
            format!("no mail goes out: {reason}"),
            &[
                "`postrider restore status` says what is missing and what is open",
                "close the gap as the runbook says, then `postrider restore release`",
            ],
            "paused",
        );
    }
    if pauses.stages.is_empty() && pauses.tenants == 0 {
        return check;
    }
    let stages = if pauses.stages.is_empty() { "no stage".to_owned() } else { pauses.stages.join(", ") };
    let check = check.observed(format!("{stages}; {} tenant(s)", pauses.tenants));
    // Without one of these no mail goes out at all.
    let stops_mail = pauses.stages.iter().any(|stage| SENDING.contains(&stage.as_str()));
    check.because(
        if stops_mail { HealthStatus::Crit } else { HealthStatus::Warn },
        if stops_mail {
            "no mail goes out: a stage it goes through is paused"
        } else {
            "work waits because an operator wants it to"
        },
        &["`postrider pause list` has operator and reason", "`postrider resume stage|tenant …` ends the pause"],
        "paused",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn of(stages: &[&str], tenants: i64, held: bool) -> PauseFacts {
        let held_at = held.then(chrono::Utc::now);
        PauseFacts {
            stages: stages.iter().map(|stage| (*stage).to_owned()).collect(),
            tenants,
            held_at,
            held_reason: None,
        }
    }

    #[rstest]
    #[case::nothing(of(&[], 0, false), HealthStatus::Ok)]
    #[case::a_tenant(of(&[], 3, false), HealthStatus::Warn)]
    #[case::webhooks(of(&["webhooks"], 0, false), HealthStatus::Warn)]
    #[case::delivery(of(&["delivery"], 0, false), HealthStatus::Crit)]
    #[case::the_ledger(of(&[], 0, true), HealthStatus::Crit)]
    fn a_pause_is_a_warning_and_critical_if_it_stops_mail(#[case] pauses: PauseFacts, #[case] expected: HealthStatus) {
        assert_eq!(check(Some(&pauses)).status, expected);
    }
}
