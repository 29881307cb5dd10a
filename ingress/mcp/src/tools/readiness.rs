//! `campaign_readiness`: what a launch would check.

use ledger::audience::AudienceSelector;
use schemas::{CampaignStatus, Classification, DomainStatus};
use serde_json::{Value, json};
use sqlx::PgConnection;
use uuid::Uuid;

use super::{CampaignArguments, ToolFault, arguments, id};

pub(super) async fn answer(db: &mut PgConnection, tenant: Uuid, given: Value) -> Result<Value, ToolFault> {
    let given: CampaignArguments = arguments(given)?;
    let campaign = id("campaign_id", &given.campaign_id)?;
    let row = sqlx::query!(
        r#"select c.status as "status: CampaignStatus", c.paused, c.classification as "classification: Classification",
                  c.audience_mode, c.list_id, c.segment_id, c.tag_ids, s.status as sender_status,
                  d.status as "domain_status: DomainStatus", tpl.status as "template_status?",
                  postal_address(s.physical_address, t.physical_address) is not null as "has_postal_address!",
                  t.status = 'active' as "tenant_is_active!"
           from campaigns c
           join tenants t on t.id = c.tenant_id
           join senders s on s.tenant_id = c.tenant_id and s.id = c.sender_profile_id
           join domains d on d.tenant_id = s.tenant_id and d.id = s.domain_id
           left join templates tpl on tpl.tenant_id = c.tenant_id and tpl.id = c.template_id
           where c.tenant_id = $1 and c.id = $2"#,
        tenant,
        campaign,
    )
    .fetch_optional(&mut *db)
    .await?
    .ok_or(ToolFault::NoCampaign)?;
    let selector = AudienceSelector::from_columns(&row.audience_mode, row.list_id, row.segment_id, &row.tag_ids);
    let queued = match (&selector, row.status) {
        (Some(selector), CampaignStatus::Draft | CampaignStatus::Scheduled) => {
            Some(ledger::audience::count(db, tenant, selector, row.classification).await?.queued)
        }
        _ => None,
    };
    let check = |name: &str, ready: bool| json!({"check": name, "ready": ready});
    let mut checks = vec![
        check("is_a_draft", row.status == CampaignStatus::Draft),
        check("workspace_is_active", row.tenant_is_active),
        check("sender_is_active", row.sender_status == "active"),
        check("domain_may_send", row.domain_status.may_send()),
        check("postal_address", row.classification != Classification::Marketing || row.has_postal_address),
        check("template_is_not_archived", row.template_status.as_deref() != Some("archived")),
        check("audience_is_named", selector.is_some()),
    ];
    if let Some(queued) = queued {
        checks.push(check("somebody_would_be_mailed", queued > 0));
    }
    let ready = checks.iter().all(|check| check["ready"] == json!(true));
    Ok(json!({
        "campaign_id": campaign,
        "status": row.status,
        "paused": row.paused,
        "domain_status": row.domain_status,
        "ready_to_launch": ready,
        "checks": checks,
        "note": "a person launches; this endpoint cannot",
    }))
}
