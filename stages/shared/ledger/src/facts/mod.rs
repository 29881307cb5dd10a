//! Records signals in the ledger: one transaction for a group of them.

mod each;
mod evidence;
pub mod rescore;
mod suppress;

use std::collections::{BTreeMap, BTreeSet, HashSet};

use chrono::{DateTime, NaiveDate, Utc};
use runtime::column;
use schemas::{SendId, Signal, SignalKind};
use sqlx::PgConnection;
use uuid::Uuid;

use self::each::{Each, Fact};
pub use self::evidence::ProviderEvidence;
pub(crate) use self::evidence::make_evidence_due;
pub(crate) use self::suppress::suppression_of;
use crate::{
    hours::{BatchKey, Hours, batch_of, hour_of, moves},
    machine::{self, Click},
};

/// The result of recording signals.
#[derive(Debug, Default)]
pub struct RecordedSignals {
    /// How many were new, by fact.
    pub fresh: BTreeMap<&'static str, u64>,
    /// How many unknown sends turned out to be sent.
    pub resolved: u64,
    /// Sends that do not exist: their signals are not recorded.
    pub unknown: BTreeSet<SendKey>,
    /// Sends with evidence that they left, whose outcome is still open: fenced, or waiting for an attempt. The evidence may be needed
    /// later.
    pub undecided: BTreeSet<SendKey>,
}

/// Facts of one kind that are stored of one send. What comes after them is not stored and counts nowhere: the holder of a mail can follow its
/// links and write to its return path as often as they like, and all clicks of a send are read again with each new one. Bounces of each class,
/// and replies and the answers of programs, are kinds of their own: none keeps out one that has another effect.
pub(crate) const STORED_MAX: i64 = 200;

/// A send: tenant and id.
pub type SendKey = (Uuid, Uuid);
/// When a fact happened, if it did.
type Time = Option<DateTime<Utc>>;

/// The new times of one send's facts.
#[derive(Debug, Default, Clone, Copy)]
struct FactTimes {
    /// The earliest time of each fact in this group.
    times: Each<Time>,
    /// All its clicks were classified again: the time of the first human click replaces the old one.
    recounted: bool,
    /// All its opens were classified again: the time of the first human open replaces the old one.
    reopened: bool,
}

impl FactTimes {
    fn earliest(&mut self, fact: Fact, at: DateTime<Utc>) {
        let time = &mut self.times[fact as usize];
        *time = Some(time.map_or(at, |earliest| earliest.min(at)));
    }
}

/// A signal, with the reason if it is a machine's.
#[derive(Debug, Clone, Copy)]
struct MarkedSignal<'a> {
    signal: &'a Signal,
    machine: Option<&'static str>,
}

/// The progress of a send.
struct SendProgress {
    tenant_id: Uuid,
    id: Uuid,
    /// When the server accepted it, or was about to.
    accepted_at: Time,
    /// Its outcome is unknown, or it waits for another attempt because the outcome of the first is unknown.
    is_doubted: bool,
    /// Its outcome is open.
    is_open: bool,
    /// Its contact is erased.
    is_erased: bool,
}

/// Records the signals that are new: facts, first times on the sends, counters on their batches, totals of the hours, and the
/// suppressions that follow. Unknown sends with evidence become `sent`. Takes effect when the caller commits.
///
/// Locks in the order of the whole ledger: batches, contacts, sends, rollups. The transaction is one by key.
pub async fn record(
    db: &mut PgConnection,
    inputs: &[Signal],
    evidence: &[ProviderEvidence],
    shard: i16,
) -> sqlx::Result<RecordedSignals> {
    let named: BTreeSet<SendKey> =
        inputs.iter().map(send_of).chain(evidence.iter().map(ProviderEvidence::send)).collect();
    let tests = lock_batches(db, &named).await?;
    let known = read_progress(db, &named).await?;
    let inputs: Vec<&Signal> = inputs.iter().filter(|input| known.contains_key(&send_of(input))).collect();
    let is = |item: &ProviderEvidence, rule: fn(&SendProgress) -> bool| known.get(&item.send()).is_some_and(rule);
    let doubted: Vec<&ProviderEvidence> =
        evidence.iter().filter(|item| is(item, |progress| progress.is_doubted)).collect();
    let mut hours = Hours::default();
    let mut recorded = RecordedSignals {
        unknown: named.into_iter().filter(|send| !known.contains_key(send)).collect(),
        undecided: evidence
            .iter()
            .filter(|item| is(item, |progress| progress.is_open && !progress.is_doubted))
            .map(ProviderEvidence::send)
            .collect(),
        ..RecordedSignals::default()
    };
    if !doubted.is_empty() {
        recorded.resolved = evidence::resolve_unknown(db, &doubted, &mut hours).await?;
    }
    let mut new = insert_events(db, &inputs, &known).await?;
    // A fact about a test is on its timeline only: it counts nowhere and suppresses no address.
    let counts = |signal: &Signal| !tests.contains(&batch_of(send_of(signal)));
    new.retain(|new| counts(new.signal));
    // An opt-out beyond the bound is not stored, and is one all the same: the recipient may have opted in again since the others.
    let opt_outs: Vec<&Signal> = inputs
        .iter()
        .copied()
        .filter(|input| matches!(input.kind, SignalKind::Unsubscribed { .. }) && counts(input))
        .collect();
    let opt_outs = not_stored(db, opt_outs).await?;
    let suppressing: Vec<&Signal> = new.iter().map(|new| new.signal).chain(opt_outs).collect();
    suppress::suppress(db, &suppressing).await?;
    if !new.is_empty() {
        let mut times = collect_times(&new, &mut recorded.fresh, &mut hours);
        recount_clicks(db, &mut times).await?;
        let changes = fold_sends(db, &times, &mut hours).await?;
        count(db, &changes).await?;
    }
    hours.write(db, shard).await?;
    Ok(recorded)
}

fn send_of(signal: &Signal) -> SendKey {
    (signal.tenant_id, signal.send_id)
}

/// The times of new signals' facts, by send; counts the signals by fact.
fn collect_times(
    new: &[MarkedSignal<'_>],
    fresh: &mut BTreeMap<&'static str, u64>,
    hours: &mut Hours,
) -> BTreeMap<SendKey, FactTimes> {
    let mut all: BTreeMap<SendKey, FactTimes> = BTreeMap::new();
    for MarkedSignal { signal, machine } in new {
        let send = send_of(signal);
        *fresh.entry(signal.kind.label()).or_default() += 1;
        let Some(fact) = Fact::of(&signal.kind) else { continue };
        let send_times = all.entry(send).or_default();
        send_times.earliest(fact, signal.occurred_at);
        if fact == Fact::Opened && machine.is_none() {
            send_times.earliest(Fact::OpenedHuman, signal.occurred_at);
        }
        if let Some(total) = each::total(&signal.kind) {
            hours.add(batch_of(send), total, hour_of(signal.occurred_at), 1);
        }
    }
    all
}

/// The keys of sends as three columns: tenants, ids, months.
fn columns<'a>(sends: impl Iterator<Item = &'a SendKey>) -> (Vec<Uuid>, Vec<Uuid>, Vec<NaiveDate>) {
    let (tenants, ids): (Vec<Uuid>, Vec<Uuid>) = sends.copied().unzip();
    let months = ids.iter().map(|id| SendId(*id).month()).collect();
    (tenants, ids, months)
}

/// Locks the batches of sends, in id order, and answers those that are tests of a campaign. Everywhere in the ledger, batches are locked
/// before contacts and sends. The transaction then waits at most a second for any lock (55P03): an import may hold contacts for seconds, and
/// all other mail of a lane would wait for these batches.
pub async fn lock_batches(db: &mut PgConnection, sends: &BTreeSet<SendKey>) -> sqlx::Result<BTreeSet<BatchKey>> {
    let keys: BTreeSet<BatchKey> = sends.iter().copied().map(batch_of).collect();
    let (tenants, ids): (Vec<Uuid>, Vec<Uuid>) = keys.into_iter().unzip();
    sqlx::raw_sql(runtime::db::WAIT_BRIEFLY).execute(&mut *db).await?;
    let locked = sqlx::query!(
        r#"select b.tenant_id, b.id, b.kind = 'test' as "is_test!" from batches b
           join unnest($1::uuid[], $2::uuid[]) as w (tenant_id, id) on b.tenant_id = w.tenant_id and b.id = w.id
           order by b.tenant_id, b.id for no key update of b"#,
        &tenants,
        &ids
    )
    .fetch_all(db)
    .await?;
    Ok(locked.into_iter().filter(|row| row.is_test).map(|row| (row.tenant_id, row.id)).collect())
}

/// The progress of these sends; sends that do not exist are left out.
async fn read_progress(
    db: &mut PgConnection,
    sends: &BTreeSet<SendKey>,
) -> sqlx::Result<BTreeMap<SendKey, SendProgress>> {
    let (tenants, ids, months) = columns(sends.iter());
    let known =
        sqlx::query_file_as!(SendProgress, "queries/facts/send_progress.sql", &tenants, &ids, &months).fetch_all(db);
    Ok(known.await?.into_iter().map(|progress| ((progress.tenant_id, progress.id), progress)).collect())
}

/// Stores the facts with their marks, and answers those that were not stored before: at most [`STORED_MAX`] of a kind and send.
async fn insert_events<'a>(
    db: &mut PgConnection,
    inputs: &[&'a Signal],
    known: &BTreeMap<SendKey, SendProgress>,
) -> sqlx::Result<Vec<MarkedSignal<'a>>> {
    if inputs.is_empty() {
        return Ok(Vec::new());
    }
    let mark = |signal: &'a Signal| {
        let accepted_at = known.get(&send_of(signal)).and_then(|progress| progress.accepted_at);
        MarkedSignal { signal, machine: each::machine_reason(signal, accepted_at) }
    };
    let is_erased = |signal: &Signal| known.get(&send_of(signal)).is_some_and(|progress| progress.is_erased);
    // One id twice in one group is one fact.
    let signals: BTreeMap<(Uuid, Uuid, Uuid), MarkedSignal<'_>> =
        inputs.iter().map(|signal| ((signal.tenant_id, signal.send_id, signal.signal_id), mark(signal))).collect();
    let sends: Vec<Uuid> = signals.keys().map(|(_, send, _)| *send).collect();
    let rows = sqlx::query_file!(
        "queries/facts/insert_events.sql",
        &column(signals.keys(), |(tenant, ..)| *tenant),
        &sends,
        &column(signals.keys(), |(.., id)| *id),
        &column(&sends, |send| SendId(*send).month()),
        &column(signals.values(), |new| each::event_type(&new.signal.kind)) as &[&str],
        &column(signals.values(), |new| new.signal.occurred_at),
        &column(signals.values(), |new| each::detail_of(new.signal, new.machine, is_erased(new.signal))),
        STORED_MAX
    )
    .fetch_all(db)
    .await?;
    Ok(rows.into_iter().filter_map(|row| signals.get(&(row.tenant_id, row.send_id, row.id)).copied()).collect())
}

/// Those of these facts that are not stored.
async fn not_stored<'a>(db: &mut PgConnection, mut facts: Vec<&'a Signal>) -> sqlx::Result<Vec<&'a Signal>> {
    if facts.is_empty() {
        return Ok(facts);
    }
    let stored = sqlx::query!(
        "select e.tenant_id, e.send_id, e.id
         from unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::date[]) as w (tenant_id, send_id, id, month)
         join events e on e.tenant_id = w.tenant_id and e.send_id = w.send_id and e.id = w.id and e.month = w.month",
        &column(&facts, |fact| fact.tenant_id),
        &column(&facts, |fact| fact.send_id),
        &column(&facts, |fact| fact.signal_id),
        &column(&facts, |fact| SendId(fact.send_id).month()),
    )
    .fetch_all(db)
    .await?;
    let stored: HashSet<(Uuid, Uuid, Uuid)> =
        stored.into_iter().map(|row| (row.tenant_id, row.send_id, row.id)).collect();
    facts.retain(|fact| !stored.contains(&(fact.tenant_id, fact.send_id, fact.signal_id)));
    Ok(facts)
}

/// Classifies all clicks of the sends that were clicked now: whether a click is a person's depends on the clicks near it, including
/// those that arrive later.
async fn recount_clicks(db: &mut PgConnection, all: &mut BTreeMap<SendKey, FactTimes>) -> sqlx::Result<()> {
    let clicked = all.iter().filter(|(_, send)| send.times[Fact::Clicked as usize].is_some()).map(|(send, _)| send);
    let (tenants, ids, months) = columns(clicked);
    if ids.is_empty() {
        return Ok(());
    }
    let rows = sqlx::query_file!("queries/facts/clicks.sql", &tenants, &ids, &months).fetch_all(&mut *db).await?;
    let mut clicks: BTreeMap<SendKey, Vec<Click>> = BTreeMap::new();
    for row in rows {
        let click = Click { id: row.id, at: row.occurred_at, link: row.link, machine: row.machine };
        clicks.entry((row.tenant_id, row.send_id)).or_default().push(click);
    }
    let mut marks = Vec::new();
    for (send, clicks) in &mut clicks {
        let marked = machine::bursts(clicks);
        marks.extend(marked.into_iter().map(|event| TouchMark { send: *send, event, reason: Some(machine::BURST) }));
        if let Some(send_times) = all.get_mut(send) {
            send_times.recounted = true;
            send_times.times[Fact::ClickedHuman as usize] =
                clicks.iter().filter(|click| !click.machine).map(|click| click.at).min();
        }
    }
    write_marks(db, &marks).await
}

/// The new mark of an open or click.
struct TouchMark {
    send: SendKey,
    event: Uuid,
    /// Why it is a machine's; `None` for a person's.
    reason: Option<&'static str>,
}

/// Writes marks, with the version of the rules.
async fn write_marks(db: &mut PgConnection, marks: &[TouchMark]) -> sqlx::Result<()> {
    if marks.is_empty() {
        return Ok(());
    }
    let (tenants, sends, months) = columns(marks.iter().map(|mark| &mark.send));
    sqlx::query_file!(
        "queries/facts/mark_touches.sql",
        &tenants,
        &sends,
        &months,
        &column(marks, |mark| mark.event),
        &column(marks, |mark| mark.reason) as &[Option<&str>],
        i32::from(machine::VERSION),
    )
    .execute(db)
    .await
    .map(drop)
}

/// Sets the first times on the sends, and answers by batch the change in the number of sends with each fact.
async fn fold_sends(
    db: &mut PgConnection,
    all: &BTreeMap<SendKey, FactTimes>,
    hours: &mut Hours,
) -> sqlx::Result<BTreeMap<BatchKey, Each<i32>>> {
    let (tenants, sends, months) = columns(all.keys());
    let times = |fact: Fact| column(all.values(), |send| send.times[fact as usize]);
    let rows = sqlx::query_file!(
        "queries/facts/fold.sql",
        &tenants,
        &sends,
        &months,
        &times(Fact::Delivered) as &[Time],
        &times(Fact::Complained) as &[Time],
        &times(Fact::Opened) as &[Time],
        &times(Fact::Clicked) as &[Time],
        &times(Fact::Unsubscribed) as &[Time],
        &times(Fact::OpenedHuman) as &[Time],
        &column(all.values(), |send| send.recounted),
        &times(Fact::ClickedHuman) as &[Time],
        &times(Fact::Bounced) as &[Time],
        &times(Fact::Replied) as &[Time],
        &column(all.values(), |send| send.reopened),
    )
    .fetch_all(db)
    .await?;
    let mut changes: BTreeMap<BatchKey, Each<i32>> = BTreeMap::new();
    for row in rows {
        let batch = batch_of((row.tenant_id, row.send_id));
        let change = changes.entry(batch).or_default();
        for &fact in Fact::ALL {
            let time = |times: &[Time]| times.get(fact as usize).copied().flatten();
            let (before, after) = (time(&row.before), time(&row.after));
            change[fact as usize] += i32::from(after.is_some()) - i32::from(before.is_some());
            for (hour, by) in moves(before, after).into_iter().flatten() {
                hours.add(batch, fact.as_str(), hour, by);
            }
        }
    }
    changes.retain(|_, change| change.iter().any(|by| *by != 0));
    Ok(changes)
}

/// Adds the changes to the counters of the batches, which are locked.
async fn count(db: &mut PgConnection, changes: &BTreeMap<BatchKey, Each<i32>>) -> sqlx::Result<()> {
    if changes.is_empty() {
        return Ok(());
    }
    let (tenants, batches): (Vec<Uuid>, Vec<Uuid>) = changes.keys().copied().unzip();
    let changes_of = |fact: Fact| column(changes.values(), |change| change[fact as usize]);
    sqlx::query!(
        "update batches b
         set delivered = b.delivered + d.delivered, complained = b.complained + d.complained, opened = b.opened + d.opened,
             clicked = b.clicked + d.clicked, unsubscribed = b.unsubscribed + d.unsubscribed,
             opened_human = b.opened_human + d.opened_human, clicked_human = b.clicked_human + d.clicked_human,
             bounced = b.bounced + d.bounced, replied = b.replied + d.replied, confirmed = b.confirmed + d.confirmed
         from unnest($1::uuid[], $2::uuid[], $3::int[], $4::int[], $5::int[], $6::int[], $7::int[], $8::int[], $9::int[], $10::int[],
              $11::int[], $12::int[])
              as d (tenant_id, id, delivered, complained, opened, clicked, unsubscribed, opened_human, clicked_human, bounced, replied,
                    confirmed)
         where b.tenant_id = d.tenant_id and b.id = d.id",
        &tenants,
        &batches,
        &changes_of(Fact::Delivered),
        &changes_of(Fact::Complained),
        &changes_of(Fact::Opened),
        &changes_of(Fact::Clicked),
        &changes_of(Fact::Unsubscribed),
        &changes_of(Fact::OpenedHuman),
        &changes_of(Fact::ClickedHuman),
        &changes_of(Fact::Bounced),
        &changes_of(Fact::Replied),
        &changes_of(Fact::Confirmed)
    )
    .execute(db)
    .await
    .map(drop)
}

#[cfg(test)]
mod tests;
