//! Writes event bodies and deliveries to the ledger.

use std::collections::{HashMap, HashSet};

use bytes::Bytes;
use chrono::{DateTime, Utc};
use runtime::column;
use runtime::trace::TraceContext;
use schemas::Event;
use sqlx::PgConnection;
use uuid::Uuid;

use super::compose::ComposedEvent;

/// A delivery that was just created and may be attempted at once.
#[derive(Debug, Clone)]
pub(crate) struct FreshDelivery {
    pub tenant_id: Uuid,
    pub subscription_id: Uuid,
    pub delivery_id: Uuid,
    pub event_id: Uuid,
    pub event_type: String,
    pub body: Bytes,
    pub trace: Option<TraceContext>,
    pub due_at: DateTime<Utc>,
}

/// The columns of deliveries to insert.
#[derive(Default)]
struct Deliveries {
    tenants: Vec<Uuid>,
    ids: Vec<Uuid>,
    subscriptions: Vec<Uuid>,
    products: Vec<String>,
    events: Vec<Uuid>,
    types: Vec<String>,
}

impl Deliveries {
    fn of(composed: &[ComposedEvent]) -> Self {
        let mut columns = Self::default();
        for event in composed {
            for (subscription, _) in &event.subscriptions {
                columns.tenants.push(event.tenant_id);
                columns.ids.push(Event::delivery_of(*subscription, event.id));
                columns.subscriptions.push(*subscription);
                columns.products.push(event.product.clone());
                columns.events.push(event.id);
                columns.types.push(event.event_type.as_str().to_owned());
            }
        }
        columns
    }
}

/// Writes bodies that do not exist yet, and returns the new ones. In the order of their ids, as every other transaction does: replays and the
/// fan-out may write the same ones.
async fn insert_events(db: &mut PgConnection, composed: &[ComposedEvent]) -> sqlx::Result<HashSet<(String, Uuid)>> {
    let mut ordered: Vec<&ComposedEvent> = composed.iter().collect();
    ordered.sort_unstable_by_key(|event| (event.tenant_id, event.product.as_str(), event.id));
    let rows = sqlx::query_file!(
        "queries/insert_events.sql",
        &column(&ordered, |event| event.tenant_id),
        &column(&ordered, |event| event.product.as_str()) as &[&str],
        &column(&ordered, |event| event.id),
        &column(&ordered, |event| event.event_type.as_str()) as &[&str],
        &column(&ordered, |event| event.erased_with) as &[Option<Uuid>],
        &column(&ordered, |event| &event.body[..]) as &[&[u8]],
        &column(&ordered, |event| event.trace.as_ref().map(TraceContext::parent)) as &[Option<String>]
    )
    .fetch_all(db)
    .await?;
    Ok(rows.into_iter().map(|row| (row.product, row.id)).collect())
}

/// Writes events and deliveries that do not exist yet, and returns those to attempt at once. An event that existed is delivered
/// with its stored bytes, so its deliveries are loaded from the queue.
pub(super) async fn insert(db: &mut PgConnection, composed: &[ComposedEvent]) -> sqlx::Result<Vec<FreshDelivery>> {
    if composed.is_empty() {
        return Ok(Vec::new());
    }
    let new = insert_events(db, composed).await?;
    let columns = Deliveries::of(composed);
    let due: HashMap<Uuid, DateTime<Utc>> = sqlx::query_file!(
        "queries/insert_deliveries.sql",
        &columns.tenants,
        &columns.ids,
        &columns.subscriptions,
        &columns.products,
        &columns.events,
        &columns.types
    )
    .fetch_all(db)
    .await?
    .into_iter()
    .map(|row| (row.delivery_id, row.due_at))
    .collect();
    let mut fresh = Vec::with_capacity(due.len());
    for event in composed.iter().filter(|event| new.contains(&(event.product.clone(), event.id))) {
        for (subscription, _) in event.subscriptions.iter().filter(|(_, is_active)| *is_active) {
            let delivery_id = Event::delivery_of(*subscription, event.id);
            let Some(due_at) = due.get(&delivery_id) else { continue };
            fresh.push(FreshDelivery {
                tenant_id: event.tenant_id,
                subscription_id: *subscription,
                delivery_id,
                event_id: event.id,
                event_type: event.event_type.as_str().to_owned(),
                body: event.body.clone(),
                trace: event.trace.clone(),
                due_at: *due_at,
            });
        }
    }
    Ok(fresh)
}

/// Bodies that exist are kept as long from now on as new ones: none is deleted before its newest delivery. Called before the missing ones are
/// inserted, so that those that are being deleted are missing then. Locks them in the order of ids, as another replay does.
async fn keep_events(db: &mut PgConnection, composed: &[ComposedEvent]) -> sqlx::Result<()> {
    sqlx::query!(
        "with known as (
             select e.tenant_id, e.product, e.id
             from unnest($1::uuid[], $2::text[], $3::uuid[]) as w (tenant_id, product, id)
             join webhook_events e on e.tenant_id = w.tenant_id and e.product = w.product and e.id = w.id
             order by e.tenant_id, e.product, e.id for no key update of e
         )
         update webhook_events e set created_at = now() from known k
         where e.tenant_id = k.tenant_id and e.product = k.product and e.id = k.id",
        &column(composed, |event| event.tenant_id),
        &column(composed, |event| event.product.as_str()) as &[&str],
        &column(composed, |event| event.id)
    )
    .execute(db)
    .await
    .map(drop)
}

/// Writes events and restarts their deliveries that have ended. Returns how many were started.
pub(super) async fn replay_deliveries(db: &mut PgConnection, composed: &[ComposedEvent]) -> sqlx::Result<i64> {
    if composed.is_empty() {
        return Ok(0);
    }
    keep_events(db, composed).await?;
    insert_events(db, composed).await?;
    let columns = Deliveries::of(composed);
    let row = sqlx::query_file!(
        "queries/repeat_deliveries.sql",
        &columns.tenants,
        &columns.ids,
        &columns.subscriptions,
        &columns.products,
        &columns.events,
        &columns.types
    )
    .fetch_one(db)
    .await?;
    Ok(row.count)
}
