//! Composes an event's body and bus message for each product that receives it.

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

/// Room for what a body has beside its data, in bytes. More makes the buffer grow.
const ENVELOPE_BYTES: usize = 400;

/// An event as one product receives it.
#[derive(Debug)]
pub(crate) struct ComposedEvent {
    pub tenant_id: Uuid,
    pub product: String,
    pub id: Uuid,
    pub event_type: EventType,
    /// As [`PendingEvent::erased_with`].
    pub erased_with: Option<Uuid>,
    /// The bytes of the body, equal for every delivery.
    pub body: Bytes,
    pub trace: Option<TraceContext>,
    /// Subscriptions it goes to, and whether they are active.
    pub subscriptions: Vec<(Uuid, bool)>,
}

/// An event for the bus. Its headers are made when it is published.
#[derive(Debug)]
pub(crate) struct FeedEvent<'a> {
    pending: &'a PendingEvent,
    link: &'a ProductLink,
    body: Bytes,
}

/// The composed events of a transaction.
#[derive(Debug, Default)]
pub(super) struct ComposedBatch<'a> {
    pub composed: Vec<ComposedEvent>,
    /// Events for the bus.
    pub published: Vec<FeedEvent<'a>>,
}

/// Composes the events for all products, and those for the bus.
pub(super) fn compose<'a>(
    pending: &'a [PendingEvent],
    subscribers: &'a Subscribers,
) -> Result<ComposedBatch<'a>, serde_json::Error> {
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
                batch.published.push(FeedEvent { pending, link, body: body.clone() });
            }
            if !subscriptions.is_empty() {
                batch.composed.push(event(pending, link, body, subscriptions));
            }
        }
    }
    Ok(batch)
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
        erased_with: pending.erased_with,
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
        data: &*pending.data,
    };
    let mut body = Vec::with_capacity(ENVELOPE_BYTES + pending.data.get().len());
    serde_json::to_writer(&mut body, &event)?;
    Ok(body.into())
}

impl FeedEvent<'_> {
    /// The tenant it is about.
    pub fn tenant(&self) -> Uuid {
        self.pending.tenant_id
    }
}

/// The event as a bus message, with its attributes by the CloudEvents binding for NATS.
impl From<FeedEvent<'_>> for Publication {
    fn from(FeedEvent { pending, link, body }: FeedEvent<'_>) -> Self {
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
        Self {
            subject: subjects::event(&link.product, link.environment, pending.event_type),
            message_id: format!("{}-{}", pending.id.simple(), link.product),
            schema: Event::SCHEMA,
            body,
            headers,
        }
    }
}
