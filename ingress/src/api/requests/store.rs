//! Rows of `requests`, as they are accepted.

use chrono::{DateTime, Utc};
use runtime::column;
use schemas::{RequestKind, messages::MailOptions};
use serde::Serialize;
use sqlx::{PgConnection, types::Json};
use uuid::Uuid;

use crate::pipeline::auth::keys::Caller;

/// How soon a request is announced again, in seconds: the announcement after its commit may be lost. Many take longer to handle.
const FIRST_ANNOUNCEMENT: f64 = 5.0;
const FIRST_OF_MANY: f64 = 10.0;

/// A request to store.
#[derive(Debug)]
pub(crate) struct RequestRow<'a, P> {
    pub(crate) id: Uuid,
    pub(crate) payload: &'a P,
    pub(crate) options: Option<&'a MailOptions>,
    /// When it is due, if later: it is announced then, by a sweep.
    pub(crate) due_at: Option<DateTime<Utc>>,
}

/// Stores requests of one kind. Those that `are_handled` have their sends already, and are announced to nobody.
pub(crate) async fn insert<P: Serialize + Sync>(
    db: &mut PgConnection,
    tenant: Uuid,
    caller: &Caller,
    kind: RequestKind,
    rows: &[RequestRow<'_, P>],
    are_handled: bool,
) -> sqlx::Result<()> {
    sqlx::query!(
        "insert into requests (tenant_id, id, product, environment, kind, payload, options, due_at, announce_after, state, outcome, handled_at)
         select $1, w.id, $2, $3, $4, w.payload, w.options, coalesce(w.due_at, now()),
                case when not $9 then coalesce(w.due_at, now() + make_interval(secs => $10)) end,
                case when $9 then 'handled' else 'accepted' end, case when $9 then 'resolved' end, case when $9 then now() end
         from unnest($5::uuid[], $6::jsonb[], $7::jsonb[], $8::timestamptz[]) as w (id, payload, options, due_at)",
        tenant,
        caller.product,
        caller.environment.as_str(),
        kind.as_str(),
        &column(rows, |row| row.id),
        &column(rows, |row| Json(row.payload)) as _,
        &column(rows, |row| row.options.map(Json)) as _,
        &column(rows, |row| row.due_at) as _,
        are_handled,
        if rows.len() > 1 { FIRST_OF_MANY } else { FIRST_ANNOUNCEMENT },
    )
    .execute(db)
    .await
    .map(drop)
}
