//! `send_email`: down the same road as all mail. A step's mails of a group are a batch (or several) in the priority lane; the gate,
//! the claim and the fence judge each recipient again.

use std::{collections::BTreeMap, time::Duration};

use runtime::{Publication, trace};
use schemas::{Lane, Resolved, SendId, ids::BATCH_MAX, month_of, new_batch_id, subjects};
use serde_json::json;
use sqlx::PgConnection;
use uuid::Uuid;

use super::{Announcements, Effect, Item, Outcome, Taken};

/// When the audience stage rings again for a batch that has not moved.
const RING_AGAIN: Duration = Duration::from_secs(15);

/// A batch to be, with the places of its items.
struct NewBatch {
    id: Uuid,
    tenant_id: Uuid,
    template_id: Uuid,
    sender_id: Uuid,
    items: Vec<usize>,
}

pub(super) async fn send(
    db: &mut PgConnection,
    items: &[Item<'_>],
    announce: &mut Announcements,
) -> sqlx::Result<Vec<Taken>> {
    let batches = cut(items);
    insert_batches(&mut *db, &batches).await?;
    trace::keep_each(&mut *db, batches.iter().map(|batch| (batch.tenant_id, batch.id))).await?;
    let mut taken: Vec<Taken> = items.iter().map(|_| Taken::Failed("sender_required")).collect();
    let mut sends = Vec::with_capacity(items.len());
    for batch in &batches {
        for (ordinal, place) in batch.items.iter().enumerate() {
            let (Some(item), Some(outcome)) = (items.get(*place), taken.get_mut(*place)) else { continue };
            let send = SendId::of(batch.id, u16::try_from(ordinal).unwrap_or(u16::MAX)).0;
            sends.push((send, item));
            let effect = Effect::of(Outcome::Done, json!({"template_id": batch.template_id}));
            *outcome = Taken::Took(Effect { send_id: Some(send), ..effect });
        }
        announce.push(publication(batch)?);
    }
    insert_sends(db, &sends).await?;
    Ok(taken)
}

/// One batch per step, and per sender and template by that; at most 500 sends each.
fn cut(items: &[Item<'_>]) -> Vec<NewBatch> {
    let mut by_step: BTreeMap<(Uuid, Uuid), Vec<usize>> = BTreeMap::new();
    for (place, item) in items.iter().enumerate() {
        by_step.entry((item.due.tenant_id, item.step.id)).or_default().push(place);
    }
    let mut batches = Vec::new();
    for ((tenant_id, _), places) in by_step {
        let Some(first) = places.first().and_then(|place| items.get(*place)) else { continue };
        let (Some(template_id), Some(sender_id)) = (first.step.template_id, first.sequence.sender_profile_id) else {
            continue;
        };
        for part in places.chunks(BATCH_MAX) {
            batches.push(NewBatch { id: new_batch_id(), tenant_id, template_id, sender_id, items: part.to_vec() });
        }
    }
    batches
}

/// The content is pinned here: the template's version at this moment.
async fn insert_batches(db: &mut PgConnection, batches: &[NewBatch]) -> sqlx::Result<()> {
    let column = |of: fn(&NewBatch) -> Uuid| batches.iter().map(of).collect::<Vec<Uuid>>();
    let months: Vec<_> = batches.iter().map(|batch| month_of(batch.id)).collect();
    let sizes: Vec<i32> = batches.iter().map(|batch| i32::try_from(batch.items.len()).unwrap_or(i32::MAX)).collect();
    sqlx::query!(
        "insert into batches (tenant_id, id, month, kind, lane, classification, content_id, sender_id, state, announce_after,
                              announcement, size, queued)
         select w.tenant_id, w.id, w.month, 'sequence', 'priority', 'marketing', t.content_id, w.sender_id, 'announced',
                now() + make_interval(secs => $7), 1, w.size, w.size
         from unnest($1::uuid[], $2::uuid[], $3::date[], $4::uuid[], $5::uuid[], $6::integer[])
             as w (tenant_id, id, month, template_id, sender_id, size)
         join templates t on t.tenant_id = w.tenant_id and t.id = w.template_id",
        &column(|batch| batch.tenant_id),
        &column(|batch| batch.id),
        &months,
        &column(|batch| batch.template_id),
        &column(|batch| batch.sender_id),
        &sizes,
        RING_AGAIN.as_secs_f64(),
    )
    .execute(db)
    .await
    .map(drop)
}

async fn insert_sends(db: &mut PgConnection, sends: &[(Uuid, &Item<'_>)]) -> sqlx::Result<()> {
    let column = |of: fn(&Item<'_>) -> Uuid| sends.iter().map(|(_, item)| of(item)).collect::<Vec<Uuid>>();
    let ids: Vec<Uuid> = sends.iter().map(|(send, _)| *send).collect();
    let months: Vec<_> = ids.iter().map(|id| month_of(*id)).collect();
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
        &column(|item| item.due.tenant_id),
        &ids,
        &months,
        &column(|item| item.due.contact_id),
        &column(|item| item.due.sequence_id),
        &column(|item| item.due.id),
        &column(|item| item.step.id),
    )
    .execute(db)
    .await
    .map(drop)
}

fn publication(batch: &NewBatch) -> sqlx::Result<Publication> {
    let message = Resolved {
        tenant_id: batch.tenant_id,
        batch_id: batch.id,
        lane: Lane::Priority,
        announcement: 1,
        notify: None,
    };
    Publication::json(subjects::resolved(Lane::Priority), message.message_id(), &message)
        .map_err(|error| sqlx::Error::Encode(error.into()))
}
