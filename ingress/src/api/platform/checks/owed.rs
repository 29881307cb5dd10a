//! The oldest work in the ledger of the stages beside the mail pipeline: requests, reports, outcomes, events, steps.

use super::{HealthCheck, HealthStatus, of_stage};
use crate::api::platform::facts::{OwedWork, StageFacts};

/// As the alert WorkWaits.
const WARN_SECONDS: f64 = 300.0;

pub(super) fn check(owed: Option<&[OwedWork]>, stages: Option<&[StageFacts]>) -> HealthCheck {
    let check = HealthCheck::new("queue.owed", "queues", "Oldest work by the ledger", "no work waits");
    let Some(owed) = owed else { return check.unavailable() };
    let Some(oldest) = owed.iter().max_by(|a, b| a.oldest.total_cmp(&b.oldest)) else { return check };
    let observed: Vec<String> = owed.iter().map(|owed| format!("{} {:.0} s", owed.stage, owed.oldest)).collect();
    let check = check.observed(observed.join(", "));
    if oldest.oldest < WARN_SECONDS {
        return check;
    }
    let is_missing = stages.is_some_and(|stages| of_stage(stages, &oldest.stage).is_none_or(|facts| facts.alive == 0));
    let cause = if is_missing { "no process runs it" } else { "it is behind, or what announces its work fails" };
    check.because(
        HealthStatus::Warn,
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

    fn of(owed: &[(&str, f64)]) -> Vec<OwedWork> {
        owed.iter().map(|(stage, oldest)| OwedWork { stage: (*stage).to_owned(), oldest: *oldest }).collect()
    }

    #[rstest]
    #[case::nothing(of(&[]), HealthStatus::Ok)]
    #[case::of_seconds(of(&[("webhooks", 2.0), ("sequencing", 9.0)]), HealthStatus::Ok)]
    #[case::of_minutes(of(&[("webhooks", 2.0), ("sequencing", 400.0)]), HealthStatus::Warn)]
    fn old_work_is_reported_with_its_stage(#[case] owed: Vec<OwedWork>, #[case] expected: HealthStatus) {
        let check = check(Some(&owed), Some(&[]));
        assert_eq!(check.status, expected);
        if expected != HealthStatus::Ok {
            let cause = check.cause.unwrap_or_default();
            assert!(cause.contains("sequencing") && cause.contains("no process runs it"), "{cause}");
        }
    }
}
