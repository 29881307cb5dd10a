//! Ends enrollments between two steps: triggers on facts note the contact in `enrollment_checks`, and this sweep decides whether its
//! enrollments end. Each step makes the same check before it acts, so nothing depends on how soon the sweep runs.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    time::Duration,
};

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use ledger::gate::load_eligibility;
use runner::{StageError, Sweep, SweepSchedule};
use runtime::{Counter, column, plans::PreparedPool};
use schemas::ExitReason;
use serde_json::Value;
use sqlx::PgConnection;
use uuid::Uuid;

use crate::{
    decide::{EnrollmentFacts, early_exit},
    sequence::{self, ExitEvent, Sequences},
};

/// Notes taken in one transaction.
const NOTES_MAX: i64 = 500;
/// Enrollments checked in one transaction. The noted contacts share them: more than the ten that there are for each of [`NOTES_MAX`] are rare.
const ENROLLMENTS_MAX: usize = 5_000;

/// The sweep. A contact with many enrollments is checked in slices: its note says how far.
pub(crate) struct Checks(pub(crate) PreparedPool);

#[async_trait]
impl Sweep for Checks {
    fn schedule(&self) -> SweepSchedule {
        SweepSchedule::every("check_exits", Duration::from_millis(500))
            .when("exists (select from enrollment_checks)")
            .also_when_paused()
    }

    async fn sweep(&self) -> Result<u64, StageError> {
        let mut tx = self.0.begin().await?;
        let notes = sqlx::query_file_as!(ExitNote, "queries/checks_in_turn.sql", NOTES_MAX).fetch_all(&mut *tx).await?;
        if notes.is_empty() {
            tx.rollback().await?;
            return Ok(0);
        }
        let passes = passes(&notes);
        let share = (ENROLLMENTS_MAX / passes.len()).max(1);
        let slice = lock(&mut tx, &passes, share).await?;
        let leaving = leaving(&mut tx, &notes, &slice).await?;
        end(&mut tx, &leaving).await?;
        let handled = advance_notes(&mut tx, &notes, &passes, &slice, share).await?;
        tx.commit().await?;
        for (_, _, reason) in &leaving {
            Counter::EnrollmentsEndedTotal.add(1, [("reason", reason.as_str())]);
        }
        Ok(u64::try_from(handled).unwrap_or(0))
    }
}

/// A tenant's contact.
type NotedContact = (Uuid, Uuid);

/// A time, and an id of that time: of an enrollment when it was made, of an event when it was received.
type TimedId = (DateTime<Utc>, Uuid);

/// A contact whose enrollments may have to end, locked by this transaction.
#[derive(Debug)]
struct ExitNote {
    tenant_id: Uuid,
    id: i64,
    contact_id: Uuid,
    replied_to: Option<Uuid>,
    reached_at: DateTime<Utc>,
    reached_id: Uuid,
}

impl ExitNote {
    fn contact(&self) -> NotedContact {
        (self.tenant_id, self.contact_id)
    }

    /// The last enrollment that is checked.
    fn reached(&self) -> TimedId {
        (self.reached_at, self.reached_id)
    }
}

/// An enrollment of a noted contact, locked by this transaction.
#[derive(Debug)]
struct CheckedEnrollment {
    tenant_id: Uuid,
    id: Uuid,
    sequence_id: Uuid,
    contact_id: Uuid,
    opted_out_by_step: bool,
    event_id: Option<Uuid>,
    started_at: DateTime<Utc>,
    created_at: DateTime<Utc>,
    /// It neither ended nor went to another contact while its lock was waited for.
    is_live: bool,
}

impl CheckedEnrollment {
    fn contact(&self) -> NotedContact {
        (self.tenant_id, self.contact_id)
    }

    fn position(&self) -> TimedId {
        (self.created_at, self.id)
    }

    /// What started it. The event that ends it came later: of the events of one request, by their ids.
    fn start(&self) -> TimedId {
        (self.started_at, self.event_id.unwrap_or_default())
    }
}

/// How far the check of each contact is. Of several notes the one that is furthest goes first, so that new ones do not keep it from its end.
fn passes(notes: &[ExitNote]) -> BTreeMap<NotedContact, TimedId> {
    let mut passes = BTreeMap::new();
    for note in notes {
        let reached = passes.entry(note.contact()).or_insert(note.reached());
        *reached = note.reached().max(*reached);
    }
    passes
}

/// Locks the contacts' next live enrollments, at most so many of each, in key order. It waits for a step that is being taken: that
/// transaction is short.
async fn lock(
    db: &mut PgConnection,
    passes: &BTreeMap<NotedContact, TimedId>,
    share: usize,
) -> sqlx::Result<Vec<CheckedEnrollment>> {
    sqlx::query_file_as!(
        CheckedEnrollment,
        "queries/enrollments_to_check.sql",
        &column(passes, |((tenant, _), _)| *tenant),
        &column(passes, |((_, contact), _)| *contact),
        &column(passes, |(_, (at, _))| *at),
        &column(passes, |(_, (_, id))| *id),
        i64::try_from(share).unwrap_or(i64::MAX),
    )
    .fetch_all(db)
    .await
}

/// The enrollments that end, with their reasons. What holds for a contact or a sequence is read once for all its enrollments.
async fn leaving(
    db: &mut PgConnection,
    notes: &[ExitNote],
    slice: &[CheckedEnrollment],
) -> sqlx::Result<Vec<(Uuid, Uuid, ExitReason)>> {
    let contacts: BTreeSet<NotedContact> = slice.iter().map(CheckedEnrollment::contact).collect();
    let (tenants, contacts): (Vec<Uuid>, Vec<Uuid>) = contacts.into_iter().unzip();
    let eligibility = load_eligibility(&mut *db, &tenants, &contacts).await?;
    let keys = slice.iter().map(|enrollment| (enrollment.tenant_id, enrollment.sequence_id)).collect();
    let sequences = sequence::load_without_steps(&mut *db, keys).await?;
    let answered = answered(&mut *db, notes).await?;
    let events = last_exit_events(db, slice, &sequences).await?;
    let reason = |enrollment: &CheckedEnrollment| {
        let sequence = sequences.get(&(enrollment.tenant_id, enrollment.sequence_id))?;
        let event = events.get(&(enrollment.contact(), enrollment.sequence_id));
        let facts = EnrollmentFacts {
            opted_out_by_step: enrollment.opted_out_by_step,
            replied: answered.contains(&(enrollment.tenant_id, enrollment.id)),
            ended_by_event: event.is_some_and(|event| *event > enrollment.start()),
        };
        let reason = match eligibility.get(&enrollment.contact()) {
            None => Some(ExitReason::ContactArchived),
            Some(eligibility) => early_exit(eligibility, sequence.rules, facts),
        };
        Some((enrollment.tenant_id, enrollment.id, reason?))
    };
    Ok(slice.iter().filter(|enrollment| enrollment.is_live).filter_map(reason).collect())
}

/// The enrollments whose mail was answered: tenant and id.
async fn answered(db: &mut PgConnection, notes: &[ExitNote]) -> sqlx::Result<HashSet<(Uuid, Uuid)>> {
    let replies = notes.iter().filter_map(|note| Some((note.tenant_id, note.replied_to?)));
    let (tenants, sends): (Vec<Uuid>, Vec<Uuid>) = replies.unzip();
    if sends.is_empty() {
        return Ok(HashSet::new());
    }
    let rows = sqlx::query!(
        "select q.tenant_id, q.enrollment_id
         from unnest($1::uuid[], $2::uuid[]) as w (tenant_id, send_id)
         join sequence_sends q on q.tenant_id = w.tenant_id and q.send_id = w.send_id",
        &tenants,
        &sends,
    )
    .fetch_all(db)
    .await?;
    Ok(rows.into_iter().map(|row| (row.tenant_id, row.enrollment_id)).collect())
}

/// The last event that ends the enrollments of a contact in a sequence.
async fn last_exit_events(
    db: &mut PgConnection,
    slice: &[CheckedEnrollment],
    sequences: &Sequences,
) -> sqlx::Result<HashMap<(NotedContact, Uuid), TimedId>> {
    let keys: BTreeSet<(NotedContact, Uuid)> =
        slice.iter().map(|enrollment| (enrollment.contact(), enrollment.sequence_id)).collect();
    let exit_of = |(contact, sequence): (NotedContact, Uuid)| {
        Some((contact, sequence, sequences.get(&(contact.0, sequence))?.exit_event.as_ref()?))
    };
    let asked: Vec<(NotedContact, Uuid, &ExitEvent)> = keys.into_iter().filter_map(exit_of).collect();
    if asked.is_empty() {
        return Ok(HashMap::new());
    }
    let rows = sqlx::query_file!(
        "queries/last_exit_events.sql",
        &column(&asked, |((tenant, _), ..)| *tenant),
        &column(&asked, |((_, contact), ..)| *contact),
        &column(&asked, |(_, sequence, _)| *sequence),
        &column(&asked, |(.., exit)| exit.event.as_str()) as &[&str],
        &column(&asked, |(.., exit)| &exit.properties) as &[&Value],
    )
    .fetch_all(db)
    .await?;
    let events = rows.into_iter().map(|row| {
        let key = ((row.tenant_id, row.contact_id), row.sequence_id);
        (key, (row.received_at, row.id))
    });
    Ok(events.collect())
}

async fn end(db: &mut PgConnection, leaving: &[(Uuid, Uuid, ExitReason)]) -> sqlx::Result<()> {
    sqlx::query!(
        "update enrollments e
         set status = 'exited', exit_reason = w.reason, next_action_at = null, claim_token = null, ended_at = now(), updated_at = now()
         from unnest($1::uuid[], $2::uuid[], $3::text[]) as w (tenant_id, id, reason)
         where e.tenant_id = w.tenant_id and e.id = w.id",
        &column(leaving, |(tenant, ..)| *tenant),
        &column(leaving, |(_, id, _)| *id),
        &column(leaving, |(.., reason)| reason.as_str()) as &[&str],
    )
    .execute(db)
    .await
    .map(drop)
}

/// Deletes the notes of contacts that are through, and moves those of the others on. Answers how many there were. Notes that came while their
/// contact was being checked wait for the end of that.
async fn advance_notes(
    db: &mut PgConnection,
    notes: &[ExitNote],
    passes: &BTreeMap<NotedContact, TimedId>,
    slice: &[CheckedEnrollment],
    share: usize,
) -> sqlx::Result<usize> {
    let mut checked: HashMap<NotedContact, (usize, TimedId)> = HashMap::new();
    for enrollment in slice {
        let (count, last) = checked.entry(enrollment.contact()).or_insert((0, enrollment.position()));
        *count += 1;
        *last = enrollment.position().max(*last);
    }
    let (mut through, mut moved) = (Vec::new(), Vec::new());
    for note in notes.iter().filter(|note| passes.get(&note.contact()) == Some(&note.reached())) {
        match checked.get(&note.contact()) {
            Some((count, last)) if *count >= share => moved.push((note.tenant_id, note.id, *last)),
            _ => through.push((note.tenant_id, note.id)),
        }
    }
    sqlx::query!(
        "delete from enrollment_checks k using unnest($1::uuid[], $2::bigint[]) as w (tenant_id, id)
         where k.tenant_id = w.tenant_id and k.id = w.id",
        &column(&through, |(tenant, _)| *tenant),
        &column(&through, |(_, id)| *id),
    )
    .execute(&mut *db)
    .await?;
    if !moved.is_empty() {
        sqlx::query!(
            "update enrollment_checks k set reached_at = w.at, reached_id = w.enrollment_id
             from unnest($1::uuid[], $2::bigint[], $3::timestamptz[], $4::uuid[]) as w (tenant_id, id, at, enrollment_id)
             where k.tenant_id = w.tenant_id and k.id = w.id",
            &column(&moved, |(tenant, ..)| *tenant),
            &column(&moved, |(_, id, _)| *id),
            &column(&moved, |(.., (at, _))| *at),
            &column(&moved, |(.., (_, enrollment))| *enrollment),
        )
        .execute(db)
        .await?;
    }
    Ok(through.len() + moved.len())
}

#[cfg(test)]
mod tests {
    use stage_rig::{Person, Rig, Tenant};

    use super::*;

    /// A contact that is enrolled in one sequence so many times at once.
    async fn enrolled(rig: &Rig, tenant: &Tenant, times: i32) -> Person {
        let person = rig.people(tenant, 1).await.remove(0);
        sqlx::query(
            "insert into sequences (tenant_id, id, product, environment, name, status)
             values ($1, $2, 'shop', 'production', 'Many', 'active')",
        )
        .bind(tenant.id)
        .bind(person.id)
        .execute(&rig.pool)
        .await
        .unwrap();
        sqlx::query(
            "insert into enrollments (tenant_id, id, sequence_id, contact_id, product, next_action_at, is_parallel, created_at)
             select $1, gen_random_uuid(), $2, $2, 'shop', now() + interval '30 days', true, now() - make_interval(mins => n)
             from generate_series(1, $3) n",
        )
        .bind(tenant.id)
        .bind(person.id)
        .bind(times)
        .execute(&rig.pool)
        .await
        .unwrap();
        person
    }

    /// Enrollments that the only connection of the pool has read.
    async fn rows_read(by_key: &PreparedPool) -> i64 {
        let mut db = by_key.take().await.unwrap();
        sqlx::query("select pg_stat_force_next_flush()").execute(&mut *db).await.unwrap();
        let read = sqlx::query_scalar("select pg_stat_get_tuples_fetched('enrollments'::regclass)");
        let read = read.fetch_one(&mut *db).await.unwrap();
        db.put_back();
        read
    }

    #[tokio::test]
    async fn a_contact_with_many_enrollments_delays_no_other_tenant() {
        let rig = Rig::new().await;
        let (busy, other) = (rig.tenant().await, rig.tenant().await);
        let many = enrolled(&rig, &busy, 6_000).await;
        let one = enrolled(&rig, &other, 1).await;
        // Each of its starts noted it.
        sqlx::query("insert into enrollment_checks (tenant_id, contact_id) select $1, $2 from generate_series(1, 600)")
            .bind(busy.id)
            .bind(many.id)
            .execute(&rig.pool)
            .await
            .unwrap();
        for (tenant, person) in [(&busy, &many), (&other, &one)] {
            rig.suppress(tenant, person, "complaint", "all").await;
        }
        let checks = Checks(PreparedPool::new(&rig.pool, 1));
        let before = rows_read(&checks.0).await;
        checks.sweep().await.unwrap();
        let read = rows_read(&checks.0).await - before;
        assert!(read < 5 * 6_000, "{read} enrollments were read");
        let tenants = "select count(distinct tenant_id) from enrollments where exit_reason = 'complained'";
        assert_eq!(rig.number(tenants).await, 2);
        // The rest follows, slice by slice.
        while checks.sweep().await.unwrap() > 0 {}
        assert_eq!(rig.number("select count(*) from enrollments where exit_reason = 'complained'").await, 6_001);
        assert_eq!(rig.number("select count(*) from enrollment_checks").await, 0);
    }

    #[tokio::test]
    async fn notes_that_come_meanwhile_do_not_begin_a_check_anew() {
        let rig = Rig::new().await;
        let tenant = rig.tenant().await;
        let person = enrolled(&rig, &tenant, 5_500).await;
        let note = "insert into enrollment_checks (tenant_id, contact_id) values ($1, $2)";
        let checks = Checks(PreparedPool::new(&rig.pool, 1));
        for left in [1, 1] {
            sqlx::query(note).bind(tenant.id).bind(person.id).execute(&rig.pool).await.unwrap();
            checks.sweep().await.unwrap();
            assert_eq!(rig.number("select count(*) from enrollment_checks").await, left);
        }
    }
}
