//! The engagement stage: records opens, clicks, opt-outs, bounces, complaints and answers, each fact once, in any order of arrival.
//!
//! Facts fold to the same state in any order, any number of times: a repeat is refused by the key of `events`, the times on the
//! send are the earliest, and a unique open is counted by the transaction that sets its first time. Every open and click is
//! kept; the rules of [`machine`] say which were a person's, and those have times and counters of their own.

pub mod inbound;
pub mod inbound_smtp;
mod reading;
mod recorder;

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use runner::{Deps, Intake, Stage, StageError};
use runtime::{Counter, Job, Publication, plans::PreparedPool};
use schemas::{Lane, Signal, subjects};

use ledger::{compact, facts, hours::random_shard, soft_bounces};

/// The jobs this stage runs in reader processes ([`runtime::Reader`]).
pub const READER_JOBS: &[Job] = &[reading::MAIL];

/// Settings of the engagement stage.
#[derive(Debug, Clone, clap::Args)]
#[group(skip)]
pub struct Settings {
    /// Soft bounces (mailbox full, switched off, its server away) in a row after which a mailbox gets no marketing mail for a while. A
    /// mail that arrives in between starts the count anew. 0: never.
    #[arg(long, env = "POSTRIDER_SOFT_BOUNCE_LIMIT", default_value_t = 3)]
    pub soft_bounce_limit: u32,
    /// The time within which `soft-bounce-limit` counts.
    #[arg(long, env = "POSTRIDER_SOFT_BOUNCE_WINDOW", default_value = "14d", value_parser = humantime::parse_duration)]
    pub soft_bounce_window: Duration,
    /// How long the mailbox then gets no marketing mail.
    #[arg(long, env = "POSTRIDER_SOFT_BOUNCE_PAUSE", default_value = "30d", value_parser = humantime::parse_duration)]
    pub soft_bounce_pause: Duration,
    /// The inbound SMTP server.
    #[command(flatten)]
    pub inbound_smtp: inbound_smtp::InboundSmtpSettings,
}

/// Sources of signals that name their send: tracking links, and the sandbox.
const SOURCES: [&str; 2] = ["tracking", "sandbox"];
/// Signals one transaction records at most.
const COALESCE: usize = 500;
/// Groups of signals recorded at the same time.
const WORKERS: usize = 2;

struct Engagement {
    by_key: PreparedPool,
    shard: i16,
}

/// Starts the stage's workers.
///
/// # Errors
/// When the address of the inbound SMTP server cannot be bound.
pub async fn start(deps: &Deps, settings: &Settings) -> Result<(), StageError> {
    let intake = Intake {
        lane: Lane::Priority,
        stream: subjects::stream::SIGNALS,
        durable: "engagement-priority".to_owned(),
        // Not `*`: provider events have another consumer.
        subjects: SOURCES.map(subjects::signal).to_vec(),
        workers: WORKERS,
        coalesce: COALESCE,
    };
    let shard = random_shard();
    deps.runner.start(Arc::new(Engagement { by_key: deps.by_key.bulk(Engagement::NAME), shard }), vec![intake]);
    inbound::start(deps, shard);
    deps.runner.start_sweep(Engagement::NAME, Arc::new(compact::FoldLogs(deps.pool.clone())));
    deps.runner.start_sweep(Engagement::NAME, Arc::new(compact::MergeHours(deps.pool.clone())));
    let limits = soft_bounces::SoftBounceLimits {
        count: settings.soft_bounce_limit,
        window: settings.soft_bounce_window,
        pause: settings.soft_bounce_pause,
    };
    deps.runner.start_sweep(Engagement::NAME, Arc::new(soft_bounces::SoftBounces { pool: deps.pool.clone(), limits }));
    deps.runner.start_sweep(
        Engagement::NAME,
        Arc::new(inbound_smtp::ReadInboundMail {
            pool: deps.pool.clone(),
            by_key: deps.by_key.bulk(Engagement::NAME),
            reader: deps.reader.clone(),
            tokens: deps.tokens.clone(),
            shard,
        }),
    );
    inbound_smtp::listen(deps, &settings.inbound_smtp)
        .await
        .map_err(|error| StageError::rejected("inbound_addr", error))?;
    Ok(())
}

#[async_trait]
impl Stage for Engagement {
    const NAME: &'static str = "engagement";
    const SPAN: &'static str = "engagement fold";
    type Input = Signal;

    async fn handle(&self, inputs: &[Signal]) -> Result<Vec<Publication>, StageError> {
        let mut tx = self.by_key.begin().await?;
        let facts::RecordedSignals { fresh, unknown, .. } = facts::record(&mut tx, inputs, &[], self.shard).await?;
        // An unknown send may come yet; until then its facts wait, and delay no others.
        let pending = inbound::add_pending_signals(&mut tx, inputs, &unknown).await?;
        tx.commit().await?;
        let repeated = (inputs.len() as u64).saturating_sub(fresh.values().sum::<u64>() + pending);
        for (kind, count) in fresh {
            Counter::SignalsTotal.add(count, [("kind", kind), ("outcome", "recorded")]);
        }
        Counter::SignalsTotal.add(repeated, [("kind", "any"), ("outcome", "repeated")]);
        Counter::SignalsTotal.add(pending, [("kind", "any"), ("outcome", "pending")]);
        Ok(Vec::new())
    }
}
