//! The audit log: what callers, operators and the engine itself changed.

use serde_json::Value;
use sqlx::PgExecutor;
use uuid::Uuid;

use crate::column;

/// An entry of the audit log. Its texts and `detail` carry ids, codes and numbers only.
#[derive(Debug, Clone, Default)]
pub struct AuditRecord<'a> {
    /// The tenant, if the entry is about one.
    pub tenant: Option<Uuid>,
    /// The caller, the operator or the part of the engine, such as `stage:audience`.
    pub actor: &'a str,
    /// The action, such as `campaign.paused`.
    pub action: &'a str,
    /// What the action changed.
    pub subject: String,
    /// Further ids, codes and numbers; null is written as an empty object.
    pub detail: Value,
    /// An operator's reason.
    pub reason: Option<&'a str>,
    /// What came of an operator's action.
    pub outcome: Option<&'a str>,
}

/// Writes entries, in the transaction of what they tell of.
pub async fn write(db: impl PgExecutor<'_>, records: &[AuditRecord<'_>]) -> sqlx::Result<()> {
    sqlx::query!(
        "insert into audit_log (id, tenant_id, actor, action, subject, detail, reason, outcome)
         select id, tenant_id, actor, action, subject, coalesce(nullif(detail, 'null'), '{}'), reason, outcome
         from unnest($1::uuid[], $2::uuid[], $3::text[], $4::text[], $5::text[], $6::jsonb[], $7::text[], $8::text[])
           as n (id, tenant_id, actor, action, subject, detail, reason, outcome)",
        &column(records, |_| schemas::new_id()),
        &column(records, |record| record.tenant) as &[Option<Uuid>],
        &column(records, |record| record.actor) as &[&str],
        &column(records, |record| record.action) as &[&str],
        &column(records, |record| record.subject.as_str()) as &[&str],
        &column(records, |record| &record.detail) as &[&Value],
        &column(records, |record| record.reason) as &[Option<&str>],
        &column(records, |record| record.outcome) as &[Option<&str>],
    )
    .execute(db)
    .await
    .map(drop)
}
