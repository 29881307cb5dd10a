//! Rows of `sequences` and `sequence_steps`.

use schemars::JsonSchema;
use schemas::{DelayUnit, Environment, SequenceStatus, StepType};
use serde::Serialize;
use serde_json::{Map, Value, json};
use sqlx::PgConnection;
use uuid::Uuid;

use super::{
    input::{CONFIG, NewSequence, NewStep, STEPS_MAX},
    start::{GAP_MAX_MINUTES, Reentry, StartRules, TRIGGER_CONFIG},
};
use crate::{
    api::events::ProductEventTerms,
    pipeline::{
        page::{ListPage, OptionalTime, Time},
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

/// Stores a sequence with its steps.
pub(super) async fn insert(
    db: &mut PgConnection,
    tenant: Uuid,
    id: Uuid,
    product: &str,
    environment: Environment,
    new: &NewSequence,
) -> sqlx::Result<()> {
    let status = if new.activate { SequenceStatus::Active } else { SequenceStatus::Draft };
    sqlx::query!(
        "insert into sequences (tenant_id, id, product, environment, name, description, sender_profile_id, trigger_type,
                                exit_on_unsubscribe, exit_on_bounce, exit_on_complaint, status, activated_at, trigger_config, reentry,
                                reentry_gap_minutes, enroll_from, enroll_until, exit_event)
         values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, case when $13 then now() end, $14, $15, $16, $17, $18, $19)",
        tenant,
        id,
        product,
        environment.as_str(),
        new.name,
        new.description,
        new.sender_profile_id,
        new.trigger_type,
        new.exit_on_unsubscribe,
        new.exit_on_bounce,
        new.exit_on_complaint,
        status.as_str(),
        new.activate,
        new.start.trigger_config,
        new.start.reentry.as_str(),
        new.start.reentry_gap_minutes,
        new.start.enroll_from,
        new.start.enroll_until,
        new.start.exit_on_event.as_ref().map(|terms| json!(terms)),
    )
    .execute(&mut *db)
    .await?;
    insert_steps(db, tenant, id, 1, &new.steps).await
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

/// Which of these templates a step may name: the tenant's own, not archived, and not made for transactional mail, whose `data.*`
/// no sequence has. They are held: none is archived before the sequence names it.
pub(super) async fn templates(db: &mut PgConnection, tenant: Uuid, ids: &[Uuid]) -> sqlx::Result<Vec<(Uuid, String)>> {
    let rows = sqlx::query!(
        "select id, template_type from templates where tenant_id = $1 and id = any ($2) and status <> 'archived'
         order by id for share",
        tenant,
        ids,
    )
    .fetch_all(db)
    .await?;
    Ok(rows.into_iter().map(|row| (row.id, row.template_type)).collect())
}

/// Whether the mails of a version are of templates that are not archived. They are held: none is archived before this transaction ends.
pub(super) async fn has_all_templates(
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
    Ok(!statuses.iter().any(|status| status == "archived"))
}

/// Whether a step may write to this address as to the owner.
pub(super) async fn is_owners_address(db: &mut PgConnection, tenant: Uuid, address: &str) -> sqlx::Result<bool> {
    sqlx::query_scalar!(r#"select is_owners_address($1, $2) as "allowed!""#, tenant, address).fetch_one(db).await
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
pub(crate) async fn get(db: &mut PgConnection, tenant: Uuid, id: Uuid) -> sqlx::Result<Option<SequenceRow>> {
    select!("and id = $2", tenant, id).fetch_optional(db).await
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

/// What decides whether a sequence's status may change; the row is locked. Enrollments being made wait for it, or it for them.
#[derive(Debug, Clone, Copy)]
pub(super) struct LockedSequence {
    pub(super) status: SequenceStatus,
    pub(super) sender_profile_id: Option<Uuid>,
    /// The newest version, and what is in it.
    pub(super) version: i32,
    pub(super) steps: i64,
    pub(super) mails: i64,
}

/// Locks a sequence.
pub(super) async fn lock(db: &mut PgConnection, tenant: Uuid, id: Uuid) -> sqlx::Result<Option<LockedSequence>> {
    let Some(row) = sqlx::query!(
        r#"select status as "status: SequenceStatus", sender_profile_id, version from sequences
           where tenant_id = $1 and id = $2 and deleted_at is null for no key update"#,
        tenant,
        id,
    )
    .fetch_optional(&mut *db)
    .await?
    else {
        return Ok(None);
    };
    let counts = sqlx::query!(
        r#"select count(*) as "steps!", count(*) filter (where step_type = 'send_email') as "mails!"
           from sequence_steps where tenant_id = $1 and sequence_id = $2 and version = $3"#,
        tenant,
        id,
        row.version,
    )
    .fetch_one(db)
    .await?;
    Ok(Some(LockedSequence {
        status: row.status,
        sender_profile_id: row.sender_profile_id,
        version: row.version,
        steps: counts.steps,
        mails: counts.mails,
    }))
}

/// A change to a sequence; what is `None` stays.
#[derive(Debug, Default)]
pub(super) struct Changes {
    pub(super) name: Option<String>,
    pub(super) description: Option<Option<String>>,
    pub(super) sender_profile_id: Option<Option<Uuid>>,
    pub(super) status: Option<SequenceStatus>,
    /// The steps of a new version.
    pub(super) steps: Option<Vec<NewStep>>,
}

/// Changes a locked sequence. What is resumed or archived is marked: the sequencing stage lets its enrollments follow. Of the dates
/// of a pause, those of its last day start a sequence that is resumed: its trigger is looked at as for the first time.
pub(super) async fn update(db: &mut PgConnection, tenant: Uuid, id: Uuid, changes: &Changes) -> sqlx::Result<()> {
    sqlx::query!(
        "update sequences
         set name = coalesce($3, name),
             description = case when $4 then $5 else description end,
             sender_profile_id = case when $6 then $7 else sender_profile_id end,
             status = coalesce($8, status),
             activated_at = case when $8 = 'active' then coalesce(activated_at, now()) else activated_at end,
             archived_at = case when $8 = 'archived' then coalesce(archived_at, now()) else archived_at end,
             unapplied_since = case when $8 in ('active', 'archived') then now() else unapplied_since end,
             version = version + case when $9 then 1 else 0 end,
             triggers_swept_at = case when $8 = 'active' and trigger_type = 'field_date' then null else triggers_swept_at end,
             triggers_tried_at = case when $8 = 'active' then null else triggers_tried_at end,
             updated_at = now()
         where tenant_id = $1 and id = $2",
        tenant,
        id,
        changes.name,
        changes.description.is_some(),
        changes.description.clone().flatten(),
        changes.sender_profile_id.is_some(),
        changes.sender_profile_id.flatten(),
        changes.status.map(SequenceStatus::as_str),
        changes.steps.is_some(),
    )
    .execute(db)
    .await
    .map(drop)
}

/// Replaces what starts a locked sequence. What is looked for by a sweep is looked for from the beginning.
pub(super) async fn set_start(
    db: &mut PgConnection,
    tenant: Uuid,
    id: Uuid,
    trigger_type: &str,
    rules: &StartRules,
) -> sqlx::Result<()> {
    sqlx::query!(
        "update sequences
         set trigger_type = $3, trigger_config = $4, reentry = $5, reentry_gap_minutes = $6, enroll_from = $7, enroll_until = $8,
             exit_event = $9, triggers_swept_at = null, triggers_tried_at = null, updated_at = now()
         where tenant_id = $1 and id = $2",
        tenant,
        id,
        trigger_type,
        rules.trigger_config,
        rules.reentry.as_str(),
        rules.reentry_gap_minutes,
        rules.enroll_from,
        rules.enroll_until,
        rules.exit_on_event.as_ref().map(|terms| json!(terms)),
    )
    .execute(db)
    .await
    .map(drop)
}

/// Whether a contact is under way in the sequence, or was when it was archived and has not been let go.
pub(super) async fn has_live_enrollments(db: &mut PgConnection, tenant: Uuid, id: Uuid) -> sqlx::Result<bool> {
    sqlx::query_scalar!(
        r#"select exists (
               select from enrollments where tenant_id = $1 and sequence_id = $2 and status in ('active', 'paused')
           ) as "found!""#,
        tenant,
        id,
    )
    .fetch_one(db)
    .await
}

/// Takes a locked sequence away. The row stays: enrollments and reports of the past name it. Its sender is free.
pub(super) async fn delete(db: &mut PgConnection, tenant: Uuid, id: Uuid) -> sqlx::Result<()> {
    sqlx::query!(
        "update sequences
         set status = 'archived', archived_at = coalesce(archived_at, now()), sender_profile_id = null, deleted_at = now(),
             updated_at = now()
         where tenant_id = $1 and id = $2",
        tenant,
        id,
    )
    .execute(db)
    .await
    .map(drop)
}
