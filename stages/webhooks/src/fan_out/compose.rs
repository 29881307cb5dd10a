//! Composes an event's body and bus message for each product that receives it.

use super::{
    pending_events::PendingEvent,
    subscribers::{ProductLink, Subscribers, Subscription},
};
use bytes::Bytes;
use chrono::SecondsFormat;
use runtime::{Publication, trace::TraceContext};
use schemas::{
    Event,
    events::EVENT_VERSION,
    messages::Message,
    subjects::{self, header},
};

/// Room for what a body has beside its data, in bytes. More makes the buffer grow.
const ENVELOPE_BYTES: usize = 400;

/// An event as one product receives it.
#[derive(Debug)]
pub(super) struct ComposedEvent<'a> {
    pub pending: &'a PendingEvent,
    pub link: &'a ProductLink,
    /// The bytes of the body, equal for every delivery.
    pub body: Bytes,
    /// Those that it goes to.
    pub subscriptions: Vec<&'a Subscription>,
}

/// Composes the events for all products that receive them, from their endpoints or from the bus.
pub(super) fn compose<'a>(
    pending: &'a [PendingEvent],
    subscribers: &'a Subscribers,
) -> Result<Vec<ComposedEvent<'a>>, serde_json::Error> {
    let mut composed = Vec::with_capacity(pending.len());
    for pending in pending {
        for link in subscribers.links_for(pending) {
            let subscriptions: Vec<&Subscription> = link.matching_subscriptions(pending).collect();
            if !subscriptions.is_empty() || link.is_published(pending) {
                composed.push(ComposedEvent { pending, link, body: body_of(pending, link)?, subscriptions });
            }
        }
    }
    Ok(composed)
}

/// Those of the events that go to the bus.
pub(super) fn for_bus<'a>(composed: &'a [ComposedEvent<'a>]) -> Vec<&'a ComposedEvent<'a>> {
    composed.iter().filter(|event| event.link.is_published(event.pending)).collect()
}

fn body_of(pending: &PendingEvent, link: &ProductLink) -> Result<Bytes, serde_json::Error> {
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

/// The event as a bus message, with its attributes by the CloudEvents binding for NATS.
impl From<&ComposedEvent<'_>> for Publication {
    fn from(ComposedEvent { pending, link, body, .. }: &ComposedEvent<'_>) -> Self {
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
            body: body.clone(),
            headers,
        }
    }
}
