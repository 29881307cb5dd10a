//! `/v1/templates`: the content of mail, in versions. A content never changes; sends pin the one they were made from.

pub(crate) mod content;
pub(crate) mod merge;
mod render;
pub(crate) mod store;
mod versions;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use uuid::Uuid;

use self::{
    content::TemplateParts,
    store::{TemplateRow, TemplateSummary},
};
use crate::pipeline::{
    ApiReply, Doc, Faults, NoFields, Patch, RequestContext, Routes,
    error::ApiError,
    read, read_page,
    types::{Line, Name, Words},
    validate::{LINE_MAX, NAME_MAX},
    write, write_with_work,
};

/// The kinds of a template: the values of `contents.kind`.
const TYPES: [&str; 3] = ["marketing", "transactional", "sequence"];
const STATUSES: [&str; 3] = ["draft", "active", "archived"];
/// The states a new template may have.
const FIRST_STATUSES: [&str; 2] = ["draft", "active"];
/// Longest source of a part; the check counts bytes.
const SOURCE_MAX: usize = 512 * 1024;

/// The routes.
pub(crate) fn routes() -> Routes {
    Routes::new()
        .get(
            "/v1/templates",
            read_page("templates:read", list),
            Doc::new("listTemplates", "List templates", "Newest first, without bodies.")
                .page::<TemplateSummary>("A page of templates"),
        )
        .post(
            "/v1/templates",
            write_with_work("templates:write", create),
            Doc::new(
                "createTemplate",
                "Create a template",
                "Subject and bodies are Liquid. A syntax error or an unknown merge field is a 400 whose `fields` \
                 name part, line and column.",
            )
            .example(json!({
                "name": "Receipt", "template_type": "transactional", "subject": "Your receipt, {{ first_name }}",
                "body_html": "<p>You paid {{ data.total }}.</p>",
            }))
            .answer::<TemplateSaved>(201, "Created")
            .leads_to(
                "template_id",
                &["getTemplate", "updateTemplate", "archiveTemplate", "renderTemplate", "listTemplateVersions"],
            ),
        )
        .get(
            "/v1/templates/{id}",
            read("templates:read", one),
            Doc::new(
                "getTemplate",
                "Read a template",
                "With its bodies; with `version`, the content of an earlier one.",
            )
            .answer::<TemplateAnswer>(200, "The template")
            .refuses(404, &["template_not_found", "template_version_not_found"]),
        )
        .patch(
            "/v1/templates/{id}",
            write_with_work("templates:write", change),
            Doc::new(
                "updateTemplate",
                "Change a template",
                "What is left out stays. Every change of content is a new version; what was launched or sent keeps \
                 the one it was made from.",
            )
            .example(json!({"subject": "Your receipt"}))
            .answer::<TemplateSaved>(200, "Changed")
            .refuses(404, &["template_not_found"]),
        )
        .delete(
            "/v1/templates/{id}",
            write("templates:write", archive),
            Doc::new(
                "archiveTemplate",
                "Archive a template",
                "What refers to it keeps its reference; a PATCH brings it back.",
            )
            .answer::<TemplateArchived>(200, "Archived")
            .refuses(404, &["template_not_found"]),
        )
        .get(
            "/v1/templates/{id}/versions",
            read_page("templates:read", versions::list),
            Doc::new("listTemplateVersions", "List a template's versions", "Newest first, without bodies.")
                .page::<versions::TemplateVersion>("A page of versions")
                .refuses(404, &["template_not_found"]),
        )
        .post(
            "/v1/templates/{id}/render",
            write_with_work("templates:read", render::render),
            Doc::new(
                "renderTemplate",
                "Render a template",
                "The mail a recipient would see, without sending it: for a contact, or for a `sample` of one. Links \
                 and the unsubscribe address lead to a placeholder. Data that the template cannot be rendered with \
                 is a 422 with the reason such a send would fail with.",
            )
            .example(json!({"sample": {"first_name": "Ann"}, "data": {"total": "12.50"}}))
            .answer::<render::TemplateRendered>(200, "Rendered")
            .refuses(
                404,
                &["template_not_found", "template_version_not_found", "contact_not_found", "sender_profile_not_found"],
            )
            .refuses(
                422,
                &[
                    "render_deadline_exceeded",
                    "render_output_too_large",
                    "render_filter_failed",
                    "render_html_unclosed",
                    "render_subject_too_long",
                    "render_engine_failed",
                ],
            ),
        )
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct CreateTemplate {
    #[schemars(with = "Name<NAME_MAX>")]
    name: Option<String>,
    #[schemars(with = "Name<LINE_MAX>")]
    subject: Option<String>,
    #[schemars(with = "Words<SOURCE_MAX>")]
    body_html: Option<String>,
    #[schemars(length(max = SOURCE_MAX))]
    body_text: Option<String>,
    #[schemars(with = "Option<Line<LINE_MAX>>")]
    preheader: Option<String>,
    /// Default: marketing.
    #[schemars(extend("enum" = TYPES))]
    template_type: Option<String>,
    /// Default: active.
    #[schemars(extend("enum" = FIRST_STATUSES))]
    status: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct TemplateSaved {
    template_id: Uuid,
    #[schemars(extend("enum" = STATUSES))]
    status: String,
    #[schemars(range(min = 1, max = i32::MAX))]
    version: i32,
}

async fn create(ctx: &mut RequestContext, body: CreateTemplate) -> Result<ApiReply, ApiError> {
    let mut faults = Faults::default();
    let name = faults.name("name", body.name);
    let parts = TemplateParts {
        subject: faults.not_blank("subject", body.subject),
        preheader: body.preheader,
        body_html: faults.not_blank("body_html", body.body_html),
        body_text: body.body_text,
    };
    parts.check_lines(&mut faults);
    let template_type = body.template_type.unwrap_or_else(|| "marketing".to_owned());
    faults.one_of("template_type", &template_type, &TYPES);
    let status = body.status.unwrap_or_else(|| "active".to_owned());
    faults.one_of("status", &status, &FIRST_STATUSES);
    faults.finish()?;

    let tenant = ctx.tenant;
    let variables = content::check(ctx, &parts, content::kind(&template_type), None).await?;
    let content_id = store::insert_content(ctx.db(), tenant, &template_type, &parts, &variables).await?;
    let id = store::insert(ctx.db(), tenant, &name, &template_type, &status, content_id).await?;
    ApiReply::created(&TemplateSaved { template_id: id, status, version: 1 })
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ChangeTemplate {
    #[serde(default)]
    #[schemars(with = "Name<NAME_MAX>")]
    name: Patch<String>,
    #[serde(default)]
    #[schemars(with = "Name<LINE_MAX>")]
    subject: Patch<String>,
    #[serde(default)]
    #[schemars(with = "Option<Line<LINE_MAX>>")]
    preheader: Patch<String>,
    #[serde(default)]
    #[schemars(with = "Words<SOURCE_MAX>")]
    body_html: Patch<String>,
    #[serde(default)]
    #[schemars(length(max = SOURCE_MAX))]
    body_text: Patch<String>,
    #[serde(default)]
    #[schemars(with = "String", extend("enum" = STATUSES))]
    status: Patch<String>,
}

async fn change(ctx: &mut RequestContext, body: ChangeTemplate) -> Result<ApiReply, ApiError> {
    let (tenant, id) = (ctx.tenant, ctx.id("template")?);
    let not_found = || ApiError::not_found("template");
    if !store::lock(ctx.db(), tenant, id).await? {
        return Err(not_found());
    }
    let row = store::get(ctx.db(), tenant, id).await?.ok_or_else(not_found)?;

    let mut faults = Faults::default();
    let name = faults.name("name", body.name.into_option().unwrap_or(Some(row.name)));
    let old = row.parts.clone();
    let parts = TemplateParts {
        subject: faults.not_blank("subject", body.subject.into_option().unwrap_or(Some(old.subject))),
        preheader: body.preheader.into_option().unwrap_or(old.preheader),
        body_html: faults.not_blank("body_html", body.body_html.into_option().unwrap_or(Some(old.body_html))),
        body_text: body.body_text.into_option().unwrap_or(old.body_text),
    };
    parts.check_lines(&mut faults);
    let status = body.status.into_option().unwrap_or(Some(row.status));
    let status = faults.required("status", status).unwrap_or_default();
    faults.one_of("status", &status, &STATUSES);
    faults.finish()?;

    let (mut version, mut content_id) = (row.version, row.content_id);
    if parts != row.parts {
        let variables = content::check(ctx, &parts, content::kind(&row.template_type), None).await?;
        content_id = store::insert_content(ctx.db(), tenant, &row.template_type, &parts, &variables).await?;
        version += 1;
        store::insert_version(ctx.db(), tenant, id, version, content_id).await?;
    }
    store::update(ctx.db(), tenant, id, &name, &status, version, content_id).await?;
    ApiReply::ok(&TemplateSaved { template_id: id, status, version })
}

#[derive(Debug, Serialize, JsonSchema)]
struct TemplateArchived {
    template_id: Uuid,
    #[schemars(extend("const" = "archived"))]
    status: &'static str,
}

async fn archive(ctx: &mut RequestContext, _: NoFields) -> Result<ApiReply, ApiError> {
    let (tenant, id) = (ctx.tenant, ctx.id("template")?);
    if !store::archive(ctx.db(), tenant, id).await? {
        return Err(ApiError::not_found("template"));
    }
    ApiReply::ok(&TemplateArchived { template_id: id, status: "archived" })
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ListTemplates {
    #[schemars(extend("enum" = STATUSES))]
    status: Option<String>,
}

async fn list(ctx: &mut RequestContext, query: ListTemplates) -> Result<ApiReply, ApiError> {
    let page = ctx.page;
    if let Some(status) = &query.status {
        let mut faults = Faults::default();
        faults.one_of("status", status, &STATUSES);
        faults.finish()?;
    }
    let tenant = ctx.tenant;
    ApiReply::page(page, store::list(ctx.db(), tenant, query.status.as_deref(), &page).await?)
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ShowTemplate {
    #[schemars(range(min = 1, max = i32::MAX))]
    version: Option<i32>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct TemplateAnswer {
    template: TemplateRow,
}

async fn one(ctx: &mut RequestContext, query: ShowTemplate) -> Result<ApiReply, ApiError> {
    let (tenant, id) = (ctx.tenant, ctx.id("template")?);
    let mut template = store::get(ctx.db(), tenant, id).await?.ok_or_else(|| ApiError::not_found("template"))?;
    if let Some(version) = query.version {
        template = versions::as_of(ctx.db(), tenant, template, version).await?;
    }
    ApiReply::ok(&TemplateAnswer { template })
}
