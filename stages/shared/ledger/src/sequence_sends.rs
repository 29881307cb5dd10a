//! Mail of sequence steps: its batches and sends, announced as they are written.

use runtime::column;
use schemas::month_of;
use sqlx::PgConnection;
use uuid::Uuid;

use crate::dispatch::PRIORITY_REANNOUNCE;

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

/// Writes batches. Their content is pinned here: the template's version at this moment.
///
/// # Errors
/// When Postgres is away.
pub async fn insert_batches<'a>(
    db: &mut PgConnection,
    batches: impl Iterator<Item = &'a SequenceBatch>,
) -> sqlx::Result<()> {
    let batches: Vec<&SequenceBatch> = batches.collect();
    sqlx::query!(
        "insert into batches (tenant_id, id, month, kind, lane, classification, content_id, sender_id, state, announce_after,
                              announcement, size, queued)
         select w.tenant_id, w.id, w.month, 'sequence', 'priority', 'marketing', t.content_id, w.sender_id, 'announced',
                now() + make_interval(secs => $7), 1, w.size, w.size
         from unnest($1::uuid[], $2::uuid[], $3::date[], $4::uuid[], $5::uuid[], $6::integer[])
             as w (tenant_id, id, month, template_id, sender_id, size)
         join templates t on t.tenant_id = w.tenant_id and t.id = w.template_id",
        &column(&batches, |batch| batch.tenant_id),
        &column(&batches, |batch| batch.id),
        &column(&batches, |batch| month_of(batch.id)),
        &column(&batches, |batch| batch.template_id),
        &column(&batches, |batch| batch.sender_id),
        &column(&batches, |batch| i32::try_from(batch.size).unwrap_or(i32::MAX)),
        PRIORITY_REANNOUNCE.as_secs_f64(),
    )
    .execute(db)
    .await
    .map(drop)
}

/// Writes the sends of these batches.
///
/// # Errors
/// When Postgres is away.
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
