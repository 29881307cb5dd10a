//! Rows of `product_events`, and what an event sets going: occurrences of triggers, and checks of enrollments it may end.

use chrono::{DateTime, Utc};
use runtime::column;
use sqlx::PgConnection;
use uuid::Uuid;

use super::{EventStatus, RecordedEvent, input::NewProductEvent};
use crate::{
    api::contacts::{NamedContact, named},
    pipeline::error::ApiError,
};

/// An event with its id and the contact that was found.
type NewRow<'a> = (Uuid, Uuid, &'a NewProductEvent);

/// Records events, each once for its product's own id.
pub(super) async fn record(
    db: &mut PgConnection,
    tenant: Uuid,
    product: &str,
    events: &[NewProductEvent],
) -> Result<Vec<RecordedEvent>, ApiError> {
    let names: Vec<&NamedContact> = events.iter().map(|event| &event.contact).collect();
    let found = named::hold(&mut *db, tenant, &names).await?;
    let rows: Vec<Option<NewRow<'_>>> =
        events.iter().map(|event| Some((schemas::new_id(), found.id(&event.contact)?, event))).collect();
    let known: Vec<NewRow<'_>> = rows.iter().flatten().copied().collect();
    let new = insert(&mut *db, tenant, product, &known).await?;
    set_going(&mut *db, tenant, &new).await?;
    let before = if new.len() == known.len() { Vec::new() } else { recorded(db, tenant, product, events).await? };
    let results = rows.into_iter().map(|row| {
        let stored = row.and_then(|(id, contact, event)| {
            if new.contains(&id) {
                return Some((EventStatus::Recorded, id, contact));
            }
            let mut same = before.iter().filter(|(source, ..)| event.source_event_id.as_ref() == Some(source));
            same.next().map(|(_, id, contact)| (EventStatus::AlreadyRecorded, *id, *contact))
        });
        match stored {
            Some((status, id, contact)) => RecordedEvent { status, event_id: Some(id), contact_id: Some(contact) },
            None => RecordedEvent { status: EventStatus::ContactNotFound, event_id: None, contact_id: None },
        }
    });
    Ok(results.collect())
}

/// Inserts events; answers the ids of those that were not recorded before.
async fn insert(db: &mut PgConnection, tenant: Uuid, product: &str, rows: &[NewRow<'_>]) -> sqlx::Result<Vec<Uuid>> {
    sqlx::query_scalar!(
        "insert into product_events (tenant_id, id, product, contact_id, name, event_id, properties, occurred_at)
         select $1, w.id, $2, w.contact_id, w.name, w.event_id, w.properties, coalesce(w.occurred_at, now())
         from unnest($3::uuid[], $4::uuid[], $5::text[], $6::text[], $7::jsonb[], $8::timestamptz[])
             as w (id, contact_id, name, event_id, properties, occurred_at)
         -- Two requests with the same events wait for each other in one order.
         order by w.event_id
         on conflict (tenant_id, product, event_id) where event_id is not null do nothing
         returning id",
        tenant,
        product,
        &column(rows, |(id, ..)| *id),
        &column(rows, |(_, contact, _)| *contact),
        &column(rows, |(.., event)| event.name.as_str()) as &[&str],
        &column(rows, |(.., event)| event.source_event_id.as_deref()) as &[Option<&str>],
        &column(rows, |(.., event)| event.properties.clone()),
        &column(rows, |(.., event)| event.occurred_at) as &[Option<DateTime<Utc>>],
    )
    .fetch_all(db)
    .await
}

/// What new events start and may end, in the transaction that records them. An event that was reported late starts and ends nothing.
async fn set_going(db: &mut PgConnection, tenant: Uuid, ids: &[Uuid]) -> sqlx::Result<()> {
    if ids.is_empty() {
        return Ok(());
    }
    sqlx::query_file!("queries/start_by_event.sql", tenant, ids).execute(&mut *db).await?;
    sqlx::query_file!("queries/end_by_event.sql", tenant, ids).execute(db).await.map(drop)
}

/// The events with the source ids of these, as they were recorded before. A statement of its own: another transaction may just have
/// inserted them.
async fn recorded(
    db: &mut PgConnection,
    tenant: Uuid,
    product: &str,
    events: &[NewProductEvent],
) -> sqlx::Result<Vec<(String, Uuid, Uuid)>> {
    let sources: Vec<&str> = events.iter().filter_map(|event| event.source_event_id.as_deref()).collect();
    let rows = sqlx::query!(
        r#"select event_id as "event_id!", id, contact_id from product_events
           where tenant_id = $1 and product = $2 and event_id = any ($3)"#,
        tenant,
        product,
        &sources as &[&str],
    )
    .fetch_all(db)
    .await?;
    Ok(rows.into_iter().map(|row| (row.event_id, row.id, row.contact_id)).collect())
}
