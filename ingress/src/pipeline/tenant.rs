//! Finds the tenant that a request names.

use schemas::parse_id;
use serde::Deserialize;
use serde_json::{Map, Value};
use sqlx::PgConnection;
use uuid::Uuid;

use crate::pipeline::{auth::keys::Caller, error::ApiError, json};

const PRODUCT_TENANT_ID_MAX_CHARS: usize = 255;
/// What [`is_product_tenant_id`] takes, but for its length, in the documents.
pub(crate) const PRODUCT_TENANT_ID_PATTERN: &str = r"^[^\u0000-\u001f\u007f-\u009f]+$";

/// The tenant a request names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TenantClaim {
    /// The product's own id of the tenant.
    pub product_tenant_id: String,
    /// The engine's id, if the caller gives it: only a check against impersonation.
    pub engine_tenant_id: Option<Uuid>,
}

impl TenantClaim {
    /// Takes `product_tenant_id` and `engine_tenant_id` out of a body, so that the rest is the request.
    ///
    /// # Errors
    /// 400 when one is missing or no text.
    pub fn take_from(object: &mut Map<String, Value>) -> Result<Self, ApiError> {
        let mut text = |name: &str| match object.remove(name) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(ApiError::invalid(name, "wrong_type", "must be a string")),
        };
        let product_tenant_id = text("product_tenant_id")?;
        let engine_tenant_id = text("engine_tenant_id")?;
        Self::new(product_tenant_id, engine_tenant_id.as_deref())
    }

    /// Checks the form of both.
    ///
    /// # Errors
    /// 400 when one is missing or malformed.
    pub fn new(product_tenant_id: Option<String>, engine_tenant_id: Option<&str>) -> Result<Self, ApiError> {
        let product_tenant_id =
            product_tenant_id.ok_or_else(|| ApiError::invalid("product_tenant_id", "required", "is required"))?;
        if !is_product_tenant_id(&product_tenant_id) {
            return Err(ApiError::invalid(
                "product_tenant_id",
                "invalid",
                format!("must have 1 to {PRODUCT_TENANT_ID_MAX_CHARS} characters and no control characters"),
            ));
        }
        let engine_tenant_id = engine_tenant_id
            .map(|text| {
                parse_id(text).map_err(|error| ApiError::invalid("engine_tenant_id", "invalid", error.to_string()))
            })
            .transpose()?;
        Ok(Self { product_tenant_id, engine_tenant_id })
    }
}

/// The tenant as a body names it, where it can be read: an object, or an array of one.
pub(crate) fn named_in(body: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct BodyTenant {
        product_tenant_id: String,
    }
    let BodyTenant { product_tenant_id } = if json::is_array(body) {
        let [only] = serde_json::from_slice(body).ok()?;
        only
    } else {
        serde_json::from_slice(body).ok()?
    };
    is_product_tenant_id(&product_tenant_id).then_some(product_tenant_id)
}

/// Whether a text can be a product's own tenant id.
#[must_use]
pub fn is_product_tenant_id(text: &str) -> bool {
    (1..=PRODUCT_TENANT_ID_MAX_CHARS).contains(&text.chars().count()) && !text.chars().any(char::is_control)
}

/// Locks the tenant's row: what has a limit by tenant is counted and made under it, one after the other.
pub(crate) async fn lock_row(db: &mut PgConnection, tenant: Uuid) -> sqlx::Result<()> {
    sqlx::query_scalar!("select id from tenants where id = $1 for no key update", tenant)
        .fetch_optional(db)
        .await
        .map(drop)
}

/// Checks that the caller may use the tenant that was found under the claim's name.
///
/// # Errors
/// 404 `tenant_not_found` when it is not linked for this product and environment, or the key is for another one only;
/// 403 `tenant_mismatch` when `engine_tenant_id` is another.
pub fn check(found: Option<Uuid>, caller: &Caller, claim: &TenantClaim) -> Result<Uuid, ApiError> {
    let tenant = found
        .filter(|tenant| caller.tenant_id.is_none_or(|only| only == *tenant))
        .ok_or_else(|| ApiError::not_found("tenant"))?;
    if claim.engine_tenant_id.is_some_and(|claimed| claimed != tenant) {
        return Err(ApiError::forbidden("tenant_mismatch")
            .detail("engine_tenant_id is not the tenant that product_tenant_id is linked to"));
    }
    Ok(tenant)
}
