//! `campaign_performance`: sums over a campaign's batches, O(1) in the number of its sends.

use serde_json::{Value, json};
use sqlx::PgConnection;
use uuid::Uuid;

use super::{CampaignArguments, ToolFault, arguments, id};
use crate::small_counts;

pub(super) async fn answer(db: &mut PgConnection, tenant: Uuid, given: Value) -> Result<Value, ToolFault> {
    let given: CampaignArguments = arguments(given)?;
    let campaign = id("campaign_id", &given.campaign_id)?;
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
    let fact = |number| part_of(number, sent, sent);
    let (opened, clicked) = (fact(row.opened), fact(row.clicked));
    let opened_human = part_of(row.opened_human, &opened["count"], sent);
    let clicked_human = part_of(row.clicked_human, &clicked["count"], sent);
    Ok(json!({
        "campaign_id": campaign,
        "status": status,
        "total": small_counts::count(row.total),
        "states": states,
        "facts": {
            "delivered": fact(row.delivered),
            "delivered_confirmed": fact(row.confirmed),
            "bounced": fact(row.bounced),
            "complained": fact(row.complained),
            "unsubscribed": fact(row.unsubscribed),
            "opened": opened,
            "opened_human": opened_human,
            "clicked": clicked,
            "clicked_human": clicked_human,
        },
        "note": "rates are of those sent; opens are inflated by mail programs that fetch pictures, clicks are the better sign",
    }))
}

/// A count that is a part of a shown one, and its rate of those sent.
fn part_of(number: i64, whole: &Value, sent: &Value) -> Value {
    let count = small_counts::share(number, whole);
    let rate = if count.is_number() { small_counts::rate(number, sent) } else { Value::Null };
    json!({"count": count, "rate": rate})
}
