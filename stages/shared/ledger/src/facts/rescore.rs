//! Opens and clicks judged anew, by the rules as they are now: from what was kept of each, in slices, each in a transaction that
//! moves marks, times, counters and totals together, and notes the mails whose clicks count now and did not, or did and do not, for
//! who credits outcomes by them. Harmless to repeat and to interrupt: what is as the rules say is left alone.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, Utc};
use runtime::plans;
use sqlx::{PgConnection, PgPool};
use uuid::Uuid;

use super::{Fact, Look, SendKey, Told, columns, count, fold_sends, lock_batches, look_at_sends, random_shard};
use crate::{
    hours::Hours,
    machine::{self, Touch},
};

/// Which mail is looked at.
#[derive(Debug, Clone, Copy, Default)]
pub struct Scope {
    /// Of this tenant only.
    pub tenant: Option<Uuid>,
    /// Made since then only.
    pub since: Option<DateTime<Utc>>,
}

/// What was done, or would be.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Done {
    /// Mails that were opened or clicked and looked at.
    pub sends: u64,
    /// Opens and clicks of these.
    pub events: u64,
    /// Marked as a machine's now, and not before.
    pub marked: u64,
    /// Taken for a person's now, and not before.
    pub cleared: u64,
    /// The same verdict for another reason, or by an older version of the rules.
    pub relabelled: u64,
}

impl Done {
    fn add(&mut self, other: Self) {
        self.sends += other.sends;
        self.events += other.events;
        self.marked += other.marked;
        self.cleared += other.cleared;
        self.relabelled += other.relabelled;
    }

    /// Events that are not, or were not, as the rules say.
    #[must_use]
    pub fn changed(&self) -> u64 {
        self.marked + self.cleared + self.relabelled
    }
}

/// Sends of one slice: bounds how long batches are locked.
const SLICE: i64 = 500;

/// An open or click, as kept.
struct Kept {
    send: SendKey,
    id: Uuid,
    click: bool,
    at: DateTime<Utc>,
    link: i32,
    ip: Option<String>,
    user_agent: Option<String>,
    machine: bool,
    reason: Option<String>,
    version: i32,
}

/// A mark that is not as the rules say.
struct Change {
    send: SendKey,
    id: Uuid,
    reason: Option<&'static str>,
}

/// Judges all mail of the scope anew. `progress` is told after each slice. With `dry_run` nothing is changed.
///
/// # Errors
/// When Postgres is away; what was done stands, and the next run goes on from there.
pub async fn rescore(
    pool: &PgPool,
    scope: Scope,
    dry_run: bool,
    mut progress: impl FnMut(&Done),
) -> sqlx::Result<Done> {
    let shard = random_shard();
    let floor = scope.since.map_or(Uuid::nil(), first_id);
    let mut after: SendKey = (Uuid::nil(), Uuid::nil());
    let mut done = Done::default();
    loop {
        let sends: Vec<SendKey> =
            sqlx::query_file!("queries/facts/touched_sends.sql", after.0, after.1, scope.tenant, floor, SLICE)
                .fetch_all(pool)
                .await?
                .into_iter()
                .map(|row| (row.tenant_id, row.send_id))
                .collect();
        let Some(last) = sends.last().copied() else { return Ok(done) };
        let mut tx = pool.begin_with(plans::BEGIN_BY_KEY).await?;
        let slice = judge_slice(&mut tx, sends, shard).await?;
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

/// The smallest id of a time: ids begin with their milliseconds.
fn first_id(at: DateTime<Utc>) -> Uuid {
    Uuid::from_u128(u128::from(at.timestamp_millis().max(0).unsigned_abs()) << 80)
}

async fn judge_slice(db: &mut PgConnection, sends: Vec<SendKey>, shard: i16) -> sqlx::Result<Done> {
    let named = sends.into_iter().collect();
    lock_batches(db, &named).await?;
    let known = look_at_sends(db, &named).await?;
    let kept = read(db, &known).await?;
    let mut done = Done { sends: known.len() as u64, events: kept.len() as u64, ..Done::default() };
    let mut told: BTreeMap<SendKey, Told> = BTreeMap::new();
    let mut changes: Vec<Change> = Vec::new();
    let mut recredited: BTreeSet<SendKey> = BTreeSet::new();
    for of_send in kept.chunk_by(|one, other| one.send == other.send) {
        let accepted_at = known.get(&of_send[0].send).and_then(|look| look.accepted_at);
        let reasons = verdicts(of_send, accepted_at);
        let moved = note(of_send, &reasons, &mut done, &mut changes);
        if of_send.iter().zip(&reasons).any(|(one, reason)| one.click && one.machine != reason.is_some()) {
            recredited.insert(of_send[0].send);
        }
        if moved {
            told.insert(of_send[0].send, times(of_send, &reasons));
        }
    }
    mark(db, &changes).await?;
    note_recredited(db, &recredited).await?;
    if !told.is_empty() {
        let mut hours = Hours::default();
        let counters = fold_sends(db, &told, &mut hours).await?;
        count(db, &counters).await?;
        hours.write(db, shard).await?;
    }
    Ok(done)
}

/// All opens and clicks of these sends, by send.
async fn read(db: &mut PgConnection, known: &BTreeMap<SendKey, Look>) -> sqlx::Result<Vec<Kept>> {
    let (tenants, ids, months) = columns(known.keys());
    let rows = sqlx::query_file!("queries/facts/touches.sql", &tenants, &ids, &months).fetch_all(db).await?;
    Ok(rows
        .into_iter()
        .map(|row| Kept {
            send: (row.tenant_id, row.send_id),
            id: row.id,
            click: row.click,
            at: row.occurred_at,
            link: row.link,
            ip: row.ip,
            user_agent: row.user_agent,
            machine: row.machine,
            reason: row.reason,
            version: row.version,
        })
        .collect())
}

/// Why each of a send's opens and clicks is a machine's: first by itself, then the clicks by their neighbours.
fn verdicts(kept: &[Kept], accepted_at: Option<DateTime<Utc>>) -> Vec<Option<&'static str>> {
    let judge = |one: &Kept| {
        let (ip, user_agent) = (one.ip.as_deref(), one.user_agent.as_deref());
        machine::judge(&Touch { click: one.click, at: one.at, accepted_at, ip, user_agent })
    };
    let mut reasons: Vec<Option<&'static str>> = kept.iter().map(judge).collect();
    let clicks = kept.iter().zip(&reasons).filter(|(one, _)| one.click);
    let mut clicks: Vec<machine::Click> = clicks
        .map(|(one, reason)| machine::Click { id: one.id, at: one.at, link: one.link, machine: reason.is_some() })
        .collect();
    let (burst, why) = machine::bursts(&mut clicks);
    for (one, reason) in kept.iter().zip(&mut reasons) {
        if burst.contains(&one.id) {
            *reason = Some(why);
        }
    }
    reasons
}

/// Notes what differs from the rules; answers whether a verdict does.
fn note(kept: &[Kept], reasons: &[Option<&'static str>], done: &mut Done, changes: &mut Vec<Change>) -> bool {
    let mut moved = false;
    for (one, reason) in kept.iter().zip(reasons) {
        match (one.machine, reason.is_some()) {
            (false, true) => done.marked += 1,
            (true, false) => done.cleared += 1,
            _ if one.reason.as_deref() == *reason && one.version == i32::from(machine::VERSION) => continue,
            _ => done.relabelled += 1,
        }
        moved |= one.machine != reason.is_some();
        changes.push(Change { send: one.send, id: one.id, reason: *reason });
    }
    moved
}

/// The first open and the first click that are a person's.
fn times(kept: &[Kept], reasons: &[Option<&'static str>]) -> Told {
    let first = |click: bool| {
        let people = kept.iter().zip(reasons).filter(|(one, reason)| one.click == click && reason.is_none());
        people.map(|(one, _)| one.at).min()
    };
    let mut told = Told { recounted: true, reopened: true, ..Told::default() };
    told.times[Fact::OpenedHuman as usize] = first(false);
    told.times[Fact::ClickedHuman as usize] = first(true);
    told
}

async fn mark(db: &mut PgConnection, changes: &[Change]) -> sqlx::Result<()> {
    if changes.is_empty() {
        return Ok(());
    }
    let (tenants, sends, months) = columns(changes.iter().map(|change| &change.send));
    let ids: Vec<Uuid> = changes.iter().map(|change| change.id).collect();
    let reasons: Vec<Option<String>> = changes.iter().map(|change| change.reason.map(str::to_owned)).collect();
    sqlx::query_file!(
        "queries/facts/mark_touches.sql",
        &tenants,
        &sends,
        &months,
        &ids,
        &reasons as &[Option<String>],
        i32::from(machine::VERSION),
    )
    .execute(db)
    .await
    .map(drop)
}

/// Leaves a note of mails whose clicks are a person's now and were not, or were and are not.
async fn note_recredited(db: &mut PgConnection, sends: &BTreeSet<SendKey>) -> sqlx::Result<()> {
    if sends.is_empty() {
        return Ok(());
    }
    let (tenants, ids, _) = columns(sends.iter());
    sqlx::query_file!("queries/facts/note_recredited.sql", &tenants, &ids).execute(db).await.map(drop)
}
