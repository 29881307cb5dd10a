//! A small SMTP client (RFC 5321) and its connection pool, made for sending many mails to one relay; and the [`server`] that takes mail.
//!
//! Why our own and not lettre below its pool: the fence needs a transaction in two halves, up to 354 and after it, while
//! lettre's connection sends MAIL, RCPT and DATA each in its own round trip and writes the body and the final dot
//! separately. Here MAIL, RCPT and DATA leave in one write when the server offers PIPELINING (RFC 2920), body and final
//! dot in another, so that a mail costs two writes and two reads instead of five of each. What a failure means is part of
//! its type: [`SmtpFailure`] says how far the transaction had come and whether the message may have been accepted.
//!
//! The order a caller follows: [`Pool::open`] brings a transaction to 354; the caller fences in the ledger; then either
//! [`AtData::send`] hands the message over or [`AtData::abandon`] drops the connection. Dropping an [`AtData`] does the
//! same as abandoning it: a connection that is waiting for a body is never reused.

mod address;
mod auth;
pub mod classify;
mod connection;
mod failure;
mod message;
mod pool;
mod reply;
pub mod server;
mod settings;
mod stream;

pub use address::{Envelope, EnvelopeAddress, EnvelopeAddressError};
pub use failure::{Cause, Certainty, Phase, SmtpFailure};
pub use message::{MalformedMessage, SmtpMessage};
pub use pool::{AcceptedMessage, AtData, Pool, PoolCounts};
pub use reply::{EnhancedCode, Reply};
pub use settings::{AuthMechanism, Relay, SmtpCredentials, SmtpSettings, SmtpSettingsError, SmtpTimeouts, TlsMode};

#[cfg(test)]
mod tests;
