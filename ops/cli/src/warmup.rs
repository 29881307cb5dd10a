//! `postrider warmup list|show|set|end`.

use clap::Subcommand;
use ledger::warmup::{self, DEFAULT_CAPS, WarmupState};
use serde_json::{Value, json};
use sqlx::PgConnection;

use crate::{
    domain::{DomainArgs, lock_domain},
    invocation::audit,
    operator::CommandOutput,
};

/// How many mails a day a new sending domain may send.
#[derive(Debug, Subcommand)]
pub enum WarmupCommand {
    /// The domains that are warmed up, with what is left for today.
    List,
    /// A domain's plan, day by day, and how far it has come.
    Show(DomainArgs),
    /// Warms a domain up. Takes effect with the next mail; days on which it has sent already count.
    Set {
        #[command(flatten)]
        domain: DomainArgs,
        /// Mails on the first, second … day of sending, comma-separated; after the last there is no limit. Default: a plan from 50 to
        /// a million in 16 days.
        #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(i64).range(1..), value_name = "N,N,…")]
        caps: Vec<i64>,
    },
    /// Ends the warm-up: no limit from the next mail on.
    End(DomainArgs),
}

pub async fn run(db: &mut PgConnection, command: WarmupCommand) -> anyhow::Result<CommandOutput> {
    match command {
        WarmupCommand::List => list(db).await,
        WarmupCommand::Show(domain) => show(db, &domain).await,
        WarmupCommand::Set { domain, caps } => set(db, &domain, true, Some(caps).filter(|caps| !caps.is_empty())).await,
        WarmupCommand::End(domain) => set(db, &domain, false, None).await,
    }
}

async fn set(
    db: &mut PgConnection,
    args: &DomainArgs,
    is_on: bool,
    caps: Option<Vec<i64>>,
) -> anyhow::Result<CommandOutput> {
    let domain = lock_domain(db, args).await?;
    warmup::set(db, domain.tenant, domain.id, is_on, caps.as_deref()).await?;
    let plan = match (is_on, &caps) {
        (false, _) => "end".to_owned(),
        (true, None) => "default plan".to_owned(),
        (true, Some(caps)) => format!("plan {caps:?}"),
    };
    audit(db, Some(domain.tenant), "warmup.set", format!("{} {plan}", args.domain)).await?;
    show(db, args).await
}

async fn show(db: &mut PgConnection, args: &DomainArgs) -> anyhow::Result<CommandOutput> {
    let domain = lock_domain(db, args).await?;
    let state = warmup::load_state(db, domain.tenant, domain.id).await?;
    Ok(match state.filter(|state| state.is_on) {
        Some(state) => CommandOutput::Table(days(&args.domain, &state), &["domain", "day", "cap", "used", "status"]),
        None => {
            CommandOutput::Table(vec![json!({"domain": args.domain, "status": "not_warmed_up"})], &["domain", "status"])
        }
    })
}

/// One record for each day of the plan.
fn days(name: &str, state: &WarmupState) -> Vec<Value> {
    let caps = state.caps.as_deref().unwrap_or(DEFAULT_CAPS);
    let day = |(at, cap): (usize, &i64)| {
        let (at, today) = (i64::try_from(at).unwrap_or(i64::MAX), state.days_before);
        let (used, status) = match at.cmp(&today) {
            std::cmp::Ordering::Less => (None, "over"),
            std::cmp::Ordering::Equal => (Some(state.used), "today"),
            std::cmp::Ordering::Greater => (None, "to_come"),
        };
        json!({"domain": name, "day": at + 1, "cap": cap, "used": used, "status": status})
    };
    caps.iter().enumerate().map(day).collect()
}

async fn list(db: &mut PgConnection) -> anyhow::Result<CommandOutput> {
    let rows = sqlx::query!(
        "select d.tenant_id, d.id, d.domain
         from domain_warmups w join domains d on d.tenant_id = w.tenant_id and d.id = w.domain_id
         where w.is_on order by d.domain, d.tenant_id"
    )
    .fetch_all(&mut *db)
    .await?;
    let mut records = Vec::with_capacity(rows.len());
    for row in rows {
        let Some(state) = warmup::load_state(db, row.tenant_id, row.id).await? else { continue };
        records.push(json!({
            "domain": row.domain, "tenant": row.tenant_id, "day": state.days_before + 1, "cap": state.cap(),
            "used": state.used, "left": state.remaining(),
        }));
    }
    Ok(CommandOutput::Table(records, &["domain", "tenant", "day", "cap", "used", "left"]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;

    #[test]
    fn the_plan_shows_where_the_domain_stands() {
        let state = WarmupState {
            tenant_id: Uuid::nil(),
            domain_id: Uuid::nil(),
            is_on: true,
            caps: Some(vec![5, 10, 20]),
            days_before: 1,
            used: 7,
            today: chrono::NaiveDate::MIN,
        };
        let shown = days("acme.example", &state);
        assert_eq!(shown[1], json!({"domain": "acme.example", "day": 2, "cap": 10, "used": 7, "status": "today"}));
        assert_eq!([&shown[0]["status"], &shown[2]["status"]], ["over", "to_come"]);
    }
}
