//! The attribution stage: credits announced outcomes at once, all others in sweeps.

use std::sync::Arc;

use async_trait::async_trait;
use runner::{Deps, Intake, Stage, StageError};
use runtime::{Publication, plans::PreparedPool};
use schemas::{Lane, RequestAnnounced, RequestKind, subjects};
use uuid::Uuid;

use crate::{credit, sweeps};

/// The most announcements that are handled together.
const COALESCE: usize = 200;
/// Groups of outcomes that are credited at the same time.
const WORKERS: usize = 2;

pub(crate) struct Attribution(PreparedPool);

/// Starts the stage: its workers and its sweeps.
pub fn start(deps: &Deps) {
    let intake = Intake {
        lane: Lane::Priority,
        stream: subjects::stream::ACCEPTED,
        durable: format!("{}-{}", Attribution::NAME, Lane::Priority),
        subjects: vec![format!("mail.v1.accepted.*.*.{}", RequestKind::Outcome)],
        workers: WORKERS,
        coalesce: COALESCE,
    };
    deps.runner.start(Arc::new(Attribution(deps.by_key.bulk(Attribution::NAME))), vec![intake]);
    deps.runner.start_sweep(Attribution::NAME, Arc::new(sweeps::LateFacts(deps.by_key.bulk(Attribution::NAME))));
    deps.runner.start_sweep(Attribution::NAME, Arc::new(sweeps::DueOutcomes(deps.by_key.bulk(Attribution::NAME))));
}

#[async_trait]
impl Stage for Attribution {
    const NAME: &'static str = "attribution";
    const SPAN: &'static str = "attribution credit";
    /// The request of an announcement is the outcome itself: its row is written before it is announced.
    type Input = RequestAnnounced;

    async fn handle(&self, inputs: &[RequestAnnounced]) -> Result<Vec<Publication>, StageError> {
        let outcomes: Vec<(Uuid, Uuid)> = inputs.iter().map(|input| (input.tenant_id, input.request_id)).collect();
        credit::credit_outcomes(&self.0, &outcomes).await?.count();
        Ok(Vec::new())
    }
}
