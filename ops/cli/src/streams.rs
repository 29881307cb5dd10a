//! `postrider streams apply|report`.

use anyhow::Context;
use async_nats::jetstream::{self, stream::State};
use clap::Subcommand;
use futures::TryStreamExt;
use runtime::streams::{STREAMS, StreamSpec};
use serde_json::{Value, json};

use crate::{
    invocation,
    operator::{self, BusArgs},
};

/// The JetStream streams.
#[derive(Debug, clap::Args)]
pub struct StreamsArgs {
    #[command(flatten)]
    bus: BusArgs,
    #[command(subcommand)]
    command: StreamsCommand,
}

#[derive(Debug, Subcommand)]
enum StreamsCommand {
    /// Makes or updates every stream. Harmless to repeat.
    Apply,
    /// What each stream holds, how much it may hold, how old its oldest message is, and who reads it.
    Report,
}

pub async fn run(args: StreamsArgs) -> anyhow::Result<()> {
    let bus = args.bus.connect().await?;
    match args.command {
        StreamsCommand::Apply => {
            bus.apply_streams().await?;
            let words = format!("{} streams are as they are to be", STREAMS.len());
            operator::print_result(&json!({"streams": STREAMS.len()}), &words);
        }
        StreamsCommand::Report => {
            let mut records = Vec::with_capacity(STREAMS.len());
            for spec in STREAMS {
                let mut stream =
                    bus.jetstream().get_stream(bus.prefixed(spec.name)).await.context("is `streams apply` done?")?;
                let state = stream.info().await?.state.clone();
                let consumers: Vec<jetstream::consumer::Info> = stream.consumers().try_collect().await?;
                records.push(record(spec, &state, &consumers));
            }
            print(&records);
        }
    }
    Ok(())
}

fn record(spec: &StreamSpec, state: &State, consumers: &[jetstream::consumer::Info]) -> Value {
    let oldest =
        (state.messages > 0).then(|| (chrono::Utc::now().timestamp() - state.first_timestamp.unix_timestamp()).max(0));
    let max_bytes = u64::try_from(spec.max_bytes).unwrap_or(0);
    let reader = |info: &jetstream::consumer::Info| {
        json!({
            "stream": spec.name, "consumer": info.name, "pending": info.num_pending, "ack_pending": info.num_ack_pending,
            "redelivered": info.num_redelivered, "waiting_pulls": info.num_waiting,
        })
    };
    json!({
        "stream": spec.name, "messages": state.messages, "bytes": state.bytes, "max_bytes": max_bytes,
        "full_percent": (state.bytes * 100).checked_div(max_bytes), "oldest_seconds": oldest,
        "consumers": consumers.iter().map(reader).collect::<Vec<_>>(),
    })
}

/// One record for each stream; to be read, the streams and then their readers.
fn print(records: &[Value]) {
    operator::print(records, &["stream", "messages", "bytes", "max_bytes", "full_percent", "oldest_seconds"]);
    if invocation::wants_json() {
        return;
    }
    let readers: Vec<Value> =
        records.iter().flat_map(|record| record["consumers"].as_array().cloned().unwrap_or_default()).collect();
    println!();
    operator::print(&readers, &["stream", "consumer", "pending", "ack_pending", "redelivered"]);
}
