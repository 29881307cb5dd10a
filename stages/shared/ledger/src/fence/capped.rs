//! The frequency cap at the fence: which of its mails may have to wait, and what counts.

use std::collections::HashMap;

use runtime::column;
use sqlx::PgConnection;
use uuid::Uuid;

use super::change::{Change, SendAttempt};
use super::sql::{FenceBatch, Moved};
use crate::frequency::CappedMail;
use crate::gate::RecipientEligibility;

/// The sends that count against a frequency cap.
pub(super) fn mails(
    fences: &[SendAttempt],
    batches: &HashMap<Uuid, FenceBatch>,
    recipients: &HashMap<Uuid, RecipientEligibility>,
) -> impl Iterator<Item = CappedMail> {
    fences.iter().filter_map(|send| {
        Some(CappedMail {
            tenant_id: send.batch.tenant_id,
            contact_id: send.contact_id,
            urgency: batches.get(&send.batch.batch_id)?.capped?,
            cap_left: recipients.get(&send.contact_id)?.cap_left,
        })
    })
}

/// Counts the mails against the frequency cap that were fenced, and no longer those of which nothing left. Their tenants are locked, or
/// it is a subtraction.
pub(super) async fn count(db: &mut PgConnection, changes: &[&Change], moved: &[Option<Moved>]) -> sqlx::Result<()> {
    let moved = || changes.iter().zip(moved).filter_map(|(change, moved)| Some((&change.send, change, (*moved)?)));
    let counted: Vec<&SendAttempt> = moved().filter(|(_, change, _)| change.is_capped).map(|(send, ..)| send).collect();
    if !counted.is_empty() {
        sqlx::query!(
            "insert into capped_sends (tenant_id, send_id, contact_id, fenced_at)
             select u.tenant_id, u.send_id, u.contact_id, now()
             from unnest($1::uuid[], $2::uuid[], $3::uuid[]) as u (tenant_id, send_id, contact_id)
             on conflict (tenant_id, send_id) do update set contact_id = excluded.contact_id, fenced_at = excluded.fenced_at",
            &column(&counted, |send| send.batch.tenant_id),
            &column(&counted, |send| send.id),
            &column(&counted, |send| send.contact_id)
        )
        .execute(&mut *db)
        .await?;
    }
    let given_back = moved().filter(|(_, change, moved)| change.gives_back(moved.from));
    let (tenants, sends): (Vec<Uuid>, Vec<Uuid>) = given_back.map(|(send, ..)| (send.batch.tenant_id, send.id)).unzip();
    if !sends.is_empty() {
        sqlx::query!(
            "delete from capped_sends c using unnest($1::uuid[], $2::uuid[]) as u (tenant_id, send_id)
             where c.tenant_id = u.tenant_id and c.send_id = u.send_id",
            &tenants,
            &sends
        )
        .execute(db)
        .await?;
    }
    Ok(())
}
