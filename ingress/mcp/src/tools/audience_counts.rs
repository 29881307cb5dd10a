//! `audience_counts`: of a draft, the current count; of a launched campaign, the states of its sends.

use ledger::audience::AudienceSelector;
use schemas::{CampaignStatus, Classification};
use serde_json::{Value, json};
use sqlx::PgConnection;
use uuid::Uuid;

use super::{CampaignArguments, ToolFault, arguments, id, performance};
use crate::small_counts;

pub(super) async fn answer(db: &mut PgConnection, tenant: Uuid, given: Value) -> Result<Value, ToolFault> {
    let given: CampaignArguments = arguments(given)?;
    let campaign = id("campaign_id", &given.campaign_id)?;
    let row = sqlx::query!(
        r#"select status as "status: CampaignStatus", classification as "classification: Classification", audience_mode,
                  list_id, segment_id, tag_ids, launched_at is not null as "launched!"
           from campaigns where tenant_id = $1 and id = $2"#,
        tenant,
        campaign,
    )
    .fetch_optional(&mut *db)
    .await?
    .ok_or(ToolFault::NoCampaign)?;
    if row.launched {
        return of_sends(db, tenant, campaign).await;
    }
    let Some(selector) = AudienceSelector::from_columns(&row.audience_mode, row.list_id, row.segment_id, &row.tag_ids)
    else {
        return Ok(json!({"campaign_id": campaign, "basis": "none", "note": "the campaign names no audience"}));
    };
    let count = ledger::audience::count(db, tenant, &selector, row.classification).await?;
    let reasons = count.skipped.iter().map(|(reason, number)| (reason.as_str(), *number));
    let mut parts = small_counts::parts(reasons.chain([("queued", count.queued)]));
    let queued = parts.remove("queued").unwrap_or(Value::Null);
    Ok(json!({
        "campaign_id": campaign,
        "basis": "audience_now",
        "total": small_counts::count(count.total),
        "would_be_mailed": queued,
        "left_out": parts,
    }))
}

/// The states that `campaign_performance` shows: sums of others would reveal what it hides.
async fn of_sends(db: &mut PgConnection, tenant: Uuid, campaign: Uuid) -> Result<Value, ToolFault> {
    let shown = performance::answer(db, tenant, json!({"campaign_id": campaign})).await?;
    Ok(json!({
        "campaign_id": campaign, "basis": "launched", "total": shown["total"], "counts": shown["states"],
    }))
}
