//! `/v1/tenant`: what a tenant chooses for all its mail and reports. The operator's command `postrider tenant set` changes the same
//! fields by the same rules.

use chrono::{DateTime, Utc};
use schemars::JsonSchema;
use schemas::Environment;
use serde::{Deserialize, Serialize};
use serde_json::json;
use sqlx::PgConnection;
use uuid::Uuid;

use crate::{
    api::{contacts::is_timezone, senders::store as senders},
    pipeline::{
        ApiReply, Faults, Id, NoParameters, Patch, RequestContext, error::ApiError, page::as_time, types::PostalAddress,
    },
};

/// A tenant's profile.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(rename = "Profile")]
pub struct TenantProfile {
    /// The organisation's name.
    pub org_name: Option<String>,
    /// Where `notify_owner` steps write to.
    pub owner_email: String,
    /// A suspended tenant sends nothing.
    #[schemars(extend("enum" = ["active", "suspended"]))]
    pub status: String,
    /// An IANA time zone: business days and the days of reports are its days.
    pub timezone: String,
    /// On marketing mail whose sender has no address of its own.
    pub physical_address: Option<String>,
    /// The sender of mail that names none.
    pub default_sender_id: Option<Uuid>,
    /// The domain whose tracking host carries links and pixel, while its CNAME is verified. Null: that of the sending domain.
    pub tracking_domain_id: Option<Uuid>,
    #[serde(serialize_with = "as_time")]
    created_at: DateTime<Utc>,
    #[serde(serialize_with = "as_time")]
    updated_at: DateTime<Utc>,
}

/// A tenant and its profile.
#[derive(Debug, Serialize, JsonSchema)]
struct Tenant {
    engine_tenant_id: Uuid,
    environment: Environment,
    #[serde(flatten)]
    profile: TenantProfile,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct TenantAnswer {
    tenant: Tenant,
}

impl TenantAnswer {
    fn new(ctx: &RequestContext, profile: TenantProfile) -> Self {
        let tenant = Tenant { engine_tenant_id: ctx.tenant, environment: ctx.caller.environment, profile };
        Self { tenant }
    }
}

/// What is to be changed. What is left out stays.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ProfileChange {
    /// An IANA time zone, such as Europe/Paris.
    pub timezone: Option<String>,
    /// The postal address; null clears.
    #[schemars(with = "Option<PostalAddress>")]
    pub physical_address: Patch<String>,
    /// An active sender.
    pub default_sender_id: Option<Id>,
    /// A domain of the tenant; null clears.
    pub tracking_domain_id: Patch<Id>,
}

impl ProfileChange {
    /// The names of the fields that are to be changed: for the audit log.
    #[must_use]
    pub fn fields(&self) -> Vec<&'static str> {
        let given = [
            ("timezone", self.timezone.is_some()),
            ("physical_address", self.physical_address.is_given()),
            ("default_sender_id", self.default_sender_id.is_some()),
            ("tracking_domain_id", self.tracking_domain_id.is_given()),
        ];
        given.into_iter().filter(|(_, given)| *given).map(|(name, _)| name).collect()
    }
}

pub(super) async fn show(ctx: &mut RequestContext, _: NoParameters) -> Result<ApiReply, ApiError> {
    let tenant = ctx.tenant;
    let profile = load(ctx.db(), tenant).await?;
    ApiReply::ok(&TenantAnswer::new(ctx, profile))
}

pub(super) async fn update(ctx: &mut RequestContext, body: ProfileChange) -> Result<ApiReply, ApiError> {
    let tenant = ctx.tenant;
    let fields = body.fields();
    let profile = change(ctx.db(), tenant, body).await?;
    if !fields.is_empty() {
        ctx.audit("tenant.changed", &tenant.to_string(), json!({"fields": fields})).await?;
    }
    ApiReply::ok(&TenantAnswer::new(ctx, profile))
}

/// The profile of a tenant.
///
/// # Errors
/// 404 `tenant_not_found`.
pub async fn load(db: &mut PgConnection, tenant: Uuid) -> Result<TenantProfile, ApiError> {
    sqlx::query_as!(
        TenantProfile,
        r#"select t.org_name, t.owner_email, t.status, t.timezone, t.physical_address, t.tracking_domain_id, t.created_at,
                  t.updated_at,
                  (select s.id from senders s where s.tenant_id = t.id and s.is_default) as default_sender_id
           from tenants t where t.id = $1"#,
        tenant,
    )
    .fetch_optional(db)
    .await?
    .ok_or_else(|| ApiError::not_found("tenant"))
}

/// Changes the profile of a tenant and answers it.
///
/// # Errors
/// 400 for a time zone or an address that is none, 404 for a sender or domain that is not the tenant's, 409 `sender_disabled`,
/// 422 `physical_address_required` while a sender relies on the address.
pub async fn change(db: &mut PgConnection, tenant: Uuid, change: ProfileChange) -> Result<TenantProfile, ApiError> {
    let address = check(&mut *db, &change).await?;
    // Senders are made and changed under the same lock.
    senders::lock_profile_address(&mut *db, tenant).await?;
    let clears_address = matches!(address, Some(None));
    if clears_address && senders::one_relies_on_profile_address(&mut *db, tenant).await? {
        return Err(ApiError::unprocessable("physical_address_required")
            .detail("a sender has no address of its own and relies on this one"));
    }
    if let Some(Id(sender)) = change.default_sender_id {
        let row = senders::get(&mut *db, tenant, sender).await?.ok_or_else(|| ApiError::not_found("sender"))?;
        senders::make_default(&mut *db, tenant, &row).await?;
    }
    let tracking = change.tracking_domain_id.into_option().map(|domain| domain.map(|Id(id)| id));
    sqlx::query!(
        "update tenants set
             timezone = coalesce($2, timezone),
             physical_address = case when $3 then $4 else physical_address end,
             tracking_domain_id = case when $5 then $6::uuid else tracking_domain_id end,
             updated_at = now()
         where id = $1",
        tenant,
        change.timezone,
        address.is_some(),
        address.flatten(),
        tracking.is_some(),
        tracking.flatten(),
    )
    .execute(&mut *db)
    .await
    .map_err(|error| match error.as_database_error() {
        Some(refused) if refused.is_foreign_key_violation() => ApiError::not_found("domain"),
        _ => error.into(),
    })?;
    load(db, tenant).await
}

/// Checks the texts; answers the postal address if one is given, trimmed.
async fn check(db: &mut PgConnection, change: &ProfileChange) -> Result<Option<Option<String>>, ApiError> {
    let mut faults = Faults::default();
    if let Some(name) = &change.timezone {
        faults.require(
            is_timezone(name) && known_to_postgres(db, name).await?,
            "timezone",
            "unknown",
            "must be an IANA time zone such as Europe/Paris",
        );
    }
    let address = change.physical_address.clone().into_option();
    let address = address.map(|text| faults.postal_address("physical_address", text));
    faults.finish()?;
    Ok(address)
}

/// Reports are cut into days by Postgres, whose list of zones may be older than ours.
async fn known_to_postgres(db: &mut PgConnection, zone: &str) -> sqlx::Result<bool> {
    sqlx::query_scalar!(r#"select exists (select from pg_timezone_names where name = $1) as "known!""#, zone)
        .fetch_one(db)
        .await
}
