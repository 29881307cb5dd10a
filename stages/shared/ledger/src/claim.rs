//! The claim: one transaction per group of messages, set-based.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use chrono::{NaiveDate, Utc};
use runner::StageError;
use runtime::{db::BEGIN_ASYNC_COMMIT, plans::PreparedPool};
use schemas::{
    CampaignStatus, Classification, DomainStatus, Environment, Lane, MessageKind, OnMiss, Rendered, SendId, SendState,
};
use sqlx::{PgConnection, PgPool};
use uuid::Uuid;

use crate::fence::{
    Answer, BatchContext, BatchEligibility, Change, ClaimedSend, GateDecision, NextAnnouncement, TENANT_PAUSED_WAIT,
    sql::{self, CounterDelta},
    until_tomorrow,
};
use crate::hours::BatchKey;
use crate::schedule::RetryDeadline;
use crate::warmup::{self, DomainKey, WarmupPermits, WarmupState};

/// Wait before a send is tried again that found all warm-up permits of its domain taken.
const PERMIT_WAIT: Duration = Duration::from_secs(5);

/// A claimed send, and where its rendered parts are.
#[derive(Debug)]
pub struct ClaimedRecipient {
    /// The send.
    pub send: ClaimedSend,
    /// Index of the message.
    pub input: usize,
    /// Index of the recipient in it.
    pub recipient: usize,
}

/// The result of a claim.
#[derive(Debug, Default)]
pub struct Claimed {
    /// Claimed, in the order of their batches.
    pub sendable: Vec<ClaimedRecipient>,
    /// Changes of claimed sends that are not to be sent; the caller records them.
    pub withheld: Vec<Change>,
}

/// A batch as the claim found it.
struct Found {
    context: Arc<BatchContext>,
    eligibility: BatchEligibility,
}

/// Claims the owed sends of these messages, under this token and lease. Batches of cancelled campaigns are left to the sweep that ends
/// them; those of paused campaigns go back to waiting; those of paused tenants are announced again, and compliance sets them aside.
///
/// # Errors
/// Rejects messages of batches that do not exist; otherwise the ledger's own.
pub async fn claim(
    by_key: &PreparedPool,
    inputs: &[Rendered],
    (token, lease): (Uuid, Duration),
    warm: &WarmupPermits,
) -> Result<Claimed, StageError> {
    // The claim may be lost in a crash of Postgres: nothing was sent under it then.
    let mut tx = by_key.begin_with(BEGIN_ASYNC_COMMIT).await?;
    let batches = find_batches(&mut tx, inputs).await?;
    let mut deltas: BTreeMap<BatchKey, CounterDelta> = BTreeMap::new();
    let mut asked: BTreeMap<NaiveDate, Vec<(Uuid, Uuid)>> = BTreeMap::new();
    let mut places: HashMap<Uuid, (usize, usize)> = HashMap::new();
    for (number, input) in inputs.iter().enumerate() {
        let found = batches
            .get(&(input.tenant_id, input.batch_id))
            .ok_or_else(|| StageError::rejected("unknown_batch", input.batch_id))?;
        match found.eligibility.decide() {
            GateDecision::Cancel => continue,
            GateDecision::Paused => {
                deltas.entry((input.tenant_id, input.batch_id)).or_default().announce(NextAnnouncement::OnDispatch);
                continue;
            }
            GateDecision::TenantPaused => {
                deltas
                    .entry((input.tenant_id, input.batch_id))
                    .or_default()
                    .announce(NextAnnouncement::After(TENANT_PAUSED_WAIT));
                continue;
            }
            GateDecision::Pass | GateDecision::Skip(_) => {}
        }
        for (position, recipient) in input.recipients.iter().enumerate() {
            let id = SendId::of(input.batch_id, recipient.ordinal).0;
            places.insert(id, (number, position));
            asked.entry(found.context.month).or_default().push((input.tenant_id, id));
        }
    }
    let warmups = find_warmups(&mut tx, &batches).await?;
    let mut claimed = Claimed::default();
    for (month, mut sends) in asked {
        sends.sort_unstable_by_key(|(_, id)| *id);
        let (tenants, ids): (Vec<Uuid>, Vec<Uuid>) = sends.into_iter().unzip();
        let rows = sqlx::query_file!("queries/claim/claim.sql", &tenants, &ids, month, token, lease.as_secs_f64())
            .fetch_all(&mut *tx)
            .await?;
        for row in rows {
            let Some(&(input, recipient)) = places.get(&row.id) else { continue };
            let key = (inputs[input].tenant_id, inputs[input].batch_id);
            let Some(found) = batches.get(&key) else { continue };
            let delta = deltas.entry(key).or_default();
            delta.moved(if row.was_deferred { SendState::Deferred } else { SendState::Queued }, SendState::Claimed);
            delta.lease(lease.as_secs_f64());
            let send = ClaimedSend {
                id: row.id,
                contact_id: row.contact_id,
                token,
                attempt: row.attempts,
                doubtful: row.doubtful,
                metered_on: row.metered_on,
                was_deferred: row.was_deferred,
                _permit: None,
                batch: found.context.clone(),
            };
            let state = send.warming().and_then(|domain| warmups.get(&domain));
            let withheld = withheld(&send, &found.eligibility).map(Box::new);
            match withheld.map_or_else(|| warming(send, state, warm), Err) {
                Ok(send) => claimed.sendable.push(ClaimedRecipient { send, input, recipient }),
                Err(change) => claimed.withheld.push(*change),
            }
        }
    }
    sql::move_counters(&mut tx, &deltas).await?;
    tx.commit().await?;
    // In the order of the batch: contacts that stand together are locked together.
    claimed.sendable.sort_by_key(|sendable| sendable.send.id);
    Ok(claimed)
}

/// The warm-ups of the batches' domains, read without a lock: the fence enforces them.
async fn find_warmups(
    db: &mut PgConnection,
    batches: &HashMap<BatchKey, Found>,
) -> sqlx::Result<HashMap<DomainKey, WarmupState>> {
    let domains: BTreeSet<DomainKey> =
        batches.values().filter_map(|found| Some((found.context.tenant_id, found.context.warming?))).collect();
    if domains.is_empty() {
        return Ok(HashMap::new());
    }
    let states = warmup::load_states(db, &domains.into_iter().collect::<Vec<_>>()).await?;
    Ok(states.into_iter().map(|state| ((state.tenant_id, state.domain_id), state)).collect())
}

/// A campaign's send of a domain in warm-up gets a permit under today's cap, or waits: until tomorrow when nothing is left, else for a
/// moment, because a permit may be given back unused.
fn warming(
    send: ClaimedSend,
    state: Option<&WarmupState>,
    permits: &WarmupPermits,
) -> Result<ClaimedSend, Box<Change>> {
    let counts = send.batch.kind == MessageKind::Campaign && send.metered_on.is_none();
    let remaining = state.filter(|_| counts).and_then(|state| Some((state.today, state.remaining()?)));
    let (Some((today, remaining)), Some(domain)) = (remaining, send.warming()) else { return Ok(send) };
    match permits.take(domain, remaining) {
        Some(permit) => Ok(ClaimedSend { _permit: Some(Arc::new(permit)), ..send }),
        None if remaining == 0 => Err(Box::new(until_tomorrow(send, today))),
        None => Err(Box::new(Change::waiting(send, "warmup", PERMIT_WAIT))),
    }
}

/// The change of a claimed send that must not be sent.
fn withheld(send: &ClaimedSend, eligibility: &BatchEligibility) -> Option<Change> {
    if let GateDecision::Skip(reason) = eligibility.decide() {
        return Some(Change::skipped(send.clone(), reason));
    }
    let age = (Utc::now() - send.batch.created_at).to_std().unwrap_or_default();
    let deadline = retry_deadline(send.batch.kind);
    // Yesterday's password reset is of no use. A campaign may be paused for days, so its deadline counts from attempts.
    (deadline == RetryDeadline::Prompt && age >= deadline.limit())
        .then(|| Change::expired(send.clone(), SendState::Claimed, "expired", Answer::default()))
}

/// The retry deadline of a kind of message.
pub fn retry_deadline(kind: MessageKind) -> RetryDeadline {
    match kind {
        MessageKind::Campaign => RetryDeadline::Bulk,
        MessageKind::Sequence | MessageKind::Transactional | MessageKind::OneOff => RetryDeadline::Prompt,
    }
}

async fn find_batches(db: &mut PgConnection, inputs: &[Rendered]) -> sqlx::Result<HashMap<BatchKey, Found>> {
    let (tenants, ids) = distinct_batches(inputs.iter());
    let rows = sqlx::query_file!("queries/claim/claim_batches.sql", &tenants, &ids).fetch_all(db).await?;
    let found = rows.into_iter().map(|row| {
        let context = BatchContext {
            tenant_id: row.tenant_id,
            batch_id: row.id,
            month: row.month,
            kind: row.kind,
            lane: row.lane,
            classification: row.classification,
            sandbox: row.environment == Environment::Sandbox,
            warming: row.warming.filter(|_| row.environment == Environment::Production),
            created_at: row.created_at,
        };
        let eligibility = BatchEligibility {
            campaign: row.campaign_status,
            paused: row.paused,
            missed: row.missed,
            tenant_active: row.tenant_status == "active",
            tenant_paused: row.tenant_paused,
            sender_active: row.sender_status == "active",
            domain: row.domain_status,
        };
        ((row.tenant_id, row.id), Found { context: Arc::new(context), eligibility })
    });
    Ok(found.collect())
}

fn distinct_batches<'a>(inputs: impl Iterator<Item = &'a Rendered>) -> (Vec<Uuid>, Vec<Uuid>) {
    let mut keys: Vec<BatchKey> = inputs.map(|input| (input.tenant_id, input.batch_id)).collect();
    keys.sort_unstable();
    keys.dedup();
    keys.into_iter().unzip()
}

/// The circuit breaker of their route is open: nothing is claimed, and the batches are announced again after `wait`.
pub async fn postpone(pool: &PgPool, inputs: &[&Rendered], wait: Duration) -> Result<(), StageError> {
    let (tenants, ids) = distinct_batches(inputs.iter().copied());
    sqlx::query_file!("queries/claim/postpone.sql", &tenants, &ids, wait.as_secs_f64()).execute(pool).await?;
    Ok(())
}
