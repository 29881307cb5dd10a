//! Expired leases of fenced sends, and those of processes that are gone: the sends become unknown or are tried once more.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use async_trait::async_trait;
use chrono::NaiveDate;
use runner::{StageError, Sweep, SweepSchedule};
use runtime::{Counter, column, plans::PreparedPool};
use schemas::{Classification, Lane, MessageKind, SendId, SendState};
use sqlx::PgConnection;
use uuid::Uuid;

use crate::counters::{self, CounterDelta, Totals, UsageTotals};
use crate::facts::{self, SendKey};
use crate::fence::{NextAnnouncement, is_tried_again, session::GoneSessions};
use crate::hours::BatchKey;

/// An unknown send is not tried again before this time: the process that tried it first may have the answer, and writes it as soon as
/// Postgres is back.
const LATE_ANSWER: Duration = Duration::from_secs(30);

/// Postgres must have served a process for this long before its sweep ends the sends of silent sessions. After an outage of Postgres all
/// sessions are silent, and those that live renew within seconds; what they have to write is more exact than `unknown`.
pub const SERVED_BEFORE: Duration = Duration::from_secs(15);

/// Every which run reads the batches of all states: one a minute. The others read announced batches alone, because sends are fenced in these.
/// A batch that waits has a fenced send only if its campaign was paused meanwhile, or if a worker had an old message of it, and a slow campaign
/// has a hundred thousand batches that wait.
const ALL_STATES_EVERY: u32 = 30;

/// The reason of a send whose outcome is unknown because its lease is over.
const LEASE_OVER: &str = "lease_over";

/// The lease sweep.
pub struct ExpireLeases {
    by_key: PreparedPool,
    served_before: Duration,
    served: Mutex<Option<Served>>,
    /// Finished runs, for [`ALL_STATES_EVERY`].
    runs: AtomicU32,
}

/// The time in which Postgres has served this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Served {
    since: Instant,
    until: Instant,
}

impl Served {
    /// The time with this run of the sweep. It begins anew after a gap of `gap`.
    fn extended(known: Option<Self>, now: Instant, gap: Duration) -> Self {
        let known = known.filter(|known| now.saturating_duration_since(known.until) < gap);
        Self { since: known.map_or(now, |known| known.since), until: now }
    }

    fn length(self) -> Duration {
        self.until.saturating_duration_since(self.since)
    }
}

impl ExpireLeases {
    /// The sweep. `served_before`: [`SERVED_BEFORE`], except in tests.
    #[must_use]
    pub fn new(by_key: &PreparedPool, served_before: Duration) -> Self {
        Self { by_key: by_key.priority("leases"), served_before, served: Mutex::default(), runs: AtomicU32::new(0) }
    }

    /// True if Postgres has served this process, also just now, for long enough that a silent session is gone.
    fn has_served(&self) -> bool {
        // Plain fields: nothing a panic could leave half done.
        let mut served = self.served.lock().unwrap_or_else(PoisonError::into_inner);
        let extended = Served::extended(*served, Instant::now(), self.served_before);
        *served = Some(extended);
        extended.length() >= self.served_before
    }
}

/// A batch with an expired lease, or with sends of a session that is gone.
struct Expired {
    tenant_id: Uuid,
    id: Uuid,
    month: NaiveDate,
    lane: Lane,
    kind: MessageKind,
    classification: Classification,
    has_fallback: bool,
}

#[async_trait]
impl Sweep for ExpireLeases {
    fn schedule(&self) -> SweepSchedule {
        SweepSchedule::every("expire_leases", Duration::from_secs(2)).also_when_paused()
    }

    async fn sweep(&self) -> Result<u64, StageError> {
        let mut tx = self.by_key.begin().await?;
        let gone = GoneSessions::find(&mut tx).await?;
        let gone = if self.has_served() { gone } else { GoneSessions::default() };
        let (tenants, ids) = abandoned(&mut tx, &gone).await?;
        let all_states = self.runs.load(Ordering::Relaxed).is_multiple_of(ALL_STATES_EVERY);
        let states: &[&str] =
            if all_states { &["held", "timed", "waiting", "announced", "resting"] } else { &["announced"] };
        let mut expired = sqlx::query_file_as!(Expired, "queries/leases/expired_leases.sql", states as &[&str])
            .fetch_all(&mut *tx)
            .await?;
        if !ids.is_empty() {
            let more = sqlx::query_file_as!(Expired, "queries/leases/lock_abandoned.sql", &tenants, &ids);
            expired.extend(more.fetch_all(&mut *tx).await?);
        }
        expired.sort_by_key(|batch| (batch.tenant_id, batch.id));
        expired.dedup_by_key(|batch| (batch.tenant_id, batch.id));
        let (found, unknown) = end_leases(&mut tx, &expired, &gone).await?;
        tx.commit().await?;
        for (lane, sends) in unknown {
            Counter::SendsTotal.add(sends, [("lane", lane), ("state", SendState::Unknown.as_str())]);
        }
        // What was found may not be all there is: then the next run reads all states, too.
        if !all_states || found == 0 {
            self.runs.fetch_add(1, Ordering::Relaxed);
        }
        if found > 0 {
            tracing::warn!(
                stage = "delivery",
                sends = found,
                sessions = gone.first.len(),
                "leases expired or their processes are gone; their sends continue"
            );
        }
        Ok(found)
    }
}

/// Some batches with sends of sessions that are gone. A session without sends, from which no more writes can come, is deleted.
async fn abandoned(db: &mut PgConnection, gone: &GoneSessions) -> sqlx::Result<(Vec<Uuid>, Vec<Uuid>)> {
    if gone.first.is_empty() {
        return Ok((Vec::new(), Vec::new()));
    }
    let (kinds, classifications) = never_again();
    let rows = sqlx::query_file!("queries/leases/abandoned.sql", &gone.first, &gone.last, &kinds, &classifications)
        .fetch_all(&mut *db)
        .await?;
    if rows.is_empty() {
        gone.delete(db).await?;
    }
    Ok(rows.into_iter().map(|row| (row.tenant_id, row.id)).unzip())
}

/// Ends expired leases in these batches, which are locked, and those whose sessions are gone; answers how many, and the sends that became
/// unknown, by lane.
async fn end_leases(
    db: &mut PgConnection,
    batches: &[Expired],
    gone: &GoneSessions,
) -> sqlx::Result<(u64, HashMap<&'static str, u64>)> {
    let mut unknown: HashMap<&'static str, u64> = HashMap::new();
    if batches.is_empty() {
        return Ok((0, unknown));
    }
    let (tenants, ids) = (column(batches, |batch| batch.tenant_id), column(batches, |batch| batch.id));
    let doubted = sqlx::query_file!(
        "queries/leases/doubt_fenced.sql",
        &tenants,
        &ids,
        &column(batches, |batch| batch.month),
        &column(batches, |batch| is_tried_again(batch.kind, batch.classification, batch.has_fallback)),
        &gone.first,
        &gone.last,
        LEASE_OVER
    )
    .fetch_all(&mut *db)
    .await?;
    let by_id: HashMap<Uuid, &Expired> = batches.iter().map(|batch| (batch.id, batch)).collect();
    let (mut deltas, mut totals): (BTreeMap<BatchKey, CounterDelta>, Totals) = Default::default();
    let mut in_doubt: Vec<SendKey> = Vec::new();
    for row in &doubted {
        let Some(batch) = by_id.get(&SendId(row.id).batch()) else { continue };
        let delta = deltas.entry((batch.tenant_id, batch.id)).or_default();
        delta.moved(SendState::Fenced, row.state);
        in_doubt.push((batch.tenant_id, row.id));
        if row.state == SendState::Queued {
            delta.announce(NextAnnouncement::After(LATE_ANSWER));
            continue;
        }
        *unknown.entry(batch.lane.as_str()).or_default() += 1;
        *totals.entry((batch.tenant_id, None, batch.kind.as_str(), "unknown")).or_default() += 1;
        if batch.kind != MessageKind::Test {
            *totals.entry((batch.tenant_id, None, "failure", LEASE_OVER)).or_default() += 1;
        }
    }
    counters::move_counters(db, &deltas, (&totals, 0), &UsageTotals::new()).await?;
    facts::make_evidence_due(db, &in_doubt).await?;
    sqlx::query_file!("queries/leases/renew_batch_leases.sql", &tenants, &ids).execute(db).await?;
    Ok((doubted.len() as u64, unknown))
}

/// The kinds and classifications of mail that is never tried again after an unknown outcome, as columns for `unnest`.
fn never_again() -> (Vec<String>, Vec<String>) {
    let all = MessageKind::ALL.iter().flat_map(|kind| Classification::ALL.iter().map(|class| (*kind, *class)));
    all.filter(|(kind, class)| !is_tried_again(*kind, *class, false))
        .map(|(kind, class)| (kind.to_string(), class.to_string()))
        .unzip()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use stage_rig::Rig;

    #[tokio::test]
    async fn a_lease_in_a_batch_that_waits_ends_within_some_runs() {
        let metrics = runtime::metric::start("delivery", true).unwrap();
        let rig = Rig::new().await;
        let tenant = rig.tenant().await;
        let list = rig.audience(&tenant, "list", &[]).await;
        let campaign = rig.campaign(&tenant, list).await;
        let people = rig.people(&tenant, 1).await;
        rig.batch(&tenant, campaign, Classification::Marketing, &people).await;
        for sql in [
            "update sends set state = 'fenced', fence_token = gen_random_uuid(), attempts = 1, lease_until = now() - interval '1 second'",
            "update batches set state = 'waiting', announce_after = null, queued = 0, fenced = 1, lease_until = now() - interval '1 second'",
        ] {
            sqlx::query(sql).execute(&rig.pool).await.unwrap();
        }
        let sweep = ExpireLeases::new(&PreparedPool::new(&rig.pool, 1), Duration::ZERO);
        sweep.runs.store(1, Ordering::Relaxed);
        for _ in 1..ALL_STATES_EVERY {
            assert_eq!(sweep.sweep().await.unwrap(), 0);
        }
        assert_eq!(sweep.sweep().await.unwrap(), 1);
        let counted = "select count(*) from sends s join rollups r on r.tenant_id = s.tenant_id and r.event = s.reason
                       where s.state = 'unknown' and s.reason = 'lease_over' and r.kind = 'failure' and r.count = 1";
        assert_eq!(rig.number(counted).await, 1, "its reason is shown and counted");
        let metrics = metrics.render();
        let is_unknown = |line: &&str| {
            line.starts_with("mail_sends_total{") && line.contains("\"bulk\"") && line.contains("\"unknown\"")
        };
        let count = metrics.lines().find(is_unknown).unwrap();
        assert!(!count.ends_with(" 0"), "the alert UnknownOutcomes reads it: {count}");
        rig.assert_books().await;
    }

    #[rstest]
    #[case::first_run(&[0], 0)]
    #[case::without_a_gap(&[0, 2, 4, 18], 18)]
    #[case::just_after_a_gap(&[0, 2, 40, 55], 0)]
    #[case::some_time_after_a_gap(&[0, 2, 40, 42, 54], 14)]
    fn a_silent_session_is_not_gone_until_postgres_has_served_for_some_time(
        #[case] runs: &[u64],
        #[case] expected: u64,
    ) {
        let start = Instant::now();
        let mut served = None;
        for run in runs {
            served = Some(Served::extended(served, start + Duration::from_secs(*run), SERVED_BEFORE));
        }
        assert_eq!(served.map(Served::length), Some(Duration::from_secs(expected)));
    }
}
