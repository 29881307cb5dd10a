//! The stage itself: handles requests, each kind by its own module.

use std::{slice, sync::Arc, time::Duration};

use async_trait::async_trait;
use runner::{Deps, Intake, PauseGate, Stage, StageError};
use runtime::{Notifier, Publication, plans::PreparedPool};
use schemas::{Lane, RequestAnnounced, RequestKind, SendId, subjects};
use sqlx::PgPool;
use uuid::Uuid;

use ledger::{
    dispatch::PRIORITY_REANNOUNCE,
    resolve::{message, transactional},
};

use crate::{Settings, campaign, sweeps};

/// Transactional requests and one-off messages handled together when they are waiting together.
const COALESCE: usize = 64;
/// Announcements of arrays handled together. Each is of up to 500 requests, or of one that is due later: then there are hundreds.
const COALESCE_ARRAYS: usize = 16;
/// Transactions of transactional requests at the same time.
const WORKERS: usize = 2;

pub(crate) struct Audience {
    pool: PgPool,
    /// For requests that are handled in hundreds a second: one connection for each of their workers.
    by_key: PreparedPool,
    /// First pause before a priority batch that is still open is announced again.
    reannounce: Duration,
    /// Says whether the ledger is held.
    pause_gate: PauseGate,
    /// Notified when batches wait for dispatch.
    launched: Notifier,
    /// Notified when a launch was handled, and its tenant's next may be announced.
    launch_handled: Notifier,
}

/// Starts the stage: its workers and its sweeps.
pub fn start(deps: &Deps, settings: &Settings) {
    let stage = Audience {
        pool: deps.pool.clone(),
        by_key: deps.by_key.clone(),
        reannounce: settings.audience_reannounce.min(PRIORITY_REANNOUNCE),
        pause_gate: deps.runner.pause_gate().clone(),
        launched: Notifier::default(),
        launch_handled: Notifier::default(),
    };
    sweeps::start(deps, Audience::NAME, settings, &stage.launched, &stage.launch_handled);
    let intake = |lane, name: &str, kinds: &[&str], workers, coalesce| Intake {
        lane,
        stream: subjects::stream::ACCEPTED,
        durable: format!("{}-{name}", Audience::NAME),
        subjects: kinds.iter().map(|kind| format!("mail.v1.accepted.*.*.{kind}")).collect(),
        workers,
        coalesce,
    };
    let prompt = [RequestKind::Transactional.as_str(), RequestKind::Message.as_str()];
    let launches = [RequestKind::CampaignLaunch.as_str()];
    let intakes = vec![
        intake(Lane::Priority, "priority", &prompt, WORKERS, COALESCE),
        intake(Lane::Bulk, "bulk", &launches, settings.audience_launches, 1),
        // Requests that were accepted in hundreds: prompt ones do not wait behind them, nor they behind launches.
        intake(Lane::Bulk, "arrays", &["transactional-array"], WORKERS, COALESCE_ARRAYS),
    ];
    deps.runner.start(Arc::new(stage), intakes);
}

#[async_trait]
impl Stage for Audience {
    const NAME: &'static str = "audience";
    const SPAN: &'static str = "audience resolve";
    type Input = RequestAnnounced;

    async fn handle(&self, inputs: &[RequestAnnounced]) -> Result<Vec<Publication>, StageError> {
        match (self.handle_all(inputs).await, inputs) {
            // The runner handles several one by one after a rejection, so a single input names the request.
            (Err(error), [input]) if !error.is_transient() => self.refuse(input, error).await,
            (outcome, _) => outcome,
        }
    }

    async fn given_up(&self, input: &RequestAnnounced, code: &'static str) -> Result<Vec<Publication>, StageError> {
        // Of the batches of an array it is not known which is at fault: a sweep announces each by itself.
        if input.more.is_empty() {
            reject(&self.pool, input, code).await?;
        }
        Ok(Vec::new())
    }

    /// A launch commits facts. A transactional request or a one-off message has none before its sends are decided.
    fn commits_facts(&self, inputs: &[RequestAnnounced]) -> bool {
        inputs.iter().any(|input| input.kind == RequestKind::CampaignLaunch)
    }
}

impl Audience {
    /// A request that can never be handled must not be announced again: it is rejected in the ledger, and its message becomes a dead
    /// letter. If the ledger does not have what this program asks for, the request is not at fault: it stays accepted.
    async fn refuse(&self, input: &RequestAnnounced, error: StageError) -> Result<Vec<Publication>, StageError> {
        if !input.more.is_empty() {
            return self.handle_each(input).await;
        }
        if !matches!(&error, StageError::Ledger(error) if !runtime::db::is_about_data(error)) {
            reject(&self.pool, input, error.code()).await?;
        }
        Err(error)
    }

    /// Handles the batches of an array one by one, so that one of them that is poison costs itself only. After a rejection, the message
    /// becomes a dead letter, and a sweep announces the batches that were written.
    async fn handle_each(&self, input: &RequestAnnounced) -> Result<Vec<Publication>, StageError> {
        let (mut publications, mut refused) = (Vec::new(), None);
        for request_id in input.requests() {
            let one = RequestAnnounced { request_id, more: Vec::new(), count: None, is_bulk: true, ..input.clone() };
            match self.handle(slice::from_ref(&one)).await {
                Ok(of_one) => publications.extend(of_one),
                Err(error) if error.is_transient() => return Err(error),
                Err(error) => refused = Some(error),
            }
        }
        refused.map_or(Ok(publications), Err)
    }

    async fn handle_all(&self, inputs: &[RequestAnnounced]) -> Result<Vec<Publication>, StageError> {
        let (mut transactional, mut messages) = (Vec::new(), Vec::new());
        let mut publications = Vec::new();
        for input in inputs {
            match input.kind {
                RequestKind::CampaignLaunch => {
                    let next_range = campaign::launch(&self.pool, &self.pause_gate, input).await?;
                    self.launched.notify();
                    if next_range.is_none() {
                        self.launch_handled.notify();
                    }
                    publications.extend(next_range);
                }
                RequestKind::Transactional => transactional.push(input),
                RequestKind::Message => messages.push(input),
                // Not of this stage's subjects.
                RequestKind::Enrollment | RequestKind::Outcome => {
                    return Err(StageError::rejected("not_for_this_stage", input.kind));
                }
            }
        }
        if !messages.is_empty() {
            publications.extend(message::resolve(&self.by_key.priority(Self::NAME), &messages, self.reannounce).await?);
        }
        if !transactional.is_empty() {
            // An array is bulk work.
            let is_array = transactional.iter().any(|input| input.is_bulk || input.count() > 1);
            let lane = if is_array { Lane::Bulk } else { Lane::Priority };
            let by_key = self.by_key.of_lane(lane, Self::NAME);
            publications.extend(transactional::resolve(&by_key, &transactional, self.reannounce).await?);
            if is_array {
                self.launched.notify();
            }
        }
        Ok(publications)
    }
}

/// Rejects the requests of an announcement; for a transactional request, all requests of its future batch. Their product gets `email.failed` of
/// each recipient that is a contact; its id follows from the send.
async fn reject(pool: &PgPool, input: &RequestAnnounced, code: &str) -> Result<(), StageError> {
    let is_transactional = input.kind == RequestKind::Transactional;
    let range = |id: Uuid| if is_transactional { (SendId(id).batch(), SendId::last_of(id)) } else { (id, id) };
    let (firsts, lasts): (Vec<Uuid>, Vec<Uuid>) = input.requests().map(range).unzip();
    sqlx::query!(
        "with refused as (
             select r.id
             from unnest($2::uuid[], $3::uuid[]) as w (first, last)
             cross join lateral (
                 select r.id from requests r
                 where r.tenant_id = $1 and r.id between w.first and w.last and r.kind = $5 and r.state = 'accepted'
                 order by r.id
                 for update
             ) r
         ), rejected as (
             update requests r set state = 'rejected', outcome = $4::text, announce_after = null, handled_at = now()
             from refused
             where r.tenant_id = $1 and r.id = refused.id
             returning r.id, r.kind, r.payload, r.options
         ), failed as (
             select r.id as send_id, c.id as contact_id, 'transactional' as kind, r.payload ->> 'template_id' as template_id
             from rejected r
             join contacts c on c.tenant_id = $1 and c.address = r.payload ->> 'address'
             where r.kind = 'transactional'
             union all
             -- Its copies: the request has the id of the batch. The address of an erased copy is no contact's.
             select (left(r.id::text, 33) || lpad(to_hex(('x' || right(r.id::text, 3))::bit(12)::integer | o.place::integer), 3, '0'))::uuid,
                    c.id, 'transactional', r.payload ->> 'template_id'
             from rejected r
             cross join lateral jsonb_array_elements(r.options -> 'copies') with ordinality as o (copy, place)
             join contacts c on c.tenant_id = $1 and c.address = o.copy ->> 'address'
             where r.kind = 'transactional'
             union all
             select p.send_id, p.contact_id, 'one_off', null
             from rejected r
             join messages m on m.tenant_id = $1 and m.id = r.id and not m.is_test
             join message_recipients p on p.tenant_id = $1 and p.message_id = r.id
             where r.kind = 'message'
         )
         insert into notices (tenant_id, id, type, contact_id, subject_id, data)
         select $1, md5('email.failed ' || f.send_id)::uuid, 'email.failed', f.contact_id, f.send_id,
                jsonb_build_object('message_kind', f.kind, 'template_id', f.template_id, 'reason', $4::text)
         from failed f
         on conflict (tenant_id, id) do nothing",
        input.tenant_id,
        &firsts,
        &lasts,
        code,
        input.kind.as_str(),
    )
    .execute(pool)
    .await?;
    Ok(())
}
