//! The webhooks stage: facts become events, for subscribed endpoints and for the bus.
//!
//! The transaction that writes a fact also writes a row in `outbox`. [`fan_out`] takes these rows and turns them into events and
//! deliveries. An event's body is written once and never changes. A delivery is a row before its first attempt ([`dispatch`]).

mod dispatch;
mod fan_out;
mod replay;
mod retention;

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use runner::{Deps, Intake, Stage, StageError, Sweep, SweepSchedule};
use runtime::{Publication, plans::PreparedPool, settings::keep_at_least};
use schemas::{FactsAnnounced, Lane, subjects};

use self::{
    dispatch::Dispatcher,
    fan_out::{FeedPublisher, PublishFeedNotes, Taken},
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
    /// How long events and deliveries are kept, to be shown and replayed with the same bytes, and held while their subscription is paused.
    /// At least a day; `0s`: for ever.
    #[arg(long, env = "POSTRIDER_WEBHOOK_KEEP", default_value = "30d", value_parser = keep_at_least(KEEP_MIN))]
    pub webhook_keep: Duration,
}

/// The shortest time deliveries are kept: longer than the default backoff.
const KEEP_MIN: Duration = Duration::from_secs(24 * 60 * 60);
/// Notifications that one call of the handler answers: they all mean the same.
const COALESCE: usize = 64;
/// Groups of facts made into events at the same time.
const WORKERS: usize = 2;
/// How soon the sweep finds facts without a notification.
const SWEEP_INTERVAL: Duration = Duration::from_millis(250);
/// The sweep finds facts that have waited for a notification for a second: the others are about to be taken by a worker.
const HAS_OVERDUE: &str = "exists (select from outbox where noted_at < now() - interval '1 second')";

/// Starts the stage's workers.
pub fn start(deps: &Deps, settings: &Settings) {
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
    let feed = FeedPublisher::new(deps.bus.clone());
    let stage = Arc::new(Webhooks { by_key: by_key.clone(), dispatcher, feed });
    deps.runner.start(Arc::clone(&stage), vec![intake]);
    let start_sweep = |sweep: Arc<dyn Sweep>| deps.runner.start_sweep(Webhooks::NAME, sweep);
    start_sweep(stage);
    start_sweep(Arc::new(PublishFeedNotes { by_key: by_key.clone(), bus: deps.bus.clone() }));
    start_sweep(Arc::new(replay::Replays(by_key.clone())));
    start_sweep(Arc::new(retention::EndDisabledDeliveries(by_key.clone())));
    start_sweep(Arc::new(retention::PurgeExpired {
        pool: deps.pool.clone(),
        keep: settings.webhook_keep,
        retries: settings.webhook_backoff.iter().sum(),
    }));
    start_sweep(Arc::new(retention::MeasureQueue(by_key)));
}

/// The webhooks stage. Each notification makes a worker fan out all waiting facts.
struct Webhooks {
    by_key: PreparedPool,
    dispatcher: Arc<Dispatcher>,
    feed: FeedPublisher,
}

impl Webhooks {
    /// Fans out the facts of one transaction.
    async fn fan_out_once(&self) -> Result<Taken, StageError> {
        let (taken, fresh) = fan_out::fan_out_notes(&self.by_key, &self.feed).await?;
        self.dispatcher.offer_fresh(fresh);
        Ok(taken)
    }
}

#[async_trait]
impl Stage for Webhooks {
    const NAME: &'static str = dispatch::NAME;
    const SPAN: &'static str = "webhooks fan out";
    type Input = FactsAnnounced;

    async fn handle(&self, _inputs: &[FactsAnnounced]) -> Result<Vec<Publication>, StageError> {
        while self.fan_out_once().await?.is_full {}
        Ok(Vec::new())
    }

    fn commits_facts(&self, _: &[Self::Input]) -> bool {
        false
    }
}

/// Finds the facts whose notification was lost or never sent.
#[async_trait]
impl Sweep for Webhooks {
    fn schedule(&self) -> SweepSchedule {
        SweepSchedule::every("fan_out", SWEEP_INTERVAL).when(HAS_OVERDUE)
    }

    async fn sweep(&self) -> Result<u64, StageError> {
        Ok(self.fan_out_once().await?.notes as u64)
    }
}
