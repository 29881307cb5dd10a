//! The versions of a template: each change of content made one, and none is ever changed.

use schemars::JsonSchema;
use serde::Serialize;
use sqlx::PgConnection;
use uuid::Uuid;

use super::{composition::WrittenBodies, content::TemplateParts, store::TemplateRow};
use crate::pipeline::{
    ApiReply, NoParameters, RequestContext,
    error::ApiError,
    page::{Time, numbered},
    resource,
};

/// One version of a template, without its bodies.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct TemplateVersion {
    #[schemars(range(min = 1, max = i32::MAX))]
    version: i32,
    current: bool,
    subject: String,
    preheader: Option<String>,
    variables: Vec<String>,
    created_at: Time,
}

resource!(TemplateVersion, "version", "versions", row => (*row.created_at, numbered(row.version)));

/// Newest first, without bodies: `GET /v1/templates/{id}?version=` has those.
pub(super) async fn list(ctx: &mut RequestContext, _: NoParameters) -> Result<ApiReply, ApiError> {
    let (tenant, id) = (ctx.tenant, ctx.id("template")?);
    let page = ctx.page;
    let known = sqlx::query_scalar!("select id from templates where tenant_id = $1 and id = $2", tenant, id);
    known.fetch_optional(ctx.db()).await?.ok_or_else(|| ApiError::not_found("template"))?;
    let versions = sqlx::query_as!(
        TemplateVersion,
        r#"select v.version, v.version = t.version as "current!", c.subject, c.preheader, c.variables, v.created_at
           from template_versions v
           join templates t on t.tenant_id = v.tenant_id and t.id = v.template_id
           join contents c on c.tenant_id = v.tenant_id and c.id = v.content_id
           where v.tenant_id = $1 and v.template_id = $2 and ($3::integer is null or v.version < $3)
           order by v.version desc
           limit $4"#,
        tenant,
        id,
        page.before_version(),
        page.fetch(),
    )
    .fetch_all(ctx.db())
    .await?;
    ApiReply::page(page, versions)
}

/// The template as it was in a version. Name and status are the current ones: they are no content.
///
/// # Errors
/// 404 `template_version_not_found`.
pub(super) async fn as_of(
    db: &mut PgConnection,
    tenant: Uuid,
    row: TemplateRow,
    version: i32,
) -> Result<TemplateRow, ApiError> {
    let found = sqlx::query!(
        "select v.content_id, c.subject, c.preheader, c.body_html, c.body_text, c.variables,
                v.layout, v.mjml, v.written_html, v.written_text
         from template_versions v
         join contents c on c.tenant_id = v.tenant_id and c.id = v.content_id
         where v.tenant_id = $1 and v.template_id = $2 and v.version = $3",
        tenant,
        row.id,
        version,
    )
    .fetch_optional(db)
    .await?
    .ok_or_else(|| ApiError::not_found("template_version"))?;
    let parts = TemplateParts {
        subject: found.subject,
        preheader: found.preheader,
        body_html: found.body_html,
        body_text: found.body_text,
    };
    let written =
        WrittenBodies { layout: found.layout, mjml: found.mjml, html: found.written_html, text: found.written_text };
    Ok(TemplateRow { version, content_id: found.content_id, parts, written, variables: found.variables, ..row })
}
