//! `/v1/sequences`: steps in a row for each contact that is enrolled. Steps never change: other steps are a new version, and who is under
//! way finishes the version they began.

mod input;
mod start;
pub(crate) mod store;

use std::sync::Arc;

use schemars::JsonSchema;
use schemas::{SequenceStatus, StepType};
use serde::{Deserialize, Serialize};
use serde_json::json;
use uuid::Uuid;

pub(crate) use self::input::STEPS_MAX;
use self::{
    input::{CreateSequence, CreateStep, DESCRIPTION_MAX, NewStep, ValidationContext},
    store::{LockedSequence, SequenceRow, SequenceStep, SequenceVersion},
};
use super::{audiences::held::hold_audiences, fields::definitions, limits, senders::store as senders};
use crate::pipeline::{
    ApiReply, Doc, Faults, Id, NoFields, Patch, RequestContext, Routes, error::ApiError, read, read_page,
    status_answer, types::Name, validate::NAME_MAX, write,
};

/// The states that a caller can choose.
const STATUSES: [&str; 3] = ["active", "paused", "archived"];

/// The routes.
pub(crate) fn routes() -> Routes {
    Routes::new()
        .get(
            "/v1/sequences",
            read_page("sequences:read", list),
            Doc::new("listSequences", "List sequences", "Newest first.").page::<SequenceRow>("A page of sequences"),
        )
        .post(
            "/v1/sequences",
            write("sequences:write", create),
            Doc::new(
                "createSequence",
                "Create a sequence with its steps",
                "Steps are taken in the order of the array; a change of them is a new version. Its mail is marketing: it needs \
                 consent, and carries a footer and a way to unsubscribe. With `activate` contacts may be enrolled at \
                 once.",
            )
            .example(json!({"name": "Welcome", "steps": [
                {"step_type": "wait", "delay_amount": 2, "delay_unit": "business_days"},
                {"step_type": "create_task", "action_config": {"title": "Call", "due_in_days": 1}},
            ]}))
            .answer::<SequenceCreated>(201, "Created")
            .leads_to("sequence_id", &["getSequence", "updateSequence", "deleteSequence", "listSequenceVersions"])
            .refuses(404, &["template_not_found", "sender_profile_not_found"])
            .refuses(404, &["tag_not_found", "list_not_found", "segment_not_found"])
            .refuses(409, &["sender_profile_required_to_activate", "sequence_limit_reached"]),
        )
        .get(
            "/v1/sequences/{id}",
            read("sequences:read", one),
            Doc::new(
                "getSequence",
                "Read a sequence",
                "With its newest steps, in order; with `version`, those of an earlier version.",
            )
            .answer::<SequenceAnswer>(200, "The sequence")
            .refuses(404, &["sequence_not_found", "sequence_version_not_found"]),
        )
        .patch(
            "/v1/sequences/{id}/trigger",
            write("sequences:write", start::change),
            Doc::new(
                "updateSequenceTrigger",
                "Change what starts a sequence",
                "All of it at once: what is left out takes its default, so a body with a label as `trigger_type` alone \
                 leaves the sequence to enrollments. Who is under way stays, under the new `exit_on_event`.",
            )
            .example(json!({"trigger_type": "event", "trigger_config": {"event": "trial_started"}}))
            .answer::<start::TriggerChanged>(200, "Changed")
            .refuses(404, &["sequence_not_found", "list_not_found", "tag_not_found", "segment_not_found"])
            .refuses(409, &["sequence_archived"]),
        )
        .patch(
            "/v1/sequences/{id}",
            write("sequences:write", change),
            Doc::new(
                "updateSequence",
                "Change a sequence, activate, pause or archive it",
                "While it is paused no step is taken and due times are kept: after a resumption overdue steps are \
                 taken at once, the others on time. Archiving ends all its enrollments. `steps` are a new version: new \
                 enrollments go through it, and who is under way finishes the version they began.",
            )
            .example(json!({"status": "paused"}))
            .answer::<SequenceChanged>(200, "Changed")
            .refuses(404, &["sequence_not_found", "sender_profile_not_found"])
            .refuses(404, &["template_not_found", "tag_not_found", "list_not_found"])
            .refuses(409, &["invalid_status_transition", "sequence_has_no_steps"])
            .refuses(409, &["sender_profile_required_to_activate", "sequence_archived"])
            .refuses(422, &["template_archived"]),
        )
        .get(
            "/v1/sequences/{id}/versions",
            read_page("sequences:read", store::list_versions),
            Doc::new("listSequenceVersions", "List a sequence's versions", "Newest first, without steps.")
                .page::<SequenceVersion>("A page of versions")
                .refuses(404, &["sequence_not_found"]),
        )
        .delete(
            "/v1/sequences/{id}",
            write("sequences:write", remove),
            Doc::new(
                "deleteSequence",
                "Delete a sequence",
                "A draft, or one that is archived and whose enrollments are over. Its enrollments and reports stay.",
            )
            .answer::<SequenceDeleted>(200, "Deleted")
            .refuses(404, &["sequence_not_found"])
            .refuses(409, &["sequence_not_archived", "sequence_has_enrollments"]),
        )
}

#[derive(Debug, Serialize, JsonSchema)]
struct SequenceCreated {
    sequence_id: Uuid,
    #[schemars(with = "String", extend("enum" = ["draft", "active"]))]
    status: SequenceStatus,
    steps: Vec<StepCreated>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct StepCreated {
    step_id: Uuid,
    /// The position, from 1.
    #[schemars(range(min = 1, max = STEPS_MAX))]
    step_order: i16,
    step_type: StepType,
}

async fn create(ctx: &mut RequestContext, body: CreateSequence) -> Result<ApiReply, ApiError> {
    let (tenant, caller, rules) = (ctx.tenant, Arc::clone(&ctx.caller), ctx.ingress.settings.outbound.rules());
    let known = ValidationContext { fields: definitions::read_for_naming(ctx.db(), tenant).await?, rules: &rules };
    let new = body.validate(&known)?;
    require_named(ctx, new.sender_profile_id, &new.steps).await?;
    start::require_named(ctx, &new.start).await?;
    if new.activate && input::send(&new.steps) && new.sender_profile_id.is_none() {
        return Err(sender_required());
    }
    let id = schemas::new_id();
    let status = if new.activate { SequenceStatus::Active } else { SequenceStatus::Draft };
    sqlx::query!(
        "insert into sequences (tenant_id, id, product, environment, name, description, sender_profile_id, trigger_type,
                                exit_on_unsubscribe, exit_on_bounce, exit_on_complaint, status, activated_at, trigger_config, reentry,
                                reentry_gap_minutes, enroll_from, enroll_until, exit_event)
         values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, case when $13 then now() end, $14, $15, $16, $17, $18, $19)",
        tenant,
        id,
        caller.product,
        caller.environment.as_str(),
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
    .execute(ctx.db())
    .await?;
    limits::SEQUENCES.check(ctx.db(), tenant).await?;
    store::insert_steps(ctx.db(), tenant, id, 1, &new.steps).await?;
    let step =
        |(step_order, step): (i16, &NewStep)| StepCreated { step_id: step.id, step_order, step_type: step.step_type };
    let steps = (1..).zip(&new.steps).map(step).collect();
    ctx.audit("sequence.created", &format!("sequence:{id}"), json!({"status": status})).await?;
    ApiReply::created(&SequenceCreated { sequence_id: id, status, steps })
}

fn sender_required() -> ApiError {
    ApiError::conflict("sender_profile_required_to_activate").detail("a step sends mail: set sender_profile_id first")
}

/// 404 for what a sequence names and the tenant does not have.
async fn require_named(ctx: &mut RequestContext, sender: Option<Uuid>, steps: &[NewStep]) -> Result<(), ApiError> {
    let tenant = ctx.tenant;
    if let Some(sender) = sender {
        senders::lock_for_use(ctx.db(), tenant, sender).await?;
    }
    let wanted: Vec<Uuid> = steps.iter().filter_map(|step| step.template_id).collect();
    // They are held: none is archived before the sequence names it. Transactional mail has `data.*`, and no sequence has.
    let templates = sqlx::query!(
        "select id, template_type from templates where tenant_id = $1 and id = any ($2) and status <> 'archived'
         order by id for share",
        tenant,
        &wanted,
    )
    .fetch_all(ctx.db())
    .await?;
    for (place, step) in steps.iter().enumerate() {
        let Some(wanted) = step.template_id else { continue };
        match templates.iter().find(|template| template.id == wanted) {
            None => return Err(ApiError::not_found("template").detail(format!("steps[{place}].template_id"))),
            Some(template) if template.template_type == "transactional" => {
                let path = format!("steps[{place}].template_id");
                return Err(ApiError::invalid(path, "not_allowed", "must not be a transactional template"));
            }
            Some(_) => {}
        }
    }
    for (place, address) in input::owner_addresses(steps) {
        let allowed = sqlx::query_scalar!(r#"select is_owners_address($1, $2) as "allowed!""#, tenant, address);
        if !allowed.fetch_one(ctx.db()).await? {
            let path = format!("steps[{place}].action_config.to");
            let detail = "must be the owner's address, or one on a verified domain of the tenant";
            return Err(ApiError::invalid(path, "not_allowed", detail));
        }
    }
    let wanted = input::audiences(steps);
    let ids: Vec<Uuid> = wanted.iter().map(|(_, id)| *id).collect();
    let held = hold_audiences(ctx.db(), tenant, &ids).await?;
    wanted.into_iter().try_for_each(|(kind, id)| held.require(kind, id))
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ListSequences {
    status: Option<SequenceStatus>,
}

async fn list(ctx: &mut RequestContext, query: ListSequences) -> Result<ApiReply, ApiError> {
    let (tenant, page) = (ctx.tenant, ctx.page);
    ApiReply::page(page, store::list(ctx.db(), tenant, query.status, &page).await?)
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ReadSequence {
    /// Default: the newest.
    #[schemars(range(min = 1, max = i32::MAX))]
    version: Option<i32>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct SequenceAnswer {
    sequence: SequenceRow,
    /// Of the version that was asked for.
    steps: Vec<SequenceStep>,
}

async fn one(ctx: &mut RequestContext, query: ReadSequence) -> Result<ApiReply, ApiError> {
    let (tenant, id) = (ctx.tenant, ctx.id("sequence")?);
    let sequence = store::get(ctx.db(), tenant, id).await?;
    let steps = store::steps(ctx.db(), tenant, id, query.version.unwrap_or(sequence.version)).await?;
    if query.version.is_some() && steps.is_empty() {
        return Err(ApiError::not_found("sequence_version"));
    }
    ApiReply::ok(&SequenceAnswer { sequence, steps })
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct ChangeSequence {
    #[schemars(with = "Option<Name<NAME_MAX>>")]
    name: Option<String>,
    #[schemars(length(max = DESCRIPTION_MAX))]
    description: Patch<String>,
    /// Only a draft can be without one.
    sender_profile_id: Patch<Id>,
    #[schemars(extend("enum" = STATUSES))]
    status: Option<String>,
    /// All steps of a new version.
    #[schemars(length(min = 1, max = STEPS_MAX))]
    steps: Option<Vec<CreateStep>>,
}

/// Whether a status may follow another. Archiving what is archived changes nothing.
fn may_follow(from: SequenceStatus, to: SequenceStatus) -> bool {
    use SequenceStatus::{Active, Archived, Draft, Paused};
    matches!((from, to), (Draft | Paused, Active) | (Active, Paused) | (_, Archived))
}

#[derive(Debug, Serialize, JsonSchema)]
struct SequenceChanged {
    sequence_id: Uuid,
    status: SequenceStatus,
    /// The newest of its steps.
    #[schemars(range(min = 1, max = i32::MAX))]
    version: i32,
}

async fn change(ctx: &mut RequestContext, body: ChangeSequence) -> Result<ApiReply, ApiError> {
    let (tenant, rules) = (ctx.tenant, ctx.ingress.settings.outbound.rules());
    let known = ValidationContext { fields: definitions::read_for_naming(ctx.db(), tenant).await?, rules: &rules };
    let mut faults = Faults::default();
    let name = body.name.map(|name| faults.name("name", Some(name)));
    faults.optional("description", body.description.value().map(String::as_str), DESCRIPTION_MAX);
    if let Some(status) = &body.status {
        faults.one_of("status", status, &STATUSES);
    }
    let steps = body.steps.map(|steps| input::read_steps(steps, &known, &mut faults));
    faults.finish()?;
    // Of each, `None`: it stays.
    let description = body.description.into_option();
    let sender = body.sender_profile_id.into_option().map(|id| id.map(|id| id.0));
    let status = body.status.as_deref().and_then(SequenceStatus::parse);

    let id = ctx.id("sequence")?;
    let before = store::lock(ctx.db(), tenant, id).await?;
    require_named(ctx, sender.flatten(), steps.as_deref().unwrap_or_default()).await?;
    // Enrollments may be in older versions, which send mail.
    if sender == Some(None) && before.status != SequenceStatus::Draft {
        return Err(sender_required());
    }
    let after = with_steps(&before, steps.as_deref())?;
    let after = LockedSequence { sender_profile_id: sender.unwrap_or(after.sender_profile_id), ..after };
    if let Some(to) = status {
        allow(&after, to)?;
    } else if after.status == SequenceStatus::Active {
        check_sender(&after)?;
    }
    // One that has been active keeps its templates, archived or not.
    if status == Some(SequenceStatus::Active)
        && before.status == SequenceStatus::Draft
        && steps.is_none()
        && store::has_archived_template(ctx.db(), tenant, id, after.version).await?
    {
        return Err(ApiError::unprocessable("template_archived").detail("a template of its steps is archived"));
    }
    if let Some(steps) = &steps {
        store::insert_steps(ctx.db(), tenant, id, after.version, steps).await?;
        let detail = json!({"version": after.version});
        ctx.audit("sequence.steps_changed", &format!("sequence:{id}"), detail).await?;
    }
    // What is resumed or archived is marked: the sequencing stage lets its enrollments follow. Of the dates of a pause, those of its last
    // day start a sequence that is resumed: its trigger is looked at as for the first time.
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
        name,
        description.is_some(),
        description.clone().flatten(),
        sender.is_some(),
        sender.flatten(),
        status.map(SequenceStatus::as_str),
        steps.is_some(),
    )
    .execute(ctx.db())
    .await?;
    let fields =
        [("name", name.is_some()), ("description", description.is_some()), ("sender_profile_id", sender.is_some())];
    ctx.audit_changed("sequence.changed", &format!("sequence:{id}"), fields).await?;
    if let Some(to) = status {
        ctx.audit("sequence.status_changed", &format!("sequence:{id}"), json!({"from": before.status, "to": to}))
            .await?;
    }
    let status = status.unwrap_or(before.status);
    ApiReply::ok(&SequenceChanged { sequence_id: id, status, version: after.version })
}

/// The sequence with the steps of a new version, if there are any.
fn with_steps(before: &LockedSequence, steps: Option<&[NewStep]>) -> Result<LockedSequence, ApiError> {
    let Some(steps) = steps else { return Ok(*before) };
    if before.status == SequenceStatus::Archived {
        return Err(ApiError::conflict("sequence_archived").detail("an archived sequence takes no more steps"));
    }
    let (version, has_steps, sends_mail) = (before.version + 1, !steps.is_empty(), input::send(steps));
    Ok(LockedSequence { version, has_steps, sends_mail, ..*before })
}

/// A sequence that sends mail has a sender.
fn check_sender(sequence: &LockedSequence) -> Result<(), ApiError> {
    if sequence.sends_mail && sequence.sender_profile_id.is_none() {
        return Err(sender_required());
    }
    Ok(())
}

status_answer!(SequenceDeleted, sequence_id, "deleted");

/// Takes a sequence away. The row stays: enrollments and reports of the past name it. Its sender is free.
async fn remove(ctx: &mut RequestContext, _: NoFields) -> Result<ApiReply, ApiError> {
    let (tenant, id) = (ctx.tenant, ctx.id("sequence")?);
    let before = store::lock(ctx.db(), tenant, id).await?;
    if !matches!(before.status, SequenceStatus::Draft | SequenceStatus::Archived) {
        return Err(ApiError::conflict("sequence_not_archived")
            .detail(format!("the sequence is {}: archive it first (PATCH status: archived)", before.status)));
    }
    // A contact is under way in it, or was when it was archived and has not been let go.
    let has_live_enrollments = sqlx::query_scalar!(
        r#"select exists (
               select from enrollments where tenant_id = $1 and sequence_id = $2 and status in ('active', 'paused')
           ) as "found!""#,
        tenant,
        id,
    );
    if has_live_enrollments.fetch_one(ctx.db()).await? {
        return Err(ApiError::busy("sequence_has_enrollments").detail("its enrollments are being ended"));
    }
    sqlx::query!(
        "update sequences
         set status = 'archived', archived_at = coalesce(archived_at, now()), sender_profile_id = null, deleted_at = now(),
             updated_at = now()
         where tenant_id = $1 and id = $2",
        tenant,
        id,
    )
    .execute(ctx.db())
    .await?;
    ctx.audit("sequence.deleted", &format!("sequence:{id}"), json!({"was": before.status})).await?;
    SequenceDeleted::reply(id)
}

/// Whether the sequence may take this status.
fn allow(before: &LockedSequence, to: SequenceStatus) -> Result<(), ApiError> {
    if !may_follow(before.status, to) {
        return Err(ApiError::conflict("invalid_status_transition")
            .detail(format!("a sequence that is {} cannot become {to}", before.status)));
    }
    if to != SequenceStatus::Active {
        return Ok(());
    }
    if !before.has_steps {
        return Err(ApiError::conflict("sequence_has_no_steps"));
    }
    check_sender(before)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case(SequenceStatus::Draft, [false, true, false, true])]
    #[case(SequenceStatus::Active, [false, false, true, true])]
    #[case(SequenceStatus::Paused, [false, true, false, true])]
    #[case(SequenceStatus::Archived, [false, false, false, true])]
    fn statuses_follow_each_other_as_specified(#[case] from: SequenceStatus, #[case] to: [bool; 4]) {
        let all = [SequenceStatus::Draft, SequenceStatus::Active, SequenceStatus::Paused, SequenceStatus::Archived];
        assert_eq!(all.map(|next| may_follow(from, next)), to);
    }
}
