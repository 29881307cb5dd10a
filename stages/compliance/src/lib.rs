//! Compliance: resolved → cleared. Recipients that must not be mailed are withheld, with the reason in the ledger; the others continue.
//!
//! The decision is `ledger::gate::decide_recipient`, the same that the fence applies again later. This stage finds
//! most withheld recipients, set-based and before rendering.

use std::{collections::HashSet, sync::Arc};

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use ledger::{
    gate::{self, BatchFacts, GateDecision, Hold, OwedSend},
    withhold,
};
use runner::{Deps, Intake, Stage, StageError};
use runtime::{Bus, CommitNotifier, Publication, plans::PreparedPool};
use schemas::{Cleared, ClearedRecipient, Lane, Resolved, SendId, SkipReason, messages::Decided, subjects};
use sqlx::PgPool;
use uuid::Uuid;

/// Batches the gate decides at the same time, per lane.
const WORKERS: usize = 2;
/// Priority batches have one send each: those that wait together are decided together.
const PRIORITY_COALESCE: usize = 64;

struct Compliance {
    pool: PgPool,
    by_key: PreparedPool,
    bus: Bus,
    facts: CommitNotifier,
}

/// Starts the stage's workers.
pub fn start(deps: &Deps) {
    let intake = |lane: Lane, coalesce| Intake {
        lane,
        stream: subjects::stream::RESOLVED,
        durable: format!("compliance-{lane}"),
        subjects: vec![subjects::resolved(lane)],
        workers: WORKERS,
        coalesce,
    };
    let Deps { runner, pool, by_key, bus, facts, .. } = deps.clone();
    let stage = Arc::new(Compliance { pool, by_key, bus, facts });
    runner.start(stage, vec![intake(Lane::Priority, PRIORITY_COALESCE), intake(Lane::Bulk, 1)]);
}

#[async_trait]
impl Stage for Compliance {
    const NAME: &'static str = "compliance";
    const SPAN: &'static str = "compliance decide";
    type Input = Resolved;

    async fn handle(&self, inputs: &[Resolved]) -> Result<Vec<Publication>, StageError> {
        let lane = inputs.first().map_or(Lane::Bulk, |input| input.lane);
        let mut db = self.by_key.of_lane(lane, Self::NAME).take().await?;
        let batches = gate::load_batches(&mut db, inputs).await?;
        let (mut paused, mut aside, mut moving) = (Vec::new(), Vec::new(), Vec::new());
        for batch in batches.iter().filter(|batch| !batch.is_done) {
            match batch.eligibility.decide() {
                GateDecision::Pass | GateDecision::Skip(_) | GateDecision::Wait(_) => moving.push(batch),
                GateDecision::Paused => paused.push(batch),
                GateDecision::TenantPaused => aside.push(batch),
                // The sweep that ends cancelled campaigns has it.
                GateDecision::Cancel => {}
            }
        }
        let owed = gate::load_owed_sends(&mut db, &moving).await?;
        db.put_back();
        if !paused.is_empty() {
            withhold::put_back(&self.pool, &paused).await?;
        }
        if !aside.is_empty() {
            withhold::put_aside(&self.pool, &aside).await?;
        }
        let mut outputs = Vec::with_capacity(moving.len());
        let mut moved = HashSet::with_capacity(moving.len());
        for batch in moving {
            let sends = owed.get(&(batch.tenant_id, batch.batch_id)).map(Vec::as_slice).unwrap_or_default();
            let SplitBatch { cleared, withheld, held } = split_batch(batch, sends);
            // The whole batch is put off, if that is all there is of it.
            let earliest = held.iter().map(|(.., until)| *until).min();
            match earliest.filter(|_| held.len() == sends.len() && !batch.is_begun) {
                Some(until) => withhold::set_time(&self.pool, batch, until).await?,
                None if held.is_empty() => {}
                None => withhold::put_off(&self.pool, batch, &held).await?,
            }
            if !withheld.is_empty() {
                withhold::withhold(&self.pool, batch, &withheld).await?;
                self.facts.notify();
            }
            if !cleared.is_empty() {
                let message = message(batch, inputs, cleared);
                outputs.push(Publication::json(subjects::cleared(batch.lane), message.message_id(), &message)?);
                moved.insert(batch.batch_id);
            }
        }
        // Callers that wait for a batch of which no send continues.
        for input in inputs.iter().filter(|input| !moved.contains(&input.batch_id)) {
            if let Some(notify) = &input.notify {
                self.bus.publish_reply(notify, &Decided { tenant_id: input.tenant_id, batch_id: input.batch_id }).await;
            }
        }
        Ok(outputs)
    }

    async fn given_up(&self, input: &Resolved, _: &'static str) -> Result<Vec<Publication>, StageError> {
        ledger::owed::set_aside(&self.by_key.of_lane(input.lane, Self::NAME), input.tenant_id, input.batch_id).await?;
        Ok(Vec::new())
    }

    fn commits_facts(&self, _: &[Self::Input]) -> bool {
        false
    }
}

/// A batch's owed sends, by the decision about them.
#[derive(Debug, Default)]
struct SplitBatch {
    /// They may be mailed; or the fence puts them off.
    cleared: Vec<ClearedRecipient>,
    withheld: Vec<(Uuid, SkipReason)>,
    /// Put off, for these reasons, until these times.
    held: Vec<(Uuid, Hold, DateTime<Utc>)>,
}

fn split_batch(batch: &BatchFacts, sends: &[OwedSend]) -> SplitBatch {
    let mut split = SplitBatch { cleared: Vec::with_capacity(sends.len()), ..SplitBatch::default() };
    for send in sends {
        let mail = (batch.kind, batch.classification);
        let (eligibility, now) = (send.eligibility.as_ref(), batch.read_at);
        let decision = gate::decide_send(Some(&batch.eligibility), eligibility, mail, send.facts, now);
        match decision {
            GateDecision::Skip(reason) => split.withheld.push((send.send_id, reason)),
            GateDecision::Wait(hold @ (Hold::QuietHours { until } | Hold::MoreUrgent { until })) => {
                split.held.push((send.send_id, hold, until));
            }
            _ => split
                .cleared
                .push(ClearedRecipient { ordinal: SendId(send.send_id).ordinal(), contact_id: send.contact_id }),
        }
    }
    split
}

fn message(batch: &BatchFacts, inputs: &[Resolved], recipients: Vec<ClearedRecipient>) -> Cleared {
    let announced = || inputs.iter().filter(|input| input.batch_id == batch.batch_id);
    Cleared {
        tenant_id: batch.tenant_id,
        batch_id: batch.batch_id,
        lane: batch.lane,
        announcement: announced().map(|input| input.announcement).max().unwrap_or(1),
        kind: batch.kind,
        classification: batch.classification,
        campaign_id: batch.campaign_id,
        content_id: batch.content_id,
        sender_id: batch.sender_id,
        recipients,
        notify: announced().find_map(|input| input.notify.clone()),
    }
}
