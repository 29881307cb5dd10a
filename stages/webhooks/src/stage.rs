//! The webhooks stage: fans facts out when a notification arrives, and with a sweep.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use runner::{Stage, StageError, Sweep};
use runtime::{Publication, plans::PreparedPool};
use schemas::FactsAnnounced;

use crate::{
    dispatch::{self, Dispatcher},
    fan_out::{self, FanOutResult, FeedQueue, Taken},
};

/// How soon the sweep finds facts without a notification.
const SWEEP_INTERVAL: Duration = Duration::from_millis(250);

/// The webhooks stage. Each notification makes a worker fan out all waiting facts.
pub(crate) struct Webhooks {
    by_key: PreparedPool,
    dispatcher: Dispatcher,
    feed: FeedQueue,
}

impl Webhooks {
    pub fn new(by_key: PreparedPool, dispatcher: Dispatcher, feed: FeedQueue) -> Self {
        Self { by_key, dispatcher, feed }
    }

    /// Fans out the facts of one transaction.
    async fn fan_out_once(&self) -> Result<Taken, StageError> {
        let FanOutResult { taken, fresh, feed } = fan_out::fan_out_notes(&self.by_key).await?;
        self.dispatcher.offer_fresh(fresh);
        if let Some(feed) = feed {
            self.feed.enqueue(feed).await;
        }
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

/// The sweep for facts whose notification was lost or never sent.
pub(crate) struct FanOutSweep(pub Arc<Webhooks>);

#[async_trait]
impl Sweep for FanOutSweep {
    fn name(&self) -> &'static str {
        "fan_out"
    }

    fn interval(&self) -> Duration {
        SWEEP_INTERVAL
    }

    fn has_work(&self) -> Option<&'static str> {
        Some("exists (select from outbox)")
    }

    async fn sweep(&self) -> Result<u64, StageError> {
        Ok(self.0.fan_out_once().await?.notes as u64)
    }
}
