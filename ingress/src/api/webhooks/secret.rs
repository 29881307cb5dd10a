//! Secrets: shown once, stored encrypted, replaced with a day in which both sign.

use schemars::JsonSchema;
use schemas::webhook::{CallSigner, ROTATION_OVERLAP, SECRET_PURPOSE, WebhookSecret};
use serde::Serialize;
use serde_json::json;
use uuid::Uuid;

use super::{SubscriptionStatus, lock};
use crate::pipeline::{ApiReply, NoFields, NoParameters, RequestContext, error::ApiError, page::Time};

/// Verify with it: `X-Service-Signature` is keyed by this text as written, the Standard Webhooks headers by the bytes it
/// encodes, as their libraries do.
#[derive(Serialize, JsonSchema)]
pub(super) struct SigningSecret(#[schemars(regex(pattern = "^whsec_[A-Za-z0-9+/]{43}=$"))] String);

impl From<&WebhookSecret> for SigningSecret {
    fn from(secret: &WebhookSecret) -> Self {
        Self(secret.expose())
    }
}

/// A new secret, and how it is stored.
pub(super) fn fresh(ctx: &RequestContext) -> Result<(WebhookSecret, Vec<u8>), ApiError> {
    let secret = WebhookSecret::generate();
    let sealed = ctx
        .ingress
        .vault
        .seal(ctx.tenant, SECRET_PURPOSE, secret.expose().as_bytes())
        .map_err(|error| ApiError::unexpected(&error))?;
    Ok((secret, sealed))
}

#[derive(Serialize, JsonSchema)]
pub(super) struct SecretReplaced {
    subscription_id: Uuid,
    signing_secret: SigningSecret,
    previous_secret_until: Time,
}

/// The replaced secret signs, too, for a day; the one before that ends at once. So a leaked secret is out of use after two calls.
pub(super) async fn rotate(ctx: &mut RequestContext, _: NoFields) -> Result<ApiReply, ApiError> {
    let id = ctx.id("subscription")?;
    let row = lock(ctx, id).await?;
    if row.status == SubscriptionStatus::Disabled {
        return Err(ApiError::conflict("subscription_not_active").detail("the subscription is disabled"));
    }
    let (fresh, sealed) = fresh(ctx)?;
    let tenant = ctx.tenant;
    let until = sqlx::query_scalar!(
        r#"update webhook_subscriptions
           set previous_secret = secret, previous_until = now() + make_interval(secs => $4), secret = $3, updated_at = now()
           where tenant_id = $1 and id = $2
           returning previous_until as "until!""#,
        tenant,
        id,
        sealed,
        ROTATION_OVERLAP.as_secs_f64(),
    )
    .fetch_one(ctx.db())
    .await?;
    ctx.audit("webhook.secret_rotated", &format!("webhook:{id}"), json!({})).await?;
    let signing_secret = SigningSecret::from(&fresh);
    Ok(ApiReply::ok(&SecretReplaced { subscription_id: id, signing_secret, previous_secret_until: until.into() })?
        .with_secret())
}

#[derive(Serialize, JsonSchema)]
pub(super) struct CallSecret {
    signing_secret: SigningSecret,
}

/// Signs the calls of `call_product_webhook` steps of this product's sequences: see [`schemas::webhook`]. Derived, so it can be
/// shown again.
pub(super) async fn of_calls(ctx: &mut RequestContext, _: NoParameters) -> Result<ApiReply, ApiError> {
    let (tenant, product) = (ctx.tenant, ctx.caller.product.clone());
    let generation = sqlx::query_scalar!(
        "select generation from call_secrets where tenant_id = $1 and product = $2",
        tenant,
        product,
    );
    let generation = generation.fetch_optional(ctx.db()).await?.unwrap_or_default();
    ApiReply::ok(&CallSecret { signing_secret: call_secret(ctx, generation)? })
}

#[derive(Serialize, JsonSchema)]
pub(super) struct CallSecretReplaced {
    signing_secret: SigningSecret,
    previous_secret_until: Time,
}

/// The replaced secret signs, too, for a day; the one before that ends at once, as with subscriptions.
pub(super) async fn rotate_calls(ctx: &mut RequestContext, _: NoFields) -> Result<ApiReply, ApiError> {
    let (tenant, product) = (ctx.tenant, ctx.caller.product.clone());
    let row = sqlx::query!(
        r#"insert into call_secrets (tenant_id, product, generation) values ($1, $2, 1)
           on conflict (tenant_id, product) do update set generation = call_secrets.generation + 1, rotated_at = now()
           returning generation, rotated_at + make_interval(secs => $3) as "until!""#,
        tenant,
        product,
        ROTATION_OVERLAP.as_secs_f64(),
    )
    .fetch_one(ctx.db())
    .await?;
    let detail = json!({"generation": row.generation});
    ctx.audit("webhook.call_secret_rotated", &format!("product:{product}"), detail).await?;
    let signing_secret = call_secret(ctx, row.generation)?;
    Ok(ApiReply::ok(&CallSecretReplaced { signing_secret, previous_secret_until: row.until.into() })?.with_secret())
}

fn call_secret(ctx: &RequestContext, generation: i32) -> Result<SigningSecret, ApiError> {
    let signer = CallSigner {
        tenant: ctx.tenant,
        product: &ctx.caller.product,
        generation: u32::try_from(generation).unwrap_or(0),
        is_rotating: false,
    };
    let secrets = ctx.ingress.vault.call_secrets(signer);
    secrets.first().map(SigningSecret::from).ok_or_else(ApiError::internal)
}
