//! The rows of accepted requests: how they are stored, and what marks those that became sends.

use chrono::{DateTime, Utc};
use runtime::column;
use schemas::{Environment, RequestKind, messages::MailOptions};
use serde::Serialize;
use sqlx::{PgConnection, types::Json};
use uuid::Uuid;

/// How soon a request is announced again, in seconds: the announcement after its commit may be lost. Many take longer to
/// handle.
const FIRST_ANNOUNCEMENT: f64 = 5.0;
const FIRST_OF_MANY: f64 = 10.0;

/// State and outcome of a request that waits to be handled.
const ACCEPTED: (&str, Option<&str>) = ("accepted", None);
/// State and outcome of a request that became sends.
const RESOLVED: (&str, Option<&str>) = ("handled", Some("resolved"));

/// Whose requests are stored: a product's, for one of its tenants.
#[derive(Debug, Clone, Copy)]
pub struct Requester<'a> {
    /// The tenant.
    pub tenant_id: Uuid,
    /// The product that makes them.
    pub product: &'a str,
    /// The product's environment.
    pub environment: Environment,
}

/// A request to store.
#[derive(Debug)]
pub struct RequestRow<'a, P> {
    /// Its id.
    pub id: Uuid,
    /// What the stage that handles it has to know.
    pub payload: &'a P,
    /// What the caller set for this mail, if anything.
    pub options: Option<&'a MailOptions>,
    /// When it is due, if later: it is announced then, by a sweep.
    pub due_at: Option<DateTime<Utc>>,
}

/// Stores requests of one kind. Those that `are_resolved` have their sends in this transaction: they are not announced.
pub async fn insert<P: Serialize + Sync>(
    db: &mut PgConnection,
    requester: &Requester<'_>,
    kind: RequestKind,
    rows: &[RequestRow<'_, P>],
    are_resolved: bool,
) -> sqlx::Result<()> {
    let (state, outcome) = if are_resolved { RESOLVED } else { ACCEPTED };
    sqlx::query!(
        "insert into requests (tenant_id, id, product, environment, kind, payload, options, due_at, announce_after,
                               state, outcome, handled_at)
         select $1, w.id, $2, $3, $4, w.payload, w.options, coalesce(w.due_at, now()),
                case when not $9 then coalesce(w.due_at, now() + make_interval(secs => $10)) end,
                $11, $12, case when $9 then now() end
         from unnest($5::uuid[], $6::jsonb[], $7::jsonb[], $8::timestamptz[]) as w (id, payload, options, due_at)",
        requester.tenant_id,
        requester.product,
        requester.environment.as_str(),
        kind.as_str(),
        &column(rows, |row| row.id),
        &column(rows, |row| Json(row.payload)) as _,
        &column(rows, |row| row.options.map(Json)) as _,
        &column(rows, |row| row.due_at) as _,
        are_resolved,
        if rows.len() > 1 { FIRST_OF_MANY } else { FIRST_ANNOUNCEMENT },
        state,
        outcome,
    )
    .execute(db)
    .await
    .map(drop)
}

/// Marks stored requests of these tenants, which have their sends in this transaction.
pub(crate) async fn mark_resolved(db: &mut PgConnection, requests: &[(Uuid, Uuid)]) -> sqlx::Result<()> {
    let (state, outcome) = RESOLVED;
    sqlx::query!(
        "update requests r set state = $3, outcome = $4, announce_after = null, handled_at = now()
         from unnest($1::uuid[], $2::uuid[]) as w (tenant_id, id)
         where r.tenant_id = w.tenant_id and r.id = w.id",
        &column(requests, |(tenant, _)| *tenant),
        &column(requests, |(_, id)| *id),
        state,
        outcome,
    )
    .execute(db)
    .await
    .map(drop)
}
