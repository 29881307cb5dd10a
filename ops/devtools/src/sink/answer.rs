//! What may be answered instead of "yes", and when.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The points of a transaction at which it can be made to fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum TransactionStage {
    /// `MAIL FROM`: no recipient is known, so this goes by the sender's address.
    Mail,
    /// `RCPT TO`.
    Rcpt,
    /// `DATA`, before the `354`.
    Data,
    /// After the `354`, when the first bytes of the body arrive. No answer can be given here.
    Body,
    /// The end of the body.
    Dot,
}

/// How a stage ends when not well.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum FailureOutcome {
    /// With this answer: 4xx or 5xx, one line without its end.
    Reply(String),
    /// With the end of the connection, and nothing stored.
    Drop,
    /// At the dot: stored, and the connection ends before the answer.
    DropAfterAccept,
}

/// A scripted behaviour: of an address, or of a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Behaviour {
    /// When; `None` is every stage from `Rcpt` on.
    pub(crate) stage: Option<TransactionStage>,
    /// Only for the first so many attempts of an address.
    pub(crate) times: Option<u32>,
    pub(crate) delay: Option<Duration>,
    /// `None` answers well.
    pub(crate) outcome: Option<FailureOutcome>,
}

impl Behaviour {
    /// Ends a stage like this.
    pub(crate) fn end(stage: TransactionStage, outcome: FailureOutcome) -> Self {
        Self { stage: Some(stage), times: None, delay: None, outcome: Some(outcome) }
    }

    /// Answers late, and well.
    pub(crate) fn late(stage: Option<TransactionStage>, delay: Duration) -> Self {
        Self { stage, times: None, delay: Some(delay), outcome: None }
    }

    /// Whether it has a say at `stage`.
    pub(crate) fn acts_at(&self, stage: TransactionStage) -> bool {
        match self.stage {
            Some(own) => own == stage,
            // The body gets no answer of its own that could come late.
            None => matches!(stage, TransactionStage::Rcpt | TransactionStage::Data | TransactionStage::Dot),
        }
    }
}
