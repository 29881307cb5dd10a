//! Pauses campaigns as the API does, and notifies the owner.

use anyhow::{Context, bail};
use ingress::api::campaigns::{self, PauseRefused};
use serde_json::json;
use sqlx::PgConnection;
use uuid::Uuid;

use super::outcome;
use crate::{find_tenant, invocation::AuditEntry, operator::CommandOutput};

/// Pauses or resumes a campaign. After a pause has returned, no send of the campaign is fenced.
pub(super) async fn set_paused(db: &mut PgConnection, id: Uuid, paused: bool) -> anyhow::Result<CommandOutput> {
    let tenant = find_tenant::of_campaign(db, id).await?.context("no such campaign")?;
    let was = match campaigns::set_paused(db, tenant, id, paused).await {
        Ok(was) => was,
        Err(PauseRefused::NotFound) => bail!("no such campaign"),
        Err(PauseRefused::Already(status)) => {
            bail!("the campaign is {status}: only a scheduled or sending one can be paused")
        }
        Err(PauseRefused::Store(error)) => return Err(error.into()),
    };
    let (tenant, subject, outcome) = (Some(tenant), &id.to_string(), outcome(was, paused));
    // A pause under this name becomes an event for the owner, so the operator's reason is not in its detail.
    let action = if paused && !was { "campaign.paused" } else { "campaign.pause" };
    let detail = Some(json!({"paused": paused, "reason": "operator"}));
    AuditEntry { tenant, action, subject, outcome: Some(outcome), detail }.audit(db).await?;
    Ok(CommandOutput::done(json!({"campaign": id, "tenant": tenant, "paused": paused, "was_paused": was}), outcome))
}
