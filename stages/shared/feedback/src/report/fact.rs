//! The fact of a report of failure.

use schemas::SignalKind;

use crate::bounce::{BounceReport, Codes, classify};

/// The most characters of a diagnostic that are stored.
const DIAGNOSTIC_CHARS: usize = 500;

/// The bounce fact of a failure report.
pub(super) fn bounce_fact(report: &BounceReport<'_>) -> SignalKind {
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
