//! What is told, as it is read from the ledger: rows become [`Told`], the same for everybody.

use std::collections::{BTreeSet, HashMap};

use chrono::{DateTime, Utc};
use runtime::trace::TraceContext;
use schemas::{EventData, EventType, MessageKind, SendId, events::MailData};
use sqlx::PgConnection;
use uuid::Uuid;

use ledger::outbox::{EventKeys, Keys};

use super::particulars;

/// Something to tell, before it is said to whom.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Told {
    pub tenant_id: Uuid,
    /// The event's id.
    pub id: Uuid,
    pub event_type: EventType,
    pub occurred_at: DateTime<Utc>,
    pub recorded_at: DateTime<Utc>,
    /// Whom it is about: erased with him.
    pub contact_id: Option<Uuid>,
    /// The send, campaign, domain … it is about.
    pub subject_id: Option<Uuid>,
    /// Only this product hears of it.
    pub product: Option<String>,
    /// Only this subscription hears of it: a test.
    pub subscription: Option<Uuid>,
    /// The trace of the mail it is about.
    pub trace: Option<TraceContext>,
    pub data: EventData,
}

/// What the mails of a batch have in common.
struct Batch {
    kind: MessageKind,
    variant: Option<String>,
    subject: Option<String>,
    template_id: Option<Uuid>,
    template_version: Option<i32>,
    sender_email: Option<String>,
    trace: Option<TraceContext>,
}

/// Facts about sends.
pub(crate) async fn of_sends(db: &mut PgConnection, keys: &EventKeys) -> sqlx::Result<Vec<Told>> {
    if keys.ids.is_empty() {
        return Ok(Vec::new());
    }
    let batches = load_batches(db, keys).await?;
    let rows = sqlx::query_file!("queries/load_facts.sql", &keys.tenants, &keys.sends, &keys.ids, &keys.months)
        .fetch_all(db)
        .await?;
    let mut told = Vec::with_capacity(rows.len());
    for row in rows {
        let Some(batch) = batches.get(&(row.tenant_id, SendId(row.send_id).batch())) else { continue };
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
        };
        let fact = particulars::Fact {
            fact_type: &row.fact_type,
            provider: row.provider.as_deref(),
            is_first: particulars::is_first(&row.fact_type, row.occurred_at, row.opened_at, row.clicked_at),
            detail: &row.detail,
        };
        for event_type in particulars::types_of(&fact) {
            told.push(Told {
                tenant_id: row.tenant_id,
                id: schemas::Event::id_of(row.id, event_type),
                event_type,
                occurred_at: row.occurred_at,
                recorded_at: row.recorded_at,
                contact_id: Some(row.contact_id),
                subject_id: Some(row.send_id),
                product: None,
                subscription: None,
                trace: batch.trace.clone(),
                data: particulars::data_of(event_type, &fact, mail.clone()),
            });
        }
    }
    Ok(told)
}

async fn load_batches(db: &mut PgConnection, keys: &EventKeys) -> sqlx::Result<HashMap<(Uuid, Uuid), Batch>> {
    let wanted: BTreeSet<(Uuid, Uuid)> =
        keys.tenants.iter().zip(&keys.sends).map(|(tenant, send)| (*tenant, SendId(*send).batch())).collect();
    let (tenants, ids): (Vec<Uuid>, Vec<Uuid>) = wanted.into_iter().unzip();
    let rows = sqlx::query_file!("queries/load_batches.sql", &tenants, &ids).fetch_all(db).await?;
    let batch = rows.into_iter().map(|row| {
        let batch = Batch {
            kind: row.kind,
            variant: row.variant,
            subject: row.subject,
            template_id: row.template_id,
            template_version: row.template_version,
            sender_email: row.sender_email,
            trace: row.traceparent.and_then(|parent| TraceContext::parse(&parent, row.tracestate.as_deref())),
        };
        ((row.tenant_id, row.id), batch)
    });
    Ok(batch.collect())
}

/// Notices. One of a type that this version does not know is not told: a newer process wrote it, and a newer one tells it.
pub(crate) async fn of_notices(db: &mut PgConnection, keys: &Keys) -> sqlx::Result<Vec<Told>> {
    if keys.ids.is_empty() {
        return Ok(Vec::new());
    }
    let rows = sqlx::query_file!("queries/load_notices.sql", &keys.tenants, &keys.ids).fetch_all(db).await?;
    let mut told = Vec::with_capacity(rows.len());
    for row in rows {
        let Some(event_type) = EventType::parse(&row.notice_type) else {
            tracing::warn!(notice_id = %row.id, "a notice of an unknown type is not told");
            continue;
        };
        let is_test = event_type == EventType::WebhookTest;
        told.push(Told {
            tenant_id: row.tenant_id,
            id: row.id,
            event_type,
            occurred_at: row.occurred_at,
            recorded_at: row.recorded_at,
            contact_id: row.contact_id,
            subject_id: row.subject_id,
            product: row.product,
            subscription: row.subject_id.filter(|_| is_test),
            trace: None,
            data: particulars::of_notice(event_type, row.subject_id, row.contact_id, row.address, row.data),
        });
    }
    Ok(told)
}

/// Contacts that were created.
pub(crate) async fn of_contacts(db: &mut PgConnection, keys: &Keys) -> sqlx::Result<Vec<Told>> {
    if keys.ids.is_empty() {
        return Ok(Vec::new());
    }
    let rows = sqlx::query_file!("queries/load_contacts.sql", &keys.tenants, &keys.ids).fetch_all(db).await?;
    let told = rows.into_iter().map(|row| Told {
        tenant_id: row.tenant_id,
        id: schemas::Event::id_of(row.id, EventType::ContactCreated),
        event_type: EventType::ContactCreated,
        occurred_at: row.created_at,
        recorded_at: row.created_at,
        contact_id: Some(row.id),
        subject_id: Some(row.id),
        product: None,
        subscription: None,
        trace: None,
        data: particulars::of_contact(row.id, row.address, row.first_name, row.last_name, row.source),
    });
    Ok(told.collect())
}
