//! The owed sends of a group of messages: read without locks and without writes. Nothing is taken by reading: of several workers that
//! read the same send, the fence lets one pass.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use chrono::{DateTime, NaiveDate, Utc};
use runner::StageError;
use runtime::plans::PreparedPool;
use schemas::{
    CampaignStatus, Classification, DomainStatus, Environment, Lane, MessageKind, OnMiss, Rendered, SendId, SendState,
};
use sqlx::{PgConnection, PgPool};
use uuid::Uuid;

use crate::fence::{Answer, BatchContext, BatchEligibility, Change, GateDecision, SendAttempt, until_tomorrow};
use crate::gate::{WARMUP, batch_eligibility};
use crate::hours::BatchKey;
use crate::schedule::RetryDeadline;
use crate::warmup::{self, DomainKey, WarmupPermits, WarmupState};

/// Wait before a send is tried again that found all warm-up permits of its domain taken.
const PERMIT_WAIT: Duration = Duration::from_secs(5);

/// The last attempt of mail that was tried before is due exactly at its retry deadline, and is made a little later. Its answer ends the
/// mail.
const LAST_ATTEMPT_GRACE: Duration = Duration::from_secs(60 * 60);

/// An attempt to make, and where its rendered parts are.
#[derive(Debug)]
pub struct DueAttempt {
    /// The send.
    pub send: SendAttempt,
    /// Index of the message.
    pub input: usize,
    /// Index of the recipient in it.
    pub recipient: usize,
}

/// The attempts at the owed sends of some messages.
#[derive(Debug, Default)]
pub struct DueAttempts {
    /// Those to be sent, in the order of their batches.
    pub sendable: Vec<DueAttempt>,
    /// Changes of those that are not to be sent; the caller records them.
    pub withheld: Vec<Change>,
}

/// A batch as it was read.
struct Found {
    context: Arc<BatchContext>,
    /// The time it waited for, if it did.
    due_at: Option<DateTime<Utc>>,
    eligibility: BatchEligibility,
}

/// Reads the owed sends of these messages; `token` is for their fences. Batches of cancelled campaigns are left to the sweep that ends
/// them; those of paused campaigns go back to waiting; those of paused tenants are announced again, and compliance sets them aside.
///
/// # Errors
/// Rejects messages of batches that do not exist; otherwise the ledger's own.
pub async fn find_owed(
    by_key: &PreparedPool,
    inputs: &[Rendered],
    token: Uuid,
    warm: &WarmupPermits,
) -> Result<DueAttempts, StageError> {
    let mut db = by_key.take().await?;
    let batches = find_batches(&mut db, inputs).await?;
    let mut asked: BTreeMap<NaiveDate, Vec<(Uuid, Uuid)>> = BTreeMap::new();
    let mut places: HashMap<Uuid, (usize, usize)> = HashMap::new();
    for (number, input) in inputs.iter().enumerate() {
        let found = batches
            .get(&(input.tenant_id, input.batch_id))
            .ok_or_else(|| StageError::rejected("unknown_batch", input.batch_id))?;
        if found.eligibility.decide() == GateDecision::Cancel {
            continue;
        }
        for (position, recipient) in input.recipients.iter().enumerate() {
            let id = SendId::of(input.batch_id, recipient.ordinal).0;
            if places.insert(id, (number, position)).is_none() {
                asked.entry(found.context.month).or_default().push((input.tenant_id, id));
            }
        }
    }
    let warmups = find_warmups(&mut db, &batches).await?;
    let mut owed = DueAttempts::default();
    for (month, sends) in asked {
        let (tenants, ids): (Vec<Uuid>, Vec<Uuid>) = sends.into_iter().unzip();
        let rows = sqlx::query_file!("queries/owed/find_sends.sql", &tenants, &ids, month).fetch_all(&mut *db).await?;
        for row in rows {
            let Some(&(input, recipient)) = places.get(&row.id) else { continue };
            let Some(found) = batches.get(&(inputs[input].tenant_id, inputs[input].batch_id)) else { continue };
            let send = SendAttempt {
                id: row.id,
                contact_id: row.contact_id,
                token,
                state: if row.is_deferred { SendState::Deferred } else { SendState::Queued },
                attempt: row.attempts + 1,
                doubtful: row.doubtful,
                route: row.route,
                metered_on: row.metered_on,
                // Mail that may be repeated has the same bytes in each attempt.
                due_at: match found.context.classification {
                    Classification::Marketing => row.due_at.max(found.due_at),
                    Classification::Operational | Classification::Transactional => found.due_at,
                },
                _permit: None,
                batch: found.context.clone(),
            };
            let state = send.warming().and_then(|domain| warmups.get(&domain));
            let withheld = withheld(&send, &found.eligibility).map(Box::new);
            match withheld.map_or_else(|| warming(send, state, warm), Err) {
                Ok(send) => owed.sendable.push(DueAttempt { send, input, recipient }),
                Err(change) => owed.withheld.push(*change),
            }
        }
    }
    db.put_back();
    // In the order of the batch: contacts that stand together are locked together.
    owed.sendable.sort_by_key(|sendable| sendable.send.id);
    Ok(owed)
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
    send: SendAttempt,
    state: Option<&WarmupState>,
    permits: &WarmupPermits,
) -> Result<SendAttempt, Box<Change>> {
    let counts = send.batch.kind == MessageKind::Campaign && send.metered_on.is_none();
    let remaining = state.filter(|_| counts).and_then(|state| Some((state.today, state.remaining()?)));
    let (Some((today, remaining)), Some(domain)) = (remaining, send.warming()) else { return Ok(send) };
    match permits.take(domain, remaining) {
        Some(permit) => Ok(SendAttempt { _permit: Some(Arc::new(permit)), ..send }),
        None if remaining == 0 => Err(Box::new(until_tomorrow(send, today))),
        None => Err(Box::new(Change::waiting(send, WARMUP, PERMIT_WAIT))),
    }
}

/// The change of an owed send that must not be sent.
fn withheld(send: &SendAttempt, eligibility: &BatchEligibility) -> Option<Change> {
    match eligibility.decide() {
        GateDecision::Skip(reason) => return Some(Change::skipped(send.clone(), reason)),
        GateDecision::Paused => return Some(Change::campaign_paused(send.clone())),
        GateDecision::TenantPaused => return Some(Change::tenant_paused(send.clone())),
        GateDecision::Pass | GateDecision::Cancel | GateDecision::Wait(_) => {}
    }
    let deadline = retry_deadline(send.batch.kind);
    let grace = if send.attempt > 1 { LAST_ATTEMPT_GRACE } else { Duration::ZERO };
    // Yesterday's password reset is of no use. A campaign may be paused for days, and a sequence's mail wait for room under the frequency
    // cap, so their deadline counts from attempts.
    (deadline == RetryDeadline::Prompt && send.batch.age() >= deadline.limit() + grace)
        .then(|| Change::expired(send.clone(), "expired", Answer::default()))
}

/// The retry deadline of a kind of message.
pub fn retry_deadline(kind: MessageKind) -> RetryDeadline {
    match kind {
        MessageKind::Campaign | MessageKind::Sequence => RetryDeadline::Bulk,
        MessageKind::Transactional | MessageKind::OneOff | MessageKind::Test => RetryDeadline::Prompt,
    }
}

async fn find_batches(db: &mut PgConnection, inputs: &[Rendered]) -> sqlx::Result<HashMap<BatchKey, Found>> {
    let (tenants, ids) = distinct_batches(inputs.iter());
    let rows = sqlx::query_file!("queries/owed/find_batches.sql", &tenants, &ids).fetch_all(db).await?;
    let found = rows.into_iter().map(|row| {
        let eligibility = batch_eligibility!(row);
        let context = BatchContext {
            tenant_id: row.tenant_id,
            batch_id: row.id,
            month: row.month,
            kind: row.kind,
            lane: row.lane,
            classification: row.classification,
            sandbox: row.environment == Environment::Sandbox,
            warming: row.warming.filter(|_| row.environment == Environment::Production),
            has_fallback: row.has_fallback,
            created_at: row.created_at,
            quiet_length: eligibility.quiet.map(|rule| rule.hours.length()).unwrap_or_default(),
        };
        ((row.tenant_id, row.id), Found { context: Arc::new(context), due_at: row.due_at, eligibility })
    });
    Ok(found.collect())
}

fn distinct_batches<'a>(inputs: impl Iterator<Item = &'a Rendered>) -> (Vec<Uuid>, Vec<Uuid>) {
    let mut keys: Vec<BatchKey> = inputs.map(|input| (input.tenant_id, input.batch_id)).collect();
    keys.sort_unstable();
    keys.dedup();
    keys.into_iter().unzip()
}

/// The circuit breaker of their route is open: nothing is read, and the batches are announced again after `wait`.
pub async fn postpone(pool: &PgPool, inputs: &[&Rendered], wait: Duration) -> Result<(), StageError> {
    let (tenants, ids) = distinct_batches(inputs.iter().copied());
    sqlx::query_file!("queries/owed/postpone.sql", &tenants, &ids, wait.as_secs_f64()).execute(pool).await?;
    Ok(())
}
