//! The bus: a NATS connection that reconnects for ever, publishing with awaited acknowledgements and a limit, the stream table.

use std::{path::Path, sync::Arc, time::Duration};

use async_nats::{
    Client, ConnectOptions, Event, HeaderName,
    jetstream::{
        self, Context, ErrorCode,
        context::{ContextBuilder, GetStreamErrorKind},
        message::PublishMessage,
        stream::{Config, Stream},
    },
};
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use schemas::subjects::{self, header};
use secrecy::{ExposeSecret, SecretString};
use thiserror::Error;
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;

use crate::{
    stage_name,
    streams::{STREAMS, StreamSpec, is_as_wanted, is_lower},
    trace::TraceContext,
};

/// Pause before subscribing again after a subscription ended.
pub(crate) const RESUBSCRIBE_PAUSE: Duration = Duration::from_secs(1);
/// Publishes that wait for JetStream's acknowledgement at once, per process; more wait for a permit.
const ACKS_IN_FLIGHT_MAX: usize = 2_000;
/// Publishes of one caller in flight at once: a window is acknowledged before the next one is sent.
const WINDOW: usize = 500;
/// How long JetStream may take to acknowledge.
const ACK_TIMEOUT: Duration = Duration::from_secs(5);

/// Errors of the bus. Retry them, unless [`BusError::is_transient`] is false.
#[derive(Debug, Error)]
pub enum BusError {
    /// The connection options are invalid.
    #[error("cannot set up the connection to NATS")]
    Connect(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// A NATS URL names a user: the client would ignore it and connect anonymously.
    #[error("nats-url contains credentials, which are not used: put them in a file and name it with nats-credentials")]
    CredentialsInUrl,
    /// JetStream did not store a message: it is unavailable, full, or the message is too large.
    #[error("JetStream did not store the message")]
    Publish(#[from] jetstream::context::PublishError),
    /// A stream or consumer could not be created or read.
    #[error("JetStream refused: {0}")]
    Stream(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// A stream of the table does not exist.
    #[error("NATS has no stream {stream}: `postrider streams apply` makes it")]
    NoStream {
        /// The stream, without prefix.
        stream: &'static str,
    },
    /// A lowered limit of a stream cannot be applied before some of its messages are handled.
    #[error(
        "{stream} keeps a higher limit while too many messages wait in it: `postrider streams apply` again when they are handled"
    )]
    MessagesWaiting {
        /// The stream, without prefix.
        stream: &'static str,
    },
    /// JetStream did not answer in time.
    #[error("JetStream did not answer in time")]
    Timeout,
}

impl BusError {
    /// An error of JetStream.
    pub fn refused(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Stream(error.into())
    }

    /// True if a retry may succeed.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            Self::CredentialsInUrl => false,
            Self::Publish(error) => error.kind() != jetstream::context::PublishErrorKind::MaxPayloadExceeded,
            Self::Connect(_)
            | Self::Stream(_)
            | Self::NoStream { .. }
            | Self::MessagesWaiting { .. }
            | Self::Timeout => true,
        }
    }
}

/// One message to publish. Equal work has an equal `message_id`, so a repeat within the duplicate window is dropped.
#[derive(Debug, Clone)]
pub struct Publication {
    /// The subject, without prefix.
    pub subject: String,
    /// `Nats-Msg-Id`
    pub message_id: String,
    /// `Mail-Schema`
    pub schema: &'static str,
    /// The body: JSON, or the frame of a rendered batch.
    pub body: Bytes,
    /// Further headers.
    pub headers: Vec<(&'static str, String)>,
}

impl Publication {
    /// A message with its body: JSON, unless it has a form of its own. It carries the current trace context, if there is one.
    pub fn json<M: schemas::messages::Message>(
        subject: String,
        message_id: String,
        message: &M,
    ) -> Result<Self, serde_json::Error> {
        Ok(Self {
            subject,
            message_id,
            schema: M::SCHEMA,
            body: message.to_body()?,
            headers: TraceContext::for_message(message.about()).iter().flat_map(TraceContext::headers).collect(),
        })
    }
}

/// A connection to the bus. Cheap to clone.
#[derive(Clone)]
pub struct Bus {
    client: Client,
    jetstream: Context,
    ack_permits: Arc<Semaphore>,
    connects: watch::Sender<()>,
    prefix: String,
    replicas: usize,
}

impl std::fmt::Debug for Bus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Bus").field("prefix", &self.prefix).finish_non_exhaustive()
    }
}

impl Bus {
    /// Sets up the connection. Returns at once even if the servers are unavailable, and connects when they are back.
    pub async fn connect(
        url: &SecretString,
        credentials: Option<&Path>,
        prefix: &str,
        replicas: usize,
        name: &str,
    ) -> Result<Self, BusError> {
        let connects = watch::Sender::new(());
        let connected = connects.clone();
        let mut options = ConnectOptions::new()
            .name(format!("postrider {name}"))
            .retry_on_initial_connect()
            .max_reconnects(None)
            .ping_interval(Duration::from_secs(10))
            .reconnect_delay_callback(|attempt| Duration::from_millis((50 * attempt as u64).min(2_000)))
            .event_callback(move |event| {
                if matches!(event, Event::Connected) {
                    connected.send_replace(());
                }
                async move { tracing::info!(%event, "nats") }
            });
        if let Some(role) = role(name) {
            options = options.custom_inbox_prefix(subjects::inbox(role));
        }
        if let Some(path) = credentials {
            options = with_credentials(options, path).await.map_err(|error| BusError::Connect(error.into()))?;
        }
        let servers: Vec<&str> = url.expose_secret().split(',').map(str::trim).collect();
        if servers.iter().any(|server| server.contains('@')) {
            return Err(BusError::CredentialsInUrl);
        }
        let client = options.connect(servers).await.map_err(|error| BusError::Connect(Box::new(error)))?;
        let jetstream = ContextBuilder::new()
            .timeout(ACK_TIMEOUT)
            .ack_timeout(ACK_TIMEOUT)
            .max_ack_inflight(ACKS_IN_FLIGHT_MAX)
            .backpressure_on_inflight(true)
            .build(client.clone());
        let ack_permits = Arc::new(Semaphore::new(ACKS_IN_FLIGHT_MAX));
        Ok(Self { client, jetstream, ack_permits, connects, prefix: prefix.to_owned(), replicas })
    }

    /// The plain NATS client.
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// The JetStream context.
    #[must_use]
    pub fn jetstream(&self) -> &Context {
        &self.jetstream
    }

    /// Changes each time a connection to a server is made. A server that was started again has lost what streams and consumers had in
    /// memory, and does not answer what it was asked before.
    #[must_use]
    pub fn connects(&self) -> watch::Receiver<()> {
        self.connects.subscribe()
    }

    /// A stream name or subject with the installation's prefix.
    #[must_use]
    pub fn prefixed(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    /// The installation's prefix, usually empty.
    #[must_use]
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// A stream of the table, by its name without prefix. `None`: the first process of the installation has not created it yet, so
    /// nothing is in it.
    pub async fn stream(&self, name: &str) -> Result<Option<Stream>, BusError> {
        match self.jetstream.get_stream(self.prefixed(name)).await {
            Ok(stream) => Ok(Some(stream)),
            Err(error) => match error.kind() {
                GetStreamErrorKind::JetStream(error) if error.error_code() == ErrorCode::STREAM_NOT_FOUND => Ok(None),
                _ => Err(BusError::refused(error)),
            },
        }
    }

    /// Creates or updates every stream of the table. Idempotent. Answers [`BusError::MessagesWaiting`] if a limit of a stream could not be
    /// lowered yet; everything else is applied then.
    pub async fn apply_streams(&self) -> Result<(), BusError> {
        let mut incomplete = None;
        for spec in STREAMS {
            let config = match self.stream(spec.name).await? {
                Some(found) => {
                    let (config, is_complete) = self.config_without_loss(spec, &found).await?;
                    incomplete = incomplete.or((!is_complete).then_some(spec.name));
                    config
                }
                None => spec.config(&self.prefix, self.replicas),
            };
            self.jetstream.create_or_update_stream(config).await.map_err(BusError::refused)?;
        }
        incomplete.map_or(Ok(()), |stream| Err(BusError::MessagesWaiting { stream }))
    }

    /// Creates missing streams, and tries to update those whose configuration differs. If only operators may update streams
    /// (`postrider streams apply`), the existing configuration is used.
    pub async fn ensure_streams(&self) -> Result<(), BusError> {
        for spec in STREAMS {
            let Some(found) = self.stream(spec.name).await? else {
                let wanted = spec.config(&self.prefix, self.replicas);
                self.jetstream.create_stream(wanted).await.map_err(BusError::refused)?;
                continue;
            };
            let (wanted, is_complete) = self.config_without_loss(spec, &found).await?;
            if !is_complete {
                let error = BusError::MessagesWaiting { stream: spec.name };
                tracing::warn!(stream = spec.name, %error, "a stream keeps a limit of the previous version");
            }
            if !is_as_wanted(&found.cached_info().config, &wanted)
                && let Err(error) = self.jetstream.update_stream(wanted).await
            {
                tracing::warn!(stream = spec.name, %error, "a stream's configuration differs: run `postrider streams apply`");
            }
        }
        Ok(())
    }

    /// The configuration to apply to an existing stream, and whether it is the table's whole configuration.
    ///
    /// When a limit is lowered, NATS deletes the oldest messages of each subject above it. In a stream that refuses new messages for a
    /// full subject, these messages exist nowhere else. So the limit is lowered only when each subject has at most half of it: the
    /// other half is for messages that are published until the server has the new configuration.
    async fn config_without_loss(&self, spec: &StreamSpec, found: &Stream) -> Result<(Config, bool), BusError> {
        let old = &found.cached_info().config;
        let mut wanted = spec.config_in(&self.prefix, self.replicas, old.storage);
        if !wanted.discard_new_per_subject || !is_lower(wanted.max_messages_per_subject, old.max_messages_per_subject) {
            return Ok((wanted, true));
        }
        let subjects = found.info_with_subjects(">").await.map_err(BusError::refused)?;
        let subjects: Vec<(String, usize)> = subjects.try_collect().await.map_err(BusError::refused)?;
        let most = subjects.iter().map(|(_, messages)| *messages).max().unwrap_or(0);
        let is_complete = i64::try_from(most).is_ok_and(|most| most <= wanted.max_messages_per_subject / 2);
        if !is_complete {
            wanted.max_messages_per_subject = old.max_messages_per_subject;
            wanted.discard_new_per_subject = old.discard_new_per_subject;
        }
        Ok((wanted, is_complete))
    }

    /// Publishes all messages and waits for their acknowledgements: each window is made, sent at once and awaited together.
    /// The error is the first failure. Messages stored before it stay stored, and JetStream drops their repetition by id.
    pub async fn publish_all(&self, publications: Vec<impl Into<Publication> + Send>) -> Result<(), BusError> {
        let mut left = publications.into_iter();
        loop {
            let window: Vec<_> =
                left.by_ref().take(WINDOW).map(|publication| self.outgoing(publication.into())).collect();
            if window.is_empty() {
                return Ok(());
            }
            // A permit is free again only when its acknowledgement was awaited. So the permits of a window are acquired at once: callers
            // that each hold a part of theirs would deadlock.
            let ack_permits = u32::try_from(window.len()).unwrap_or(u32::MAX);
            let _permits = self.ack_permits.acquire_many(ack_permits).await.map_err(|_| BusError::Timeout)?;
            self.publish_window(window).await?;
        }
    }

    /// The subject with prefix, and the message.
    fn outgoing(&self, publication: Publication) -> (String, PublishMessage) {
        let mut message = PublishMessage::build()
            .header(async_nats::header::NATS_MESSAGE_ID, publication.message_id)
            .header(HeaderName::from_static(header::SCHEMA), publication.schema)
            .payload(publication.body);
        for (name, value) in publication.headers {
            message = message.header(HeaderName::from_static(name), value);
        }
        (self.prefixed(&publication.subject), message)
    }

    async fn publish_window(&self, window: Vec<(String, PublishMessage)>) -> Result<(), BusError> {
        let mut answers = Vec::with_capacity(window.len());
        for (subject, message) in window {
            answers.push(self.jetstream.send_publish(subject, message).await?);
        }
        // They come in this order: when the last is there, the task waits for none of the others.
        for answer in answers.into_iter().rev() {
            answer.await?;
        }
        Ok(())
    }

    /// Publishes an answer on a reply subject, once and without guarantee: the ledger has the result in any case. Publishes nothing
    /// if the subject is not a reply subject, because it came with a message.
    pub async fn publish_reply<M: schemas::messages::Message>(&self, subject: &str, message: &M) {
        if !subjects::is_reply(subject) {
            return;
        }
        let Ok(body) = serde_json::to_vec(message) else { return };
        if let Err(error) = self.client.publish(self.prefixed(subject), body.into()).await {
            tracing::debug!(%error, "an answer was not published; the caller reads the ledger");
        }
    }

    /// Receives the messages of a subject until shutdown, without guarantee. The client resubscribes when its server is back.
    pub async fn receive(&self, subject: &str, shutdown: &CancellationToken, mut each: impl FnMut(&[u8]) + Send) {
        let receiving = async {
            loop {
                match self.client.subscribe(self.prefixed(subject)).await {
                    Ok(mut messages) => {
                        while let Some(message) = messages.next().await {
                            each(&message.payload);
                        }
                    }
                    Err(error) => {
                        tracing::warn!(%error, subject, "no messages are received; the ledger is read instead")
                    }
                }
                tokio::time::sleep(RESUBSCRIBE_PAUSE).await;
            }
        };
        shutdown.run_until_cancelled(receiving).await;
    }

    /// True if JetStream answers.
    pub async fn is_healthy(&self) -> bool {
        self.client.connection_state() == async_nats::connection::State::Connected
            && self.jetstream.get_stream(self.prefixed(subjects::stream::REQUESTS)).await.is_ok()
    }
}

/// The role whose inbox a process of this name uses: its stage's, or that of a process that runs several stages. Command lines use
/// the client's default inbox.
fn role(name: &str) -> Option<&str> {
    const SEVERAL_STAGES: &str = "engine_all";
    if name == "all" || name.contains('+') {
        return Some(SEVERAL_STAGES);
    }
    stage_name::process_parts().find(|role| *role == name)
}

/// Adds the credentials of a file. A `.creds` file contains a token and its key. A file with only a seed is for a user that the
/// server's configuration lists by its public key (`ops/nats/accounts.conf`).
async fn with_credentials(options: ConnectOptions, path: &Path) -> std::io::Result<ConnectOptions> {
    const SEED_OF_A_USER: &str = "SU";
    let text = tokio::fs::read_to_string(path).await?;
    let text = text.trim();
    if text.starts_with(SEED_OF_A_USER) { Ok(options.nkey(text.to_owned())) } else { options.credentials(text) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn credentials_in_the_url_are_refused_instead_of_ignored() {
        let url = SecretString::from("nats://127.0.0.1:1,nats://user:secret@127.0.0.1:2");
        let refused = Bus::connect(&url, None, "", 1, "test").await;
        assert!(matches!(refused, Err(BusError::CredentialsInUrl)));
    }
}
