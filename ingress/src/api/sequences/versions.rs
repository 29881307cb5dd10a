//! The versions of a sequence: each change of its steps made one, and none is ever changed.

use schemars::JsonSchema;
use serde::Serialize;

use super::{STEPS_MAX, store};
use crate::pipeline::{
    ApiReply, NoParameters, RequestContext,
    error::ApiError,
    page::{Time, numbered},
    resource,
};

/// One version of a sequence, without its steps.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct SequenceVersion {
    #[schemars(range(min = 1, max = i32::MAX))]
    version: i32,
    /// New enrollments go through it.
    current: bool,
    #[schemars(range(min = 1, max = STEPS_MAX))]
    step_count: i64,
    created_at: Time,
}

resource!(SequenceVersion, "version", "versions", row => (*row.created_at, numbered(row.version)));

/// Newest first, without steps: `GET /v1/sequences/{id}?version=` has those. Served by the unique key of the steps.
pub(super) async fn list(ctx: &mut RequestContext, _: NoParameters) -> Result<ApiReply, ApiError> {
    let (tenant, id, page) = (ctx.tenant, ctx.id("sequence")?, ctx.page);
    let sequence = store::get(ctx.db(), tenant, id).await?.ok_or_else(|| ApiError::not_found("sequence"))?;
    let versions = sqlx::query_as!(
        SequenceVersion,
        r#"select version, version = $5 as "current!", count(*) as "step_count!", min(created_at) as "created_at!"
           from sequence_steps
           where tenant_id = $1 and sequence_id = $2 and ($3::integer is null or version < $3)
           group by version
           order by version desc
           limit $4"#,
        tenant,
        id,
        page.before_version(),
        page.fetch(),
        sequence.version,
    )
    .fetch_all(ctx.db())
    .await?;
    ApiReply::page(page, versions)
}
