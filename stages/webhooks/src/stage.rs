//! The webhooks stage: fans facts out when a notification arrives, and with a sweep.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use runner::{Stage, StageError, Sweep, SweepSchedule};
use runtime::{Publication, plans::PreparedPool};
use schemas::FactsAnnounced;

use crate::{
    dispatch::{self, Dispatcher},
    fan_out::{self, FanOutResult, FeedPublisher, Taken},
};

/// How soon the sweep finds facts without a notification.
const SWEEP_INTERVAL: Duration = Duration::from_millis(250);
/// The sweep finds facts that have waited for a notification for a second: the others are about to be taken by a worker.
const HAS_OVERDUE: &str = "exists (select from outbox where noted_at < now() - interval '1 second')";

/// The webhooks stage. Each notification makes a worker fan out all waiting facts.
pub(crate) struct Webhooks {
    by_key: PreparedPool,
    dispatcher: Dispatcher,
    feed: FeedPublisher,
}

impl Webhooks {
    pub fn new(by_key: PreparedPool, dispatcher: Dispatcher, feed: FeedPublisher) -> Self {
        Self { by_key, dispatcher, feed }
    }

    /// Fans out the facts of one transaction.
    async fn fan_out_once(&self) -> Result<Taken, StageError> {
        let FanOutResult { taken, fresh } = fan_out::fan_out_notes(&self.by_key, &self.feed).await?;
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
        let mut taken = self.fan_out_once().await?;
        while taken.is_full {
            taken = self.fan_out_once().await?;
        }
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
    fn schedule(&self) -> SweepSchedule {
        SweepSchedule::every("fan_out", SWEEP_INTERVAL).when(HAS_OVERDUE)
    }

    async fn sweep(&self) -> Result<u64, StageError> {
        Ok(self.0.fan_out_once().await?.notes as u64)
    }
}
