//! The connections of provider webhooks: a cache of their secrets, and their rate limits.

use std::{sync::Arc, time::Duration};

use moka::future::Cache;
use runtime::Vault;
use secrecy::SecretString;
use sqlx::PgPool;
use tokio::sync::{Semaphore, SemaphorePermit};
use uuid::Uuid;

use crate::{pipeline::error::ApiError, public::rate::RateWindows};

/// The vault's purpose for the secrets that events are checked with.
pub const HOOK_PURPOSE: &str = "provider_hook";
/// How long a connection, or its absence, is cached: a changed secret takes effect after this time.
const LIFE: Duration = Duration::from_secs(5);
const KEPT: u64 = 10_000;
/// How long a request waits for a permit before the provider is asked to come again.
const PERMIT_TIMEOUT: Duration = Duration::from_secs(5);
/// Lookups of connections that are not cached: anyone may make ids up, and the pool serves the API, too.
const LOOKUPS_AT_ONCE: usize = 2;
/// The window of the rate limits.
const WINDOW: Duration = Duration::from_secs(1);
/// Bytes that one connection may have stored in a window, in each process; an event beyond them is answered 429, and the provider comes
/// again. As much as the engagement stage takes at a time.
const STORED_MAX_BYTES: usize = 4 * 1024 * 1024;

/// The fields of a provider connection that its events need.
#[derive(Debug)]
pub(super) struct HookConnection {
    pub id: Uuid,
    pub tenant_id: Uuid,
    pub provider: String,
    /// Each of them is valid.
    pub secrets: Vec<SecretString>,
    /// SNS topics whose messages are accepted.
    pub topics: Vec<String>,
}

/// The cached connections and their request counts.
#[derive(Debug)]
pub(super) struct Connections {
    found: Cache<Uuid, Option<Arc<HookConnection>>>,
    lookups: Semaphore,
    /// The requests of a connection in a second. Counted before the lookup.
    pub requests: RateWindows,
    /// The bytes of events that a connection may have stored in a second. Counted after the proof of an event was checked.
    pub stored: RateWindows,
}

impl Connections {
    pub fn new(per_second: u32) -> Self {
        Self {
            found: Cache::builder().max_capacity(KEPT).time_to_live(LIFE).build(),
            lookups: Semaphore::new(LOOKUPS_AT_ONCE),
            requests: RateWindows::new(per_second as usize, WINDOW),
            stored: RateWindows::new(STORED_MAX_BYTES, WINDOW),
        }
    }

    /// The connection; `None`: there is none.
    ///
    /// # Errors
    /// 503 when Postgres is away, or too many others are looked up.
    pub async fn find(&self, pool: &PgPool, vault: &Vault, id: Uuid) -> Result<Option<Arc<HookConnection>>, ApiError> {
        if let Some(found) = self.found.get(&id).await {
            return Ok(found);
        }
        let _permit = permit(&self.lookups).await?;
        let found = look_up(pool, vault, id).await?.map(Arc::new);
        self.found.insert(id, found.clone()).await;
        Ok(found)
    }
}

/// A permit, or 503 after some seconds: the provider comes again.
pub(super) async fn permit(permits: &Semaphore) -> Result<SemaphorePermit<'_>, ApiError> {
    let permit = tokio::time::timeout(PERMIT_TIMEOUT, permits.acquire()).await;
    permit.ok().and_then(Result::ok).ok_or_else(ApiError::unavailable)
}

async fn look_up(pool: &PgPool, vault: &Vault, id: Uuid) -> Result<Option<HookConnection>, ApiError> {
    let row = sqlx::query!(
        r#"select tenant_id as "tenant_id!", provider as "provider!", hook_secret, hook_topics as "hook_topics!"
           from hook_connection($1)"#,
        id
    )
    .fetch_optional(pool)
    .await?;
    let Some(row) = row else { return Ok(None) };
    let opened = row.hook_secret.map(|sealed| vault.open(row.tenant_id, HOOK_PURPOSE, &sealed)).transpose();
    let text = opened.map_err(|error| ApiError::unexpected(&error))?.map(String::from_utf8).transpose();
    let text = text.map_err(|error| ApiError::unexpected(&error))?.unwrap_or_default();
    let secrets = text.lines().map(str::trim).filter(|line| !line.is_empty()).map(SecretString::from).collect();
    Ok(Some(HookConnection { id, tenant_id: row.tenant_id, provider: row.provider, secrets, topics: row.hook_topics }))
}

#[cfg(test)]
mod tests {
    use devtools::servers::TestDatabase;
    use runtime::MasterKeys;

    use super::*;

    #[tokio::test]
    async fn unknown_connections_are_looked_up_a_few_at_a_time() {
        let database = TestDatabase::migrated(&runtime::db::MIGRATIONS).await.unwrap();
        let pool = PgPool::connect(&database.url()).await.unwrap();
        let vault = Vault::new(&MasterKeys::parse(&"5a".repeat(32)).unwrap()).unwrap();
        let connections = Connections::new(100);
        let found = connections.find(&pool, &vault, Uuid::now_v7());
        let others = connections.lookups.acquire_many(2).await.unwrap();
        let mut found = std::pin::pin!(found);
        assert!(tokio::time::timeout(Duration::from_millis(200), &mut found).await.is_err());
        drop(others);
        assert!(found.await.unwrap().is_none());
        let _others = connections.lookups.acquire_many(2).await.unwrap();
        pool.close().await;
        tokio::time::pause();
        let refused = connections.find(&pool, &vault, Uuid::now_v7()).await.unwrap_err();
        assert_eq!(refused.status.as_u16(), 503, "the provider comes again");
    }
}
