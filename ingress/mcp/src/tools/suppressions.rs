//! `suppression_summary`: sums by reason and scope.

use schemars::JsonSchema;
use serde_json::{Value, json};
use sqlx::PgConnection;
use uuid::Uuid;

use super::{ToolFault, arguments};
use crate::small_counts;

#[derive(Debug, serde::Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct SuppressionArguments {}

pub(super) async fn answer(db: &mut PgConnection, tenant: Uuid, given: Value) -> Result<Value, ToolFault> {
    let SuppressionArguments {} = arguments(given)?;
    let rows = sqlx::query!(
        r#"select reason, scope, count(*) as "count!"
           from suppressions where tenant_id = $1 and (expires_at is null or expires_at > now())
           group by reason, scope"#,
        tenant,
    )
    .fetch_all(db)
    .await?;
    let names: Vec<(String, i64)> =
        rows.iter().map(|row| (format!("{}_{}", row.reason, row.scope), row.count)).collect();
    let shown = small_counts::parts(names.iter().map(|(name, count)| (name.as_str(), *count)));
    let groups: Vec<Value> = rows
        .iter()
        .zip(&names)
        .map(|(row, (name, _))| json!({"reason": row.reason, "scope": row.scope, "count": shown[name]}))
        .collect();
    Ok(json!({"total": small_counts::count(rows.iter().map(|row| row.count).sum()), "groups": groups}))
}
