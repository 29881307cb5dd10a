//! Mails that come back, read: what each says of the mail it is about.
//!
//! Which mail that is, its address says (a return path is signed) or a signed part of what it reports; what a mail claims beside
//! that proves nothing. A mail is hostile input: [`read`] is a pure function from its first octets to a [`Report`], within a budget,
//! and looks up nothing.

mod dsn;
mod feedback;
mod fields;
mod header;
mod parts;
mod plain;
mod reply;

use std::time::Duration;

use runtime::{Budget, Limits, Spent};
use schemas::SignalKind;
use serde::{Deserialize, Serialize};

pub use self::feedback::Proofs;
use self::{header::Header, parts::Parts};

/// What is read of a mail: its beginning. Reports stand there, before the mail they carry.
pub const HEAD_BYTES: usize = 256 * 1024;

/// The budget of one mail. Each octet is looked at a few times, whatever it says.
pub const LIMITS: Limits = Limits {
    input_bytes: 1024 * 1024,
    held_bytes: 2 * 1024 * 1024,
    depth: 8,
    steps: 16 * HEAD_BYTES as u64,
    time: Duration::from_secs(5),
};

/// The longest words of a server that are kept.
const DIAGNOSTIC_CHARS: usize = 500;

/// Where a mail came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Arrival {
    /// The return path of a send.
    ReturnPath,
    /// The address feedback loops report to.
    Feedback,
}

impl Arrival {
    /// As it is kept.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ReturnPath => "return_path",
            Self::Feedback => "feedback",
        }
    }

    /// From what is kept; anything else is a return path.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        if text == "feedback" { Self::Feedback } else { Self::ReturnPath }
    }
}

/// What a mail says, and what it can prove.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// What it says.
    pub reading: Reading,
    /// Which send a report of a complaint says it is about. To be checked.
    pub proofs: Proofs,
}

/// What a mail says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reading {
    /// A fact about the send.
    Told(SignalKind),
    /// Nothing that is a fact.
    Noted(Note),
}

/// What a mail is that tells no fact.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Note {
    /// The server goes on trying.
    Delayed,
    /// Handed on to a system that tells no more.
    Relayed,
    /// The recipient's program says that the mail was displayed.
    Receipt,
    /// A signature or a policy failed, which nobody complained of (RFC 6591).
    AuthFailure,
    /// It came to the feedback address and reports no complaint.
    NoReport,
    /// It makes no sense, or too much of it would have to be read.
    Unreadable,
    /// Each attempt to read it ended without an answer.
    GivenUp,
}

impl Note {
    fn as_str(self) -> &'static str {
        match self {
            Self::Delayed => "delayed",
            Self::Relayed => "relayed",
            Self::Receipt => "receipt",
            Self::AuthFailure => "auth_failure",
            Self::NoReport => "no_report",
            Self::Unreadable => "unreadable",
            Self::GivenUp => "given_up",
        }
    }
}

impl Reading {
    /// The word for it, kept with the mail and counted.
    pub fn label(&self) -> &'static str {
        match self {
            Self::Told(SignalKind::Replied { automatic: true, .. }) => "auto_replied",
            Self::Told(kind) => kind.label(),
            Self::Noted(note) => note.as_str(),
        }
    }
}

/// Reads a mail from its beginning. `null_sender`: it came with `MAIL FROM:<>`, as reports do.
///
/// # Errors
/// When the budget is spent.
pub fn read(head: &[u8], arrival: Arrival, null_sender: bool, budget: &Budget) -> Result<Report, Spent> {
    let mail = Parts::read(&head[..head.len().min(HEAD_BYTES)], budget)?;
    let feedback = mail.feedback.as_deref().map(|text| fields::groups(text, budget)).transpose()?;
    let proofs = feedback::proofs(feedback.as_deref(), mail.carried.as_ref());
    let reading = if let Some(reading) = feedback::read(&mail, feedback.as_deref(), arrival) {
        reading
    } else if arrival == Arrival::Feedback {
        // What comes to the feedback address and is no report of a complaint is nobody's answer or bounce.
        Reading::Noted(Note::NoReport)
    } else if let Some(reading) = dsn::read(&mail, budget)? {
        reading
    } else {
        plain::read(&mail, null_sender).unwrap_or_else(|| reply::read(&mail.header, null_sender))
    };
    Ok(Report { reading, proofs })
}

/// What an answer is by its header alone, as providers pass mail on that they took in: a person's, or a program's, reports among them.
///
/// # Errors
/// When the budget is spent.
pub fn answer(fields: &[(String, String)], budget: &Budget) -> Result<SignalKind, Spent> {
    let header = Header::of(fields, budget)?;
    let is_report = header.content_type().kind == "multipart/report";
    let automatic = is_report || reply::is_automatic(&header);
    Ok(SignalKind::Replied { message_id: header.message_id(), automatic })
}

/// Words of a server as they are kept: one line, without controls, cut.
fn diagnostic(text: &str) -> Option<String> {
    let line: String = text
        .split(|character: char| character.is_whitespace() || character.is_control())
        .filter(|word| !word.is_empty())
        .collect::<Vec<_>>()
        .join(" ");
    let line: String = line.chars().take(DIAGNOSTIC_CHARS).collect();
    (!line.is_empty()).then_some(line)
}

#[cfg(test)]
mod tests;
