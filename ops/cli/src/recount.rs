//! `postrider recount`: proves that every counter equals a recount of what it counts. Reads only.

use std::process::ExitCode;

use serde_json::{Value, json};
use sqlx::Executor;
use uuid::Uuid;

use crate::{
    invocation,
    operator::{self, DatabaseArgs},
    progress,
};

/// Recounts sends, events, suppressions and outcomes, and compares with batches and totals. Ends with 1 when anything differs.
#[derive(Debug, clap::Args)]
pub struct RecountArgs {
    #[command(flatten)]
    database: DatabaseArgs,
    /// This engine tenant only.
    #[arg(long)]
    tenant: Option<Uuid>,
}

const COLUMNS: [&str; 5] = ["counter", "of", "tenant", "stored", "counted"];

pub async fn run(args: RecountArgs) -> anyhow::Result<ExitCode> {
    let pool = args.database.pool()?;
    // One snapshot for all of it: work in progress is either in both sides or in neither.
    let mut tx = pool.begin_with("begin isolation level repeatable read read only").await?;
    // A count of everything reads everything once.
    tx.execute("set local enable_nestloop = off").await?;
    let bar = progress::spinner("counting");
    let mut found: Vec<Value> = Vec::new();
    let batches = sqlx::query_file!("queries/recount_batches.sql", args.tenant).fetch_all(&mut *tx).await?;
    found.extend(batches.into_iter().map(|row| {
        difference(row.tenant_id, &row.counter, &format!("batch {}", row.batch_id), row.booked, row.counted)
    }));
    let totals = sqlx::query_file!("queries/recount_totals.sql", args.tenant).fetch_all(&mut *tx).await?;
    found.extend(totals.into_iter().map(|row| {
        let of = format!("{} {}", row.kind, row.hour.format("%Y-%m-%dT%H:00Z"));
        difference(row.tenant_id, &row.event, &of, row.booked, row.counted)
    }));
    let suppressions = sqlx::query_file!("queries/recount_suppressions.sql", args.tenant).fetch_all(&mut *tx).await?;
    found.extend(
        suppressions
            .into_iter()
            .map(|row| difference(row.tenant_id, &row.reason, "suppressions", row.booked, row.counted)),
    );
    let sequences = sqlx::query_file!("queries/recount_sequences.sql", args.tenant).fetch_all(&mut *tx).await?;
    found.extend(sequences.into_iter().map(|row| {
        difference(row.tenant_id, &row.counter, &format!("sequence {}", row.sequence_id), row.booked, row.counted)
    }));
    let outcomes = attribution::recount(&mut tx, args.tenant).await?;
    found.extend(outcomes.into_iter().map(|of| difference(of.tenant_id, &of.counter, &of.of, of.stored, of.recounted)));
    tx.rollback().await?;
    bar.finish_and_clear();
    if found.is_empty() {
        if !invocation::wants_json() {
            println!("every counter equals its recount");
        }
        return Ok(ExitCode::SUCCESS);
    }
    operator::print(&found, &COLUMNS);
    Ok(ExitCode::FAILURE)
}

fn difference(tenant: Uuid, counter: &str, of: &str, stored: i64, counted: i64) -> Value {
    json!({"counter": counter, "of": of, "tenant": tenant, "stored": stored, "counted": counted})
}
