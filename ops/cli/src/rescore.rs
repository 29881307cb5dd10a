//! `postrider rescore`: classifies opens and clicks again by this version's rules for machines.

use chrono::{DateTime, Utc};
use ledger::facts::rescore::{RescoreScope, RescoreTotals, rescore};
use serde_json::json;
use uuid::Uuid;

use crate::{
    find_tenant,
    invocation::{audit_begun, audit_record},
    operator::{self, DatabaseArgs},
};

/// Classifies opens and clicks again as human or machine, and updates times and counters. Harmless to
/// repeat, and to interrupt.
#[derive(Debug, clap::Args)]
pub struct RescoreArgs {
    #[command(flatten)]
    database: DatabaseArgs,
    /// This engine tenant only.
    #[arg(long)]
    tenant: Option<Uuid>,
    /// Mail made since then only, such as 2026-03-01T00:00:00Z.
    #[arg(long, value_parser = operator::timestamp)]
    since: Option<DateTime<Utc>>,
    /// Says what would change, and changes nothing.
    #[arg(long)]
    dry_run: bool,
}

/// Mails between two lines of progress.
const LINE_EVERY: u64 = 10_000;

pub async fn run(args: RescoreArgs) -> anyhow::Result<()> {
    let pool = args.database.pool()?;
    find_tenant::require(&mut *pool.acquire().await?, args.tenant).await?;
    let bar = operator::spinner("rescoring");
    let mut reported = 0;
    let progress = |done: &RescoreTotals| {
        bar.set_message(line(done));
        // Without a terminal, print a line now and then.
        if bar.is_hidden() && done.sends >= reported + LINE_EVERY {
            reported = done.sends;
            eprintln!("{}", line(done));
        }
    };
    if !args.dry_run {
        audit_begun(&pool, args.tenant, "rescore", "opens and clicks", json!({"since": args.since})).await?;
    }
    let scope = RescoreScope { tenant: args.tenant, since: args.since };
    let done = rescore(&pool, scope, args.dry_run, progress).await?;
    bar.finish_and_clear();
    let record = json!({
        "sends": done.sends, "events": done.events, "marked": done.marked, "cleared": done.cleared, "relabelled": done.relabelled,
        "dry_run": args.dry_run,
    });
    let ending = if args.dry_run { "; nothing was changed" } else { "" };
    operator::print_result(&record, &format!("{}{ending}", line(&done)));
    if !args.dry_run {
        audit_record(&pool, args.tenant, "rescore", "opens and clicks", None, record).await?;
    }
    Ok(())
}

fn line(done: &RescoreTotals) -> String {
    let RescoreTotals { sends, events, marked, cleared, relabelled } = done;
    format!(
        "{sends} mails, {events} opens and clicks: {marked} now a machine's, {cleared} now a person's, {relabelled} the same for another reason"
    )
}
