//! `postrider dead list|show|replay|drop`: what was set aside, why, and what to do with it.

mod letters;

use std::time::Duration;

use anyhow::bail;
use async_nats::jetstream::message::StreamMessage;
use clap::Subcommand;
use serde_json::{Value, json};
use uuid::Uuid;

use self::letters::{Letters, record};
use crate::{
    operator::{self, BusArgs, DatabaseArgs},
    progress, who,
    who::Act,
};

/// Dead letters.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    database: DatabaseArgs,
    #[command(flatten)]
    bus: BusArgs,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Lists dead letters, oldest first.
    List {
        #[command(flatten)]
        filter: Filter,
        /// At most this many.
        #[arg(long, default_value_t = 50)]
        limit: usize,
        /// However many there are.
        #[arg(long, conflicts_with = "limit")]
        all: bool,
    },
    /// One dead letter with its body.
    Show {
        /// Its number, as `list` shows it.
        number: u64,
    },
    /// Publishes dead letters to the subject they came from and removes them here.
    Replay(Choice),
    /// Removes dead letters for good.
    Drop(Choice),
}

/// Which dead letters. All that is given must fit.
#[derive(Debug, Default, clap::Args)]
struct Filter {
    /// Of this stage only.
    #[arg(long)]
    stage: Option<String>,
    /// With this reason only.
    #[arg(long = "reason", value_name = "REASON")]
    code: Option<String>,
    /// That came from subjects that begin like this: `mail.v1.request.shop`.
    #[arg(long)]
    subject: Option<String>,
    /// Of this engine tenant, as far as their bodies name one.
    #[arg(long)]
    tenant: Option<Uuid>,
    /// Set aside longer ago than this: `1h`, `2days`.
    #[arg(long, value_parser = humantime::parse_duration, value_name = "AGE")]
    older: Option<Duration>,
    /// Set aside within this time.
    #[arg(long, value_parser = humantime::parse_duration, value_name = "AGE")]
    newer: Option<Duration>,
}

#[derive(Debug, clap::Args)]
struct Choice {
    /// Their numbers.
    numbers: Vec<u64>,
    /// Every one that matches the filters.
    #[arg(long, conflicts_with = "numbers")]
    all: bool,
    #[command(flatten)]
    filter: Filter,
    /// At most this many of them, the oldest first.
    #[arg(long, requires = "all")]
    limit: Option<usize>,
}

pub async fn run(args: Args) -> anyhow::Result<()> {
    let bus = args.bus.connect().await?;
    let letters = Letters::open(&bus).await?;
    match &args.command {
        Command::List { filter, limit, all } => {
            let limit = if *all { usize::MAX } else { *limit };
            let found = letters.select(filter, limit).await?;
            let records: Vec<Value> = found.iter().map(record).collect();
            operator::print(&records, &["number", "at", "stage", "reason", "attempts", "detail"]);
            Ok(())
        }
        Command::Show { number } => {
            let letter = letters.get(*number).await?;
            let mut record = record(&letter);
            record["body"] = serde_json::from_slice(&letter.payload)
                .unwrap_or_else(|_| json!(String::from_utf8_lossy(&letter.payload)));
            operator::show(&record)
        }
        Command::Replay(choice) => clear(&args, &letters, choice, Way::Replay).await,
        Command::Drop(choice) => clear(&args, &letters, choice, Way::Drop).await,
    }
}

/// What becomes of dead letters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Replay,
    Drop,
}

impl Way {
    /// The act's name, and what it has done.
    fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::Replay => ("dead.replay", "replayed"),
            Self::Drop => ("dead.drop", "dropped"),
        }
    }
}

/// Removes the chosen ones here; before that, replays them.
async fn clear(args: &Args, letters: &Letters<'_>, choice: &Choice, way: Way) -> anyhow::Result<()> {
    let pool = args.database.pool()?;
    let chosen = chosen(letters, choice).await?;
    let (action, done) = way.words();
    let bar = progress::bar(chosen.len() as u64, done);
    let mut cleared = Vec::with_capacity(chosen.len());
    let mut failed = None;
    for letter in &chosen {
        if let Err(error) = clear_one(letters, letter, way).await {
            failed = Some(error);
            break;
        }
        cleared.push(letter.sequence);
        bar.inc(1);
        bar.suspend(|| {
            operator::say(&json!({"number": letter.sequence, "done": done}), &format!("{done} {}", letter.sequence))
        });
    }
    bar.finish_and_clear();
    // What was done is written down, also where the rest was not.
    let outcome = format!("{done} {} of {}", cleared.len(), chosen.len());
    let detail = Some(json!({"numbers": cleared}));
    let mut db = pool.acquire().await?;
    Act { action, subject: "dead letters", outcome: Some(&outcome), detail, ..Act::default() }.audit(&mut db).await?;
    if !who::wants_json() && chosen.is_empty() {
        println!("none fits");
    }
    failed.map_or(Ok(()), Err)
}

async fn clear_one(letters: &Letters<'_>, letter: &StreamMessage, way: Way) -> anyhow::Result<()> {
    if way == Way::Replay {
        letters.replay(letter).await?;
    }
    letters.remove(letter.sequence).await
}

async fn chosen(letters: &Letters<'_>, choice: &Choice) -> anyhow::Result<Vec<StreamMessage>> {
    if choice.all {
        return letters.select(&choice.filter, choice.limit.unwrap_or(usize::MAX)).await;
    }
    if choice.numbers.is_empty() {
        bail!("name the dead letters by number, or say --all");
    }
    let mut found = Vec::with_capacity(choice.numbers.len());
    for number in &choice.numbers {
        found.push(letters.get(*number).await?);
    }
    Ok(found)
}
