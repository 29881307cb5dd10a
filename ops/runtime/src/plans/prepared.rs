//! Connections that keep their plans, handed from one short transaction to the next.

use std::{
    ops::{Deref, DerefMut},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
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
use crate::db::{begin_read_only, confined, end_transaction};

type Manager = <Postgres as sqlx::Database>::TransactionManager;

/// How long plans are kept, unless they may be kept longer.
const PLANS_KEPT: Duration = Duration::from_secs(1);
/// A connection that was looked after longer ago is tried before it is used.
const FRESH_FOR: Duration = Duration::from_secs(1);
/// Connections that bulk work leaves to others.
const PRIORITY_RESERVE: usize = 2;
/// Statements a connection remembers: those of every stage that shares it.
const STATEMENTS: usize = 500;

/// Connections for transactions of the same few statements by key, hundreds of them a second ([`super::AccessPattern::ByKey`]). Each
/// makes its plans once and keeps them for a second: making them anew each time was a third of what such statements cost Postgres.
///
/// Not for longer: a plan made while a partition was empty may go through all of it (an empty index costs nothing to read). Plans kept for
/// good were measured at 700 ms a group.
///
/// A process has one for each role, and who uses it a handle: [`PreparedPool::priority`] or [`PreparedPool::bulk`]. Bulk work never
/// takes the last two connections. Whoever holds a connection must not ask for a second one.
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
    /// How long a connection is waited for.
    acquire_timeout: Duration,
    plans_kept: Duration,
    /// How long one is used before another one takes its place.
    lifetime: Duration,
    /// As many as there may be connections. The queue is fair.
    places: Arc<Semaphore>,
    /// What bulk work may have of them.
    bulk: Arc<Semaphore>,
    /// The one used last is used next.
    idle: Mutex<Vec<Kept>>,
}

/// A connection, and what is known of it.
#[derive(Debug)]
struct Kept {
    connection: PgConnection,
    /// Whose plans it has.
    users: Vec<&'static str>,
    /// When its plans were last discarded.
    planned: Instant,
    /// When it was last looked after.
    refreshed: Instant,
    opened: Instant,
}

impl Kept {
    /// Discards plans that are old, and gives back the room it made for what it carried. Finds out whether the connection still lives.
    async fn refresh(&mut self, plans_kept: Duration) -> sqlx::Result<()> {
        self.connection.shrink_buffers();
        if self.planned.elapsed() < plans_kept {
            self.connection.ping().await?;
        } else {
            sqlx::raw_sql("discard plans").execute(&mut self.connection).await?;
            self.users.clear();
            self.planned = Instant::now();
        }
        self.refreshed = Instant::now();
        Ok(())
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
        Self::with_settings(pool, connections, &[], PLANS_KEPT)
    }

    /// The same, with further settings of Postgres and plans that are kept for longer: where nothing is joined that was empty a moment ago
    /// and has grown since.
    #[must_use]
    pub fn with_settings(pool: &PgPool, connections: usize, settings: &[(&str, &str)], plans_kept: Duration) -> Self {
        let connections = connections.clamp(1, Semaphore::MAX_PERMITS);
        let shared = Shared {
            options: by_key_options(pool, settings).statement_cache_capacity(STATEMENTS),
            connections,
            plans_kept,
            acquire_timeout: pool.options().get_acquire_timeout(),
            lifetime: pool.options().get_max_lifetime().unwrap_or(Duration::MAX),
            places: Arc::new(Semaphore::new(connections)),
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
    ///
    /// # Errors
    /// When Postgres is away, or no connection was free in time.
    pub async fn take(&self) -> sqlx::Result<PreparedConnection> {
        let taken = tokio::time::timeout(self.shared.acquire_timeout, async {
            let mut places = Vec::with_capacity(2);
            for limit in self.limit.iter().chain([&self.shared.places]) {
                places.push(Arc::clone(limit).acquire_owned().await.map_err(|_| sqlx::Error::PoolClosed)?);
            }
            let kept = Some(self.find_or_open().await?);
            Ok(PreparedConnection { kept, places, shared: Arc::clone(&self.shared) })
        });
        taken.await.map_err(|_| sqlx::Error::PoolTimedOut)?
    }

    async fn find_or_open(&self) -> sqlx::Result<Kept> {
        while let Some(mut kept) = self.shared.pop_idle(self.user) {
            // One that died meanwhile is dropped here.
            if kept.opened.elapsed() < self.shared.lifetime
                && (kept.refreshed.elapsed() < FRESH_FOR || kept.refresh(self.shared.plans_kept).await.is_ok())
            {
                if !kept.users.contains(&self.user) {
                    kept.users.push(self.user);
                }
                return Ok(kept);
            }
        }
        let connection = self.shared.options.connect().await?;
        let now = Instant::now();
        Ok(Kept { connection, users: vec![self.user], planned: now, refreshed: now, opened: now })
    }

    /// Begins a transaction.
    ///
    /// # Errors
    /// As [`PreparedPool::take`].
    pub async fn begin(&self) -> sqlx::Result<PreparedTransaction> {
        self.begin_with("begin").await
    }

    /// Begins a transaction by these statements, as [`crate::db::BEGIN_ASYNC_COMMIT`].
    ///
    /// # Errors
    /// As [`PreparedPool::take`].
    pub async fn begin_with(&self, begin: impl SqlSafeStr) -> sqlx::Result<PreparedTransaction> {
        let begin: SqlStr = begin.into_sql_str();
        let mut connection = self.take().await?;
        Manager::begin(&mut connection, Some(begin)).await?;
        Ok(PreparedTransaction { connection })
    }

    /// Begins a transaction confined to a tenant: row security answers only its rows. One round trip.
    ///
    /// # Errors
    /// As [`PreparedPool::take`].
    pub async fn begin_for_tenant(&self, tenant: Uuid) -> sqlx::Result<PreparedTransaction> {
        self.begin_with(AssertSqlSafe(format!("begin; {}", confined(tenant)))).await
    }

    /// Begins a read of one statement or a few, confined to a tenant; nil for what stands above tenants. Dropped when it is done.
    ///
    /// # Errors
    /// As [`PreparedPool::take`].
    pub async fn read(&self, tenant: Uuid) -> sqlx::Result<PreparedTransaction> {
        self.begin_with(AssertSqlSafe(begin_read_only(tenant))).await
    }

    /// The most connections there may be, those there are, and how many of these nobody uses.
    #[must_use]
    pub fn counts(&self) -> (u32, u32, u32) {
        let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        let (most, idle) = (self.shared.connections, self.shared.idle().len());
        let used = most.saturating_sub(self.shared.places.available_permits());
        (count(most), count(used + idle), count(idle))
    }
}

impl Shared {
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

/// A connection with its plans. One that is dropped instead of put back is rolled back first, behind the caller's back: whoever is next
/// finds neither a transaction nor a tenant on it.
#[derive(Debug)]
#[must_use]
pub struct PreparedConnection {
    /// There until it is given back.
    kept: Option<Kept>,
    places: Vec<OwnedSemaphorePermit>,
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
        let (places, shared) = (std::mem::take(&mut self.places), Arc::clone(&self.shared));
        runtime.spawn(async move {
            // One that cannot be rolled back is closed.
            if kept.end().await.is_ok() {
                shared.idle().push(kept);
            }
            drop(places);
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
    ///
    /// # Errors
    /// When Postgres is away, or refuses what was to be committed.
    pub async fn commit(mut self) -> sqlx::Result<()> {
        Manager::commit(&mut self.connection).await?;
        self.connection.put_back();
        Ok(())
    }

    /// Rolls back.
    ///
    /// # Errors
    /// When Postgres is away: it has rolled back then.
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
