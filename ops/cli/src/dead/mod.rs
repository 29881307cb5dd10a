//! `postrider dead list|show|replay|drop`: dead letters, their codes, and what to do with them.

mod dead_letters;

use std::time::Duration;

use anyhow::ensure;
use async_nats::jetstream::message::StreamMessage;
use clap::{Subcommand, builder::PossibleValuesParser};
use serde_json::{Value, json};
use uuid::Uuid;

use self::dead_letters::{DeadLetters, body, is_request, record};
use crate::{
    invocation::{self, audit_record},
    operator::{self, ServerArgs},
};

/// Dead letters.
#[derive(Debug, clap::Args)]
pub struct DeadArgs {
    #[command(flatten)]
    servers: ServerArgs,
    #[command(subcommand)]
    command: DeadCommand,
}

#[derive(Debug, Subcommand)]
enum DeadCommand {
    /// Lists dead letters, oldest first.
    List {
        #[command(flatten)]
        filter: DeadLetterFilter,
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
    /// Publishes dead letters to the subject they came from and removes them here. `--all` leaves out what products published themselves:
    /// they were told that it was rejected, and may have published it again. Such requests are named by number or `--subject`.
    Replay(DeadLetterChoice),
    /// Removes dead letters for good.
    Drop(DeadLetterChoice),
}

/// Selects dead letters that match all given filters.
#[derive(Debug, Default, clap::Args)]
struct DeadLetterFilter {
    /// Of this stage only.
    #[arg(long, value_parser = PossibleValuesParser::new(runtime::process_parts()))]
    stage: Option<String>,
    /// With this code only.
    #[arg(long)]
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
struct DeadLetterChoice {
    /// Their numbers.
    numbers: Vec<u64>,
    /// Every one that matches the filters.
    #[arg(long, conflicts_with = "numbers")]
    all: bool,
    #[command(flatten)]
    filter: DeadLetterFilter,
    /// At most this many of them, the oldest first.
    #[arg(long, requires = "all")]
    limit: Option<usize>,
}

pub async fn run(args: DeadArgs) -> anyhow::Result<()> {
    let bus = args.servers.bus.connect().await?;
    let dead_letters = DeadLetters::open(&bus).await?;
    match &args.command {
        DeadCommand::List { filter, limit, all } => {
            let limit = if *all { usize::MAX } else { *limit };
            let mut records: Vec<Value> = Vec::new();
            dead_letters
                .each(filter, limit, async |letter| {
                    records.push(record(&letter));
                    Ok(true)
                })
                .await?;
            operator::print(&records, &["number", "at", "stage", "code", "attempts", "detail"]);
            Ok(())
        }
        DeadCommand::Show { number } => {
            let letter = dead_letters.get(*number).await?;
            let mut record = record(&letter);
            record["body"] = body(&letter).unwrap_or_else(|| json!(String::from_utf8_lossy(&letter.payload)));
            operator::print_result(&record, &format!("{record:#}"));
            Ok(())
        }
        DeadCommand::Replay(choice) | DeadCommand::Drop(choice) => clear(&args, &dead_letters, choice).await,
    }
}

/// Removes the chosen dead letters; before that, replays them if asked to. Each as it is read: their bodies may be large, and many.
async fn clear(args: &DeadArgs, dead_letters: &DeadLetters<'_>, choice: &DeadLetterChoice) -> anyhow::Result<()> {
    let pool = args.servers.database.pool()?;
    let is_replay = matches!(args.command, DeadCommand::Replay(_));
    let (action, done) = if is_replay { ("dead.replay", "replayed") } else { ("dead.drop", "dropped") };
    let leaves_requests = is_replay && choice.all && choice.filter.subject.is_none();
    let spinner = operator::spinner(done);
    let mut cleared = Vec::new();
    let clear_one = async |letter: StreamMessage| {
        if leaves_requests && is_request(&letter) {
            return Ok(false);
        }
        if is_replay {
            dead_letters.replay(&letter).await?;
        }
        let number = letter.sequence;
        dead_letters.remove(number).await?;
        cleared.push(number);
        let record = json!({"number": number, "done": done});
        spinner.suspend(|| operator::print_result(&record, &format!("{done} {number}")));
        Ok(true)
    };
    let ended = visit_chosen(dead_letters, choice, clear_one).await;
    spinner.finish_and_clear();
    // Audited also if some failed.
    let outcome = format!("{done} {}", cleared.len());
    if !invocation::wants_json() && ended.is_ok() && cleared.is_empty() {
        println!("none fits");
    }
    audit_record(&pool, None, action, "dead letters", Some(&outcome), json!({"numbers": cleared})).await?;
    ended
}

async fn visit_chosen(
    dead_letters: &DeadLetters<'_>,
    choice: &DeadLetterChoice,
    mut take: impl AsyncFnMut(StreamMessage) -> anyhow::Result<bool>,
) -> anyhow::Result<()> {
    if choice.all {
        return dead_letters.each(&choice.filter, choice.limit.unwrap_or(usize::MAX), take).await;
    }
    ensure!(!choice.numbers.is_empty(), "name the dead letters by number, or say --all");
    for number in &choice.numbers {
        take(dead_letters.get(*number).await?).await?;
    }
    Ok(())
}
