//! Receivers that slow us down. Their mail waits and goes out in time; one that takes nothing for an hour is worth a look.

use super::{Check, Status};
use crate::api::platform::facts::Pacing;

pub(super) fn check(pacing: Option<&Pacing>) -> Check {
    let check = Check::new("pacing", "sending", "Receivers that slow us down", "none");
    let Some(Pacing { held, barren, slowest, warming }) = pacing else { return check.unseen() };
    let slowest = slowest.map(|rate| format!(", the slowest to {rate:.2} mail(s) a second")).unwrap_or_default();
    let check = Check {
        observation: format!(
            "{held} way(s) slowed down{slowest}; {barren} of them took nothing for an hour; {warming} domain(s) warmed up"
        ),
        ..check
    };
    if *barren == 0 {
        return check;
    }
    check.because(
        Status::Warn,
        format!("{barren} way(s) to a receiver take nothing at all; their mail waits, that of others is not concerned"),
        &[
            "`mail_smtp_answers_total` and `GET /v1/sends/{id}` have the receivers' own words",
            "mend reputation or lists; the pace rises by itself with good answers",
        ],
        "deferrals",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_receiver_that_takes_less_is_told_and_one_that_takes_nothing_warned_of() {
        let slowed = Pacing { held: 2, slowest: Some(0.5), ..Pacing::default() };
        assert_eq!(check(Some(&slowed)).status, Status::Ok);
        assert!(check(Some(&slowed)).observation.contains("0.50"));
        assert_eq!(check(Some(&Pacing { barren: 1, ..slowed })).status, Status::Warn);
    }
}
