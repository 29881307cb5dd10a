//! Telling Postgres' planner what a transaction is about. It goes by statistics, and where they matter most there are none: in a
//! table or partition that was empty a minute ago.
//!
//! Most transactions here look up a bounded number of rows by key, whatever the size of the tables: they begin with
//! [`BEGIN_BY_KEY`]. A few go over whole audiences: [`many_rows`].

mod prepared;

use sqlx::{PgConnection, PgPool};

pub use prepared::{KeptConnection, PreparedPool, Reading};

/// What leaves the planner nothing but to follow keys: no other scans and joins; and where an index could be read from end to end
/// for all rows at once, that looks dearer than a look-up for each. Without statistics it takes a month's condition for one that
/// hardly any row meets, and does just that. So does comparing all rows with all: in a table of a thousand rows it believes that to be
/// the cheapest. Such prices must not make it call for help, either: no parallel workers.
macro_rules! by_key {
    ($set:ident) => {
        $set! {
            "enable_seqscan" = "off",
            "enable_hashjoin" = "off",
            "enable_mergejoin" = "off",
            "enable_material" = "off",
            "cpu_index_tuple_cost" = "100",
            "cpu_operator_cost" = "1",
            "random_page_cost" = "1",
            "max_parallel_workers_per_gather" = "0"
        }
    };
}

macro_rules! statements {
    ($($name:literal = $value:literal),+) => { concat!($("set local ", $name, " = ", $value, "; "),+) };
}

macro_rules! pairs {
    ($($name:literal = $value:literal),+) => { [$(($name, $value)),+] };
}

/// Begins a transaction whose plans are look-ups by key. Joins are made in the order they are written, so they must be written in
/// the order keys are known: looking for another order costs a millisecond of every statement that joins eight tables (measured:
/// 1.3 ms of planning instead of 0.3).
///
/// Without it a group of 500 signals joined all contacts of its tenant before it looked at the sends: 1,350 ms of held locks
/// instead of 6, and 16 s where other work made the machine slow. The plans are made anew each time (the pool's setting): a generic
/// one made while a partition was empty goes through all of it once a campaign has filled it.
pub const BEGIN_BY_KEY: &str = concat!("begin; ", by_key!(statements), "set local join_collapse_limit = 1");

/// The same, for a transaction that holds what others need and waits for what others hold: it gives up after a second (55P03) and lets
/// them go on.
pub const BEGIN_BY_KEY_BRIEFLY: &str =
    concat!("begin; ", by_key!(statements), "set local join_collapse_limit = 1; set local lock_timeout = '1s'");

/// From here to the end of the transaction, plans are look-ups by key, as after [`BEGIN_BY_KEY`]: for a transaction that was begun
/// otherwise.
///
/// # Errors
/// When Postgres is away.
pub async fn follow_keys(db: &mut PgConnection) -> sqlx::Result<()> {
    sqlx::raw_sql(concat!(by_key!(statements), "set local join_collapse_limit = 1")).execute(db).await.map(drop)
}

/// Connections like those of `pool`, made when first asked for, on which nothing runs but such transactions: they begin without saying
/// so, and each of their plans is made once for a connection and kept. `settings` are further ones of Postgres.
#[must_use]
pub fn pool_by_kept_key(pool: &PgPool, connections: u32, settings: &[(&str, &str)]) -> PgPool {
    let options = (*pool.connect_options())
        .clone()
        .options(by_key!(pairs))
        .options([("join_collapse_limit", "1"), ("plan_cache_mode", "force_generic_plan")])
        .options(settings.iter().copied());
    pool.options().clone().min_connections(0).max_connections(connections).connect_lazy_with(options)
}

/// Memory that the hash tables and sorts of one audience may take before they spill to disk: enough for a million contacts.
const WORK_MEM: &str = "64MB";

/// From here to [`few_rows`], or the end of the transaction, tables are joined by hashing, and read from end to end, in parallel.
///
/// After a first import there are no statistics yet: the planner takes a million contacts for a handful and joins them row by
/// row, which takes hours. And it merges by index where contacts are not on disk in the order of their ids, which reads the
/// table in random order.
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

/// From here to [`plans_are_made_anew`], or the end of the transaction, plans may be kept: those of foreign keys are, which Postgres
/// checks row by row. The pool's setting has it plan each check, which was half of what an import cost.
///
/// For statements that write hundreds of rows. Those which look anything up are to be `persistent(false)`, or their plans would in
/// time be kept as well.
///
/// # Errors
/// When Postgres is away.
pub async fn checks_keep_their_plans(db: &mut PgConnection) -> sqlx::Result<()> {
    sqlx::raw_sql("set local plan_cache_mode = auto").execute(db).await.map(drop)
}

/// Back to what the pool sets.
///
/// # Errors
/// When Postgres is away.
pub async fn plans_are_made_anew(db: &mut PgConnection) -> sqlx::Result<()> {
    sqlx::raw_sql("set local plan_cache_mode = force_custom_plan").execute(db).await.map(drop)
}
