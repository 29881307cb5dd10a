//! `postrider tenant attribution`: the model and the windows by which a tenant's outcomes are credited.

use ::attribution::{CLICK_DAYS_MAX, DELIVERY_DAYS_MAX, Policy};
use anyhow::{Context, bail};
use chrono::{DateTime, Utc};
use schemas::AttributionModel;
use serde_json::json;
use sqlx::PgPool;
use uuid::Uuid;

use crate::{invocation::audit, operator};

/// What is not named stays as it is. Without any option, shows what holds.
#[derive(Debug, clap::Args)]
pub(super) struct AttributionArgs {
    /// The engine tenant.
    id: Uuid,
    /// Who is credited: last_touch, first_touch or linear.
    #[arg(long, value_parser = model)]
    model: Option<AttributionModel>,
    /// How many days before an outcome a person's click counts.
    #[arg(long, value_parser = clap::value_parser!(i32).range(1..=i64::from(CLICK_DAYS_MAX)))]
    click_days: Option<i32>,
    /// How many days before it a delivery counts if there is no click; 0: never.
    #[arg(long, value_parser = clap::value_parser!(i32).range(0..=i64::from(DELIVERY_DAYS_MAX)))]
    delivery_days: Option<i32>,
    /// Credits outcomes anew only if they happened since. Default: all there are, so that reports follow one model.
    #[arg(long)]
    restate_since: Option<DateTime<Utc>>,
}

fn model(text: &str) -> Result<AttributionModel, String> {
    AttributionModel::parse(text).ok_or_else(|| "must be last_touch, first_touch or linear".to_owned())
}

pub(super) async fn run(pool: &PgPool, args: AttributionArgs) -> anyhow::Result<()> {
    let mut tx = pool.begin().await?;
    let known = sqlx::query_scalar!("select id from tenants where id = $1", args.id).fetch_optional(&mut *tx).await?;
    if known.is_none() {
        bail!("no such tenant");
    }
    let before = Policy::of(&mut tx, &[args.id]).await?.remove(&args.id).unwrap_or_default();
    let policy = Policy {
        model: args.model.unwrap_or(before.model),
        click_days: args.click_days.unwrap_or(before.click_days),
        delivery_days: args.delivery_days.unwrap_or(before.delivery_days),
    };
    let asked = args.model.is_some() || args.click_days.is_some() || args.delivery_days.is_some();
    let mut restated = None;
    if asked || args.restate_since.is_some() {
        policy.set(&mut tx, args.id).await?;
        let since = args.restate_since.unwrap_or(DateTime::UNIX_EPOCH);
        restated = Some(Policy::restate(&mut tx, args.id, since).await?);
        audit(&mut tx, Some(args.id), "tenant.attribution", policy.model.as_str()).await?;
    }
    tx.commit().await.context("not set")?;
    let record = json!({
        "model": policy.model, "click_days": policy.click_days, "delivery_days": policy.delivery_days,
        "outcomes_to_restate": restated,
    });
    operator::print(&[record], &["model", "click_days", "delivery_days", "outcomes_to_restate"]);
    Ok(())
}
