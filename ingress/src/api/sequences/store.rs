//! Rows of `sequences` and `sequence_steps`.

use schemars::JsonSchema;
use schemas::{DelayUnit, SequenceStatus, StepType};
use serde::Serialize;
use serde_json::{Map, Value};
use sqlx::PgConnection;
use uuid::Uuid;

use super::{
    input::{CONFIG, NewStep, STEPS_MAX},
    start::{GAP_MAX_MINUTES, Reentry, TRIGGER_CONFIG},
};
use crate::{
    api::events::ProductEventTerms,
    pipeline::{
        ApiReply, NoParameters, RequestContext,
        error::ApiError,
        page::{ListPage, OptionalTime, Time, numbered},
        resource,
    },
};

/// A sequence.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(rename = "Sequence")]
pub(crate) struct SequenceRow {
    #[serde(rename = "sequence_id")]
    pub(crate) id: Uuid,
    pub(crate) name: String,
    pub(crate) description: Option<String>,
    pub(crate) sender_profile_id: Option<Uuid>,
    pub(crate) trigger_type: String,
    #[schemars(with = "Option<Map<String, Value>>", description = TRIGGER_CONFIG)]
    trigger_config: Option<Value>,
    /// How often one contact starts it by the trigger.
    #[schemars(with = "Reentry")]
    reentry: String,
    #[schemars(range(min = 0, max = GAP_MAX_MINUTES))]
    reentry_gap_minutes: i32,
    enroll_from: OptionalTime,
    enroll_until: OptionalTime,
    #[schemars(with = "Option<ProductEventTerms>")]
    exit_on_event: Option<Value>,
    pub(crate) exit_on_unsubscribe: bool,
    pub(crate) exit_on_bounce: bool,
    pub(crate) exit_on_complaint: bool,
    pub(crate) status: SequenceStatus,
    /// The newest of its steps, from 1: what new enrollments go through.
    #[schemars(range(min = 1, max = i32::MAX))]
    pub(crate) version: i32,
    pub(crate) activated_at: OptionalTime,
    pub(crate) archived_at: OptionalTime,
    pub(crate) created_at: Time,
    pub(crate) updated_at: Time,
}

resource!(SequenceRow, "sequence", "sequences", id);

/// A step of a sequence.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct SequenceStep {
    #[serde(rename = "step_id")]
    id: Uuid,
    /// The position, from 1.
    #[schemars(range(min = 1, max = STEPS_MAX))]
    step_order: i16,
    step_type: StepType,
    template_id: Option<Uuid>,
    #[schemars(range(min = 0, max = i32::MAX))]
    delay_amount: i32,
    delay_unit: DelayUnit,
    #[schemars(with = "Map<String, Value>", description = CONFIG)]
    action_config: Value,
}

/// Stores the steps of a version.
pub(super) async fn insert_steps(
    db: &mut PgConnection,
    tenant: Uuid,
    id: Uuid,
    version: i32,
    steps: &[NewStep],
) -> sqlx::Result<()> {
    let ids: Vec<Uuid> = steps.iter().map(|step| step.id).collect();
    let types: Vec<&str> = steps.iter().map(|step| step.step_type.as_str()).collect();
    let templates: Vec<Option<Uuid>> = steps.iter().map(|step| step.template_id).collect();
    let amounts: Vec<i32> = steps.iter().map(|step| step.delay_amount).collect();
    let units: Vec<&str> = steps.iter().map(|step| step.delay_unit.as_str()).collect();
    let configs: Vec<Value> = steps.iter().map(|step: &NewStep| step.action_config.clone()).collect();
    sqlx::query!(
        "insert into sequence_steps (tenant_id, sequence_id, version, id, step_order, step_type, template_id, delay_amount,
                                     delay_unit, action_config)
         select $1, $2, $9, w.id, w.place, w.step_type, w.template_id, w.delay_amount, w.delay_unit, w.action_config
         from unnest($3::uuid[], $4::text[], $5::uuid[], $6::integer[], $7::text[], $8::jsonb[]) with ordinality
             as w (id, step_type, template_id, delay_amount, delay_unit, action_config, place)",
        tenant,
        id,
        &ids,
        &types as &[&str],
        &templates as &[Option<Uuid>],
        &amounts,
        &units as &[&str],
        &configs,
        version,
    )
    .execute(db)
    .await
    .map(drop)
}

/// Sequences of a tenant (`$1`), and which of them.
macro_rules! select {
    ($which:tt $(, $value:expr)+ $(,)?) => {
        sqlx::query_as!(
            SequenceRow,
            r#"select id, name, description, sender_profile_id, trigger_type, trigger_config, reentry, reentry_gap_minutes,
                      enroll_from, enroll_until, exit_event as exit_on_event, exit_on_unsubscribe, exit_on_bounce, exit_on_complaint,
                      status as "status: SequenceStatus", version, activated_at, archived_at, created_at, updated_at
               from sequences where tenant_id = $1 and deleted_at is null "# + $which,
            $($value),+
        )
    };
}

/// One sequence.
///
/// # Errors
/// 404 `sequence_not_found`.
pub(crate) async fn get(db: &mut PgConnection, tenant: Uuid, id: Uuid) -> Result<SequenceRow, ApiError> {
    let found = select!("and id = $2", tenant, id).fetch_optional(db).await?;
    found.ok_or_else(|| ApiError::not_found("sequence"))
}

/// Its steps in a version, in order; none: there is no such version.
pub(crate) async fn steps(
    db: &mut PgConnection,
    tenant: Uuid,
    sequence: Uuid,
    version: i32,
) -> sqlx::Result<Vec<SequenceStep>> {
    sqlx::query_as!(
        SequenceStep,
        r#"select id, step_order, step_type as "step_type: StepType", template_id, delay_amount,
                  delay_unit as "delay_unit: DelayUnit", action_config
           from sequence_steps where tenant_id = $1 and sequence_id = $2 and version = $3
           order by step_order"#,
        tenant,
        sequence,
        version,
    )
    .fetch_all(db)
    .await
}

/// Sequences, newest first, one page. Served by `sequences_newest`.
pub(super) async fn list(
    db: &mut PgConnection,
    tenant: Uuid,
    status: Option<SequenceStatus>,
    page: &ListPage,
) -> sqlx::Result<Vec<SequenceRow>> {
    select!(
        "and ($2::text is null or status = $2) and ($3::timestamptz is null or (created_at, id) < ($3, $4::uuid))
         order by created_at desc, id desc limit $5",
        tenant,
        status.map(SequenceStatus::as_str),
        page.before,
        page.before_id,
        page.fetch(),
    )
    .fetch_all(db)
    .await
}

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
pub(super) async fn list_versions(ctx: &mut RequestContext, _: NoParameters) -> Result<ApiReply, ApiError> {
    let (tenant, id, page) = (ctx.tenant, ctx.id("sequence")?, ctx.page);
    let sequence = get(ctx.db(), tenant, id).await?;
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

/// What decides whether a sequence's status may change; the row is locked. Enrollments being made wait for it, or it for them.
#[derive(Debug, Clone, Copy)]
pub(super) struct LockedSequence {
    pub(super) status: SequenceStatus,
    pub(super) sender_profile_id: Option<Uuid>,
    /// The newest version, and what is in it.
    pub(super) version: i32,
    pub(super) has_steps: bool,
    pub(super) sends_mail: bool,
}

/// Locks a sequence.
///
/// # Errors
/// 404 `sequence_not_found`.
pub(super) async fn lock(db: &mut PgConnection, tenant: Uuid, id: Uuid) -> Result<LockedSequence, ApiError> {
    let row = sqlx::query!(
        r#"select status as "status: SequenceStatus", sender_profile_id, version from sequences
           where tenant_id = $1 and id = $2 and deleted_at is null for no key update"#,
        tenant,
        id,
    )
    .fetch_optional(&mut *db)
    .await?
    .ok_or_else(|| ApiError::not_found("sequence"))?;
    let newest = sqlx::query!(
        r#"select count(*) > 0 as "has_steps!", count(*) filter (where step_type = 'send_email') > 0 as "sends_mail!"
           from sequence_steps where tenant_id = $1 and sequence_id = $2 and version = $3"#,
        tenant,
        id,
        row.version,
    )
    .fetch_one(db)
    .await?;
    Ok(LockedSequence {
        status: row.status,
        sender_profile_id: row.sender_profile_id,
        version: row.version,
        has_steps: newest.has_steps,
        sends_mail: newest.sends_mail,
    })
}

/// True if a mail of a version is of a template that is archived. The templates are held: none is archived before this transaction ends.
pub(super) async fn has_archived_template(
    db: &mut PgConnection,
    tenant: Uuid,
    sequence: Uuid,
    version: i32,
) -> sqlx::Result<bool> {
    let statuses = sqlx::query_scalar!(
        "select status from templates
         where tenant_id = $1 and id in (
             select template_id from sequence_steps where tenant_id = $1 and sequence_id = $2 and version = $3)
         order by id for share",
        tenant,
        sequence,
        version,
    )
    .fetch_all(db)
    .await?;
    Ok(statuses.iter().any(|status| status == "archived"))
}
