//! What the stages beside the road of mail owe by the ledger: requests, reports, outcomes, events, steps. The road has its own checks.

use super::{Check, Status, of_stage};
use crate::api::platform::facts::{Owed, StageFacts};

/// As the alert WorkWaits.
const WARN_SECONDS: f64 = 300.0;

pub(super) fn check(owed: Option<&[Owed]>, stages: Option<&[StageFacts]>) -> Check {
    let check = Check::new("queue.owed", "queues", "Oldest work by the ledger", "nothing is owed");
    let Some(owed) = owed else { return check.unseen() };
    let Some(oldest) = owed.iter().max_by(|a, b| a.oldest.total_cmp(&b.oldest)) else { return check };
    let told: Vec<String> = owed.iter().map(|owed| format!("{} {:.0} s", owed.stage, owed.oldest)).collect();
    let check = Check { observation: told.join(", "), ..check };
    if oldest.oldest < WARN_SECONDS {
        return check;
    }
    let is_missing = stages.is_some_and(|stages| of_stage(stages, &oldest.stage).is_none_or(|facts| facts.alive == 0));
    let cause = if is_missing { "no process runs it" } else { "it is behind, or what announces its work fails" };
    check.because(
        Status::Warn,
        format!("the oldest work of the stage {} waits for {:.0} s: {cause}", oldest.stage, oldest.oldest),
        &[
            "start it, or more of it: `postrider stage <name>`",
            "see failing sweeps above, and `postrider streams report`",
        ],
        "work-waits",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn of(owed: &[(&str, f64)]) -> Vec<Owed> {
        owed.iter().map(|(stage, oldest)| Owed { stage: (*stage).to_owned(), oldest: *oldest }).collect()
    }

    #[rstest]
    #[case::nothing(of(&[]), Status::Ok)]
    #[case::of_seconds(of(&[("webhooks", 2.0), ("sequencing", 9.0)]), Status::Ok)]
    #[case::of_minutes(of(&[("webhooks", 2.0), ("sequencing", 400.0)]), Status::Warn)]
    fn old_work_is_told_with_its_stage(#[case] owed: Vec<Owed>, #[case] expected: Status) {
        let check = check(Some(&owed), Some(&[]));
        assert_eq!(check.status, expected);
        if expected != Status::Ok {
            let cause = check.cause.unwrap_or_default();
            assert!(cause.contains("sequencing") && cause.contains("no process runs it"), "{cause}");
        }
    }
}
