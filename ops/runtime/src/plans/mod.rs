//! The two ways to reach Postgres ([`AccessPattern`]), and the hints by which its planner knows which one it is. It goes by statistics, and
//! where they matter most there are none: in a table or partition that was empty a minute ago.
//!
//! A statement that runs by key alone needs no hint of its own: plain joins in the order in which keys are known. `offset 0` in a lateral
//! subquery stays where a statement also runs on a pool of `sqlx`, or must not be divided: it keeps the planner from joining whole tables
//! before it looks at the keys. Beside `for update` it is not needed, for such a subquery is never taken apart. `materialized` stays
//! where a statement's parts must see one result.

mod prepared;

use sqlx::{PgConnection, PgPool, postgres::PgConnectOptions};

pub use prepared::{PreparedConnection, PreparedPool, PreparedTransaction};

/// How the statements of a transaction find their rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AccessPattern {
    /// A bounded number of rows, from key to key, whatever the size of the tables: on a [`PreparedPool`], whose plans are look-ups by key
    /// and are kept. Joins are made in the order they are written, so they must be written in the order keys are known: looking for
    /// another order costs a millisecond of every statement that joins eight tables.
    ByKey,
    /// Whatever the statistics say, planned anew each time: on a pool of `sqlx`. A generic plan made for a small table reads all of it
    /// when it has grown. Statements over whole audiences ask for [`many_rows`].
    Scan,
}

/// What leaves the planner nothing but to follow keys: no other scans and joins; and where an index could be read from end to end
/// for all rows at once, that looks dearer than a look-up for each. Without statistics it takes a month's condition for one that
/// hardly any row meets, and does just that. So does comparing all rows with all: in a table of a thousand rows it believes that to be
/// the cheapest. Such prices must not make it call for help, either: no parallel workers.
///
/// Without it a group of 500 signals joined all contacts of its tenant before it looked at the sends: 1,350 ms of held locks instead of 6,
/// and 16 s where other work made the machine slow.
const BY_KEY: [(&str, &str); 10] = [
    ("enable_seqscan", "off"),
    ("enable_hashjoin", "off"),
    ("enable_mergejoin", "off"),
    ("enable_material", "off"),
    ("cpu_index_tuple_cost", "100"),
    ("cpu_operator_cost", "1"),
    ("random_page_cost", "1"),
    ("max_parallel_workers_per_gather", "0"),
    ("join_collapse_limit", "1"),
    ("plan_cache_mode", "force_generic_plan"),
];

/// How to connect like `pool`, for [`AccessPattern::ByKey`].
fn by_key_options(pool: &PgPool, settings: &[(&str, &str)]) -> PgConnectOptions {
    (*pool.connect_options()).clone().options(BY_KEY).options(settings.iter().copied())
}

/// Memory that the hash tables and sorts of one audience may take before they spill to disk: enough for a million contacts.
const WORK_MEM: &str = "64MB";

/// From here to [`few_rows`], or the end of the transaction, tables are joined by hashing, and read from end to end, in parallel.
///
/// After a first import there are no statistics yet: the planner takes a million contacts for a handful and joins them row by
/// row, which takes hours. And it merges by index where contacts are not on disk in the order of their ids, which reads the
/// table in random order. It takes groups for many where they are few, and would then join without help: three million contacts were
/// counted in 4.2 s instead of 2.9.
pub async fn many_rows(db: &mut PgConnection) -> sqlx::Result<()> {
    sqlx::query_scalar!(
        "select set_config('work_mem', $1, true) || set_config('enable_nestloop', 'off', true)
                || set_config('enable_mergejoin', 'off', true) || set_config('enable_indexscan', 'off', true)
                || set_config('parallel_tuple_cost', '0.001', true)",
        WORK_MEM
    )
    .fetch_one(db)
    .await
    .map(drop)
}

/// Back to what the connection came with.
pub async fn few_rows(db: &mut PgConnection) -> sqlx::Result<()> {
    sqlx::query_scalar!(
        "select set_config('work_mem', null, true) || set_config('enable_nestloop', null, true)
                || set_config('enable_mergejoin', null, true) || set_config('enable_indexscan', null, true)
                || set_config('parallel_tuple_cost', null, true)"
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
pub async fn checks_keep_their_plans(db: &mut PgConnection) -> sqlx::Result<()> {
    sqlx::raw_sql("set local plan_cache_mode = auto").execute(db).await.map(drop)
}

/// Back to what the pool sets.
pub async fn plans_are_made_anew(db: &mut PgConnection) -> sqlx::Result<()> {
    sqlx::raw_sql("set local plan_cache_mode = force_custom_plan").execute(db).await.map(drop)
}
