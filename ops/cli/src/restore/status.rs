//! How a restored ledger stands: the gap, and what is open that may have been sent in it.

use serde_json::{Value, json};
use sqlx::PgPool;

use crate::{invocation, operator};

/// Prints it: one record, or to be read.
pub(super) async fn print(pool: &PgPool) -> anyhow::Result<()> {
    let ledger =
        sqlx::query!(r#"select id, mark, marked_at, held_at, held_by, held_reason, gap_from, gap_to from ledger"#)
            .fetch_one(pool)
            .await?;
    let campaigns = campaigns(pool).await?;
    let open = sqlx::query!(
        r#"select (select count(*) from batches b where b.lane = 'priority' and b.state in ('timed', 'waiting', 'announced', 'resting')) as "priority!",
                  (select count(*) from requests r where r.announce_after is not null and r.state = 'accepted') as "requests!",
                  (select count(*) from campaigns c where c.status = 'scheduled') as "scheduled!",
                  (select count(*) from enrollments e where e.status = 'active' and e.next_action_at <= now()) as "enrollments!",
                  (select coalesce(sum(b.unknown), 0)::bigint from batches b where b.state <> 'done') as "unknown!""#
    )
    .fetch_one(pool)
    .await?;
    let record = json!({
        "ledger_id": ledger.id, "mark": ledger.mark, "marked_at": ledger.marked_at, "held": ledger.held_at.is_some(),
        "held_at": ledger.held_at, "held_by": ledger.held_by, "reason": ledger.held_reason, "gap_from": ledger.gap_from,
        "gap_to": ledger.gap_to, "campaigns": campaigns, "priority_batches": open.priority, "requests": open.requests,
        "scheduled_campaigns": open.scheduled, "due_enrollments": open.enrollments, "unknown": open.unknown,
    });
    if invocation::wants_json() {
        println!("{record}");
        return Ok(());
    }
    match (ledger.held_at, ledger.gap_from, ledger.gap_to) {
        (Some(since), Some(from), Some(to)) => {
            println!("held since {}: {}", since.to_rfc3339(), ledger.held_reason.unwrap_or_default());
            println!("missing: {} to {}", from.to_rfc3339(), to.to_rfc3339());
        }
        (Some(since), ..) => println!("held since {}: {}", since.to_rfc3339(), ledger.held_reason.unwrap_or_default()),
        (None, ..) => println!("not held"),
    }
    println!(
        "open: {} priority batch(es), {} request(s), {} scheduled campaign(s), {} due enrollment(s), and these campaigns\n",
        open.priority, open.requests, open.scheduled, open.enrollments
    );
    operator::print(&campaigns, &["campaign", "tenant", "open", "sent", "launched_at"]);
    Ok(())
}

/// Running campaigns with something open, the largest first.
async fn campaigns(pool: &PgPool) -> sqlx::Result<Vec<Value>> {
    let rows = sqlx::query!(
        r#"select c.tenant_id, c.id, c.launched_at, n.open as "open!", n.sent as "sent!"
           from campaigns c
           cross join lateral (
               select coalesce(sum(b.queued + b.fenced + b.deferred), 0)::bigint as open,
                      coalesce(sum(b.sent), 0)::bigint as sent
               from batches b where b.tenant_id = c.tenant_id and b.campaign_id = c.id
           ) n
           where c.status = 'sending' and c.completed_at is null and n.open > 0
           order by n.open desc
           limit 200"#
    )
    .fetch_all(pool)
    .await?;
    let record = |tenant, id, launched_at, open, sent| json!({"campaign": id, "tenant": tenant, "open": open, "sent": sent, "launched_at": launched_at});
    Ok(rows.into_iter().map(|row| record(row.tenant_id, row.id, row.launched_at, row.open, row.sent)).collect())
}
