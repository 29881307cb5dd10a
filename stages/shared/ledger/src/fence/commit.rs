//! One group commit.
//!
//! Locks in the order of the ledger: batches, contacts, sends, rollups. The contacts of the fences and the gates of their tenants are
//! locked first and read in a later statement, so that a suppression, a cancel, a pause or a suspension that was answered before is
//! always seen. A fence whose contact another transaction has locked, or whose gate is being closed, stays undecided, and so does one whose
//! limit the fences before it in the group may have reached: it comes again with the next group, and no other fence waits for it.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    time::Instant,
};

use chrono::{NaiveDate, Utc};
use runtime::{Counter, Histogram, plans::PreparedPool};
use schemas::{MessageKind, SendState};
use sqlx::PgConnection;
use uuid::Uuid;

use super::{
    Change, Fence, GateDecision, LedgerSettings, NextAnnouncement, SendAttempt,
    meter::Meter,
    sql::{self, FenceBatch, Moved},
    warming::Warming,
};
use crate::counters::{self, CounterDelta, Totals};
use crate::facts::{self, SendKey};
use crate::gate::{self, AskedSend, RecipientEligibility, SendFacts, SendLookups};
use crate::hours::{BatchKey, hour_of};
use crate::people;
use crate::quota::QuotaDefaults;

/// Commits groups, one after the other.
pub(super) struct Commits {
    connections: PreparedPool,
    fence_lease_seconds: f64,
    quota: QuotaDefaults,
    shard: i16,
}

/// Why a fence is decided with a later group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Undecided {
    /// Another transaction has locked the recipient.
    ContactLocked,
    /// What a limit left was taken by other fences of the group, of which some may not pass. The next group knows the rest exactly.
    LimitReached,
}

/// The result of a group.
#[derive(Debug, Default)]
pub(super) struct Committed {
    /// The answer to each fence.
    pub fences: Vec<Result<Fence, Undecided>>,
    /// Recipients to be suppressed whose contacts another transaction has locked: their changes are not written.
    pub locked_elsewhere: HashSet<Uuid>,
}

impl Committed {
    /// True if this change is still to be written.
    pub fn leaves_out(&self, change: &Change) -> bool {
        change.suppress.is_some() && self.locked_elsewhere.contains(&change.send.contact_id)
    }
}

impl Commits {
    /// Every statement here touches a bounded number of rows by primary key.
    pub fn new(connections: PreparedPool, settings: LedgerSettings, shard: i16) -> Self {
        let fence_lease_seconds = settings.fence_lease.as_secs_f64();
        Self { connections, fence_lease_seconds, quota: settings.quota, shard }
    }

    /// Commits fences and changes together, except those whose contacts another transaction has locked; with `wait` it waits for contacts
    /// to be suppressed. After an error, nothing may be assumed written.
    pub async fn commit(&self, fences: &[SendAttempt], changes: &[Change], wait: bool) -> sqlx::Result<Committed> {
        if !fences.is_empty() || !are_single(changes) {
            return self.commit_group(fences, changes, wait).await;
        }
        let left = self.accept_single(changes).await?;
        if left.is_empty() { Ok(Committed::default()) } else { self.commit_group(fences, &left, wait).await }
    }

    /// Commits acceptances of single mails, a statement for all; answers those that did not take place so.
    async fn accept_single(&self, changes: &[Change]) -> sqlx::Result<Vec<Change>> {
        let started = Instant::now();
        let mut ordered: Vec<&Change> = changes.iter().collect();
        ordered.sort_unstable_by_key(|change| (change.send.batch.tenant_id, change.send.batch.batch_id));
        let Some(month) = ordered.first().map(|change| change.send.batch.month) else { return Ok(Vec::new()) };
        let mut db = self.connections.take().await?;
        let moved: HashSet<usize> = sql::accept_last(&mut db, month, &ordered, self.shard).await?.into_iter().collect();
        db.put_back();
        let (moved, left): (Vec<_>, Vec<_>) =
            ordered.into_iter().enumerate().partition(|(index, _)| moved.contains(index));
        Histogram::LedgerCommitSeconds.record(started.elapsed().as_secs_f64(), [("kind", "result")]);
        count(moved.into_iter().map(|(_, change)| change));
        Ok(left.into_iter().map(|(_, change)| change.clone()).collect())
    }

    async fn commit_group(&self, fences: &[SendAttempt], changes: &[Change], wait: bool) -> sqlx::Result<Committed> {
        let started = Instant::now();
        let mut tx = self.connections.begin().await?;
        let keys = batch_keys(fences.iter().chain(changes.iter().map(|change| &change.send)));
        // With fences alone, the statement that locks their contacts locks the batches before.
        if fences.is_empty() || changes.iter().any(|change| change.suppress.is_some()) {
            counters::lock_batches(&mut tx, &keys).await?;
        }
        let locked_elsewhere = lock_suppressed(&mut tx, changes, wait).await?;
        let committed = Committed { fences: Vec::new(), locked_elsewhere };
        let changes: Vec<&Change> = changes.iter().filter(|change| !committed.leaves_out(change)).collect();
        let (gated, meter, warming) = self.gate(&mut tx, fences, &keys).await?;
        let mut all: Vec<&Change> = gated.iter().flatten().chain(changes.iter().copied()).collect();
        let (moved, resolved) = self.apply(&mut tx, &all).await?;
        for (index, change) in &resolved {
            all[*index] = change;
        }
        debug_assert!(all.iter().all(|change| change.answer.code != Some(super::POISON)), "a poisonous result");
        let all_moved = || all.iter().copied().zip(&moved).filter_map(|(change, moved)| moved.map(|_| change));
        let usage = meter.usage(all_moved(), self.shard);
        counters::move_counters(&mut tx, &self.deltas(&all, &moved), (&totals(&all, &moved), self.shard), &usage)
            .await?;
        // Of an outcome that is not known, or was not at an attempt before.
        let in_doubt = all_moved().filter(|change| {
            change.doubted
                || change.to == SendState::Unknown
                || change.send.doubtful > 0 && matches!(change.to, SendState::Queued | SendState::Deferred)
        });
        let in_doubt: Vec<SendKey> = in_doubt.map(|change| (change.send.batch.tenant_id, change.send.id)).collect();
        facts::make_evidence_due(&mut tx, &in_doubt).await?;
        sql::count_capped(&mut tx, &all, &moved).await?;
        sql::add_warmup_usage(&mut tx, &warming.usage(all_moved(), meter.today())).await?;
        sql::suppress(&mut tx, &changes).await?;
        sql::capture(&mut tx, all_moved()).await?;
        let committing = Instant::now();
        tx.commit().await?;
        Histogram::LedgerCommitSeconds.record(started.elapsed().as_secs_f64(), [("kind", kind(fences, &changes))]);
        count(all_moved());
        let passed = Fence::Passed { at: committing, metered_on: meter.today() };
        // The gated changes are the first of all, in their order.
        let mut gated_moved = moved.iter();
        let mut answer = |change: &Change| match gated_moved.next() {
            Some(Some(_)) if change.to == SendState::Fenced => passed,
            _ => Fence::Refused,
        };
        let fences =
            gated.iter().map(|change| change.as_ref().map(&mut answer).map_err(|undecided| *undecided)).collect();
        Ok(Committed { fences, ..committed })
    }

    /// Locks the batches of the group, decides each fence whose contact could be locked, and answers its change. The warm-up comes before the
    /// quota, because a send that waits for it uses up no quota.
    async fn gate(
        &self,
        db: &mut PgConnection,
        fences: &[SendAttempt],
        group: &[BatchKey],
    ) -> sqlx::Result<(Vec<Result<Change, Undecided>>, Meter, Warming)> {
        if fences.is_empty() {
            return Ok((Vec::new(), Meter::default(), Warming::default()));
        }
        let (tenants, contacts) = contact_keys(fences.iter());
        let locked = sql::lock_for_fence(db, group, (&tenants, &contacts)).await?;
        let (batches, mut recipients) = sql::read_fences(db, fences).await?;
        let capped: BTreeSet<Uuid> =
            batches.values().filter(|batch| batch.capped.is_some()).map(|batch| batch.tenant_id).collect();
        let has_capped = !capped.is_empty();
        let mut meter = Meter::open(db, batches.values(), capped, &self.quota).await?;
        // Again, after the tenants with a frequency cap were locked: the room that their contacts have cannot change meanwhile.
        if has_capped {
            recipients = gate::load_eligibility(db, &tenants, &contacts).await?;
        }
        let asked: Vec<AskedSend> = fences.iter().map(|send| asked_send(send, &batches)).collect();
        let mut lookups = SendLookups::load(db, &asked, &recipients).await?;
        let mut warming = Warming::open(db, fences).await?;
        let left = sql::with_evidence(db, fences).await?;
        let decide = |(send, asked): (&SendAttempt, &AskedSend)| {
            let mut eligibility = recipients.get_mut(&(asked.tenant_id, asked.contact_id));
            if eligibility.is_some() && !locked.contains(&send.contact_id) {
                return Err(Undecided::ContactLocked);
            }
            let batch = batches.get(&send.batch.batch_id);
            let decided = if left.contains(&send.id) {
                Change::still_unknown(send.clone())
            } else {
                gated(send, batch, eligibility.as_deref(), lookups.facts(asked))
            };
            let mut change = meter.admit(warming.admit(decided)?)?;
            change.is_capped = change.to == SendState::Fenced && asked.capped.is_some();
            if change.to != SendState::Deferred {
                lookups.decided(asked);
            }
            // Two mails to one contact in this commit.
            if let Some(left) =
                eligibility.as_mut().and_then(|known| known.cap_left.as_mut()).filter(|_| change.is_capped)
            {
                *left -= 1;
            }
            Ok(change)
        };
        let changes = fences.iter().zip(&asked).map(decide).collect();
        Ok((changes, meter, warming))
    }

    /// Applies all: in each month the fences, then the others, each in order of send id. Answers how each took place (`None`: it did not),
    /// and by index the changes that took place instead. A result whose lease the sweep has ended is still [`evidence`].
    async fn apply(
        &self,
        db: &mut PgConnection,
        all: &[&Change],
    ) -> sqlx::Result<(Vec<Option<Moved>>, Vec<(usize, Change)>)> {
        let (mut moved, mut resolved) = (vec![None; all.len()], Vec::new());
        let of = |indexes: &[usize]| indexes.iter().map(|index| all[*index]).collect::<Vec<_>>();
        for (month, indexes) in by_month(all) {
            let (fences, others): (Vec<usize>, Vec<usize>) =
                indexes.into_iter().partition(|index| all[*index].to == SendState::Fenced);
            for passed in sql::fence(db, month, &of(&fences), self.fence_lease_seconds).await? {
                moved[fences[passed]] = Some(Moved::plainly(all[fences[passed]].from, false));
            }
            let (accepted, others): (Vec<usize>, Vec<usize>) =
                others.into_iter().partition(|index| all[*index].is_plain_acceptance());
            for (applied, is_delivered) in sql::accept(db, month, &of(&accepted)).await? {
                moved[accepted[applied]] = Some(Moved::plainly(SendState::Fenced, is_delivered));
            }
            for (applied, known) in sql::apply(db, month, &of(&others)).await? {
                moved[others[applied]] = Some(known);
            }
            let late: Vec<(usize, Change)> = accepted
                .into_iter()
                .chain(others)
                .filter(|index| moved[*index].is_none())
                .flat_map(|index| evidence(all[index]).into_iter().map(move |change| (index, change)))
                .collect();
            let changes: Vec<&Change> = late.iter().map(|(_, change)| change).collect();
            for (applied, known) in sql::apply(db, month, &changes).await? {
                moved[late[applied].0] = Some(known);
                resolved.push(late[applied].clone());
            }
        }
        Ok((moved, resolved))
    }

    fn deltas(&self, all: &[&Change], moved: &[Option<Moved>]) -> BTreeMap<BatchKey, CounterDelta> {
        let mut deltas: BTreeMap<BatchKey, CounterDelta> = BTreeMap::new();
        for (change, moved) in all.iter().zip(moved) {
            if moved.is_none() && !change.is_announcement_only() {
                continue;
            }
            let delta = deltas.entry((change.send.batch.tenant_id, change.send.batch.batch_id)).or_default();
            delta.announce(change.announce);
            let Some(moved) = moved else { continue };
            delta.moved(moved.from, change.to);
            delta.bounced += i32::from(moved.is_bounced);
            delta.delivered += i32::from(moved.is_delivered);
            if change.to == SendState::Fenced {
                delta.lease(self.fence_lease_seconds);
            }
        }
        deltas
    }
}

/// True if these are plain acceptances of mails of one month that are probably alone in their batches.
fn are_single(changes: &[Change]) -> bool {
    let month = changes.first().map(|change| change.send.batch.month);
    let is_single = |change: &Change| {
        change.is_plain_acceptance()
            && change.captured.is_none()
            && matches!(change.send.batch.kind, MessageKind::Transactional | MessageKind::OneOff)
            && Some(change.send.batch.month) == month
    };
    changes.iter().all(is_single) && batch_keys(changes.iter().map(|change| &change.send)).len() == changes.len()
}

/// Locks the contacts to be suppressed; answers those that another transaction has locked, unless it waits for them.
async fn lock_suppressed(db: &mut PgConnection, changes: &[Change], wait: bool) -> sqlx::Result<HashSet<Uuid>> {
    let suppressing: Vec<&SendAttempt> =
        changes.iter().filter(|change| change.suppress.is_some()).map(|change| &change.send).collect();
    if suppressing.is_empty() {
        return Ok(HashSet::new());
    }
    // In the lock order of the ledger. Contacts of fences are only tried, so two writers cannot deadlock.
    let (tenants, contacts) = contact_keys(suppressing.into_iter());
    if wait {
        people::lock_people(db, &tenants.into_iter().zip(contacts).collect::<Vec<_>>()).await?;
        return Ok(HashSet::new());
    }
    let locked = people::try_lock_contacts(db, &tenants, &contacts).await?;
    Ok(contacts.into_iter().filter(|contact| !locked.contains(contact)).collect())
}

fn asked_send(send: &SendAttempt, batches: &HashMap<Uuid, FenceBatch>) -> AskedSend {
    let batch = batches.get(&send.batch.batch_id);
    AskedSend {
        tenant_id: send.batch.tenant_id,
        send_id: send.id,
        contact_id: send.contact_id,
        topic: batch.and_then(|batch| batch.topic),
        capped: batch.and_then(|batch| batch.capped),
        is_of_sequence: send.batch.kind == MessageKind::Sequence,
    }
}

/// The change of a fence.
fn gated(
    send: &SendAttempt,
    batch: Option<&FenceBatch>,
    eligibility: Option<&RecipientEligibility>,
    facts: SendFacts,
) -> Change {
    let send = send.clone();
    let mail = (send.batch.kind, send.batch.classification);
    let now = batch.map_or_else(Utc::now, |batch| batch.read_at);
    let decided = gate::decide_send(batch.map(|batch| &batch.eligibility), eligibility, mail, facts, now);
    let asked =
        eligibility.filter(|_| decided == GateDecision::Pass && batch.is_some_and(|batch| batch.asks_to_confirm));
    Change::decided(send, asked.map_or(decided, gate::decide_confirmation), now)
}

/// What a definite answer to a fence makes of a send that the sweep has moved meanwhile. A refusal resolves `unknown`; an acceptance also
/// resolves a send that is to be tried once more, in whatever state the second attempt is. A send that was certainly not taken and would be
/// tried again has failed: its batch may be done, and its owner can have it tried again.
fn evidence(change: &Change) -> Vec<Change> {
    let resolving = |from| Change { from, ..change.clone() };
    match (change.from, change.to) {
        (SendState::Fenced, SendState::Sent) => {
            [SendState::Unknown, SendState::Queued, SendState::Deferred, SendState::Fenced].map(resolving).into()
        }
        (SendState::Fenced, SendState::Failed | SendState::Expired) => vec![resolving(SendState::Unknown)],
        // Not if an attempt before may have arrived.
        (SendState::Fenced, SendState::Deferred | SendState::Queued)
            if !change.doubted && change.send.doubtful == 0 =>
        {
            vec![Change {
                to: SendState::Failed,
                // A deferral because of a full mailbox is no bounce yet.
                reason: Some("temporary"),
                wait: None,
                uncounted: false,
                event: Some("failed"),
                announce: NextAnnouncement::AsPlanned,
                ..resolving(SendState::Unknown)
            }]
        }
        _ => Vec::new(),
    }
}

fn totals(all: &[&Change], moved: &[Option<Moved>]) -> Totals {
    let mut totals = Totals::new();
    for (change, moved) in all.iter().zip(moved) {
        let Some(moved) = moved else { continue };
        let mut add = |hour, kind, event, by| {
            *totals.entry((change.send.batch.tenant_id, hour, kind, event)).or_default() += by;
        };
        let kind = change.send.batch.kind.as_str();
        let by_result = [moved.is_bounced.then_some("bounced"), moved.is_delivered.then_some("delivered")];
        for event in counters::total_of(change.to).into_iter().chain(by_result.into_iter().flatten()) {
            add(None, kind, event, 1);
        }
        if let Some(at) = moved.doubted_at {
            add(Some(hour_of(at)), kind, "unknown", -1);
        }
        if let Some(reason) = change.failure().filter(|_| change.send.batch.kind != MessageKind::Test) {
            add(None, "failure", reason, 1);
        }
    }
    totals
}

fn batch_keys<'a>(sends: impl Iterator<Item = &'a SendAttempt>) -> Vec<BatchKey> {
    let mut keys: Vec<BatchKey> = sends.map(|send| (send.batch.tenant_id, send.batch.batch_id)).collect();
    keys.sort_unstable();
    keys.dedup();
    keys
}

fn contact_keys<'a>(sends: impl Iterator<Item = &'a SendAttempt>) -> (Vec<Uuid>, Vec<Uuid>) {
    let mut keys: Vec<(Uuid, Uuid)> = sends.map(|send| (send.contact_id, send.batch.tenant_id)).collect();
    keys.sort_unstable();
    keys.dedup();
    keys.into_iter().map(|(contact, tenant)| (tenant, contact)).unzip()
}

/// The indexes of the changes that move a send, by month and in order of send id.
fn by_month(all: &[&Change]) -> BTreeMap<NaiveDate, Vec<usize>> {
    let mut months: BTreeMap<NaiveDate, Vec<usize>> = BTreeMap::new();
    for (index, change) in all.iter().enumerate().filter(|(_, change)| !change.is_announcement_only()) {
        months.entry(change.send.batch.month).or_default().push(index);
    }
    for indexes in months.values_mut() {
        indexes.sort_by_key(|index| all[*index].send.id);
    }
    months
}

fn kind(fences: &[SendAttempt], changes: &[&Change]) -> &'static str {
    match (fences.is_empty(), changes.is_empty()) {
        (false, true) => "fence",
        (true, _) => "result",
        (false, false) => "both",
    }
}

/// Counts what was committed, by lane and state; skips also by reason.
fn count<'a>(moved: impl Iterator<Item = &'a Change>) {
    let mut states: HashMap<(&'static str, &'static str), u64> = HashMap::new();
    for change in moved.filter(|change| !matches!(change.to, SendState::Fenced | SendState::Queued)) {
        // No receiver has deferred it.
        if change.is_postponed() {
            continue;
        }
        *states.entry((change.send.batch.lane.as_str(), change.to.as_str())).or_default() += 1;
        if let (SendState::Skipped, Some(reason)) = (change.to, change.reason) {
            Counter::SendsWithheldTotal.add(1, [("stage", "delivery"), ("reason", reason)]);
        }
        if let (SendState::Failed, Some(class)) = (change.to, change.reason) {
            let lane = change.send.batch.lane.as_str();
            Counter::SendsFailedTotal.add(1, [("lane", lane), ("class", class)]);
        }
    }
    for ((lane, state), count) in states {
        Counter::SendsTotal.add(count, [("lane", lane), ("state", state)]);
    }
}
