//! Rows of `templates`, `template_versions` and `contents`.

use schemars::JsonSchema;
use serde::Serialize;
use sqlx::PgConnection;
use uuid::Uuid;

use super::{
    STATUSES, TYPES,
    composition::{ComposedTemplate, WrittenBodies},
    content::TemplateParts,
};
use crate::pipeline::{
    ApiReply, NoParameters, RequestContext,
    error::ApiError,
    page::{ListPage, Time, numbered},
    resource,
};

/// A template with its content.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(rename = "Template")]
pub(crate) struct TemplateRow {
    #[serde(rename = "template_id")]
    pub(crate) id: Uuid,
    pub(crate) name: String,
    #[schemars(extend("enum" = TYPES))]
    pub(crate) template_type: String,
    #[schemars(extend("enum" = STATUSES))]
    pub(crate) status: String,
    #[schemars(range(min = 1, max = i32::MAX))]
    pub(crate) version: i32,
    #[serde(skip)]
    pub(crate) content_id: Uuid,
    #[serde(flatten)]
    pub(crate) parts: TemplateParts,
    #[serde(flatten)]
    pub(crate) written: WrittenBodies,
    /// The merge fields it uses.
    pub(crate) variables: Vec<String>,
    pub(crate) created_at: Time,
    pub(crate) updated_at: Time,
}

impl TemplateRow {
    /// Shows the bodies as their author wrote them, in the place of what is sent.
    pub(super) fn show_written(&mut self) {
        if let Some(html) = self.written.html.take() {
            self.parts.body_html = html;
        }
        self.parts.body_text = self.written.text.take().or_else(|| self.parts.body_text.take());
    }
}

/// A template in a list: everything but the bodies, which may be half a megabyte each.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct TemplateSummary {
    #[serde(rename = "template_id")]
    id: Uuid,
    name: String,
    #[schemars(extend("enum" = TYPES))]
    template_type: String,
    #[schemars(extend("enum" = STATUSES))]
    status: String,
    #[schemars(range(min = 1, max = i32::MAX))]
    version: i32,
    subject: String,
    preheader: Option<String>,
    /// The merge fields it uses.
    variables: Vec<String>,
    created_at: Time,
    updated_at: Time,
}

resource!(TemplateSummary, "template", "templates", id);

/// Stores a content. It never changes afterwards: batches pin it. One that no batch has is emptied when its draft says something else.
pub(crate) async fn insert_content(
    db: &mut PgConnection,
    tenant: Uuid,
    kind: &str,
    parts: &TemplateParts,
    variables: &[String],
) -> sqlx::Result<Uuid> {
    let id = schemas::new_id();
    sqlx::query!(
        "insert into contents (tenant_id, id, kind, subject, preheader, body_html, body_text, variables)
         values ($1, $2, $3, $4, $5, $6, $7, $8)",
        tenant,
        id,
        kind,
        parts.subject,
        parts.preheader,
        parts.body_html,
        parts.body_text,
        variables,
    )
    .execute(db)
    .await?;
    Ok(id)
}

/// Stores what was composed as a content, and which snippets, in which versions, it holds.
pub(crate) async fn insert_composed(
    db: &mut PgConnection,
    tenant: Uuid,
    kind: &str,
    composed: &ComposedTemplate,
) -> sqlx::Result<Uuid> {
    let content = insert_content(&mut *db, tenant, kind, &composed.parts, &composed.checked.variables).await?;
    // Most contents hold none.
    if composed.snippets.is_empty() {
        return Ok(content);
    }
    let (ids, versions): (Vec<Uuid>, Vec<i32>) = composed.snippets.iter().copied().unzip();
    sqlx::query!(
        "insert into content_snippets (tenant_id, content_id, snippet_id, snippet_version)
         select $1, $2, id, version from unnest($3::uuid[], $4::integer[]) as held (id, version)",
        tenant,
        content,
        &ids,
        &versions,
    )
    .execute(db)
    .await?;
    Ok(content)
}

/// The parts of a content.
pub(crate) async fn parts_of(
    db: &mut PgConnection,
    tenant: Uuid,
    content: Uuid,
) -> sqlx::Result<Option<TemplateParts>> {
    sqlx::query_as!(
        TemplateParts,
        "select subject, preheader, body_html, body_text from contents where tenant_id = $1 and id = $2",
        tenant,
        content
    )
    .fetch_optional(db)
    .await
}

/// Records which content a version of a template was, and what it was made from.
pub(super) async fn insert_version(
    db: &mut PgConnection,
    tenant: Uuid,
    template: Uuid,
    version: i32,
    content_id: Uuid,
    composed: &ComposedTemplate,
) -> sqlx::Result<()> {
    sqlx::query!(
        "insert into template_versions (tenant_id, template_id, version, content_id, written_html, written_text, mjml, layout)
         values ($1, $2, $3, $4, $5, $6, $7, $8)",
        tenant,
        template,
        version,
        content_id,
        composed.written.html,
        composed.written.text,
        composed.written.mjml,
        composed.written.layout,
    )
    .execute(db)
    .await
    .map(drop)
}

/// Holds the template until the transaction ends, so that two changes make two versions, and what is about to name it waits; and reads it.
///
/// # Errors
/// 404 `template_not_found`.
pub(super) async fn lock(db: &mut PgConnection, tenant: Uuid, id: Uuid) -> Result<TemplateRow, ApiError> {
    sqlx::query_scalar!("select id from templates where tenant_id = $1 and id = $2 for no key update", tenant, id)
        .fetch_optional(&mut *db)
        .await?;
    get(db, tenant, id).await
}

/// One template with its current content.
///
/// # Errors
/// 404 `template_not_found`.
pub(crate) async fn get(db: &mut PgConnection, tenant: Uuid, id: Uuid) -> Result<TemplateRow, ApiError> {
    with_content(db, tenant, id, None).await?.ok_or_else(|| ApiError::not_found("template"))
}

/// The template as it was in a version, if one is asked for. Name and status are the current ones: they are no content.
///
/// # Errors
/// 404 `template_not_found`, `template_version_not_found`.
pub(super) async fn as_of(
    db: &mut PgConnection,
    tenant: Uuid,
    id: Uuid,
    version: Option<i32>,
) -> Result<TemplateRow, ApiError> {
    let current = get(&mut *db, tenant, id).await?;
    if version.is_none() {
        return Ok(current);
    }
    with_content(db, tenant, id, version).await?.ok_or_else(|| ApiError::not_found("template_version"))
}

async fn with_content(
    db: &mut PgConnection,
    tenant: Uuid,
    id: Uuid,
    version: Option<i32>,
) -> sqlx::Result<Option<TemplateRow>> {
    let row = sqlx::query!(
        "select t.id, t.name, t.template_type, t.status, v.version, v.content_id, t.created_at, t.updated_at,
                c.subject, c.preheader, c.body_html, c.body_text, c.variables, v.layout, v.mjml, v.written_html, v.written_text
         from templates t
         join template_versions v on v.tenant_id = t.tenant_id and v.template_id = t.id
                                  and v.version = case when $3::integer is null then t.version else $3 end
         join contents c on c.tenant_id = v.tenant_id and c.id = v.content_id
         where t.tenant_id = $1 and t.id = $2",
        tenant,
        id,
        version,
    )
    .fetch_optional(db)
    .await?;
    Ok(row.map(|row| TemplateRow {
        id: row.id,
        name: row.name,
        template_type: row.template_type,
        status: row.status,
        version: row.version,
        content_id: row.content_id,
        parts: TemplateParts {
            subject: row.subject,
            preheader: row.preheader,
            body_html: row.body_html,
            body_text: row.body_text,
        },
        written: WrittenBodies { layout: row.layout, mjml: row.mjml, html: row.written_html, text: row.written_text },
        variables: row.variables,
        created_at: row.created_at.into(),
        updated_at: row.updated_at.into(),
    }))
}

/// Templates, newest first, one page. Served by `templates_newest`.
pub(super) async fn list(
    db: &mut PgConnection,
    tenant: Uuid,
    status: Option<String>,
    page: &ListPage,
) -> sqlx::Result<Vec<TemplateSummary>> {
    sqlx::query_as!(
        TemplateSummary,
        "select t.id, t.name, t.template_type, t.status, t.version, c.subject, c.preheader, c.variables,
                t.created_at, t.updated_at
         from templates t
         join contents c on c.tenant_id = t.tenant_id and c.id = t.content_id
         where t.tenant_id = $1
           and ($2::text is null or t.status = $2)
           and ($3::timestamptz is null or (t.created_at, t.id) < ($3, $4::uuid))
         order by t.created_at desc, t.id desc
         limit $5",
        tenant,
        status,
        page.before,
        page.before_id,
        page.fetch(),
    )
    .fetch_all(db)
    .await
}

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
pub(super) async fn list_versions(ctx: &mut RequestContext, _: NoParameters) -> Result<ApiReply, ApiError> {
    let (tenant, id, page) = (ctx.tenant, ctx.id("template")?, ctx.page);
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

/// Writes name, status, version and current content.
pub(super) async fn update(
    db: &mut PgConnection,
    tenant: Uuid,
    id: Uuid,
    name: &str,
    status: &str,
    version: i32,
    content_id: Uuid,
) -> sqlx::Result<()> {
    sqlx::query!(
        "update templates
         set name = $3, status = $4, version = $5, content_id = $6, updated_at = now()
         where tenant_id = $1 and id = $2",
        tenant,
        id,
        name,
        status,
        version,
        content_id,
    )
    .execute(db)
    .await
    .map(drop)
}
