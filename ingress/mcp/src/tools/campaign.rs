//! The tools about one campaign.

use ledger::{
    audience::AudienceSelector,
    quota::{QuotaDefaults, remaining_quota},
};
use schemars::JsonSchema;
use schemas::{CampaignStatus, Classification, DomainStatus};
use serde_json::{Value, json};
use sqlx::PgConnection;
use uuid::Uuid;

use super::{ToolFault, arguments, id};
use crate::small_counts;

/// The arguments of tools about one campaign.
#[derive(Debug, serde::Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct CampaignArguments {
    /// As list_campaigns shows it.
    #[schemars(with = "Uuid")]
    campaign_id: String,
}

fn campaign_in(given: Value) -> Result<Uuid, ToolFault> {
    let CampaignArguments { campaign_id } = arguments(given)?;
    id("campaign_id", &campaign_id)
}

/// `audience_counts`: of a draft, the current count; of a launched campaign, the states of its sends.
pub(super) async fn audience_counts(db: &mut PgConnection, tenant: Uuid, given: Value) -> Result<Value, ToolFault> {
    let campaign = campaign_in(given)?;
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
        // The states that `campaign_performance` shows: sums of others would reveal what it hides.
        let shown = performance(db, tenant, json!({"campaign_id": campaign})).await?;
        return Ok(json!({
            "campaign_id": campaign, "basis": "launched", "total": shown["total"], "counts": shown["states"],
        }));
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

/// `campaign_performance`: sums over a campaign's batches, O(1) in the number of its sends.
pub(super) async fn performance(db: &mut PgConnection, tenant: Uuid, given: Value) -> Result<Value, ToolFault> {
    let campaign = campaign_in(given)?;
    let status = sqlx::query_scalar!(
        r#"select campaign_status(c, (select preflight_keys())) as "status!" from campaigns c where c.tenant_id = $1 and c.id = $2"#,
        tenant,
        campaign,
    )
    .fetch_optional(&mut *db)
    .await?
    .ok_or(ToolFault::NoCampaign)?;
    // The states as `analytics_campaign.sql` of the ingress has them. Served by batches_by_campaign.
    let row = sqlx::query!(
        r#"select coalesce(sum(size), 0) as "total!", coalesce(sum(sent), 0) as "sent!",
                  coalesce(sum(failed + expired), 0) as "failed!", coalesce(sum(unknown), 0) as "unknown!",
                  coalesce(sum(skipped + cancelled), 0) as "skipped!",
                  coalesce(sum(queued + fenced + deferred), 0) as "open!",
                  coalesce(sum(delivered), 0) as "delivered!", coalesce(sum(confirmed), 0) as "confirmed!", coalesce(sum(bounced), 0) as "bounced!",
                  coalesce(sum(complained), 0) as "complained!", coalesce(sum(unsubscribed), 0) as "unsubscribed!",
                  coalesce(sum(opened), 0) as "opened!", coalesce(sum(opened_human), 0) as "opened_human!",
                  coalesce(sum(clicked), 0) as "clicked!", coalesce(sum(clicked_human), 0) as "clicked_human!"
           from batches where tenant_id = $1 and campaign_id = $2"#,
        tenant,
        campaign,
    )
    .fetch_one(db)
    .await?;
    let states = small_counts::parts([
        ("sent", row.sent),
        ("failed", row.failed),
        ("unknown", row.unknown),
        ("skipped", row.skipped),
        ("open", row.open),
    ]);
    let sent = &states["sent"];
    // Those refused at once are among the bounced.
    let attempted = small_counts::attempted(sent, &states["failed"], row.bounced);
    let fact = |number| part_of(number, sent, sent);
    let (delivered, opened, clicked) = (fact(row.delivered), fact(row.opened), fact(row.clicked));
    let confirmed = part_of(row.confirmed, &delivered["count"], sent);
    let opened_human = part_of(row.opened_human, &opened["count"], sent);
    let clicked_human = part_of(row.clicked_human, &clicked["count"], sent);
    Ok(json!({
        "campaign_id": campaign,
        "status": status,
        "total": small_counts::count(row.total),
        "states": states,
        "facts": {
            "delivered": delivered,
            "delivered_confirmed": confirmed,
            "bounced": part_of(row.bounced, &attempted, &attempted),
            "complained": fact(row.complained),
            "unsubscribed": fact(row.unsubscribed),
            "opened": opened,
            "opened_human": opened_human,
            "clicked": clicked,
            "clicked_human": clicked_human,
        },
        "note": "rates are of those sent, that of the bounced of those sent and those refused; opens are inflated by mail programs that fetch pictures, clicks are the better sign",
    }))
}

/// A count that is a part of a shown one, and its rate of another.
fn part_of(number: i64, whole: &Value, rate_of: &Value) -> Value {
    let count = small_counts::share(number, whole);
    let rate = if count.is_number() { small_counts::rate(number, rate_of) } else { Value::Null };
    json!({"count": count, "rate": rate})
}

/// `campaign_readiness`: what a launch would check.
pub(super) async fn readiness(
    db: &mut PgConnection,
    tenant: Uuid,
    given: Value,
    quota: &QuotaDefaults,
) -> Result<Value, ToolFault> {
    let campaign = campaign_in(given)?;
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
    let counted = match (&selector, row.status) {
        (Some(selector), CampaignStatus::Draft | CampaignStatus::Scheduled) => {
            Some(ledger::audience::count(&mut *db, tenant, selector, row.classification).await?)
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
    if let Some(count) = counted {
        checks.push(check("audience_has_someone_to_mail", count.queued > 0));
        checks.push(check("send_quota_suffices", remaining_quota(db, tenant, quota).await?.fits(count.queued)));
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
