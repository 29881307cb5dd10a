//! The owed sends of a group of messages: read without locks and without writes. Nothing is taken by reading: of several workers that
//! read the same send, the fence lets one pass.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use chrono::{DateTime, NaiveDate, Utc};
use runner::StageError;
use runtime::{column, plans::PreparedPool};
use schemas::{
    CampaignStatus, Classification, DomainStatus, Environment, Lane, MessageKind, OnMiss, Rendered, SendId, SendState,
    month_of,
};
use sqlx::{PgConnection, PgPool};
use uuid::Uuid;

use crate::fence::{Answer, BatchContext, Change, GateDecision, SendAttempt, until_tomorrow};
use crate::gate::{BatchEligibility, WARMUP, batch_eligibility};
use crate::hours::BatchKey;
use crate::schedule::RetryDeadline;
use crate::warmup::{self, DomainKey, WarmupPermits, WarmupState};

/// Wait before a send is tried again that found all warm-up permits of its domain taken.
const PERMIT_WAIT: Duration = Duration::from_secs(5);

/// The last attempt of mail that was tried before is due exactly at its retry deadline, and is made a little later. Its answer ends the
/// mail. Mail that waited past its deadline for something else has no such attempt.
const LAST_ATTEMPT_GRACE: Duration = Duration::from_secs(60 * 60);
/// How much later than the deadline the last attempt may be due: its wait is counted from the commit of the answer before.
const LAST_ATTEMPT_SLACK: Duration = Duration::from_secs(60);
/// The reason of sends that come too late for their retry deadline, and of open ones whose month is over.
pub(crate) const EXPIRED: &str = "expired";

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
    eligibility: BatchEligibility,
    /// The attempts at its owed sends, each with when it was due if it was deferred.
    attempts: Vec<(SendAttempt, Option<DateTime<Utc>>)>,
}

impl Found {
    fn key(&self) -> BatchKey {
        (self.context.tenant_id, self.context.batch_id)
    }
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
    let mut asked: BTreeMap<NaiveDate, Vec<(BatchKey, Uuid)>> = BTreeMap::new();
    let mut places: HashMap<Uuid, (usize, usize)> = HashMap::new();
    for (number, input) in inputs.iter().enumerate() {
        for (position, recipient) in input.recipients.iter().enumerate() {
            let id = SendId::of(input.batch_id, recipient.ordinal).0;
            if places.insert(id, (number, position)).is_none() {
                let batch = (input.tenant_id, input.batch_id);
                asked.entry(month_of(input.batch_id)).or_default().push((batch, id));
            }
        }
    }
    let mut db = by_key.take().await?;
    let mut batches = Vec::new();
    for (month, sends) in &asked {
        batches.extend(find_batches(&mut db, *month, sends, token).await?);
    }
    let known: HashSet<BatchKey> = batches.iter().map(Found::key).collect();
    if let Some(((_, unknown), _)) = asked.values().flatten().find(|(batch, _)| !known.contains(batch)) {
        return Err(StageError::rejected("unknown_batch", unknown));
    }
    let warmups = find_warmups(&mut db, &batches).await?;
    let mut owed = DueAttempts::default();
    for Found { eligibility, attempts, .. } in batches {
        if eligibility.decide() == GateDecision::Cancel {
            continue;
        }
        for (send, due_at) in attempts {
            let Some(&(input, recipient)) = places.get(&send.id) else { continue };
            let state = send.warming().and_then(|domain| warmups.get(&domain));
            let withheld = withheld(&send, due_at, &eligibility).map(Box::new);
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
async fn find_warmups(db: &mut PgConnection, batches: &[Found]) -> sqlx::Result<HashMap<DomainKey, WarmupState>> {
    let domains: BTreeSet<DomainKey> =
        batches.iter().filter_map(|found| Some((found.context.tenant_id, found.context.warming?))).collect();
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

/// The change of an owed send that must not be sent. `due_at`: when it was due, if it was deferred.
fn withheld(send: &SendAttempt, due_at: Option<DateTime<Utc>>, eligibility: &BatchEligibility) -> Option<Change> {
    match eligibility.decide() {
        GateDecision::Pass => {}
        stopped => return Some(Change::decided(send.clone(), stopped, Utc::now())),
    }
    let deadline = retry_deadline(send.batch.kind);
    let was_due = |at| send.batch.age_at(at) <= deadline.limit() + LAST_ATTEMPT_SLACK;
    let grace = if send.attempt > 1 && due_at.is_some_and(was_due) { LAST_ATTEMPT_GRACE } else { Duration::ZERO };
    // Yesterday's password reset is of no use. A campaign may be paused for days, and a sequence's mail wait for room under the frequency
    // cap, so their deadline counts from attempts.
    (deadline == RetryDeadline::Prompt && send.batch.age() >= deadline.limit() + grace)
        .then(|| Change::expired(send.clone(), EXPIRED, Answer::default()))
}

/// The retry deadline of a kind of message.
pub fn retry_deadline(kind: MessageKind) -> RetryDeadline {
    match kind {
        MessageKind::Campaign | MessageKind::Sequence => RetryDeadline::Bulk,
        MessageKind::Transactional | MessageKind::OneOff | MessageKind::Test => RetryDeadline::Prompt,
    }
}

/// The batches of these sends, which are of one month, with the attempts at those of them that are owed.
async fn find_batches(
    db: &mut PgConnection,
    month: NaiveDate,
    sends: &[(BatchKey, Uuid)],
    token: Uuid,
) -> sqlx::Result<Vec<Found>> {
    let rows = sqlx::query_file!(
        "queries/owed/find_owed.sql",
        &column(sends, |((tenant, _), _)| *tenant),
        &column(sends, |((_, batch), _)| *batch),
        &column(sends, |(_, send)| *send),
        month
    )
    .fetch_all(db)
    .await?;
    let found = rows.into_iter().map(|row| {
        let eligibility = batch_eligibility!(row);
        let context = Arc::new(BatchContext {
            tenant_id: row.tenant_id,
            batch_id: row.id,
            month,
            kind: row.kind,
            lane: row.lane,
            classification: row.classification,
            sandbox: row.environment == Environment::Sandbox,
            warming: row.warming.filter(|_| row.environment == Environment::Production),
            has_fallback: row.has_fallback,
            created_at: row.created_at,
            quiet_length: eligibility.quiet.map(|rule| rule.hours.length()).unwrap_or_default(),
        });
        let attempt = |(index, id): (usize, &Uuid)| SendAttempt {
            id: *id,
            contact_id: row.contact_ids[index],
            token,
            state: if row.deferred[index] { SendState::Deferred } else { SendState::Queued },
            attempt: row.attempts[index] + 1,
            doubtful: row.doubtful[index],
            route: row.routes[index],
            provider: None,
            provider_before: row.providers[index].clone(),
            metered_on: row.metered_on[index],
            counts: false,
            // Mail that may be repeated has the same bytes in each attempt.
            due_at: match row.classification {
                Classification::Marketing => row.sends_due_at[index].max(row.due_at),
                Classification::Operational | Classification::Transactional => row.due_at,
            },
            _permit: None,
            batch: Arc::clone(&context),
        };
        let due_at = row.sends_due_at.iter().copied();
        let attempts = row.send_ids.iter().enumerate().map(attempt).zip(due_at).collect();
        Found { context, eligibility, attempts }
    });
    Ok(found.collect())
}

/// Postpones a batch for a day, because each process that worked on it ended. Neither the sweep nor dispatch announces it meanwhile, and it
/// counts neither as under way (`is_set_aside`) nor in its campaign's pace. After that day it waits for dispatch, as a batch does after
/// three announcements in vain. Its dead letter is for a person.
pub async fn set_aside(by_key: &PreparedPool, tenant: Uuid, batch: Uuid) -> Result<(), StageError> {
    let mut db = by_key.take().await?;
    sqlx::query!(
        "update batches set state = 'announced', announce_after = now() + interval '1 day', quiet_at = now() + interval '1 day',
                            dispatched_sends = null, announcement = greatest(announcement, 3)
         where tenant_id = $1 and id = $2 and state in ('announced', 'waiting')",
        tenant,
        batch
    )
    .execute(&mut *db)
    .await?;
    db.put_back();
    Ok(())
}

/// These batches cannot go on now: nothing is read of them, and they are announced again after `wait`.
pub async fn postpone(
    pool: &PgPool,
    batches: impl IntoIterator<Item = BatchKey>,
    wait: Duration,
) -> Result<(), StageError> {
    let keys: BTreeSet<BatchKey> = batches.into_iter().collect();
    let (tenants, ids): (Vec<Uuid>, Vec<Uuid>) = keys.into_iter().unzip();
    sqlx::query_file!("queries/owed/postpone.sql", &tenants, &ids, wait.as_secs_f64()).execute(pool).await?;
    Ok(())
}
