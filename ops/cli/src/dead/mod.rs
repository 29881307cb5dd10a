//! `postrider dead list|show|replay|drop`: what was set aside, why, and what to do with it.

use anyhow::{Context, bail};
use async_nats::jetstream::{self, message::StreamMessage};
use clap::Subcommand;
use runtime::{Bus, Publication};
use schemas::subjects::{header, stream};
use serde_json::{Value, json};

use crate::operator::{self, BusArgs};

/// Dead letters.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    bus: BusArgs,
    /// One JSON object a line.
    #[arg(long, global = true)]
    json: bool,
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

#[derive(Debug, clap::Args)]
struct Filter {
    /// Of this stage only.
    #[arg(long)]
    stage: Option<String>,
    /// With this reason only.
    #[arg(long)]
    reason: Option<String>,
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
}

pub async fn run(args: Args) -> anyhow::Result<()> {
    let bus = args.bus.connect().await?;
    let letters = bus.jetstream().get_stream(bus.prefixed(stream::DEAD)).await.context("the dead letter stream")?;
    match args.command {
        Command::List { filter, limit } => {
            let found = select(&letters, &filter, limit).await?;
            let records: Vec<Value> = found.iter().map(summary).collect();
            operator::print(&records, &["number", "at", "stage", "reason", "attempts", "detail"], args.json);
        }
        Command::Show { number } => {
            let letter = letters.get_raw_message(number).await.context("no dead letter has this number")?;
            let mut record = summary(&letter);
            record["subject"] = json!(text(&letter, header::DEAD_SUBJECT));
            record["body"] = serde_json::from_slice(&letter.payload)
                .unwrap_or_else(|_| json!(String::from_utf8_lossy(&letter.payload)));
            println!("{}", if args.json { record.to_string() } else { serde_json::to_string_pretty(&record)? });
        }
        Command::Replay(choice) => {
            for letter in chosen(&letters, &choice).await? {
                replay(&bus, &letter).await?;
                letters.delete_message(letter.sequence).await?;
                println!("replayed {}", letter.sequence);
            }
        }
        Command::Drop(choice) => {
            for letter in chosen(&letters, &choice).await? {
                letters.delete_message(letter.sequence).await?;
                println!("dropped {}", letter.sequence);
            }
        }
    }
    Ok(())
}

async fn chosen(letters: &jetstream::stream::Stream, choice: &Choice) -> anyhow::Result<Vec<StreamMessage>> {
    if choice.all {
        return select(letters, &choice.filter, usize::MAX).await;
    }
    if choice.numbers.is_empty() {
        bail!("name the dead letters by number, or say --all");
    }
    let mut found = Vec::with_capacity(choice.numbers.len());
    for number in &choice.numbers {
        found.push(letters.get_raw_message(*number).await.with_context(|| format!("no dead letter {number}"))?);
    }
    Ok(found)
}

async fn select(
    letters: &jetstream::stream::Stream,
    filter: &Filter,
    limit: usize,
) -> anyhow::Result<Vec<StreamMessage>> {
    let state = letters.get_info().await?.state;
    let mut found = Vec::new();
    let mut number = state.first_sequence.max(1);
    while number <= state.last_sequence && found.len() < limit {
        // Gaps (dropped letters) are stepped over one by one.
        if let Ok(letter) = letters.get_raw_message(number).await {
            let stage_fits = filter.stage.as_deref().is_none_or(|stage| stage_of(&letter) == stage);
            let reason_fits =
                filter.reason.as_deref().is_none_or(|reason| text(&letter, header::DEAD_REASON) == reason);
            if stage_fits && reason_fits {
                found.push(letter);
            }
        }
        number += 1;
    }
    Ok(found)
}

async fn replay(bus: &Bus, letter: &StreamMessage) -> anyhow::Result<()> {
    let subject = text(letter, header::DEAD_SUBJECT);
    if subject.is_empty() {
        bail!("dead letter {} does not say where it came from", letter.sequence);
    }
    let publication = Publication {
        subject,
        message_id: format!("replay-{}-{}", letter.sequence, schemas::new_id().simple()),
        schema: "mail.v1.replay",
        body: letter.payload.clone(),
        headers: Vec::new(),
    };
    bus.publish_all(vec![publication]).await.context("the message could not be published")
}

fn summary(letter: &StreamMessage) -> Value {
    json!({
        "number": letter.sequence,
        "at": letter.time.to_string(),
        "stage": stage_of(letter),
        "reason": text(letter, header::DEAD_REASON),
        "attempts": text(letter, header::DEAD_ATTEMPTS),
        "detail": text(letter, header::DEAD_DETAIL),
    })
}

fn stage_of(letter: &StreamMessage) -> &str {
    letter.subject.rsplit('.').next().unwrap_or_default()
}

fn text(letter: &StreamMessage, name: &str) -> String {
    letter.headers.get(name).map(|value| value.as_str().to_owned()).unwrap_or_default()
}
