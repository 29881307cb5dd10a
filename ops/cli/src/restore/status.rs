//! How a restored ledger stands: the gap, and what is open that may have been sent in it.

use serde_json::{Value, json};
use sqlx::PgConnection;

use crate::{operator::CommandOutput, table};

/// The state as one record, and as text.
pub(super) async fn report(db: &mut PgConnection) -> anyhow::Result<CommandOutput> {
    let ledger =
        sqlx::query!(r#"select id, mark, marked_at, held_at, held_by, held_reason, gap_from, gap_to from ledger"#)
            .fetch_one(&mut *db)
            .await?;
    let campaigns = campaigns(db).await?;
    let open = sqlx::query!(
        r#"select (select count(*) from batches b where b.lane = 'priority' and b.state in ('timed', 'waiting', 'announced', 'resting')) as "priority!",
                  (select count(*) from requests r where r.announce_after is not null and r.state = 'accepted') as "requests!",
                  (select count(*) from campaigns c where c.status = 'scheduled') as "scheduled!",
                  (select count(*) from enrollments e where e.status = 'active' and e.next_action_at <= now()) as "enrollments!",
                  (select coalesce(sum(b.unknown), 0)::bigint from batches b where b.state <> 'done') as "unknown!""#
    )
    .fetch_one(&mut *db)
    .await?;
    let record = json!({
        "ledger_id": ledger.id, "mark": ledger.mark, "marked_at": ledger.marked_at, "held": ledger.held_at.is_some(),
        "held_at": ledger.held_at, "held_by": ledger.held_by, "reason": ledger.held_reason, "gap_from": ledger.gap_from,
        "gap_to": ledger.gap_to, "campaigns": campaigns, "priority_batches": open.priority, "requests": open.requests,
        "scheduled_campaigns": open.scheduled, "due_enrollments": open.enrollments, "unknown": open.unknown,
    });
    let reason = ledger.held_reason.unwrap_or_default();
    let (mut head, gap) = ("not held".to_owned(), ledger.gap_from.zip(ledger.gap_to));
    if let Some(since) = ledger.held_at {
        head = format!("held since {}: {reason}", since.to_rfc3339());
        if let Some((from, to)) = gap {
            head += &format!("\nmissing: {} to {}", from.to_rfc3339(), to.to_rfc3339());
        }
    }
    let table = table::render(&campaigns, &["campaign", "tenant", "open", "sent", "launched_at"], table::width());
    let text = format!(
        "{head}\nopen: {} priority batch(es), {} request(s), {} scheduled campaign(s), {} due enrollment(s), and these campaigns\n\n{}",
        open.priority,
        open.requests,
        open.scheduled,
        open.enrollments,
        table.trim_end(),
    );
    Ok(CommandOutput::Done(record, text))
}

/// Running campaigns with something open, the largest first.
async fn campaigns(db: &mut PgConnection) -> sqlx::Result<Vec<Value>> {
    sqlx::query_scalar!(
        r#"select to_jsonb(r) as "record!" from (
               select c.id as campaign, c.tenant_id as tenant, n.open, n.sent, c.launched_at
               from campaigns c
               cross join lateral (
                   select coalesce(sum(b.queued + b.fenced + b.deferred), 0)::bigint as open,
                          coalesce(sum(b.sent), 0)::bigint as sent
                   from batches b where b.tenant_id = c.tenant_id and b.campaign_id = c.id
               ) n
               where c.status = 'sending' and c.completed_at is null and n.open > 0) r
           order by r.open desc
           limit 200"#
    )
    .fetch_all(db)
    .await
}
