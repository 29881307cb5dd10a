//! `postrider quota show|set`.

use anyhow::{Context, ensure};
use clap::Subcommand;
use ledger::quota::{self, PeriodUsage, QuotaDefaults, QuotaUsage};
use serde_json::{Value, json};
use sqlx::PgConnection;
use uuid::Uuid;

use crate::{
    invocation::audit,
    operator::{CommandOutput, DatabaseArgs},
};

/// How many mails a tenant may send.
#[derive(Debug, clap::Args)]
pub struct QuotaArgs {
    #[command(flatten)]
    database: DatabaseArgs,
    /// The limits of tenants for which none is set, as the processes have them: they show in what is in force.
    #[command(flatten)]
    defaults: QuotaDefaults,
    #[command(subcommand)]
    command: QuotaCommand,
}

#[derive(Debug, Subcommand)]
enum QuotaCommand {
    /// A tenant's limits, what it has used, and when they start anew.
    Show {
        /// The engine tenant.
        tenant: Uuid,
    },
    /// Sets a tenant's own limits. Takes effect with the next mail. To stop a tenant altogether, suspend it.
    Set {
        /// The engine tenant.
        tenant: Uuid,
        /// Mails in a UTC month: a number, 0 for no limit, `default` for the setting's.
        #[arg(long, value_parser = limit, value_name = "N|default")]
        monthly: Option<Limit>,
        /// Mails in a UTC day: a number, 0 for no limit, `default` for the setting's.
        #[arg(long, value_parser = limit, value_name = "N|default")]
        daily: Option<Limit>,
    },
}

/// A limit as it is asked for. `None`: the setting's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Limit(Option<i64>);

fn limit(text: &str) -> Result<Limit, String> {
    if text == "default" {
        return Ok(Limit(None));
    }
    let number = text.parse::<u64>().ok().and_then(|number| i64::try_from(number).ok());
    number.map(|number| Limit(Some(number))).ok_or_else(|| "a whole number from 0, or default".to_owned())
}

pub async fn run(args: QuotaArgs) -> anyhow::Result<()> {
    let (QuotaCommand::Show { tenant } | QuotaCommand::Set { tenant, .. }) = args.command;
    args.database
        .operate(async |db| {
            let known = sqlx::query_scalar!("select 1 as one from tenants where id = $1", tenant);
            known.fetch_optional(&mut *db).await?.context("no such tenant")?;
            if let QuotaCommand::Set { monthly, daily, .. } = args.command {
                set(db, tenant, monthly, daily).await?;
            }
            let usage = quota::quota_usage(db, tenant, &args.defaults).await?;
            let columns = &["period", "limit", "from", "used", "remaining", "resets_at"];
            Ok(CommandOutput::Table(periods(tenant, &usage), columns))
        })
        .await
}

async fn set(db: &mut PgConnection, tenant: Uuid, monthly: Option<Limit>, daily: Option<Limit>) -> anyhow::Result<()> {
    ensure!(monthly.is_some() || daily.is_some(), "give --monthly, --daily or both");
    quota::set(db, tenant, monthly.map(|limit| limit.0), daily.map(|limit| limit.0)).await?;
    let word = |limit: Option<Limit>| match limit {
        None => "unchanged".to_owned(),
        Some(Limit(None)) => "default".to_owned(),
        Some(Limit(Some(number))) => number.to_string(),
    };
    Ok(audit(db, Some(tenant), "quota.set", format!("monthly {} daily {}", word(monthly), word(daily))).await?)
}

fn periods(tenant: Uuid, usage: &QuotaUsage) -> Vec<Value> {
    let record = |period: &str, set: Option<i64>, usage: PeriodUsage| {
        json!({
            "tenant": tenant, "period": period, "limit": usage.limit, "from": if set.is_some() { "tenant" } else { "setting" },
            "used": usage.used, "remaining": usage.remaining, "resets_at": usage.resets_at,
        })
    };
    vec![record("month", usage.set_monthly, usage.month), record("day", usage.set_daily, usage.day)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_a_number_or_default() {
        let cases = [
            ("0", Some(Limit(Some(0)))),
            ("1000", Some(Limit(Some(1_000)))),
            ("default", Some(Limit(None))),
            ("-1", None),
            ("many", None),
            ("99999999999999999999", None),
        ];
        for (text, expected) in cases {
            assert_eq!(limit(text).ok(), expected, "{text}");
        }
    }
}
