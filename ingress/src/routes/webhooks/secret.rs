//! Secrets: told once, kept sealed, replaced with a day in which both sign.

use schemas::webhook::{CallSigner, ROTATION_OVERLAP, SECRET_PURPOSE, WebhookSecret};
use serde_json::json;

use super::{SubscriptionStatus, hold, store};
use crate::{
    act::{Act, NoFields, NoParameters, Reply, time},
    error::ApiError,
};

/// A new secret, and how it is stored.
pub(super) fn fresh(act: &Act) -> Result<(WebhookSecret, Vec<u8>), ApiError> {
    let secret = WebhookSecret::generate();
    let sealed = act
        .ingress
        .vault
        .seal(act.tenant, SECRET_PURPOSE, secret.expose().as_bytes())
        .map_err(|error| ApiError::unexpected(&error))?;
    Ok((secret, sealed))
}

/// The one replaced signs along for a day; the one before that ends at once. So a secret that leaked is out of use when this was
/// called twice.
pub(super) async fn rotate(act: &mut Act, _: NoFields) -> Result<Reply, ApiError> {
    let id = act.id("subscription")?;
    let row = hold(act, id).await?;
    if row.status == SubscriptionStatus::Disabled {
        return Err(ApiError::conflict("subscription_not_active").detail("the subscription is disabled"));
    }
    let (fresh, sealed) = fresh(act)?;
    let tenant = act.tenant;
    let until = store::replace_secret(act.db(), tenant, id, &sealed, ROTATION_OVERLAP).await?;
    act.audit("webhook.secret_rotated", &format!("webhook:{id}"), json!({})).await?;
    let answer = json!({
        "ok": true, "subscription_id": id, "signing_secret": fresh.expose(), "previous_secret_until": time(until),
    });
    Ok(Reply::untyped_ok(&answer)?.with_secret())
}

/// What the calls of `call_product_webhook` steps of this product's sequences are signed with: see [`schemas::webhook`]. Derived, so
/// it can be told again.
pub(super) async fn of_calls(act: &mut Act, _: NoParameters) -> Result<Reply, ApiError> {
    let (tenant, product) = (act.tenant, act.caller.product.clone());
    let generation = store::call_generation(act.db(), tenant, &product).await?;
    Reply::untyped_ok(&json!({"ok": true, "signing_secret": call_secret(act, generation)?}))
}

/// The one replaced signs along for a day; the one before that ends at once, as with subscriptions.
pub(super) async fn rotate_calls(act: &mut Act, _: NoFields) -> Result<Reply, ApiError> {
    let (tenant, product) = (act.tenant, act.caller.product.clone());
    let (generation, until) = store::rotate_calls(act.db(), tenant, &product, ROTATION_OVERLAP).await?;
    act.audit("webhook.call_secret_rotated", &format!("product:{product}"), json!({"generation": generation})).await?;
    let answer =
        json!({"ok": true, "signing_secret": call_secret(act, generation)?, "previous_secret_until": time(until)});
    Ok(Reply::untyped_ok(&answer)?.with_secret())
}

fn call_secret(act: &Act, generation: i32) -> Result<String, ApiError> {
    let signer = CallSigner {
        tenant: act.tenant,
        product: &act.caller.product,
        generation: u32::try_from(generation).unwrap_or(0),
        is_rotating: false,
    };
    let secrets = act.ingress.vault.call_secrets(signer);
    Ok(secrets.first().ok_or_else(ApiError::internal)?.expose())
}
