//! `postrider restore status|begin|reconcile|release`: after a database restore nothing leaves until an operator has closed the gap.
//!
//! The engine pauses a restored ledger by itself if it detects the restore; `begin` is for restores that it cannot detect.

mod evidence;
mod status;

use std::path::PathBuf;

use anyhow::{Context, ensure};
use clap::Subcommand;
use serde_json::json;
use sqlx::PgConnection;

use crate::{
    invocation::{self, AuditEntry},
    operator::{BusArgs, CommandOutput, DatabaseArgs},
    pause,
};

/// After a restore.
#[derive(Debug, clap::Args)]
pub struct RestoreArgs {
    #[command(flatten)]
    database: DatabaseArgs,
    #[command(flatten)]
    bus: BusArgs,
    #[command(subcommand)]
    command: RestoreCommand,
}

/// After a restore.
#[derive(Debug, Subcommand)]
enum RestoreCommand {
    /// Prints whether the ledger is paused, the missing time, and the open sends that may have left in it.
    Status,
    /// Holds the ledger: delivery, webhooks and sequencing start nothing, in every process, from now on.
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
    let database = &args.database;
    match args.command {
        RestoreCommand::Status => return database.operate(status::report).await,
        RestoreCommand::Begin => database.operate(begin).await?,
        RestoreCommand::Reconcile { sent, dry_run } => {
            return evidence::reconcile(&database.pool()?, &sent, dry_run).await;
        }
        RestoreCommand::Release => database.operate(release).await?,
    }
    pause::notify_processes(&args.bus).await;
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
    let outcome = Some(if held.is_some() { "held" } else { "was held already" });
    let entry = AuditEntry { action: "restore.hold", subject: "ledger", outcome, ..AuditEntry::default() };
    entry.audit(&mut *db).await?;
    status::report(db).await
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
    let (action, subject, outcome) = ("restore.release", "ledger", Some("released"));
    let detail = Some(json!({"gap_from": held.gap_from, "gap_to": held.gap_to}));
    AuditEntry { action, subject, outcome, detail, ..AuditEntry::default() }.audit(db).await?;
    Ok(CommandOutput::done(json!({"held": false}), "released: what is open is sent from now on"))
}
