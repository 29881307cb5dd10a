//! Telling Postgres' planner that a statement is about very many rows.
//!
//! After a first import there are no statistics yet: the planner takes a million contacts for a handful and joins them row by
//! row, which takes hours. And it merges by index where contacts are not on disk in the order of their ids, which reads the
//! table in random order. Statements over whole audiences hash, and read tables from end to end, in parallel.

use sqlx::PgConnection;

/// Memory that the hash tables and sorts of one audience may take before they spill to disk: enough for a million contacts.
const WORK_MEM: &str = "64MB";

/// From here to [`few_rows`], or the end of the transaction, tables are joined by hashing.
///
/// # Errors
/// When Postgres is away.
pub async fn many_rows(db: &mut PgConnection) -> sqlx::Result<()> {
    sqlx::query_scalar!(
        "select set_config('work_mem', $1, true) || set_config('enable_nestloop', 'off', true)
                || set_config('enable_mergejoin', 'off', true) || set_config('enable_indexscan', 'off', true)",
        WORK_MEM
    )
    .fetch_one(db)
    .await
    .map(drop)
}

/// Back to what the connection came with.
///
/// # Errors
/// When Postgres is away.
pub async fn few_rows(db: &mut PgConnection) -> sqlx::Result<()> {
    sqlx::query_scalar!(
        "select set_config('work_mem', null, true) || set_config('enable_nestloop', null, true)
                || set_config('enable_mergejoin', null, true) || set_config('enable_indexscan', null, true)"
    )
    .fetch_one(db)
    .await
    .map(drop)
}
