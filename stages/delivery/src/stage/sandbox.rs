//! The capture provider of sandbox tenants: it takes everything and sends nothing; magic recipients get other answers.

use super::ledger::Answer;
use crate::{
    classify::{Decision, classify_reply},
    smtp::{Phase, Reply},
};

/// The domain of the magic recipients.
const MAGIC_DOMAIN: &str = "sandbox.test";

/// What the capture provider answers for this recipient. `bounced@sandbox.test` does not exist, `deferred@sandbox.test` is
/// never ready, each with any plus-tag; every other address is captured.
pub(super) fn answer(address: &str) -> (Decision, Answer) {
    let local = address.split_once('@').filter(|(_, domain)| *domain == MAGIC_DOMAIN).map(|(local, _)| local);
    let reply = match local.and_then(|local| local.split('+').next()) {
        Some("bounced") => Reply::new(550, "5.1.1 sandbox: no such user"),
        Some("deferred") => Reply::new(450, "4.2.0 sandbox: not now"),
        _ => return (Decision::SENT, Answer { text: Some("captured".to_owned()), ..Answer::default() }),
    };
    (classify_reply(Phase::Rcpt, &reply), super::verdict::answer(Some(&reply)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::classify::{Class, Outcome};
    use rstest::rstest;

    #[rstest]
    #[case::anybody("ann@example.com", Outcome::Sent)]
    #[case::delivered("delivered@sandbox.test", Outcome::Sent)]
    #[case::bounced("bounced+7@sandbox.test", Outcome::Fail { class: Class::Hard, suppress: true })]
    #[case::deferred("deferred@sandbox.test", Outcome::Defer(Class::Temporary))]
    #[case::other_domain("bounced@example.com", Outcome::Sent)]
    fn magic_recipients_get_their_answer(#[case] address: &str, #[case] outcome: Outcome) {
        assert_eq!(answer(address).0.outcome, outcome);
    }
}
