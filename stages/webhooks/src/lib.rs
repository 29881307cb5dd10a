//! The webhooks stage: facts become events, for subscribed endpoints and for the bus.
//!
//! The transaction that writes a fact also writes a row in `outbox`. [`fan_out`] takes these rows and turns them into events and
//! deliveries. An event's body is written once and never changes. A delivery is a row before its first attempt ([`dispatch`]).

mod dispatch;
mod fan_out;
mod replay;
mod retention;
mod stage;

use std::{sync::Arc, time::Duration};

use runner::{Deps, Intake, Stage, StageError};
use schemas::{Lane, subjects};

use self::{
    dispatch::Dispatcher,
    fan_out::{FeedPublisher, PublishFeedNotes},
    stage::{FanOutSweep, Webhooks},
};

/// Settings of the webhooks stage.
#[derive(Debug, Clone, clap::Args)]
#[group(skip)]
pub struct Settings {
    /// The pauses after failed attempts, comma-separated. There are as many attempts as pauses: after the last one a delivery is
    /// dead, and the last pause is how far a receiver's `Retry-After` may stretch the one before it.
    #[arg(
        long,
        env = "POSTRIDER_WEBHOOK_BACKOFF",
        default_value = "1m,5m,30m,2h,12h",
        value_delimiter = ',',
        value_parser = humantime::parse_duration
    )]
    pub webhook_backoff: Vec<Duration>,
    /// Longest wait for an answer, from the first step to its last byte.
    #[arg(long, env = "POSTRIDER_WEBHOOK_TIMEOUT", default_value = "15s", value_parser = humantime::parse_duration)]
    pub webhook_timeout: Duration,
    /// Most requests in flight to one endpoint, over all processes.
    #[arg(long, env = "POSTRIDER_WEBHOOK_IN_FLIGHT_PER_ENDPOINT", default_value_t = 4)]
    pub webhook_in_flight_per_endpoint: usize,
    /// Most requests in flight from one process. An endpoint that does not answer uses one for `webhook-timeout`.
    #[arg(long, env = "POSTRIDER_WEBHOOK_IN_FLIGHT", default_value_t = 1_000)]
    pub webhook_in_flight: usize,
    /// How long events and deliveries are kept, to be shown and replayed with the same bytes.
    #[arg(long, env = "POSTRIDER_WEBHOOK_KEEP", default_value = "30d", value_parser = humantime::parse_duration)]
    pub webhook_keep: Duration,
}

/// Notifications that one call of the handler answers: they all mean the same.
const COALESCE: usize = 64;
/// Groups of facts made into events at the same time.
const WORKERS: usize = 2;

/// Starts the stage's workers.
///
/// # Errors
/// Never.
pub async fn start(deps: &Deps, settings: &Settings) -> Result<(), StageError> {
    let intake = Intake {
        lane: Lane::Priority,
        stream: subjects::stream::FACTS,
        durable: "webhooks-priority".to_owned(),
        subjects: vec![subjects::fact("*")],
        workers: WORKERS,
        coalesce: COALESCE,
    };
    let dispatcher = Dispatcher::start(deps, settings);
    let by_key = deps.by_key.bulk(Webhooks::NAME);
    let stage = Arc::new(Webhooks::new(by_key.clone(), dispatcher, FeedPublisher::new(deps.bus.clone())));
    deps.runner.start(Arc::clone(&stage), vec![intake]);
    deps.runner.start_sweep(Webhooks::NAME, Arc::new(FanOutSweep(stage)));
    deps.runner
        .start_sweep(Webhooks::NAME, Arc::new(PublishFeedNotes { by_key: by_key.clone(), bus: deps.bus.clone() }));
    deps.runner.start_sweep(Webhooks::NAME, Arc::new(replay::Replays(by_key.clone())));
    deps.runner.start_sweep(Webhooks::NAME, Arc::new(retention::EndDisabledDeliveries(by_key.clone())));
    deps.runner.start_sweep(
        Webhooks::NAME,
        Arc::new(retention::PurgeExpired { pool: deps.pool.clone(), keep: settings.webhook_keep }),
    );
    deps.runner.start_sweep(Webhooks::NAME, Arc::new(retention::MeasureQueue(by_key)));
    Ok(())
}
