//! Hearing that there is something to tell: by the bell, and by looking.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use runner::{Stage, StageError, Sweep};
use runtime::{Publication, plans::PreparedPool};
use schemas::FactsAnnounced;

use crate::{
    dispatch::Dispatcher,
    fan_out::{self, Done, FeedDoor, Taken},
};

/// How soon facts are found that nobody rang for.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// The stage: whoever hears the bell tells all there is.
pub(crate) struct Webhooks {
    by_key: PreparedPool,
    dispatcher: Dispatcher,
    feed: FeedDoor,
}

impl Webhooks {
    pub fn new(by_key: PreparedPool, dispatcher: Dispatcher, feed: FeedDoor) -> Self {
        Self { by_key, dispatcher, feed }
    }

    /// Tells what one transaction takes.
    async fn once(&self) -> Result<Taken, StageError> {
        let Done { taken, fresh, feed } = fan_out::tell(&self.by_key).await?;
        self.dispatcher.hand_over(fresh);
        if let Some(feed) = feed {
            self.feed.hand_over(feed).await;
        }
        Ok(taken)
    }
}

#[async_trait]
impl Stage for Webhooks {
    const NAME: &'static str = "webhooks";
    const SPAN: &'static str = "webhooks fan out";
    type Input = FactsAnnounced;

    async fn handle(&self, _inputs: &[FactsAnnounced]) -> Result<Vec<Publication>, StageError> {
        while self.once().await?.is_full {}
        Ok(Vec::new())
    }

    fn commits_facts(&self, _: &[Self::Input]) -> bool {
        false
    }
}

/// A bell may be lost, and facts may be committed where nobody rings.
pub(crate) struct Look(pub Arc<Webhooks>);

#[async_trait]
impl Sweep for Look {
    fn name(&self) -> &'static str {
        "look"
    }

    fn interval(&self) -> Duration {
        LOOK_EVERY
    }

    async fn sweep(&self) -> Result<u64, StageError> {
        Ok(self.0.once().await?.notes as u64)
    }
}
