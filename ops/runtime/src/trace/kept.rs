//! Traces of work that is picked up from the ledger: a sweep that announces it again continues the trace it was asked for in.

use std::collections::HashMap;

use sqlx::{PgConnection, PgPool};
use uuid::Uuid;

use super::TraceContext;
use crate::column;

/// How long they are kept: longer than a mail is tried for.
pub const KEPT_FOR_DAYS: i32 = 7;

/// A tenant's piece of work: a request, a campaign or a batch.
pub type TracedWork = (Uuid, Uuid);

/// Keeps the trace in hand with a tenant's piece of work, in the transaction that makes it. Nothing is written when no trace is
/// taken.
pub async fn keep(db: &mut PgConnection, tenant: Uuid, work: Uuid) -> sqlx::Result<()> {
    keep_each(db, [(tenant, work)]).await
}

/// Keeps the trace in hand with several pieces of work, in the transaction that makes them. Nothing is written when no trace is taken.
pub async fn keep_each(db: &mut PgConnection, works: impl IntoIterator<Item = TracedWork>) -> sqlx::Result<()> {
    let Some(context) = TraceContext::current() else { return Ok(()) };
    let traced: Vec<_> = works.into_iter().map(|key| (key, context.clone())).collect();
    keep_all(db, &traced).await
}

/// Keeps a trace with each of these works. What was kept before stays.
pub async fn keep_all(db: &mut PgConnection, works: &[(TracedWork, TraceContext)]) -> sqlx::Result<()> {
    if works.is_empty() {
        return Ok(());
    }
    sqlx::query!(
        "insert into traces (tenant_id, work_id, traceparent, tracestate)
         select * from unnest($1::uuid[], $2::uuid[], $3::text[], $4::text[])
         on conflict (tenant_id, work_id) do nothing",
        &column(works, |((tenant, _), _)| *tenant),
        &column(works, |((_, id), _)| *id),
        &column(works, |(_, context)| context.parent()),
        &column(works, |(_, context)| context.state()) as &[Option<String>],
    )
    .execute(db)
    .await
    .map(drop)
}

/// The traces of these works, of those that have one.
pub async fn kept(pool: &PgPool, works: &[TracedWork]) -> sqlx::Result<HashMap<TracedWork, TraceContext>> {
    let (tenants, ids): (Vec<Uuid>, Vec<Uuid>) = works.iter().copied().unzip();
    // Nearly always nothing is traced, and nothing is looked up. Else key by key, whatever the statistics of so young a table say.
    let rows = sqlx::query!(
        r#"select w.tenant_id as "tenant_id!", w.id as "id!", t.traceparent, t.tracestate
           from unnest($1::uuid[], $2::uuid[]) as w (tenant_id, id)
           cross join lateral (
               select traceparent, tracestate from traces where tenant_id = w.tenant_id and work_id = w.id offset 0
           ) t
           where exists (select from traces)"#,
        &tenants,
        &ids,
    )
    .fetch_all(pool)
    .await?;
    let found = rows.into_iter().filter_map(|row| {
        Some(((row.tenant_id, row.id), TraceContext::parse(&row.traceparent, row.tracestate.as_deref())?))
    });
    Ok(found.collect())
}
