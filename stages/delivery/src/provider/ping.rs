//! Why a ping of a provider failed.

use smtp::{Cause, Phase, SmtpFailure};

/// Why a ping failed. Only the code is stored: a provider's own text may name accounts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PingFault {
    /// The settings cannot work.
    #[error("the connection's settings cannot work")]
    Settings,
    /// The provider cannot be reached.
    #[error("it cannot be reached")]
    Unreachable,
    /// The provider did not answer in time.
    #[error("it did not answer in time")]
    Timeout,
    /// TLS failed or is not trusted.
    #[error("TLS failed")]
    Tls,
    /// The provider refused the credentials.
    #[error("it refused the credentials")]
    Credentials,
    /// The provider asked for a slower pace.
    #[error("it asked for a slower pace")]
    RateLimited,
    /// The provider answered with another error.
    #[error("it refused")]
    Refused,
}

impl PingFault {
    /// The code, from a bounded set.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Settings => "settings",
            Self::Unreachable => "unreachable",
            Self::Timeout => "timeout",
            Self::Tls => "tls",
            Self::Credentials => "credentials",
            Self::RateLimited => "rate_limited",
            Self::Refused => "refused",
        }
    }

    /// The fault of an SMTP session that could not be opened.
    pub(crate) fn of_smtp(failure: &SmtpFailure) -> Self {
        match (&failure.cause, failure.phase) {
            (Cause::Timeout, _) => Self::Timeout,
            (Cause::Unreachable(_) | Cause::Closed | Cause::Io(_), _) => Self::Unreachable,
            (Cause::Handshake(_) | Cause::TlsNotOffered, _) => Self::Tls,
            (Cause::AuthNotOffered, _) | (Cause::Refused(_), Phase::Auth) => Self::Credentials,
            _ => Self::Refused,
        }
    }
}
