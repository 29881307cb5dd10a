//! `postrider pause|resume|drain`: what is held back, by whom and why. All of it stands in the ledger: it holds at once, survives
//! restarts and works while NATS is away; the nudge on the bus only makes it known sooner.

mod campaign;
mod drain;
mod stage;
pub mod tenant;

use std::time::Duration;

use clap::Subcommand;
use runtime::Bus;
use schemas::{Control, subjects};
use serde_json::{Value, json};
use sqlx::PgPool;
use uuid::Uuid;

use crate::{
    operator::{self, BusArgs, DatabaseArgs},
    process::StageName,
};

/// How long a nudge may take. Nobody waits for NATS to come back: processes look for themselves.
const NUDGE_MAX: Duration = Duration::from_secs(1);

/// Where what is held back stands, and why it is.
#[derive(Debug, Clone, clap::Args)]
pub struct Place {
    #[command(flatten)]
    database: DatabaseArgs,
    #[command(flatten)]
    bus: BusArgs,
    /// Why: for the audit log, and for who finds it paused.
    #[arg(long, global = true, value_name = "WHY")]
    reason: Option<String>,
}

impl Place {
    fn reason(&self) -> Option<&str> {
        self.reason.as_deref().or(crate::who::because())
    }
}

/// Holds something back until it is resumed.
#[derive(Debug, clap::Args)]
pub struct PauseArgs {
    #[command(flatten)]
    place: Place,
    #[command(subcommand)]
    what: Pause,
}

#[derive(Debug, Subcommand)]
enum Pause {
    /// Stages start nothing more, and finish what they have in hand. Their work waits in the ledger and on the bus.
    Stage {
        /// Which.
        #[arg(required = true)]
        names: Vec<StageName>,
    },
    /// Nothing of a tenant is mailed once this has answered. Its requests are accepted, and wait.
    Tenant {
        /// The engine tenant.
        id: Uuid,
    },
    /// The campaign rests, as when its owner pauses it; he is told (`campaign.paused`).
    Campaign {
        /// The campaign.
        id: Uuid,
    },
    /// What is paused now.
    List,
}

/// Lets something go on that was paused.
#[derive(Debug, clap::Args)]
pub struct ResumeArgs {
    #[command(flatten)]
    place: Place,
    #[command(subcommand)]
    what: Resume,
}

#[derive(Debug, Subcommand)]
enum Resume {
    /// Stages go on.
    Stage {
        /// Which.
        #[arg(required_unless_present = "all")]
        names: Vec<StageName>,
        /// Every stage that is paused. A held ledger stays held: see `postrider restore release`.
        #[arg(long, conflicts_with = "names")]
        all: bool,
    },
    /// A tenant's mail goes on, what waited first.
    Tenant {
        /// The engine tenant.
        id: Uuid,
    },
    /// The campaign goes on, as when its owner resumes it.
    Campaign {
        /// The campaign.
        id: Uuid,
    },
}

/// Pauses a stage and waits until its processes have finished what they had in hand.
#[derive(Debug, clap::Args)]
pub struct DrainArgs {
    #[command(flatten)]
    place: Place,
    /// Which stage.
    stage: StageName,
    /// How long to wait; then it is said what is still in hand, and the command ends with 1.
    #[arg(long, default_value = "60s", value_parser = humantime::parse_duration)]
    wait: Duration,
}

pub async fn pause(args: PauseArgs) -> anyhow::Result<()> {
    let (pool, place) = (args.place.database.pool()?, args.place);
    match args.what {
        Pause::Stage { names } => {
            let stages: Vec<&str> = names.into_iter().map(StageName::name).collect();
            stage::pause(&pool, &stages, place.reason()).await?;
            nudge(&place.bus.connect().await?).await;
            stage::list(&pool, &stages).await
        }
        Pause::Tenant { id } => tenant::pause(&pool, id, place.reason()).await,
        Pause::Campaign { id } => campaign::hold(&pool, id, true, place.reason()).await,
        Pause::List => list(&pool).await,
    }
}

pub async fn resume(args: ResumeArgs) -> anyhow::Result<()> {
    let (pool, place) = (args.place.database.pool()?, args.place);
    match args.what {
        Resume::Stage { names, all } => {
            let stages: Vec<&str> = match all {
                true => runtime::pause_switches::STAGES.to_vec(),
                false => names.into_iter().map(StageName::name).collect(),
            };
            stage::resume(&pool, &stages, all, place.reason()).await?;
            nudge(&place.bus.connect().await?).await;
            stage::list(&pool, &stages).await
        }
        Resume::Tenant { id } => tenant::resume(&pool, id, place.reason()).await,
        Resume::Campaign { id } => campaign::hold(&pool, id, false, place.reason()).await,
    }
}

pub async fn drain(args: DrainArgs) -> anyhow::Result<std::process::ExitCode> {
    let pool = args.place.database.pool()?;
    let stage = args.stage.name();
    stage::pause(&pool, &[stage], args.place.reason()).await?;
    let bus = args.place.bus.connect().await?;
    nudge(&bus).await;
    drain::wait(&pool, &bus, stage, args.wait).await
}

/// Has every process look at the levers now.
pub async fn nudge(bus: &Bus) {
    let Ok(body) = serde_json::to_vec(&Control::PauseSwitches) else { return };
    let sent = async {
        bus.client().publish(bus.prefixed(subjects::CONTROL), body.into()).await.is_ok()
            && bus.client().flush().await.is_ok()
    };
    if !matches!(tokio::time::timeout(NUDGE_MAX, sent).await, Ok(true)) {
        eprintln!("NATS is away: processes see it within two seconds all the same");
    }
}

/// Everything that is held back, the whole engine's first.
async fn list(pool: &PgPool) -> anyhow::Result<()> {
    let rows = sqlx::query!(
        r#"select 'ledger' as "what!", l.id::text as "which!", l.held_at as "since!", l.held_by as actor, l.held_reason as reason
           from ledger l where l.held_at is not null
           union all
           select 'stage', p.stage, p.paused_at, p.actor, p.reason from stage_pauses p
           union all
           select 'tenant', t.id::text, t.paused_at, t.pause_actor, t.pause_reason from tenants t where t.paused_at is not null
           union all
           select 'campaign', c.id::text, c.updated_at, null, c.pause_reason
           from campaigns c where c.paused and c.status in ('sending', 'scheduled') and c.completed_at is null
           order by 1 desc, 3"#
    )
    .fetch_all(pool)
    .await?;
    let records: Vec<Value> = rows
        .into_iter()
        .map(|row| json!({"what": row.what, "which": row.which, "since": row.since, "by": row.actor, "reason": row.reason}))
        .collect();
    operator::print(&records, &["what", "which", "since", "by", "reason"]);
    Ok(())
}
