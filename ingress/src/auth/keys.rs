//! API keys: found by their hash, remembered for a moment.

use std::{sync::Arc, time::Duration};

use chrono::NaiveDate;
use moka::future::Cache;
use schemas::Environment;
use sqlx::PgPool;
use uuid::Uuid;

/// How long a key is remembered: a revocation bites within this time.
const REMEMBERED: Duration = Duration::from_secs(5);
const REMEMBERED_KEYS_MAX: u64 = 10_000;

/// Who calls: what the key's row says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// The key's id: for logs, audit and the scope of idempotency keys.
    pub key_id: Uuid,
    /// The product the key was issued to.
    pub product: String,
    /// The environment it works in.
    pub environment: Environment,
    /// What it may do.
    pub scopes: Vec<String>,
    /// Set: the key works for this tenant only.
    pub tenant_id: Option<Uuid>,
    last_used_on: Option<NaiveDate>,
}

impl Caller {
    /// A product on the bus, where the server's permissions stand for a key: all that a product may do. `id` stands for the key.
    #[must_use]
    pub fn on_the_bus(id: Uuid, product: String, environment: Environment) -> Self {
        let scopes = schemas::scope::ALL.iter().map(|scope| (*scope).to_owned()).collect();
        Self { key_id: id, product, environment, scopes, tenant_id: None, last_used_on: None }
    }

    /// Whether the key has a scope. A write scope does not imply the read scope.
    #[must_use]
    pub fn may(&self, scope: &str) -> bool {
        self.scopes.iter().any(|held| held == scope)
    }

    /// Who acted, for the audit log.
    #[must_use]
    pub fn actor(&self) -> String {
        format!("key:{}", self.key_id)
    }
}

/// The keys in use.
#[derive(Debug, Clone)]
pub struct Keys {
    pool: PgPool,
    remembered: Cache<[u8; 32], Arc<Caller>>,
    /// The day that was noted of a key since it was remembered.
    noted: Cache<Uuid, NaiveDate>,
}

impl Keys {
    /// Keys as they stand in the database.
    #[must_use]
    pub fn new(pool: PgPool) -> Self {
        let remembered = Cache::builder().max_capacity(REMEMBERED_KEYS_MAX).time_to_live(REMEMBERED).build();
        let noted = Cache::builder().max_capacity(REMEMBERED_KEYS_MAX).build();
        Self { pool, remembered, noted }
    }

    /// The caller a key stands for; `None` when it is unknown, revoked or expired, which all look the same from outside.
    ///
    /// # Errors
    /// When Postgres is away.
    pub async fn find(&self, key: &str) -> sqlx::Result<Option<Arc<Caller>>> {
        if !schemas::key::is_well_formed(key) {
            return Ok(None);
        }
        let hash = schemas::key::hash(key);
        if let Some(caller) = self.remembered.get(&hash).await {
            return Ok(Some(caller));
        }
        let found = sqlx::query_as!(
            Caller,
            r#"select id as key_id, product, environment as "environment: Environment", scopes, tenant_id, last_used_on
               from api_keys
               where hash = $1 and revoked_at is null and (expires_at is null or expires_at > now())"#,
            hash.as_slice(),
        )
        .fetch_optional(&self.pool)
        .await?
        .map(Arc::new);
        if let Some(caller) = &found {
            self.remembered.insert(hash, Arc::clone(caller)).await;
        }
        Ok(found)
    }

    /// Notes the day a key was last used, once a day. Best effort: nothing depends on it.
    pub async fn note_use(&self, caller: &Caller) {
        let today = Some(chrono::Utc::now().date_naive());
        if caller.last_used_on == today || self.noted.get(&caller.key_id).await == today {
            return;
        }
        let noted = sqlx::query!(
            "update api_keys set last_used_on = (now() at time zone 'utc')::date
             where id = $1 and last_used_on is distinct from (now() at time zone 'utc')::date",
            caller.key_id,
        )
        .execute(&self.pool)
        .await;
        match (noted, today) {
            (Ok(_), Some(today)) => self.noted.insert(caller.key_id, today).await,
            _ => tracing::debug!(key_id = %caller.key_id, "last use not noted"),
        }
    }
}
