//! Ends enrollments between two steps: triggers on facts note the contact in `enrollment_checks`, and this sweep decides whether its
//! enrollments end. Each step makes the same check before it acts, so nothing depends on how soon the sweep runs.

use std::{collections::BTreeSet, time::Duration};

use async_trait::async_trait;
use runner::{StageError, Sweep, SweepSchedule};
use runtime::{Counter, column, plans::PreparedPool};
use schemas::ExitReason;
use sqlx::PgConnection;
use uuid::Uuid;

use crate::{
    decide::early_exit,
    due::{self, Due},
    sequence,
};

/// Notes handled in one transaction.
const AT_ONCE: i64 = 500;

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
        let notes = sqlx::query!(
            "select id, tenant_id, contact_id from enrollment_checks order by id limit $1 for update skip locked",
            AT_ONCE
        )
        .fetch_all(&mut *tx)
        .await?;
        if notes.is_empty() {
            tx.rollback().await?;
            return Ok(0);
        }
        let contacts: BTreeSet<(Uuid, Uuid)> = notes.iter().map(|note| (note.tenant_id, note.contact_id)).collect();
        let live = lock(&mut tx, contacts).await?;
        let leaving = leaving(&mut tx, &live).await?;
        end(&mut tx, &leaving).await?;
        let ids: Vec<i64> = notes.iter().map(|note| note.id).collect();
        sqlx::query!("delete from enrollment_checks where id = any ($1)", &ids).execute(&mut *tx).await?;
        tx.commit().await?;
        for (_, _, reason) in &leaving {
            Counter::EnrollmentsEndedTotal.add(1, [("reason", reason.as_str())]);
        }
        Ok(u64::try_from(ids.len()).unwrap_or(0))
    }
}

/// Locks the contacts' live enrollments, in key order. It waits for a step that is being taken: that transaction is short.
async fn lock(db: &mut PgConnection, contacts: BTreeSet<(Uuid, Uuid)>) -> sqlx::Result<Vec<Due>> {
    let (tenants, contacts): (Vec<Uuid>, Vec<Uuid>) = contacts.into_iter().unzip();
    sqlx::query_as!(
        Due,
        r#"select e.tenant_id, e.id, e.sequence_id, e.version, e.contact_id, e.product, e.next_step, e.next_action_at as "due_at!", e.attempts,
                  e.opted_out_by_step
           from unnest($1::uuid[], $2::uuid[]) as w (tenant_id, contact_id)
           join enrollments e on e.tenant_id = w.tenant_id and e.contact_id = w.contact_id and e.status in ('active', 'paused')
           order by e.tenant_id, e.id
           for no key update of e"#,
        &tenants,
        &contacts,
    )
    .fetch_all(db)
    .await
}

/// The enrollments that end, with their reasons.
async fn leaving(db: &mut PgConnection, live: &[Due]) -> sqlx::Result<Vec<(Uuid, Uuid, ExitReason)>> {
    let sequences = sequence::load(&mut *db, live).await?;
    let people = due::people(db, live, &sequences).await?;
    let reason = |(due, person): (&Due, &Option<due::EnrolledContact>)| {
        let sequence = sequences.get(&(due.tenant_id, due.sequence_id))?;
        let reason = match person {
            None => Some(ExitReason::ContactArchived),
            Some(person) => early_exit(due, sequence, person),
        };
        Some((due.tenant_id, due.id, reason?))
    };
    Ok(live.iter().zip(&people).filter_map(reason).collect())
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
