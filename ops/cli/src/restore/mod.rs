//! `postrider restore status|begin|reconcile|release`: after a database restore nothing leaves until an operator has closed the gap.
//!
//! The engine pauses a restored ledger by itself if it detects the restore; `begin` is for restores that it cannot detect.

mod evidence;

use std::path::PathBuf;

use anyhow::{Context, ensure};
use clap::Subcommand;
use serde_json::{Value, json};
use sqlx::PgConnection;

use crate::{
    invocation::{self, audit_record},
    operator::{CommandOutput, ServerArgs},
    pause, table,
};

/// After a restore.
#[derive(Debug, clap::Args)]
pub struct RestoreArgs {
    #[command(flatten)]
    servers: ServerArgs,
    #[command(subcommand)]
    command: RestoreCommand,
}

#[derive(Debug, Subcommand)]
enum RestoreCommand {
    /// Prints whether the ledger is paused, the missing time, and the open sends that may have left in it.
    Status,
    /// Holds the ledger: delivery, webhooks and sequencing start nothing, no campaign begins and nobody is asked to confirm, from now on.
    Begin,
    /// Marks sends as sent that the relay's or the provider's log shows: their ids, or our Message-IDs, anywhere in its lines.
    Reconcile {
        /// The log, or what was cut out of it; `-` for standard input.
        #[arg(long, value_name = "FILE")]
        sent: PathBuf,
        /// Says what would be marked, and marks nothing.
        #[arg(long)]
        dry_run: bool,
    },
    /// Resumes. What is open then is sent. Needs a reason: how the gap was closed.
    Release,
}

pub async fn run(args: RestoreArgs) -> anyhow::Result<()> {
    let database = &args.servers.database;
    match args.command {
        RestoreCommand::Status => return database.operate(report).await,
        RestoreCommand::Begin => database.operate(begin).await?,
        RestoreCommand::Reconcile { sent, dry_run } => {
            return evidence::reconcile(&database.pool()?, &sent, dry_run).await;
        }
        RestoreCommand::Release => database.operate(release).await?,
    }
    pause::notify_processes(&args.servers.bus).await;
    Ok(())
}

async fn begin(db: &mut PgConnection) -> anyhow::Result<CommandOutput> {
    let held = sqlx::query!(
        "update ledger
         set held_at = now(), held_by = $1, held_reason = coalesce($2, 'held by an operator'), gap_from = marked_at, gap_to = now()
         where held_at is null
         returning id",
        invocation::actor(),
        invocation::reason(),
    )
    .fetch_optional(&mut *db)
    .await?;
    let outcome = if held.is_some() { "held" } else { "was held already" };
    audit_record(&mut *db, None, "restore.hold", "ledger", Some(outcome), Value::Null).await?;
    report(db).await
}

async fn release(db: &mut PgConnection) -> anyhow::Result<CommandOutput> {
    let is_explained = invocation::reason().is_some_and(|reason| !reason.trim().is_empty());
    ensure!(is_explained, "say how the gap was closed, with --reason");
    let held = sqlx::query!("select gap_from, gap_to from ledger where held_at is not null for update")
        .fetch_optional(&mut *db)
        .await?
        .context("the ledger is not held")?;
    sqlx::query!(
        "update ledger set held_at = null, held_by = null, held_reason = null, gap_from = null, gap_to = null"
    )
    .execute(&mut *db)
    .await?;
    let gap = json!({"gap_from": held.gap_from, "gap_to": held.gap_to});
    audit_record(db, None, "restore.release", "ledger", Some("released"), gap).await?;
    Ok(CommandOutput::done(json!({"held": false}), "released: what is open is sent from now on"))
}

/// How the ledger stands: the gap, and what is open that may have been sent in it.
async fn report(db: &mut PgConnection) -> anyhow::Result<CommandOutput> {
    let ledger =
        sqlx::query!(r#"select id, mark, marked_at, held_at, held_by, held_reason, gap_from, gap_to from ledger"#)
            .fetch_one(&mut *db)
            .await?;
    let campaigns = campaigns(db).await?;
    let open = sqlx::query!(
        r#"select (select count(*) from batches b where b.lane = 'priority' and b.state in ('timed', 'waiting', 'announced', 'resting')) as "priority!",
                  (select count(*) from requests r where r.announce_after is not null and r.state = 'accepted') as "requests!",
                  (select count(*) from campaigns c where c.status = 'scheduled') as "scheduled!",
                  (select count(*) from confirmations f where f.due_at <= now()) as "confirmations!",
                  (select count(*) from enrollments e where e.status = 'active' and e.next_action_at <= now()) as "enrollments!",
                  (select coalesce(sum(b.unknown), 0)::bigint from batches b where b.state <> 'done') as "unknown!""#
    )
    .fetch_one(&mut *db)
    .await?;
    let record = json!({
        "ledger_id": ledger.id, "mark": ledger.mark, "marked_at": ledger.marked_at, "held": ledger.held_at.is_some(),
        "held_at": ledger.held_at, "held_by": ledger.held_by, "reason": ledger.held_reason, "gap_from": ledger.gap_from,
        "gap_to": ledger.gap_to, "campaigns": campaigns, "priority_batches": open.priority, "requests": open.requests,
        "scheduled_campaigns": open.scheduled, "due_confirmations": open.confirmations, "due_enrollments": open.enrollments,
        "unknown": open.unknown,
    });
    let reason = ledger.held_reason.unwrap_or_default();
    let (mut head, gap) = ("not held".to_owned(), ledger.gap_from.zip(ledger.gap_to));
    if let Some(since) = ledger.held_at {
        head = format!("held since {}: {reason}", since.to_rfc3339());
        if let Some((from, to)) = gap {
            head += &format!("\nmissing: {} to {}", from.to_rfc3339(), to.to_rfc3339());
        }
    }
    let columns = ["campaign", "tenant", "begun", "written", "open", "sent", "due_at"];
    let table = table::render(&campaigns, &columns, table::width());
    let text = format!(
        "{head}\nopen: {} priority batch(es), {} request(s), {} scheduled campaign(s), {} due confirmation(s), \
         {} due enrollment(s), and these campaigns\n\n{}",
        open.priority,
        open.requests,
        open.scheduled,
        open.confirmations,
        open.enrollments,
        table.trim_end(),
    );
    Ok(CommandOutput::Done(record, text))
}

/// Campaigns that are due and have not begun, and running ones that are not fully written or have something open, the largest first.
async fn campaigns(db: &mut PgConnection) -> sqlx::Result<Vec<Value>> {
    sqlx::query_scalar!(
        r#"select to_jsonb(r) - 'place' as "record!" from (
               select c.id as campaign, c.tenant_id as tenant, c.launch_prefix is not null as begun,
                      c.materialized_at is not null as written, n.open, n.sent,
                      coalesce(c.scheduled_for, c.launched_at, c.updated_at) as due_at,
                      row_number() over (partition by c.launch_prefix is null order by n.open desc) as place
               from campaigns c
               cross join lateral (
                   select coalesce(sum(b.queued + b.fenced + b.deferred), 0)::bigint as open,
                          coalesce(sum(b.sent), 0)::bigint as sent
                   from batches b where b.tenant_id = c.tenant_id and b.campaign_id = c.id
               ) n
               where c.status = 'sending' and c.completed_at is null and (n.open > 0 or c.materialized_at is null)
                  or c.status = 'scheduled' and coalesce(c.scheduled_for <= now(), true)) r
           where r.place <= 200
           order by r.begun, r.open desc"#
    )
    .fetch_all(db)
    .await
}
