//! Rows of `enrollments`, as callers see them: what is live is paused while its sequence is, and over once that is archived.

use schemars::JsonSchema;
use schemas::{EnrollmentStatus, ExitReason};
use serde::Serialize;
use sqlx::PgConnection;
use uuid::Uuid;

use crate::{
    api::sequences::STEPS_MAX,
    pipeline::{
        page::{ListPage, OptionalTime, Time},
        resource,
    },
};

/// An enrollment.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(rename = "EnrollmentSummary")]
pub(crate) struct EnrollmentRow {
    #[serde(rename = "enrollment_id")]
    pub(crate) id: Uuid,
    pub(crate) sequence_id: Uuid,
    /// The version of the sequence that it goes through.
    #[serde(rename = "sequence_version")]
    #[schemars(range(min = 1, max = i32::MAX))]
    pub(crate) version: i32,
    pub(crate) contact_id: Uuid,
    /// Null once the contact was erased.
    pub(crate) email: Option<String>,
    pub(crate) status: EnrollmentStatus,
    /// Why it ended before its last step.
    pub(crate) exit_reason: Option<ExitReason>,
    #[serde(rename = "next_step_order")]
    #[schemars(range(min = 1, max = STEPS_MAX))]
    pub(crate) next_step: Option<i16>,
    pub(crate) next_action_at: OptionalTime,
    /// What its due step waits for: it is looked at again at next_action_at.
    #[schemars(extend("enum" = ["frequency_cap", "quiet_hours", "no_consent", "owner_mails"]))]
    pub(crate) held_by: Option<String>,
    /// Attempts at the next step so far.
    #[serde(rename = "attempt_count")]
    #[schemars(with = "usize")]
    pub(crate) attempts: i16,
    /// Why the last attempt failed: a code.
    pub(crate) last_error: Option<String>,
    pub(crate) ended_at: OptionalTime,
    pub(crate) created_at: Time,
    pub(crate) updated_at: Time,
}

resource!(EnrollmentRow, "enrollment", "enrollments", id);

/// Which enrollments are asked for.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct EnrollmentFilter {
    /// One of them, and nothing else.
    pub(super) id: Option<Uuid>,
    pub(super) sequence: Option<Uuid>,
    pub(super) contact: Option<Uuid>,
    pub(super) status: Option<EnrollmentStatus>,
}

pub(crate) async fn get(db: &mut PgConnection, tenant: Uuid, id: Uuid) -> sqlx::Result<Option<EnrollmentRow>> {
    let filter = EnrollmentFilter { id: Some(id), ..EnrollmentFilter::default() };
    Ok(list(db, tenant, filter, &ListPage::ONE).await?.pop())
}

/// Enrollments, newest first, one page.
pub(super) async fn list(
    db: &mut PgConnection,
    tenant: Uuid,
    filter: EnrollmentFilter,
    page: &ListPage,
) -> sqlx::Result<Vec<EnrollmentRow>> {
    sqlx::query_file_as!(
        EnrollmentRow,
        "queries/enrollments.sql",
        tenant,
        filter.sequence,
        filter.contact,
        filter.status.map(EnrollmentStatus::as_str),
        page.before,
        page.before_id,
        page.fetch(),
        filter.id,
    )
    .fetch_all(db)
    .await
}

/// The contact's newest enrollment in a sequence, of those that are under way if there is one: a merge ends one of two. Served by
/// `enrollments_by_contact`.
pub(crate) async fn newest(
    db: &mut PgConnection,
    tenant: Uuid,
    sequence: Uuid,
    contact: Uuid,
) -> sqlx::Result<Option<Uuid>> {
    sqlx::query_scalar!(
        "select id from enrollments
         where tenant_id = $1 and sequence_id = $2
           and contact_id in (select $3::uuid union all select m.id from contacts m where m.tenant_id = $1 and m.merged_into = $3)
         order by status in ('active', 'paused') desc, created_at desc, id desc limit 1",
        tenant,
        sequence,
        contact,
    )
    .fetch_optional(db)
    .await
}

/// The enrollment's newest mail.
pub(crate) async fn newest_send(db: &mut PgConnection, tenant: Uuid, enrollment: Uuid) -> sqlx::Result<Option<Uuid>> {
    sqlx::query_scalar!(
        "select p.send_id as \"send_id!\" from enrollment_steps p
         where p.tenant_id = $1 and p.enrollment_id = $2 and p.step_type = 'send_email' and p.send_id is not null
         order by p.step_order desc limit 1",
        tenant,
        enrollment,
    )
    .fetch_optional(db)
    .await
}
