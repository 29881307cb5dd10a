//! Stage errors: the type answers "retry or reject?".

use std::time::Duration;

use runtime::{BusError, causes, panics::Panicked};
use thiserror::Error;

/// Why a stage could not handle its input.
#[derive(Debug, Error)]
pub enum StageError {
    /// Postgres refused or was away; [`StageError::is_transient`] says which.
    #[error("the ledger")]
    Ledger(#[from] sqlx::Error),
    /// The bus was away or full.
    #[error("the bus")]
    Bus(#[from] BusError),
    /// Something outside answered "later", or took too long.
    #[error("deferred: {reason}")]
    Deferred {
        /// A code from a bounded set.
        reason: &'static str,
    },
    /// Something this process stands on does not answer, as the ledger or the bus may not.
    #[error("unavailable: {reason}")]
    Unavailable {
        /// A code from a bounded set.
        reason: &'static str,
    },
    /// All that may work on it at once do. Nothing failed: it stays on the bus, and is delivered again after `wait`.
    #[error("busy: {reason}")]
    Busy {
        /// A code from a bounded set.
        reason: &'static str,
        /// Until it is delivered again.
        wait: Duration,
    },
    /// The input can never be handled: a person must look.
    #[error("rejected: {code}: {detail}")]
    Rejected {
        /// A code from a bounded set, also a metric label.
        code: &'static str,
        /// In words, without personal data.
        detail: String,
    },
}

impl StageError {
    /// A rejection.
    pub fn rejected(code: &'static str, detail: impl std::fmt::Display) -> Self {
        Self::Rejected { code, detail: detail.to_string() }
    }

    /// A rejection of what does not decode: says what is wrong with it and where, and quotes nothing of it.
    #[must_use]
    pub fn malformed(error: &serde_json::Error) -> Self {
        Self::rejected("malformed", causes::json_fault(error))
    }

    /// Whether the same input may succeed later.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Ledger(error) => runtime::db::is_transient(error),
            Self::Bus(error) => error.is_transient(),
            Self::Deferred { .. } | Self::Unavailable { .. } | Self::Busy { .. } => true,
            Self::Rejected { .. } => false,
        }
    }

    /// Whether the ledger or the bus is at fault and not the message: tried again for as long as it takes, never set aside.
    #[must_use]
    pub fn is_infrastructure(&self) -> bool {
        matches!(self, Self::Ledger(_) | Self::Bus(_) | Self::Unavailable { .. }) && self.is_transient()
    }

    /// The code that goes to the dead letter and the metric.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Ledger(_) => "ledger",
            Self::Bus(_) => "bus",
            Self::Deferred { reason } | Self::Unavailable { reason } | Self::Busy { reason, .. } => reason,
            Self::Rejected { code, .. } => code,
        }
    }

    /// The whole chain of causes in one line, without the data at fault. Database errors show their SQLSTATE, table and constraint.
    #[must_use]
    pub fn chain(&self) -> String {
        causes::chain(self)
    }
}

/// A panic is a defect that the same input meets again: a rejection.
impl From<Panicked> for StageError {
    fn from(panicked: Panicked) -> Self {
        Self::rejected("panicked", panicked)
    }
}

impl From<serde_json::Error> for StageError {
    fn from(error: serde_json::Error) -> Self {
        Self::malformed(&error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_decode_is_not_quoted() {
        let error = serde_json::from_str::<Vec<u8>>("[\"ann@example.com\"]").unwrap_err();
        assert!(error.to_string().contains('@'));
        let error = StageError::from(error);
        assert_eq!(error.code(), "malformed");
        assert!(!error.chain().contains('@') && error.chain().contains("line 1"), "{}", error.chain());
    }

    #[test]
    fn a_value_postgres_or_its_decoder_quotes_is_not_in_the_chain() {
        let source = "invalid address ann@example.com".into();
        let error = StageError::from(sqlx::Error::ColumnDecode { index: "address".to_owned(), source });
        assert_eq!(error.chain(), "the ledger: column address does not decode");
    }

    #[test]
    fn what_jetstream_says_is_said_once() {
        let error = StageError::from(BusError::refused("stream not found"));
        assert_eq!(error.chain(), "the bus: JetStream refused: stream not found");
    }
}
