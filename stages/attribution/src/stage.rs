//! The stage itself: outcomes that were announced are credited at once, all others by the sweeps.

use std::sync::Arc;

use async_trait::async_trait;
use runner::{Deps, Intake, Stage, StageError};
use runtime::{Counter, Publication, plans::PreparedPool};
use schemas::{Lane, RequestAnnounced, RequestKind, subjects};
use uuid::Uuid;

use crate::{
    Settings,
    credit::{self, Looked},
    sweeps,
};

/// Announcements that are handled together when they are waiting together.
const COALESCE: usize = 200;

pub(crate) struct Attribution(PreparedPool);

/// Starts the stage: its workers and its sweeps.
///
/// # Errors
/// None today; the signature is every stage's.
pub async fn start(deps: &Deps, settings: &Settings) -> Result<(), StageError> {
    let intake = Intake {
        lane: Lane::Priority,
        stream: subjects::stream::ACCEPTED,
        durable: format!("{}-{}", Attribution::NAME, Lane::Priority),
        subjects: vec![format!("mail.v1.accepted.*.*.{}", RequestKind::Outcome)],
        workers: settings.attribution_workers.max(1),
        coalesce: COALESCE,
    };
    deps.runner.start(Arc::new(Attribution(deps.by_key.bulk(Attribution::NAME))), vec![intake]);
    deps.runner.start_sweep(Attribution::NAME, Arc::new(sweeps::LateFacts(deps.by_key.bulk(Attribution::NAME))));
    deps.runner.start_sweep(Attribution::NAME, Arc::new(sweeps::DueOutcomes(deps.by_key.bulk(Attribution::NAME))));
    Ok(())
}

#[async_trait]
impl Stage for Attribution {
    const NAME: &'static str = "attribution";
    const SPAN: &'static str = "attribution credit";
    /// The request of an announcement is the outcome itself: its row is written before it is announced.
    type Input = RequestAnnounced;

    async fn handle(&self, inputs: &[RequestAnnounced]) -> Result<Vec<Publication>, StageError> {
        let outcomes: Vec<(Uuid, Uuid)> = inputs.iter().map(|input| (input.tenant_id, input.request_id)).collect();
        count(credit::look_at(&self.0, &outcomes).await?);
        Ok(Vec::new())
    }
}

/// Counts credits that were set or restated.
pub(crate) fn count(looked: Looked) {
    for (rule, credits) in
        [("human_click", looked.clicked), ("delivered", looked.delivered), ("none", looked.uncredited)]
    {
        Counter::OutcomesCreditedTotal.add(credits, [("rule", rule)]);
    }
}
