//! Connections that keep their plans, handed from one short transaction to the next.

use std::{
    collections::HashMap,
    ops::{Deref, DerefMut},
    sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use schemas::Lane;
use sqlx::{
    AssertSqlSafe, ConnectOptions, Connection, PgConnection, PgPool, Postgres, SqlSafeStr, SqlStr,
    postgres::PgConnectOptions,
};
use sqlx_core::transaction::TransactionManager;
use tokio::{
    runtime::Handle,
    sync::{OwnedSemaphorePermit, Semaphore},
};
use uuid::Uuid;

use super::by_key_options;
use crate::db::{begin_read_only, confined, end_transaction, is_writable, within};

type Manager = <Postgres as sqlx::Database>::TransactionManager;

/// A connection that was looked after longer ago is tried before it is used, and its plans are discarded if a table has grown.
const FRESH_FOR: Duration = Duration::from_secs(1);
/// The sizes are read again when Postgres has logged so many bytes since, or its log is another one: what has not been logged has not grown.
const LOGGED_MAX: i64 = 1024 * 1024;
/// Connections that bulk work leaves to others.
const PRIORITY_RESERVE: usize = 2;
/// Statements a connection remembers: those of every stage that shares it.
const STATEMENTS: usize = 500;

/// Connections for transactions of the same few statements by key, hundreds of them a second ([`super::AccessPattern::ByKey`]). Each
/// makes its plans once and keeps them until a table has grown fourfold: making them anew each time was a third of what such statements cost
/// Postgres.
///
/// Not for longer: in a table of a few rows every index is as good as any other, and a plan made then may go through all rows of a tenant.
/// Plans kept for good were measured at 2.5 s a group, in a campaign that followed a single mail.
///
/// A process has one for each role, and who uses it a handle: [`PreparedPool::priority`] or [`PreparedPool::bulk`]. Bulk work never
/// takes the last two connections. A task that holds a connection must not ask for a second one.
#[derive(Debug, Clone)]
pub struct PreparedPool {
    shared: Arc<Shared>,
    /// Whose handle this is: who has plans on a connection gets that one, if it is free.
    user: &'static str,
    /// What is waited for before the connections themselves.
    limit: Option<Arc<Semaphore>>,
}

#[derive(Debug)]
struct Shared {
    options: PgConnectOptions,
    connections: usize,
    acquire_timeout: Duration,
    sizes: Arc<Mutex<TableSizes>>,
    /// How long one is used before another one takes its place.
    lifetime: Duration,
    /// As many as there may be connections. The queue is fair.
    connection_permits: Arc<Semaphore>,
    /// What bulk work may have of them.
    bulk: Arc<Semaphore>,
    /// The one used last is used next.
    idle: Mutex<Vec<Kept>>,
}

/// The sizes of all tables: the power of four that each has reached, in pages.
#[derive(Debug, Default)]
struct TableSizes {
    pages: Vec<i32>,
    /// The end of Postgres' log when they were read.
    read_at: Option<String>,
    /// When it was last asked whether they may have changed.
    asked: Option<Instant>,
    /// Grows with each change.
    version: u64,
}

/// Host, port and name.
type Database = (String, u16, String);

/// The sizes in each database: all pools of a process share what one of them has read.
static SIZES: LazyLock<Mutex<HashMap<Database, Arc<Mutex<TableSizes>>>>> = LazyLock::new(Mutex::default);

fn sizes_of(options: &PgConnectOptions) -> Arc<Mutex<TableSizes>> {
    let database = options.get_database().unwrap_or_default().to_owned();
    let key = (options.get_host().to_owned(), options.get_port(), database);
    Arc::clone(SIZES.lock().unwrap_or_else(PoisonError::into_inner).entry(key).or_default())
}

/// A connection, and what is known of it.
#[derive(Debug)]
struct Kept {
    connection: PgConnection,
    /// Whose plans it has.
    users: Vec<&'static str>,
    /// The [`TableSizes::version`] its plans were made for.
    sizes_version: u64,
    /// When it was last looked after.
    refreshed: Instant,
    opened: Instant,
}

impl Kept {
    /// Discards the plans if a table has grown, and gives back the room it made for what it carried. Answers whether the connection, which
    /// must still live, takes writes.
    async fn refresh(&mut self, shared: &Shared) -> sqlx::Result<bool> {
        self.connection.shrink_buffers();
        if !is_writable(&mut self.connection).await? {
            return Ok(false);
        }
        let version = match shared.known_version() {
            Some(version) => version,
            None => {
                let read_at = shared.sizes().read_at.clone();
                shared.note_sizes(read_sizes(&mut self.connection, read_at.as_deref()).await?)
            }
        };
        if self.sizes_version != version {
            sqlx::raw_sql("discard plans").execute(&mut self.connection).await?;
            self.users.clear();
            self.sizes_version = version;
        }
        self.refreshed = Instant::now();
        Ok(true)
    }

    /// Ends whatever was begun, also by a `begin` that was given up while it was under way.
    async fn end(&mut self) -> sqlx::Result<()> {
        while Manager::get_transaction_depth(&self.connection) > 0 {
            Manager::start_rollback(&mut self.connection);
        }
        end_transaction(&mut self.connection).await.map(drop)
    }
}

impl PreparedPool {
    /// At most so many connections like those of `pool`, each opened when first asked for. The runtime that first asks drives it.
    #[must_use]
    pub fn new(pool: &PgPool, connections: usize) -> Self {
        Self::with_settings(pool, connections, &[])
    }

    /// At most so many connections like those of `pool`, with further settings of Postgres.
    #[must_use]
    pub fn with_settings(pool: &PgPool, connections: usize, settings: &[(&str, &str)]) -> Self {
        let connections = connections.clamp(1, Semaphore::MAX_PERMITS);
        let options = by_key_options(pool, settings).statement_cache_capacity(STATEMENTS);
        let shared = Shared {
            sizes: sizes_of(&options),
            options,
            connections,
            acquire_timeout: pool.options().get_acquire_timeout(),
            lifetime: pool.options().get_max_lifetime().unwrap_or(Duration::MAX),
            connection_permits: Arc::new(Semaphore::new(connections)),
            bulk: Arc::new(Semaphore::new(connections.saturating_sub(PRIORITY_RESERVE).max(1))),
            idle: Mutex::default(),
        };
        Self { shared: Arc::new(shared), user: "", limit: None }
    }

    /// A handle for what waits for nothing but a connection.
    #[must_use]
    pub fn priority(&self, user: &'static str) -> Self {
        Self { shared: Arc::clone(&self.shared), user, limit: None }
    }

    /// A handle for work that leaves some connections to others.
    #[must_use]
    pub fn bulk(&self, user: &'static str) -> Self {
        Self { limit: Some(Arc::clone(&self.shared.bulk)), ..self.priority(user) }
    }

    /// A handle for work of this lane.
    #[must_use]
    pub fn of_lane(&self, lane: Lane, user: &'static str) -> Self {
        if lane == Lane::Priority { self.priority(user) } else { self.bulk(user) }
    }

    /// A connection for statements that are transactions of their own, to be [put back](PreparedConnection::put_back) after success. It is
    /// not asked whether it still lives when it was used just now.
    pub async fn take(&self) -> sqlx::Result<PreparedConnection> {
        let permits = tokio::time::timeout(self.shared.acquire_timeout, self.acquire_permits());
        let permits = permits.await.map_err(|_| sqlx::Error::PoolTimedOut)??;
        // From here on Postgres is waited for, and not others of this process.
        let kept = Some(within(self.shared.acquire_timeout, Box::pin(self.find_or_open())).await?);
        Ok(PreparedConnection { kept, permits, shared: Arc::clone(&self.shared) })
    }

    async fn acquire_permits(&self) -> sqlx::Result<Vec<OwnedSemaphorePermit>> {
        let mut permits = Vec::with_capacity(2);
        for limit in self.limit.iter().chain([&self.shared.connection_permits]) {
            permits.push(Arc::clone(limit).acquire_owned().await.map_err(|_| sqlx::Error::PoolClosed)?);
        }
        Ok(permits)
    }

    async fn find_or_open(&self) -> sqlx::Result<Kept> {
        while let Some(mut kept) = self.shared.pop_idle(self.user) {
            // One that died meanwhile, or takes no writes, is dropped here.
            if kept.opened.elapsed() < self.shared.lifetime
                && (kept.refreshed.elapsed() < FRESH_FOR || kept.refresh(&self.shared).await.unwrap_or(false))
            {
                if !kept.users.contains(&self.user) {
                    kept.users.push(self.user);
                }
                return Ok(kept);
            }
        }
        let connection = self.shared.options.connect().await?;
        let (now, sizes_version) = (Instant::now(), self.shared.sizes().version);
        Ok(Kept { connection, users: vec![self.user], sizes_version, refreshed: now, opened: now })
    }

    /// Begins a transaction.
    pub async fn begin(&self) -> sqlx::Result<PreparedTransaction> {
        self.begin_with("begin").await
    }

    /// Begins a transaction by these statements, as [`crate::db::BEGIN_ASYNC_COMMIT`].
    pub async fn begin_with(&self, begin: impl SqlSafeStr) -> sqlx::Result<PreparedTransaction> {
        let begin: SqlStr = begin.into_sql_str();
        let mut connection = self.take().await?;
        Manager::begin(&mut connection, Some(begin)).await?;
        Ok(PreparedTransaction { connection })
    }

    /// Begins a transaction confined to a tenant: row security answers only its rows. One round trip.
    pub async fn begin_for_tenant(&self, tenant: Uuid) -> sqlx::Result<PreparedTransaction> {
        self.begin_with(AssertSqlSafe(format!("begin; {}", confined(tenant)))).await
    }

    /// Begins a read of one statement or a few, confined to a tenant; nil for what stands above tenants. Dropped when it is done.
    pub async fn read(&self, tenant: Uuid) -> sqlx::Result<PreparedTransaction> {
        self.begin_with(AssertSqlSafe(begin_read_only(tenant))).await
    }

    /// Whether one is idle that this handle may take.
    #[must_use]
    pub fn has_idle(&self) -> bool {
        let is_allowed = self.limit.as_ref().is_none_or(|limit| limit.available_permits() > 0);
        is_allowed && !self.shared.idle().is_empty()
    }

    /// The limit of connections, those that are open, and how many of these are idle.
    #[must_use]
    pub fn counts(&self) -> (u32, u32, u32) {
        let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        let (most, idle) = (self.shared.connections, self.shared.idle().len());
        let used = most.saturating_sub(self.shared.connection_permits.available_permits());
        (count(most), count(used + idle), count(idle))
    }
}

/// The size of each table, in the order of their ids, as [`TableSizes`] has them, and the end of the log; nothing while little was logged
/// since `read_at`.
async fn read_sizes(db: &mut PgConnection, read_at: Option<&str>) -> sqlx::Result<Option<(Vec<i32>, String)>> {
    let row = sqlx::query!(
        r#"select case when $1::text is null or abs(pg_current_wal_lsn() - $1::text::pg_lsn) > $2::bigint then (
                      select coalesce(array_agg(
                          floor(ln(1 + coalesce(pg_relation_size(oid), 0) / 8192) / ln(4))::integer order by oid), '{}')
                      from pg_class where oid >= 16384 and relkind = 'r' and relpersistence = 'p') end as sizes,
                  pg_current_wal_lsn()::text as "read_at!""#,
        read_at,
        LOGGED_MAX,
    )
    .fetch_one(db)
    .await?;
    Ok(row.sizes.map(|sizes| (sizes, row.read_at)))
}

impl Shared {
    fn sizes(&self) -> MutexGuard<'_, TableSizes> {
        self.sizes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The version of the sizes, unless it is to be asked again whether they have changed.
    fn known_version(&self) -> Option<u64> {
        let sizes = self.sizes();
        sizes.asked.is_some_and(|asked| asked.elapsed() < FRESH_FOR).then_some(sizes.version)
    }

    /// Notes the sizes, if they were read, and answers their version.
    fn note_sizes(&self, read: Option<(Vec<i32>, String)>) -> u64 {
        let mut sizes = self.sizes();
        if let Some((pages, read_at)) = read {
            sizes.version += u64::from(sizes.pages != pages);
            sizes.pages = pages;
            sizes.read_at = Some(read_at);
        }
        sizes.asked = Some(Instant::now());
        sizes.version
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Kept>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The connection with this user's plans that was given back last; else the last one.
    fn pop_idle(&self, user: &'static str) -> Option<Kept> {
        let mut idle = self.idle();
        match idle.iter().rposition(|kept| kept.users.contains(&user)) {
            Some(position) => Some(idle.remove(position)),
            None => idle.pop(),
        }
    }
}

/// A connection with its plans. One that is dropped instead of put back is rolled back in the background: the next user finds neither a
/// transaction nor a tenant on it.
#[derive(Debug)]
#[must_use]
pub struct PreparedConnection {
    /// There until it is given back.
    kept: Option<Kept>,
    permits: Vec<OwnedSemaphorePermit>,
    shared: Arc<Shared>,
}

impl PreparedConnection {
    /// Keeps it for the next, who may be waiting: nothing is under way on it.
    pub fn put_back(mut self) {
        self.shared.idle().extend(self.kept.take());
    }
}

impl Drop for PreparedConnection {
    fn drop(&mut self) {
        let (Some(mut kept), Ok(runtime)) = (self.kept.take(), Handle::try_current()) else { return };
        let (permits, shared) = (std::mem::take(&mut self.permits), Arc::clone(&self.shared));
        runtime.spawn(async move {
            // One that cannot be rolled back is closed.
            if kept.end().await.is_ok() {
                shared.idle().push(kept);
            }
            drop(permits);
        });
    }
}

/// A transaction on a connection with its plans. One that is dropped is rolled back, behind the caller's back.
#[derive(Debug)]
#[must_use]
pub struct PreparedTransaction {
    connection: PreparedConnection,
}

impl PreparedTransaction {
    /// Commits.
    pub async fn commit(mut self) -> sqlx::Result<()> {
        Manager::commit(&mut self.connection).await?;
        self.connection.put_back();
        Ok(())
    }

    /// Rolls back. Where Postgres is away, it has done so itself.
    pub async fn rollback(mut self) -> sqlx::Result<()> {
        Manager::rollback(&mut self.connection).await?;
        self.connection.put_back();
        Ok(())
    }
}

impl Deref for PreparedConnection {
    type Target = PgConnection;

    #[expect(clippy::expect_used, reason = "it is there until put_back or drop, which take the whole")]
    fn deref(&self) -> &PgConnection {
        &self.kept.as_ref().expect("a connection").connection
    }
}

impl DerefMut for PreparedConnection {
    #[expect(clippy::expect_used, reason = "it is there until put_back or drop, which take the whole")]
    fn deref_mut(&mut self) -> &mut PgConnection {
        &mut self.kept.as_mut().expect("a connection").connection
    }
}

impl Deref for PreparedTransaction {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        &self.connection
    }
}

impl DerefMut for PreparedTransaction {
    fn deref_mut(&mut self) -> &mut PgConnection {
        &mut self.connection
    }
}
