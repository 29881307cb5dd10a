//! Starts sequences by their triggers. The writer of what happened notes an occurrence in the same transaction
//! (`trigger_occurrences`); the key of its row decides that it counts once, and this sweep decides whether the contact is enrolled.

use std::{collections::HashSet, time::Duration};

use async_trait::async_trait;
use chrono::{DateTime, TimeDelta, Utc};
use runner::{StageError, Sweep, SweepSchedule};
use runtime::{column, plans::PreparedPool};
use schemas::{DelayUnit, SequenceStatus, delay, new_id};
use sqlx::PgConnection;
use uuid::Uuid;

/// Occurrences decided in one transaction. Each takes a lock, and Postgres has space for 64 to a connection, over all of them.
const AT_ONCE: i64 = 128;

/// The sweep. Any number of processes may run it: each takes other occurrences, and the contact's place in a sequence is locked.
pub(crate) struct SequenceStarts(pub(crate) PreparedPool);

#[async_trait]
impl Sweep for SequenceStarts {
    fn schedule(&self) -> SweepSchedule {
        SweepSchedule::every("start_sequences", Duration::from_millis(250))
            .when("exists (select from trigger_occurrences where decided_at is null)")
    }

    async fn sweep(&self) -> Result<u64, StageError> {
        let mut tx = self.0.begin().await?;
        let occurrences = lock(&mut tx).await?;
        if occurrences.is_empty() {
            tx.rollback().await?;
            return Ok(0);
        }
        let facts = facts(&mut tx, &occurrences).await?;
        let now = sqlx::query_scalar!(r#"select now() as "now!""#).fetch_one(&mut *tx).await?;
        let starts = decide(&occurrences, facts, now);
        let enrolled = enroll(&mut tx, &starts).await?;
        write_outcomes(&mut tx, &starts, &enrolled).await?;
        tx.commit().await?;
        Ok(u64::try_from(starts.len()).unwrap_or(0))
    }
}

/// An occurrence that is not decided, locked by this transaction.
#[derive(Debug)]
struct Occurrence {
    tenant_id: Uuid,
    sequence_id: Uuid,
    contact_id: Uuid,
    occurrence: String,
    event_id: Option<Uuid>,
    noted_at: DateTime<Utc>,
}

impl Occurrence {
    /// The contact's place in the sequence.
    fn place(&self) -> (Uuid, Uuid, Uuid) {
        (self.tenant_id, self.sequence_id, self.contact_id)
    }
}

/// Locks undecided occurrences, the same share of each tenant and its oldest first, and the places of their contacts in the sequences: two
/// occurrences of a contact are decided one after the other, whichever processes have them.
async fn lock(db: &mut PgConnection) -> sqlx::Result<Vec<Occurrence>> {
    let mut occurrences =
        sqlx::query_file_as!(Occurrence, "queries/occurrences_in_turn.sql", AT_ONCE).fetch_all(&mut *db).await?;
    occurrences.sort_by_key(|one| (one.place(), one.noted_at));
    // The order of the locks is the same in every process.
    sqlx::query!(
        "select pg_advisory_xact_lock(hashtextextended('start ' || w.sequence_id || w.contact_id, 0))
         from unnest($1::uuid[], $2::uuid[]) as w (sequence_id, contact_id)",
        &column(&occurrences, |one| one.sequence_id),
        &column(&occurrences, |one| one.contact_id),
    )
    .fetch_all(db)
    .await?;
    Ok(occurrences)
}

/// What decides about an occurrence.
#[derive(Debug, Clone)]
struct StartFacts {
    place: i64,
    status: SequenceStatus,
    product: String,
    reentry: String,
    reentry_gap_minutes: i32,
    tenant_timezone: String,
    contact_timezone: Option<String>,
    contact_active: bool,
    step_order: Option<i16>,
    delay_amount: Option<i32>,
    delay_unit: Option<DelayUnit>,
    /// When the contact was enrolled in the sequence last.
    last_at: Option<DateTime<Utc>>,
    /// An enrollment of the contact in it is under way.
    is_live: bool,
}

impl StartFacts {
    /// Why the occurrence starts nothing.
    fn refusal(&self, now: DateTime<Utc>) -> Option<&'static str> {
        let runs = matches!(self.status, SequenceStatus::Active | SequenceStatus::Paused) && self.step_order.is_some();
        if !runs || !self.contact_active {
            return Some("not_active");
        }
        let again = match self.reentry.as_str() {
            "every_time" => true,
            "after_finishing" => !self.is_live,
            _ => self.last_at.is_none(),
        };
        if !again {
            return Some("reentry");
        }
        let gap = TimeDelta::minutes(self.reentry_gap_minutes.into());
        self.last_at.is_some_and(|last| last + gap > now).then_some("gap")
    }

    fn start(self, now: DateTime<Utc>) -> NewStart {
        let zone = delay::zone(self.contact_timezone.as_deref(), &self.tenant_timezone);
        let amount = self.delay_amount.and_then(|amount| u32::try_from(amount).ok()).unwrap_or(0);
        NewStart {
            enrollment_id: new_id(),
            product: self.product,
            next_step: self.step_order.unwrap_or(1),
            next_action_at: delay::after(now, amount, self.delay_unit.unwrap_or(DelayUnit::Minutes), zone),
            is_parallel: self.reentry == "every_time",
        }
    }
}

/// Reads what decides. The sequences are held as they are: one that is being paused or archived waits, and the enrollments made here
/// follow it then. So are the contacts: the occurrences of one that is being merged are decided for the one that is left.
async fn facts(db: &mut PgConnection, occurrences: &[Occurrence]) -> sqlx::Result<Vec<StartFacts>> {
    let (tenants, sequences) = (column(occurrences, |one| one.tenant_id), column(occurrences, |one| one.sequence_id));
    sqlx::query!(
        "select s.id from sequences s
         where (s.tenant_id, s.id) in (select * from unnest($1::uuid[], $2::uuid[])) order by s.tenant_id, s.id for share",
        &tenants,
        &sequences,
    )
    .fetch_all(&mut *db)
    .await?;
    let contacts = column(occurrences, |one| one.contact_id);
    sqlx::query!(
        "select c.id from contacts c
         where (c.tenant_id, c.id) in (select * from unnest($1::uuid[], $2::uuid[])) order by c.tenant_id, c.id for key share",
        &tenants,
        &contacts,
    )
    .fetch_all(&mut *db)
    .await?;
    sqlx::query_file_as!(StartFacts, "queries/start_facts.sql", &tenants, &sequences, &contacts).fetch_all(db).await
}

/// A decided occurrence: the enrollment to be, or why there is none.
type Start<'a> = (&'a Occurrence, Result<NewStart, &'static str>);

struct NewStart {
    enrollment_id: Uuid,
    product: String,
    next_step: i16,
    next_action_at: DateTime<Utc>,
    is_parallel: bool,
}

/// Decides about occurrences in their order: what one of them starts counts for the next one of the same contact.
fn decide(occurrences: &[Occurrence], mut facts: Vec<StartFacts>, now: DateTime<Utc>) -> Vec<Start<'_>> {
    facts.sort_unstable_by_key(|facts| facts.place);
    let mut entered = HashSet::new();
    let mut starts = Vec::with_capacity(facts.len());
    for mut facts in facts {
        let place = usize::try_from(facts.place - 1).ok();
        let Some(occurrence) = place.and_then(|place| occurrences.get(place)) else { continue };
        if entered.contains(&occurrence.place()) {
            (facts.last_at, facts.is_live) = (Some(now), true);
        }
        let decision = facts.refusal(now).map_or_else(|| Ok(facts.start(now)), Err);
        if decision.is_ok() {
            entered.insert(occurrence.place());
        }
        starts.push((occurrence, decision));
    }
    starts
}

/// Enrolls; answers the enrollments that were made. One that a caller made at this moment stands in the way of the same contact's.
async fn enroll(db: &mut PgConnection, starts: &[Start<'_>]) -> sqlx::Result<HashSet<Uuid>> {
    let new: Vec<(&Occurrence, &NewStart)> =
        starts.iter().filter_map(|(one, decision)| Some((*one, decision.as_ref().ok()?))).collect();
    if new.is_empty() {
        return Ok(HashSet::new());
    }
    let made = sqlx::query_file_scalar!(
        "queries/start_enrollments.sql",
        &column(&new, |(one, _)| one.tenant_id),
        &column(&new, |(_, start)| start.enrollment_id),
        &column(&new, |(one, _)| one.sequence_id),
        &column(&new, |(one, _)| one.contact_id),
        &column(&new, |(_, start)| start.product.as_str()) as &[&str],
        &column(&new, |(_, start)| start.next_step),
        &column(&new, |(_, start)| start.next_action_at),
        &column(&new, |(one, _)| one.event_id) as &[Option<Uuid>],
        &column(&new, |(_, start)| start.is_parallel),
        &column(&new, |(one, _)| one.noted_at),
    )
    .fetch_all(db)
    .await?;
    Ok(made.into_iter().collect())
}

async fn write_outcomes(db: &mut PgConnection, starts: &[Start<'_>], enrolled: &HashSet<Uuid>) -> sqlx::Result<()> {
    let decided = starts.iter().map(|(_, decision)| match decision {
        Ok(new) if enrolled.contains(&new.enrollment_id) => ("enrolled", Some(new.enrollment_id)),
        Ok(_) => ("reentry", None),
        Err(refusal) => (*refusal, None),
    });
    let (outcomes, enrollments): (Vec<&str>, Vec<Option<Uuid>>) = decided.unzip();
    sqlx::query!(
        "update trigger_occurrences o set decided_at = now(), outcome = w.outcome, enrollment_id = w.enrollment_id
         from unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::text[], $5::text[], $6::uuid[])
             as w (tenant_id, sequence_id, contact_id, occurrence, outcome, enrollment_id)
         where o.tenant_id = w.tenant_id and o.sequence_id = w.sequence_id and o.contact_id = w.contact_id
           and o.occurrence = w.occurrence",
        &column(starts, |(one, _)| one.tenant_id),
        &column(starts, |(one, _)| one.sequence_id),
        &column(starts, |(one, _)| one.contact_id),
        &column(starts, |(one, _)| one.occurrence.as_str()) as &[&str],
        &outcomes as &[&str],
        &enrollments as &[Option<Uuid>],
    )
    .execute(db)
    .await
    .map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::Value;
    use sqlx::AssertSqlSafe;
    use stage_rig::{Rig, rows_in_vain, scans};

    #[tokio::test]
    async fn a_contacts_enrollments_are_read_once_for_all_its_occurrences() {
        let rig = Rig::new().await;
        let tenant = rig.tenant().await;
        let people = rig.people(&tenant, 2_000).await;
        // As after the first launch of a sequence: nobody has analysed the table yet.
        for sql in [
            "insert into sequences (tenant_id, id, product, environment, name, status) values ($1, $1, 'shop', 'production', 'Many', 'active')",
            "insert into enrollments (tenant_id, id, sequence_id, contact_id, product, next_action_at)
             select tenant_id, gen_random_uuid(), $1, id, 'shop', now() from contacts",
        ] {
            sqlx::query(sql).bind(tenant.id).execute(&rig.pool).await.unwrap();
        }
        let sql = format!("explain (analyze, format json)\n{}", include_str!("../queries/start_facts.sql"));
        let plan: Value = sqlx::query_scalar(AssertSqlSafe(sql))
            .bind(vec![tenant.id; 128])
            .bind(vec![tenant.id; 128])
            .bind(vec![people[0].id; 128])
            .fetch_one(&mut *PreparedPool::new(&rig.pool, 1).begin().await.unwrap())
            .await
            .unwrap();
        assert_eq!(scans(&plan, "enrollments"), 1, "{plan:#}");
        assert!(rows_in_vain(&plan) < 1_000.0, "{plan:#}");
    }

    #[rstest]
    #[case("once", 0, None, false, None)]
    #[case("once", 0, Some(90), false, Some("reentry"))]
    #[case("after_finishing", 0, Some(90), false, None)]
    #[case("after_finishing", 0, Some(90), true, Some("reentry"))]
    #[case("after_finishing", 91, Some(90), false, Some("gap"))]
    #[case("every_time", 60, None, false, None)]
    #[case("every_time", 60, Some(90), true, None)]
    #[case("every_time", 60, Some(59), true, Some("gap"))]
    #[case("every_time", 60, Some(59), false, Some("gap"))]
    fn reentry_follows_the_rule_and_the_gap(
        #[case] reentry: &str,
        #[case] gap: i32,
        #[case] minutes_ago: Option<i64>,
        #[case] is_live: bool,
        #[case] refusal: Option<&str>,
    ) {
        let now = Utc::now();
        let facts = StartFacts {
            place: 1,
            status: SequenceStatus::Active,
            product: "shop".to_owned(),
            reentry: reentry.to_owned(),
            reentry_gap_minutes: gap,
            tenant_timezone: "UTC".to_owned(),
            contact_timezone: None,
            contact_active: true,
            step_order: Some(1),
            delay_amount: Some(0),
            delay_unit: Some(DelayUnit::Minutes),
            last_at: minutes_ago.map(|minutes| now - TimeDelta::minutes(minutes)),
            is_live,
        };
        assert_eq!(facts.refusal(now), refusal);
        let archived = StartFacts { status: SequenceStatus::Archived, ..facts.clone() };
        assert_eq!(archived.refusal(now), Some("not_active"));
        assert_eq!(StartFacts { contact_active: false, ..facts }.refusal(now), Some("not_active"));
    }
}
