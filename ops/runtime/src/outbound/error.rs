//! What can become of a request to an address that a customer named.

use thiserror::Error;

use super::target::TargetFault;

/// Why there is no answer. Each has a stable code; none names the address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum OutboundError {
    /// The address itself is not one we would dial.
    #[error("the address is refused: {0}")]
    Target(#[from] TargetFault),
    /// The name leads to no address that may be dialled, or not by plain http.
    #[error("the name leads to addresses that may not be dialled")]
    AddressNotAllowed,
    /// The name has no address, or no server told one.
    #[error("the name could not be resolved")]
    DnsFailed,
    /// Nobody took the connection.
    #[error("no connection")]
    ConnectFailed,
    /// The certificate is not good for the name, or there is no TLS.
    #[error("no TLS connection")]
    TlsFailed,
    /// No answer within the time.
    #[error("no answer in time")]
    TimedOut,
    /// The connection ended in the middle.
    #[error("the connection was lost")]
    ConnectionLost,
    /// The answer's head is longer than anybody needs.
    #[error("the answer's head is too large")]
    AnswerTooLarge,
    /// What came is not HTTP.
    #[error("the answer is not HTTP")]
    AnswerMalformed,
}

impl OutboundError {
    /// For delivery rows and metric labels: a closed set.
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

    /// Whether the same request may do better later, with nobody changing the address meanwhile. A name's addresses may change:
    /// that it leads to forbidden ones today is not for good.
    #[must_use]
    pub fn is_retryable(self) -> bool {
        match self {
            Self::Target(_) => false,
            Self::AddressNotAllowed
            | Self::DnsFailed
            | Self::ConnectFailed
            | Self::TlsFailed
            | Self::TimedOut
            | Self::ConnectionLost
            | Self::AnswerTooLarge
            | Self::AnswerMalformed => true,
        }
    }
}
