//! The rows that decide.

use chrono::{DateTime, Utc};
use schemas::{Classification, DomainStatus};
use sqlx::PgConnection;
use uuid::Uuid;

/// A contact, as the gates see it.
#[derive(Debug, Clone)]
pub(super) struct ContactRow {
    pub(super) id: Uuid,
    pub(super) status: String,
    pub(super) marketing_status: String,
    pub(super) consent_at: Option<DateTime<Utc>>,
    pub(super) timezone: Option<String>,
    pub(super) updated_at: DateTime<Utc>,
    /// How far the confirmation of the consent is, of one that was asked for it.
    pub(super) confirmation: Option<String>,
    /// The mail of a sequence waits for it.
    pub(super) is_waited_for: bool,
    /// A magic recipient of the sandbox.
    pub(super) suppressed_by_name: bool,
}

/// A live suppression.
#[derive(Debug, Clone)]
pub(super) struct SuppressionRow {
    pub(super) id: Uuid,
    pub(super) reason: String,
    pub(super) scope: String,
    pub(super) created_at: DateTime<Utc>,
}

/// A sender with its domain and its tenant.
#[derive(Debug, Clone)]
pub(super) struct ExplainedSender {
    pub(super) status: String,
    pub(super) updated_at: DateTime<Utc>,
    pub(super) domain_id: Uuid,
    pub(super) domain: String,
    pub(super) domain_status: DomainStatus,
    pub(super) verified_at: Option<DateTime<Utc>>,
    pub(super) tenant_status: String,
    pub(super) tenant_paused_at: Option<DateTime<Utc>>,
}

/// A one-off message.
#[derive(Debug, Clone)]
pub(super) struct MessageRow {
    pub(super) sender_id: Uuid,
    pub(super) is_test: bool,
    pub(super) classification: Classification,
    pub(super) created_at: DateTime<Utc>,
    pub(super) due_at: DateTime<Utc>,
    /// Why its request was rejected, or that it was cancelled.
    pub(super) rejected: Option<String>,
}

/// The contact with this address.
pub(super) async fn contact(db: &mut PgConnection, tenant: Uuid, address: &str) -> sqlx::Result<Option<ContactRow>> {
    sqlx::query_as!(
        ContactRow,
        r#"select id, status, marketing_status, consent_at, timezone, updated_at,
                  (select confirmation_state(f.state, f.expires_at, c.marketing_status)
                   from confirmations f where f.tenant_id = $1 and f.contact_id = c.id) as "confirmation?",
                  exists (select from confirmations f
                          where f.tenant_id = $1 and f.contact_id = c.id and is_waited_for(f, c.marketing_status)) as "is_waited_for!",
                  is_suppressed_by_name(address, (select t.environment from tenants t where t.id = $1)) as "suppressed_by_name!"
           from contacts c where tenant_id = $1 and address = $2"#,
        tenant,
        address
    )
    .fetch_optional(db)
    .await
}

/// What is held against an address as of a time, the oldest first. Served by the primary key.
pub(super) async fn suppressions(
    db: &mut PgConnection,
    tenant: Uuid,
    address: &str,
    at: DateTime<Utc>,
) -> sqlx::Result<Vec<SuppressionRow>> {
    sqlx::query_as!(
        SuppressionRow,
        "select id, reason, scope, created_at from suppressions
         where tenant_id = $1 and address = $2 and is_in_force(expires_at, $3)
         order by created_at, id",
        tenant,
        address,
        at
    )
    .fetch_all(db)
    .await
}

/// True for a magic recipient of the sandbox, which counts as suppressed.
pub(super) async fn is_suppressed_by_name(db: &mut PgConnection, tenant: Uuid, address: &str) -> sqlx::Result<bool> {
    sqlx::query_scalar!(
        r#"select is_suppressed_by_name($2, environment) as "suppressed!" from tenants where id = $1"#,
        tenant,
        address
    )
    .fetch_one(db)
    .await
}

/// A sender.
pub(super) async fn sender(db: &mut PgConnection, tenant: Uuid, id: Uuid) -> sqlx::Result<ExplainedSender> {
    sqlx::query_as!(
        ExplainedSender,
        r#"select s.status, s.updated_at, d.id as domain_id, d.domain, d.status as "domain_status: DomainStatus", d.verified_at,
                  t.status as tenant_status, t.paused_at as tenant_paused_at
           from senders s
           join domains d on d.tenant_id = s.tenant_id and d.id = s.domain_id
           join tenants t on t.id = s.tenant_id
           where s.tenant_id = $1 and s.id = $2"#,
        tenant,
        id
    )
    .fetch_one(db)
    .await
}

/// Whether mail from this domain to this receiver is paced.
pub(super) async fn is_slowed(
    db: &mut PgConnection,
    tenant: Uuid,
    sending_domain: &str,
    receiver: &str,
) -> sqlx::Result<bool> {
    sqlx::query_scalar!(
        r#"select exists (
               select from live_paces where tenant_id = $1 and sending_domain = $2 and receiver = $3) as "held!""#,
        tenant,
        sending_domain,
        receiver
    )
    .fetch_one(db)
    .await
}

/// A batch that is not to be dispatched yet.
#[derive(Debug, Clone)]
pub(super) struct HeldBatch {
    /// `held_for_winner` of an A/B test, `timed`, or `set_aside` for a day because the processes ended that worked on it.
    pub(super) reason: String,
    /// The time it waits for otherwise.
    pub(super) until: Option<DateTime<Utc>>,
}

/// The batch, if it is not to be dispatched yet.
pub(super) async fn held_batch(db: &mut PgConnection, tenant: Uuid, batch: Uuid) -> sqlx::Result<Option<HeldBatch>> {
    sqlx::query_as!(
        HeldBatch,
        r#"select case state when 'held' then 'held_for_winner' when 'timed' then 'timed' else 'set_aside' end as "reason!",
                  announce_after as until
           from batches
           where tenant_id = $1 and id = $2 and (state in ('held', 'timed') or state = 'announced' and is_set_aside(announce_after, quiet_at))"#,
        tenant,
        batch
    )
    .fetch_optional(db)
    .await
}

/// A one-off message.
pub(super) async fn message(db: &mut PgConnection, tenant: Uuid, id: Uuid) -> sqlx::Result<Option<MessageRow>> {
    sqlx::query_as!(
        MessageRow,
        r#"select m.sender_id, m.is_test, m.classification as "classification: Classification", m.created_at, m.due_at,
                  case when r.state = 'rejected' then coalesce(r.outcome, r.state) end as rejected
           from messages m
           left join requests r on r.tenant_id = m.tenant_id and r.id = m.id
           where m.tenant_id = $1 and m.id = $2"#,
        tenant,
        id
    )
    .fetch_optional(db)
    .await
}

/// The send of a message to a contact, else to one that was merged into it.
pub(super) async fn recipient(
    db: &mut PgConnection,
    tenant: Uuid,
    message: Uuid,
    contact: Uuid,
) -> sqlx::Result<Option<Uuid>> {
    sqlx::query_scalar!(
        "select send_id from message_recipients
         where tenant_id = $1 and message_id = $2
           and (contact_id = $3 or contact_id in (select m.id from contacts m where m.tenant_id = $1 and m.merged_into = $3))
         order by contact_id = $3 desc, send_id desc limit 1",
        tenant,
        message,
        contact
    )
    .fetch_optional(db)
    .await
}

/// An occurrence of a sequence's trigger for a contact.
#[derive(Debug)]
pub(super) struct OccurrenceRow {
    pub(super) noted_at: DateTime<Utc>,
    /// `None`: it is not decided yet.
    pub(super) outcome: Option<String>,
}

/// The newest occurrence of a sequence's trigger for a contact.
pub(super) async fn newest_occurrence(
    db: &mut PgConnection,
    tenant: Uuid,
    sequence: Uuid,
    contact: Uuid,
) -> sqlx::Result<Option<OccurrenceRow>> {
    sqlx::query_as!(
        OccurrenceRow,
        "select noted_at, outcome from trigger_occurrences where tenant_id = $1 and sequence_id = $2 and contact_id = $3
         order by noted_at desc limit 1",
        tenant,
        sequence,
        contact,
    )
    .fetch_optional(db)
    .await
}
