//! Scripted answers by rule. The format stands in [`super`]'s documentation.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde::{Deserialize, Serialize};

use crate::sink::answer::{Behaviour, FailureOutcome, TransactionStage};

pub(crate) const MAX_DELAY: Duration = Duration::from_secs(600);

/// Which addresses a rule is for. Case does not matter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Match {
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

/// One rule, as it is written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SinkRule {
    #[serde(rename = "match")]
    matches: Match,
    stage: TransactionStage,
    #[serde(skip_serializing_if = "Option::is_none")]
    reply: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    action: Option<Action>,
    #[serde(skip_serializing_if = "Option::is_none")]
    delay_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    times: Option<u32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Action {
    Drop,
    DropAfterAccept,
}

impl SinkRule {
    /// Reads a JSON list of rules.
    pub fn parse_list(text: &str) -> anyhow::Result<Vec<Self>> {
        let rules: Vec<Self> = serde_json::from_str(text).context("the rules are not readable")?;
        rules.iter().try_for_each(Self::check)?;
        Ok(rules)
    }

    /// What it asks for at `stage` for `address`, leaving its `times` aside.
    pub(crate) fn behaviour_for(&self, stage: TransactionStage, address: &str) -> Option<Behaviour> {
        if self.stage != stage || !self.matches.fits(address) {
            return None;
        }
        let outcome = match (&self.reply, self.action) {
            (Some(line), _) => Some(FailureOutcome::Reply(line.clone())),
            (None, Some(Action::Drop)) => Some(FailureOutcome::Drop),
            (None, Some(Action::DropAfterAccept)) => Some(FailureOutcome::DropAfterAccept),
            (None, None) => None,
        };
        let delay = self.delay_ms.map(Duration::from_millis);
        Some(Behaviour { stage: Some(stage), times: self.times, delay, outcome })
    }

    fn check(&self) -> anyhow::Result<()> {
        let (has_reply, has_action) = (self.reply.is_some(), self.action.is_some());
        ensure!(!(has_reply && has_action), "a rule takes a reply or an action, not both");
        ensure!(has_reply || has_action || self.delay_ms.is_some(), "a rule takes a reply, an action or a delay_ms");
        ensure!(self.reply.as_deref().is_none_or(is_failure), "a reply is a line that begins with 4xx or 5xx");
        ensure!(!has_reply || self.stage != TransactionStage::Body, "no reply can be given at stage body");
        ensure!(
            self.action != Some(Action::DropAfterAccept) || self.stage == TransactionStage::Dot,
            "drop_after_accept is for stage dot"
        );
        let is_long = self.delay_ms.is_some_and(|delay| Duration::from_millis(delay) > MAX_DELAY);
        ensure!(!is_long, "delay_ms is at most {}", MAX_DELAY.as_millis());
        Ok(())
    }
}

/// Whether a line is an SMTP reply that says no, such as `451 4.3.0 Try again later`.
fn is_failure(line: &str) -> bool {
    let (code, text) = line.split_once(' ').unwrap_or((line, ""));
    code.len() == 3
        && code.parse::<u16>().is_ok_and(|code| (400..600).contains(&code))
        && text.len() <= 500
        && !text.contains(['\r', '\n'])
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
        let rules = SinkRule::parse_list(text).unwrap();
        let again: serde_json::Value = serde_json::to_value(&rules).unwrap();
        assert_eq!(again, serde_json::from_str::<serde_json::Value>(text).unwrap());
    }

    #[rstest]
    #[case(r#"[{"match": "all", "stage": "rcpt"}]"#, "a reply, an action or a delay_ms")]
    #[case(r#"[{"match": "all", "stage": "dot", "reply": "550 no", "action": "drop"}]"#, "not both")]
    #[case(r#"[{"match": "all", "stage": "rcpt", "reply": "250 fine"}]"#, "4xx or 5xx")]
    #[case(r#"[{"match": "all", "stage": "rcpt", "reply": "550 a\r\n250 b"}]"#, "4xx or 5xx")]
    #[case(r#"[{"match": "all", "stage": "body", "reply": "550 no"}]"#, "stage body")]
    #[case(r#"[{"match": "all", "stage": "rcpt", "action": "drop_after_accept"}]"#, "stage dot")]
    #[case(r#"[{"match": "all", "stage": "dot", "delay_ms": 600001}]"#, "600000")]
    #[case(r#"[{"match": "all", "stage": "dot", "reply": "550 no", "often": 3}]"#, "unknown field")]
    #[case(r#"{"match": "all"}"#, "expected a sequence")]
    fn a_rule_that_cannot_work_is_refused(#[case] text: &str, #[case] reason: &str) {
        let error = format!("{:#}", SinkRule::parse_list(text).unwrap_err());
        assert!(error.contains(reason), "{error}");
    }
}
