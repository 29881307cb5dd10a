//! `/v1/segments`: audiences by rule. The language of rules is [`segments`]'s.

mod rule;
mod store;

use schemars::JsonSchema;
use schemas::new_id;
use segments::{self, CompiledSegment, Rule, SAMPLE_MAX, SampledContact, SegmentError, SegmentFault};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use uuid::Uuid;

use self::{
    rule::{SegmentRule, limits},
    store::SegmentView,
};
pub(crate) use store::{lock_all, lock_for_use};

use crate::{
    api::{fields, references},
    pipeline::{
        ApiReply, Doc, Faults, NoFields, NoParameters, Patch, RequestContext, Routes,
        error::{ApiError, FieldFault},
        page::Time,
        read, read_page, status_answer,
        types::Words,
        validate::AUDIENCE_NAME_MAX,
        write,
    },
};

const DESCRIPTION_MAX_CHARS: usize = 1_000;

/// Refusals of every write that has a rule: what it names and the tenant does not have.
const NAMED: [&str; 4] = ["list_not_found", "tag_not_found", "segment_not_found", "campaign_not_found"];

/// The routes.
pub(crate) fn routes() -> Routes {
    Routes::new()
        .get(
            "/v1/segments",
            read_page("segments:read", list),
            Doc::new("listSegments", "List segments", "Newest first. The id is what campaigns take as `segment_id`.")
                .page::<SegmentView>("A page of segments"),
        )
        .post(
            "/v1/segments",
            write("segments:write", create),
            Doc::new(
                "createSegment",
                "Create a segment",
                "An audience by rule: the contacts that match when it is used. Faults name their place in the rule, \
                 as `rule.all[1].value`.",
            )
            .example(
                json!({"name": "Sleeping customers", "rule": {"field": "fields.plan", "op": "eq", "value": "pro"}}),
            )
            .answer::<SegmentCreated<'_>>(201, "Created")
            .leads_to("segment_id", &["getSegment", "updateSegment", "deleteSegment"])
            .refuses(409, &["segment_name_taken"])
            .refuses(404, &NAMED),
        )
        .post(
            "/v1/segments/preview",
            write("segments:read", preview),
            Doc::new("previewSegment", "Preview a rule", "The contacts that match now. Nothing is stored.")
                .example(json!({"rule": {"field": "fields.plan", "op": "eq", "value": "pro"}}))
                .answer::<SegmentPreview>(200, "How many match, and the newest of them")
                .refuses(404, &NAMED),
        )
        .get(
            "/v1/segments/{id}",
            read("segments:read", show),
            Doc::new("getSegment", "Read a segment", "").single::<SegmentView>("The segment"),
        )
        .patch(
            "/v1/segments/{id}",
            write("segments:write", change),
            Doc::new(
                "updateSegment",
                "Change a segment",
                "What is left out stays. A campaign is mailed by the rule as it stands when its audience is looked \
                 up.",
            )
            .example(json!({"name": "Sleeping customers"}))
            .refuses(409, &["segment_name_taken"])
            .single::<SegmentView>("The segment")
            .refuses(404, &NAMED),
        )
        .delete(
            "/v1/segments/{id}",
            write("segments:write", remove),
            Doc::new(
                "deleteSegment",
                "Delete a segment",
                "Not while another segment or a campaign that is not over names it.",
            )
            .answer::<SegmentDeleted>(200, "Deleted")
            .refuses(404, &["segment_not_found"])
            .refuses(409, &["segment_in_use"]),
        )
}

impl From<SegmentError> for ApiError {
    fn from(error: SegmentError) -> Self {
        match error {
            SegmentError::NotFound(object) => Self::not_found(object),
            SegmentError::Invalid(faults) => {
                let fault = |fault: SegmentFault| FieldFault::new(fault.path, fault.code, fault.detail);
                Self::validation(faults.into_iter().map(fault).collect())
            }
            SegmentError::Store(error) => error.into(),
        }
    }
}

async fn list(ctx: &mut RequestContext, _: NoParameters) -> Result<ApiReply, ApiError> {
    let (tenant, page) = (ctx.tenant, ctx.page);
    ApiReply::page(page, store::list(ctx.db(), tenant, &page).await?)
}

async fn show(ctx: &mut RequestContext, _: NoParameters) -> Result<ApiReply, ApiError> {
    let (tenant, id) = (ctx.tenant, ctx.id("segment")?);
    ApiReply::single(store::get(ctx.db(), tenant, id).await?)
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct CreateSegment {
    #[schemars(with = "Words<AUDIENCE_NAME_MAX>")]
    name: String,
    #[schemars(length(max = DESCRIPTION_MAX_CHARS))]
    description: Option<String>,
    #[schemars(with = "SegmentRule", extend("description" = limits()))]
    rule: Value,
}

#[derive(Debug, Serialize, JsonSchema)]
struct SegmentCreated<'a> {
    segment_id: Uuid,
    name: &'a str,
}

async fn create(ctx: &mut RequestContext, body: CreateSegment) -> Result<ApiReply, ApiError> {
    let (tenant, id) = (ctx.tenant, new_id());
    store::lock_all(ctx.db(), tenant).await?;
    let mut faults = Faults::default();
    faults.title("name", &body.name, AUDIENCE_NAME_MAX);
    faults.optional("description", body.description.as_deref(), DESCRIPTION_MAX_CHARS);
    let (rule, _) = check_rule(ctx, &body.rule, faults, Some(id)).await?;
    let name = body.name.trim();
    if !store::insert(ctx.db(), tenant, id, name, body.description.as_deref(), &body.rule).await? {
        return Err(name_taken());
    }
    store::set_uses(ctx.db(), tenant, id, &rule.segments()).await?;
    ctx.audit("segment.created", &id.to_string(), json!({})).await?;
    ApiReply::created(&SegmentCreated { segment_id: id, name })
}

fn name_taken() -> ApiError {
    ApiError::conflict("segment_name_taken").detail("another segment has this name")
}

/// Validates a rule alone, together with earlier faults, and then against the fields and audiences that it names.
async fn check_rule(
    ctx: &mut RequestContext,
    rule: &Value,
    mut faults: Faults,
    own: Option<Uuid>,
) -> Result<(Rule, CompiledSegment), ApiError> {
    let tenant = ctx.tenant;
    fields::hold_names(ctx.db(), tenant).await?;
    let definitions = segments::definitions(ctx.db(), tenant).await?;
    let parsed = Rule::parse(rule, "rule", &definitions);
    let parsed = parsed
        .map_err(|found| found.into_iter().for_each(|fault| faults.add(fault.path, fault.code, fault.detail)))
        .ok();
    faults.finish()?;
    let parsed = parsed.ok_or_else(ApiError::internal)?;
    let compiled = segments::resolve(ctx.db(), tenant, &parsed, &definitions, own).await?;
    Ok((parsed, compiled))
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct PreviewSegment {
    #[schemars(with = "SegmentRule", extend("description" = limits()))]
    rule: Value,
}

#[derive(Debug, Serialize, JsonSchema)]
struct SegmentPreview {
    #[schemars(range(min = 0))]
    count: i64,
    /// The newest contacts that match.
    #[schemars(length(max = SAMPLE_MAX))]
    sample: Vec<SampledContact>,
    evaluated_at: Time,
}

/// The contacts that match a rule now; nothing is stored.
async fn preview(ctx: &mut RequestContext, body: PreviewSegment) -> Result<ApiReply, ApiError> {
    let (_, compiled) = check_rule(ctx, &body.rule, Faults::default(), None).await?;
    let tenant = ctx.tenant;
    let segments::Preview { count, sample, evaluated_at } = segments::preview(ctx.db(), tenant, &compiled).await?;
    ApiReply::ok(&SegmentPreview { count, sample, evaluated_at: evaluated_at.into() })
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct ChangeSegment {
    #[schemars(with = "Option<Words<AUDIENCE_NAME_MAX>>")]
    name: Option<String>,
    #[schemars(length(max = DESCRIPTION_MAX_CHARS))]
    description: Patch<String>,
    #[schemars(with = "Option<SegmentRule>", extend("description" = limits()))]
    rule: Option<Value>,
}

/// Campaigns with this segment use the rule at the time their audience is written down.
async fn change(ctx: &mut RequestContext, body: ChangeSegment) -> Result<ApiReply, ApiError> {
    let (tenant, id) = (ctx.tenant, ctx.id("segment")?);
    store::lock_all(ctx.db(), tenant).await?;
    let before = store::get(ctx.db(), tenant, id).await?;
    let mut faults = Faults::default();
    if let Some(name) = &body.name {
        faults.title("name", name, AUDIENCE_NAME_MAX);
    }
    faults.optional("description", body.description.value().map(String::as_str), DESCRIPTION_MAX_CHARS);
    let rule = match &body.rule {
        Some(rule) => Some(check_rule(ctx, rule, faults, Some(id)).await?.0),
        None => faults.finish().map(|()| None)?,
    };
    let name = body.name.as_deref().map_or(before.name.as_str(), str::trim);
    let description = body.description.into_option().unwrap_or_else(|| before.description.clone());
    let stored = body.rule.as_ref().unwrap_or(&before.rule);
    if !store::update(ctx.db(), tenant, id, name, description.as_deref(), stored).await? {
        return Err(name_taken());
    }
    let fields = [
        ("name", name != before.name),
        ("description", description != before.description),
        ("rule", *stored != before.rule),
    ];
    ctx.audit_changed("segment.changed", &id.to_string(), fields).await?;
    if let Some(rule) = rule {
        store::set_uses(ctx.db(), tenant, id, &rule.segments()).await?;
        check_users(ctx, id).await?;
    }
    ApiReply::single(store::get(ctx.db(), tenant, id).await?)
}

/// The segments that name this one must stay within their limits, too.
async fn check_users(ctx: &mut RequestContext, id: Uuid) -> Result<(), ApiError> {
    let tenant = ctx.tenant;
    let users = store::users_of(ctx.db(), tenant, id).await?;
    match segments::find_beyond_limits(ctx.db(), tenant, &users).await? {
        None => Ok(()),
        Some((user, fault)) => {
            let detail = format!("would break the segment {user}, which names this one: it {}", fault.detail);
            Err(ApiError::invalid("rule", fault.code, detail))
        }
    }
}

status_answer!(SegmentDeleted, segment_id, "deleted");

async fn remove(ctx: &mut RequestContext, _: NoFields) -> Result<ApiReply, ApiError> {
    let (tenant, id) = (ctx.tenant, ctx.id("segment")?);
    store::lock_all(ctx.db(), tenant).await?;
    store::lock(ctx.db(), tenant, id).await?;
    let references = references::to_segment(ctx.db(), tenant, id).await?;
    references::refuse("segment", references, "change them, or wait until they are over")?;
    store::delete(ctx.db(), tenant, id).await?;
    ctx.audit("segment.removed", &id.to_string(), json!({})).await?;
    SegmentDeleted::reply(id)
}
