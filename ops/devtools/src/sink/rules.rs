//! Scripted answers by rule. The format stands in [`super`]'s documentation.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::sink::answer::{Behaviour, FailureOutcome, FailureReply, TransactionStage};

/// Longest `delay_ms`.
const MAX_DELAY: Duration = Duration::from_secs(600);

/// Which addresses a rule is for. Case does not matter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Match {
    /// Every address, also the empty sender.
    All,
    /// This one.
    Address(String),
    /// All of this domain; not of its subdomains.
    Domain(String),
    /// Those that fit a pattern with `*` (any text) and `?` (one byte).
    Glob(String),
}

impl Match {
    fn fits(&self, address: &str) -> bool {
        match self {
            Self::All => true,
            Self::Address(own) => own.eq_ignore_ascii_case(address),
            Self::Domain(own) => address.rsplit_once('@').is_some_and(|(_, domain)| own.eq_ignore_ascii_case(domain)),
            Self::Glob(pattern) => glob(pattern.as_bytes(), address.as_bytes()),
        }
    }
}

/// Iterative, with one point to return to: the time is bounded by the product of both lengths.
fn glob(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p, t));
                p += 1;
            }
            Some(&byte) if byte == b'?' || byte.eq_ignore_ascii_case(&text[t]) => {
                p += 1;
                t += 1;
            }
            _ => match star {
                Some((after, from)) => {
                    star = Some((after, from + 1));
                    p = after + 1;
                    t = from + 1;
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|byte| *byte == b'*')
}

/// One rule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Written", into = "Written")]
pub struct SinkRule {
    matches: Match,
    behaviour: Behaviour,
}

impl SinkRule {
    /// Ends `stage` with `outcome` for the addresses of `matches`.
    pub fn new(matches: Match, stage: TransactionStage, outcome: FailureOutcome) -> Result<Self, RuleError> {
        Self { matches, behaviour: Behaviour::end(stage, outcome) }.checked()
    }

    /// Delays the answer at `stage`, which is otherwise a good one.
    pub fn slow(matches: Match, stage: TransactionStage, delay: Duration) -> Result<Self, RuleError> {
        Self { matches, behaviour: Behaviour::late(Some(stage), delay) }.checked()
    }

    /// Only for the first `times` attempts of each address.
    pub fn times(mut self, times: u32) -> Self {
        self.behaviour.times = Some(times);
        self
    }

    /// What it asks for at `stage` for `address`, leaving its `times` aside.
    pub(crate) fn behaviour_for(&self, stage: TransactionStage, address: &str) -> Option<&Behaviour> {
        (self.behaviour.acts_at(stage) && self.matches.fits(address)).then_some(&self.behaviour)
    }

    fn checked(self) -> Result<Self, RuleError> {
        let behaviour = &self.behaviour;
        if behaviour.delay.is_some_and(|delay| delay > MAX_DELAY) {
            return Err(RuleError::LongDelay);
        }
        match (&behaviour.outcome, behaviour.stage) {
            (None, _) if behaviour.delay.is_none() => Err(RuleError::NoEffect),
            (Some(FailureOutcome::Reply(_)), Some(TransactionStage::Body)) => Err(RuleError::ReplyInBody),
            (Some(FailureOutcome::DropAfterAccept), stage) if stage != Some(TransactionStage::Dot) => {
                Err(RuleError::NothingAccepted)
            }
            _ => Ok(self),
        }
    }
}

/// Why rules are refused.
#[derive(Debug, thiserror::Error)]
pub enum RuleError {
    /// Not JSON, not a list, an unknown field, or one of the other faults inside a rule.
    #[error("the rules are not readable: {0}")]
    Unreadable(#[from] serde_json::Error),
    /// Nothing would happen.
    #[error("a rule takes a reply, an action or a delay_ms")]
    NoEffect,
    /// Two ends for one stage.
    #[error("a rule takes a reply or an action, not both")]
    TwoOutcomes,
    /// A reply is `4xx text` or `5xx text`.
    #[error("a reply is a line that begins with 4xx or 5xx")]
    NotAReply,
    /// The server is silent while it reads a body.
    #[error("no reply can be given at stage body")]
    ReplyInBody,
    /// Only at the dot is there something to accept.
    #[error("drop_after_accept is for stage dot")]
    NothingAccepted,
    /// More than ten minutes.
    #[error("delay_ms is at most 600000")]
    LongDelay,
}

/// Reads a JSON list of rules.
pub(crate) fn parse(text: &str) -> Result<Vec<SinkRule>, RuleError> {
    Ok(serde_json::from_str(text)?)
}

/// A rule as it is written.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    #[serde(rename = "match")]
    matches: Match,
    stage: TransactionStage,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reply: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    action: Option<Action>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    delay_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    times: Option<u32>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Action {
    Drop,
    DropAfterAccept,
}

impl TryFrom<Written> for SinkRule {
    type Error = RuleError;

    fn try_from(written: Written) -> Result<Self, RuleError> {
        let outcome = match (written.reply, written.action) {
            (Some(_), Some(_)) => return Err(RuleError::TwoOutcomes),
            (Some(line), None) => Some(FailureOutcome::Reply(FailureReply::parse(&line).ok_or(RuleError::NotAReply)?)),
            (None, Some(Action::Drop)) => Some(FailureOutcome::Drop),
            (None, Some(Action::DropAfterAccept)) => Some(FailureOutcome::DropAfterAccept),
            (None, None) => None,
        };
        Self {
            matches: written.matches,
            behaviour: Behaviour {
                stage: Some(written.stage),
                times: written.times,
                delay: written.delay_ms.map(Duration::from_millis),
                outcome,
            },
        }
        .checked()
    }
}

impl From<SinkRule> for Written {
    fn from(rule: SinkRule) -> Self {
        let (reply, action) = match rule.behaviour.outcome {
            Some(FailureOutcome::Reply(reply)) => (Some(reply.line().to_owned()), None),
            Some(FailureOutcome::Drop) => (None, Some(Action::Drop)),
            Some(FailureOutcome::DropAfterAccept) => (None, Some(Action::DropAfterAccept)),
            None => (None, None),
        };
        Self {
            matches: rule.matches,
            // Rules always name their stage.
            stage: rule.behaviour.stage.unwrap_or(TransactionStage::Rcpt),
            reply,
            action,
            delay_ms: rule.behaviour.delay.and_then(|delay| u64::try_from(delay.as_millis()).ok()),
            times: rule.behaviour.times,
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("*", "", true)]
    #[case("user-*@example.com", "user-17@EXAMPLE.com", true)]
    #[case("user-*@example.com", "user-17@example.org", false)]
    #[case("a?c@*", "abc@x", true)]
    #[case("a?c@*", "ac@x", false)]
    #[case("*a*b*", "xxaxxaxxb", true)]
    #[case("*a*b*c", "xxaxxaxxb", false)]
    fn a_glob_fits_whole_addresses(#[case] pattern: &str, #[case] text: &str, #[case] fits: bool) {
        assert_eq!(glob(pattern.as_bytes(), text.as_bytes()), fits);
    }

    #[test]
    fn rules_read_as_written() {
        let text = r#"[
            {"match": {"address": "ann@example.com"}, "stage": "rcpt", "reply": "550 5.1.1 No such user"},
            {"match": {"domain": "slow.example"}, "stage": "dot", "delay_ms": 2000},
            {"match": {"glob": "user-*@example.com"}, "stage": "dot", "action": "drop_after_accept", "times": 1},
            {"match": "all", "stage": "data", "reply": "421 4.3.2 Going down", "delay_ms": 500}
        ]"#;
        let rules = parse(text).unwrap();
        let again: serde_json::Value = serde_json::to_value(&rules).unwrap();
        assert_eq!(again, serde_json::from_str::<serde_json::Value>(text).unwrap());
    }

    #[rstest]
    #[case(r#"[{"match": "all", "stage": "rcpt"}]"#, "a reply, an action or a delay_ms")]
    #[case(r#"[{"match": "all", "stage": "rcpt", "reply": "250 fine"}]"#, "4xx or 5xx")]
    #[case(r#"[{"match": "all", "stage": "rcpt", "reply": "550 a\r\n250 b"}]"#, "4xx or 5xx")]
    #[case(r#"[{"match": "all", "stage": "body", "reply": "550 no"}]"#, "stage body")]
    #[case(r#"[{"match": "all", "stage": "rcpt", "action": "drop_after_accept"}]"#, "stage dot")]
    #[case(r#"[{"match": "all", "stage": "dot", "delay_ms": 600001}]"#, "600000")]
    #[case(r#"[{"match": "all", "stage": "dot", "reply": "550 no", "often": 3}]"#, "unknown field")]
    #[case(r#"{"match": "all"}"#, "expected a sequence")]
    fn a_rule_that_cannot_work_is_refused(#[case] text: &str, #[case] reason: &str) {
        let error = parse(text).unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
    }
}
