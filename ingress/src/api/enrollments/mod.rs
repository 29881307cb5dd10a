//! `/v1/enrollments`: contacts on their way through sequences.

mod enroll;
mod input;
pub(crate) mod store;

use std::sync::Arc;

use schemars::JsonSchema;
use schemas::{EnrollmentStatus, ExitReason};
use serde::{Deserialize, Serialize};
use serde_json::json;
use uuid::Uuid;

use self::{
    input::EnrollContact,
    store::{EnrollmentFilter, EnrollmentRow, EnrollmentStep},
};
use super::contacts::{ContactNames, EXTERNAL_ID_MAX_CHARS, named};
use crate::pipeline::{
    ApiReply, Doc, Faults, Id, NoFields, NoParameters, RequestContext, Routes,
    doc::ID,
    error::ApiError,
    read, read_page, resource,
    types::{Email, Name},
    write,
};

/// The routes.
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
    let name = names.check_optional(&mut faults);
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
    let steps = store::steps(ctx.db(), tenant, id).await?;
    ApiReply::single(Enrollment { summary, steps })
}

#[derive(Debug, Serialize, JsonSchema)]
struct EnrollmentEnded {
    enrollment_id: Uuid,
    status: EnrollmentStatus,
    exit_reason: Option<ExitReason>,
}

/// Ends an enrollment. Harmless to repeat; one that is over stays as it ended.
async fn remove(ctx: &mut RequestContext, _: NoFields) -> Result<ApiReply, ApiError> {
    let (tenant, id) = (ctx.tenant, ctx.id("enrollment")?);
    if store::exit(ctx.db(), tenant, id).await? {
        ctx.audit("enrollment.exited", &id.to_string(), json!({})).await?;
    }
    let row = store::get(ctx.db(), tenant, id).await?.ok_or_else(|| ApiError::not_found("enrollment"))?;
    ApiReply::ok(&EnrollmentEnded { enrollment_id: id, status: row.status, exit_reason: row.exit_reason })
}
