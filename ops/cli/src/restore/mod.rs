//! `postrider restore status|begin|reconcile|release`: after a database restore nothing leaves until an operator has closed the gap.
//!
//! The engine pauses a restored ledger by itself if it detects the restore; `begin` is for restores that it cannot detect.

mod evidence;
mod status;

use std::path::PathBuf;

use anyhow::{Context, bail};
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
    Begin {
        /// The reason, for the audit log and the list of paused things.
        #[arg(long, value_name = "WHY")]
        reason: Option<String>,
    },
    /// Marks sends as sent that the relay's or the provider's log shows: their ids, or our Message-IDs, anywhere in its lines.
    Reconcile {
        /// The log, or what was cut out of it; `-` for standard input.
        #[arg(long, value_name = "FILE")]
        sent: PathBuf,
        /// Says what would be marked, and marks nothing.
        #[arg(long)]
        dry_run: bool,
        /// Why, for the audit log.
        #[arg(long, value_name = "WHY")]
        reason: Option<String>,
    },
    /// Resumes. What is open then is sent.
    Release {
        /// How the gap was closed, for the audit log.
        #[arg(long, value_name = "WHY")]
        reason: String,
    },
}

pub async fn run(args: RestoreArgs) -> anyhow::Result<()> {
    let database = &args.database;
    match args.command {
        RestoreCommand::Status => return database.operate(status::report).await,
        RestoreCommand::Begin { reason } => database.operate(async |db| begin(db, reason.as_deref()).await).await?,
        RestoreCommand::Reconcile { sent, dry_run, reason } => {
            return evidence::reconcile(&database.pool()?, &sent, dry_run, reason.as_deref()).await;
        }
        RestoreCommand::Release { reason } => database.operate(async |db| release(db, &reason).await).await?,
    }
    pause::notify_processes(&args.bus).await;
    Ok(())
}

async fn begin(db: &mut PgConnection, reason: Option<&str>) -> anyhow::Result<CommandOutput> {
    let reason = reason.or(invocation::because());
    let held = sqlx::query!(
        "update ledger
         set held_at = now(), held_by = $1, held_reason = coalesce($2, 'held by an operator'), gap_from = marked_at, gap_to = now()
         where held_at is null
         returning id",
        invocation::actor(),
        reason,
    )
    .fetch_optional(&mut *db)
    .await?;
    let outcome = Some(if held.is_some() { "held" } else { "was held already" });
    let entry = AuditEntry { action: "restore.hold", subject: "ledger", reason, outcome, ..AuditEntry::default() };
    entry.audit(&mut *db).await?;
    status::report(db).await
}

async fn release(db: &mut PgConnection, reason: &str) -> anyhow::Result<CommandOutput> {
    if reason.trim().is_empty() {
        bail!("say how the gap was closed");
    }
    let held = sqlx::query!("select gap_from, gap_to from ledger where held_at is not null for update")
        .fetch_optional(&mut *db)
        .await?
        .context("the ledger is not held")?;
    sqlx::query!(
        "update ledger set held_at = null, held_by = null, held_reason = null, gap_from = null, gap_to = null"
    )
    .execute(&mut *db)
    .await?;
    let (action, subject, reason, outcome) = ("restore.release", "ledger", Some(reason), Some("released"));
    let detail = Some(json!({"gap_from": held.gap_from, "gap_to": held.gap_to}));
    AuditEntry { action, subject, reason, outcome, detail, ..AuditEntry::default() }.audit(db).await?;
    Ok(CommandOutput::done(json!({"held": false}), "released: what is open is sent from now on"))
}
