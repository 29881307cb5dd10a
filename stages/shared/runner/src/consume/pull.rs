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

/// The consumer of an intake; held by the worker that pulls.
pub(crate) type PullTurn = Arc<Mutex<IntakeConsumer>>;

/// The consumer of an intake, once it is made.
#[derive(Default)]
pub(crate) struct IntakeConsumer {
    pub(super) made: Option<MadeConsumer>,
    /// Whether this process has made it before.
    pub(super) was_made: bool,
}

/// A consumer, and where its messages arrive: each pull is answered by one message or a status, so the subscription serves all of them.
pub(crate) struct MadeConsumer {
    pub(super) consumer: Consumer,
    inbox: Subject,
    replies: Subscriber,
    /// Whether a connection to a server was made since: that server may not know the consumer.
    pub(super) connects: watch::Receiver<()>,
}

impl MadeConsumer {
    pub(super) async fn make(runner: &Runner, intake: &Intake, was_made: bool) -> Result<Self, BusError> {
        let (client, connects) = (runner.bus.client(), runner.bus.connects());
        let consumer = ensure_consumer(runner, intake, was_made).await?;
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

/// Creates the durable consumer, or gives it this configuration. One that was made before is taken as it is if it has all subjects: a
/// newer process may have added some since, which this one does not know, and an older one may have made it without some.
async fn ensure_consumer(runner: &Runner, intake: &Intake, was_made: bool) -> Result<Consumer, BusError> {
    let bus = &runner.bus;
    let stream = bus.prefixed(intake.stream);
    let wanted: Vec<String> = intake.subjects.iter().map(|subject| bus.prefixed(subject)).collect();
    if was_made
        && let Ok(found) =
            bus.jetstream().get_consumer_from_stream::<pull::Config, _, _>(&intake.durable, &stream).await
        && wanted.iter().all(|subject| found.cached_info().config.filter_subjects.contains(subject))
    {
        return Ok(found);
    }
    let config = pull::Config {
        durable_name: Some(intake.durable.clone()),
        filter_subjects: wanted,
        ack_policy: jetstream::consumer::AckPolicy::Explicit,
        ack_wait: runner.ack_wait,
        max_deliver: -1,
        max_ack_pending: MAX_ACK_PENDING,
        ..pull::Config::default()
    };
    match bus.jetstream().create_consumer_on_stream(config.clone(), &stream).await {
        Ok(consumer) => Ok(consumer),
        Err(error) => {
            // The store may have been emptied: create the streams again, and the ledger refills them.
            bus.ensure_streams().await.map_err(|_| BusError::refused(error))?;
            bus.jetstream().create_consumer_on_stream(config, &stream).await.map_err(BusError::refused)
        }
    }
}
