//! `/v1/connections`: a tenant's own accounts with mail providers, the order in which they carry its mail, and how each serves.
//!
//! A secret is sealed by the vault when it is stored, be it what mail is sent with or what the provider's events are verified with, and the ingress's role cannot read it again. A caller chooses among providers
//! whose hosts are known; SMTP relays and other hosts are the operator's (`postrider provider`, which uses the same [`store`]).

mod check;
mod input;
mod store;

use providers::{Connection, PROVIDER_PURPOSE};
use schemars::JsonSchema;
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};
use serde_json::json;
use uuid::Uuid;

pub use self::store::{
    NewConnection, ProviderConnection, SealedHook, insert, order, remove, set_hook, set_order, set_status,
};
use self::{
    input::{ChangeConnection, CreateConnection, WantedHook},
    store::find,
};
use crate::pipeline::{
    ApiReply, Doc, Id, NoFields, NoParameters, RequestContext, Routes, error::ApiError, read, read_page, tenant, write,
};

/// Connections a tenant may have.
const CONNECTIONS_MAX: i64 = 20;
/// Connections that may carry a tenant's mail: the first and its fallbacks.
const ORDER_MAX: usize = 5;
/// How long a provider reports what became of mail: events of a connection that is removed are lost.
const LATE_EVENTS_DAYS: i32 = 7;

pub(crate) fn routes() -> Routes {
    Routes::new()
        .get(
            "/v1/connections",
            read_page("connections:read", list),
            Doc::new("listConnections", "List provider connections", "Newest first, with the health of each.")
                .page::<ProviderConnection>("A page of connections, without secrets"),
        )
        .post(
            "/v1/connections",
            write("connections:write", create),
            Doc::new(
                "createConnection",
                "Add a provider connection",
                "It carries no mail before it is put into the order. The secret is kept encrypted and never shown. At \
                 most 20 for each tenant; SMTP relays are added by the operator.",
            )
            .example(json!({"provider": "postmark", "name": "Postmark", "secret": "server-token", "stream": "broadcast"}))
            .answer::<ConnectionCreated>(201, "Added")
            .leads_to("connection_id", &["getConnection", "updateConnection", "checkConnection", "deleteConnection"])
            .refuses(409, &["connection_limit_reached", "connection_name_taken"]),
        )
        .post(
            "/v1/connections/order",
            write("connections:write", choose_order),
            Doc::new(
                "orderConnections",
                "Choose which connections carry the mail",
                "The first carries the tenant's mail. While its circuit is open, new attempts take the next one whose \
                 circuit is closed. Connections that are left out carry nothing; with none, the platform's relay does. \
                 With more than one, mail whose outcome is unknown is never tried again, whatever its kind.",
            )
            .example(json!({"connection_ids": []}))
            .answer::<ConnectionOrder>(200, "The order")
            .refuses(404, &["connection_not_found"])
            .refuses(409, &["connection_disabled"]),
        )
        .get(
            "/v1/connections/{id}",
            read("connections:read", show),
            Doc::new("getConnection", "Read a provider connection", "With its health, without its secret.")
                .single::<ProviderConnection>("The connection"),
        )
        .patch(
            "/v1/connections/{id}",
            write("connections:write", change),
            Doc::new(
                "updateConnection",
                "Change a provider connection",
                "What is left out stays; null clears. Takes effect within five seconds. A disabled one carries nothing.",
            )
            .single::<ProviderConnection>("The connection")
            .example(json!({"name": "Main"}))
            .refuses(409, &["connection_name_taken", "connection_of_operator"]),
        )
        .delete(
            "/v1/connections/{id}",
            write("connections:write", delete),
            Doc::new(
                "deleteConnection",
                "Remove a provider connection",
                "With its secret. One that is in the order, or has sent mail within seven days, stays: its provider still \
                 reports bounces and complaints.",
            )
                .answer::<ConnectionRemoved>(200, "Removed")
                .refuses(404, &["connection_not_found"])
                .refuses(409, &["connection_in_use"]),
        )
        .merge(check::routes())
}

async fn list(ctx: &mut RequestContext, _: NoParameters) -> Result<ApiReply, ApiError> {
    let connections = store::list(ctx).await?;
    ApiReply::page(ctx.page, connections)
}

async fn show(ctx: &mut RequestContext, _: NoParameters) -> Result<ApiReply, ApiError> {
    let id = ctx.id("connection")?;
    ApiReply::single(find(ctx, id).await?)
}

#[derive(Debug, Serialize, JsonSchema)]
struct ConnectionCreated {
    connection_id: Uuid,
}

async fn create(ctx: &mut RequestContext, body: CreateConnection) -> Result<ApiReply, ApiError> {
    let tenant = ctx.tenant;
    let (name, connection, hook) = body.checked()?;
    // The tenant's row is locked, so that connections are counted and made one after the other.
    tenant::lock_row(ctx.db(), tenant).await?;
    let count =
        sqlx::query_scalar!(r#"select count(*) as "count!" from provider_connections where tenant_id = $1"#, tenant);
    if count.fetch_one(ctx.db()).await? >= CONNECTIONS_MAX {
        return Err(ApiError::conflict("connection_limit_reached")
            .detail(format!("at most {CONNECTIONS_MAX} connections may be kept")));
    }
    let Connection { kind, settings, secret } = &connection;
    let sealed = seal(ctx, secret)?;
    let new = NewConnection { tenant, name: &name, kind: *kind, settings, sealed: &sealed };
    let id = insert(ctx.db(), new).await?;
    set_hook_of(ctx, id, hook).await?;
    ctx.audit("provider.add", &id.to_string(), json!({"provider": kind.as_str()})).await?;
    ApiReply::created(&ConnectionCreated { connection_id: id })
}

fn seal(ctx: &RequestContext, secret: &SecretString) -> Result<Vec<u8>, ApiError> {
    let secret = secret.expose_secret().as_bytes();
    ctx.ingress.vault.seal(ctx.tenant, PROVIDER_PURPOSE, secret).map_err(|error| ApiError::unexpected(&error))
}

/// Sets how events of a connection are verified.
async fn set_hook_of(ctx: &mut RequestContext, id: Uuid, hook: WantedHook) -> Result<(), ApiError> {
    let tenant = ctx.tenant;
    let sealed = SealedHook::new(&ctx.ingress.vault, tenant, hook.secrets, hook.topics)
        .map_err(|error| ApiError::unexpected(&error))?;
    Ok(set_hook(ctx.db(), tenant, id, sealed).await?)
}

async fn change(ctx: &mut RequestContext, body: ChangeConnection) -> Result<ApiReply, ApiError> {
    let (tenant, id) = (ctx.tenant, ctx.id("connection")?);
    let before = store::lock(ctx, id).await?;
    let fields = body.fields();
    let wanted = body.applied_to(&before)?;
    let sealed = wanted.secret.as_ref().map(|secret| seal(ctx, secret)).transpose()?;
    let settings = serde_json::to_value(&wanted.settings).map_err(|error| ApiError::unexpected(&error))?;
    sqlx::query!(
        "update provider_connections set name = $3, status = $4, settings = $5, updated_at = clock_timestamp()
         where tenant_id = $1 and id = $2",
        tenant,
        id,
        wanted.name,
        wanted.status,
        settings,
    )
    .execute(ctx.db())
    .await
    .map_err(store::name_taken)?;
    // The role cannot read the secret there is, so it is set by itself.
    if let Some(sealed) = sealed {
        sqlx::query!(
            "update provider_connections set secret = $3 where tenant_id = $1 and id = $2",
            tenant,
            id,
            sealed,
        )
        .execute(ctx.db())
        .await?;
    }
    set_hook_of(ctx, id, wanted.hook).await?;
    ctx.audit_changed("provider.change", &id.to_string(), fields).await?;
    ApiReply::single(find(ctx, id).await?)
}

#[derive(Debug, Serialize, JsonSchema)]
struct ConnectionRemoved {
    connection_id: Uuid,
    removed: bool,
}

async fn delete(ctx: &mut RequestContext, _: NoFields) -> Result<ApiReply, ApiError> {
    let (tenant, id) = (ctx.tenant, ctx.id("connection")?);
    let row = store::lock(ctx, id).await?;
    let reason = match (row.in_order, row.served_lately) {
        (true, _) => Some("it is in the order: take it out of the order first".to_owned()),
        (false, true) => Some(format!(
            "it sent mail within {LATE_EVENTS_DAYS} days, and its provider still reports bounces of it: take it out of the order, and \
             remove it later"
        )),
        (false, false) => None,
    };
    if let Some(reason) = reason {
        return Err(ApiError::conflict("connection_in_use").detail(reason));
    }
    remove(ctx.db(), tenant, id).await?;
    ctx.audit("provider.remove", &id.to_string(), json!({})).await?;
    ApiReply::ok(&ConnectionRemoved { connection_id: id, removed: true })
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct SetOrder {
    /// The connections that carry the tenant's mail: the first, then its fallbacks in their order.
    #[schemars(length(max = ORDER_MAX), extend("uniqueItems" = true))]
    connection_ids: Vec<Id>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct ConnectionOrder {
    connection_ids: Vec<Uuid>,
}

async fn choose_order(ctx: &mut RequestContext, body: SetOrder) -> Result<ApiReply, ApiError> {
    let ids: Vec<Uuid> = body.connection_ids.into_iter().map(|Id(id)| id).collect();
    if ids.len() > ORDER_MAX {
        return Err(ApiError::invalid("connection_ids", "too_many", format!("may have at most {ORDER_MAX}")));
    }
    if ids.iter().enumerate().any(|(place, id)| ids[..place].contains(id)) {
        return Err(ApiError::invalid("connection_ids", "duplicate", "may name a connection once"));
    }
    let tenant = ctx.tenant;
    sqlx::query!("select id from provider_connections where tenant_id = $1 order by id for no key update", tenant)
        .fetch_all(ctx.db())
        .await?;
    for id in &ids {
        if find(ctx, *id).await?.status != "active" {
            return Err(ApiError::conflict("connection_disabled").detail(format!("{id} is disabled")));
        }
    }
    set_order(ctx.db(), tenant, &ids).await?;
    ctx.audit("provider.order", &tenant.to_string(), json!({"connections": ids})).await?;
    ApiReply::ok(&ConnectionOrder { connection_ids: ids })
}
