//! Connections that keep their plans, handed from one short transaction to the next.

use std::{
    ops::{Deref, DerefMut},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use sqlx::{AssertSqlSafe, Connection, PgConnection, PgPool, Postgres, pool::PoolConnection};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use uuid::Uuid;

use super::pool_by_kept_key;
use crate::db::{begin_read_only, end_transaction};

/// How long a connection is used as it is. Then it forgets its plans or, where they are kept for good, is asked whether it still lives.
const FRESH_FOR: Duration = Duration::from_secs(1);

/// Connections for transactions of the same few statements by key, hundreds of them a second. Each makes its plans once and keeps
/// them: making them anew each time was a third of what such statements cost Postgres.
///
/// A plan made while a partition was empty may go through all of it ([`pool_by_kept_key`] does not prevent that: an empty index costs
/// nothing to read). So they are kept for a second: such a one is gone before it does harm; plans kept for good were measured at 700 ms a
/// group. Where nothing is joined that may have been empty, they are kept [for good](PreparedPool::for_good).
#[derive(Debug)]
pub struct PreparedPool {
    pool: PgPool,
    /// Whether plans are kept as long as their connection is.
    for_good: bool,
    /// Who may hold a connection: as many as there are. Whoever waits does so here, not at the pool, which hears nothing of those that
    /// are put back.
    places: Arc<Semaphore>,
    /// The one used last is used next: its plans are there, and taking one from the pool costs round trips.
    idle: Mutex<Vec<Kept>>,
}

/// A connection, and what is known of it.
#[derive(Debug)]
struct Kept {
    connection: PoolConnection<Postgres>,
    /// When it was last refreshed.
    refreshed: Instant,
    /// When it was taken from the pool.
    taken: Instant,
}

impl Kept {
    fn new(connection: PoolConnection<Postgres>) -> Self {
        let now = Instant::now();
        Self { connection, refreshed: now, taken: now }
    }

    /// Gives back the room it made for what it carried, too: no pool does so for it.
    async fn refresh(&mut self, keeps_plans: bool) -> sqlx::Result<()> {
        self.connection.shrink_buffers();
        if keeps_plans {
            self.connection.ping().await?;
        } else {
            sqlx::raw_sql("discard plans").execute(&mut *self.connection).await?;
        }
        self.refreshed = Instant::now();
        Ok(())
    }
}

/// A connection with its plans. To be [put back](PreparedPool::put_back) after success; it is closed or cleaned otherwise.
#[derive(Debug)]
pub struct KeptConnection {
    kept: Kept,
    _place: OwnedSemaphorePermit,
}

impl PreparedPool {
    /// Connects like `pool`, when first asked, at most `connections` times, and once at least. The runtime it is used on drives them.
    #[must_use]
    pub fn new(pool: &PgPool, connections: usize) -> Self {
        Self::with(pool, connections, &[], false)
    }

    /// The same, with further settings of Postgres and plans that are kept as long as the connection is.
    #[must_use]
    pub fn for_good(pool: &PgPool, connections: usize, settings: &[(&str, &str)]) -> Self {
        Self::with(pool, connections, settings, true)
    }

    fn with(pool: &PgPool, connections: usize, settings: &[(&str, &str)], for_good: bool) -> Self {
        let places = connections.clamp(1, Semaphore::MAX_PERMITS);
        let pool = pool_by_kept_key(pool, u32::try_from(places).unwrap_or(u32::MAX), settings);
        Self { pool, for_good, places: Arc::new(Semaphore::new(places)), idle: Mutex::default() }
    }

    /// A connection for one transaction, as soon as one is free. It is not asked whether it still lives when it was used just now.
    ///
    /// # Errors
    /// When Postgres is away, or none was free within the pool's time.
    pub async fn take(&self) -> sqlx::Result<KeptConnection> {
        let place =
            tokio::time::timeout(self.pool.options().get_acquire_timeout(), self.places.clone().acquire_owned());
        let place = place.await.map_err(|_| sqlx::Error::PoolTimedOut)?.map_err(|_| sqlx::Error::PoolClosed)?;
        while let Some(mut kept) = self.pop_idle() {
            // One that died meanwhile is dropped here.
            if kept.refreshed.elapsed() < FRESH_FOR || kept.refresh(self.for_good).await.is_ok() {
                return Ok(KeptConnection { kept, _place: place });
            }
        }
        let mut kept = Kept::new(self.pool.acquire().await?);
        if !self.for_good {
            // It may have been here before, and hold plans of any age.
            kept.refresh(false).await?;
        }
        Ok(KeptConnection { kept, _place: place })
    }

    fn pop_idle(&self) -> Option<Kept> {
        self.idle().pop()
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Kept>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps it for the next, who may be waiting. One that has lived as long as the pool lets them goes back there, to be closed.
    pub fn put_back(&self, connection: KeptConnection) {
        let kept = connection.kept;
        if self.pool.options().get_max_lifetime().is_some_and(|most| kept.taken.elapsed() >= most) {
            return;
        }
        self.idle().push(kept);
    }

    /// Begins a read of one statement or a few, confined to a tenant; nil for what stands above tenants.
    ///
    /// # Errors
    /// As [`PreparedPool::take`].
    pub async fn read(self: &Arc<Self>, tenant: Uuid) -> sqlx::Result<Reading> {
        let mut connection = self.take().await?;
        sqlx::raw_sql(AssertSqlSafe(begin_read_only(tenant))).execute(&mut *connection).await?;
        Ok(Reading { connection, home: Arc::clone(self) })
    }

    /// The most connections there may be, those there are, and how many of these nobody uses.
    #[must_use]
    pub fn counts(&self) -> (u32, u32, u32) {
        let idle = self.idle().len() + self.pool.num_idle();
        (self.pool.options().get_max_connections(), self.pool.size(), u32::try_from(idle).unwrap_or(u32::MAX))
    }
}

/// A read under way, to be [ended](Reading::end). The connection of one that is given up instead goes to the pool, which cleans it.
#[derive(Debug)]
#[must_use]
pub struct Reading {
    connection: KeptConnection,
    home: Arc<PreparedPool>,
}

impl Reading {
    /// Rolls back and hands the connection on, behind the caller's back. (A pool would roll back twice, and then try the connection: as
    /// many round trips as the read itself.)
    pub fn end(self) {
        let Self { mut connection, home } = self;
        tokio::spawn(async move {
            if end_transaction(&mut connection).await.is_ok() {
                home.put_back(connection);
            }
        });
    }
}

impl Deref for Reading {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        &self.connection
    }
}

impl DerefMut for Reading {
    fn deref_mut(&mut self) -> &mut PgConnection {
        &mut self.connection
    }
}

impl Deref for KeptConnection {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        &self.kept.connection
    }
}

impl DerefMut for KeptConnection {
    fn deref_mut(&mut self) -> &mut PgConnection {
        &mut self.kept.connection
    }
}
