//! `postrider restore status|begin|reconcile|release`: after a database restore nothing leaves until an operator has closed the gap.
//!
//! The engine pauses a restored ledger by itself if it detects the restore; `begin` is for restores that it cannot detect.

mod evidence;
mod status;

use std::path::PathBuf;

use anyhow::{Context, bail};
use clap::Subcommand;
use serde_json::json;
use sqlx::PgPool;

use crate::{
    invocation::{self, AuditEntry},
    operator,
    operator::{BusArgs, DatabaseArgs},
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
    /// Lets go. What is open then is sent.
    Release {
        /// How the gap was closed, for the audit log.
        #[arg(long, value_name = "WHY")]
        reason: String,
    },
}

pub async fn run(args: RestoreArgs) -> anyhow::Result<()> {
    let pool = args.database.pool()?;
    match args.command {
        RestoreCommand::Status => status::print(&pool).await,
        RestoreCommand::Begin { reason } => {
            begin(&pool, reason.as_deref()).await?;
            pause::notify_processes(&args.bus.connect().await?).await;
            status::print(&pool).await
        }
        RestoreCommand::Reconcile { sent, dry_run, reason } => {
            evidence::reconcile(&pool, &sent, dry_run, reason.as_deref()).await
        }
        RestoreCommand::Release { reason } => {
            release(&pool, &reason).await?;
            pause::notify_processes(&args.bus.connect().await?).await;
            operator::print_result(&json!({"held": false}), "released: what is open is sent from now on");
            Ok(())
        }
    }
}

async fn begin(pool: &PgPool, reason: Option<&str>) -> anyhow::Result<()> {
    let mut tx = pool.begin().await?;
    let reason = reason.or(invocation::because());
    let held = sqlx::query!(
        "update ledger
         set held_at = now(), held_by = $1, held_reason = coalesce($2, 'held by an operator'), gap_from = marked_at, gap_to = now()
         where held_at is null
         returning id",
        invocation::actor(),
        reason,
    )
    .fetch_optional(&mut *tx)
    .await?;
    let outcome = Some(if held.is_some() { "held" } else { "was held already" });
    AuditEntry { action: "restore.hold", subject: "ledger", reason, outcome, ..AuditEntry::default() }
        .audit(&mut tx)
        .await?;
    tx.commit().await?;
    Ok(())
}

async fn release(pool: &PgPool, reason: &str) -> anyhow::Result<()> {
    if reason.trim().is_empty() {
        bail!("say how the gap was closed");
    }
    let mut tx = pool.begin().await?;
    let held = sqlx::query!("select gap_from, gap_to from ledger where held_at is not null for update")
        .fetch_optional(&mut *tx)
        .await?
        .context("the ledger is not held")?;
    sqlx::query!(
        "update ledger set held_at = null, held_by = null, held_reason = null, gap_from = null, gap_to = null"
    )
    .execute(&mut *tx)
    .await?;
    let detail = Some(json!({"gap_from": held.gap_from, "gap_to": held.gap_to}));
    let entry = AuditEntry {
        action: "restore.release",
        subject: "ledger",
        reason: Some(reason),
        outcome: Some("released"),
        detail,
        ..AuditEntry::default()
    };
    entry.audit(&mut tx).await?;
    tx.commit().await?;
    Ok(())
}
