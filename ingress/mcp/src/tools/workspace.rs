//! The tools about a whole workspace: sums only.

use schemars::JsonSchema;
use serde_json::{Map, Value, json};
use sqlx::PgConnection;
use uuid::Uuid;

use super::{ToolFault, arguments};
use crate::small_counts;

/// The periods that counts are shown of, in days: from the beginning of a day (UTC) until now. Of any other ones, two that differ by a day would
/// reveal the small counts of that day.
const PERIODS: [i32; 3] = [7, 30, 90];
const DAYS_DEFAULT: i32 = 30;

/// The arguments of tools about the last days.
#[derive(Debug, serde::Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct DaysArguments {
    #[schemars(extend("enum" = PERIODS, "default" = DAYS_DEFAULT))]
    days: Option<i32>,
}

fn days_in(given: Value) -> Result<i32, ToolFault> {
    let DaysArguments { days } = arguments(given)?;
    match days {
        None => Ok(DAYS_DEFAULT),
        Some(days) if PERIODS.contains(&days) => Ok(days),
        Some(_) => Err(ToolFault::Arguments(format!("days: must be one of {PERIODS:?}"))),
    }
}

/// What is counted, as the rollups call it.
const EVENTS: [&str; 9] =
    ["sent", "delivered", "confirmed", "failed", "unknown", "skipped", "bounced", "complained", "unsubscribed"];
const DOMAINS_MAX: i64 = 50;

/// `deliverability`: totals of the last days from the rollups, and the state of the domains.
pub(super) async fn deliverability(db: &mut PgConnection, tenant: Uuid, given: Value) -> Result<Value, ToolFault> {
    let days = days_in(given)?;
    // Served by the primary key: hours times kinds times events times shards.
    let rows = sqlx::query!(
        r#"select event, coalesce(sum(count), 0)::bigint as "count!"
           from rollups
           where tenant_id = $1 and hour >= date_trunc('day', now(), 'UTC') - make_interval(days => $2::integer) and event = any($3)
           group by event"#,
        tenant,
        days,
        &EVENTS as &[&str],
    )
    .fetch_all(&mut *db)
    .await?;
    let number = |event: &str| rows.iter().find(|row| row.event == event).map_or(0, |row| row.count);
    let sent = &small_counts::count(number("sent"));
    // Those refused at once are among the bounced.
    let attempted = &small_counts::attempted(sent, &small_counts::count(number("failed")), number("bounced"));
    let counts = EVENTS.iter().map(|event| {
        let shown = match *event {
            // The confirmed ones are among the delivered.
            "confirmed" => small_counts::share(number(event), &small_counts::share(number("delivered"), sent)),
            "bounced" => small_counts::share(number(event), attempted),
            "delivered" | "complained" | "unsubscribed" => small_counts::share(number(event), sent),
            _ => small_counts::count(number(event)),
        };
        // As reports call it.
        let name = if *event == "confirmed" { "delivered_confirmed" } else { event };
        (name.to_owned(), shown)
    });
    let counts: Map<String, Value> = counts.collect();
    let domains = sqlx::query!(
        "select domain, status from domains where tenant_id = $1 order by created_at desc, id desc limit $2",
        tenant,
        DOMAINS_MAX,
    )
    .fetch_all(db)
    .await?;
    let domains: Vec<Value> =
        domains.into_iter().map(|row| json!({"domain": row.domain, "status": row.status})).collect();
    Ok(json!({
        "days": days,
        "counts": counts,
        "rates": {
            "bounced": small_counts::rate(number("bounced"), attempted),
            "complained": small_counts::rate(number("complained"), sent),
            "unsubscribed": small_counts::rate(number("unsubscribed"), sent),
        },
        "domains": domains,
    }))
}

/// `reply_outcomes`: how many replies, by kind of message, from the rollups.
pub(super) async fn replies(db: &mut PgConnection, tenant: Uuid, given: Value) -> Result<Value, ToolFault> {
    let days = days_in(given)?;
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

#[derive(Debug, serde::Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct SuppressionArguments {}

/// `suppression_summary`: sums by reason.
pub(super) async fn suppressions(db: &mut PgConnection, tenant: Uuid, given: Value) -> Result<Value, ToolFault> {
    let SuppressionArguments {} = arguments(given)?;
    let counts = ledger::suppressions::count_by_reason(db, tenant).await?;
    let total: i64 = counts.iter().map(|(_, count)| count).sum();
    let shown = small_counts::parts(counts.iter().map(|(reason, count)| (reason.as_str(), *count)));
    let groups: Vec<Value> =
        shown.into_iter().map(|(reason, count)| json!({"reason": reason, "count": count})).collect();
    Ok(json!({"total": small_counts::count(total), "groups": groups}))
}
