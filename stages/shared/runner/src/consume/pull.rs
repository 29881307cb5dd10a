//! The consumer of an intake: how it is made, and a pull on it.

use std::{sync::Arc, time::Duration};

use async_nats::{
    StatusCode, Subject, Subscriber,
    jetstream::{self, consumer::pull},
};
use futures::StreamExt;
use runtime::{Bus, BusError};
use tokio::sync::{Mutex, watch};

use crate::{Intake, MAX_ACK_PENDING, Runner};

type Consumer = jetstream::consumer::Consumer<pull::Config>;

/// How long one pull waits at the server.
pub(super) const PULL_EXPIRES: Duration = Duration::from_secs(15);
/// A pull that is overdue by this much is given up: the server lost it or is gone.
pub(super) const PULL_GRACE: Duration = Duration::from_secs(3);

/// The consumer of an intake, once it is made; held by the worker that pulls.
pub(crate) type PullTurn = Arc<Mutex<Option<MadeConsumer>>>;

/// A consumer, and where its messages arrive: each pull is answered by one message or a status, so the subscription serves all of them.
pub(crate) struct MadeConsumer {
    pub(super) consumer: Consumer,
    inbox: Subject,
    replies: Subscriber,
    /// Whether a connection to a server was made since: that server may not know the consumer.
    pub(super) connects: watch::Receiver<()>,
}

impl MadeConsumer {
    pub(super) async fn make(runner: &Runner, intake: &Intake) -> Result<Self, BusError> {
        let (client, connects) = (runner.bus.client(), runner.bus.connects());
        let consumer = ensure_consumer(runner, intake).await?;
        let inbox = Subject::from(client.new_inbox());
        let replies = client.subscribe(inbox.clone()).await.map_err(BusError::refused)?;
        Ok(Self { consumer, inbox, replies, connects })
    }

    /// The next message; `None` if there was none in time.
    pub(super) async fn pull_one(&mut self, bus: &Bus) -> Result<Option<jetstream::Message>, BusError> {
        let one = pull::BatchConfig { batch: 1, expires: Some(PULL_EXPIRES), ..pull::BatchConfig::default() };
        self.consumer.request_batch(one, self.inbox.clone()).await.map_err(BusError::refused)?;
        let message = self.replies.next().await.ok_or(BusError::Timeout)?;
        match message.status {
            None | Some(StatusCode::OK) => Ok(Some(jetstream::Message { message, context: bus.jetstream().clone() })),
            Some(StatusCode::TIMEOUT) => Ok(None),
            Some(status) => {
                Err(BusError::refused(format!("{status} {}", message.description.as_deref().unwrap_or_default())))
            }
        }
    }
}

/// Creates the durable consumer, or finds it with the same configuration.
async fn ensure_consumer(runner: &Runner, intake: &Intake) -> Result<Consumer, BusError> {
    let bus = &runner.bus;
    let config = pull::Config {
        durable_name: Some(intake.durable.clone()),
        filter_subjects: intake.subjects.iter().map(|subject| bus.prefixed(subject)).collect(),
        ack_policy: jetstream::consumer::AckPolicy::Explicit,
        ack_wait: runner.ack_wait,
        max_deliver: -1,
        max_ack_pending: MAX_ACK_PENDING,
        ..pull::Config::default()
    };
    let stream = bus.prefixed(intake.stream);
    match bus.jetstream().create_consumer_on_stream(config.clone(), &stream).await {
        Ok(consumer) => Ok(consumer),
        Err(error) => {
            // The store may have been emptied: create the streams again, and the ledger refills them.
            bus.ensure_streams().await.map_err(|_| BusError::refused(error))?;
            bus.jetstream().create_consumer_on_stream(config, &stream).await.map_err(BusError::refused)
        }
    }
}
