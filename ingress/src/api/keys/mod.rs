//! `/v1/keys`: the API keys that work for one tenant. A key makes keys for its tenant only, with no scope it lacks and no longer life
//! than its own, and they are revoked with it; keys for all tenants of a product are the operator's (`postrider key`), which uses the
//! same [`store`].

mod store;

use std::sync::Arc;

use chrono::{TimeDelta, Utc};
use schemars::JsonSchema;
use schemas::{key, scope};
use serde::{Deserialize, Serialize};
use serde_json::json;
use uuid::Uuid;

use self::store::find;
pub use self::store::{
    ApiKey, CallingKey, EndedKey, LiveKey, NewKey, Replacement, lock_live, replace, revoke, successor,
};
use crate::pipeline::{
    ApiReply, Doc, Faults, GivenTime, NoFields, NoParameters, RequestContext, Routes, auth::invalid_api_key,
    error::ApiError, page::OptionalTime, read, read_page, tenant, types::Name, validate::NAME_MAX, write,
};

/// Keys of one product for one tenant that are neither revoked nor expired.
const LIVE_MAX: i64 = 100;
/// How long a replaced key goes on, in hours, unless the caller says otherwise.
pub const OVERLAP_HOURS: u32 = 24;
/// The longest time a replaced key goes on: a week.
pub const OVERLAP_HOURS_MAX: u32 = 168;

pub(crate) fn routes() -> Routes {
    Routes::new()
        .get(
            "/v1/keys",
            read_page("keys:read", list),
            Doc::new("listKeys", "List API keys", "Newest first: those of the calling product that work for this tenant only.")
                .page::<ApiKey>("A page of keys, without the keys themselves"),
        )
        .post(
            "/v1/keys",
            write("keys:write", create),
            Doc::new(
                "createKey",
                "Make an API key",
                "For this tenant. It gets no scope that the calling key lacks, ends no later, is revoked with it and shares \
                 its rate limit. When the calling key is replaced, it belongs to the key that replaces it. The \
                 answer is the only one that shows the key. At most 100 live ones for each tenant and product.",
            )
            .example(json!({"label": "Reports", "scopes": ["analytics:read"]}))
            .answer::<KeyCreated>(201, "Made")
            .leads_to("key_id", &["getKey", "rotateKey", "deleteKey"])
            .refuses(403, &["scope_not_held"])
            .refuses(409, &["key_limit_reached"]),
        )
        .get(
            "/v1/keys/{id}",
            read("keys:read", show),
            Doc::new("getKey", "Read an API key", "Without the key itself.").single::<ApiKey>("The key"),
        )
        .post(
            "/v1/keys/{id}/rotate",
            write("keys:write", rotate),
            Doc::new(
                "rotateKey",
                "Replace an API key",
                "The new key has the scopes and the label of the replaced one, which goes on for `overlap_hours`. It ends when \
                 the replaced one would have, and no later than the calling key, which must have all of these scopes. The \
                 keys that the replaced one made belong to the new one and go on. Whether the replaced key ends or is \
                 revoked, the new one stays: of a key that was stolen, revoke both. An \
                 `Idempotency-Key` used with the replaced key counts as used with the new one.",
            )
            .example(json!({"overlap_hours": 2}))
            .answer::<KeyReplaced>(200, "Replaced")
            .refuses(403, &["scope_not_held"])
            .refuses(404, &["key_not_found"])
            .refuses(409, &["key_not_live", "key_limit_reached"]),
        )
        .delete(
            "/v1/keys/{id}",
            write("keys:write", remove),
            Doc::new(
                "deleteKey",
                "Revoke an API key",
                "With the keys that it made, and those that these made. Within five seconds no process accepts them any more.",
            )
            .answer::<KeyRevoked>(200, "Revoked")
            .refuses(404, &["key_not_found"]),
        )
}

async fn list(ctx: &mut RequestContext, _: NoParameters) -> Result<ApiReply, ApiError> {
    let keys = store::list(ctx).await?;
    ApiReply::page(ctx.page, keys)
}

async fn show(ctx: &mut RequestContext, _: NoParameters) -> Result<ApiReply, ApiError> {
    let id = ctx.id("key")?;
    ApiReply::single(find(ctx, id).await?)
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct CreateKey {
    /// What the key is for.
    #[schemars(with = "Name<NAME_MAX>")]
    label: Option<String>,
    /// What it may do: scopes that the calling key has.
    #[schemars(with = "Vec<GrantableScope>", length(min = 1, max = scope::ALL.len()))]
    scopes: Option<Vec<String>>,
    /// When it ends. Left out: when the calling key does.
    expires_at: Option<GivenTime>,
}

/// A scope that a product's key can have.
#[derive(JsonSchema)]
#[schemars(extend("enum" = scope::ALL))]
#[expect(dead_code, reason = "described, not built")]
struct GrantableScope(String);

#[derive(Serialize, JsonSchema)]
struct KeyCreated {
    key_id: Uuid,
    /// The key. It is not shown again.
    key: String,
    expires_at: OptionalTime,
}

/// The answer is the only one that shows the key.
async fn create(ctx: &mut RequestContext, body: CreateKey) -> Result<ApiReply, ApiError> {
    let caller = Arc::clone(&ctx.caller);
    let calling_key = calling_key(ctx).await?;
    let ends = calling_key.as_ref().and_then(|key| key.expires_at);
    let mut faults = Faults::default();
    let label = faults.name("label", body.label);
    let mut scopes = faults.required("scopes", body.scopes).unwrap_or_default();
    scopes.sort_unstable();
    scopes.dedup();
    faults.require(!scopes.is_empty(), "scopes", "empty", "must not be empty");
    if let Some(unknown) = scopes.iter().find(|name| !scope::ALL.contains(&name.as_str())) {
        faults.add("scopes", "unknown", format!("{unknown:.40} is no scope that a key made here can have"));
    }
    let wanted = body.expires_at.map(|at| at.0);
    if let Some(wanted) = wanted {
        faults.require(wanted > Utc::now(), "expires_at", "in_the_past", "must be in the future");
        let outlives = ends.is_some_and(|ends| wanted > ends);
        faults.require(!outlives, "expires_at", "too_late", "must not be later than the end of the calling key");
    }
    faults.finish()?;
    check_scopes(ctx, &scopes)?;
    check_limit(ctx).await?;
    let text = key::generate(&caller.product, caller.environment);
    let expires_at = wanted.or(ends);
    let new = NewKey {
        key: &text,
        product: &caller.product,
        environment: caller.environment,
        scopes: &scopes,
        tenant: Some(ctx.tenant),
        label: Some(&label),
        expires_at,
        lineage: None,
        // A product on the bus has no rate limit to share: its tenants' keys would share one with each other.
        rate_lineage: calling_key.as_ref().map(|_| caller.rate_lineage),
        made_by: calling_key.as_ref().map(|key| std::slice::from_ref(&key.id)).unwrap_or_default(),
    };
    let key_id = new.insert(ctx.db()).await?;
    ctx.audit("key.issue", &key_id.to_string(), json!({"scopes": scopes})).await?;
    Ok(ApiReply::created(&KeyCreated { key_id, key: text, expires_at: expires_at.into() })?.with_secret())
}

/// The calling key as it is now: no key that it makes ends later. Read again, because the caller was looked up some seconds ago, and
/// under locks: the tenant's row, so that its keys are made one after the other, then the key, so that no other request replaces or revokes
/// it meanwhile.
/// `None` for a product on the bus, which has no key.
async fn calling_key(ctx: &mut RequestContext) -> Result<Option<CallingKey>, ApiError> {
    let (tenant, key) = (ctx.tenant, ctx.caller.key_id);
    tenant::lock_row(ctx.db(), tenant).await?;
    let found = sqlx::query_as!(
        CallingKey,
        r#"select id, expires_at, revoked_at is null and (expires_at is null or expires_at > clock_timestamp()) as "is_live!"
           from api_keys where id = $1 for share"#,
        key,
    )
    .fetch_optional(ctx.db())
    .await?;
    match found {
        Some(key) if !key.is_live => Err(invalid_api_key()),
        key => Ok(key),
    }
}

/// A key grants no scope that it lacks.
fn check_scopes(ctx: &RequestContext, scopes: &[String]) -> Result<(), ApiError> {
    match scopes.iter().find(|scope| !ctx.caller.may(scope)) {
        Some(lacking) => Err(ApiError::forbidden("scope_not_held").detail(format!("the calling key lacks {lacking}"))),
        None => Ok(()),
    }
}

/// Refuses one more live key over the limit. The count is exact: the tenant's row is locked.
async fn check_limit(ctx: &mut RequestContext) -> Result<(), ApiError> {
    let (tenant, caller) = (ctx.tenant, Arc::clone(&ctx.caller));
    let live = sqlx::query_scalar!(
        r#"select count(*) as "live!" from api_keys
           where tenant_id = $1 and product = $2 and environment = $3
             and revoked_at is null and (expires_at is null or expires_at > now())"#,
        tenant,
        caller.product,
        caller.environment.as_str(),
    );
    if live.fetch_one(ctx.db()).await? >= LIVE_MAX {
        return Err(ApiError::conflict("key_limit_reached").detail(format!("at most {LIVE_MAX} keys may be live")));
    }
    Ok(())
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct RotateKey {
    /// How many hours the replaced key goes on; 0: it ends at once.
    #[schemars(range(max = OVERLAP_HOURS_MAX), extend("default" = OVERLAP_HOURS))]
    overlap_hours: Option<u32>,
}

#[derive(Serialize, JsonSchema)]
struct KeyReplaced {
    key_id: Uuid,
    /// The new key. It is not shown again.
    key: String,
    /// When the new key ends. That of a key which was replaced before ends with it.
    expires_at: OptionalTime,
    replaced_key_id: Uuid,
    /// When the replaced key ends.
    replaced_key_until: OptionalTime,
}

async fn rotate(ctx: &mut RequestContext, body: RotateKey) -> Result<ApiReply, ApiError> {
    let hours = body.overlap_hours.unwrap_or(OVERLAP_HOURS);
    let mut faults = Faults::default();
    faults.within("overlap_hours", hours, 0..=OVERLAP_HOURS_MAX);
    faults.finish()?;
    let id = ctx.id("key")?;
    find(ctx, id).await?;
    let calling_key = calling_key(ctx).await?;
    check_limit(ctx).await?;
    let replaced = lock_live(ctx.db(), id).await?.ok_or_else(|| {
        ApiError::conflict("key_not_live").detail("the key is revoked or has expired: make a new one")
    })?;
    check_scopes(ctx, &replaced.scopes)?;
    let new = replace(ctx.db(), &replaced, calling_key.as_ref(), TimeDelta::hours(i64::from(hours))).await?;
    ctx.audit("key.rotate", &id.to_string(), json!({"replaced_by": new.id, "overlap_hours": hours})).await?;
    let answer = KeyReplaced {
        key_id: new.id,
        key: new.key,
        expires_at: new.expires_at.into(),
        replaced_key_id: id,
        replaced_key_until: Some(new.replaced_until).into(),
    };
    Ok(ApiReply::ok(&answer)?.with_secret())
}

#[derive(Debug, Serialize, JsonSchema)]
struct KeyRevoked {
    key_id: Uuid,
    /// False: it was revoked before.
    revoked: bool,
}

async fn remove(ctx: &mut RequestContext, _: NoFields) -> Result<ApiReply, ApiError> {
    let id = ctx.id("key")?;
    find(ctx, id).await?;
    let tenant = ctx.tenant;
    // As `calling_key` does: keys of one tenant change one after the other, so that no two requests wait for each other's keys.
    tenant::lock_row(ctx.db(), tenant).await?;
    let ended = revoke(ctx.db(), id).await?;
    for key in &ended {
        ctx.audit("key.revoke", &key.id.to_string(), json!({})).await?;
    }
    ApiReply::ok(&KeyRevoked { key_id: id, revoked: !ended.is_empty() })
}
