//! Rows of `provider_connections`, and what delivery reports about them. The ingress's role reads everything but the secrets.

use providers::{ConnectionSettings, ProviderKind};
use runtime::{Vault, VaultError};
use schemars::JsonSchema;
use schemas::new_id;
use serde::Serialize;
use sqlx::PgConnection;
use uuid::Uuid;

use crate::{
    pipeline::{
        RequestContext,
        error::ApiError,
        page::{OptionalTime, Time},
        resource,
    },
    public::hooks::{self, HOOK_PURPOSE},
};

/// A tenant's account with a provider, without its secret.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ProviderConnection {
    #[serde(rename = "connection_id")]
    id: Uuid,
    /// The provider.
    #[schemars(extend("enum" = ProviderKind::ALL.iter().map(|kind| kind.as_str()).collect::<Vec<_>>()))]
    provider: String,
    name: String,
    /// A disabled one carries nothing.
    #[schemars(extend("enum" = ["active", "disabled"]))]
    pub(super) status: String,
    /// Its place in the order, from 1; null: it carries no mail.
    #[schemars(range(min = 1))]
    position: Option<i64>,
    /// The AWS region, or `us` or `eu`.
    region: Option<String>,
    /// Mailgun: the domain the account sends for.
    domain: Option<String>,
    /// Postmark: the message stream.
    stream: Option<String>,
    /// SES: the configuration set.
    configuration_set: Option<String>,
    /// Most mails a second, of each delivery process.
    max_per_second: Option<u32>,
    /// Where the provider sends its events, below the address of this API; null: it sends none.
    hook_path: Option<String>,
    /// SES: the SNS topics whose events count.
    hook_topics: Vec<String>,
    /// Whether events can be verified. Those that cannot are refused.
    hook_is_checked: bool,
    health: ConnectionHealth,
    created_at: Time,
    updated_at: Time,
}

resource!(ProviderConnection, "connection", "connections", id);

/// How a connection serves, as the delivery process saw it that reported last.
#[derive(Debug, Serialize, JsonSchema)]
struct ConnectionHealth {
    /// `open`: it fails, and is tried again later.
    #[schemars(extend("enum" = ["closed", "open"]))]
    circuit: &'static str,
    /// When an open one is tried again.
    open_until: OptionalTime,
    /// The class of the last failure.
    last_error: Option<String>,
    last_error_at: OptionalTime,
    /// When it last served, to the minute.
    last_success_at: OptionalTime,
}

/// Connections of a tenant (`$1`), and which of them.
macro_rules! select {
    ($which:tt $(, $value:expr)+ $(,)?) => {
        sqlx::query!(
            r#"select c.id, c.provider, c.name, c.status,
                      case when c.is_default then 1 else c.fallback_rank + 1 end::bigint as position,
                      c.settings, c.has_hook_secret, c.hook_topics, c.created_at, c.updated_at,
                      case when h.open_until > now() then h.open_until end as open_until,
                      h.error_class as "error_class?", h.failed_at as "failed_at?", h.served_at as "served_at?"
               from provider_connections c
               left join connection_health h on h.tenant_id = c.tenant_id and h.connection_id = c.id
               where c.tenant_id = $1 "# + $which,
            $($value),+
        )
        .map(|row| {
            let settings: ConnectionSettings = serde_json::from_value(row.settings).unwrap_or_default();
            ProviderConnection {
                id: row.id,
                hook_path: hooks::path_of(&row.provider, row.id),
                hook_is_checked: row.has_hook_secret || !row.hook_topics.is_empty(),
                hook_topics: row.hook_topics,
                provider: row.provider,
                name: row.name,
                status: row.status,
                position: row.position,
                region: settings.region,
                domain: settings.domain,
                stream: settings.stream,
                configuration_set: settings.configuration_set,
                max_per_second: settings.max_per_second,
                health: ConnectionHealth {
                    circuit: if row.open_until.is_some() { "open" } else { "closed" },
                    open_until: row.open_until.into(),
                    last_error: row.error_class,
                    last_error_at: row.failed_at.into(),
                    last_success_at: row.served_at.into(),
                },
                created_at: row.created_at.into(),
                updated_at: row.updated_at.into(),
            }
        })
    };
}

/// Newest first, one page. Served by `provider_connections_newest`.
pub(super) async fn list(ctx: &mut RequestContext) -> sqlx::Result<Vec<ProviderConnection>> {
    let (tenant, page) = (ctx.tenant, ctx.page);
    select!(
        "and ($2::timestamptz is null or (c.created_at, c.id) < ($2, $3::uuid)) order by c.created_at desc, c.id desc limit $4",
        tenant,
        page.before,
        page.before_id,
        page.fetch(),
    )
    .fetch_all(ctx.db())
    .await
}

pub(super) async fn find(ctx: &mut RequestContext, id: Uuid) -> Result<ProviderConnection, ApiError> {
    let tenant = ctx.tenant;
    let found = select!("and c.id = $2", tenant, id).fetch_optional(ctx.db()).await?;
    found.ok_or_else(|| ApiError::not_found("connection"))
}

/// A connection that is about to be changed.
pub(super) struct LockedConnection {
    pub(super) kind: ProviderKind,
    pub(super) name: String,
    pub(super) status: String,
    pub(super) settings: ConnectionSettings,
    /// Whether it is in the order.
    pub(super) in_order: bool,
    /// Whether it carried mail so lately that its provider still reports what became of it.
    pub(super) served_lately: bool,
}

pub(super) async fn lock(ctx: &mut RequestContext, id: Uuid) -> Result<LockedConnection, ApiError> {
    let tenant = ctx.tenant;
    let row = sqlx::query!(
        r#"select provider, name, status, settings, is_default or fallback_rank is not null as "in_order!",
                  exists (
                      select from connection_health h
                      where h.tenant_id = $1 and h.connection_id = $2
                        and h.served_at > now() - make_interval(days => $3)) as "served_lately!"
           from provider_connections where tenant_id = $1 and id = $2 for no key update"#,
        tenant,
        id,
        super::LATE_EVENTS_DAYS,
    )
    .fetch_optional(ctx.db())
    .await?
    .ok_or_else(|| ApiError::not_found("connection"))?;
    Ok(LockedConnection {
        kind: ProviderKind::parse(&row.provider).unwrap_or(ProviderKind::Smtp),
        name: row.name,
        status: row.status,
        settings: serde_json::from_value(row.settings).unwrap_or_default(),
        in_order: row.in_order,
        served_lately: row.served_lately,
    })
}

/// A connection to be stored.
#[derive(Clone, Copy)]
pub struct NewConnection<'a> {
    /// Whose account it is.
    pub tenant: Uuid,
    /// To recognise it by.
    pub name: &'a str,
    /// The provider.
    pub kind: ProviderKind,
    /// The settings, checked.
    pub settings: &'a ConnectionSettings,
    /// The secret, sealed.
    pub sealed: &'a [u8],
}

/// Stores a connection, which carries no mail yet. Answers its id.
///
/// # Errors
/// 409 `connection_name_taken`, or when Postgres is away.
pub async fn insert(db: &mut PgConnection, new: NewConnection<'_>) -> Result<Uuid, ApiError> {
    let id = new_id();
    let settings = serde_json::to_value(new.settings).map_err(|error| ApiError::unexpected(&error))?;
    sqlx::query!(
        "insert into provider_connections (tenant_id, id, provider, name, settings, secret) values ($1, $2, $3, $4, $5, $6)",
        new.tenant,
        id,
        new.kind.as_str(),
        new.name,
        settings,
        new.sealed,
    )
    .execute(db)
    .await
    .map_err(name_taken)?;
    Ok(id)
}

/// A name is unique within the tenant.
pub(super) fn name_taken(error: sqlx::Error) -> ApiError {
    match error.as_database_error().is_some_and(sqlx::error::DatabaseError::is_unique_violation) {
        true => ApiError::conflict("connection_name_taken"),
        false => error.into(),
    }
}

/// How events of a connection are to be verified; `None`: as before.
pub struct SealedHook {
    /// The secrets, sealed; `Some(None)`: none any more.
    secret: Option<Option<Vec<u8>>>,
    topics: Option<Vec<String>>,
}

impl SealedHook {
    /// Seals the secrets that events of a tenant's connection are verified with; of no secrets, none is stored.
    ///
    /// # Errors
    /// When the system has no randomness.
    pub fn new(
        vault: &Vault,
        tenant: Uuid,
        secrets: Option<Vec<String>>,
        topics: Option<Vec<String>>,
    ) -> Result<Self, VaultError> {
        let sealed = |secrets: Vec<String>| vault.seal(tenant, HOOK_PURPOSE, secrets.join("\n").as_bytes());
        let secret = secrets.map(|secrets| (!secrets.is_empty()).then(|| sealed(secrets)).transpose()).transpose()?;
        Ok(Self { secret, topics })
    }
}

/// Sets how events of a connection are verified. The role cannot read the secret, so each column is set by itself.
pub async fn set_hook(db: &mut PgConnection, tenant: Uuid, id: Uuid, hook: SealedHook) -> sqlx::Result<()> {
    if let Some(secret) = hook.secret {
        sqlx::query!(
            "update provider_connections set hook_secret = $3 where tenant_id = $1 and id = $2",
            tenant,
            id,
            secret,
        )
        .execute(&mut *db)
        .await?;
    }
    if let Some(topics) = hook.topics {
        sqlx::query!(
            "update provider_connections set hook_topics = $3 where tenant_id = $1 and id = $2",
            tenant,
            id,
            &topics,
        )
        .execute(&mut *db)
        .await?;
    }
    Ok(())
}

/// Puts these connections, and no others, into the order: the first carries the tenant's mail, the others take over in their order.
pub async fn set_order(db: &mut PgConnection, tenant: Uuid, ids: &[Uuid]) -> sqlx::Result<()> {
    sqlx::query!(
        "update provider_connections set is_default = false, fallback_rank = null
         where tenant_id = $1 and (is_default or fallback_rank is not null)",
        tenant,
    )
    .execute(&mut *db)
    .await?;
    sqlx::query!(
        "update provider_connections c
         set is_default = u.place = 1, fallback_rank = nullif(u.place - 1, 0)::smallint
         from unnest($2::uuid[]) with ordinality as u (id, place)
         where c.tenant_id = $1 and c.id = u.id",
        tenant,
        ids,
    )
    .execute(db)
    .await
    .map(drop)
}

/// The connections in the order.
pub async fn order(db: &mut PgConnection, tenant: Uuid) -> sqlx::Result<Vec<Uuid>> {
    sqlx::query_scalar!(
        "select id from provider_connections where tenant_id = $1 and (is_default or fallback_rank is not null)
         order by fallback_rank nulls first",
        tenant,
    )
    .fetch_all(db)
    .await
}

/// Puts a connection to use, or out of it.
pub async fn set_status(db: &mut PgConnection, tenant: Uuid, id: Uuid, status: &str) -> sqlx::Result<()> {
    sqlx::query!(
        "update provider_connections set status = $3, updated_at = clock_timestamp() where tenant_id = $1 and id = $2",
        tenant,
        id,
        status,
    )
    .execute(db)
    .await
    .map(drop)
}

/// Removes a connection and its secret.
pub async fn remove(db: &mut PgConnection, tenant: Uuid, id: Uuid) -> sqlx::Result<()> {
    sqlx::query!("delete from provider_connections where tenant_id = $1 and id = $2", tenant, id)
        .execute(db)
        .await
        .map(drop)
}
