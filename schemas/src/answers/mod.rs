//! What a mail server's negative answer means: one table of rules for answers given at once (delivery) and for those that
//! come back as a report (engagement).
//!
//! Order of evidence: well-known words, but only where a server is known to use its codes loosely; then the enhanced status
//! code (RFC 3463); then other well-known words; then the reply code (RFC 5321 §4.2). When in doubt a person is not suppressed:
//! a suppression is for good, a bounce is not.

mod rules;

use std::fmt;

use self::rules::{AnswerRule, CODES, OVERRIDING, REPLIES, SUPPORTING, TextRule};
use crate::BounceClass;

crate::named_enum! {
    /// Why a send failed or waits.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub enum Class {
        /// The address does not exist.
        Hard = "hard",
        /// The mailbox exists and takes nothing now: full.
        MailboxFull = "mailbox_full",
        /// The mailbox exists and is switched off, or takes no mail from outside.
        Inactive = "inactive",
        /// Refused for reputation, spam or authentication of the sender: says nothing about the person.
        Block = "block",
        /// Refused for what the message is: size, content, form.
        Content = "content",
        /// Refused by a rule of the recipient's site: relaying, sender not wanted, closed list.
        Policy = "policy",
        /// Too many messages or connections from us; slow down.
        Throttled = "throttled",
        /// A temporary fault at the other side: greylisting, local errors.
        Temporary = "temporary",
        /// Their DNS or routing is broken, or their server cannot be reached by the relay.
        Routing = "routing",
        /// The relay cannot be reached or does not speak SMTP.
        Unreachable = "unreachable",
        /// Our settings are wrong: TLS, credentials, relay permission. A person must look.
        Configuration = "configuration",
    }
}

impl Class {
    /// True if the receiving server refused the mail or its recipient; false for what kept the mail from its decision.
    #[must_use]
    pub const fn is_refusal(self) -> bool {
        matches!(self, Self::Hard | Self::MailboxFull | Self::Inactive | Self::Block | Self::Content | Self::Policy)
    }

    /// True if another attempt may succeed; false if the address does not exist or is switched off.
    #[must_use]
    pub const fn may_succeed_later(self) -> bool {
        !matches!(self, Self::Hard | Self::Inactive)
    }

    /// What it is as a bounce, after the last attempt.
    #[must_use]
    pub const fn bounce(self) -> BounceClass {
        match self {
            Self::Hard => BounceClass::Hard,
            Self::MailboxFull | Self::Inactive | Self::Temporary | Self::Routing | Self::Throttled => BounceClass::Soft,
            Self::Block | Self::Content | Self::Policy | Self::Unreachable | Self::Configuration => BounceClass::Block,
        }
    }

    /// The bounce that a failure of this class is reported as. `None`: no server has refused the mail.
    #[must_use]
    pub const fn refused_as(self) -> Option<BounceClass> {
        if self.is_refusal() { Some(self.bounce()) } else { None }
    }
}

/// An enhanced status code `class.subject.detail` (RFC 3463).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EnhancedCode {
    /// 2 success, 4 temporary, 5 permanent.
    pub class: u8,
    /// What it is about: 1 address, 2 mailbox, 3 system, 4 network, 5 protocol, 6 content, 7 security and policy.
    pub subject: u16,
    /// The detail within the subject.
    pub detail: u16,
}

impl EnhancedCode {
    /// The code with these parts.
    #[must_use]
    pub const fn new(class: u8, subject: u16, detail: u16) -> Self {
        Self { class, subject, detail }
    }

    /// Reads a code at the start of a text, with the octets it took; the code must end at a space or the end.
    #[must_use]
    pub fn at_start(text: &str) -> Option<(Self, usize)> {
        let word = text.split(' ').next()?;
        let mut numbers = word.split('.');
        let class = numbers.next()?;
        let (subject, detail) = (number(numbers.next()?)?, number(numbers.next()?)?);
        if numbers.next().is_some() || !matches!(class, "2" | "4" | "5") {
            return None;
        }
        let class = class.bytes().next()? - b'0';
        Some((Self { class, subject, detail }, word.len()))
    }

    /// `X.0.0`: no more than that it failed.
    #[must_use]
    pub const fn says_nothing(self) -> bool {
        self.subject == 0
    }
}

/// One to three digits, as RFC 3463 §2 writes them.
fn number(digits: &str) -> Option<u16> {
    let plain = (1..=3).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_digit());
    if plain { digits.parse().ok() } else { None }
}

impl fmt::Display for EnhancedCode {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}.{}.{}", self.class, self.subject, self.detail)
    }
}

/// What a rule says about an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Meaning {
    /// What the answer means.
    pub class: Class,
    /// The rule that said so, by its name.
    pub rule: &'static str,
}

/// What the words and the enhanced code of an answer mean; `None` where neither says anything that is known.
#[must_use]
pub fn meaning(enhanced: Option<EnhancedCode>, text: &str) -> Option<Meaning> {
    let text = without_addresses(&text.to_lowercase());
    by_text(OVERRIDING, &text).or_else(|| enhanced.and_then(by_enhanced_code)).or_else(|| by_text(SUPPORTING, &text))
}

/// The text without words that are or contain an address: what an address is made of says nothing. The place stays marked, so that no new
/// phrase arises.
fn without_addresses(text: &str) -> String {
    let words = text.split_inclusive(char::is_whitespace);
    words.map(|word| if word.contains('@') { "@ " } else { word }).collect()
}

/// What a reply code means, where nothing better is known.
#[must_use]
pub fn by_reply_code(code: u16) -> Meaning {
    let rule = REPLIES.iter().find(|AnswerRule { pattern: (from, to), .. }| (*from..=*to).contains(&code));
    rule.map_or(Meaning { class: Class::Policy, rule: "reply_other" }, |rule| rule.meaning)
}

fn by_text(rules: &[TextRule], text: &str) -> Option<Meaning> {
    rules.iter().find(|rule| text.contains(rule.pattern)).map(|rule| rule.meaning)
}

fn by_enhanced_code(code: EnhancedCode) -> Option<Meaning> {
    let fits = |details: &[u16]| details.is_empty() || details.contains(&code.detail);
    CODES.iter().find(|rule| rule.pattern.0 == code.subject && fits(rule.pattern.1)).map(|rule| rule.meaning)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_rule_is_lower_case_reachable_and_has_its_name_and_reason() {
        for rules in [OVERRIDING, SUPPORTING] {
            for (number, rule) in rules.iter().enumerate() {
                assert_eq!(rule.pattern, rule.pattern.to_lowercase());
                assert!(!rule.reason.is_empty());
                let earlier = rules[..number].iter().find(|earlier| rule.pattern.contains(earlier.pattern));
                let decides = earlier.is_none_or(|earlier| earlier.meaning.class != rule.meaning.class);
                assert!(decides, "{} never decides", rule.pattern);
            }
        }
        assert!(CODES.iter().all(|rule| !rule.reason.is_empty()) && REPLIES.iter().all(|rule| !rule.reason.is_empty()));
        let texts = OVERRIDING.iter().chain(SUPPORTING).map(|rule| rule.meaning);
        let codes = CODES.iter().map(|rule| rule.meaning).chain(REPLIES.iter().map(|rule| rule.meaning));
        let names: Vec<&str> = texts.chain(codes).map(|meaning| meaning.rule).collect();
        assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len(), "a name is given twice");
    }

    #[test]
    fn an_address_in_an_answer_decides_nothing() {
        let rule = |code: Option<EnhancedCode>, text: &str| meaning(code, text).map(|meaning| meaning.rule);
        let gone = Some(EnhancedCode::new(5, 1, 1));
        for address in ["ann@antivirus.example", "dmarc@example.org", "ann@sorbs-attachment.example"] {
            assert_eq!(rule(gone, &format!("<{address}>... User unknown")), Some("no_such_address"), "{address}");
            assert_eq!(rule(None, &format!("550 {address}: user unknown")), Some("user_unknown"), "{address}");
        }
        assert_eq!(rule(None, "user ann@example.org unknown"), None, "what stands around it is no phrase");
    }

    #[test]
    fn policy_and_everything_under_it_is_never_about_the_person() {
        for detail in 0..=999 {
            let meaning = by_enhanced_code(EnhancedCode::new(5, 7, detail));
            assert!(meaning.is_some_and(|meaning| meaning.class.bounce() != BounceClass::Hard));
        }
    }
}
