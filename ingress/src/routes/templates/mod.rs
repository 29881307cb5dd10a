//! `/v1/templates`: what mail says, in versions. A content never changes; sends pin the one they were made from.

pub(crate) mod content;
mod doc;
pub(crate) mod merge;
mod render;
pub(crate) mod store;
mod versions;

use serde::Deserialize;
use serde_json::{Value, json};

use self::{
    content::Parts,
    store::{TemplateListRow, TemplateRow},
};
use crate::{
    act::{Act, Faults, NoFields, Page, Patch, Reply, Routes, read, time, write, write_with_work},
    error::ApiError,
};

/// What a template may be for: the words of `contents.kind`.
const TYPES: [&str; 3] = ["marketing", "transactional", "sequence"];
const STATUSES: [&str; 3] = ["draft", "active", "archived"];

/// The routes.
pub(crate) fn routes() -> Routes {
    Routes::new()
        .get("/v1/templates", read("templates:read", list), doc::list)
        .post("/v1/templates", write_with_work("templates:write", create), doc::create)
        .get("/v1/templates/{id}", read("templates:read", one), doc::show)
        .patch("/v1/templates/{id}", write_with_work("templates:write", change), doc::change)
        .delete("/v1/templates/{id}", write("templates:write", archive), doc::archive)
        .get("/v1/templates/{id}/versions", read("templates:read", versions::list), doc::list_versions)
        .post("/v1/templates/{id}/render", write_with_work("templates:read", render::render), doc::render)
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct CreateBody {
    name: Option<String>,
    subject: Option<String>,
    body_html: Option<String>,
    body_text: Option<String>,
    preheader: Option<String>,
    template_type: Option<String>,
    status: Option<String>,
}

async fn create(act: &mut Act, body: CreateBody) -> Result<Reply, ApiError> {
    let mut faults = Faults::default();
    let name = faults.name("name", body.name);
    let parts = Parts {
        subject: faults.not_blank("subject", body.subject),
        preheader: body.preheader,
        body_html: faults.not_blank("body_html", body.body_html),
        body_text: body.body_text,
    };
    parts.check_lines(&mut faults);
    let template_type = body.template_type.unwrap_or_else(|| "marketing".to_owned());
    faults.one_of("template_type", &template_type, &TYPES);
    let status = body.status.unwrap_or_else(|| "active".to_owned());
    faults.one_of("status", &status, &["draft", "active"]);
    faults.finish()?;

    let tenant = act.tenant;
    let variables = content::check(act, &parts, content::kind(&template_type), None).await?;
    let content_id = store::insert_content(act.db(), tenant, &template_type, &parts, &variables).await?;
    let id = store::insert(act.db(), tenant, &name, &template_type, &status, content_id).await?;
    Reply::untyped_created(&json!({"ok": true, "template_id": id, "status": status, "version": 1}))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ChangeBody {
    #[serde(default)]
    name: Patch<String>,
    #[serde(default)]
    subject: Patch<String>,
    #[serde(default)]
    preheader: Patch<String>,
    #[serde(default)]
    body_html: Patch<String>,
    #[serde(default)]
    body_text: Patch<String>,
    #[serde(default)]
    status: Patch<String>,
}

async fn change(act: &mut Act, body: ChangeBody) -> Result<Reply, ApiError> {
    let (tenant, id) = (act.tenant, act.id("template")?);
    let not_found = || ApiError::not_found("template");
    if !store::lock(act.db(), tenant, id).await? {
        return Err(not_found());
    }
    let row = store::get(act.db(), tenant, id).await?.ok_or_else(not_found)?;

    let mut faults = Faults::default();
    let name = faults.name("name", body.name.into_option().unwrap_or(Some(row.name)));
    let old = row.parts.clone();
    let parts = Parts {
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
        let variables = content::check(act, &parts, content::kind(&row.template_type), None).await?;
        content_id = store::insert_content(act.db(), tenant, &row.template_type, &parts, &variables).await?;
        version += 1;
        store::insert_version(act.db(), tenant, id, version, content_id).await?;
    }
    store::update(act.db(), tenant, id, &name, &status, version, content_id).await?;
    Reply::untyped_ok(&json!({"ok": true, "template_id": id, "status": status, "version": version}))
}

async fn archive(act: &mut Act, _: NoFields) -> Result<Reply, ApiError> {
    let (tenant, id) = (act.tenant, act.id("template")?);
    if !store::archive(act.db(), tenant, id).await? {
        return Err(ApiError::not_found("template"));
    }
    Reply::untyped_ok(&json!({"ok": true, "template_id": id, "status": "archived"}))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ListQuery {
    status: Option<String>,
    limit: Option<i64>,
    cursor: Option<String>,
}

async fn list(act: &mut Act, query: ListQuery) -> Result<Reply, ApiError> {
    let page = Page::new(query.limit, query.cursor.as_deref())?;
    if let Some(status) = &query.status {
        let mut faults = Faults::default();
        faults.one_of("status", status, &STATUSES);
        faults.finish()?;
    }
    let tenant = act.tenant;
    let mut rows = store::list(act.db(), tenant, query.status.as_deref(), &page).await?;
    let next_cursor = page.cut(&mut rows, |row| (row.created_at, row.id));
    let templates: Vec<Value> = rows.iter().map(list_record).collect();
    Reply::untyped_ok(&json!({"ok": true, "templates": templates, "next_cursor": next_cursor}))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct OneQuery {
    version: Option<i32>,
}

async fn one(act: &mut Act, query: OneQuery) -> Result<Reply, ApiError> {
    let (tenant, id) = (act.tenant, act.id("template")?);
    let mut row = store::get(act.db(), tenant, id).await?.ok_or_else(|| ApiError::not_found("template"))?;
    if let Some(version) = query.version {
        row = versions::as_of(act.db(), tenant, row, version).await?;
    }
    Reply::untyped_ok(&json!({"ok": true, "template": record(&row)}))
}

fn record(row: &TemplateRow) -> Value {
    json!({
        "template_id": row.id,
        "name": row.name,
        "template_type": row.template_type,
        "status": row.status,
        "version": row.version,
        "subject": row.parts.subject,
        "preheader": row.parts.preheader,
        "body_html": row.parts.body_html,
        "body_text": row.parts.body_text,
        "variables": row.variables,
        "created_at": time(row.created_at),
        "updated_at": time(row.updated_at),
    })
}

/// A template in a list: without its bodies, which may have half a megabyte each.
fn list_record(row: &TemplateListRow) -> Value {
    json!({
        "template_id": row.id,
        "name": row.name,
        "template_type": row.template_type,
        "status": row.status,
        "version": row.version,
        "subject": row.subject,
        "preheader": row.preheader,
        "variables": row.variables,
        "created_at": time(row.created_at),
        "updated_at": time(row.updated_at),
    })
}
