//! Stage errors: the type answers "retry or reject?".

use runtime::BusError;
use thiserror::Error;

/// Why a stage could not handle its input.
#[derive(Debug, Error)]
pub enum StageError {
    /// Postgres refused or was away; [`StageError::is_transient`] tells which.
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

    /// Whether the same input may succeed later.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Ledger(error) => runtime::db::is_transient(error),
            Self::Bus(error) => error.is_transient(),
            Self::Deferred { .. } | Self::Unavailable { .. } => true,
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
            Self::Deferred { reason } | Self::Unavailable { reason } => reason,
            Self::Rejected { code, .. } => code,
        }
    }

    /// The whole chain of causes in one line. Database errors show their SQLSTATE and message, never the row.
    #[must_use]
    pub fn chain(&self) -> String {
        let mut text = self.to_string();
        let mut cause = std::error::Error::source(self);
        while let Some(error) = cause {
            text.push_str(": ");
            text.push_str(&error.to_string());
            cause = error.source();
        }
        text
    }
}

impl From<serde_json::Error> for StageError {
    fn from(error: serde_json::Error) -> Self {
        Self::Rejected { code: "json", detail: error.to_string() }
    }
}
