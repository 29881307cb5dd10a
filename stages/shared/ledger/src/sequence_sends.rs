//! Mail of sequence steps: its batches and sends.

use std::collections::HashSet;

use runtime::column;
use schemas::{ids::PROMPT_BATCH_MAX, month_of};
use sqlx::PgConnection;
use uuid::Uuid;

use crate::dispatch::PRIORITY_REANNOUNCE;

/// How many of a tenant's announced priority batches are looked at for mail of sequences, the newest first.
const PRIORITY_READ_MAX: i64 = 1_000;

/// A batch of one step.
#[derive(Debug, Clone, Copy)]
pub struct SequenceBatch {
    /// Its id.
    pub id: Uuid,
    /// The tenant.
    pub tenant_id: Uuid,
    /// The step's template.
    pub template_id: Uuid,
    /// The sequence's sender.
    pub sender_id: Uuid,
    /// How many sends it has.
    pub size: usize,
}

/// A send of a step.
#[derive(Debug, Clone, Copy)]
pub struct SequenceSend {
    /// Its id, of its batch.
    pub id: Uuid,
    /// The tenant.
    pub tenant_id: Uuid,
    /// The recipient.
    pub contact_id: Uuid,
    /// The sequence.
    pub sequence_id: Uuid,
    /// The enrollment.
    pub enrollment_id: Uuid,
    /// The step.
    pub step_id: Uuid,
}

/// Writes batches, and answers those of the priority lane, which are announced. Their content is pinned here: the template's version at this
/// moment. The lane is for single mails: the batches of a tenant that would have more than [`PROMPT_BATCH_MAX`] mails of sequences under way in
/// it take the bulk lane, and wait there for dispatch.
pub async fn insert_batches<'a>(
    db: &mut PgConnection,
    batches: impl Iterator<Item = &'a SequenceBatch>,
) -> sqlx::Result<HashSet<Uuid>> {
    let batches: Vec<&SequenceBatch> = batches.collect();
    let prompt = sqlx::query_file_scalar!(
        "queries/sequences/insert_batches.sql",
        &column(&batches, |batch| batch.tenant_id),
        &column(&batches, |batch| batch.id),
        &column(&batches, |batch| month_of(batch.id)),
        &column(&batches, |batch| batch.template_id),
        &column(&batches, |batch| batch.sender_id),
        &column(&batches, |batch| i32::try_from(batch.size).unwrap_or(i32::MAX)),
        PRIORITY_REANNOUNCE.as_secs_f64(),
        PROMPT_BATCH_MAX as i64,
        PRIORITY_READ_MAX,
    );
    Ok(prompt.fetch_all(db).await?.into_iter().collect())
}

/// Writes the sends of these batches.
pub async fn insert_sends(db: &mut PgConnection, sends: &[SequenceSend]) -> sqlx::Result<()> {
    sqlx::query!(
        "with wanted as (
             select * from unnest($1::uuid[], $2::uuid[], $3::date[], $4::uuid[], $5::uuid[], $6::uuid[], $7::uuid[])
                 as w (tenant_id, id, month, contact_id, sequence_id, enrollment_id, step_id)
         ), step as (
             insert into sequence_sends (tenant_id, send_id, sequence_id, enrollment_id, step_id)
             select tenant_id, id, sequence_id, enrollment_id, step_id from wanted
         )
         insert into sends (tenant_id, id, month, contact_id)
         select tenant_id, id, month, contact_id from wanted",
        &column(sends, |send| send.tenant_id),
        &column(sends, |send| send.id),
        &column(sends, |send| month_of(send.id)),
        &column(sends, |send| send.contact_id),
        &column(sends, |send| send.sequence_id),
        &column(sends, |send| send.enrollment_id),
        &column(sends, |send| send.step_id),
    )
    .execute(db)
    .await
    .map(drop)
}
