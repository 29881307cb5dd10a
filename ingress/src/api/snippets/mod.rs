//! `/v1/snippets`: pieces that bodies of templates and campaigns include by name, and layouts around them, in versions. A content holds the
//! text that they had when it was made.

pub(crate) mod store;
mod users;

use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use templates::{INCLUDES, Part, check_snippet, compose, mentioned_snippets};
use uuid::Uuid;

use self::{
    store::{SnippetText, SnippetTexts},
    users::{CampaignUser, TemplateUser},
};
use super::{
    limits, references,
    templates::{composition::check_one_body, content},
};
use crate::pipeline::{
    ApiReply, Doc, Faults, NoFields, Patch, RequestContext, Routes,
    error::{ApiError, FieldFault},
    page::Time,
    read, read_page, resource, status_answer,
    types::Words,
    validate::SNIPPET_MAX,
    write, write_with_work,
};

pub(crate) fn routes() -> Routes {
    Routes::new()
        .get(
            "/v1/snippets",
            read_page("templates:read", list),
            Doc::new("listSnippets", "List snippets and layouts", "Newest first, without bodies.")
                .page::<SnippetSummary>("A page of snippets"),
        )
        .post(
            "/v1/snippets",
            write_with_work("templates:write", create),
            Doc::new(
                "createSnippet",
                "Create a snippet or a layout",
                "Bodies of templates and campaigns, layouts and snippets put a snippet in with `{% include 'name' %}`, or \
                 with parameters: `{% include 'button', href: 'https://acme.example', label: first_name %}`. A layout \
                 stands around the bodies of templates and campaigns that name it, at its one `{{ content }}`. The body \
                 is HTML or MJML: those in MJML take both, those in HTML only HTML. `body_text` is for text parts.",
            )
            .example(json!({"name": "button", "body_html": "<a href=\"{{ href }}\">{{ label }}</a>"}))
            .answer::<SnippetSaved>(201, "Created")
            .leads_to("snippet_id", &["getSnippet", "updateSnippet", "deleteSnippet", "listSnippetTemplates", "listSnippetCampaigns"])
            .refuses(409, &["snippet_already_exists", "snippet_limit_reached"]),
        )
        .get(
            "/v1/snippets/{id}",
            read("templates:read", show),
            Doc::new("getSnippet", "Read a snippet or a layout", "With `version`, an earlier one.")
                .single::<SnippetView>("The snippet")
                .refuses(404, &["snippet_version_not_found"]),
        )
        .patch(
            "/v1/snippets/{id}",
            write_with_work("templates:write", change),
            Doc::new(
                "updateSnippet",
                "Change a snippet or a layout",
                "What is left out stays. A change is a new version. Templates keep the version they hold until they \
                 get a new version themselves, or `POST /v1/templates/{id}/refresh`; a campaign's own body takes the \
                 newest when it is launched.",
            )
            .example(json!({"body_html": "<a href=\"{{ href }}\"><b>{{ label }}</b></a>"}))
            .answer::<SnippetSaved>(200, "Changed")
            .refuses(404, &["snippet_not_found"]),
        )
        .delete(
            "/v1/snippets/{id}",
            write("templates:write", remove),
            Doc::new(
                "deleteSnippet",
                "Delete a snippet or a layout",
                "Its name is free again. Not while the current version of a template that is not archived holds it, a \
                 campaign that is not over has a body of its own with it, or another snippet mentions it.",
            )
            .answer::<SnippetDeleted>(200, "Deleted")
            .refuses(404, &["snippet_not_found"])
            .refuses(409, &["snippet_in_use"]),
        )
        .get(
            "/v1/snippets/{id}/templates",
            read_page("templates:read", users::templates),
            Doc::new(
                "listSnippetTemplates",
                "List the templates that hold a snippet",
                "In their current versions, also through other snippets; newest template first.",
            )
            .page::<TemplateUser>("A page of templates")
            .refuses(404, &["snippet_not_found"]),
        )
        .get(
            "/v1/snippets/{id}/campaigns",
            read_page("templates:read", users::campaigns),
            Doc::new(
                "listSnippetCampaigns",
                "List the campaigns that hold a snippet",
                "Those with a body of their own that are not over, also through other snippets; newest campaign first.",
            )
            .page::<CampaignUser>("A page of campaigns")
            .refuses(404, &["snippet_not_found"]),
        )
}

schemas::named_enum! {
    /// What stands in a template, and what stands around one.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub(crate) wire enum SnippetKind {
        /// Included by name.
        Snippet = "snippet",
        /// Named by a template or a campaign as its `layout`.
        Layout = "layout",
    }
}

/// A snippet or a layout, with its bodies.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(rename = "Snippet")]
struct SnippetView {
    snippet_id: Uuid,
    #[schemars(with = "SnippetKind")]
    kind: String,
    name: String,
    #[schemars(range(min = 1, max = i32::MAX))]
    version: i32,
    #[serde(flatten)]
    texts: SnippetTexts,
    created_at: Time,
    updated_at: Time,
}

resource!(SnippetView, "snippet", "snippets", snippet_id);

/// A snippet or a layout in a list.
#[derive(Debug, Serialize, JsonSchema)]
struct SnippetSummary {
    snippet_id: Uuid,
    #[schemars(with = "SnippetKind")]
    kind: String,
    name: String,
    #[schemars(range(min = 1, max = i32::MAX))]
    version: i32,
    created_at: Time,
    updated_at: Time,
}

resource!(SnippetSummary, "snippet", "snippets", snippet_id);

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct CreateSnippet {
    /// For good: bodies say it.
    #[schemars(regex(pattern = "^[a-z][a-z0-9_-]{0,63}$"))]
    name: String,
    /// Default: snippet.
    kind: Option<SnippetKind>,
    /// This or `mjml`.
    #[schemars(with = "Option<Words<SNIPPET_MAX>>")]
    body_html: Option<String>,
    #[schemars(with = "Option<Words<SNIPPET_MAX>>")]
    mjml: Option<String>,
    /// What stands in text parts.
    #[schemars(length(max = SNIPPET_MAX))]
    body_text: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct SnippetSaved {
    snippet_id: Uuid,
    name: String,
    #[schemars(range(min = 1, max = i32::MAX))]
    version: i32,
    /// Templates whose current version holds an older one of it.
    #[schemars(range(min = 0))]
    outdated_templates: i64,
}

async fn create(ctx: &mut RequestContext, body: CreateSnippet) -> Result<ApiReply, ApiError> {
    let mut faults = Faults::default();
    let is_name = templates::is_snippet_name(&body.name);
    faults.require(is_name, "name", "invalid", "must match [a-z][a-z0-9_-]{0,63}");
    let kind = body.kind.unwrap_or(SnippetKind::Snippet);
    let texts = SnippetTexts { body_html: body.body_html, mjml: body.mjml, body_text: body.body_text };
    texts.check_lengths(&mut faults);
    faults.finish()?;
    check(ctx, &body.name, kind, &texts).await?;
    let tenant = ctx.tenant;
    let id = schemas::new_id();
    let inserted = sqlx::query!(
        "insert into snippets (tenant_id, id, kind, name, version) values ($1, $2, $3, $4, 1)
         on conflict (tenant_id, name) where deleted_at is null do nothing",
        tenant,
        id,
        kind.as_str(),
        body.name,
    )
    .execute(ctx.db())
    .await?;
    if inserted.rows_affected() == 0 {
        return Err(ApiError::conflict("snippet_already_exists").detail("a snippet or a layout of this name exists"));
    }
    limits::SNIPPETS.check(ctx.db(), tenant).await?;
    store::insert_version(ctx.db(), tenant, id, 1, &texts).await?;
    ctx.audit("snippet.created", &id.to_string(), json!({"kind": kind.as_str()})).await?;
    ApiReply::created(&SnippetSaved { snippet_id: id, name: body.name, version: 1, outdated_templates: 0 })
}

impl SnippetTexts {
    /// One body, and nothing that is too long.
    fn check_lengths(&self, faults: &mut Faults) {
        check_one_body(faults, "", self.body_html.as_deref(), self.mjml.as_deref(), true);
        for (path, text) in [("body_html", &self.body_html), ("mjml", &self.mjml), ("body_text", &self.body_text)] {
            faults.bytes(path, text.as_deref().unwrap_or_default(), SNIPPET_MAX);
            check_mentions(faults, path, text.as_deref());
        }
    }

    /// The names that the texts mention: what they may include.
    pub(crate) fn mentions(&self) -> Vec<String> {
        let texts = [&self.body_html, &self.mjml, &self.body_text].into_iter().flatten();
        texts.flat_map(|text| mentioned_snippets(text)).collect::<BTreeSet<_>>().into_iter().collect()
    }
}

/// Refuses a text that names more snippets than a part may include, in comments too: each of them is looked up.
pub(crate) fn check_mentions(faults: &mut Faults, path: &str, text: Option<&str>) {
    let is_few = text.is_none_or(|text| mentioned_snippets(text).len() <= INCLUDES);
    faults.require(is_few, path, "too_many_includes", &format!("may name at most {INCLUDES} snippets"));
}

/// Checks a snippet for itself, and that what it includes exists and does not lead back to it.
///
/// # Errors
/// 400 with every fault, its line and column.
async fn check(ctx: &mut RequestContext, name: &str, kind: SnippetKind, texts: &SnippetTexts) -> Result<(), ApiError> {
    let tenant = ctx.tenant;
    let stored = store::load(ctx.db(), tenant, &texts.mentions()).await?;
    let written = [Some(name), texts.body_html.as_deref(), texts.mjml.as_deref(), texts.body_text.as_deref()];
    let label = store::label(&written, &stored);
    let (name, texts, is_layout) = (name.to_owned(), texts.clone(), kind == SnippetKind::Layout);
    let faults = ctx.run_blocking(label, move || {
        let mut faults: Vec<FieldFault> = Vec::new();
        let (body, of_body) = match (&texts.mjml, &texts.body_html) {
            (Some(mjml), _) => (Some(mjml), SnippetText::Mjml),
            (None, html) => (html.as_ref(), SnippetText::Html),
        };
        for (part, source, text) in
            [(Part::BodyHtml, body, of_body), (Part::BodyText, texts.body_text.as_ref(), SnippetText::Text)]
        {
            let Some(source) = source else { continue };
            let checked = check_snippet(part, is_layout, source)
                .and_then(|()| compose(part, source, Some(&name), None, &store::texts_for(&stored, text)).map(drop));
            faults.extend(checked.err().into_iter().flatten().map(|fault| content::field_fault(&fault, text.path())));
        }
        faults
    })?;
    if faults.is_empty() { Ok(()) } else { Err(content::refused(faults)) }
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ListSnippets {
    kind: Option<SnippetKind>,
}

async fn list(ctx: &mut RequestContext, query: ListSnippets) -> Result<ApiReply, ApiError> {
    let (tenant, page) = (ctx.tenant, ctx.page);
    let snippets = sqlx::query_as!(
        SnippetSummary,
        "select id as snippet_id, kind, name, version, created_at, updated_at from snippets
         where tenant_id = $1 and deleted_at is null and ($2::text is null or kind = $2)
           and ($3::timestamptz is null or (created_at, id) < ($3, $4))
         order by created_at desc, id desc limit $5",
        tenant,
        query.kind.map(SnippetKind::as_str),
        page.before,
        page.before_id,
        page.fetch(),
    )
    .fetch_all(ctx.db())
    .await?;
    ApiReply::page(page, snippets)
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ShowSnippet {
    #[schemars(range(min = 1, max = i32::MAX))]
    version: Option<i32>,
}

async fn show(ctx: &mut RequestContext, query: ShowSnippet) -> Result<ApiReply, ApiError> {
    let (tenant, id) = (ctx.tenant, ctx.id("snippet")?);
    let mut snippet = store::get(ctx.db(), tenant, id).await?;
    if let Some(version) = query.version.filter(|version| *version != snippet.version) {
        let texts = sqlx::query_as!(
            SnippetTexts,
            "select body_html, mjml, body_text from snippet_versions where tenant_id = $1 and snippet_id = $2 and version = $3",
            tenant,
            id,
            version,
        );
        let texts = texts.fetch_optional(ctx.db()).await?;
        snippet.texts = texts.ok_or_else(|| ApiError::not_found("snippet_version"))?;
        snippet.version = version;
    }
    ApiReply::single(snippet)
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct ChangeSnippet {
    /// In the place of `mjml`, if the snippet has that.
    #[schemars(with = "Option<Words<SNIPPET_MAX>>")]
    body_html: Patch<String>,
    /// In the place of `body_html`, if the snippet has that.
    #[schemars(with = "Option<Words<SNIPPET_MAX>>")]
    mjml: Patch<String>,
    #[schemars(length(max = SNIPPET_MAX))]
    body_text: Patch<String>,
}

async fn change(ctx: &mut RequestContext, body: ChangeSnippet) -> Result<ApiReply, ApiError> {
    let (tenant, id) = (ctx.tenant, ctx.id("snippet")?);
    let snippet = store::lock(ctx.db(), tenant, id).await?;
    let old = snippet.texts;
    let (body_html, mjml) = content::either_body((old.body_html.clone(), old.mjml.clone()), body.body_html, body.mjml);
    let body_text = body.body_text.applied_to(old.body_text.clone());
    let texts = SnippetTexts { body_html, mjml, body_text };
    let mut faults = Faults::default();
    texts.check_lengths(&mut faults);
    faults.finish()?;
    let mut version = snippet.version;
    if texts != old {
        let kind = SnippetKind::parse(&snippet.kind).unwrap_or(SnippetKind::Snippet);
        check(ctx, &snippet.name, kind, &texts).await?;
        version += 1;
        store::insert_version(ctx.db(), tenant, id, version, &texts).await?;
        ctx.audit("snippet.changed", &id.to_string(), json!({"version": version})).await?;
    }
    let outdated_templates = sqlx::query_scalar!(
        r#"select count(*) as "count!" from content_snippets u
           join templates t on t.tenant_id = $1 and t.content_id = u.content_id
           where u.tenant_id = $1 and u.snippet_id = $2 and u.snippet_version < $3 and t.status <> 'archived'"#,
        tenant,
        id,
        version,
    )
    .fetch_one(ctx.db())
    .await?;
    ApiReply::ok(&SnippetSaved { snippet_id: id, name: snippet.name, version, outdated_templates })
}

status_answer!(SnippetDeleted, snippet_id, "deleted");

/// Takes a snippet away. Its rows stay: old contents name what they were made from.
async fn remove(ctx: &mut RequestContext, _: NoFields) -> Result<ApiReply, ApiError> {
    let (tenant, id) = (ctx.tenant, ctx.id("snippet")?);
    // What is about to hold it comes before, or finds it gone.
    let name = sqlx::query_scalar!(
        "select name from snippets where tenant_id = $1 and id = $2 and deleted_at is null for update",
        tenant,
        id,
    );
    let name = name.fetch_optional(ctx.db()).await?.ok_or_else(|| ApiError::not_found("snippet"))?;
    let references = references::to_snippet(ctx.db(), tenant, id, &name).await?;
    references::refuse("snippet", references, "change or archive what holds it")?;
    sqlx::query!(
        "update snippets set deleted_at = now(), updated_at = now() where tenant_id = $1 and id = $2",
        tenant,
        id,
    )
    .execute(ctx.db())
    .await?;
    ctx.audit("snippet.removed", &id.to_string(), json!({"name": name})).await?;
    SnippetDeleted::reply(id)
}
