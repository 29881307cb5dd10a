//! Delivery status notifications (RFC 3464; RFC 6533 for international ones).

use runtime::{Budget, Spent};
use schemas::{Address, BounceClass, SignalKind};

use super::{
    NoFactReason, ReportFinding,
    header::{MailHeader, groups},
    parts::MailParts,
    plain,
};
use crate::bounce::{BounceReport, Codes, bounce_fact};

/// The rule's name if the address that does not exist is one that our recipient forwards to.
const FORWARDED: &str = "forwarded";

/// What became of a recipient, the worst last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum DsnAction {
    /// Relayed to a system without reports, or to the members of a list.
    Relayed,
    Delayed,
    Delivered,
    Failed,
}

/// Reads a report; `None` when the mail is none.
pub(super) fn read(mail: &MailParts, budget: &Budget) -> Result<Option<ReportFinding>, Spent> {
    let Some(status) = &mail.status else {
        return Ok(mail.is_receipt.then_some(ReportFinding::NoFact(NoFactReason::Receipt)));
    };
    let recipients = groups(status, budget)?;
    let worst =
        recipients.iter().filter_map(|group| Some((action_of(group)?, group))).max_by_key(|(action, _)| *action);
    Ok(Some(match worst {
        Some((DsnAction::Failed, group)) => ReportFinding::Fact(bounce(group, mail)),
        Some((DsnAction::Delivered, _)) => ReportFinding::Fact(SignalKind::Delivered),
        Some((DsnAction::Delayed, _)) => ReportFinding::NoFact(NoFactReason::Delayed),
        Some((DsnAction::Relayed, _)) => ReportFinding::NoFact(NoFactReason::Relayed),
        None => ReportFinding::NoFact(NoFactReason::Unreadable),
    }))
}

/// RFC 3464 §2.3.3; the status alone where a server leaves the action out.
fn action_of(group: &MailHeader) -> Option<DsnAction> {
    let word = |text: &str| text.split([' ', '\t', '(', ';']).next().unwrap_or_default().to_ascii_lowercase();
    match group.get("action").map(word).as_deref() {
        Some("failed" | "failure") => Some(DsnAction::Failed),
        Some("delayed") => Some(DsnAction::Delayed),
        Some("delivered") => Some(DsnAction::Delivered),
        Some("relayed" | "expanded") => Some(DsnAction::Relayed),
        _ => match group.get("status")?.chars().next()? {
            '5' => Some(DsnAction::Failed),
            '4' => Some(DsnAction::Delayed),
            '2' => Some(DsnAction::Relayed),
            _ => None,
        },
    }
}

fn bounce(group: &MailHeader, mail: &MailParts) -> SignalKind {
    let said = group.untyped("diagnostic-code").unwrap_or_default();
    let status = group.get("status");
    let report = BounceReport { enhanced_code: status, text: said, ..BounceReport::default() };
    // Neither the status nor the server's text is specific: try the human-readable text.
    let is_vague = said.is_empty() && Codes::of(&report).enhanced.is_none_or(|code| code.says_nothing());
    let written = if is_vague { plain::reason(&mail.text) } else { String::new() };
    let report = if written.is_empty() { report } else { BounceReport { text: &written, ..report } };
    match bounce_fact(&report) {
        SignalKind::Bounced { class: BounceClass::Hard, smtp_code, enhanced_code, diagnostic, .. }
            if is_forwarded(group) =>
        {
            let (class, rule) = (BounceClass::Soft, FORWARDED.to_owned());
            SignalKind::Bounced { class, smtp_code, enhanced_code, diagnostic, rule }
        }
        fact => fact,
    }
}

/// True if the report says that the mail was for another address first: it was forwarded, and what became of the target says nothing about
/// our recipient.
fn is_forwarded(group: &MailHeader) -> bool {
    let address = |name| Address::parse(group.untyped(name)?.trim_matches(['<', '>', ' '])).ok();
    address("original-recipient").zip(address("final-recipient")).is_some_and(|(first, last)| first != last)
}
