//! Why a provider would not serve.

use smtp::{Cause, Phase, SmtpFailure};

/// What a ping found. The code is ours; a provider's words may name accounts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PingFault {
    /// The settings cannot work.
    #[error("the connection's settings cannot work")]
    Settings,
    /// No connection.
    #[error("it cannot be reached")]
    Unreachable,
    /// No answer in time.
    #[error("it did not answer in time")]
    Timeout,
    /// No trusted encryption.
    #[error("TLS failed")]
    Tls,
    /// It does not know these credentials.
    #[error("it refused the credentials")]
    Credentials,
    /// Too many requests.
    #[error("it asked for a slower pace")]
    RateLimited,
    /// It answered, and not well.
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

    /// From an SMTP session that did not come about.
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
