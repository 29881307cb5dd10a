//! `postrider pause|resume|drain`: pause switches with operator and reason. They are stored in the ledger: they take effect at
//! once, survive restarts and work without NATS. The notification on the bus only makes a change known sooner.

mod campaign;
mod drain;
mod stage;
pub mod tenant;

use std::time::Duration;

use clap::Subcommand;
use runtime::{Bus, pause_switches::StageName};
use schemas::{Control, subjects};
use sqlx::PgConnection;
use uuid::Uuid;

use crate::operator::{BusArgs, CommandOutput, DatabaseArgs, list_records};

/// Timeout of the notification. The command does not wait for NATS to return: processes read the switches themselves.
const NOTIFY_TIMEOUT: Duration = Duration::from_secs(1);

/// Options that these commands share.
#[derive(Debug, Clone, clap::Args)]
pub struct PauseOptions {
    #[command(flatten)]
    database: DatabaseArgs,
    #[command(flatten)]
    bus: BusArgs,
}

/// Pauses something until it is resumed.
#[derive(Debug, clap::Args)]
pub struct PauseArgs {
    #[command(flatten)]
    options: PauseOptions,
    #[command(subcommand)]
    what: Pause,
}

/// Pauses something until it is resumed.
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
    options: PauseOptions,
    #[command(subcommand)]
    what: Resume,
}

/// Resumes something that was paused.
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
    options: PauseOptions,
    /// The stage.
    stage: StageName,
    /// How long to wait. After it the command prints the unfinished work and ends with status 1.
    #[arg(long, default_value = "60s", value_parser = humantime::parse_duration)]
    wait: Duration,
}

pub async fn pause(args: PauseArgs) -> anyhow::Result<()> {
    let database = &args.options.database;
    match args.what {
        Pause::Stage { names } => {
            let stages: Vec<&str> = names.into_iter().map(StageName::as_str).collect();
            database.operate(async |db| stage::pause(db, &stages).await).await?;
            notify_processes(&args.options.bus).await;
            Ok(())
        }
        Pause::Tenant { id } => database.operate(async |db| tenant::set_paused(db, id, true).await).await,
        Pause::Campaign { id } => database.operate(async |db| campaign::set_paused(db, id, true).await).await,
        Pause::List => database.operate(list).await,
    }
}

pub async fn resume(args: ResumeArgs) -> anyhow::Result<()> {
    let database = &args.options.database;
    match args.what {
        Resume::Stage { names, all } => {
            let stages: Vec<&str> = match all {
                true => StageName::NAMES.to_vec(),
                false => names.into_iter().map(StageName::as_str).collect(),
            };
            database.operate(async |db| stage::resume(db, &stages, all).await).await?;
            notify_processes(&args.options.bus).await;
            Ok(())
        }
        Resume::Tenant { id } => database.operate(async |db| tenant::set_paused(db, id, false).await).await,
        Resume::Campaign { id } => database.operate(async |db| campaign::set_paused(db, id, false).await).await,
    }
}

pub async fn drain(args: DrainArgs) -> anyhow::Result<std::process::ExitCode> {
    let pool = args.options.database.pool()?;
    let bus = args.options.bus.connect().await?;
    let stage = args.stage.as_str();
    let mut tx = pool.begin().await?;
    stage::pause(&mut tx, &[stage]).await?;
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
               select 'campaign', c.id::text, c.updated_at, null, c.pause_reason
               from campaigns c where c.paused and c.status in ('sending', 'scheduled') and c.completed_at is null) r
           order by what desc, since"#
    );
    list_records(db, query, &["what", "which", "since", "by", "reason"]).await
}
