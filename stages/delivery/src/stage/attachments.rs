//! Stored attachments of one-off messages, loaded when a message is built, within a memory limit.
//!
//! A message of 20 MB to 50 recipients would need a gigabyte if it were prepared like small ones. So each copy first reserves
//! its bytes and holds them until it has been sent.

use std::{sync::Arc, time::Duration};

use moka::future::Cache;
use sqlx::PgPool;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::routes::ProviderRoute;
use crate::provider::ProviderKind;

/// The largest message: 15 MiB of files, which are 21 in base64, and two bodies of half a MiB, which are 3 in quoted-printable.
pub(crate) const LARGEST_MESSAGE: usize = 24 * 1024 * 1024;
/// A message is in memory twice while it is sent over SMTP: the original and its dot-stuffed copy.
const SMTP_COPIES: usize = 2;
/// And four times while a request is made of it: the original, its files, the values of the request and their text.
const HTTP_COPIES: usize = 4;
/// Bytes of messages with attachments that are prepared or in flight at once, per process, through one tenant's connection: as much as the
/// largest message takes, …
const OF_ONE_CONNECTION: usize = LARGEST_MESSAGE * HTTP_COPIES;
/// … through those of all tenants: one of them leaves the others as much, …
const OF_ALL_CONNECTIONS: usize = OF_ONE_CONNECTION * 2;
/// … and at all. The rest is the platform's relay's: as much as the largest message takes.
const IN_FLIGHT_BYTES: usize = OF_ALL_CONNECTIONS + LARGEST_MESSAGE * SMTP_COPIES;
/// Bytes of attachments cached for the next recipient of the same message.
const CACHE_BYTES: u64 = 48 * 1024 * 1024;
const CACHE_LIFE: Duration = Duration::from_secs(60);
/// Pause before attachments are read again while Postgres does not give them.
const RETRY: Duration = Duration::from_secs(1);
/// Bytes for each permit of a semaphore, whose counts are 32 bits.
const UNIT: usize = 1024;

/// A limit of memory. First come, first served.
fn limit_of(bytes: usize) -> Arc<Semaphore> {
    Arc::new(Semaphore::new(bytes / UNIT))
}

/// The memory of the messages with attachments that go through one tenant's connection.
pub(crate) fn memory_of_connection() -> Arc<Semaphore> {
    limit_of(OF_ONE_CONNECTION)
}

/// The memory of one message, until this is dropped.
#[derive(Debug)]
pub(crate) struct ReservedMemory {
    _permits: Vec<OwnedSemaphorePermit>,
}

/// The attachments of one message, in order.
type LoadedAttachments = Arc<Vec<Vec<u8>>>;

/// Loads attachments and limits the memory they use.
pub(crate) struct Attachments {
    pool: PgPool,
    memory: Arc<Semaphore>,
    of_all_connections: Arc<Semaphore>,
    cache: Cache<(Uuid, Uuid), LoadedAttachments>,
}

impl Attachments {
    pub fn new(pool: PgPool) -> Self {
        let weight = |_: &(Uuid, Uuid), loaded: &LoadedAttachments| {
            u32::try_from(loaded.iter().map(Vec::len).sum::<usize>()).unwrap_or(u32::MAX)
        };
        Self {
            pool,
            memory: limit_of(IN_FLIGHT_BYTES),
            of_all_connections: limit_of(OF_ALL_CONNECTIONS),
            cache: Cache::builder().max_capacity(CACHE_BYTES).weigher(weight).time_to_live(CACHE_LIFE).build(),
        }
    }

    /// Waits for memory for a message of this size that goes through such a route.
    pub async fn reserve_memory(&self, message_bytes: usize, route: &ProviderRoute) -> Option<ReservedMemory> {
        let copies = if route.provider.kind() == ProviderKind::Smtp { SMTP_COPIES } else { HTTP_COPIES };
        let units = u32::try_from(message_bytes.min(LARGEST_MESSAGE) * copies / UNIT).ok()?;
        let of_connections = route.attachment_memory.as_ref().map(|own| [own, &self.of_all_connections]);
        // The smallest first: what waits for its connection's share keeps nothing that others wait for.
        let limits: Vec<&Arc<Semaphore>> = of_connections.into_iter().flatten().chain([&self.memory]).collect();
        let mut permits = Vec::with_capacity(limits.len());
        for limit in limits {
            permits.push(limit.clone().acquire_many_owned(units).await.ok()?);
        }
        Some(ReservedMemory { _permits: permits })
    }

    /// Returns the attachments of a message; `None` if they are gone or the process stops before Postgres is back.
    pub async fn load_attachments(
        &self,
        tenant: Uuid,
        message: Uuid,
        shutdown: &CancellationToken,
    ) -> Option<LoadedAttachments> {
        loop {
            match self.cache.try_get_with((tenant, message), self.read_attachments(tenant, message)).await {
                Ok(loaded) => return (!loaded.is_empty()).then_some(loaded),
                // Whatever it is, it is no fault of the message.
                Err(error) => {
                    let error = runtime::db::describe(&error);
                    tracing::warn!(
                        stage = "delivery", message_id = %message, error,
                        "attachments cannot be loaded now; trying again"
                    );
                    shutdown.run_until_cancelled(tokio::time::sleep(RETRY)).await?;
                }
            }
        }
    }

    async fn read_attachments(&self, tenant: Uuid, message: Uuid) -> sqlx::Result<LoadedAttachments> {
        let read = sqlx::query_scalar!(
            "select encoded from message_attachments where tenant_id = $1 and message_id = $2 order by place",
            tenant,
            message
        );
        let rows = runtime::db::within(runtime::db::ANSWER_TIMEOUT, read.fetch_all(&self.pool)).await?;
        Ok(Arc::new(rows))
    }
}
