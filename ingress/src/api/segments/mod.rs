//! `/v1/segments`: audiences by rule. The language of rules is [`segments`]'s.

mod rule;

use schemars::JsonSchema;
use schemas::new_id;
use segments::{self, CompiledSegment, Rule, SAMPLE_MAX, SampledContact, SegmentError, SegmentFault};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sqlx::PgConnection;
use uuid::Uuid;

use self::rule::{SegmentRule, limits};
use crate::{
    api::{fields::definitions, limits::SEGMENTS, references},
    pipeline::{
        ApiReply, Doc, Faults, NoFields, NoParameters, Patch, RequestContext, Routes,
        error::{ApiError, FieldFault},
        page::Time,
        read, read_page, resource, status_answer,
        types::Words,
        validate::AUDIENCE_NAME_MAX,
        write,
    },
};

const DESCRIPTION_MAX_CHARS: usize = 1_000;

/// Refusals of every write that has a rule: what it names and the tenant does not have.
const NAMED: [&str; 4] = ["list_not_found", "tag_not_found", "segment_not_found", "campaign_not_found"];

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
            .refuses(409, &["segment_name_taken", "segment_limit_reached"])
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

/// An audience by rule.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Segment")]
struct SegmentView {
    segment_id: Uuid,
    name: String,
    description: Option<String>,
    #[schemars(with = "SegmentRule")]
    rule: Value,
    created_at: Time,
    updated_at: Time,
}

resource!(SegmentView, "segment", "segments", segment_id);

/// Writers of a tenant's segments take turns: two changes at once could close a circle that neither sees.
pub(crate) async fn lock_all(db: &mut PgConnection, tenant: Uuid) -> sqlx::Result<()> {
    sqlx::query!("select pg_advisory_xact_lock(hashtextextended('segments ' || $1::uuid::text, 0))", tenant)
        .fetch_one(db)
        .await
        .map(drop)
}

/// 404 unless there is one; it is not deleted before this transaction ends.
pub(crate) async fn lock_for_use(db: &mut PgConnection, tenant: Uuid, id: Uuid) -> Result<(), ApiError> {
    sqlx::query_scalar!(
        "select id from segments where tenant_id = $1 and id = $2 and deleted_at is null for share",
        tenant,
        id,
    )
    .fetch_optional(db)
    .await?
    .map(drop)
    .ok_or_else(|| ApiError::not_found("segment"))
}

/// Newest first, one page. Served by `segments_newest`.
async fn list(ctx: &mut RequestContext, _: NoParameters) -> Result<ApiReply, ApiError> {
    let (tenant, page) = (ctx.tenant, ctx.page);
    let segments = sqlx::query_as!(
        SegmentView,
        "select id as segment_id, name, description, rule, created_at, updated_at from segments
         where tenant_id = $1 and deleted_at is null and ($2::timestamptz is null or (created_at, id) < ($2, $3))
         order by created_at desc, id desc limit $4",
        tenant,
        page.before,
        page.before_id,
        page.fetch(),
    )
    .fetch_all(ctx.db())
    .await?;
    ApiReply::page(page, segments)
}

async fn find(ctx: &mut RequestContext) -> Result<SegmentView, ApiError> {
    let (tenant, id) = (ctx.tenant, ctx.id("segment")?);
    sqlx::query_as!(
        SegmentView,
        "select id as segment_id, name, description, rule, created_at, updated_at from segments
         where tenant_id = $1 and id = $2 and deleted_at is null",
        tenant,
        id,
    )
    .fetch_optional(ctx.db())
    .await?
    .ok_or_else(|| ApiError::not_found("segment"))
}

async fn show(ctx: &mut RequestContext, _: NoParameters) -> Result<ApiReply, ApiError> {
    ApiReply::single(find(ctx).await?)
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
    lock_all(ctx.db(), tenant).await?;
    let mut faults = Faults::default();
    faults.title("name", &body.name, AUDIENCE_NAME_MAX);
    faults.optional("description", body.description.as_deref(), DESCRIPTION_MAX_CHARS);
    let (rule, _) = check_rule(ctx, &body.rule, faults, Some(id)).await?;
    let name = body.name.trim();
    let created = sqlx::query!(
        "insert into segments (tenant_id, id, name, description, rule) values ($1, $2, $3, $4, $5)
         on conflict (tenant_id, name) where deleted_at is null do nothing",
        tenant,
        id,
        name,
        body.description,
        body.rule,
    )
    .execute(ctx.db())
    .await?;
    if created.rows_affected() == 0 {
        return Err(name_taken());
    }
    SEGMENTS.check(ctx.db(), tenant).await?;
    set_uses(ctx.db(), tenant, id, &rule.segments()).await?;
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
    definitions::hold_names(ctx.db(), tenant).await?;
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
    lock_all(ctx.db(), tenant).await?;
    let before = find(ctx).await?;
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
    let description = body.description.applied_to(before.description.clone());
    let stored = body.rule.as_ref().unwrap_or(&before.rule);
    // Writers take turns, so no other takes the name in between.
    let changed = sqlx::query!(
        "update segments s set name = $3, description = $4, rule = $5, updated_at = now()
         where tenant_id = $1 and id = $2
           and not exists (
               select from segments o where o.tenant_id = $1 and o.name = $3 and o.id <> $2 and o.deleted_at is null)",
        tenant,
        id,
        name,
        description,
        stored,
    )
    .execute(ctx.db())
    .await?;
    if changed.rows_affected() == 0 {
        return Err(name_taken());
    }
    let fields = [
        ("name", name != before.name),
        ("description", description != before.description),
        ("rule", *stored != before.rule),
    ];
    ctx.audit_changed("segment.changed", &id.to_string(), fields).await?;
    if let Some(rule) = rule {
        set_uses(ctx.db(), tenant, id, &rule.segments()).await?;
        check_users(ctx, id).await?;
    }
    ApiReply::single(find(ctx).await?)
}

/// Writes down which segments a rule names.
async fn set_uses(db: &mut PgConnection, tenant: Uuid, id: Uuid, uses: &[Uuid]) -> sqlx::Result<()> {
    sqlx::query!("delete from segment_uses where tenant_id = $1 and segment_id = $2", tenant, id)
        .execute(&mut *db)
        .await?;
    sqlx::query!(
        "insert into segment_uses (tenant_id, segment_id, uses) select $1, $2, unnest($3::uuid[])",
        tenant,
        id,
        uses,
    )
    .execute(db)
    .await
    .map(drop)
}

/// The segments that name this one, also by way of others, must stay within their limits, too. Served by `segment_uses_by_used`.
async fn check_users(ctx: &mut RequestContext, id: Uuid) -> Result<(), ApiError> {
    let tenant = ctx.tenant;
    let users = sqlx::query_scalar!(
        r#"with recursive users as (
               select segment_id from segment_uses where tenant_id = $1 and uses = $2
               union
               select w.segment_id from users u join segment_uses w on w.tenant_id = $1 and w.uses = u.segment_id
           )
           select segment_id as "id!" from users"#,
        tenant,
        id,
    )
    .fetch_all(ctx.db())
    .await?;
    match segments::find_beyond_limits(ctx.db(), tenant, &users).await? {
        None => Ok(()),
        Some((user, fault)) => {
            let detail = format!("would break the segment {user}, which names this one: it {}", fault.detail);
            Err(ApiError::invalid("rule", fault.code, detail))
        }
    }
}

status_answer!(SegmentDeleted, segment_id, "deleted");

/// Takes a segment away. The row stays: campaigns of the past name it.
async fn remove(ctx: &mut RequestContext, _: NoFields) -> Result<ApiReply, ApiError> {
    let (tenant, id) = (ctx.tenant, ctx.id("segment")?);
    lock_all(ctx.db(), tenant).await?;
    // Locked for its removal: a writer that is about to name it comes before, or finds it gone.
    let known = sqlx::query_scalar!(
        "select id from segments where tenant_id = $1 and id = $2 and deleted_at is null for update",
        tenant,
        id,
    );
    known.fetch_optional(ctx.db()).await?.ok_or_else(|| ApiError::not_found("segment"))?;
    let references = references::to_segment(ctx.db(), tenant, id).await?;
    references::refuse("segment", references, "change them, or wait until they are over")?;
    set_uses(ctx.db(), tenant, id, &[]).await?;
    sqlx::query!(
        "update segments set deleted_at = now(), updated_at = now() where tenant_id = $1 and id = $2",
        tenant,
        id,
    )
    .execute(ctx.db())
    .await?;
    ctx.audit("segment.removed", &id.to_string(), json!({})).await?;
    SegmentDeleted::reply(id)
}
