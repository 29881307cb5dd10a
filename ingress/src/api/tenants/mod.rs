//! Tenants: `POST /v1/tenants/link`, by which a product says which of its tenants it will speak for, and `/v1/tenant`, a tenant's
//! own profile.

mod confirmation;
mod pages;
mod profile;
mod quiet;

use std::sync::Arc;

use schemars::JsonSchema;
use schemas::{Environment, new_id};
use serde::{Deserialize, Serialize};
use serde_json::json;
use sqlx::PgConnection;
use uuid::Uuid;

use crate::pipeline::{
    ApiReply, Doc, Faults, PRODUCT_TENANT_ID_PATTERN, RequestContext, Routes, error::ApiError, is_product_tenant_id,
    page::SingleResource, provision, read, types::Email, validate::NAME_MAX, write,
};

pub use confirmation::{ConfirmationChange, TenantConfirmation};
pub use pages::{PageBranding, PageChange};
pub use profile::{AttributionChange, ProfileChange, TenantProfile, change, load};

pub(crate) fn routes() -> Routes {
    Routes::new()
        .post(
            "/v1/tenants/link",
            provision("tenants:provision", link),
            Doc::new(
                "linkTenant",
                "Link a tenant",
                "Finds or creates the engine's tenant for a tenant of the calling product, and brings names and \
                 owner up to date. Idempotent on product, environment and `product_tenant_id`.",
            )
            .example(json!({"product_tenant_id": "tenant-1", "email": "owner@acme.example", "org_name": "Acme"}))
            .answer::<TenantLinked>(200, "Linked"),
        )
        .get(
            "/v1/tenant",
            read("tenant:read", profile::show),
            Doc::new("getTenant", "Read the tenant's profile", "With the send quota and what is used of it.").answer::<SingleResource<profile::Tenant>>(200, "The tenant"),
        )
        .patch(
            "/v1/tenant",
            write("tenant:manage", profile::update),
            Doc::new(
                "updateTenant",
                "Change the tenant's profile",
                "What is left out stays; null clears. Products that share the engine's tenant share its profile. A change \
                 of the attribution credits all outcomes anew, in the background.",
            )
            .answer::<SingleResource<profile::Tenant>>(200, "The tenant")
            .example(json!({
                "timezone": "Europe/Paris", "physical_address": "1 Main Street", "attribution": {"model": "linear"},
                "frequency_cap": {"messages": 3, "days": 7},
                "quiet_hours": {"from": "21:00", "to": "08:00", "time_zone": "recipient"},
                "confirmation": {"reminders": 1, "reminder_hours": 48, "days": 14},
                "pages": {"logo_url": "https://cdn.acme.example/logo.png", "button_color": "#1d4ed8"},
            }))
            .refuses(404, &["sender_not_found", "domain_not_found", "template_not_found"])
            .refuses(409, &["sender_disabled"])
            .refuses(422, &["physical_address_required", "confirmation_link_required"]),
        )
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct LinkTenant {
    /// The caller's own id for the tenant.
    #[schemars(length(min = 1, max = 255), regex(pattern = PRODUCT_TENANT_ID_PATTERN))]
    product_tenant_id: String,
    /// Becomes the owner identity.
    #[schemars(with = "Email")]
    email: String,
    #[schemars(length(max = NAME_MAX))]
    org_name: Option<String>,
    /// The name of the person who works in the product. Kept for the operator: no answer shows it.
    #[schemars(length(max = NAME_MAX))]
    producer_name: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct TenantLinked {
    engine_tenant_id: Uuid,
    already_linked: bool,
}

/// Finds or creates the engine tenant of (product, environment, the product's own tenant id).
async fn link(ctx: &mut RequestContext, body: LinkTenant) -> Result<ApiReply, ApiError> {
    let mut faults = Faults::default();
    let is_id = is_product_tenant_id(&body.product_tenant_id);
    let detail = "must have 1 to 255 characters and no control characters";
    faults.require(is_id, "product_tenant_id", "invalid", detail);
    let owner = faults.address("email", &body.email);
    faults.one_line("org_name", body.org_name.as_deref().unwrap_or_default(), NAME_MAX);
    faults.one_line("producer_name", body.producer_name.as_deref().unwrap_or_default(), NAME_MAX);
    faults.finish()?;
    let owner = owner.map(schemas::Address::into_string).unwrap_or_default();

    let caller = Arc::clone(&ctx.caller);
    let link = TenantLink {
        product: &caller.product,
        environment: caller.environment,
        product_tenant_id: &body.product_tenant_id,
        owner: &owner,
        org_name: body.org_name.as_deref(),
        producer_name: body.producer_name.as_deref(),
    };
    let linked = link.find(ctx.db()).await?;
    // A key for one tenant may repeat its link, but not make or change another.
    if caller.tenant_id.is_some() && caller.tenant_id != linked {
        return Err(ApiError::forbidden("tenant_mismatch").detail("the API key works for another tenant only"));
    }
    let tenant = match linked {
        Some(tenant) => {
            if link.refresh(ctx.db(), tenant).await? {
                ctx.audit("tenant.link_changed", &tenant.to_string(), json!({})).await?;
            }
            tenant
        }
        None => {
            let tenant = link.create(ctx.db()).await?;
            ctx.audit("tenant.linked", &tenant.to_string(), json!({})).await?;
            tenant
        }
    };
    ApiReply::ok(&TenantLinked { engine_tenant_id: tenant, already_linked: linked.is_some() })
}

/// A product's tenant and the engine tenant behind it.
#[derive(Debug, Clone, Copy)]
pub struct TenantLink<'a> {
    /// The product's slug.
    pub product: &'a str,
    /// The environment that the engine tenant belongs to.
    pub environment: Environment,
    /// The product's own id of the tenant.
    pub product_tenant_id: &'a str,
    /// The owner's canonical address.
    pub owner: &'a str,
    /// The organisation's name.
    pub org_name: Option<&'a str>,
    /// The name of the person who works in the product.
    pub producer_name: Option<&'a str>,
}

impl TenantLink<'_> {
    /// The tenant that the link leads to. Two first links at once take turns, so that only one makes a tenant.
    pub async fn find(&self, db: &mut PgConnection) -> sqlx::Result<Option<Uuid>> {
        sqlx::query!(
            "select pg_advisory_xact_lock(hashtextextended(concat_ws(' ', 'tenant_link', $1::text, $2::text, $3::text), 0))",
            self.product,
            self.environment.as_str(),
            self.product_tenant_id,
        )
        .fetch_one(&mut *db)
        .await?;
        sqlx::query_scalar!(
            "select tenant_id from tenant_links where product = $1 and environment = $2 and product_tenant_id = $3",
            self.product,
            self.environment.as_str(),
            self.product_tenant_id,
        )
        .fetch_optional(db)
        .await
    }

    /// Makes the tenant and the link to it, where [`TenantLink::find`] found none.
    pub async fn create(&self, db: &mut PgConnection) -> sqlx::Result<Uuid> {
        let tenant = new_id();
        sqlx::query!(
            "insert into tenants (id, environment, org_name, owner_email) values ($1, $2, $3, $4)",
            tenant,
            self.environment.as_str(),
            self.org_name,
            self.owner,
        )
        .execute(&mut *db)
        .await?;
        sqlx::query!(
            "insert into tenant_links (product, environment, product_tenant_id, tenant_id, owner_email, org_name, producer_name)
             values ($1, $2, $3, $4, $5, $6, $7)",
            self.product,
            self.environment.as_str(),
            self.product_tenant_id,
            tenant,
            self.owner,
            self.org_name,
            self.producer_name,
        )
        .execute(db)
        .await?;
        Ok(tenant)
    }

    /// A repeated link brings names and owner up to date; the tenant's own only while no other product shares it. `true`: they differed.
    async fn refresh(&self, db: &mut PgConnection, tenant: Uuid) -> sqlx::Result<bool> {
        let changed = sqlx::query!(
            "update tenant_links
             set owner_email = $4, org_name = coalesce($5, org_name), producer_name = coalesce($6, producer_name), updated_at = now()
             where product = $1 and environment = $2 and product_tenant_id = $3
               and (owner_email, org_name, producer_name) is distinct from ($4, coalesce($5, org_name), coalesce($6, producer_name))",
            self.product,
            self.environment.as_str(),
            self.product_tenant_id,
            self.owner,
            self.org_name,
            self.producer_name,
        )
        .execute(&mut *db)
        .await?;
        sqlx::query!(
            "update tenants set owner_email = $2, org_name = coalesce($3, org_name), updated_at = now()
             where id = $1 and (select count(*) from tenant_links where tenant_id = $1) = 1
               and (owner_email, org_name) is distinct from ($2, coalesce($3, org_name))",
            tenant,
            self.owner,
            self.org_name,
        )
        .execute(db)
        .await?;
        Ok(changed.rows_affected() == 1)
    }
}
