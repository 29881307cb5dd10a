//! `/v1/templates`: the content of mail, in versions. A content never changes; sends pin the one they were made from.

pub(crate) mod composition;
pub(crate) mod content;
pub(crate) mod merge;
pub(crate) mod render;
pub(crate) mod store;
pub(crate) mod testdata;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use templates::{CheckedTemplate, SNIPPET_NAME_MAX};
use uuid::Uuid;

use self::{
    composition::{ComposedTemplate, HeldSnippet, WrittenTemplate, compose_template},
    content::ContentWarning,
    store::{TemplateRow, TemplateSummary, TemplateVersion},
    testdata::{SETS_MAX, StoredTestData, TestDataMisfit, TestDataSet},
};
use super::{fields::definitions, limits};
use crate::pipeline::{
    ApiReply, Doc, Faults, NoFields, Patch, RequestContext, Routes,
    error::ApiError,
    read, read_page, status_answer,
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
                "Subject and bodies are Liquid. The body is `body_html`, or `mjml`, which is compiled to it; bodies may \
                 include snippets, and `layout` names what stands around them (see `POST /v1/snippets`). A syntax error or an unknown merge field is a 400 whose `fields` \
                 name part, line and column. `warnings` name what can be sent and goes wrong in a mailbox: dead links, \
                 pictures without `alt`, HTML that Gmail clips.",
            )
            .example(json!({
                "name": "Receipt", "template_type": "transactional", "subject": "Your receipt, {{ first_name }}",
                "body_html": "<p>You paid {{ data.total }}.</p>",
            }))
            .answer::<TemplateSaved>(201, "Created")
            .leads_to("template_id", &["getTemplate", "updateTemplate", "archiveTemplate"])
            .leads_to("template_id", &["refreshTemplate", "renderTemplate", "listTemplateVersions"])
            .refuses(409, &["template_limit_reached"]),
        )
        .get(
            "/v1/templates/{id}",
            read("templates:read", one),
            Doc::new(
                "getTemplate",
                "Read a template",
                "With its bodies as they were written (`body_html` of MJML is what it was compiled to), and the \
                 snippets it holds; with `version`, the content of an earlier one.",
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
            .refuses(404, &["template_not_found"])
            .refuses(409, &["template_limit_reached"]),
        )
        .delete(
            "/v1/templates/{id}",
            write("templates:write", archive),
            Doc::new(
                "archiveTemplate",
                "Archive a template",
                "What refers to it keeps its reference: sequences go on sending it, and only the engine's own mail asks \
                 for consent in its place. Nothing new can name it; a PATCH brings it back.",
            )
            .answer::<TemplateArchived>(200, "Archived")
            .refuses(404, &["template_not_found"]),
        )
        .post(
            "/v1/templates/{id}/refresh",
            write_with_work("templates:write", refresh),
            Doc::new(
                "refreshTemplate",
                "Take the newest snippets",
                "Makes a new version with the snippets and the layout as they are, if the template holds older ones. \
                 What was launched or sent keeps the version it was made from.",
            )
            .answer::<TemplateSaved>(200, "The current version")
            .refuses(404, &["template_not_found"]),
        )
        .get(
            "/v1/templates/{id}/versions",
            read_page("templates:read", store::list_versions),
            Doc::new("listTemplateVersions", "List a template's versions", "Newest first, without bodies.")
                .page::<TemplateVersion>("A page of versions")
                .refuses(404, &["template_not_found"]),
        )
        .post(
            "/v1/templates/{id}/render",
            write_with_work("templates:read", render::render),
            Doc::new(
                "renderTemplate",
                "Render a template",
                "The mail a recipient would see, without sending it: for a contact, for a `sample` of one, or with the \
                 template's `test_data` of a name. Links and the unsubscribe address lead to a placeholder. Data that \
                 the template cannot be rendered with is a 422 with the reason such a send would fail with.",
            )
            .example(json!({"sample": {"first_name": "Ann"}, "data": {"total": "12.50"}}))
            .answer::<render::TemplateRendered>(200, "Rendered")
            .refuses(404, &["template_not_found", "template_version_not_found"])
            .refuses(404, &["contact_not_found", "sender_profile_not_found"])
            .refuses(422, &render::FAULTS),
        )
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct CreateTemplate {
    #[schemars(with = "Name<NAME_MAX>")]
    name: Option<String>,
    #[schemars(with = "Name<LINE_MAX>")]
    subject: Option<String>,
    /// This or `mjml`.
    #[schemars(with = "Option<Words<SOURCE_MAX>>")]
    body_html: Option<String>,
    #[schemars(with = "Option<Words<SOURCE_MAX>>")]
    mjml: Option<String>,
    #[schemars(length(max = SOURCE_MAX))]
    body_text: Option<String>,
    /// The name of the layout around the bodies.
    #[schemars(length(max = SNIPPET_NAME_MAX))]
    layout: Option<String>,
    /// Sample data under names, for previews and tests.
    #[schemars(length(max = SETS_MAX))]
    test_data: Option<Vec<TestDataSet>>,
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
    /// About new content: it can be sent, and something in it goes wrong in a mailbox.
    warnings: Vec<ContentWarning>,
    /// Test data that does not fit the template: every value of `data` and of an event that one of the two has and the other has not.
    test_data_misfits: Vec<TestDataMisfit>,
}

async fn create(ctx: &mut RequestContext, body: CreateTemplate) -> Result<ApiReply, ApiError> {
    let mut faults = Faults::default();
    let name = faults.name("name", body.name);
    let written = WrittenTemplate {
        subject: faults.not_blank("subject", body.subject),
        preheader: body.preheader,
        body_html: body.body_html,
        mjml: body.mjml,
        body_text: body.body_text,
        layout: body.layout,
    };
    written.check_lines(&mut faults);
    let template_type = body.template_type.unwrap_or_else(|| "marketing".to_owned());
    faults.one_of("template_type", &template_type, &TYPES);
    let status = body.status.unwrap_or_else(|| "active".to_owned());
    faults.one_of("status", &status, &FIRST_STATUSES);
    let tenant = ctx.tenant;
    let sets = body.test_data.unwrap_or_default();
    testdata::check(ctx.db(), tenant, &sets, &mut faults).await?;
    faults.finish()?;

    let composed = compose_template(ctx, &written, content::kind(&template_type)).await?;
    let content_id = store::insert_composed(ctx.db(), tenant, &template_type, &composed).await?;
    let id = schemas::new_id();
    sqlx::query!(
        "insert into templates (tenant_id, id, name, template_type, status, version, content_id)
         values ($1, $2, $3, $4, $5, 1, $6)",
        tenant,
        id,
        name,
        template_type,
        status,
        content_id,
    )
    .execute(ctx.db())
    .await?;
    limits::TEMPLATES.check(ctx.db(), tenant).await?;
    store::insert_version(ctx.db(), tenant, id, 1, content_id, &composed).await?;
    testdata::replace(ctx.db(), tenant, id, &sets).await?;
    ctx.audit("template.created", &id.to_string(), json!({"template_type": template_type})).await?;
    let test_data_misfits = testdata::misfits(&sets, &composed.checked.variables);
    let warnings = ContentWarning::all(composed.checked.warnings);
    ApiReply::created(&TemplateSaved { template_id: id, status, version: 1, warnings, test_data_misfits })
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct ChangeTemplate {
    #[schemars(with = "Name<NAME_MAX>")]
    name: Patch<String>,
    #[schemars(with = "Name<LINE_MAX>")]
    subject: Patch<String>,
    #[schemars(with = "Option<Line<LINE_MAX>>")]
    preheader: Patch<String>,
    /// In the place of `mjml`, if the template has that.
    #[schemars(with = "Option<Words<SOURCE_MAX>>")]
    body_html: Patch<String>,
    /// In the place of `body_html`.
    #[schemars(with = "Option<Words<SOURCE_MAX>>")]
    mjml: Patch<String>,
    #[schemars(length(max = SOURCE_MAX))]
    body_text: Patch<String>,
    /// `null` takes the layout away.
    #[schemars(length(max = SNIPPET_NAME_MAX))]
    layout: Patch<String>,
    /// All of it, in the place of what there is. No new version.
    #[schemars(length(max = SETS_MAX))]
    test_data: Patch<Vec<TestDataSet>>,
    #[schemars(with = "String", extend("enum" = STATUSES))]
    status: Patch<String>,
}

async fn change(ctx: &mut RequestContext, body: ChangeTemplate) -> Result<ApiReply, ApiError> {
    let (tenant, id) = (ctx.tenant, ctx.id("template")?);
    // Before the row: a sequence that names the template holds the fields and waits for it.
    definitions::hold_names(ctx.db(), tenant).await?;
    let row = store::lock(ctx.db(), tenant, id).await?;

    let mut faults = Faults::default();
    let name = faults.name("name", body.name.applied_to(Some(row.name.clone())));
    let old = WrittenTemplate::of(row.parts.clone(), row.written.clone());
    let (body_html, mjml) = content::either_body((old.body_html.clone(), old.mjml.clone()), body.body_html, body.mjml);
    let written = WrittenTemplate {
        subject: faults.not_blank("subject", body.subject.applied_to(Some(old.subject.clone()))),
        preheader: body.preheader.applied_to(old.preheader.clone()),
        body_html,
        mjml,
        body_text: body.body_text.applied_to(old.body_text.clone()),
        layout: body.layout.applied_to(old.layout.clone()),
    };
    written.check_lines(&mut faults);
    let status = body.status.applied_to(Some(row.status.clone()));
    let status = faults.required("status", status).unwrap_or_default();
    faults.one_of("status", &status, &STATUSES);
    let is_given = body.test_data.is_given();
    let sets = match body.test_data.into_option() {
        Some(sets) => sets.unwrap_or_default(),
        None => testdata::of_template(ctx.db(), tenant, id).await?,
    };
    if is_given {
        testdata::check(ctx.db(), tenant, &sets, &mut faults).await?;
    }
    faults.finish()?;

    let mut saved = SavedContent::of(&row);
    if written != old {
        let composed = compose_template(ctx, &written, content::kind(&row.template_type)).await?;
        saved = insert_version(ctx, &row, composed).await?;
    } else if row.status == "archived" && status != row.status {
        require_fields(ctx, &row.variables).await?;
    }
    store::update(ctx.db(), tenant, id, &name, &status, saved.version, saved.content_id).await?;
    if row.status == "archived" && status != row.status {
        limits::TEMPLATES.check(ctx.db(), tenant).await?;
    }
    if is_given {
        testdata::replace(ctx.db(), tenant, id, &sets).await?;
    }
    let fields = [
        ("name", name != row.name),
        ("content", written != old),
        ("status", status != row.status),
        ("test_data", is_given),
    ];
    ctx.audit_changed("template.changed", &id.to_string(), fields).await?;
    saved.answer(id, status, &sets)
}

/// The contact fields that an archived template names may have been removed; the snippets in it are its own.
async fn require_fields(ctx: &mut RequestContext, variables: &[String]) -> Result<(), ApiError> {
    let tenant = ctx.tenant;
    let known = content::known_fields(ctx.db(), tenant).await?;
    let named = variables.iter().filter_map(|name| name.strip_prefix("contact.fields.")?.split('.').next());
    match named.into_iter().find(|key| !known.custom.contains(*key)) {
        Some(key) => {
            let detail = format!("the template names the contact field {key}, which is removed: change its text, too");
            Err(ApiError::invalid("status", "unknown_variable", detail))
        }
        None => Ok(()),
    }
}

/// The current version of a template that a request may have made.
struct SavedContent {
    version: i32,
    content_id: Uuid,
    variables: Vec<String>,
    warnings: Vec<ContentWarning>,
}

impl SavedContent {
    fn of(row: &TemplateRow) -> Self {
        let (version, content_id, variables) = (row.version, row.content_id, row.variables.clone());
        Self { version, content_id, variables, warnings: Vec::new() }
    }

    fn answer(self, template_id: Uuid, status: String, sets: &[TestDataSet]) -> Result<ApiReply, ApiError> {
        let Self { version, variables, warnings, .. } = self;
        let test_data_misfits = testdata::misfits(sets, &variables);
        ApiReply::ok(&TemplateSaved { template_id, status, version, warnings, test_data_misfits })
    }
}

/// Stores a content and the template's next version, which has it.
async fn insert_version(
    ctx: &mut RequestContext,
    row: &TemplateRow,
    composed: ComposedTemplate,
) -> Result<SavedContent, ApiError> {
    let version = row.version + 1;
    let tenant = ctx.tenant;
    let content_id = store::insert_composed(ctx.db(), tenant, &row.template_type, &composed).await?;
    store::insert_version(ctx.db(), tenant, row.id, version, content_id, &composed).await?;
    let CheckedTemplate { variables, warnings } = composed.checked;
    Ok(SavedContent { version, content_id, variables, warnings: ContentWarning::all(warnings) })
}

async fn refresh(ctx: &mut RequestContext, _: NoFields) -> Result<ApiReply, ApiError> {
    let (tenant, id) = (ctx.tenant, ctx.id("template")?);
    definitions::hold_names(ctx.db(), tenant).await?;
    let row = store::lock(ctx.db(), tenant, id).await?;
    let mut saved = SavedContent::of(&row);
    let held = composition::held(ctx.db(), tenant, row.content_id).await?;
    if held.iter().any(HeldSnippet::is_outdated) {
        let written = WrittenTemplate::of(row.parts.clone(), row.written.clone());
        let composed = compose_template(ctx, &written, content::kind(&row.template_type)).await?;
        saved = insert_version(ctx, &row, composed).await?;
        store::update(ctx.db(), tenant, id, &row.name, &row.status, saved.version, saved.content_id).await?;
        ctx.audit("template.refreshed", &id.to_string(), json!({"version": saved.version})).await?;
    }
    let sets = testdata::of_template(ctx.db(), tenant, id).await?;
    saved.answer(id, row.status, &sets)
}

status_answer!(TemplateArchived, template_id, "archived");

async fn archive(ctx: &mut RequestContext, _: NoFields) -> Result<ApiReply, ApiError> {
    let (tenant, id) = (ctx.tenant, ctx.id("template")?);
    // What is about to name it comes before, or finds it archived.
    let row = store::lock(ctx.db(), tenant, id).await?;
    if row.status != "archived" {
        store::update(ctx.db(), tenant, id, &row.name, "archived", row.version, row.content_id).await?;
        ctx.audit("template.archived", &id.to_string(), json!({})).await?;
    }
    TemplateArchived::reply(id)
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ListTemplates {
    #[schemars(extend("enum" = STATUSES))]
    status: Option<String>,
}

async fn list(ctx: &mut RequestContext, query: ListTemplates) -> Result<ApiReply, ApiError> {
    let (tenant, page) = (ctx.tenant, ctx.page);
    if let Some(status) = &query.status {
        let mut faults = Faults::default();
        faults.one_of("status", status, &STATUSES);
        faults.finish()?;
    }
    ApiReply::page(page, store::list(ctx.db(), tenant, query.status, &page).await?)
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
    /// The snippets and the layout in this version.
    snippets: Vec<HeldSnippet>,
    test_data: Vec<StoredTestData>,
}

async fn one(ctx: &mut RequestContext, query: ShowTemplate) -> Result<ApiReply, ApiError> {
    let (tenant, id) = (ctx.tenant, ctx.id("template")?);
    let mut template = store::as_of(ctx.db(), tenant, id, query.version).await?;
    let snippets = composition::held(ctx.db(), tenant, template.content_id).await?;
    let test_data = testdata::of_template(ctx.db(), tenant, id).await?.into_iter().map(Into::into).collect();
    template.show_written();
    ApiReply::ok(&TemplateAnswer { template, snippets, test_data })
}
