//! `postrider streams apply|report`.

use anyhow::Context;
use async_nats::jetstream;
use clap::Subcommand;
use futures::TryStreamExt;
use runtime::streams::STREAMS;
use serde_json::json;

use crate::operator::{self, BusArgs};

/// The JetStream streams.
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
    /// Makes or updates every stream. Harmless to repeat.
    Apply,
    /// What each stream holds and who reads it.
    Report,
}

pub async fn run(args: Args) -> anyhow::Result<()> {
    let bus = args.bus.connect().await?;
    match args.command {
        Command::Apply => {
            bus.apply_streams().await?;
            println!("{} streams are as they are to be", STREAMS.len());
        }
        Command::Report => {
            let mut records = Vec::new();
            for spec in STREAMS {
                let mut stream =
                    bus.jetstream().get_stream(bus.prefixed(spec.name)).await.context("is `streams apply` done?")?;
                let state = stream.info().await?.state.clone();
                let consumers: Vec<jetstream::consumer::Info> = stream.consumers().try_collect().await?;
                let readers: Vec<String> = consumers
                    .iter()
                    .map(|info| format!("{}({} waiting, {} out)", info.name, info.num_pending, info.num_ack_pending))
                    .collect();
                records.push(json!({
                    "stream": spec.name, "messages": state.messages, "mib": state.bytes / (1 << 20),
                    "of_mib": spec.max_bytes / (1 << 20), "readers": readers.join(" "),
                }));
            }
            operator::print(&records, &["stream", "messages", "mib", "of_mib", "readers"], args.json);
        }
    }
    Ok(())
}
