//! `postrider recount`: proves that every counter equals a recount of what it counts. Reads only.

use std::process::ExitCode;

use attribution::Difference;
use serde_json::{Value, json};
use sqlx::{Executor, query_file_as};
use uuid::Uuid;

use crate::{
    find_tenant, invocation,
    operator::{self, DatabaseArgs},
};

/// Recounts sends, events, suppressions, members and outcomes, and compares with batches and totals. Ends with 1 when anything differs.
#[derive(Debug, clap::Args)]
pub struct RecountArgs {
    #[command(flatten)]
    database: DatabaseArgs,
    /// This engine tenant only.
    #[arg(long)]
    tenant: Option<Uuid>,
}

pub async fn run(args: RecountArgs) -> anyhow::Result<ExitCode> {
    let pool = args.database.pool()?;
    // One snapshot for all of it: work in progress is either in both sides or in neither.
    let mut tx = pool.begin_with("begin isolation level repeatable read read only").await?;
    // A count of everything reads everything once.
    tx.execute("set local enable_nestloop = off").await?;
    let tenant = args.tenant;
    find_tenant::require(&mut tx, tenant).await?;
    let bar = operator::spinner("counting");
    let mut found = query_file_as!(Difference, "queries/recount_batches.sql", tenant).fetch_all(&mut *tx).await?;
    found.extend(query_file_as!(Difference, "queries/recount_totals.sql", tenant).fetch_all(&mut *tx).await?);
    found.extend(query_file_as!(Difference, "queries/recount_suppressions.sql", tenant).fetch_all(&mut *tx).await?);
    found.extend(query_file_as!(Difference, "queries/recount_members.sql", tenant).fetch_all(&mut *tx).await?);
    found.extend(query_file_as!(Difference, "queries/recount_sequences.sql", tenant).fetch_all(&mut *tx).await?);
    found.extend(attribution::recount(&mut tx, tenant).await?);
    tx.rollback().await?;
    bar.finish_and_clear();
    if found.is_empty() {
        if !invocation::wants_json() {
            println!("every counter equals its recount");
        }
        return Ok(ExitCode::SUCCESS);
    }
    let records: Vec<Value> = found.iter().map(record).collect();
    operator::print(&records, &["counter", "of", "tenant", "stored", "counted"]);
    Ok(ExitCode::FAILURE)
}

fn record(difference: &Difference) -> Value {
    let Difference { tenant_id, counter, of, stored, recounted } = difference;
    json!({"counter": counter, "of": of, "tenant": tenant_id, "stored": stored, "counted": recounted})
}
