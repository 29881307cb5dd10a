//! What went wrong in a transaction, how far it had come, and whether the message may have been accepted.

use std::io;

use super::Reply;

schemas::named_enum! {
    /// How far a transaction had come.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
    pub enum Phase {
        /// Name lookup and TCP connection.
        Connect = "connect",
        /// The server's greeting and EHLO.
        Greeting = "greeting",
        /// STARTTLS or the TLS handshake.
        Tls = "tls",
        /// AUTH.
        Auth = "auth",
        /// MAIL FROM (and an RSET before it).
        Mail = "mail",
        /// RCPT TO.
        Rcpt = "rcpt",
        /// DATA, up to 354.
        Data = "data",
        /// The message body, up to and with the final dot.
        Body = "body",
        /// Waiting for the answer to the message: to the final dot, or to BDAT.
        Final = "final",
    }
}

/// Whether the message may have been accepted although no acceptance was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Certainty {
    /// Certainly not accepted: the server refused the envelope or the message, or no octet of the body was written.
    NotSent,
    /// Octets of the body may have left and no final answer came. Never retry as if nothing had happened.
    Unknown,
}

/// What ended a transaction.
#[derive(Debug, thiserror::Error)]
pub enum Cause {
    /// The server answered negatively, or with a code that has no place here.
    #[error("the server refused")]
    Refused(Reply),
    /// A call outlasted its time.
    #[error("the server did not answer in time")]
    Timeout,
    /// The server closed the connection.
    #[error("the server closed the connection")]
    Closed,
    /// The connection broke.
    #[error("the connection broke")]
    Io(#[source] io::Error),
    /// The relay's name has no address, or no address could be reached.
    #[error("the relay cannot be reached")]
    Unreachable(#[source] io::Error),
    /// The TLS handshake failed; most often the certificate is not one we trust.
    #[error("the TLS handshake failed")]
    Handshake(#[source] io::Error),
    /// The server sent something that is not SMTP.
    #[error("the server does not speak SMTP")]
    Unreadable,
    /// The settings ask for TLS and the server does not offer it.
    #[error("the server does not offer STARTTLS")]
    TlsNotOffered,
    /// The settings have credentials and the server offers no mechanism we may use with them.
    #[error("the server offers no usable authentication mechanism")]
    AuthNotOffered,
    /// The address needs SMTPUTF8 and the server does not offer it.
    #[error("the server does not take international addresses")]
    InternationalNotOffered,
    /// The message is larger than the server's SIZE.
    #[error("the message is larger than the server takes")]
    TooLarge,
    /// The body was not begun in time after the fence, so it was not sent at all.
    #[error("the fence was too old to begin sending")]
    FenceTooOld,
    /// The server offers CHUNKING and does not know BDAT. The next mail to it goes by DATA.
    #[error("the server refuses the chunks it offers to take")]
    ChunkingRefused,
}

/// A transaction that did not end in acceptance.
#[derive(Debug, thiserror::Error)]
#[error("SMTP transaction failed at {}", .phase.as_str())]
pub struct SmtpFailure {
    /// How far it had come.
    pub phase: Phase,
    /// Whether the message may have been accepted.
    pub certainty: Certainty,
    /// What ended it.
    #[source]
    pub cause: Cause,
}

impl SmtpFailure {
    /// A failure after which the message is certainly not with the server.
    #[must_use]
    pub fn not_sent(phase: Phase, cause: Cause) -> Self {
        Self { phase, certainty: Certainty::NotSent, cause }
    }

    /// A failure with an unknown outcome.
    #[must_use]
    pub fn unknown(phase: Phase, cause: Cause) -> Self {
        Self { phase, certainty: Certainty::Unknown, cause }
    }

    /// The server's answer, when it gave one.
    #[must_use]
    pub fn reply(&self) -> Option<&Reply> {
        match &self.cause {
            Cause::Refused(reply) => Some(reply),
            _ => None,
        }
    }

    /// Whether this looks like a pooled connection the server had given up: gone, or 421 before it took anything.
    pub(super) fn is_stale(&self) -> bool {
        self.phase == Phase::Mail
            && self.certainty == Certainty::NotSent
            && match &self.cause {
                Cause::Closed | Cause::Io(_) => true,
                Cause::Refused(reply) => reply.code == 421,
                _ => false,
            }
    }
}
