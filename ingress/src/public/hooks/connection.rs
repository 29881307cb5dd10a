//! The connections of provider webhooks: a cache of their secrets, and their rate limits.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use moka::future::Cache;
use runtime::Vault;
use secrecy::SecretString;
use sqlx::PgPool;
use uuid::Uuid;

use crate::pipeline::error::ApiError;

/// The vault's purpose for the secrets that events are checked with.
pub const HOOK_PURPOSE: &str = "provider_hook";
/// How long a connection, or its absence, is cached: a changed secret takes effect after this time.
const LIFE: Duration = Duration::from_secs(5);
const KEPT: u64 = 10_000;
/// The window of the rate limit.
const WINDOW: Duration = Duration::from_secs(1);

/// The fields of a provider connection that its events need.
#[derive(Debug)]
pub(super) struct HookConnection {
    pub tenant_id: Uuid,
    pub provider: String,
    /// Each of them is valid.
    pub secrets: Vec<SecretString>,
    /// SNS topics whose messages are accepted.
    pub topics: Vec<String>,
}

type RateWindow = Arc<Mutex<(Instant, u32)>>;

/// The cached connections and their request counts.
#[derive(Debug)]
pub(super) struct Connections {
    found: Cache<Uuid, Option<Arc<HookConnection>>>,
    windows: Cache<Uuid, RateWindow>,
    per_second: u32,
}

impl Connections {
    pub fn new(per_second: u32) -> Self {
        Self {
            found: Cache::builder().max_capacity(KEPT).time_to_live(LIFE).build(),
            windows: Cache::builder().max_capacity(KEPT).time_to_idle(WINDOW * 10).build(),
            per_second,
        }
    }

    /// True if one more request of this connection fits into its limit of this second. Counted before the lookup.
    pub async fn admit(&self, id: Uuid) -> bool {
        let window = self.windows.get_with(id, async { Arc::new(Mutex::new((Instant::now(), 0))) }).await;
        let mut window = window.lock().unwrap_or_else(PoisonError::into_inner);
        if window.0.elapsed() >= WINDOW {
            *window = (Instant::now(), 0);
        }
        window.1 += 1;
        window.1 <= self.per_second
    }

    /// The connection; `None`: there is none.
    pub async fn find(&self, pool: &PgPool, vault: &Vault, id: Uuid) -> Result<Option<Arc<HookConnection>>, ApiError> {
        if let Some(found) = self.found.get(&id).await {
            return Ok(found);
        }
        let found = look_up(pool, vault, id).await?.map(Arc::new);
        self.found.insert(id, found.clone()).await;
        Ok(found)
    }
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
    Ok(Some(HookConnection { tenant_id: row.tenant_id, provider: row.provider, secrets, topics: row.hook_topics }))
}
