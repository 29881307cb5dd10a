//! `/v1/enrollments`: contacts on their way through sequences.

mod doc;
mod enroll;
mod input;
pub(crate) mod store;

use std::sync::Arc;

use schemas::{Address, EnrollmentStatus};
use serde::Deserialize;
use serde_json::{Value, json};

use self::{
    input::EnrollBody,
    store::{EnrollmentRow, Filter, StepRow},
};
use super::sends::store as sends;
use crate::{
    act::{Act, Faults, Id, NoFields, NoParameters, Page, Reply, Routes, read, time, write},
    error::ApiError,
};

/// The routes.
pub(crate) fn routes() -> Routes {
    Routes::new()
        .get("/v1/enrollments", read("sequences:read", list), doc::list)
        .post("/v1/enrollments", write("sequences:enroll", create), doc::create)
        .get("/v1/enrollments/{id}", read("sequences:read", one), doc::show)
        .delete("/v1/enrollments/{id}", write("sequences:enroll", remove), doc::remove)
}

async fn create(act: &mut Act, body: EnrollBody) -> Result<Reply, ApiError> {
    let new = body.validate()?;
    let (tenant, caller) = (act.tenant, Arc::clone(&act.caller));
    let enrolled = enroll::enroll(act.db(), tenant, &caller.product, &new).await?;
    Reply::untyped_created(&json!({
        "ok": true,
        "enrollment_id": enrolled.enrollment_id,
        "contact_id": enrolled.contact_id,
        "sequence_id": new.sequence_id,
        "next_action_at": time(enrolled.next_action_at),
        "mailable": enrolled.withheld.is_none(),
        "skip_reason": enrolled.withheld,
    }))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ListQuery {
    sequence_id: Option<Id>,
    contact_id: Option<Id>,
    email: Option<String>,
    status: Option<String>,
    limit: Option<i64>,
    cursor: Option<String>,
}

impl ListQuery {
    fn validate(self) -> Result<(Filter, Option<Address>, Page), ApiError> {
        let page = Page::new(self.limit, self.cursor.as_deref())?;
        let mut faults = Faults::default();
        let words: Vec<&str> = EnrollmentStatus::ALL.iter().map(|status| status.as_str()).collect();
        if let Some(status) = &self.status {
            faults.one_of("status", status, &words);
        }
        let both = self.contact_id.is_some() && self.email.is_some();
        faults.require(!both, "email", "ambiguous", "name the contact by contact_id or by email");
        let address = self.email.and_then(|email| faults.address("email", &email));
        faults.finish()?;
        let filter = Filter {
            sequence: self.sequence_id.map(|id| id.0),
            contact: self.contact_id.map(|id| id.0),
            status: self.status.as_deref().and_then(EnrollmentStatus::parse),
        };
        Ok((filter, address, page))
    }
}

async fn list(act: &mut Act, query: ListQuery) -> Result<Reply, ApiError> {
    let (mut filter, address, page) = query.validate()?;
    let tenant = act.tenant;
    if let Some(address) = address {
        let contact = sends::contact_by_address(act.db(), tenant, address.as_str()).await?;
        // Nobody has this address, so nobody with it is enrolled.
        let Some(contact) = contact else {
            return Reply::untyped_ok(&json!({"ok": true, "enrollments": [], "next_cursor": null}));
        };
        filter.contact = Some(contact);
    }
    let mut rows = store::list(act.db(), tenant, filter, &page).await?;
    let next_cursor = page.cut(&mut rows, |row| (row.created_at, row.id));
    let enrollments: Vec<Value> = rows.iter().map(record).collect();
    Reply::untyped_ok(&json!({"ok": true, "enrollments": enrollments, "next_cursor": next_cursor}))
}

async fn one(act: &mut Act, _: NoParameters) -> Result<Reply, ApiError> {
    let (tenant, id) = (act.tenant, act.id("enrollment")?);
    let row = store::get(act.db(), tenant, id).await?.ok_or_else(|| ApiError::not_found("enrollment"))?;
    let steps = store::steps(act.db(), tenant, id).await?;
    let mut enrollment = record(&row);
    enrollment["steps"] = steps.iter().map(step_record).collect();
    Reply::untyped_ok(&json!({"ok": true, "enrollment": enrollment}))
}

fn record(row: &EnrollmentRow) -> Value {
    json!({
        "enrollment_id": row.id,
        "sequence_id": row.sequence_id,
        "contact_id": row.contact_id,
        "email": row.email,
        "status": row.status,
        "exit_reason": row.exit_reason,
        "next_step_order": row.next_step,
        "next_action_at": row.next_action_at.map(time),
        "attempt_count": row.attempts,
        "last_error": row.last_error,
        "ended_at": row.ended_at.map(time),
        "created_at": time(row.created_at),
        "updated_at": time(row.updated_at),
    })
}

fn step_record(row: &StepRow) -> Value {
    json!({
        "step_id": row.step_id,
        "step_order": row.step_order,
        "step_type": row.step_type,
        "outcome": row.outcome,
        "detail": row.detail,
        "send_id": row.send_id,
        "due_at": time(row.due_at),
        "done_at": time(row.done_at),
    })
}

/// Ends an enrollment. Harmless to repeat; one that is over stays as it ended.
async fn remove(act: &mut Act, _: NoFields) -> Result<Reply, ApiError> {
    let (tenant, id) = (act.tenant, act.id("enrollment")?);
    store::exit(act.db(), tenant, id).await?;
    let row = store::get(act.db(), tenant, id).await?.ok_or_else(|| ApiError::not_found("enrollment"))?;
    Reply::untyped_ok(&json!({"ok": true, "enrollment_id": id, "status": row.status, "exit_reason": row.exit_reason}))
}
