//! Classifies a bounce as hard, soft or block, by the rules of [`schemas::answers`], which delivery also applies to immediate
//! answers: the enhanced status code first, except for the texts of servers that use it loosely, then other texts, then the
//! reply code.

use schemas::{
    BounceClass, SignalKind,
    answers::{Class, EnhancedCode, by_reply_code, meaning},
};

/// A report that a message was not delivered, as far as the rules look at it.
#[derive(Debug, Clone, Copy, Default)]
pub struct BounceReport<'a> {
    /// The reply code, if the report names it besides the text.
    pub smtp_code: Option<u16>,
    /// The enhanced status code, if the report names it besides the text.
    pub enhanced_code: Option<&'a str>,
    /// The server's text, which may contain codes.
    pub text: &'a str,
    /// The reporter's own classification. Decides if codes and text are not specific.
    pub hint: Option<BounceClass>,
}

/// The rule's name where nothing but the reporter's own opinion was to be had.
const HINT: &str = "reporter";
/// The rule's name where nothing at all was.
const NOTHING: &str = "nothing_known";
/// The most characters of a diagnostic that are stored.
pub(crate) const DIAGNOSTIC_CHARS: usize = 500;

/// What a report says, and the name of the rule that says so.
#[must_use]
pub fn classify(report: &BounceReport<'_>) -> (BounceClass, &'static str) {
    let codes = Codes::of(report);
    let known = meaning(codes.enhanced, report.text);
    let (class, rule) = match (known, report.hint, codes.reply) {
        (Some(meaning), ..) => (meaning.class, meaning.rule),
        (None, Some(BounceClass::Hard), _) if codes.is_temporary() => (Class::Temporary, HINT),
        (None, Some(hint), _) => return (hint, HINT),
        (None, None, Some(code)) => (by_reply_code(code).class, by_reply_code(code).rule),
        (None, None, None) if codes.is_temporary() => (Class::Temporary, NOTHING),
        (None, None, None) => (Class::Policy, NOTHING),
    };
    // "No such user" as a temporary answer is a directory that is away, or a grey one: not a fact about the address.
    let class = if codes.is_temporary() && class == Class::Hard { Class::Temporary } else { class };
    (class.bounce(), rule)
}

pub(crate) fn bounce_fact(report: &BounceReport<'_>) -> SignalKind {
    let (class, rule) = classify(report);
    let codes = Codes::of(report);
    SignalKind::Bounced {
        class,
        smtp_code: codes.reply.and_then(|code| i16::try_from(code).ok()),
        enhanced_code: codes.enhanced.map(|code| code.to_string()),
        diagnostic: diagnostic(report.text),
        rule: rule.to_owned(),
    }
}

/// A server's text as it is stored: one line, without control characters, cut.
fn diagnostic(text: &str) -> Option<String> {
    let line: String = text
        .split(|character: char| character.is_whitespace() || character.is_control())
        .filter(|word| !word.is_empty())
        .collect::<Vec<_>>()
        .join(" ");
    let line: String = line.chars().take(DIAGNOSTIC_CHARS).collect();
    (!line.is_empty()).then_some(line)
}

/// The codes of a report: those it names, or else those in its text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Codes {
    pub(crate) reply: Option<u16>,
    pub(crate) enhanced: Option<EnhancedCode>,
}

impl Codes {
    pub(crate) fn of(report: &BounceReport<'_>) -> Self {
        let (reply, enhanced) = among(report.text);
        let named = report.enhanced_code.and_then(|code| EnhancedCode::at_start(code.trim())).map(|(code, _)| code);
        // Relays write 5.0.0 for unknown errors; the server's own code is in the text.
        let enhanced = match (named, enhanced) {
            (Some(named), Some(said)) if named.says_nothing() => Some(said),
            (named, said) => named.or(said),
        };
        Self { reply: report.smtp_code.or(reply), enhanced }
    }

    fn is_temporary(self) -> bool {
        match (self.enhanced, self.reply) {
            (Some(code), _) => code.class == 4,
            (None, Some(code)) => (400..500).contains(&code),
            (None, None) => false,
        }
    }
}

/// The first reply code and the first enhanced code in a text: `smtp; 550-5.1.1 …`, `(#5.1.1)`, `Remote host said: 550 …`.
fn among(text: &str) -> (Option<u16>, Option<EnhancedCode>) {
    let between = |character: char| !(character.is_ascii_alphanumeric() || character == '.' || character == '@');
    let mut codes = (None, None);
    for word in text.split(between).map(|word| word.trim_end_matches('.')) {
        if codes.0.is_none() && codes.1.is_none() && word.len() == 3 && word.starts_with(['4', '5']) {
            codes.0 = word.parse().ok();
        }
        if codes.1.is_none() {
            codes.1 =
                EnhancedCode::at_start(word).map(|(code, _)| code).filter(|code| code.class != 2 && code.subject <= 7);
        }
    }
    codes
}

#[cfg(test)]
mod tests;
