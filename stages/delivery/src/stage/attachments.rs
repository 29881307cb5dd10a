//! Stored attachments of one-off messages: loaded when a message is put together, never more at once than there is room for.
//!
//! A message of 20 MB to 50 people would take a gigabyte if it were prepared like small ones. So each copy reserves its bytes
//! first, in turn, and keeps them until it has been sent.

use std::{sync::Arc, time::Duration};

use moka::future::Cache;
use sqlx::PgPool;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

/// Bytes of messages with attachments in preparation or on their way at once, per process.
const IN_FLIGHT_BYTES: usize = 128 * 1024 * 1024;
/// Each message is there twice while it is sent: as it is, and dot-stuffed on its way.
const COPIES: usize = 2;
/// Attachments kept for the next recipient of the same message.
const KEPT_BYTES: u64 = 48 * 1024 * 1024;
const KEPT: Duration = Duration::from_secs(60);
/// Pause before attachments are asked for again when Postgres is away.
const RETRY: Duration = Duration::from_secs(1);
/// What is counted by the semaphore, whose counts are 32 bits.
const UNIT: usize = 1024;

/// The attachments of one message, in order.
type Loaded = Arc<Vec<Vec<u8>>>;

/// Bytes reserved for one message; given back when dropped.
#[derive(Debug)]
pub(crate) struct Room {
    _permit: OwnedSemaphorePermit,
}

/// Loads attachments and hands out room for them.
pub(crate) struct Attachments {
    pool: PgPool,
    room: Arc<Semaphore>,
    kept: Cache<(Uuid, Uuid), Loaded>,
}

impl Attachments {
    pub fn new(pool: PgPool) -> Self {
        let weight = |_: &(Uuid, Uuid), loaded: &Loaded| {
            u32::try_from(loaded.iter().map(Vec::len).sum::<usize>()).unwrap_or(u32::MAX)
        };
        Self {
            pool,
            room: Arc::new(Semaphore::new(IN_FLIGHT_BYTES / UNIT)),
            kept: Cache::builder().max_capacity(KEPT_BYTES).weigher(weight).time_to_live(KEPT).build(),
        }
    }

    /// Waits for room for a message of this size. First come, first served: nobody waits behind a later one.
    pub async fn room(&self, message_bytes: usize) -> Option<Room> {
        let units = (message_bytes * COPIES).min(IN_FLIGHT_BYTES) / UNIT;
        let permit = self.room.clone().acquire_many_owned(u32::try_from(units).ok()?).await.ok()?;
        Some(Room { _permit: permit })
    }

    /// The attachments of a message; `None` when they are gone, or the process stops before Postgres is back.
    pub async fn load(&self, tenant: Uuid, message: Uuid, shutdown: &CancellationToken) -> Option<Loaded> {
        loop {
            match self.kept.try_get_with((tenant, message), self.read(tenant, message)).await {
                Ok(loaded) => return (!loaded.is_empty()).then_some(loaded),
                Err(error) if runtime::db::is_transient(&error) => {
                    tracing::warn!(stage = "delivery", message_id = %message, "attachments cannot be had now; trying again");
                    shutdown.run_until_cancelled(tokio::time::sleep(RETRY)).await?;
                }
                Err(_) => return None,
            }
        }
    }

    async fn read(&self, tenant: Uuid, message: Uuid) -> sqlx::Result<Loaded> {
        let rows = sqlx::query_scalar!(
            "select encoded from message_attachments where tenant_id = $1 and message_id = $2 order by place",
            tenant,
            message
        )
        .fetch_all(&self.pool)
        .await?;
        Ok(Arc::new(rows))
    }
}
