//! `/v1/enrollments`: contacts on their way through sequences.

mod enroll;
pub(crate) mod store;

use std::sync::Arc;

use schemars::JsonSchema;
use schemas::{EnrollmentStatus, ExitReason, StepType};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use uuid::Uuid;

use self::{
    enroll::EnrollContact,
    store::{EnrollmentFilter, EnrollmentRow},
};
use super::{
    contacts::{ContactNames, EXTERNAL_ID_MAX_CHARS, named},
    sequences::STEPS_MAX,
};
use crate::pipeline::{
    ApiReply, Doc, Faults, Id, NoFields, NoParameters, RequestContext, Routes,
    doc::ID,
    error::ApiError,
    page::Time,
    read, read_page, resource,
    types::{Email, Name},
    write,
};

pub(crate) fn routes() -> Routes {
    Routes::new()
        .get(
            "/v1/enrollments",
            read_page("sequences:read", list),
            Doc::new("listEnrollments", "List enrollments", "Newest first.")
                .page::<EnrollmentRow>("A page of enrollments"),
        )
        .post(
            "/v1/enrollments",
            write("sequences:enroll", create),
            Doc::new(
                "enroll",
                "Enroll a contact in a sequence",
                "The contact is found or created by address, or known by `external_id` or `contact_id`; its empty fields are filled. A new one is subscribed, \
                 and so is one that is known from transactional or one-off mail only: the product that enrolls a \
                 contact says that it may be written to. A contact that unsubscribed, bounced or complained is never \
                 subscribed by this; it leaves the sequence again at once. `mailable` tells whether the sequence's \
                 mail would pass the gate now, and `skip_reason` why not.",
            )
            .example(json!({"sequence_id": ID, "email": "ann@example.com", "first_name": "Ann"}))
            .answer::<enroll::Enrolled>(201, "Enrolled")
            .leads_to("enrollment_id", &["getEnrollment", "exitEnrollment"])
            .refuses(404, &["sequence_not_found", "contact_not_found"])
            .refuses(409, &["already_enrolled", "sequence_not_active", "sequence_has_no_steps"]),
        )
        .get(
            "/v1/enrollments/{id}",
            read("sequences:read", one),
            Doc::new("getEnrollment", "Read an enrollment", "Its next step, and what its steps did.")
                .single::<Enrollment>("The enrollment"),
        )
        .delete(
            "/v1/enrollments/{id}",
            write("sequences:enroll", remove),
            Doc::new(
                "exitEnrollment",
                "End an enrollment",
                "No further step is taken. An enrollment that has ended stays as it ended.",
            )
            .answer::<EnrollmentEnded>(200, "Ended")
            .refuses(404, &["enrollment_not_found"]),
        )
}

async fn create(ctx: &mut RequestContext, body: EnrollContact) -> Result<ApiReply, ApiError> {
    let new = body.validate()?;
    let (tenant, caller) = (ctx.tenant, Arc::clone(&ctx.caller));
    ApiReply::created(&enroll::enroll(ctx.db(), tenant, &caller.product, &new).await?)
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ListEnrollments {
    sequence_id: Option<Id>,
    contact_id: Option<Id>,
    /// Instead of contact_id.
    #[schemars(with = "Option<Email>")]
    email: Option<String>,
    /// Instead of contact_id.
    #[schemars(with = "Option<Name<EXTERNAL_ID_MAX_CHARS>>")]
    external_id: Option<String>,
    status: Option<EnrollmentStatus>,
}

async fn list(ctx: &mut RequestContext, query: ListEnrollments) -> Result<ApiReply, ApiError> {
    let mut faults = Faults::default();
    let names = ContactNames { contact_id: query.contact_id, email: query.email, external_id: query.external_id };
    let name = if names.is_empty() { None } else { names.check("", &mut faults) };
    faults.finish()?;
    let (tenant, page) = (ctx.tenant, ctx.page);
    let contact = match &name {
        None => None,
        // A contact that there is not is not enrolled.
        Some(name) => Some(named::find(ctx.db(), tenant, &[name]).await?.id(name).unwrap_or_default()),
    };
    let sequence = query.sequence_id.map(|id| id.0);
    let filter = EnrollmentFilter { sequence, contact, status: query.status, ..EnrollmentFilter::default() };
    ApiReply::page(page, store::list(ctx.db(), tenant, filter, &page).await?)
}

/// What a step did.
#[derive(Debug, Serialize, JsonSchema)]
struct EnrollmentStep {
    step_id: Uuid,
    #[schemars(range(min = 1, max = STEPS_MAX))]
    step_order: i16,
    step_type: StepType,
    #[schemars(extend("enum" = ["done", "unchanged", "withheld", "failed"]))]
    outcome: String,
    /// Ids and codes of what it did.
    #[schemars(with = "Map<String, Value>")]
    detail: Value,
    /// Its mail: `GET /v1/sends/{send_id}`.
    send_id: Option<Uuid>,
    due_at: Time,
    done_at: Time,
}

/// An enrollment with its steps.
#[derive(Debug, Serialize, JsonSchema)]
struct Enrollment {
    #[serde(flatten)]
    summary: EnrollmentRow,
    /// The steps that were taken, in order.
    steps: Vec<EnrollmentStep>,
}

resource!(Enrollment, "enrollment", "enrollments", row => (*row.summary.created_at, row.summary.id));

async fn one(ctx: &mut RequestContext, _: NoParameters) -> Result<ApiReply, ApiError> {
    let (tenant, id) = (ctx.tenant, ctx.id("enrollment")?);
    let summary = store::get(ctx.db(), tenant, id).await?.ok_or_else(|| ApiError::not_found("enrollment"))?;
    let steps = sqlx::query_as!(
        EnrollmentStep,
        r#"select step_id, step_order, step_type as "step_type: StepType", outcome, detail, send_id, due_at, done_at
           from enrollment_steps where tenant_id = $1 and enrollment_id = $2
           order by step_order"#,
        tenant,
        id,
    )
    .fetch_all(ctx.db())
    .await?;
    ApiReply::single(Enrollment { summary, steps })
}

#[derive(Debug, Serialize, JsonSchema)]
struct EnrollmentEnded {
    enrollment_id: Uuid,
    status: EnrollmentStatus,
    exit_reason: Option<ExitReason>,
}

/// Ends an enrollment. Harmless to repeat; one that is over stays as it ended. A step that is being taken is waited for.
async fn remove(ctx: &mut RequestContext, _: NoFields) -> Result<ApiReply, ApiError> {
    let (tenant, id) = (ctx.tenant, ctx.id("enrollment")?);
    let ended = sqlx::query!(
        "update enrollments
         set status = 'exited',
             exit_reason = case when exists (
                 select from sequences s where s.tenant_id = $1 and s.id = sequence_id and s.status = 'archived'
             ) then 'sequence_archived' else 'manual' end,
             next_action_at = null, claim_token = null, ended_at = now(), updated_at = now()
         where tenant_id = $1 and id = $2 and status in ('active', 'paused')",
        tenant,
        id,
    );
    if ended.execute(ctx.db()).await?.rows_affected() == 1 {
        // Fences that have looked are waited for, and none looks before the commit: no mail of it is fenced after the answer. Not before a
        // step that is being taken: behind a closed gate all mail of the tenant waits.
        ledger::gate::block_fences(ctx.db(), tenant).await?;
        ctx.audit("enrollment.exited", &id.to_string(), json!({})).await?;
    }
    let row = store::get(ctx.db(), tenant, id).await?.ok_or_else(|| ApiError::not_found("enrollment"))?;
    ApiReply::ok(&EnrollmentEnded { enrollment_id: id, status: row.status, exit_reason: row.exit_reason })
}
