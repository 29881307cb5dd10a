//! A small SMTP client (RFC 5321) and its connection pool, made for sending many mails to one relay; and the [`server`] that takes mail.
//!
//! Why our own and not lettre below its pool: the ledger's fence stands between taking a connection and using it, and it must be known
//! afterwards which octets left. lettre's connection sends MAIL, RCPT and DATA each in its own round trip, writes the body and the
//! final dot separately, and does not know CHUNKING. Here envelope and message leave in one write where the server offers CHUNKING
//! (RFC 3030), so that a mail costs one write and one read instead of five of each, and no copy with doubled dots. Other servers get
//! MAIL, RCPT and DATA in one write if they offer PIPELINING (RFC 2920), and the body after 354. What a failure means is part of its
//! type: [`SmtpFailure`] says how far the transaction had come and whether the message may have been accepted.
//!
//! The order a caller follows: [`Pool::take`] waits for a connection; the caller fences in the ledger; [`PooledConnection::send`] does
//! the whole transaction. A [`PooledConnection`] that is dropped instead goes back to the pool: nothing was said on it.

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

pub use address::{Envelope, EnvelopeAddress};
pub use failure::{Cause, Certainty, Phase, SmtpFailure};
pub use message::SmtpMessage;
pub use pool::{Pool, PoolCounts, PooledConnection};
pub use reply::Reply;
pub use settings::{AuthMechanism, Relay, SmtpCredentials, SmtpSettings, SmtpSettingsError, SmtpTimeouts, TlsMode};

#[cfg(test)]
mod tests;
