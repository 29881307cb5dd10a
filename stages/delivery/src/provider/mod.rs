//! Ways out: what delivery asks of a provider, and those there are.
//!
//! A handover has two halves with the fence between them. [`Provider::open`] does everything that can be done before
//! anything of the message leaves: an SMTP transaction is brought to 354, an HTTP request is built and gets its place.
//! Then the caller fences in the ledger, and [`PreparedSend::send`] hands the message over; dropping an [`PreparedSend`] abandons it.
//! What an answer means is decided here, in the words of [`Decision`]: nothing above knows which provider it was.

mod connection;
mod guard;
mod http;
mod paced;
mod ping;
mod relay;

#[cfg(test)]
pub(crate) mod tests;

use std::time::{Duration, Instant};

use async_trait::async_trait;
use uuid::Uuid;

pub use connection::{Connection, ConnectionFault, ConnectionSettings};
pub use guard::Guard;
pub use ping::PingFault;
pub(crate) use relay::{SmtpProvider, answer as smtp_answer};

pub use ledger::fence::Answer;
use smtp::classify::{Class, Decision};
use smtp::{Envelope, Message};

/// The ways out there are. One word each: in the ledger, in settings, in metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ProviderKind {
    /// A relay.
    Smtp,
    /// Amazon SES, API v2, raw messages.
    Ses,
    /// Postmark.
    Postmark,
    /// SendGrid, v3.
    Sendgrid,
    /// Mailgun, MIME messages.
    Mailgun,
    /// Resend.
    Resend,
}

impl ProviderKind {
    /// All of them.
    pub const ALL: &'static [Self] =
        &[Self::Smtp, Self::Ses, Self::Postmark, Self::Sendgrid, Self::Mailgun, Self::Resend];

    /// The word.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Smtp => "smtp",
            Self::Ses => "ses",
            Self::Postmark => "postmark",
            Self::Sendgrid => "sendgrid",
            Self::Mailgun => "mailgun",
            Self::Resend => "resend",
        }
    }

    /// The kind with this word.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|kind| kind.as_str() == text)
    }
}

/// The vault's purpose for a connection's secret.
pub const PROVIDER_PURPOSE: &str = "provider";

/// Which DKIM signature of ours a mail takes along.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Signing {
    /// The message leaves as it is: signed, unless the platform's relay is set to sign.
    Whole,
    /// The message leaves as it is, but the provider writes its own Message-ID and Date: signed without them.
    Stamped,
    /// The provider builds the message anew and signs it with the key of its own record.
    None,
}

/// How to reach tenants' providers.
#[derive(Debug, Clone)]
pub struct Reach {
    /// Handovers at once to one account.
    pub connections: usize,
    /// Longest an HTTP exchange may take, from connecting to the last octet of the answer.
    pub timeout: Duration,
    /// Longest wait for a connection.
    pub connect_timeout: Duration,
    /// The settings SMTP connections share with the platform's relay: EHLO name, timeouts.
    pub smtp: smtp::SmtpSettings,
}

/// One mail on its way.
#[derive(Debug, Clone, Copy)]
pub struct OutgoingMessage<'a> {
    /// The send: goes with the mail as idempotency key or metadata, so that what comes back finds it.
    pub send_id: Uuid,
    /// Counts the attempts that certainly came to nothing, from 1. An attempt after a doubt has the number of the one in doubt:
    /// it is the same request once more.
    pub serial: i16,
    /// Who it is from and for.
    pub envelope: &'a Envelope,
    /// Our DKIM-Signature field with its CRLF, or nothing.
    pub signature: &'a str,
    /// The message.
    pub message: &'a Message,
}

/// What became of a handover.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SendResult {
    /// The provider has it.
    Taken {
        /// The id under which it is known there: for SMTP our Message-ID.
        provider_message_id: Option<String>,
        /// Its words.
        answer: Answer,
    },
    /// The fence was too old to begin: nothing left.
    NotBegun,
}

/// A handover that did not end in acceptance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// What it means for the send and for whom.
    pub decision: Decision,
    /// The provider's words, if it had any.
    pub answer: Answer,
    /// For how long the provider asked to be left alone.
    pub wait: Option<Duration>,
}

impl Refused {
    /// A refusal without words.
    #[must_use]
    pub fn of(decision: Decision) -> Self {
        Self { decision, answer: Answer::default(), wait: None }
    }
}

/// A way out.
#[async_trait]
pub trait Provider: Send + Sync + 'static {
    /// Which one.
    fn kind(&self) -> ProviderKind;

    /// Which signature of ours it wants.
    fn signing(&self) -> Signing;

    /// Waits until the next handover may begin, where the account has a rate.
    ///
    /// # Errors
    /// The wait, where it is longer than a claimed mail may wait.
    async fn turn(&self) -> Result<(), Duration> {
        Ok(())
    }

    /// Brings a handover to the last point before anything of the message leaves.
    ///
    /// # Errors
    /// [`Refused`], never with the outcome `Unknown`.
    async fn open(&self, parcel: &OutgoingMessage<'_>) -> Result<Box<dyn PreparedSend>, Refused>;

    /// Asks whether it would serve, without sending anything: connects and authenticates.
    ///
    /// # Errors
    /// [`PingFault`].
    async fn ping(&self) -> Result<(), PingFault>;

    /// Closes what is idle, at shutdown.
    async fn close_idle(&self) {}
}

/// A handover at the fence.
#[async_trait]
pub trait PreparedSend: Send {
    /// Hands the message over, unless `begin_by` has passed: then nothing leaves.
    ///
    /// # Errors
    /// [`Refused`]; with the outcome `Unknown` when the provider may have taken it.
    async fn send(self: Box<Self>, parcel: &OutgoingMessage<'_>, begin_by: Instant) -> Result<SendResult, Refused>;
}

/// A connection whose settings cannot work: whatever is to go through it waits until a person has looked.
#[derive(Debug)]
pub(crate) struct Broken(pub ProviderKind);

#[async_trait]
impl Provider for Broken {
    fn kind(&self) -> ProviderKind {
        self.0
    }

    fn signing(&self) -> Signing {
        Signing::None
    }

    async fn open(&self, _: &OutgoingMessage<'_>) -> Result<Box<dyn PreparedSend>, Refused> {
        Err(Refused::of(Decision::defer(Class::Configuration, smtp::classify::Scope::Relay)))
    }

    async fn ping(&self) -> Result<(), PingFault> {
        Err(PingFault::Settings)
    }
}
