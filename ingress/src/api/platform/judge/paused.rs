//! What operators hold back. Meant, and still somebody should know: mail waits because of it.

use super::{Check, SENDING, Status};
use crate::api::platform::facts::Pauses;

pub(super) fn check(pauses: Option<&Pauses>) -> Check {
    let check = Check::new("paused", "sending", "What operators hold back", "nothing is paused");
    let Some(pauses) = pauses else { return check.unseen() };
    if let Some(since) = pauses.held_at {
        let reason = pauses.held_reason.as_deref().unwrap_or("no reason is given");
        let check =
            Check { observation: format!("the ledger is held since {}", since.format("%Y-%m-%d %H:%M UTC")), ..check };
        return check.because(
            Status::Crit,
            format!("nothing leaves: {reason}"),
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
    let check = Check { observation: format!("{stages}; {} tenant(s)", pauses.tenants), ..check };
    // Without one of these no mail goes out at all.
    let stops_mail = pauses.stages.iter().any(|stage| SENDING.contains(&stage.as_str()));
    check.because(
        if stops_mail { Status::Crit } else { Status::Warn },
        if stops_mail {
            "no mail goes out: a stage it goes through is paused"
        } else {
            "work waits because an operator wants it to"
        },
        &["`postrider pause list` says who and why", "`postrider resume stage|tenant …` lets it go on"],
        "paused",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn of(stages: &[&str], tenants: i64, held: bool) -> Pauses {
        let held_at = held.then(chrono::Utc::now);
        Pauses { stages: stages.iter().map(|stage| (*stage).to_owned()).collect(), tenants, held_at, held_reason: None }
    }

    #[rstest]
    #[case::nothing(of(&[], 0, false), Status::Ok)]
    #[case::a_tenant(of(&[], 3, false), Status::Warn)]
    #[case::webhooks(of(&["webhooks"], 0, false), Status::Warn)]
    #[case::delivery(of(&["delivery"], 0, false), Status::Crit)]
    #[case::the_ledger(of(&[], 0, true), Status::Crit)]
    fn what_is_held_back_is_told_and_what_stops_mail_is_grave(#[case] pauses: Pauses, #[case] expected: Status) {
        assert_eq!(check(Some(&pauses)).status, expected);
    }
}
