//! Leases that ran out, and those of processes that are gone: what a crash left claimed is owed again, what it left fenced is in doubt.
//! The same rule puts back at once what a handler had claimed that panicked.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    time::Duration,
};

use async_trait::async_trait;
use chrono::NaiveDate;
use runner::{StageError, Sweep};
use schemas::{Classification, MessageKind, Rendered, SendId, SendState};
use sqlx::{Connection, PgConnection, PgPool};
use uuid::Uuid;

use crate::fence::{
    Ring, is_tried_again,
    session::Gone,
    sql::{self, BatchKey, CounterDelta, Totals},
};

/// What was in doubt is not tried again before this time: the process that tried it first may have the answer, and writes it as soon as
/// Postgres is back.
const LATE_ANSWER: Duration = Duration::from_secs(30);

/// The lease sweep.
pub struct Leases {
    pool: PgPool,
}

impl Leases {
    /// The sweep.
    #[must_use]
    pub fn new(pool: PgPool) -> Self {
        Self { pool }
    }
}

/// A batch whose lease is over, or with sends of a session that is gone.
struct Expired {
    tenant_id: Uuid,
    id: Uuid,
    month: NaiveDate,
    kind: MessageKind,
    classification: Classification,
}

#[async_trait]
impl Sweep for Leases {
    fn name(&self) -> &'static str {
        "leases"
    }

    fn interval(&self) -> Duration {
        Duration::from_secs(2)
    }

    fn rests(&self) -> bool {
        false
    }

    async fn sweep(&self) -> Result<u64, StageError> {
        let mut connection = self.pool.acquire().await?;
        let gone = Gone::find(&mut connection).await?;
        let (tenants, ids) = abandoned(&mut connection, &gone).await?;
        let mut tx = connection.begin().await?;
        let mut expired = sqlx::query_file_as!(Expired, "queries/claim/expired_leases.sql").fetch_all(&mut *tx).await?;
        if !ids.is_empty() {
            let more = sqlx::query_file_as!(Expired, "queries/claim/lock_abandoned.sql", &tenants, &ids);
            expired.extend(more.fetch_all(&mut *tx).await?);
        }
        expired.sort_by_key(|batch| (batch.tenant_id, batch.id));
        expired.dedup_by_key(|batch| (batch.tenant_id, batch.id));
        let found = end_all(&mut tx, expired, &gone, Ring::After(Duration::ZERO)).await?;
        tx.commit().await?;
        if found > 0 {
            tracing::warn!(
                stage = "delivery",
                sends = found,
                sessions = gone.first.len(),
                "leases ran out or their holders are gone; their sends go on"
            );
        }
        Ok(found)
    }
}

/// The batches with sends of sessions that are gone and that wait for nothing, some at a time. A session that has none left and of which
/// nothing more is to be expected is forgotten.
async fn abandoned(db: &mut PgConnection, gone: &Gone) -> sqlx::Result<(Vec<Uuid>, Vec<Uuid>)> {
    if gone.first.is_empty() {
        return Ok((Vec::new(), Vec::new()));
    }
    let (kinds, classifications) = never_again();
    let rows = sqlx::query_file!(
        "queries/claim/abandoned.sql",
        &gone.first,
        &gone.last,
        &gone.is_over,
        &kinds,
        &classifications
    )
    .fetch_all(&mut *db)
    .await?;
    if rows.is_empty() {
        gone.forget(db).await?;
    }
    Ok(rows.into_iter().map(|row| (row.tenant_id, row.id)).unzip())
}

/// Puts back at once what was claimed for these messages under this token and not fenced; answers how many sends. Their batches are
/// announced again as planned: a message that makes its handler panic each time must not go round in circles.
///
/// # Errors
/// When Postgres is away.
pub async fn release_claims(pool: &PgPool, inputs: &[Rendered], token: Uuid) -> Result<u64, StageError> {
    let holder = Gone { first: vec![token], last: vec![token], is_over: vec![false] };
    let keys: Vec<BatchKey> =
        inputs.iter().map(|input| (input.tenant_id, input.batch_id)).collect::<BTreeSet<_>>().into_iter().collect();
    let (tenants, ids): (Vec<Uuid>, Vec<Uuid>) = keys.iter().copied().unzip();
    let mut tx = pool.begin().await?;
    // The next statement skips what somebody else has locked.
    sql::lock_batches(&mut tx, &keys).await?;
    let batches =
        sqlx::query_file_as!(Expired, "queries/claim/lock_abandoned.sql", &tenants, &ids).fetch_all(&mut *tx).await?;
    let released = end_all(&mut tx, batches, &holder, Ring::AsPlanned).await?;
    tx.commit().await?;
    Ok(released)
}

/// Ends the leases in these batches, which are locked, that ran out or whose holders are gone; answers how many. `ring`: when batches of
/// claims that are put back are announced again.
async fn end_all(db: &mut PgConnection, batches: Vec<Expired>, gone: &Gone, ring: Ring) -> Result<u64, StageError> {
    let mut months: BTreeMap<NaiveDate, Vec<Expired>> = BTreeMap::new();
    for batch in batches {
        months.entry(batch.month).or_default().push(batch);
    }
    let (mut bookings, mut totals, mut found) = (BTreeMap::new(), Totals::new(), 0);
    for (month, batches) in &months {
        found += end_leases(db, *month, batches, (gone, ring), &mut bookings, &mut totals).await?;
    }
    sql::settle(db, &bookings).await?;
    sql::add_rollups(db, &totals, 0).await?;
    for batches in months.values() {
        let (tenants, ids, last) = keys(batches);
        sqlx::query_file!("queries/claim/renew_batch_leases.sql", &tenants, &ids, &last).execute(&mut *db).await?;
    }
    Ok(found)
}

/// Ends the leases of one month's batches; answers how many.
async fn end_leases(
    db: &mut PgConnection,
    month: NaiveDate,
    batches: &[Expired],
    (gone, ring): (&Gone, Ring),
    bookings: &mut BTreeMap<BatchKey, CounterDelta>,
    totals: &mut Totals,
) -> Result<u64, StageError> {
    let by_id: HashMap<Uuid, &Expired> = batches.iter().map(|batch| (batch.id, batch)).collect();
    let (tenants, ids, last) = keys(batches);
    let again: Vec<bool> = batches.iter().map(|batch| is_tried_again(batch.kind, batch.classification)).collect();
    let released =
        sqlx::query_file!("queries/claim/release_claimed.sql", &tenants, &ids, &last, month, &gone.first, &gone.last)
            .fetch_all(&mut *db)
            .await?;
    let (over_first, over_last) = gone.over();
    let doubted = sqlx::query_file!(
        "queries/claim/doubt_fenced.sql",
        &tenants,
        &ids,
        &last,
        month,
        &again,
        &over_first,
        &over_last
    )
    .fetch_all(&mut *db)
    .await?;
    let moved = released
        .iter()
        .map(|row| (row.id, SendState::Claimed, SendState::Queued))
        .chain(doubted.iter().map(|row| (row.id, SendState::Fenced, row.state)));
    let mut found = 0;
    for (id, from, to) in moved {
        let Some(batch) = by_id.get(&SendId(id).batch()) else { continue };
        let booking = bookings.entry((batch.tenant_id, batch.id)).or_default();
        booking.moved(from, to);
        let is_tried_once_more = (from, to) == (SendState::Fenced, SendState::Queued);
        booking.ring(if is_tried_once_more { Ring::After(LATE_ANSWER) } else { ring });
        if to == SendState::Unknown {
            *totals.entry((batch.tenant_id, batch.kind.as_str(), "unknown")).or_default() += 1;
        }
        found += 1;
    }
    Ok(found)
}

/// The kinds and classifications of what is not tried again at the first doubt, as the columns of an `unnest`.
fn never_again() -> (Vec<String>, Vec<String>) {
    let all = MessageKind::ALL.iter().flat_map(|kind| Classification::ALL.iter().map(|class| (*kind, *class)));
    all.filter(|(kind, class)| !is_tried_again(*kind, *class))
        .map(|(kind, class)| (kind.to_string(), class.to_string()))
        .unzip()
}

fn keys(batches: &[Expired]) -> (Vec<Uuid>, Vec<Uuid>, Vec<Uuid>) {
    let tenants = batches.iter().map(|batch| batch.tenant_id).collect();
    let ids: Vec<Uuid> = batches.iter().map(|batch| batch.id).collect();
    let last = ids.iter().map(|id| SendId::last_of(*id)).collect();
    (tenants, ids, last)
}
