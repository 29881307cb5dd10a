//! From a message on the bus to what a stage reads.

use async_nats::{HeaderMap, jetstream};
use bytes::Bytes;
use runtime::{Bus, trace::TraceContext};
use schemas::{About, messages::Message, subjects::header};
use uuid::Uuid;

use crate::StageError;

/// A message as it came, and where it stands.
#[derive(Debug, Clone, Copy)]
pub struct Incoming<'a> {
    /// Its subject, without the installation's prefix.
    pub subject: &'a str,
    /// Its headers.
    pub headers: Option<&'a HeaderMap>,
    /// Its body.
    pub payload: &'a Bytes,
    /// The stream it is in, with the prefix.
    pub stream: &'a str,
    /// Its number there.
    pub sequence: u64,
    /// When the stream took it, in nanoseconds since 1970: with the number it names the message for good, also after the stream
    /// was lost and made again.
    pub published_ns: i128,
    /// How often it was handed out, this time included.
    pub deliveries: i64,
    /// Which attempt at it this is in this process: one more than the times it failed by its own fault.
    pub attempts: i64,
}

impl<'a> Incoming<'a> {
    pub(crate) fn of(bus: &Bus, message: &'a jetstream::Message) -> Self {
        let info = message.info().ok();
        let subject = message.subject.as_str();
        Self {
            subject: subject.strip_prefix(bus.prefix()).unwrap_or(subject),
            headers: message.headers.as_ref(),
            payload: &message.payload,
            stream: info.as_ref().map_or("", |info| info.stream),
            sequence: info.as_ref().map_or(0, |info| info.stream_sequence),
            published_ns: info.as_ref().map_or(0, |info| info.published.unix_timestamp_nanos()),
            deliveries: info.map_or(1, |info| info.delivered),
            attempts: 1,
        }
    }

    /// The text of a header.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&'a str> {
        self.headers?.get(name).map(async_nats::HeaderValue::as_str)
    }

    /// Where it came from, for a dead letter that is written later.
    #[must_use]
    pub fn origin(&self) -> Origin {
        Origin {
            subject: self.subject.to_owned(),
            stream: self.stream.to_owned(),
            sequence: self.sequence,
            published_ns: self.published_ns,
            deliveries: self.deliveries,
            attempts: self.attempts,
            schema: self.header(header::SCHEMA).map(str::to_owned),
            trace: TraceContext::of_message(self.headers),
        }
    }
}

/// Where a message came from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Origin {
    /// Its subject, without the installation's prefix: a replay is published to it.
    pub subject: String,
    /// The stream it was in, with the prefix.
    pub stream: String,
    /// Its number there.
    pub sequence: u64,
    /// See [`Incoming::published_ns`].
    pub published_ns: i128,
    /// How often it was handed out.
    pub deliveries: i64,
    /// Which attempt at it this is: see [`Incoming::attempts`].
    pub attempts: i64,
    /// The schema it says it follows.
    pub schema: Option<String>,
    /// The trace it is part of.
    pub trace: Option<TraceContext>,
}

/// What a stage can read. Every message of ours is its body; what others publish may need subject and headers, too.
pub trait StageInput: Sized + Send + Sync + 'static {
    /// Reads a message.
    ///
    /// # Errors
    /// A rejection: the message is set aside.
    fn decode(message: &Incoming<'_>) -> Result<Self, StageError>;

    /// The work it is about, for its trace.
    fn about(&self) -> Option<About> {
        None
    }

    /// Further works, where it is about several at once.
    fn also_about(&self) -> &[Uuid] {
        &[]
    }
}

impl<M: Message> StageInput for M {
    fn decode(message: &Incoming<'_>) -> Result<Self, StageError> {
        Self::of_body(message.payload).map_err(|error| StageError::malformed(&error))
    }

    fn about(&self) -> Option<About> {
        Message::about(self)
    }

    fn also_about(&self) -> &[Uuid] {
        Message::also_about(self)
    }
}
