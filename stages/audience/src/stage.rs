//! The stage itself: takes requests in, each kind by its own road.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use runner::{Deps, Intake, Stage, StageError};
use runtime::Publication;
use schemas::{Lane, RequestAnnounced, RequestKind, subjects};
use sqlx::PgPool;

use crate::{Settings, campaign, message, sweeps, transactional};

/// Transactional requests and one-off messages handled together when they are waiting together.
const COALESCE: usize = 64;

pub(crate) struct Audience {
    pool: PgPool,
    reannounce: Duration,
}

/// Starts the stage: its workers and its sweeps.
///
/// # Errors
/// None today; the signature is every stage's.
pub async fn start(deps: &Deps, settings: &Settings) -> Result<(), StageError> {
    let stage = Audience { pool: deps.pool.clone(), reannounce: settings.audience_reannounce };
    let intake = |lane: Lane, kinds: &[RequestKind], workers: usize, coalesce| Intake {
        lane,
        stream: subjects::stream::ACCEPTED,
        durable: format!("{}-{lane}", Audience::NAME),
        subjects: kinds.iter().map(|kind| format!("mail.v1.accepted.*.*.{kind}")).collect(),
        workers: workers.max(1),
        coalesce,
    };
    let prompt = [RequestKind::Transactional, RequestKind::Message];
    let intakes = vec![
        intake(Lane::Priority, &prompt, settings.audience_workers, COALESCE),
        intake(Lane::Bulk, &[RequestKind::CampaignLaunch], settings.audience_launches, 1),
    ];
    deps.runner.start(Arc::new(stage), intakes);
    sweeps::start(deps, settings);
    Ok(())
}

#[async_trait]
impl Stage for Audience {
    const NAME: &'static str = "audience";
    type Input = RequestAnnounced;

    async fn handle(&self, inputs: &[RequestAnnounced]) -> Result<Vec<Publication>, StageError> {
        let outcome = self.handle_all(inputs).await;
        // A request that can never be handled must not be rung for again: it is rejected in the ledger, and its message becomes a
        // dead letter. Several come back one by one, so here it is known which one it is.
        if let (Err(error), [input]) = (&outcome, inputs)
            && !error.is_transient()
        {
            reject(&self.pool, input, error.code()).await?;
        }
        outcome
    }
}

impl Audience {
    async fn handle_all(&self, inputs: &[RequestAnnounced]) -> Result<Vec<Publication>, StageError> {
        let (mut transactional, mut messages) = (Vec::new(), Vec::new());
        for input in inputs {
            match input.kind {
                RequestKind::CampaignLaunch => campaign::launch(&self.pool, input).await?,
                RequestKind::Transactional => transactional.push(input),
                RequestKind::Message => messages.push(input),
                // Not of this stage's subjects.
                RequestKind::Enrollment | RequestKind::Outcome => {
                    return Err(StageError::rejected("not_for_this_stage", input.kind));
                }
            }
        }
        let mut publications = Vec::new();
        if !messages.is_empty() {
            publications.extend(message::resolve(&self.pool, &messages, self.reannounce).await?);
        }
        if !transactional.is_empty() {
            publications.extend(transactional::resolve(&self.pool, &transactional, self.reannounce).await?);
        }
        Ok(publications)
    }
}

async fn reject(pool: &PgPool, input: &RequestAnnounced, code: &'static str) -> Result<(), StageError> {
    sqlx::query!(
        "update requests set state = 'rejected', outcome = $3, announce_after = null, handled_at = now()
         where tenant_id = $1 and id = $2 and state = 'accepted'",
        input.tenant_id,
        input.request_id,
        code,
    )
    .execute(pool)
    .await?;
    Ok(())
}
