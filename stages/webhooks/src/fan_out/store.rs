//! Writes event bodies and deliveries to the ledger.

use std::collections::{BTreeMap, HashMap, HashSet};

use chrono::{DateTime, Utc};
use runtime::{column, trace::TraceContext};
use schemas::Event;
use sqlx::PgConnection;
use uuid::Uuid;

use super::{compose::ComposedEvent, subscribers::Subscription};
use crate::dispatch::DeliveryJob;

/// Deliveries that were just created and may be attempted at once, by tenant and subscription.
pub(crate) type FreshDeliveries = BTreeMap<(Uuid, Uuid), Vec<DeliveryJob>>;

/// The deliveries of events: each event with each of its subscriptions.
fn deliveries<'a>(composed: &'a [ComposedEvent<'a>]) -> Vec<(&'a ComposedEvent<'a>, &'a Subscription)> {
    composed.iter().flat_map(|event| event.subscriptions.iter().map(move |to| (event, *to))).collect()
}

/// Writes bodies of deliveries that do not exist yet, and returns the new ones. In the order of their ids, as every other transaction does:
/// replays and the fan-out may write the same ones.
async fn insert_events(db: &mut PgConnection, composed: &[ComposedEvent<'_>]) -> sqlx::Result<HashSet<(String, Uuid)>> {
    let mut ordered: Vec<_> = composed.iter().filter(|event| !event.subscriptions.is_empty()).collect();
    ordered.sort_unstable_by_key(|event| (event.pending.tenant_id, event.link.product.as_str(), event.pending.id));
    let rows = sqlx::query_file!(
        "queries/insert_events.sql",
        &column(&ordered, |event| event.pending.tenant_id),
        &column(&ordered, |event| event.link.product.as_str()) as &[&str],
        &column(&ordered, |event| event.pending.id),
        &column(&ordered, |event| event.pending.erased_with) as &[Option<Uuid>],
        &column(&ordered, |event| &event.body[..]) as &[&[u8]],
        &column(&ordered, |event| event.pending.trace.as_ref().map(TraceContext::parent)) as &[Option<String>]
    )
    .fetch_all(db)
    .await?;
    Ok(rows.into_iter().map(|row| (row.product, row.id)).collect())
}

/// Writes events and deliveries that do not exist yet, and returns those to attempt at once. An event that existed is delivered
/// with its stored bytes, so its deliveries are loaded from the queue.
pub(super) async fn insert(db: &mut PgConnection, composed: &[ComposedEvent<'_>]) -> sqlx::Result<FreshDeliveries> {
    let deliveries = deliveries(composed);
    if deliveries.is_empty() {
        return Ok(FreshDeliveries::new());
    }
    let new = insert_events(db, composed).await?;
    let due: HashMap<Uuid, DateTime<Utc>> = sqlx::query_file!(
        "queries/insert_deliveries.sql",
        &column(&deliveries, |(event, _)| event.pending.tenant_id),
        &column(&deliveries, |(event, to)| Event::delivery_of(to.id, event.pending.id)),
        &column(&deliveries, |(_, to)| to.id),
        &column(&deliveries, |(event, _)| event.link.product.as_str()) as &[&str],
        &column(&deliveries, |(event, _)| event.pending.id),
        &column(&deliveries, |(event, _)| event.pending.event_type.as_str()) as &[&str]
    )
    .fetch_all(db)
    .await?
    .into_iter()
    .map(|row| (row.delivery_id, row.due_at))
    .collect();
    let mut fresh = FreshDeliveries::new();
    for ComposedEvent { pending, link, body, subscriptions } in composed {
        if !new.contains(&(link.product.clone(), pending.id)) {
            continue;
        }
        for subscription in subscriptions.iter().filter(|subscription| subscription.is_active) {
            let delivery_id = Event::delivery_of(subscription.id, pending.id);
            let Some(due_at) = due.get(&delivery_id) else { continue };
            fresh.entry((pending.tenant_id, subscription.id)).or_default().push(DeliveryJob {
                delivery_id,
                event_id: pending.id,
                event_type: pending.event_type.as_str().to_owned(),
                attempts: 0,
                body: Some(body.clone()),
                trace: pending.trace.clone(),
                due_at: *due_at,
                made_at: *due_at,
                replayed: 0,
            });
        }
    }
    Ok(fresh)
}

/// Bodies that exist are kept as long from now on as new ones: none is deleted before its newest delivery. Called before the missing ones are
/// inserted, so that those that are being deleted are missing then. Locks them in the order of ids, as another replay does.
async fn keep_events(db: &mut PgConnection, composed: &[ComposedEvent<'_>]) -> sqlx::Result<()> {
    sqlx::query!(
        "with known as (
             select e.tenant_id, e.product, e.id
             from unnest($1::uuid[], $2::text[], $3::uuid[]) as w (tenant_id, product, id)
             join webhook_events e on e.tenant_id = w.tenant_id and e.product = w.product and e.id = w.id
             order by e.tenant_id, e.product, e.id for no key update of e
         )
         update webhook_events e set created_at = now() from known k
         where e.tenant_id = k.tenant_id and e.product = k.product and e.id = k.id",
        &column(composed, |event| event.pending.tenant_id),
        &column(composed, |event| event.link.product.as_str()) as &[&str],
        &column(composed, |event| event.pending.id)
    )
    .execute(db)
    .await
    .map(drop)
}

/// Writes events and restarts their deliveries that have ended. Returns how many were started.
pub(super) async fn replay_deliveries(db: &mut PgConnection, composed: &[ComposedEvent<'_>]) -> sqlx::Result<i64> {
    if composed.is_empty() {
        return Ok(0);
    }
    keep_events(db, composed).await?;
    insert_events(db, composed).await?;
    let deliveries = deliveries(composed);
    let row = sqlx::query_file!(
        "queries/repeat_deliveries.sql",
        &column(&deliveries, |(event, _)| event.pending.tenant_id),
        &column(&deliveries, |(event, to)| Event::delivery_of(to.id, event.pending.id)),
        &column(&deliveries, |(_, to)| to.id),
        &column(&deliveries, |(event, _)| event.link.product.as_str()) as &[&str],
        &column(&deliveries, |(event, _)| event.pending.id),
        &column(&deliveries, |(event, _)| event.pending.event_type.as_str()) as &[&str]
    )
    .fetch_one(db)
    .await?;
    Ok(row.count)
}
