//! Reads the events to emit from the ledger: rows become [`PendingEvent`], which is independent of the product.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use chrono::{DateTime, Utc};
use runner::StageError;
use runtime::{column, trace::TraceContext};
use schemas::{EventType, MessageKind, SendId, events::MailData, messages::MailOptions};
use serde_json::{Value, json, value::RawValue};
use sqlx::{PgConnection, types::Json};
use uuid::Uuid;

use ledger::{erasure::PERSONAL_DETAILS, outbox::EventKey};

use super::event_data;

/// An event to emit, before it is composed for each product.
#[derive(Debug, Clone)]
pub(crate) struct PendingEvent {
    pub tenant_id: Uuid,
    pub id: Uuid,
    pub event_type: EventType,
    pub occurred_at: DateTime<Utc>,
    pub recorded_at: DateTime<Utc>,
    /// The contact it is about, with which it is erased; a hash of the address that is no contact's.
    pub erased_with: Option<Uuid>,
    /// The send, campaign, domain … it is about.
    pub subject_id: Option<Uuid>,
    /// Set if only this product receives it.
    pub product: Option<String>,
    /// Set for a test event: only this subscription receives it.
    pub subscription: Option<Uuid>,
    /// The trace of the mail it is about.
    pub trace: Option<TraceContext>,
    /// The event's `data`, as JSON.
    pub data: Arc<RawValue>,
}

/// Reads the events of facts about sends, and the keys of facts of an unknown type: a newer process wrote them and emits their events. The
/// fan-out puts them back.
pub(crate) async fn of_sends(
    db: &mut PgConnection,
    keys: &[EventKey],
) -> Result<(Vec<PendingEvent>, Vec<EventKey>), StageError> {
    let mut unknown = Vec::new();
    if keys.is_empty() {
        return Ok((Vec::new(), unknown));
    }
    let wanted: BTreeSet<(Uuid, Uuid)> = keys.iter().map(|key| (key.tenant_id, SendId(key.send_id).batch())).collect();
    let (tenants, ids): (Vec<Uuid>, Vec<Uuid>) = wanted.into_iter().unzip();
    let rows = sqlx::query_file!("queries/load_batches.sql", &tenants, &ids).fetch_all(&mut *db).await?;
    let batches: HashMap<(Uuid, Uuid), _> = rows
        .into_iter()
        .map(|batch| {
            let parent = batch.traceparent.as_deref();
            let trace = parent.and_then(|parent| TraceContext::parse(parent, batch.tracestate.as_deref()));
            ((batch.tenant_id, batch.id), (batch, trace))
        })
        .collect();
    let rows = sqlx::query_file!(
        "queries/load_facts.sql",
        &column(keys, |key| key.tenant_id),
        &column(keys, |key| key.send_id),
        &column(keys, |key| key.id),
        &column(keys, |key| key.month)
    )
    .fetch_all(db)
    .await?;
    let mut pending = Vec::with_capacity(2 * rows.len());
    for mut row in rows {
        let batch = batches.get(&(row.tenant_id, SendId(row.send_id).batch()));
        // The test of a campaign is no event.
        let Some((batch, trace)) = batch.filter(|(batch, _)| batch.kind != MessageKind::Test) else { continue };
        // Of an erased contact, and recorded before. The erasure comes to it later.
        if let (None, Value::Object(detail)) = (&row.address, &mut row.detail) {
            detail.retain(|key, _| !PERSONAL_DETAILS.contains(&key.as_str()));
        }
        let Json(options) = row.options.unwrap_or_default();
        let mail = MailData {
            send_id: row.send_id,
            message_kind: batch.kind,
            provider_message_id: row.provider_message_id,
            contact_id: row.contact_id,
            email: row.address,
            campaign_id: row.campaign_id,
            sequence_id: row.sequence_id,
            enrollment_id: row.enrollment_id,
            step_id: row.step_id,
            template_id: batch.template_id,
            template_version: batch.template_version,
            variant: batch.variant.clone(),
            subject: batch.subject.clone(),
            sender_email: batch.sender_email.clone(),
            copy_of: options.copy(SendId(row.send_id).ordinal()).map(|_| SendId(row.send_id).batch()),
            tags: options.tags,
            metadata: options.metadata,
        };
        let fact = event_data::SendFact {
            fact_type: &row.fact_type,
            provider: row.provider.as_deref(),
            is_first: event_data::is_first(&row.fact_type, row.occurred_at, row.opened_at, row.clicked_at),
            detail: &row.detail,
        };
        let Some(events) = event_data::events_of(&fact, mail)? else {
            let month = SendId(row.send_id).month();
            unknown.push(EventKey { tenant_id: row.tenant_id, send_id: row.send_id, id: row.id, month });
            continue;
        };
        for (event_type, data) in events {
            pending.push(PendingEvent {
                tenant_id: row.tenant_id,
                id: schemas::Event::id_of(row.id, event_type),
                event_type,
                occurred_at: row.occurred_at,
                recorded_at: row.recorded_at,
                erased_with: Some(row.contact_id),
                subject_id: Some(row.send_id),
                product: None,
                subscription: None,
                trace: trace.clone(),
                data,
            });
        }
    }
    Ok((pending, unknown))
}

/// Reads the events of notices. A notice of an unknown type is left out: a newer process wrote it and emits it. The fan-out puts it back.
pub(crate) async fn of_notices(db: &mut PgConnection, keys: &[(Uuid, Uuid)]) -> Result<Vec<PendingEvent>, StageError> {
    if keys.is_empty() {
        return Ok(Vec::new());
    }
    let (tenants, ids): (Vec<Uuid>, Vec<Uuid>) = keys.iter().copied().unzip();
    let rows = sqlx::query_file!("queries/load_notices.sql", &tenants, &ids).fetch_all(db).await?;
    let mut pending = Vec::with_capacity(rows.len());
    for row in rows {
        let Some(event_type) = EventType::parse(&row.notice_type) else { continue };
        let is_test = event_type == EventType::WebhookTest;
        let mut data = event_data::of_notice(event_type, row.subject_id, row.contact_id, row.address, row.data);
        if let Some(mail) = &mut data.mail {
            let Json(options) = row.options.unwrap_or_default();
            let send = SendId(mail.send_id);
            mail.copy_of = options.copy(send.ordinal()).map(|_| send.batch());
            mail.tags = options.tags;
            mail.metadata = options.metadata;
        }
        pending.push(PendingEvent {
            tenant_id: row.tenant_id,
            id: row.id,
            event_type,
            occurred_at: row.occurred_at,
            recorded_at: row.recorded_at,
            erased_with: row.erased_with,
            subject_id: row.subject_id,
            product: row.product,
            subscription: row.subject_id.filter(|_| is_test),
            trace: None,
            data: event_data::to_json(&data)?,
        });
    }
    Ok(pending)
}

pub(crate) async fn of_contacts(db: &mut PgConnection, keys: &[(Uuid, Uuid)]) -> Result<Vec<PendingEvent>, StageError> {
    if keys.is_empty() {
        return Ok(Vec::new());
    }
    let (tenants, ids): (Vec<Uuid>, Vec<Uuid>) = keys.iter().copied().unzip();
    let rows = sqlx::query_file!("queries/load_contacts.sql", &tenants, &ids).fetch_all(db).await?;
    let mut pending = Vec::with_capacity(rows.len());
    for row in rows {
        let own = json!({"first_name": row.first_name, "last_name": row.last_name, "source": row.source});
        let data = event_data::of_notice(EventType::ContactCreated, None, Some(row.id), Some(row.address), own);
        pending.push(PendingEvent {
            tenant_id: row.tenant_id,
            id: schemas::Event::id_of(row.id, EventType::ContactCreated),
            event_type: EventType::ContactCreated,
            occurred_at: row.created_at,
            recorded_at: row.created_at,
            erased_with: Some(row.id),
            subject_id: Some(row.id),
            product: None,
            subscription: None,
            trace: None,
            data: event_data::to_json(&data)?,
        });
    }
    Ok(pending)
}
