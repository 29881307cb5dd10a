//! `/v1/segments`: audiences by rule (API.md §3). What a rule says stands in [`segments`].

mod doc;
mod store;

use schemas::new_id;
use segments::{self, Compiled, Fault, Rule, SegmentError};
use serde::Deserialize;
use serde_json::{Value, json};
use uuid::Uuid;

pub(crate) use store::hold;

use crate::{
    act::{Act, Faults, NoFields, NoParameters, Page, Patch, Reply, Routes, read, time, write},
    error::{ApiError, FieldFault},
    routes::audiences::NAME_MAX_CHARS,
};

const DESCRIPTION_MAX_CHARS: usize = 1_000;

/// The routes.
pub(crate) fn routes() -> Routes {
    Routes::new()
        .get("/v1/segments", read("segments:read", list), doc::list)
        .post("/v1/segments", write("segments:write", create), doc::create)
        .post("/v1/segments/preview", write("segments:read", preview), doc::preview)
        .get("/v1/segments/{id}", read("segments:read", show), doc::show)
        .patch("/v1/segments/{id}", write("segments:write", change), doc::change)
        .delete("/v1/segments/{id}", write("segments:write", remove), doc::remove)
}

impl From<SegmentError> for ApiError {
    fn from(error: SegmentError) -> Self {
        match error {
            SegmentError::NotFound(object) => Self::not_found(object),
            SegmentError::Invalid(faults) => {
                let fault = |fault: Fault| FieldFault::new(fault.path, fault.code, fault.detail);
                Self::validation(faults.into_iter().map(fault).collect())
            }
            SegmentError::Store(error) => error.into(),
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ListQuery {
    limit: Option<i64>,
    cursor: Option<String>,
}

async fn list(act: &mut Act, query: ListQuery) -> Result<Reply, ApiError> {
    let page = Page::new(query.limit, query.cursor.as_deref())?;
    let tenant = act.tenant;
    let mut segments = store::list(act.db(), tenant, &page).await?;
    let next_cursor = page.cut(&mut segments, |segment| (segment.created_at, segment.segment_id));
    Reply::untyped_ok(&json!({"ok": true, "segments": segments, "next_cursor": next_cursor}))
}

async fn show(act: &mut Act, _: NoParameters) -> Result<Reply, ApiError> {
    let (tenant, id) = (act.tenant, act.id("segment")?);
    let segment = store::get(act.db(), tenant, id).await?;
    Reply::untyped_ok(&json!({"ok": true, "segment": segment}))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Create {
    name: String,
    #[serde(default)]
    description: Option<String>,
    rule: Value,
}

async fn create(act: &mut Act, body: Create) -> Result<Reply, ApiError> {
    let (tenant, id) = (act.tenant, new_id());
    store::lock_all(act.db(), tenant).await?;
    let mut faults = Faults::default();
    faults.title("name", &body.name, NAME_MAX_CHARS);
    faults.optional("description", body.description.as_deref(), DESCRIPTION_MAX_CHARS);
    let (rule, _) = check_rule(act, &body.rule, faults, Some(id)).await?;
    let name = body.name.trim();
    if !store::insert(act.db(), tenant, id, name, body.description.as_deref(), &body.rule).await? {
        return Err(name_taken());
    }
    store::set_uses(act.db(), tenant, id, &rule.segments()).await?;
    Reply::untyped_created(&json!({"ok": true, "segment_id": id, "name": name}))
}

fn name_taken() -> ApiError {
    ApiError::conflict("segment_name_taken").detail("another segment has this name")
}

/// Checks a rule by its own words, together with the faults found before, and then against what it names.
async fn check_rule(
    act: &mut Act,
    rule: &Value,
    mut faults: Faults,
    own: Option<Uuid>,
) -> Result<(Rule, Compiled), ApiError> {
    let tenant = act.tenant;
    let definitions = segments::definitions(act.db(), tenant).await?;
    let parsed = Rule::parse(rule, "rule", &definitions);
    let parsed = parsed
        .map_err(|found| found.into_iter().for_each(|fault| faults.add(fault.path, fault.code, fault.detail)))
        .ok();
    faults.finish()?;
    let parsed = parsed.ok_or_else(ApiError::internal)?;
    let compiled = segments::resolve(act.db(), tenant, &parsed, &definitions, own).await?;
    Ok((parsed, compiled))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Preview {
    rule: Value,
}

/// What a rule comes to now; nothing is stored.
async fn preview(act: &mut Act, body: Preview) -> Result<Reply, ApiError> {
    let (_, compiled) = check_rule(act, &body.rule, Faults::default(), None).await?;
    let tenant = act.tenant;
    let preview = segments::preview(act.db(), tenant, &compiled).await?;
    let contact = |contact: &segments::Sampled| {
        json!({
            "contact_id": contact.contact_id, "email": contact.email, "first_name": contact.first_name,
            "last_name": contact.last_name,
        })
    };
    let sample: Vec<Value> = preview.sample.iter().map(contact).collect();
    Reply::untyped_ok(
        &json!({"ok": true, "count": preview.count, "sample": sample, "evaluated_at": time(preview.evaluated_at)}),
    )
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Change {
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    description: Patch<String>,
    #[serde(default)]
    rule: Option<Value>,
}

/// Campaigns that name the segment are mailed by the rule as it stands when their audience is written down.
async fn change(act: &mut Act, body: Change) -> Result<Reply, ApiError> {
    let (tenant, id) = (act.tenant, act.id("segment")?);
    store::lock_all(act.db(), tenant).await?;
    let before = store::get(act.db(), tenant, id).await?;
    let mut faults = Faults::default();
    if let Some(name) = &body.name {
        faults.title("name", name, NAME_MAX_CHARS);
    }
    faults.optional("description", body.description.value().map(String::as_str), DESCRIPTION_MAX_CHARS);
    let rule = match &body.rule {
        Some(rule) => Some(check_rule(act, rule, faults, Some(id)).await?.0),
        None => faults.finish().map(|()| None)?,
    };
    let name = body.name.as_deref().map_or(before.name.as_str(), str::trim);
    let description = body.description.into_option().unwrap_or(before.description);
    let stored = body.rule.as_ref().unwrap_or(&before.rule);
    if !store::update(act.db(), tenant, id, name, description.as_deref(), stored).await? {
        return Err(name_taken());
    }
    if let Some(rule) = rule {
        store::set_uses(act.db(), tenant, id, &rule.segments()).await?;
        check_users(act, id).await?;
    }
    let segment = store::get(act.db(), tenant, id).await?;
    Reply::untyped_ok(&json!({"ok": true, "segment": segment}))
}

/// The segments that name this one must stay within their limits, too.
async fn check_users(act: &mut Act, id: Uuid) -> Result<(), ApiError> {
    let tenant = act.tenant;
    for user in store::users_of(act.db(), tenant, id).await? {
        match segments::load(act.db(), tenant, user).await {
            Ok(_) => {}
            Err(SegmentError::Invalid(faults)) => {
                let fault = faults.into_iter().next().ok_or_else(ApiError::internal)?;
                let detail = format!("would break the segment {}, which names this one: it {}", user, fault.detail);
                return Err(ApiError::invalid("rule", fault.code, detail));
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

async fn remove(act: &mut Act, _: NoFields) -> Result<Reply, ApiError> {
    let (tenant, id) = (act.tenant, act.id("segment")?);
    store::lock_all(act.db(), tenant).await?;
    store::lock(act.db(), tenant, id).await?;
    if let Some(user) = store::user(act.db(), tenant, id).await? {
        return Err(ApiError::conflict("segment_in_use").detail(format!("{user} names it")));
    }
    store::delete(act.db(), tenant, id).await?;
    Reply::untyped_ok(&json!({"ok": true, "segment_id": id, "status": "deleted"}))
}
