//! Rows of `requests`, as they are accepted one by one.

use chrono::{DateTime, Utc};
use runtime::trace;
use schemas::{RequestKind, messages::MailOptions};
use serde::Serialize;
use sqlx::{PgConnection, types::Json};
use uuid::Uuid;

use crate::pipeline::auth::keys::Caller;

/// How soon a request is announced again, in seconds: the announcement after its commit may be lost.
const FIRST_ANNOUNCEMENT: f64 = 5.0;

/// A request to store.
#[derive(Debug)]
pub(crate) struct RequestRow<'a, P> {
    pub(crate) id: Uuid,
    pub(crate) kind: RequestKind,
    pub(crate) payload: &'a P,
    pub(crate) options: Option<&'a MailOptions>,
    /// When it is due, if later.
    pub(crate) due_at: Option<DateTime<Utc>>,
}

/// Stores a request, and the trace in hand with it. One that is due later is announced then, by a sweep.
pub(crate) async fn insert<P: Serialize + Sync>(
    db: &mut PgConnection,
    tenant: Uuid,
    caller: &Caller,
    row: RequestRow<'_, P>,
) -> sqlx::Result<()> {
    sqlx::query!(
        "insert into requests (tenant_id, id, product, environment, kind, payload, options, announce_after, due_at)
         values ($1, $2, $3, $4, $5, $6, $7, coalesce($8, now() + make_interval(secs => $9)), coalesce($8, now()))",
        tenant,
        row.id,
        caller.product,
        caller.environment.as_str(),
        row.kind.as_str(),
        Json(row.payload) as _,
        row.options.map(Json) as _,
        row.due_at,
        FIRST_ANNOUNCEMENT,
    )
    .execute(&mut *db)
    .await?;
    trace::keep(db, tenant, row.id).await
}
