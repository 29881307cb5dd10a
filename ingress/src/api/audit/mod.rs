//! `/v1/audit`: who changed what of a tenant. Entries hold ids and codes; operators' names and reasons are not shown.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use uuid::Uuid;

use crate::pipeline::{
    ApiReply, Doc, GivenTime, RequestContext, Routes, error::ApiError, page::Time, read_page, resource, types::Line,
};

/// Longest name of an action, in characters.
const ACTION_MAX: usize = 100;

pub(crate) fn routes() -> Routes {
    Routes::new().get(
        "/v1/audit",
        read_page("audit:read", list),
        Doc::new(
            "listAuditEntries",
            "List changes of the tenant",
            "Newest first: what callers, operators and the engine changed, for as long as the audit log is kept.",
        )
        .page::<AuditRecord>("A page of entries"),
    )
}

/// One change.
#[derive(Debug, Serialize, JsonSchema)]
struct AuditRecord {
    entry_id: Uuid,
    /// `key:<id>`, `operator`, `assistant:<id>`, or the part of the engine.
    actor: String,
    /// What was done, such as `tenant.changed`.
    action: String,
    /// What it was done to: an id, or words of the engine.
    subject: String,
    /// Ids, codes and names of fields.
    #[schemars(with = "Map<String, Value>")]
    detail: Value,
    at: Time,
}

resource!(AuditRecord, "entry", "entries", row => (*row.at, row.entry_id));

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ListAudit {
    /// This action only, such as `key.issue`.
    #[schemars(with = "Option<Line<ACTION_MAX>>")]
    action: Option<String>,
    /// Not before this time.
    since: Option<GivenTime>,
    /// Before this time.
    until: Option<GivenTime>,
}

/// Served by `audit_log_by_tenant`, and by `audit_log_by_action`.
async fn list(ctx: &mut RequestContext, query: ListAudit) -> Result<ApiReply, ApiError> {
    let (tenant, page) = (ctx.tenant, ctx.page);
    let rows = sqlx::query_as!(
        AuditRecord,
        r#"select id as entry_id, case when actor like 'cli%' then 'operator' else actor end as "actor!", action, subject, detail, at
           from audit_log
           where tenant_id = $1 and ($2::text is null or action = $2) and ($3::timestamptz is null or at >= $3)
             and ($4::timestamptz is null or at < $4) and ($5::timestamptz is null or (at, id) < ($5, $6::uuid))
           order by at desc, id desc limit $7"#,
        tenant,
        query.action,
        query.since.map(|at| at.0),
        query.until.map(|at| at.0),
        page.before,
        page.before_id,
        page.fetch(),
    )
    .fetch_all(ctx.db())
    .await?;
    ApiReply::page(page, rows)
}
