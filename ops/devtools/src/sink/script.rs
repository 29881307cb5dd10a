//! Scripts in local parts: `defer-451@…`, `drop-after-dot@…`. The table stands in [`super`]'s documentation.

use std::time::Duration;

use crate::sink::answer::{Behaviour, FailureOutcome, TransactionStage};
use crate::sink::rules::MAX_DELAY;

/// The behaviour a local part asks for; `None` for ordinary ones. Case does not matter.
pub(crate) fn parse(local_part: &str) -> Option<Behaviour> {
    // Nearly every address leaves here, without an allocation.
    const VERBS: [&str; 6] = ["defer-", "reject-", "greylist", "tarpit-", "slow-", "drop-"];
    if !VERBS.iter().any(|verb| starts_with_ignoring_case(local_part, verb)) {
        return None;
    }
    let script = local_part.split('+').next()?.to_ascii_lowercase();
    let mut words: Vec<&str> = script.split('-').collect();
    // `greylist-0042`, `drop-after-dot-7` and `greylist42` are `greylist` and `drop-after-dot`.
    while words.len() > 2 && is_number(words[words.len() - 1]) {
        words.pop();
    }
    if words.len() == 2 && is_number(words[1]) && words[0] == "greylist" {
        words.pop();
    }
    if let Some(last) = words.last_mut() {
        let bare = last.trim_end_matches(|c: char| c.is_ascii_digit());
        let is_word = bare.bytes().all(|byte| byte.is_ascii_lowercase());
        if is_word && !bare.is_empty() {
            *last = bare;
        }
    }
    behaviour(&words)
}

fn behaviour(words: &[&str]) -> Option<Behaviour> {
    match *words {
        ["defer", "once", ref rest @ ..] => fail(451, "4.3.0", Some(1), rest),
        ["defer", "twice", ref rest @ ..] => fail(451, "4.3.0", Some(2), rest),
        ["greylist", ref rest @ ..] => fail(450, "4.7.1", Some(1), rest),
        ["defer", code, ref rest @ ..] => coded(code, 400..500, rest),
        ["reject", code, ref rest @ ..] => coded(code, 500..600, rest),
        ["tarpit", delay] => Some(Behaviour::late(None, duration(delay)?)),
        ["slow", stage, delay] => Some(Behaviour::late(Some(answering_stage(stage)?), duration(delay)?)),
        ["drop", "before", "dot"] => Some(Behaviour::end(TransactionStage::Body, FailureOutcome::Drop)),
        ["drop", "after", "dot"] => Some(Behaviour::end(TransactionStage::Dot, FailureOutcome::DropAfterAccept)),
        ["drop", "at", stage] => Some(Behaviour::end(answering_stage(stage)?, FailureOutcome::Drop)),
        _ => None,
    }
}

fn coded(code: &str, range: std::ops::Range<u16>, rest: &[&str]) -> Option<Behaviour> {
    let code = code.parse().ok().filter(|code| range.contains(code))?;
    match *rest {
        [enhanced, ref rest @ ..] if is_enhanced(enhanced) => fail(code, enhanced, None, rest),
        _ => fail(code, usual_enhanced(code), None, rest),
    }
}

fn fail(code: u16, enhanced: &str, times: Option<u32>, rest: &[&str]) -> Option<Behaviour> {
    let stage = match *rest {
        [] => TransactionStage::Rcpt,
        ["at", stage] => answering_stage(stage)?,
        _ => return None,
    };
    let reply = format!("{code} {enhanced} As the address asked for");
    Some(Behaviour { times, ..Behaviour::end(stage, FailureOutcome::Reply(reply)) })
}

fn answering_stage(word: &str) -> Option<TransactionStage> {
    let stage: TransactionStage = serde_json::from_value(word.into()).ok()?;
    (stage != TransactionStage::Body).then_some(stage)
}

/// `3s`, `200ms`; at most ten minutes.
fn duration(word: &str) -> Option<Duration> {
    let duration = match word.strip_suffix("ms") {
        Some(number) => Duration::from_millis(number.parse().ok()?),
        None => Duration::from_secs(word.strip_suffix('s')?.parse().ok()?),
    };
    (duration <= MAX_DELAY).then_some(duration)
}

/// RFC 3463: class 4 or 5, subject, detail.
fn is_enhanced(word: &str) -> bool {
    let mut parts = word.split('.');
    matches!(parts.next(), Some("4" | "5"))
        && parts.clone().count() == 2
        && parts.all(|part| part.len() <= 3 && is_number(part))
}

/// What servers usually say with these codes (RFC 5321 §4.2.3, RFC 3463, RFC 5248).
fn usual_enhanced(code: u16) -> &'static str {
    match code {
        421 => "4.3.2",
        450 => "4.2.0",
        451 => "4.3.0",
        452 => "4.2.2",
        550 => "5.1.1",
        552 => "5.2.2",
        553 => "5.1.3",
        554 => "5.7.1",
        400..=499 => "4.0.0",
        _ => "5.0.0",
    }
}

fn is_number(word: &str) -> bool {
    !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit())
}

fn starts_with_ignoring_case(text: &str, prefix: &str) -> bool {
    text.as_bytes().get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix.as_bytes()))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("defer-451", TransactionStage::Rcpt, None, "451 4.3.0")]
    #[case("defer-452-4.2.2", TransactionStage::Rcpt, None, "452 4.2.2")]
    #[case("reject-550", TransactionStage::Rcpt, None, "550 5.1.1")]
    #[case("Reject-554-5.7.1", TransactionStage::Rcpt, None, "554 5.7.1")]
    #[case("reject-552-at-dot", TransactionStage::Dot, None, "552 5.2.2")]
    #[case("reject-550-5.7.26-at-data", TransactionStage::Data, None, "550 5.7.26")]
    #[case("reject-550-at-mail", TransactionStage::Mail, None, "550 5.1.1")]
    #[case("greylist", TransactionStage::Rcpt, Some(1), "450 4.7.1")]
    #[case("greylist-at-dot", TransactionStage::Dot, Some(1), "450 4.7.1")]
    #[case("defer-twice", TransactionStage::Rcpt, Some(2), "451 4.3.0")]
    #[case("greylist42", TransactionStage::Rcpt, Some(1), "450 4.7.1")]
    #[case("greylist-0042", TransactionStage::Rcpt, Some(1), "450 4.7.1")]
    #[case("reject-550-17", TransactionStage::Rcpt, None, "550 5.1.1")]
    #[case("reject-550-5.1.1-17", TransactionStage::Rcpt, None, "550 5.1.1")]
    #[case("defer-451-at-dot-3+news", TransactionStage::Dot, None, "451 4.3.0")]
    fn an_address_asks_for_a_reply(
        #[case] local_part: &str,
        #[case] stage: TransactionStage,
        #[case] times: Option<u32>,
        #[case] reply: &str,
    ) {
        let behaviour = parse(local_part).unwrap();
        assert_eq!((behaviour.stage, behaviour.times, behaviour.delay), (Some(stage), times, None));
        let Some(FailureOutcome::Reply(answer)) = behaviour.outcome else { panic!("{:?}", behaviour.outcome) };
        assert!(answer.starts_with(reply), "{answer}");
    }

    #[rstest]
    #[case("tarpit-3s", None, 3_000)]
    #[case("tarpit-200ms-9", None, 200)]
    #[case("slow-dot-2s", Some(TransactionStage::Dot), 2_000)]
    #[case("slow-rcpt-50ms+x", Some(TransactionStage::Rcpt), 50)]
    fn an_address_asks_for_patience(
        #[case] local_part: &str,
        #[case] stage: Option<TransactionStage>,
        #[case] delay_ms: u64,
    ) {
        let behaviour = parse(local_part).unwrap();
        assert_eq!(behaviour.stage, stage);
        assert_eq!(behaviour.delay, Some(Duration::from_millis(delay_ms)));
        assert_eq!(behaviour.outcome, None);
    }

    #[rstest]
    #[case("drop-before-dot", TransactionStage::Body, FailureOutcome::Drop)]
    #[case("drop-at-dot", TransactionStage::Dot, FailureOutcome::Drop)]
    #[case("drop-after-dot", TransactionStage::Dot, FailureOutcome::DropAfterAccept)]
    #[case("drop-after-dot-12", TransactionStage::Dot, FailureOutcome::DropAfterAccept)]
    #[case("drop-after-dot12", TransactionStage::Dot, FailureOutcome::DropAfterAccept)]
    #[case("drop-at-rcpt", TransactionStage::Rcpt, FailureOutcome::Drop)]
    fn an_address_asks_for_a_lost_connection(
        #[case] local_part: &str,
        #[case] stage: TransactionStage,
        #[case] outcome: FailureOutcome,
    ) {
        let behaviour = parse(local_part).unwrap();
        assert_eq!((behaviour.stage, behaviour.outcome), (Some(stage), Some(outcome)));
    }

    #[test]
    fn other_addresses_are_ordinary() {
        let local_parts = "ann defer defer-550 reject-451 reject-everything reject-550-somehow drop-in slowdown
            slow-cooking-2s tarpit-99999s greylisting.expert";
        for local_part in local_parts.split_whitespace() {
            assert_eq!(parse(local_part), None, "{local_part}");
        }
    }
}
