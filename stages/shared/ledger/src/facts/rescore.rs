//! Rescore: classifies stored opens and clicks again by the current rules, in slices. One transaction per slice changes marks, times,
//! counters and totals together, and notes the mails with clicks that changed sides, so that the attribution stage credits their outcomes
//! again. Harmless to repeat and to interrupt: events that match the rules are left alone.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, Utc};
use runtime::plans::PreparedPool;
use schemas::ids::first_id;
use sqlx::{PgConnection, PgPool};
use uuid::Uuid;

use super::{
    Fact, FactTimes, SendKey, SendProgress, TouchMark, columns, count, fold_sends, lock_batches, read_progress,
    write_marks,
};
use crate::{
    hours::{self, Hours},
    machine::{self, Touch},
};

/// Which mail a rescore covers.
#[derive(Debug, Clone, Copy, Default)]
pub struct RescoreScope {
    /// Only mail of this tenant.
    pub tenant: Option<Uuid>,
    /// Only mail made since then.
    pub since: Option<DateTime<Utc>>,
}

/// What a rescore changed, or a dry run would change.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RescoreTotals {
    /// Mails with opens or clicks.
    pub sends: u64,
    /// Their opens and clicks.
    pub events: u64,
    /// Now a machine's, and before a person's.
    pub marked: u64,
    /// Now a person's, and before a machine's.
    pub cleared: u64,
    /// Events whose class stays, for another reason or by another version of the rules.
    pub relabelled: u64,
}

impl RescoreTotals {
    fn add(&mut self, other: Self) {
        self.sends += other.sends;
        self.events += other.events;
        self.marked += other.marked;
        self.cleared += other.cleared;
        self.relabelled += other.relabelled;
    }

    /// Events whose marks differ from the rules.
    #[must_use]
    pub fn changed(&self) -> u64 {
        self.marked + self.cleared + self.relabelled
    }
}

/// Sends of one slice: bounds how long batches are locked.
const SLICE: i64 = 500;

/// A stored open or click.
struct StoredTouch {
    tenant_id: Uuid,
    send_id: Uuid,
    id: Uuid,
    click: bool,
    occurred_at: DateTime<Utc>,
    link: i32,
    ip: Option<String>,
    user_agent: Option<String>,
    machine: bool,
    reason: Option<String>,
    version: i32,
}

impl StoredTouch {
    fn send(&self) -> SendKey {
        (self.tenant_id, self.send_id)
    }
}

/// Classifies all opens and clicks of the scope again. `progress` is called after each slice. A `dry_run` changes nothing.
///
/// # Errors
/// When Postgres is away; what was done stands, and the next run goes on from there.
pub async fn rescore(
    pool: &PgPool,
    scope: RescoreScope,
    dry_run: bool,
    mut progress: impl FnMut(&RescoreTotals),
) -> sqlx::Result<RescoreTotals> {
    let by_key = PreparedPool::new(pool, 1);
    let shard = hours::random_shard();
    let floor = scope.since.map_or(Uuid::nil(), first_id);
    let mut after: SendKey = (Uuid::nil(), Uuid::nil());
    let mut done = RescoreTotals::default();
    loop {
        let sends: Vec<SendKey> =
            sqlx::query_file!("queries/facts/touched_sends.sql", after.0, after.1, scope.tenant, floor, SLICE)
                .fetch_all(pool)
                .await?
                .into_iter()
                .map(|row| (row.tenant_id, row.send_id))
                .collect();
        let Some(last) = sends.last().copied() else { return Ok(done) };
        let mut tx = by_key.begin().await?;
        let slice = rescore_slice(&mut tx, sends, shard).await?;
        if dry_run {
            tx.rollback().await?
        } else {
            tx.commit().await?
        }
        done.add(slice);
        progress(&done);
        after = last;
    }
}

async fn rescore_slice(db: &mut PgConnection, sends: Vec<SendKey>, shard: i16) -> sqlx::Result<RescoreTotals> {
    let named = sends.into_iter().collect();
    lock_batches(db, &named).await?;
    let known = read_progress(db, &named).await?;
    let touches = read(db, &known).await?;
    let mut done =
        RescoreTotals { sends: known.len() as u64, events: touches.len() as u64, ..RescoreTotals::default() };
    let mut new_times: BTreeMap<SendKey, FactTimes> = BTreeMap::new();
    let mut marks: Vec<TouchMark> = Vec::new();
    let mut recredited: BTreeSet<SendKey> = BTreeSet::new();
    for of_send in touches.chunk_by(|one, other| one.send() == other.send()) {
        let send = of_send[0].send();
        let accepted_at = known.get(&send).and_then(|progress| progress.accepted_at);
        let reasons = machine_reasons(of_send, accepted_at);
        let moved = note(of_send, &reasons, &mut done, &mut marks);
        if of_send.iter().zip(&reasons).any(|(one, reason)| one.click && one.machine != reason.is_some()) {
            recredited.insert(send);
        }
        if moved {
            new_times.insert(send, times(of_send, &reasons));
        }
    }
    write_marks(db, &marks).await?;
    note_recredited(db, &recredited).await?;
    if !new_times.is_empty() {
        let mut hours = Hours::default();
        let counters = fold_sends(db, &new_times, &mut hours).await?;
        count(db, &counters).await?;
        hours.write(db, shard).await?;
    }
    Ok(done)
}

/// All opens and clicks of these sends, by send.
async fn read(db: &mut PgConnection, known: &BTreeMap<SendKey, SendProgress>) -> sqlx::Result<Vec<StoredTouch>> {
    let (tenants, ids, months) = columns(known.keys());
    sqlx::query_file_as!(StoredTouch, "queries/facts/touches.sql", &tenants, &ids, &months).fetch_all(db).await
}

/// The reason for each of a send's opens and clicks that is a machine's: first each by itself, then clicks by the clicks near them.
fn machine_reasons(touches: &[StoredTouch], accepted_at: Option<DateTime<Utc>>) -> Vec<Option<&'static str>> {
    let classify_touch = |one: &StoredTouch| {
        let (ip, user_agent) = (one.ip.as_deref(), one.user_agent.as_deref());
        // Erased with its contact, so the mark is all that is left of it; or an event of a provider, which has no mark by itself.
        if ip.is_none() {
            return machine::known_reason(one.reason.as_deref()?);
        }
        machine::classify(&Touch { click: one.click, at: one.occurred_at, accepted_at, ip, user_agent })
    };
    let mut reasons: Vec<Option<&'static str>> = touches.iter().map(classify_touch).collect();
    let clicks = touches.iter().zip(&reasons).filter(|(one, _)| one.click);
    let mut clicks: Vec<machine::Click> = clicks
        .map(|(one, reason)| machine::Click {
            id: one.id,
            at: one.occurred_at,
            link: one.link,
            machine: reason.is_some(),
        })
        .collect();
    let burst = machine::bursts(&mut clicks);
    for (one, reason) in touches.iter().zip(&mut reasons) {
        if burst.contains(&one.id) {
            *reason = Some(machine::BURST);
        }
    }
    reasons
}

/// Collects the marks that differ from the rules; true if one changes between person and machine.
fn note(
    touches: &[StoredTouch],
    reasons: &[Option<&'static str>],
    done: &mut RescoreTotals,
    marks: &mut Vec<TouchMark>,
) -> bool {
    let mut moved = false;
    for (one, reason) in touches.iter().zip(reasons) {
        match (one.machine, reason.is_some()) {
            (false, true) => done.marked += 1,
            (true, false) => done.cleared += 1,
            _ if one.reason.as_deref() == *reason && one.version == i32::from(machine::VERSION) => continue,
            _ => done.relabelled += 1,
        }
        moved |= one.machine != reason.is_some();
        marks.push(TouchMark { send: one.send(), event: one.id, reason: *reason });
    }
    moved
}

/// The times of the first human open and the first human click.
fn times(touches: &[StoredTouch], reasons: &[Option<&'static str>]) -> FactTimes {
    let first = |click: bool| {
        let people = touches.iter().zip(reasons).filter(|(one, reason)| one.click == click && reason.is_none());
        people.map(|(one, _)| one.occurred_at).min()
    };
    let mut new_times = FactTimes { recounted: true, reopened: true, ..FactTimes::default() };
    new_times.times[Fact::OpenedHuman as usize] = first(false);
    new_times.times[Fact::ClickedHuman as usize] = first(true);
    new_times
}

/// Notes mails with clicks that changed between person and machine.
async fn note_recredited(db: &mut PgConnection, sends: &BTreeSet<SendKey>) -> sqlx::Result<()> {
    if sends.is_empty() {
        return Ok(());
    }
    let (tenants, ids, _) = columns(sends.iter());
    sqlx::query_file!("queries/facts/note_recredited.sql", &tenants, &ids).execute(db).await.map(drop)
}
