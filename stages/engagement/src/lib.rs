//! The engagement stage: what recipients do with a mail, recorded once however often and in whatever order it is told.
//!
//! Facts fold to the same state in any order, any number of times: a repeat is refused by the key of `events`, the times on the
//! send are the earliest, and a unique open is counted by the transaction that sets its first time. Every open and click is
//! kept; the rules of [`machine`] say which were a person's, and those have times and counters of their own.

pub mod bounce;
mod compact;
mod fold;
mod hours;
pub mod machine;
mod opt_out;
pub mod preferences;

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use runner::{Deps, Intake, Stage, StageError};
use runtime::{Counter, Publication};
use schemas::{Lane, Signal, subjects};
use sqlx::PgPool;

pub use opt_out::{OptOut, opt_out};

/// Settings of the engagement stage.
#[derive(Debug, Clone, clap::Args)]
#[group(skip)]
pub struct Settings {
    /// Groups of signals recorded at the same time.
    #[arg(long, env = "POSTRIDER_ENGAGEMENT_WORKERS", default_value_t = 2)]
    pub engagement_workers: usize,
    /// So many soft bounces (mailbox full, switched off, its server away) with nothing that arrived in between, and the mailbox
    /// gets no marketing mail for a while. 0: never.
    #[arg(long, env = "POSTRIDER_SOFT_BOUNCE_LIMIT", default_value_t = 3)]
    pub soft_bounce_limit: u32,
    /// Within so long.
    #[arg(long, env = "POSTRIDER_SOFT_BOUNCE_WINDOW", default_value = "14d", value_parser = humantime::parse_duration)]
    pub soft_bounce_window: Duration,
    /// For so long; then it is tried again.
    #[arg(long, env = "POSTRIDER_SOFT_BOUNCE_PAUSE", default_value = "30d", value_parser = humantime::parse_duration)]
    pub soft_bounce_pause: Duration,
}

/// Signals one transaction records at most.
const COALESCE: usize = 500;

struct Engagement {
    pool: PgPool,
    shard: i16,
}

/// Starts the stage's workers.
///
/// # Errors
/// None today; the signature is every stage's.
pub async fn start(deps: &Deps, settings: &Settings) -> Result<(), StageError> {
    let intake = Intake {
        lane: Lane::Priority,
        stream: subjects::stream::SIGNALS,
        durable: "engagement-priority".to_owned(),
        subjects: vec![subjects::signal("*")],
        workers: settings.engagement_workers.max(1),
        coalesce: COALESCE,
    };
    let stage = Engagement { pool: deps.pool.clone(), shard: fold::random_shard() };
    deps.runner.start(Arc::new(stage), vec![intake]);
    deps.runner.start_sweep(Engagement::NAME, Arc::new(compact::Logs(deps.pool.clone())));
    deps.runner.start_sweep(Engagement::NAME, Arc::new(compact::PastHours(deps.pool.clone())));
    let limits = bounce::Limits {
        count: settings.soft_bounce_limit,
        window: settings.soft_bounce_window,
        pause: settings.soft_bounce_pause,
    };
    deps.runner.start_sweep(Engagement::NAME, Arc::new(bounce::SoftBounces { pool: deps.pool.clone(), limits }));
    Ok(())
}

#[async_trait]
impl Stage for Engagement {
    const NAME: &'static str = "engagement";
    type Input = Signal;

    async fn handle(&self, inputs: &[Signal]) -> Result<Vec<Publication>, StageError> {
        let fresh = match fold::record(&self.pool, inputs, self.shard).await? {
            fold::Recorded::Fresh(fresh) => fresh,
            // Of several inputs: the runner hands them in alone, and only the signal of this send is set aside.
            fold::Recorded::UnknownSend(send) => return Err(StageError::rejected("unknown_send", send)),
        };
        for (kind, count) in fresh.by_kind() {
            Counter::SignalsTotal.add(count, [("kind", kind), ("outcome", "recorded")]);
        }
        Counter::SignalsTotal
            .add((inputs.len() as u64).saturating_sub(fresh.len()), [("kind", "any"), ("outcome", "repeated")]);
        Ok(Vec::new())
    }
}
