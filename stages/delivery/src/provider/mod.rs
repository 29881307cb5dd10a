//! Providers: what delivery asks of a provider, and the kinds there are.
//!
//! A send has two halves with the fence between them. [`Provider::prepare`] does everything that can be done before anything
//! about the mail leaves: an SMTP connection is taken, an HTTP request is built and gets its permit. Then the caller fences in
//! the ledger, and [`PreparedSend::send`] sends the message. Dropping a [`PreparedSend`] frees its connection or permit. Each
//! provider translates its answers to a [`ReplyDecision`]: the caller does not know which provider it was.

mod http;
mod rate_limit;
mod relay;

#[cfg(test)]
pub(crate) mod tests;

use std::time::{Duration, Instant};

use async_trait::async_trait;
use secrecy::ExposeSecret;
use uuid::Uuid;

use self::http::HttpProvider;
pub(crate) use self::{rate_limit::SlotLimiter, relay::answer as smtp_answer};

pub use ledger::fence::Answer;
pub use providers::{
    Connection, ConnectionFault, ConnectionSettings, HostPolicy, PROVIDER_PURPOSE, PingFault, ProviderKind,
};
use smtp::classify::{Class, ReplyDecision};
use smtp::{Envelope, Pool, Relay, SmtpMessage, SmtpSettings};

/// Which DKIM signature of ours the provider needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Signing {
    /// The provider forwards the message unchanged: we sign it, unless the platform's relay is set to sign.
    Whole,
    /// The provider replaces Message-ID and Date: we sign the message without these two fields, unless the platform's relay is set to sign.
    Stamped,
    /// The provider builds a new message and signs it with its own key.
    None,
}

/// Limits and timeouts of the clients for tenants' providers.
#[derive(Debug, Clone)]
pub struct ClientSettings {
    /// Mails in flight to one account at once.
    pub connections: usize,
    /// Longest time of an HTTP exchange, from connecting to the last byte of the reply.
    pub timeout: Duration,
    /// Longest wait for a connection.
    pub connect_timeout: Duration,
    /// The settings that tenants' SMTP connections share with the platform's relay: EHLO name, timeouts.
    pub smtp: SmtpSettings,
}

/// One mail that is about to be sent.
#[derive(Debug, Clone, Copy)]
pub struct OutgoingMessage<'a> {
    /// The send's id. It travels as idempotency key or metadata, so that the provider's events can be matched.
    pub send_id: Uuid,
    /// The number of the attempt, from 1. All attempts after an unknown outcome repeat its number: they are the same request again.
    pub serial: i16,
    /// Sender and recipient of the SMTP envelope.
    pub envelope: &'a Envelope,
    /// Our DKIM-Signature field with its CRLF, or nothing.
    pub signature: &'a str,
    /// The message.
    pub message: &'a SmtpMessage,
}

/// The result of a send that was not refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SendResult {
    /// The provider accepted the mail.
    Accepted {
        /// The provider's id of the mail; for SMTP our Message-ID.
        provider_message_id: Option<String>,
        /// The provider's answer.
        answer: Answer,
    },
    /// The fence was too old to begin, or the connection was of no use. The provider certainly has nothing, and the mail is owed as before.
    NotBegun,
}

/// A send that the provider refused, or whose outcome is unknown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// What the refusal means for the send.
    pub decision: ReplyDecision,
    /// The provider's answer, if there was one.
    pub answer: Answer,
    /// How long the provider asked us to wait.
    pub wait: Option<Duration>,
}

impl Refused {
    /// A refusal without an answer.
    #[must_use]
    pub fn of(decision: ReplyDecision) -> Self {
        Self { decision, answer: Answer::default(), wait: None }
    }
}

/// An email provider: the platform's relay or a tenant's account.
#[async_trait]
pub trait Provider: Send + Sync + 'static {
    /// Which kind of provider this is.
    fn kind(&self) -> ProviderKind;

    /// Which DKIM signature of ours the provider needs.
    fn signing(&self) -> Signing;

    /// Brings the send to the last point before anything about the mail leaves.
    ///
    /// # Errors
    /// [`Refused`], never with the outcome `Unknown`.
    async fn prepare<'a>(&'a self, outgoing: &OutgoingMessage<'_>) -> Result<Box<dyn PreparedSend + 'a>, Refused>;

    /// Connects and authenticates without sending anything.
    ///
    /// # Errors
    /// [`PingFault`].
    async fn ping(&self) -> Result<(), PingFault>;
}

/// A send that only waits for the fence. It holds its connection or permit until it is dropped.
#[async_trait]
pub trait PreparedSend: Send {
    /// Sends the message, unless `begin_by` has passed: then nothing leaves. Called once.
    ///
    /// # Errors
    /// [`Refused`]; with the outcome `Unknown` if the provider may have accepted the mail.
    async fn send(&mut self, outgoing: &OutgoingMessage<'_>, begin_by: Instant) -> Result<SendResult, Refused>;
}

/// Checks a connection's settings and makes the provider of one lane. Does no network access.
///
/// # Errors
/// [`ConnectionFault`].
pub fn open(
    connection: &Connection,
    client: &ClientSettings,
    host_policy: &HostPolicy,
) -> Result<Box<dyn Provider>, ConnectionFault> {
    let Connection { kind, settings, secret } = connection;
    let base = connection.check(host_policy)?;
    let api: Box<dyn http::Api> = match kind {
        ProviderKind::Smtp => {
            let relay: Relay = secret.expose_secret().parse().map_err(|_| ConnectionFault::Invalid("secret"))?;
            let max_connections = client.connections;
            let settings = SmtpSettings { relay, route: "connection", max_connections, ..client.smtp.clone() };
            return Ok(Box::new(Pool::new(settings).map_err(|_| ConnectionFault::Setup)?));
        }
        ProviderKind::Ses => Box::new(http::Ses::new(settings, secret)?),
        ProviderKind::Postmark => Box::new(http::Postmark { token: secret.clone(), stream: settings.stream.clone() }),
        ProviderKind::Sendgrid => Box::new(http::Sendgrid { key: secret.clone() }),
        ProviderKind::Mailgun => Box::new(http::Mailgun::new(settings, secret.clone())?),
        ProviderKind::Resend => Box::new(http::Resend { key: secret.clone() }),
    };
    Ok(Box::new(HttpProvider::new(*kind, api, base.ok_or(ConnectionFault::Setup)?, client)?))
}

/// A connection whose settings cannot work. Its mail waits until an operator corrects them.
#[derive(Debug)]
pub(crate) struct BrokenConnection(pub ProviderKind);

#[async_trait]
impl Provider for BrokenConnection {
    fn kind(&self) -> ProviderKind {
        self.0
    }

    fn signing(&self) -> Signing {
        Signing::None
    }

    async fn prepare<'a>(&'a self, _: &OutgoingMessage<'_>) -> Result<Box<dyn PreparedSend + 'a>, Refused> {
        Err(Refused::of(ReplyDecision::defer(Class::Configuration, smtp::classify::Scope::Relay)))
    }

    async fn ping(&self) -> Result<(), PingFault> {
        Err(PingFault::Settings)
    }
}
