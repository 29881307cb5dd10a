//! `deliverability`: totals of the last days from the rollups, and the state of the domains.

use serde_json::{Map, Value, json};
use sqlx::PgConnection;
use uuid::Uuid;

use super::{DaysArguments, ToolFault, arguments};
use crate::small_counts;

/// What is counted, as the rollups call it.
const EVENTS: [&str; 9] =
    ["sent", "delivered", "confirmed", "failed", "unknown", "skipped", "bounced", "complained", "unsubscribed"];
const DOMAINS_MAX: i64 = 50;

pub(super) async fn answer(db: &mut PgConnection, tenant: Uuid, given: Value) -> Result<Value, ToolFault> {
    let given: DaysArguments = arguments(given)?;
    let days = given.days()?;
    let events: Vec<String> = EVENTS.iter().map(|event| (*event).to_owned()).collect();
    // Served by the primary key: hours times kinds times events times shards.
    let rows = sqlx::query!(
        r#"select event, coalesce(sum(count), 0)::bigint as "count!"
           from rollups
           where tenant_id = $1 and hour >= date_trunc('day', now(), 'UTC') - make_interval(days => $2::integer) and event = any($3)
           group by event"#,
        tenant,
        days,
        &events,
    )
    .fetch_all(&mut *db)
    .await?;
    let number = |event: &str| rows.iter().find(|row| row.event == event).map_or(0, |row| row.count);
    let sent = &small_counts::count(number("sent"));
    let counts: Map<String, Value> = EVENTS
        .iter()
        .map(|event| {
            let of_the_sent = matches!(*event, "delivered" | "confirmed" | "bounced" | "complained" | "unsubscribed");
            let shown =
                if of_the_sent { small_counts::share(number(event), sent) } else { small_counts::count(number(event)) };
            // As reports call it.
            let name = if *event == "confirmed" { "delivered_confirmed" } else { event };
            (name.to_owned(), shown)
        })
        .collect();
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
            "bounced": small_counts::rate(number("bounced"), sent),
            "complained": small_counts::rate(number("complained"), sent),
            "unsubscribed": small_counts::rate(number("unsubscribed"), sent),
        },
        "domains": domains,
    }))
}
