//! `postrider requeue batch|send|campaign`: announces stuck work of the ledger again, and resolves unknown outcomes.
//!
//! Announcing again is harmless: a fence compares with the row. What is in doubt (`unknown`) may have left and is never put back into the queue;
//! an operator who has looked into the relay's log may say what became of it.

use anyhow::{Context, ensure};
use clap::Subcommand;
use serde_json::json;
use sqlx::PgPool;
use uuid::Uuid;

use crate::{
    find_tenant::{self, tenant_of},
    invocation::{self, audit_begun, audit_record},
    operator::{self, DatabaseArgs},
};
use ledger::decide::{self, OperatorDecision, OperatorOutcome};
use ledger::requeue::{self, RequeueScope, RequeuedWork};

/// Announces again work that does not move.
#[derive(Debug, clap::Args)]
pub struct RequeueArgs {
    #[command(flatten)]
    database: DatabaseArgs,
    /// Decides the sends among them whose outcome is in doubt. Needs a reason: what the relay's log says of them.
    #[arg(long, value_enum, global = true)]
    unknown_as: Option<OperatorOutcome>,
    /// Has deferred sends tried now instead of at their time.
    #[arg(long, global = true)]
    now: bool,
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Clone, Copy, Subcommand)]
enum What {
    /// One batch.
    Batch {
        /// Its id.
        id: Uuid,
    },
    /// One send, or the request that it will come from.
    Send {
        /// Its id.
        id: Uuid,
    },
    /// Everything of a campaign.
    Campaign {
        /// Its id.
        id: Uuid,
    },
}

pub async fn run(args: RequeueArgs) -> anyhow::Result<()> {
    let is_explained = invocation::reason().is_some();
    ensure!(
        args.unknown_as.is_none() || is_explained,
        "--unknown-as needs --reason: what the relay's log says of the sends"
    );
    let pool = args.database.pool()?;
    let scope = find(&pool, args.what).await?;
    let (tenant, subject) = (scope.tenant, scope.subject());
    let decision = args.unknown_as.map(OperatorOutcome::as_str);
    audit_begun(&pool, Some(tenant), "requeue", &subject, json!({"now": args.now, "as": decision})).await?;
    let requeued = requeue::requeue(&pool, &scope, args.now).await?;
    let doubtful = requeue::unknown_sends(&pool, &scope).await?;
    let decided = match args.unknown_as {
        Some(outcome) if !doubtful.is_empty() => {
            let bar = operator::progress_bar(doubtful.len() as u64, "deciding");
            let decision = OperatorDecision { outcome, from: &["unknown"], evidence: "operator" };
            let decided = decide::decide(&pool, &doubtful, decision, |count| bar.inc(count as u64)).await?;
            bar.finish_and_clear();
            decided
        }
        _ => 0,
    };
    let in_doubt = doubtful.len() as u64 - decided;
    let words = requeued.summary(decided, args.unknown_as, in_doubt);
    let record = json!({
        "what": subject, "tenant": tenant, "announced": requeued.batches, "requests": requeued.requests, "brought_forward": requeued.forward,
        "left_alone": requeued.not_requeued, "decided": decided, "in_doubt": in_doubt, "says": words,
    });
    let detail = json!({"announced": requeued.batches, "decided": decided, "as": decision});
    audit_record(&pool, Some(tenant), "requeue", subject, Some(&words), detail).await?;
    operator::print_result(&record, &words);
    // Only an outcome in doubt is decided: a send that is fenced may get its answer yet.
    let in_progress = requeued.not_requeued.in_progress;
    ensure!(
        args.unknown_as.is_none() || (in_doubt == 0 && (decided > 0 || in_progress == 0)),
        "not decided: {in_doubt} send(s) still unknown, {in_progress} batch(es) in progress; ask again later"
    );
    Ok(())
}

async fn find(pool: &PgPool, what: What) -> anyhow::Result<RequeueScope> {
    let mut db = pool.acquire().await?;
    let (tenant, work) = match what {
        What::Batch { id } => {
            ensure!(id == schemas::SendId(id).batch(), "this is no batch's id; is it a send's?");
            (tenant_of!(&mut *db, "batches", id)?.context("no such batch")?, RequeuedWork::Batch(id))
        }
        What::Send { id } => {
            (find_tenant::of_send(&mut db, id).await?.context("no such send")?, RequeuedWork::Send(id))
        }
        What::Campaign { id } => {
            (tenant_of!(&mut *db, "campaigns", id)?.context("no such campaign")?, RequeuedWork::Campaign(id))
        }
    };
    Ok(RequeueScope { tenant, work })
}
