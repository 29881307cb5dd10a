//! Secrets: told once, kept sealed, replaced with a day in which both sign.

use chrono::TimeDelta;
use schemas::webhook::{SECRET_PURPOSE, WebhookSecret};
use serde_json::json;

use super::{SubscriptionStatus, hold, store};
use crate::{
    act::{Act, NoFields, NoParameters, Reply, time},
    error::ApiError,
};

/// How long a replaced secret signs along.
const OVERLAP: TimeDelta = TimeDelta::hours(24);

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
    let until = store::replace_secret(act.db(), tenant, id, &sealed, OVERLAP).await?;
    act.audit("webhook.secret_rotated", &format!("webhook:{id}"), json!({})).await?;
    let answer = json!({
        "ok": true, "subscription_id": id, "signing_secret": fresh.expose(), "previous_secret_until": time(until),
    });
    Ok(Reply::ok(&answer)?.with_secret())
}

/// What the calls of `call_product_webhook` steps are signed with: see [`schemas::webhook`]. Derived, so it can be told again.
pub(super) async fn of_calls(act: &mut Act, _: NoParameters) -> Result<Reply, ApiError> {
    let secrets = act.ingress.vault.call_secrets(act.tenant);
    let newest = secrets.first().ok_or_else(ApiError::internal)?;
    Reply::ok(&json!({"ok": true, "signing_secret": newest.expose()}))
}
