//! Composes an event's body and bus message for each product that receives it.

use std::collections::BTreeSet;

use bytes::Bytes;
use chrono::SecondsFormat;
use runtime::{Publication, trace::TraceContext};
use schemas::{
    Event, EventType,
    events::EVENT_VERSION,
    messages::Message,
    subjects::{self, header},
};
use uuid::Uuid;

use super::{
    pending_events::PendingEvent,
    subscribers::{ProductLink, Subscribers},
};

/// Room for the body of an event about a mail, in bytes. A longer one makes the buffer grow.
const BODY_BYTES: usize = 1024;

/// An event as one product receives it.
#[derive(Debug)]
pub(crate) struct ComposedEvent {
    pub tenant_id: Uuid,
    pub product: String,
    pub id: Uuid,
    pub event_type: EventType,
    pub contact_id: Option<Uuid>,
    /// The bytes of the body, equal for every delivery.
    pub body: Bytes,
    pub trace: Option<TraceContext>,
    /// Subscriptions it goes to, and whether they are active.
    pub subscriptions: Vec<(Uuid, bool)>,
}

/// The composed events of a transaction.
#[derive(Debug, Default)]
pub(super) struct ComposedBatch {
    pub composed: Vec<ComposedEvent>,
    /// Events for the bus.
    pub publications: Vec<Publication>,
    /// The tenants of the events for the bus.
    pub published: BTreeSet<Uuid>,
}

/// Composes the events for all products, and those for the bus.
pub(super) fn compose(pending: &[PendingEvent], subscribers: &Subscribers) -> Result<ComposedBatch, serde_json::Error> {
    let mut batch = ComposedBatch { composed: Vec::with_capacity(pending.len()), ..ComposedBatch::default() };
    for pending in pending {
        for link in subscribers.links_for(pending) {
            let subscriptions: Vec<(Uuid, bool)> = link
                .matching_subscriptions(pending)
                .map(|subscription| (subscription.id, subscription.is_active))
                .collect();
            let is_published = link.is_published(pending);
            if subscriptions.is_empty() && !is_published {
                continue;
            }
            let body = body_of(pending, link)?;
            if is_published {
                batch.published.insert(pending.tenant_id);
                batch.publications.push(publication(pending, link, body.clone()));
            }
            if !subscriptions.is_empty() {
                batch.composed.push(event(pending, link, body, subscriptions));
            }
        }
    }
    Ok(batch)
}

/// Composes only the events for the bus.
pub(super) fn publications(
    pending: &[PendingEvent],
    subscribers: &Subscribers,
) -> Result<Vec<Publication>, serde_json::Error> {
    let mut publications = Vec::new();
    for pending in pending {
        for link in subscribers.links_for(pending).filter(|link| link.is_published(pending)) {
            publications.push(publication(pending, link, body_of(pending, link)?));
        }
    }
    Ok(publications)
}

/// An event for one product's subscriptions.
pub(super) fn event(
    pending: &PendingEvent,
    link: &ProductLink,
    body: Bytes,
    subscriptions: Vec<(Uuid, bool)>,
) -> ComposedEvent {
    ComposedEvent {
        tenant_id: pending.tenant_id,
        product: link.product.clone(),
        id: pending.id,
        event_type: pending.event_type,
        contact_id: pending.contact_id,
        body,
        trace: pending.trace.clone(),
        subscriptions,
    }
}

/// The body of an event.
pub(super) fn body_of(pending: &PendingEvent, link: &ProductLink) -> Result<Bytes, serde_json::Error> {
    let event = Event {
        id: pending.id,
        event_type: pending.event_type,
        version: EVENT_VERSION.to_owned(),
        created_at: pending.recorded_at,
        occurred_at: pending.occurred_at,
        product_tenant_id: link.product_tenant_id.clone(),
        engine_tenant_id: pending.tenant_id,
        environment: link.environment,
        data: &pending.data,
    };
    let mut body = Vec::with_capacity(BODY_BYTES);
    serde_json::to_writer(&mut body, &event)?;
    Ok(body.into())
}

/// The event as a bus message, with its attributes by the CloudEvents binding for NATS.
fn publication(pending: &PendingEvent, link: &ProductLink, body: Bytes) -> Publication {
    let mut headers = Vec::with_capacity(8);
    headers.extend([
        (header::CE_SPECVERSION, "1.0".to_owned()),
        (header::CE_ID, pending.id.to_string()),
        (header::CE_TYPE, pending.event_type.as_str().to_owned()),
        (header::CE_SOURCE, format!("/postrider/{}/{}", link.product, link.environment)),
        (header::CE_TIME, pending.occurred_at.to_rfc3339_opts(SecondsFormat::Millis, true)),
    ]);
    if let Some(subject) = pending.subject_id {
        headers.push((header::CE_SUBJECT, subject.to_string()));
    }
    headers.extend(pending.trace.iter().flat_map(TraceContext::headers));
    Publication {
        subject: subjects::event(&link.product, link.environment, pending.event_type),
        message_id: format!("{}-{}", pending.id.simple(), link.product),
        schema: Event::SCHEMA,
        body,
        headers,
    }
}
