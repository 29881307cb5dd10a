//! A product's own consumers of its own events: durable, so that nothing is missed while its program is away, and anything of the
//! last seven days is read again when it asks.
//!
//! They are made here only: a NATS user may pull from a consumer with its name and may not create one, since a consumer decides where
//! messages go.

use std::time::Duration;

use async_nats::jetstream::{
    consumer::{AckPolicy, DeliverPolicy, Info, pull},
    stream::Stream,
};
use chrono::{DateTime, SecondsFormat, Utc};
use futures::TryStreamExt;
use runtime::{Bus, BusError};
use schemars::JsonSchema;
use schemas::subjects::{CONSUMER_NAME_MAX, EVENT_CONSUMER, event_consumer, is_consumer_name, stream};
use serde::{Deserialize, Serialize};

use super::call::Publisher;
use crate::pipeline::{GivenTime, error::ApiError, json};

/// Most a product has in one environment.
const CONSUMERS_MAX: usize = 10;
/// How long a message may be unacknowledged before it is delivered again.
const ACK_WAIT: Duration = Duration::from_secs(30);
/// Messages a program may have unacknowledged.
const IN_HAND_MAX: i64 = 1_000;

/// The body of `events.consumer`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct FindConsumer {
    /// Its name. The user's rights say which names it may pull from.
    #[schemars(length(max = CONSUMER_NAME_MAX), regex(pattern = "^[a-z0-9-]+$"), extend("default" = EVENT_CONSUMER))]
    consumer: Option<String>,
    /// Begins anew with the first event published at or after this time. Left out: goes on where it was; a new one begins with the
    /// oldest event there is.
    since: Option<GivenTime>,
}

/// The answer to `events.consumer`.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ConsumerFound {
    /// The stream to pull from.
    stream: String,
    /// The durable consumer's name in it.
    consumer: String,
    /// The subjects of its events.
    subject: String,
    /// Events that wait to be pulled.
    pending: u64,
    /// After so long without an acknowledgement an event comes again.
    ack_wait_seconds: u64,
    /// So many events may be unacknowledged.
    #[schemars(with = "u64")]
    in_hand_max: i64,
}

/// Finds the consumer or makes it. With a time it is made anew, and begins there.
pub(super) async fn find_consumer(bus: &Bus, publisher: &Publisher, payload: &[u8]) -> Result<ConsumerFound, ApiError> {
    let fields = if payload.is_empty() { serde_json::Map::new() } else { json::parse(payload)? };
    let asked: FindConsumer = json::decode(fields)?;
    let name = asked.consumer.as_deref().unwrap_or(EVENT_CONSUMER);
    if !is_consumer_name(name) {
        return Err(ApiError::invalid("consumer", "invalid", "must be 1 to 32 of a-z, 0-9 and dashes"));
    }
    let durable = durable_of(publisher, name);
    let subject = format!("mail.v1.event.{}.{}.>", publisher.product, publisher.environment);
    let events = bus.jetstream().get_stream(bus.prefixed(stream::EVENTS)).await.map_err(unavailable)?;
    let known = events.consumer_info(&durable).await.ok();
    let info = match (known, asked.since.map(|at| at.0)) {
        (Some(info), None) => info,
        (known, since) => {
            if known.is_some() {
                events.delete_consumer(&durable).await.map_err(unavailable)?;
            } else {
                check_consumer_limit(&events, publisher).await?;
            }
            make(&events, &durable, &bus.prefixed(&subject), since).await?
        }
    };
    Ok(ConsumerFound {
        stream: events.cached_info().config.name.clone(),
        consumer: durable,
        subject: bus.prefixed(&subject),
        pending: info.num_pending,
        ack_wait_seconds: ACK_WAIT.as_secs(),
        in_hand_max: IN_HAND_MAX,
    })
}

async fn make(events: &Stream, durable: &str, subject: &str, since: Option<DateTime<Utc>>) -> Result<Info, ApiError> {
    let deliver_policy = match since {
        None => DeliverPolicy::All,
        Some(since) => DeliverPolicy::ByStartTime { start_time: moment(since)? },
    };
    let config = pull::Config {
        durable_name: Some(durable.to_owned()),
        filter_subject: subject.to_owned(),
        deliver_policy,
        ack_policy: AckPolicy::Explicit,
        ack_wait: ACK_WAIT,
        max_ack_pending: IN_HAND_MAX,
        ..pull::Config::default()
    };
    let made = events.create_consumer(config).await.map_err(unavailable)?;
    Ok(made.cached_info().clone())
}

fn moment(since: DateTime<Utc>) -> Result<async_nats::datetime::DateTime, ApiError> {
    let nanos = i128::from(since.timestamp_micros()) * 1_000;
    async_nats::datetime::from_nanos(nanos)
        .map_err(|_| ApiError::invalid("since", "invalid", since.to_rfc3339_opts(SecondsFormat::Secs, true)))
}

/// Refuses one more than a product may have.
async fn check_consumer_limit(events: &Stream, publisher: &Publisher) -> Result<(), ApiError> {
    let prefix = durable_of(publisher, "");
    let names: Vec<String> = events.consumer_names().try_collect().await.map_err(unavailable)?;
    if names.iter().filter(|name| name.starts_with(&prefix)).count() >= CONSUMERS_MAX {
        return Err(ApiError::conflict("consumer_limit_reached").detail(format!("there are {CONSUMERS_MAX} already")));
    }
    Ok(())
}

fn durable_of(publisher: &Publisher, name: &str) -> String {
    event_consumer(&publisher.product, publisher.environment.as_str(), name)
}

fn unavailable(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> ApiError {
    tracing::warn!(error = %BusError::refused(error), "a consumer of events could not be made");
    ApiError::unavailable()
}
