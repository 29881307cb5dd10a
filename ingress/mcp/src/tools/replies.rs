//! `reply_outcomes`: how many replies, by kind of message, from the rollups.

use serde_json::{Map, Value, json};
use sqlx::PgConnection;
use uuid::Uuid;

use super::{DaysArguments, ToolFault, arguments};
use crate::small_counts;

pub(super) async fn answer(db: &mut PgConnection, tenant: Uuid, given: Value) -> Result<Value, ToolFault> {
    let given: DaysArguments = arguments(given)?;
    let days = given.days()?;
    let rows = sqlx::query!(
        r#"select kind, coalesce(sum(count), 0)::bigint as "count!"
           from rollups
           where tenant_id = $1 and hour >= date_trunc('day', now(), 'UTC') - make_interval(days => $2::integer) and event = 'replied'
           group by kind"#,
        tenant,
        days,
    )
    .fetch_all(db)
    .await?;
    let total: i64 = rows.iter().map(|row| row.count).sum();
    if total == 0 {
        return Ok(json!({"days": days, "replies": null, "note": "no replies stand in the ledger for these days"}));
    }
    let by_kind: Map<String, Value> = small_counts::parts(rows.iter().map(|row| (row.kind.as_str(), row.count)));
    Ok(json!({"days": days, "replies": small_counts::count(total), "by_kind": by_kind}))
}
