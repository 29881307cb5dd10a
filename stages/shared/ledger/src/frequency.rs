//! The frequency cap: at most so many marketing mails of a tenant's campaigns and sequences to a contact within so many times 24 hours.
//!
//! A mail counts from its fence on, unless certainly nothing of it left: one that was refused, or is to be tried again, does not count.
//! One with an unknown outcome does. What counts is written to `capped_sends` in the commit of the fence, for tenants with a cap only: a
//! cap counts mail that is fenced while it is set. It is exact over any number of processes, because a fence of such mail locks the tenant
//! before it counts, as a send quota does. Other mail neither counts nor waits.
//!
//! The gate decides ([`crate::gate::decide_recipient`]): a campaign skips a contact without room, as `frequency_cap`. A sequence takes its
//! step when there is room, and no other mail of a sequence is on its way that would take it; a mail that another one overtakes on its way
//! to the fence waits there for room, however long that takes.

use chrono::{DateTime, Utc};
use sqlx::PgConnection;
use uuid::Uuid;

/// Most mails of a cap.
pub const MESSAGES_MAX: i32 = 1_000;
/// Most days of a cap. What counted is kept for as long.
pub const DAYS_MAX: i32 = 90;

/// A tenant's cap, and what a contact has used of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CapUsage {
    /// Mails that the cap allows.
    pub messages: i32,
    /// Mails that count now.
    pub used: i64,
    /// When there is room again; `None`: there is.
    pub opens_at: Option<DateTime<Utc>>,
}

/// What a contact has used of its tenant's cap. `None`: the tenant has none. Works in either role.
///
/// # Errors
/// When Postgres is away.
pub async fn load_usage(db: &mut PgConnection, tenant: Uuid, contact: Uuid) -> sqlx::Result<Option<CapUsage>> {
    sqlx::query_file_as!(CapUsage, "queries/gate/cap_usage.sql", tenant, contact).fetch_optional(db).await
}
