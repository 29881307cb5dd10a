//! `campaign_readiness`: what a launch would check.

use ledger::{
    audience::AudienceSelector,
    quota::{QuotaDefaults, remaining_quota},
};
use schemas::{CampaignStatus, Classification, DomainStatus};
use serde_json::{Value, json};
use sqlx::PgConnection;
use uuid::Uuid;

use super::{CampaignArguments, ToolFault, arguments, id};

pub(super) async fn answer(
    db: &mut PgConnection,
    tenant: Uuid,
    given: Value,
    quota: &QuotaDefaults,
) -> Result<Value, ToolFault> {
    let given: CampaignArguments = arguments(given)?;
    let campaign = id("campaign_id", &given.campaign_id)?;
    let row = sqlx::query!(
        r#"select campaign_status(c, (select preflight_keys())) as "status!: CampaignStatus", c.paused,
                  c.classification as "classification: Classification",
                  c.audience_mode, c.list_id, c.segment_id, c.tag_ids, s.status as sender_status,
                  d.status as "domain_status: DomainStatus",
                  (c.on_miss = 'send' or c.not_after is null or c.not_after > now()) as "window_is_open!",
                  exists (select from (select c.template_id
                                       union all
                                       select v.template_id from campaign_variants v
                                       where v.tenant_id = c.tenant_id and v.campaign_id = c.id) u
                          join templates p on p.tenant_id = c.tenant_id and p.id = u.template_id
                          where p.status = 'archived') as "has_archived_template!",
                  postal_address(s.physical_address, t.physical_address) is not null as "has_postal_address!",
                  t.status = 'active' as "tenant_is_active!"
           from campaigns c
           join tenants t on t.id = c.tenant_id
           join senders s on s.tenant_id = c.tenant_id and s.id = c.sender_profile_id
           join domains d on d.tenant_id = s.tenant_id and d.id = s.domain_id
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
            Some(ledger::audience::count(&mut *db, tenant, selector, row.classification).await?.queued)
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
        check("template_is_not_archived", !row.has_archived_template),
        check("window_is_open", row.window_is_open),
        check("audience_is_named", selector.is_some()),
    ];
    if let Some(queued) = queued {
        checks.push(check("somebody_would_be_mailed", queued > 0));
        checks.push(check("send_quota_suffices", remaining_quota(db, tenant, quota).await?.fits(queued)));
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
