//! Errors of requests to customers' URLs.

use thiserror::Error;

use super::target::TargetFault;

/// Why there is no response. Each error has a stable code; none names the address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum OutboundError {
    /// The URL is refused.
    #[error("the address is refused: {0}")]
    Target(#[from] TargetFault),
    /// The host name resolves to no address that may be dialled.
    #[error("the name leads to addresses that may not be dialled")]
    AddressNotAllowed,
    /// The name has no address, or no DNS server answered.
    #[error("the name could not be resolved")]
    DnsFailed,
    /// The connection was not accepted.
    #[error("no connection")]
    ConnectFailed,
    /// The certificate is not valid for the name, or TLS failed.
    #[error("no TLS connection")]
    TlsFailed,
    /// No response within the timeout.
    #[error("no answer in time")]
    TimedOut,
    /// The connection closed before the response was complete.
    #[error("the connection was lost")]
    ConnectionLost,
    /// The response's head is too long.
    #[error("the answer's head is too large")]
    AnswerTooLarge,
    /// The response is not HTTP.
    #[error("the answer is not HTTP")]
    AnswerMalformed,
}

impl OutboundError {
    /// The code for delivery rows and metric labels, from a closed set.
    #[must_use]
    pub fn code(self) -> &'static str {
        match self {
            Self::Target(_) | Self::AddressNotAllowed => "address_not_allowed",
            Self::DnsFailed => "dns_failed",
            Self::ConnectFailed => "connect_failed",
            Self::TlsFailed => "tls_failed",
            Self::TimedOut => "timed_out",
            Self::ConnectionLost => "connection_lost",
            Self::AnswerTooLarge => "answer_too_large",
            Self::AnswerMalformed => "answer_malformed",
        }
    }

    /// True if the same request may succeed later with an unchanged URL. That includes forbidden addresses: the addresses of a name
    /// may change.
    #[must_use]
    pub fn is_retryable(self) -> bool {
        !matches!(self, Self::Target(_))
    }
}
