//! Tenants' accounts with mail providers: which providers there are, which settings belong to each, and whether an account's settings
//! can work. The ingress and the command line check an account by it before they store one; the delivery stage before it opens one.

mod connection;
mod host_policy;

pub use connection::{Connection, ConnectionFault, ConnectionSettings, SECRET_MAX_BYTES, check_secret};
pub use host_policy::HostPolicy;
pub use schemas::ProviderKind;
use smtp::{Cause, Phase, SmtpFailure};

/// The vault's purpose for a connection's secret.
pub const PROVIDER_PURPOSE: &str = "provider";

schemas::named_enum! {
    /// Why a ping failed. Only the code is stored: a provider's own text may name accounts.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
    pub enum PingFault {
        /// The settings cannot work.
        #[error("the connection's settings cannot work")]
        Settings = "settings",
        /// The provider cannot be reached.
        #[error("it cannot be reached")]
        Unreachable = "unreachable",
        /// The provider did not answer in time.
        #[error("it did not answer in time")]
        Timeout = "timeout",
        /// TLS failed or is not trusted.
        #[error("TLS failed")]
        Tls = "tls",
        /// The provider refused the credentials.
        #[error("it refused the credentials")]
        Credentials = "credentials",
        /// The provider asked for a slower pace.
        #[error("it asked for a slower pace")]
        RateLimited = "rate_limited",
        /// The provider answered with another error.
        #[error("it refused")]
        Refused = "refused",
    }
}

impl PingFault {
    /// The fault of an SMTP session that could not be opened.
    #[must_use]
    pub fn of_smtp(failure: &SmtpFailure) -> Self {
        match (&failure.cause, failure.phase) {
            (Cause::Timeout, _) => Self::Timeout,
            (Cause::Unreachable(_) | Cause::Closed | Cause::Io(_), _) => Self::Unreachable,
            (Cause::Handshake(_) | Cause::TlsNotOffered, _) => Self::Tls,
            (Cause::AuthNotOffered, _) | (Cause::Refused(_), Phase::Auth) => Self::Credentials,
            _ => Self::Refused,
        }
    }
}
