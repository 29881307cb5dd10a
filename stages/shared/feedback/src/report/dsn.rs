//! Delivery status notifications (RFC 3464; RFC 6533 for international ones).

use runtime::{Budget, Spent};
use schemas::SignalKind;

use super::{
    Note, Reading, diagnostic,
    fields::{Group, groups},
    parts::Parts,
    plain,
};
use crate::bounce::{Codes, Report, classify};

/// What became of a recipient, the worst last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Action {
    /// Handed on to a system that tells no more, or to a list's members.
    Relayed,
    Delayed,
    Delivered,
    Failed,
}

/// Reads a report; `None` when the mail is none.
pub(super) fn read(mail: &Parts, budget: &Budget) -> Result<Option<Reading>, Spent> {
    let Some(status) = &mail.status else {
        return Ok(mail.is_receipt.then_some(Reading::Noted(Note::Receipt)));
    };
    let recipients = groups(status, budget)?;
    let worst =
        recipients.iter().filter_map(|group| Some((action_of(group)?, group))).max_by_key(|(action, _)| *action);
    Ok(Some(match worst {
        Some((Action::Failed, group)) => Reading::Told(bounce(group, mail)),
        Some((Action::Delivered, _)) => Reading::Told(SignalKind::Delivered),
        Some((Action::Delayed, _)) => Reading::Noted(Note::Delayed),
        Some((Action::Relayed, _)) => Reading::Noted(Note::Relayed),
        None => Reading::Noted(Note::Unreadable),
    }))
}

/// RFC 3464 §2.3.3; the status alone where a server leaves the action out.
fn action_of(group: &Group) -> Option<Action> {
    let word = |text: &str| text.split([' ', '\t', '(', ';']).next().unwrap_or_default().to_ascii_lowercase();
    match group.get("action").map(word).as_deref() {
        Some("failed" | "failure") => Some(Action::Failed),
        Some("delayed") => Some(Action::Delayed),
        Some("delivered") => Some(Action::Delivered),
        Some("relayed" | "expanded") => Some(Action::Relayed),
        _ => match group.get("status")?.chars().next()? {
            '5' => Some(Action::Failed),
            '4' => Some(Action::Delayed),
            '2' => Some(Action::Relayed),
            _ => None,
        },
    }
}

fn bounce(group: &Group, mail: &Parts) -> SignalKind {
    let said = group.untyped("diagnostic-code").unwrap_or_default();
    let status = group.get("status");
    let report = Report { enhanced_code: status, text: said, ..Report::default() };
    // Neither the status nor the server says anything: what is written for people may.
    let written = if said.is_empty() && Codes::of(&report).enhanced.is_none_or(|code| code.says_nothing()) {
        plain::reason(&mail.words)
    } else {
        String::new()
    };
    let report = if written.is_empty() { report } else { Report { text: &written, ..report } };
    told(&report)
}

/// The fact a report of failure tells.
pub(super) fn told(report: &Report<'_>) -> SignalKind {
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
