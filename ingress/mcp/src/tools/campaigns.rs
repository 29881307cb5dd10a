//! `list_campaigns`: metadata only.

use chrono::SecondsFormat;
use schemars::JsonSchema;
use schemas::CampaignStatus;
use serde_json::{Value, json};
use sqlx::PgConnection;
use uuid::Uuid;

use super::{ToolFault, arguments, id};
use crate::clean_text;

const LIMIT_DEFAULT: i64 = 20;
const LIMIT_MAX: i64 = 25;

#[derive(Debug, serde::Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ListArguments {
    #[schemars(extend("enum" = CampaignStatus::ALL))]
    status: Option<String>,
    #[schemars(range(min = 1, max = LIMIT_MAX), extend("default" = LIMIT_DEFAULT))]
    limit: Option<i64>,
    /// The last campaign_id of the page before.
    #[schemars(with = "Option<Uuid>")]
    before: Option<String>,
}

pub(super) async fn answer(db: &mut PgConnection, tenant: Uuid, given: Value) -> Result<Value, ToolFault> {
    let given: ListArguments = arguments(given)?;
    let unknown = || ToolFault::Arguments(format!("status: must be one of {}", CampaignStatus::NAMES.join(", ")));
    let status = given.status.map(|text| CampaignStatus::parse(&text).ok_or_else(unknown)).transpose()?;
    let before = given.before.map(|text| id("before", &text)).transpose()?;
    let limit = given.limit.unwrap_or(LIMIT_DEFAULT);
    if !(1..=LIMIT_MAX).contains(&limit) {
        return Err(ToolFault::Arguments(format!("limit: must be 1 to {LIMIT_MAX}")));
    }
    // Served by campaigns_newest or campaigns_by_status.
    let rows = sqlx::query!(
        r#"select c.id, c.name, s.status as "status!", c.paused, c.classification, c.message_purpose, c.campaign_goal,
                  c.audience_mode, c.urgency, c.scheduled_for, c.launched_at, c.completed_at, c.created_at
           from campaigns c
           cross join lateral (select campaign_status(c, (select preflight_keys())) as status) s
           where c.tenant_id = $1
             and ($2::text is null or c.status = case $2 when 'preflight' then 'draft' else $2 end and s.status = $2)
             and ($3::uuid is null
                  or (c.created_at, c.id) < (select b.created_at, b.id from campaigns b where b.tenant_id = $1 and b.id = $3))
           order by c.created_at desc, c.id desc
           limit $4"#,
        tenant,
        status.map(CampaignStatus::as_str),
        before,
        limit,
    )
    .fetch_all(db)
    .await?;
    let time = |at: chrono::DateTime<chrono::Utc>| at.to_rfc3339_opts(SecondsFormat::Secs, true);
    let campaigns = rows.into_iter().map(|row| {
        json!({
            "campaign_id": row.id,
            "name": clean_text::name(&row.name),
            "status": row.status,
            "paused": row.paused,
            "email_type": row.classification,
            "message_purpose": row.message_purpose,
            "campaign_goal": row.campaign_goal,
            "audience_mode": row.audience_mode,
            "urgency": row.urgency,
            "scheduled_for": row.scheduled_for.map(time),
            "launched_at": row.launched_at.map(time),
            "completed_at": row.completed_at.map(time),
            "created_at": time(row.created_at),
        })
    });
    Ok(json!({"campaigns": campaigns.collect::<Vec<Value>>()}))
}
