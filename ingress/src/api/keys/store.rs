//! Rows of `api_keys`. Only hashes are stored.

use std::{collections::BTreeSet, sync::Arc};

use chrono::{DateTime, NaiveDate, TimeDelta, Utc};
use schemars::JsonSchema;
use schemas::{Environment, key, new_id};
use serde::Serialize;
use sqlx::PgConnection;
use uuid::Uuid;

use crate::pipeline::{
    RequestContext,
    error::ApiError,
    page::{OptionalTime, Time},
    resource,
};

/// Characters at the end of a key that are not shown in lists: of the random ones, four are.
const HIDDEN_CHARS: usize = 45;

/// An API key, without the key itself.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct ApiKey {
    /// Its id: in lists, in the audit log.
    #[serde(rename = "key_id")]
    pub id: Uuid,
    /// Its first characters.
    pub prefix: String,
    /// What it is for.
    pub label: Option<String>,
    /// What it may do.
    pub scopes: Vec<String>,
    /// The UTC day of its last use.
    pub last_used_on: Option<NaiveDate>,
    /// When it ends, or has ended.
    pub expires_at: OptionalTime,
    /// When it was revoked.
    pub revoked_at: OptionalTime,
    created_at: Time,
}

resource!(ApiKey, "key", "keys", id);

/// A key to be stored.
#[derive(Clone, Copy)]
pub struct NewKey<'a> {
    /// The key. Its hash is stored.
    pub key: &'a str,
    /// The product it says it is.
    pub product: &'a str,
    /// The environment it works in.
    pub environment: Environment,
    /// What it may do.
    pub scopes: &'a [String],
    /// The only tenant it works for; `None`: all of the product's.
    pub tenant: Option<Uuid>,
    /// What it is for.
    pub label: Option<&'a str>,
    /// When it ends.
    pub expires_at: Option<DateTime<Utc>>,
    /// The lineage that it goes on; `None`: it is the first of its own.
    pub lineage: Option<Uuid>,
    /// The lineage with which it shares a rate limit; `None`: its own.
    pub rate_lineage: Option<Uuid>,
    /// The keys that asked for it: it ends when one of them is revoked.
    pub made_by: &'a [Uuid],
}

impl NewKey<'_> {
    /// Stores the hash, and answers the key's id.
    ///
    /// # Errors
    /// When Postgres is away, or there is no such tenant.
    pub async fn insert(&self, db: &mut PgConnection) -> sqlx::Result<Uuid> {
        let id = new_id();
        let prefix: String = self.key.chars().take(self.key.len().saturating_sub(HIDDEN_CHARS)).collect();
        let hash = key::hash(self.key);
        sqlx::query!(
            "insert into api_keys
                 (id, hash, prefix, product, environment, scopes, tenant_id, label, expires_at, lineage, rate_lineage,
                  made_by)
             values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)",
            id,
            hash.as_slice(),
            prefix,
            self.product,
            self.environment.as_str(),
            self.scopes,
            self.tenant,
            self.label,
            self.expires_at,
            self.lineage.unwrap_or(id),
            self.rate_lineage.unwrap_or(id),
            self.made_by,
        )
        .execute(db)
        .await?;
        Ok(id)
    }
}

/// A key that is neither revoked nor expired, locked until the transaction ends.
#[derive(Debug)]
pub struct LiveKey {
    /// Its id.
    pub id: Uuid,
    /// The product it was issued to.
    pub product: String,
    /// The environment it works in.
    pub environment: Environment,
    /// What it may do.
    pub scopes: Vec<String>,
    /// The only tenant it works for.
    pub tenant_id: Option<Uuid>,
    /// What it is for.
    pub label: Option<String>,
    /// When it ends.
    pub expires_at: Option<DateTime<Utc>>,
    lineage: Uuid,
    rate_lineage: Uuid,
    made_by: Vec<Uuid>,
}

/// Locks a key. `None` for one that is unknown, revoked or expired.
pub async fn lock_live(db: &mut PgConnection, id: Uuid) -> sqlx::Result<Option<LiveKey>> {
    sqlx::query_as!(
        LiveKey,
        r#"select id, product, environment as "environment: Environment", scopes, tenant_id, label, expires_at,
                  lineage, rate_lineage, made_by
           from api_keys where id = $1 and revoked_at is null and (expires_at is null or expires_at > now()) for update"#,
        id,
    )
    .fetch_optional(db)
    .await
}

/// The newest live key that was made by rotation after this one, from the same first key, and lives longer.
pub async fn successor(db: &mut PgConnection, replaced: &LiveKey) -> sqlx::Result<Option<Uuid>> {
    sqlx::query_scalar!(
        "select id from api_keys
         where lineage = $1 and id > $2 and revoked_at is null and $3::timestamptz is not null
           and (expires_at is null or expires_at > $3)
         order by id desc limit 1",
        replaced.lineage,
        replaced.id,
        replaced.expires_at,
    )
    .fetch_optional(db)
    .await
}

/// A key that replaces another.
pub struct Replacement {
    /// Its id.
    pub id: Uuid,
    /// The key. Its hash is stored.
    pub key: String,
    /// When it ends.
    pub expires_at: Option<DateTime<Utc>>,
    /// When the replaced key ends.
    pub replaced_until: DateTime<Utc>,
}

/// The key that calls.
pub struct CallingKey {
    /// Its id.
    pub id: Uuid,
    /// False: it is revoked or has expired.
    pub is_live: bool,
    /// When it ends.
    pub expires_at: Option<DateTime<Utc>>,
}

/// Makes a key with the same scopes and label, and ends the replaced one after `overlap`, or when it ends anyway. The new key ends when the
/// replaced one did, or with the key that asked for it if that is earlier. What the replaced key made belongs to the new key.
pub async fn replace(
    db: &mut PgConnection,
    replaced: &LiveKey,
    asked_by: Option<&CallingKey>,
    overlap: TimeDelta,
) -> sqlx::Result<Replacement> {
    let text = key::generate(&replaced.product, replaced.environment);
    let end_max = asked_by.and_then(|key| key.expires_at);
    let expires_at = [replaced.expires_at, end_max].into_iter().flatten().min();
    // A key that replaces itself is followed by the new one, which must outlive its revocation. Any other one that asks is a maker.
    let asked_by = asked_by.map(|key| key.id).filter(|id| *id != replaced.id);
    let made_by: BTreeSet<Uuid> = replaced.made_by.iter().copied().chain(asked_by).collect();
    let made_by: Vec<Uuid> = made_by.into_iter().collect();
    let new = NewKey {
        key: &text,
        product: &replaced.product,
        environment: replaced.environment,
        scopes: &replaced.scopes,
        tenant: replaced.tenant_id,
        label: replaced.label.as_deref(),
        expires_at,
        lineage: Some(replaced.lineage),
        rate_lineage: Some(replaced.rate_lineage),
        made_by: &made_by,
    };
    let id = new.insert(&mut *db).await?;
    sqlx::query!(
        "update api_keys set made_by = array_replace(made_by, $1::uuid, $2::uuid) where made_by @> array[$1::uuid]",
        replaced.id,
        id,
    )
    .execute(&mut *db)
    .await?;
    let replaced_until = sqlx::query_scalar!(
        r#"update api_keys set expires_at = least(expires_at, now() + make_interval(secs => $2)) where id = $1
           returning expires_at as "until!""#,
        replaced.id,
        overlap.num_seconds() as f64,
    )
    .fetch_one(db)
    .await?;
    Ok(Replacement { id, key: text, expires_at, replaced_until })
}

/// A key that a revocation has ended.
pub struct EndedKey {
    /// Its id.
    pub id: Uuid,
    /// The only tenant it worked for.
    pub tenant_id: Option<Uuid>,
    /// It had not expired before.
    pub was_live: bool,
}

/// Revokes a key and the keys that it made, which these made, and so on. Answers all that have ended by it, the key itself first; none if
/// there is no such key, or it was revoked before. Those that had expired are followed, and not answered.
pub async fn revoke(db: &mut PgConnection, id: Uuid) -> sqlx::Result<Vec<EndedKey>> {
    let (mut ended, mut ids) = (Vec::new(), Vec::<Uuid>::new());
    loop {
        // A key is made under a lock of its maker's row. So each statement waits for what the keys that it ends are making, and the next
        // one sees it.
        let more = sqlx::query_as!(
            EndedKey,
            "update api_keys set revoked_at = now() where revoked_at is null and (id = $1 or made_by && $2)
             returning id, tenant_id, (expires_at is null or expires_at > now()) as \"was_live!\"",
            id,
            ids.as_slice(),
        )
        .fetch_all(&mut *db)
        .await?;
        if more.is_empty() {
            ended.retain(|key: &EndedKey| key.was_live || key.id == id);
            return Ok(ended);
        }
        ids.extend(more.iter().map(|key| key.id));
        ended.extend(more);
    }
}

/// Keys of a tenant (`$1`), product (`$2`) and environment (`$3`), and which of them. Served by `api_keys_newest`.
macro_rules! select {
    ($which:tt, $tenant:expr, $caller:expr $(, $value:expr)+ $(,)?) => {
        sqlx::query_as!(
            ApiKey,
            "select id, prefix, label, scopes, last_used_on, expires_at, revoked_at, created_at
             from api_keys where tenant_id = $1 and product = $2 and environment = $3 "
                + $which,
            $tenant,
            $caller.product,
            $caller.environment.as_str(),
            $($value),+
        )
    };
}

/// Newest first, one page.
pub(super) async fn list(ctx: &mut RequestContext) -> sqlx::Result<Vec<ApiKey>> {
    let (tenant, caller, page) = (ctx.tenant, Arc::clone(&ctx.caller), ctx.page);
    select!(
        "and ($4::timestamptz is null or (created_at, id) < ($4, $5::uuid)) order by created_at desc, id desc limit $6",
        tenant,
        caller,
        page.before,
        page.before_id,
        page.fetch(),
    )
    .fetch_all(ctx.db())
    .await
}

/// A key of the calling product for this tenant.
pub(super) async fn find(ctx: &mut RequestContext, id: Uuid) -> Result<ApiKey, ApiError> {
    let (tenant, caller) = (ctx.tenant, Arc::clone(&ctx.caller));
    let found = select!("and id = $4", tenant, caller, id).fetch_optional(ctx.db()).await?;
    found.ok_or_else(|| ApiError::not_found("key"))
}
