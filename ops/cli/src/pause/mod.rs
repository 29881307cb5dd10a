//! `postrider pause|resume|drain`: pause switches with operator and reason. They are stored in the ledger: they take effect at
//! once, survive restarts and work without NATS. The notification on the bus only makes a change known sooner.

mod drain;

use std::time::Duration;

use anyhow::{Context, bail};
use clap::Subcommand;
use ingress::api::campaigns::{self, PauseRefused};
use runtime::{Bus, StageName, pause_switches::OUTBOUND};
use schemas::{Control, subjects};
use serde_json::{Value, json};
use sqlx::PgConnection;
use uuid::Uuid;

use crate::{
    find_tenant::tenant_of,
    invocation::{self, audit_record},
    operator::{BusArgs, CommandOutput, ServerArgs, list_records},
};

/// Timeout of the notification. The command does not wait for NATS to return: processes read the switches themselves.
const NOTIFY_TIMEOUT: Duration = Duration::from_secs(1);

/// Pauses something until it is resumed.
#[derive(Debug, clap::Args)]
pub struct PauseArgs {
    #[command(flatten)]
    servers: ServerArgs,
    #[command(subcommand)]
    what: Pause,
}

#[derive(Debug, Subcommand)]
enum Pause {
    /// Stages start no more work, and finish the work they have begun. New work waits in the ledger and on the bus.
    Stage {
        /// The stages.
        #[arg(required = true)]
        names: Vec<StageName>,
    },
    /// No mail of the tenant leaves after this command has returned. Its requests are accepted, and wait.
    Tenant {
        /// The engine tenant.
        id: Uuid,
    },
    /// Pauses a campaign as its owner can. The owner receives the event `campaign.paused`.
    Campaign {
        /// The campaign.
        id: Uuid,
    },
    /// Lists what is paused now.
    List,
}

/// Resumes something that was paused.
#[derive(Debug, clap::Args)]
pub struct ResumeArgs {
    #[command(flatten)]
    servers: ServerArgs,
    #[command(subcommand)]
    what: Resume,
}

#[derive(Debug, Subcommand)]
enum Resume {
    /// Resumes stages.
    Stage {
        /// The stages.
        #[arg(required_unless_present = "all")]
        names: Vec<StageName>,
        /// Every paused stage. A paused ledger stays paused: see `postrider restore release`.
        #[arg(long, conflicts_with = "names")]
        all: bool,
    },
    /// Resumes a tenant's mail, waiting mail first.
    Tenant {
        /// The engine tenant.
        id: Uuid,
    },
    /// Resumes a campaign as its owner can.
    Campaign {
        /// The campaign.
        id: Uuid,
    },
}

/// Pauses a stage and waits until its processes have finished their work.
#[derive(Debug, clap::Args)]
pub struct DrainArgs {
    #[command(flatten)]
    servers: ServerArgs,
    /// The stage.
    stage: StageName,
    /// How long to wait. After it the command prints the unfinished work and ends with status 1.
    #[arg(long, default_value = "60s", value_parser = humantime::parse_duration)]
    wait: Duration,
}

pub async fn pause(args: PauseArgs) -> anyhow::Result<()> {
    let database = &args.servers.database;
    match args.what {
        Pause::Stage { names } => {
            let stages: Vec<&str> = names.into_iter().map(StageName::as_str).collect();
            database.operate(async |db| pause_stages(db, &stages).await).await?;
            notify_processes(&args.servers.bus).await;
            Ok(())
        }
        Pause::Tenant { id } => database.operate(async |db| set_tenant_paused(db, id, true).await).await,
        Pause::Campaign { id } => database.operate(async |db| set_campaign_paused(db, id, true).await).await,
        Pause::List => database.operate(list).await,
    }
}

pub async fn resume(args: ResumeArgs) -> anyhow::Result<()> {
    let database = &args.servers.database;
    match args.what {
        Resume::Stage { names, all } => {
            let stages: Vec<&str> = match all {
                true => StageName::NAMES.to_vec(),
                false => names.into_iter().map(StageName::as_str).collect(),
            };
            database.operate(async |db| resume_stages(db, &stages, all).await).await?;
            notify_processes(&args.servers.bus).await;
            Ok(())
        }
        Resume::Tenant { id } => database.operate(async |db| set_tenant_paused(db, id, false).await).await,
        Resume::Campaign { id } => database.operate(async |db| set_campaign_paused(db, id, false).await).await,
    }
}

pub async fn drain(args: DrainArgs) -> anyhow::Result<std::process::ExitCode> {
    let pool = args.servers.database.pool()?;
    let bus = args.servers.bus.connect().await?;
    let stage = args.stage.as_str();
    let mut tx = pool.begin().await?;
    pause_stages(&mut tx, &[stage]).await?;
    tx.commit().await?;
    notify(&bus).await;
    drain::wait(&pool, &bus, stage, args.wait).await
}

/// What came of a pause or a resumption.
fn outcome(was_paused: bool, paused: bool) -> &'static str {
    match (was_paused, paused) {
        (true, true) => "was paused already",
        (false, false) => "was not paused",
        (false, true) => "paused",
        (true, false) => "resumed",
    }
}

/// Notifies every process that pause switches changed. The change is committed: without NATS or its settings, processes read it later.
pub async fn notify_processes(bus: &BusArgs) {
    match bus.connect().await {
        Ok(bus) => notify(&bus).await,
        Err(error) => eprintln!("{error:#}; processes read the change within two seconds"),
    }
}

async fn notify(bus: &Bus) {
    let Ok(body) = serde_json::to_vec(&Control::PauseSwitches) else { return };
    let sent = async {
        bus.client().publish(bus.prefixed(subjects::CONTROL), body.into()).await.is_ok()
            && bus.client().flush().await.is_ok()
    };
    if !matches!(tokio::time::timeout(NOTIFY_TIMEOUT, sent).await, Ok(true)) {
        eprintln!("NATS is unavailable: processes read the change within two seconds");
    }
}

/// Lists everything that is paused, the ledger first.
async fn list(db: &mut PgConnection) -> anyhow::Result<CommandOutput> {
    let query = sqlx::query_scalar!(
        r#"select to_jsonb(r) as "record!" from (
               select 'ledger' as what, l.id::text as which, l.held_at as since, l.held_by as by, l.held_reason as reason
               from ledger l where l.held_at is not null
               union all
               select 'stage', p.stage, p.paused_at, p.actor, p.reason from stage_pauses p
               union all
               select 'tenant', t.id::text, t.paused_at, t.pause_actor, t.pause_reason from tenants t where t.paused_at is not null
               union all
               select 'campaign', c.id::text, coalesce(a.at, c.updated_at), a.actor, coalesce(a.reason, c.pause_reason)
               from campaigns c
               -- What paused it: the tripwire, an operator, or its owner. Of a repeated pause the first entry counts.
               left join lateral (
                   select a.at, a.actor, a.reason from audit_log a
                   where a.tenant_id = c.tenant_id and a.subject = c.id::text
                     and (a.action = 'campaign.paused'
                          or a.action = 'campaign.pause' and a.detail @> '{"paused": true, "was": null}')
                   order by a.at desc, a.id desc limit 1
               ) a on true
               where c.paused and c.status in ('sending', 'scheduled') and c.completed_at is null) r
           order by what desc, since"#
    );
    list_records(db, query, &["what", "which", "since", "by", "reason"]).await
}

/// Pauses stages. A stage that is paused already keeps its operator and reason.
async fn pause_stages(db: &mut PgConnection, stages: &[&str]) -> anyhow::Result<CommandOutput> {
    for stage in stages {
        let paused = sqlx::query!(
            "insert into stage_pauses (stage, actor, reason) values ($1, $2, $3) on conflict do nothing",
            stage,
            invocation::actor(),
            invocation::reason(),
        )
        .execute(&mut *db)
        .await?
        .rows_affected();
        audit_record(&mut *db, None, "stage.pause", stage, Some(outcome(paused == 0, true)), Value::Null).await?;
    }
    list_stages(db, stages).await
}

/// Resumes stages. With `all`, only paused stages are audited.
async fn resume_stages(db: &mut PgConnection, stages: &[&str], all: bool) -> anyhow::Result<CommandOutput> {
    for stage in stages {
        let resumed =
            sqlx::query!("delete from stage_pauses where stage = $1", stage).execute(&mut *db).await?.rows_affected();
        if all && resumed == 0 {
            continue;
        }
        audit_record(&mut *db, None, "stage.resume", stage, Some(outcome(resumed == 1, false)), Value::Null).await?;
    }
    list_stages(db, stages).await
}

async fn list_stages(db: &mut PgConnection, stages: &[&str]) -> anyhow::Result<CommandOutput> {
    let query = sqlx::query_scalar!(
        r#"select to_jsonb(r) - 'rank' as "record!" from (
               select w.stage, w.rank, p.stage is not null as paused, l.held_at is not null and w.stage = any ($2) as held,
                      p.paused_at as since, p.actor as by, p.reason
               from unnest($1::text[]) with ordinality as w (stage, rank)
               cross join ledger l
               left join stage_pauses p on p.stage = w.stage) r
           order by rank"#,
        stages as _,
        &OUTBOUND as _,
    );
    list_records(db, query, &["stage", "paused", "held", "since", "by", "reason"]).await
}

/// Pauses or resumes a tenant. When a pause returns, nothing of the tenant is fenced any more; what was put aside is announced by the
/// audience stage after a resumption.
async fn set_tenant_paused(db: &mut PgConnection, id: Uuid, paused: bool) -> anyhow::Result<CommandOutput> {
    if paused {
        ledger::gate::block_fences(db, id).await?;
    }
    let row = sqlx::query_scalar!(
        r#"select paused_at is not null as "paused!" from tenants where id = $1 for no key update"#,
        id
    );
    let was = row.fetch_optional(&mut *db).await?.context("no such tenant")?;
    if was != paused {
        sqlx::query!(
            "update tenants set paused_at = case when $2 then now() end, pause_actor = case when $2 then $3::text end,
                                pause_reason = case when $2 then $4::text end, resuming = not $2, updated_at = now(),
                                pauses = case when $2 then pauses
                                         else pauses + tstzmultirange(tstzrange(paused_at, greatest(paused_at, now()))) end
             where id = $1",
            id,
            paused,
            invocation::actor(),
            invocation::reason(),
        )
        .execute(&mut *db)
        .await?;
    }
    let outcome = outcome(was, paused);
    let action = if paused { "tenant.pause" } else { "tenant.resume" };
    audit_record(db, Some(id), action, id, Some(outcome), Value::Null).await?;
    Ok(CommandOutput::done(json!({"tenant": id, "paused": paused, "was_paused": was}), outcome))
}

/// Pauses or resumes a campaign. After a pause has returned, no send of the campaign is fenced.
async fn set_campaign_paused(db: &mut PgConnection, id: Uuid, paused: bool) -> anyhow::Result<CommandOutput> {
    let tenant = tenant_of!(&mut *db, "campaigns", id)?.context("no such campaign")?;
    let was = match campaigns::set_paused(db, tenant, id, paused).await {
        Ok(was) => was,
        Err(PauseRefused::NotFound) => bail!("no such campaign"),
        Err(PauseRefused::Already(status)) => {
            bail!("the campaign is {status}: only a scheduled or sending one can be paused")
        }
        Err(PauseRefused::Store(error)) => return Err(error.into()),
    };
    let outcome = outcome(was, paused);
    // A pause under this name becomes an event for the owner, so the operator's reason is not in its detail.
    let action = if paused && !was { "campaign.paused" } else { "campaign.pause" };
    let detail = json!({"paused": paused, "reason": "operator"});
    audit_record(db, Some(tenant), action, id, Some(outcome), detail).await?;
    Ok(CommandOutput::done(json!({"campaign": id, "tenant": tenant, "paused": paused, "was_paused": was}), outcome))
}
