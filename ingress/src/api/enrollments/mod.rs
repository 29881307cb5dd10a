//! `/v1/enrollments`: contacts on their way through sequences.

mod doc;
mod enroll;
mod input;
pub(crate) mod store;

use std::sync::Arc;

use schemars::JsonSchema;
use schemas::{Address, EnrollmentStatus, ExitReason};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use self::{
    input::EnrollContact,
    store::{EnrollmentFilter, EnrollmentRow, EnrollmentStep},
};
use super::sends::store as sends;
use crate::pipeline::{
    ApiReply, Faults, Id, ListPage, NoFields, NoParameters, RequestContext, Routes,
    error::ApiError,
    page::{PageCursor, PageLimit},
    read,
    types::Email,
    write,
};

/// The routes.
pub(crate) fn routes() -> Routes {
    Routes::new()
        .get("/v1/enrollments", read("sequences:read", list), doc::list)
        .post("/v1/enrollments", write("sequences:enroll", create), doc::create)
        .get("/v1/enrollments/{id}", read("sequences:read", one), doc::show)
        .delete("/v1/enrollments/{id}", write("sequences:enroll", remove), doc::remove)
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
    #[schemars(with = "Option<EnrollmentStatus>")]
    status: Option<String>,
    #[schemars(with = "Option<PageLimit>")]
    limit: Option<i64>,
    #[schemars(with = "Option<PageCursor>")]
    cursor: Option<String>,
}

impl ListEnrollments {
    fn validate(self) -> Result<(EnrollmentFilter, Option<Address>, ListPage), ApiError> {
        let page = ListPage::new(self.limit, self.cursor.as_deref())?;
        let mut faults = Faults::default();
        let words: Vec<&str> = EnrollmentStatus::ALL.iter().map(|status| status.as_str()).collect();
        if let Some(status) = &self.status {
            faults.one_of("status", status, &words);
        }
        let both = self.contact_id.is_some() && self.email.is_some();
        faults.require(!both, "email", "ambiguous", "name the contact by contact_id or by email");
        let address = self.email.and_then(|email| faults.address("email", &email));
        faults.finish()?;
        let filter = EnrollmentFilter {
            sequence: self.sequence_id.map(|id| id.0),
            contact: self.contact_id.map(|id| id.0),
            status: self.status.as_deref().and_then(EnrollmentStatus::parse),
        };
        Ok((filter, address, page))
    }
}

#[derive(Debug, Serialize, JsonSchema)]
struct EnrollmentPage {
    enrollments: Vec<EnrollmentRow>,
    /// Give it as `cursor` for the next page; null at the end.
    next_cursor: Option<String>,
}

async fn list(ctx: &mut RequestContext, query: ListEnrollments) -> Result<ApiReply, ApiError> {
    let (mut filter, address, page) = query.validate()?;
    let tenant = ctx.tenant;
    if let Some(address) = address {
        let contact = sends::contact_by_address(ctx.db(), tenant, address.as_str()).await?;
        // No contact has this address, so none is enrolled.
        let Some(contact) = contact else {
            return ApiReply::ok(&EnrollmentPage { enrollments: Vec::new(), next_cursor: None });
        };
        filter.contact = Some(contact);
    }
    let mut enrollments = store::list(ctx.db(), tenant, filter, &page).await?;
    let next_cursor = page.cut(&mut enrollments, |row| (row.created_at, row.id));
    ApiReply::ok(&EnrollmentPage { enrollments, next_cursor })
}

/// An enrollment with its steps.
#[derive(Debug, Serialize, JsonSchema)]
struct Enrollment {
    #[serde(flatten)]
    summary: EnrollmentRow,
    /// The steps that were taken, in order.
    steps: Vec<EnrollmentStep>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct EnrollmentAnswer {
    enrollment: Enrollment,
}

async fn one(ctx: &mut RequestContext, _: NoParameters) -> Result<ApiReply, ApiError> {
    let (tenant, id) = (ctx.tenant, ctx.id("enrollment")?);
    let summary = store::get(ctx.db(), tenant, id).await?.ok_or_else(|| ApiError::not_found("enrollment"))?;
    let steps = store::steps(ctx.db(), tenant, id).await?;
    ApiReply::ok(&EnrollmentAnswer { enrollment: Enrollment { summary, steps } })
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
    store::exit(ctx.db(), tenant, id).await?;
    let row = store::get(ctx.db(), tenant, id).await?.ok_or_else(|| ApiError::not_found("enrollment"))?;
    ApiReply::ok(&EnrollmentEnded { enrollment_id: id, status: row.status, exit_reason: row.exit_reason })
}
