//! Receivers that slow down our mail. It goes out later; a receiver that accepts nothing for an hour is a warning.

use super::{HealthCheck, HealthStatus};
use crate::api::platform::facts::PacingFacts;

pub(super) fn check(pacing: Option<&PacingFacts>) -> HealthCheck {
    let check = HealthCheck::new("pacing", "sending", "Receivers that slow us down", "none");
    let Some(PacingFacts { throttled, stalled, slowest, warming }) = pacing else { return check.unavailable() };
    let slowest = slowest.map(|rate| format!(", the slowest to {rate:.2} mail(s) a second")).unwrap_or_default();
    let check = check.observed(format!(
        "{throttled} route(s) slowed down{slowest}; {stalled} of them took nothing for an hour; {warming} domain(s) warmed up"
    ));
    if *stalled == 0 {
        return check;
    }
    check.because(
        HealthStatus::Warn,
        format!("{stalled} route(s) to a receiver accept nothing; their mail waits, other mail does not"),
        &[
            "`mail_smtp_answers_total` and `GET /v1/sends/{id}` have the receivers' answers",
            "mend reputation or lists; the pace rises by itself with good answers",
        ],
        "deferrals",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_receiver_that_takes_nothing_is_a_warning() {
        let slowed = PacingFacts { throttled: 2, slowest: Some(0.5), ..PacingFacts::default() };
        assert_eq!(check(Some(&slowed)).status, HealthStatus::Ok);
        assert!(check(Some(&slowed)).observation.contains("0.50"));
        assert_eq!(check(Some(&PacingFacts { stalled: 1, ..slowed })).status, HealthStatus::Warn);
    }
}
