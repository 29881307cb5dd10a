//! Pausing campaigns: what the API's pause does, and its owner is told.

use anyhow::{Context, bail};
use ingress::routes::campaigns::{self, HoldRefused};
use serde_json::json;
use sqlx::PgPool;
use uuid::Uuid;

use crate::{operator, seek, who::Act};

/// Pauses a campaign, or lets it go on. When a pause returns, nothing of it is fenced any more.
pub(super) async fn hold(pool: &PgPool, id: Uuid, paused: bool, reason: Option<&str>) -> anyhow::Result<()> {
    let mut tx = pool.begin().await?;
    let tenant = seek::campaign(&mut tx, id).await?.context("no such campaign")?;
    let was = match campaigns::hold(&mut tx, tenant, id, paused).await {
        Ok(was) => was,
        Err(HoldRefused::NotFound) => bail!("no such campaign"),
        Err(HoldRefused::Already(status)) => {
            bail!("the campaign is {status}: only a scheduled or sending one can be paused")
        }
        Err(HoldRefused::Store(error)) => return Err(error.into()),
    };
    let subject = id.to_string();
    let outcome = match (was == paused, paused) {
        (true, true) => "was paused already",
        (true, false) => "was not paused",
        (false, true) => "paused",
        (false, false) => "resumed",
    };
    // A pause under this name becomes the event its owner hears; what operators tell each other is not in its detail.
    let action = if paused && !was { "campaign.paused" } else { "campaign.pause" };
    let detail = Some(json!({"paused": paused, "reason": "operator"}));
    Act { tenant: Some(tenant), action, subject: &subject, reason, outcome: Some(outcome), detail }
        .audit(&mut tx)
        .await?;
    tx.commit().await?;
    operator::say(&json!({"campaign": id, "tenant": tenant, "paused": paused, "was_paused": was}), outcome);
    Ok(())
}
