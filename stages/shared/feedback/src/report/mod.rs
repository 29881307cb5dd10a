//! Parses bounces, complaint reports and replies that arrive by mail.
//!
//! The recipient address (a signed return path) or a signed part of the reported mail proves which send the report is about. Other
//! claims in a mail prove nothing. A mail is hostile input: [`read`] is a pure function from the mail's first bytes to a
//! [`MailReport`], within a budget.

mod dsn;
mod feedback;
mod header;
mod parts;
mod plain;
mod reply;

use std::time::Duration;

use runtime::{Budget, Limits, Spent};
use schemas::SignalKind;
use serde::{Deserialize, Serialize};

pub use self::feedback::Proofs;
pub(crate) use self::feedback::of_type;
use self::{header::MailHeader, parts::MailParts};

/// The most bytes of a mail that are parsed. Reports come first, before the mail they carry.
pub const HEAD_BYTES: usize = 256 * 1024;

/// The budget of one mail. Each byte is read a few times, whatever the content.
pub const LIMITS: Limits = Limits {
    input_bytes: 1024 * 1024,
    held_bytes: 2 * 1024 * 1024,
    depth: 8,
    steps: 16 * HEAD_BYTES as u64,
    time: Duration::from_secs(5),
};

schemas::named_enum! {
    /// The kind of address a mail arrived at.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
    pub wire enum Arrival {
        /// The return path of a send.
        ReturnPath = "return_path",
        /// The address feedback loops report to.
        Feedback = "feedback",
    }
}

/// What a mail reports, and what it can prove.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MailReport {
    /// What the mail reports.
    pub finding: ReportFinding,
    /// The proofs of which send a complaint is about, still to be checked.
    pub proofs: Proofs,
}

/// What a mail reports.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReportFinding {
    /// A fact about the send.
    Fact(SignalKind),
    /// The mail reports no fact.
    NoFact(NoFactReason),
}

schemas::named_enum! {
    /// Why a mail reports no fact.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
    pub wire enum NoFactReason {
        /// The server continues to try.
        Delayed = "delayed",
        /// The mail was relayed to a system that sends no reports.
        Relayed = "relayed",
        /// The recipient's program says that the mail was displayed.
        Receipt = "receipt",
        /// An authentication failure report (RFC 6591), which is no complaint.
        AuthFailure = "auth_failure",
        /// The mail arrived at the feedback address and is no complaint report.
        NoReport = "no_report",
        /// The mail is malformed, or exceeds the budget.
        Unreadable = "unreadable",
        /// Every attempt to parse the mail failed.
        Abandoned = "given_up",
    }
}

impl ReportFinding {
    /// The label that is stored with the mail and used in metrics.
    pub fn label(&self) -> &'static str {
        match self {
            Self::Fact(SignalKind::Replied { automatic: true, .. }) => "auto_replied",
            Self::Fact(kind) => kind.label(),
            Self::NoFact(note) => note.as_str(),
        }
    }
}

/// Parses the beginning of a mail. `null_sender`: it came with `MAIL FROM:<>`, as reports do.
pub fn read(head: &[u8], arrival: Arrival, null_sender: bool, budget: &Budget) -> Result<MailReport, Spent> {
    let mail = MailParts::read(&head[..head.len().min(HEAD_BYTES)], budget)?;
    let feedback = mail.feedback.as_deref().map(|text| header::groups(text, budget)).transpose()?;
    let proofs = feedback::proofs(feedback.as_deref(), mail.carried.as_ref());
    let finding = if let Some(finding) = feedback::read(&mail, feedback.as_deref(), arrival) {
        finding
    } else if arrival == Arrival::Feedback {
        // Other mail to the feedback address is neither a reply nor a bounce.
        ReportFinding::NoFact(NoFactReason::NoReport)
    } else if let Some(finding) = dsn::read(&mail, budget)? {
        finding
    } else {
        plain::read(&mail, null_sender).unwrap_or_else(|| ReportFinding::Fact(reply::read(&mail.header, null_sender)))
    };
    Ok(MailReport { finding, proofs })
}

/// Classifies a reply by its header alone, as providers report inbound mail: human or automatic, which includes reports.
pub fn answer(fields: &[(String, String)], budget: &Budget) -> Result<SignalKind, Spent> {
    let header = MailHeader::of(fields, budget)?;
    let is_report = header.content_type().kind == "multipart/report";
    Ok(reply::read(&header, is_report))
}

#[cfg(test)]
mod tests;
