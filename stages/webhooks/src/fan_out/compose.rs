//! Events: the words fixed, for each product that hears of them.

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
    facts::Told,
    subscribers::{Link, Subscribers},
};

/// An event as one product is told it.
#[derive(Debug)]
pub(crate) struct Composed {
    pub tenant_id: Uuid,
    pub product: String,
    pub id: Uuid,
    pub event_type: EventType,
    pub contact_id: Option<Uuid>,
    /// These bytes and no others, in every repetition.
    pub body: Bytes,
    pub trace: Option<TraceContext>,
    /// Subscriptions it goes to, and whether they are told at once.
    pub subscriptions: Vec<(Uuid, bool)>,
}

/// Events for everybody.
#[derive(Debug, Default)]
pub(super) struct All {
    pub composed: Vec<Composed>,
    /// What of it goes to the bus.
    pub publications: Vec<Publication>,
    /// The tenants these are about.
    pub published: BTreeSet<Uuid>,
}

/// The events for everybody, and what of it goes to the bus.
pub(super) fn compose(told: &[Told], hearers: &Subscribers) -> Result<All, serde_json::Error> {
    let mut all = All { composed: Vec::with_capacity(told.len()), ..All::default() };
    for told in told {
        for link in hearers.of(told) {
            let subscriptions: Vec<(Uuid, bool)> =
                link.told(told).map(|subscription| (subscription.id, subscription.is_active)).collect();
            let is_published = link.is_published(told);
            if subscriptions.is_empty() && !is_published {
                continue;
            }
            let body = body_of(told, link)?;
            if is_published {
                all.published.insert(told.tenant_id);
                all.publications.push(publication(told, link, body.clone()));
            }
            if !subscriptions.is_empty() {
                all.composed.push(event(told, link, body, subscriptions));
            }
        }
    }
    Ok(all)
}

/// What goes to the bus alone.
pub(super) fn publications(told: &[Told], hearers: &Subscribers) -> Result<Vec<Publication>, serde_json::Error> {
    let mut publications = Vec::new();
    for told in told {
        for link in hearers.of(told).filter(|link| link.is_published(told)) {
            publications.push(publication(told, link, body_of(told, link)?));
        }
    }
    Ok(publications)
}

/// An event as it is told to one product's subscriptions.
pub(super) fn event(told: &Told, link: &Link, body: Bytes, subscriptions: Vec<(Uuid, bool)>) -> Composed {
    Composed {
        tenant_id: told.tenant_id,
        product: link.product.clone(),
        id: told.id,
        event_type: told.event_type,
        contact_id: told.contact_id,
        body,
        trace: told.trace.clone(),
        subscriptions,
    }
}

/// The body of an event.
pub(super) fn body_of(told: &Told, link: &Link) -> Result<Bytes, serde_json::Error> {
    let event = Event {
        id: told.id,
        event_type: told.event_type,
        version: EVENT_VERSION.to_owned(),
        created_at: told.recorded_at,
        occurred_at: told.occurred_at,
        product_tenant_id: link.product_tenant_id.clone(),
        engine_tenant_id: told.tenant_id,
        environment: link.environment,
        data: told.data.clone(),
    };
    serde_json::to_vec(&event).map(Bytes::from)
}

/// The event on the bus, with its attributes by the CloudEvents binding for NATS.
fn publication(told: &Told, link: &Link, body: Bytes) -> Publication {
    let mut headers = vec![
        (header::CE_SPECVERSION, "1.0".to_owned()),
        (header::CE_ID, told.id.to_string()),
        (header::CE_TYPE, told.event_type.as_str().to_owned()),
        (header::CE_SOURCE, format!("/postrider/{}/{}", link.product, link.environment)),
        (header::CE_TIME, told.occurred_at.to_rfc3339_opts(SecondsFormat::Millis, true)),
    ];
    if let Some(subject) = told.subject_id {
        headers.push((header::CE_SUBJECT, subject.to_string()));
    }
    headers.extend(told.trace.iter().flat_map(TraceContext::headers));
    Publication {
        subject: subjects::event(&link.product, link.environment, told.event_type),
        message_id: format!("{}-{}", told.id.simple(), link.product),
        schema: Event::SCHEMA,
        body,
        headers,
    }
}
