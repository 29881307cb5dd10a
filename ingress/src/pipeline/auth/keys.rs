//! Looks up API keys by their hash, with a cache of a few seconds.

use std::{
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use chrono::NaiveDate;
use ledger::requests::Requester;
use moka::future::Cache;
use runtime::peers::client_of;
use schemas::Environment;
use sqlx::PgPool;
use tokio::sync::Semaphore;
use uuid::Uuid;

/// How long a key is cached: a revocation takes effect within this time.
const CACHED: Duration = Duration::from_secs(5);
const CACHED_KEYS_MAX: u64 = 10_000;
/// Concurrent lookups of keys that are not cached, from addresses without many unknown keys.
const LOOKUPS_AT_ONCE: usize = 4;
/// Unknown keys a client may send in a minute. Above it, its keys are looked up one at a time over all such clients. It may be
/// a proxy of many callers, so none is refused, and made-up keys use one connection.
const UNKNOWN_PER_MINUTE: u32 = 60;
const STRANGERS_MAX: u64 = 10_000;

/// The caller of a request, from the row of its API key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// The key's id: for logs and audit.
    pub key_id: Uuid,
    /// The first of the keys that replaced one another up to this one: the scope of idempotency keys.
    pub lineage: Uuid,
    /// The lineage with which it shares a rate limit.
    pub rate_lineage: Uuid,
    pub product: String,
    pub environment: Environment,
    pub scopes: Vec<String>,
    /// If set, the key works for this tenant only.
    pub tenant_id: Option<Uuid>,
    last_used_on: Option<NaiveDate>,
}

impl Caller {
    /// A product on the bus, where the permissions of the NATS user replace a key: it has every scope of a product. `id` replaces the key's.
    pub fn on_the_bus(id: Uuid, product: String, environment: Environment) -> Self {
        let scopes = schemas::scope::ALL.iter().map(|scope| (*scope).to_owned()).collect();
        Self {
            key_id: id,
            lineage: id,
            rate_lineage: id,
            product,
            environment,
            scopes,
            tenant_id: None,
            last_used_on: None,
        }
    }

    /// Whose requests it makes for a tenant.
    pub(crate) fn requester(&self, tenant_id: Uuid) -> Requester<'_> {
        Requester { tenant_id, product: &self.product, environment: self.environment }
    }

    /// Whether the key has a scope. A write scope does not imply the read scope.
    pub fn may(&self, scope: &str) -> bool {
        self.scopes.iter().any(|held| held == scope)
    }

    /// The actor in the audit log.
    pub fn actor(&self) -> String {
        format!("key:{}", self.key_id)
    }
}

/// The keys in use.
#[derive(Debug)]
pub struct ApiKeys {
    pool: PgPool,
    cached: Cache<[u8; 32], Arc<Caller>>,
    /// Unknown keys, cached as long as known ones.
    unknown: Cache<[u8; 32], ()>,
    /// The number of unknown keys that a [client](client_of) sent in the last minute.
    strangers: Cache<IpAddr, Arc<AtomicU32>>,
    lookups: Semaphore,
    lookups_of_strangers: Semaphore,
    /// The day of last use that was stored for a cached key.
    last_use: Cache<Uuid, NaiveDate>,
}

impl ApiKeys {
    /// Makes an empty cache in front of the database.
    pub fn new(pool: PgPool) -> Self {
        let cached = Cache::builder().max_capacity(CACHED_KEYS_MAX).time_to_live(CACHED).build();
        let unknown = Cache::builder().max_capacity(CACHED_KEYS_MAX).time_to_live(CACHED).build();
        let strangers = Cache::builder().max_capacity(STRANGERS_MAX).time_to_live(Duration::from_secs(60)).build();
        let last_use = Cache::builder().max_capacity(CACHED_KEYS_MAX).build();
        let (lookups, lookups_of_strangers) = (Semaphore::new(LOOKUPS_AT_ONCE), Semaphore::new(1));
        Self { pool, cached, unknown, strangers, lookups, lookups_of_strangers, last_use }
    }

    /// Finds the caller of a key that was sent from this address. `None` for a key that is unknown, revoked or expired.
    pub async fn find(&self, key: &str, from: Option<IpAddr>) -> sqlx::Result<Option<Arc<Caller>>> {
        if !schemas::key::is_well_formed(key) {
            return Ok(None);
        }
        let hash = schemas::key::hash(key);
        if let Some(caller) = self.cached.get(&hash).await {
            return Ok(Some(caller));
        }
        if self.unknown.contains_key(&hash) {
            return Ok(None);
        }
        let unknown_count = match from {
            Some(ip) => Some(self.strangers.get_with(client_of(ip), async { Arc::default() }).await),
            None => None,
        };
        let is_stranger =
            unknown_count.as_ref().is_some_and(|count| count.load(Ordering::Relaxed) >= UNKNOWN_PER_MINUTE);
        let gate = if is_stranger { &self.lookups_of_strangers } else { &self.lookups };
        // Never closed.
        let _turn = gate.acquire().await.ok();
        let found = sqlx::query_as!(
            Caller,
            r#"select id as key_id, lineage, rate_lineage, product, environment as "environment: Environment", scopes, tenant_id,
                      last_used_on
               from api_keys
               where hash = $1 and revoked_at is null and (expires_at is null or expires_at > now())"#,
            hash.as_slice(),
        )
        .fetch_optional(&self.pool)
        .await?
        .map(Arc::new);
        if let Some(caller) = &found {
            self.cached.insert(hash, Arc::clone(caller)).await;
        } else {
            self.unknown.insert(hash, ()).await;
            if let Some(count) = unknown_count {
                count.fetch_add(1, Ordering::Relaxed);
            }
        }
        Ok(found)
    }

    /// Stores the day of last use of a key, once a day. Best effort.
    pub async fn note_use(&self, caller: &Caller) {
        let today = Some(chrono::Utc::now().date_naive());
        if caller.last_used_on == today || self.last_use.get(&caller.key_id).await == today {
            return;
        }
        let last_use = sqlx::query!(
            "update api_keys set last_used_on = (now() at time zone 'utc')::date
             where id = $1 and last_used_on is distinct from (now() at time zone 'utc')::date",
            caller.key_id,
        )
        .execute(&self.pool)
        .await;
        match (last_use, today) {
            (Ok(_), Some(today)) => self.last_use.insert(caller.key_id, today).await,
            _ => tracing::debug!(key_id = %caller.key_id, "last use not noted"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use devtools::servers::TestDatabase;
    use std::net::Ipv6Addr;

    fn unknown_key() -> String {
        schemas::key::generate("shop", Environment::Production)
    }

    #[tokio::test]
    async fn an_unknown_key_costs_one_query() {
        let database = TestDatabase::migrated(&runtime::db::MIGRATIONS).await.unwrap();
        let keys = ApiKeys::new(PgPool::connect(&database.url()).await.unwrap());
        let key = unknown_key();
        assert_eq!(keys.find(&key, None).await.unwrap(), None);
        keys.pool.close().await;
        assert_eq!(keys.find(&key, None).await.unwrap(), None, "it is remembered");
        assert!(keys.find(&unknown_key(), None).await.is_err(), "another one is asked about");
    }

    #[tokio::test]
    async fn unknown_keys_of_a_strange_network_wait_in_their_own_queue() {
        let database = TestDatabase::migrated(&runtime::db::MIGRATIONS).await.unwrap();
        let keys = ApiKeys::new(PgPool::connect(&database.url()).await.unwrap());
        for n in 0..UNKNOWN_PER_MINUTE {
            let stranger = Ipv6Addr::from_bits(0x2001_0db8 << 96 | u128::from(n));
            keys.find(&unknown_key(), Some(stranger.into())).await.unwrap();
        }
        let stranger = Some("2001:db8::cafe".parse().unwrap());
        let _strangers = keys.lookups_of_strangers.acquire().await.unwrap();
        let waits = tokio::time::timeout(Duration::from_millis(200), keys.find(&unknown_key(), stranger)).await;
        assert!(waits.is_err(), "its keys are looked up one at a time");
        for other in ["192.0.2.2", "2001:db8:0:1::cafe"] {
            assert_eq!(keys.find(&unknown_key(), Some(other.parse().unwrap())).await.unwrap(), None);
        }
    }
}
