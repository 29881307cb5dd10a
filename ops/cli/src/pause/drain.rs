//! Waits until a paused stage has no unfinished work.

use std::{
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::bail;
use async_nats::jetstream::consumer::Info;
use futures::TryStreamExt;
use runtime::{Bus, BusError, streams::STREAMS};
use serde_json::{Value, json};
use sqlx::PgPool;
use uuid::Uuid;

use crate::{invocation, operator};

const POLL_INTERVAL: Duration = Duration::from_millis(250);
/// A process without a heartbeat for this time is gone, and its work is redelivered.
const PROCESS_LIFE_SECONDS: i32 = 20;

#[derive(Debug, Clone, PartialEq, Eq)]
struct ProcessRow {
    process_id: Uuid,
    name: Option<String>,
    is_paused: bool,
    in_hand: i32,
}

/// Waits until every process that runs the stage is paused and has no unfinished work; then prints the result. Fails if the stage is resumed
/// meanwhile.
pub(super) async fn wait(pool: &PgPool, bus: &Bus, stage: &str, at_most: Duration) -> anyhow::Result<ExitCode> {
    let started = Instant::now();
    let bar = operator::spinner("draining");
    let (processes, is_drained) = loop {
        let Some(processes) = read_processes(pool, stage).await? else {
            bar.finish_and_clear();
            bail!("{stage} was resumed meanwhile: it is not drained");
        };
        let is_drained = processes.iter().all(|process| process.is_paused && process.in_hand == 0);
        if is_drained || started.elapsed() >= at_most {
            break (processes, is_drained);
        }
        let in_hand: i32 = processes.iter().map(|process| process.in_hand).sum();
        bar.set_message(format!("{in_hand} in hand in {} process(es)", processes.len()));
        tokio::time::sleep(POLL_INTERVAL).await;
    };
    bar.finish_and_clear();
    let waiting = waiting_messages(bus, stage).await;
    let took = started.elapsed().as_millis() as u64;
    let processes: Vec<Value> = processes.iter().map(process_record).collect();
    if invocation::wants_json() {
        let record = json!({
            "stage": stage, "drained": is_drained, "took_ms": took, "waiting": waiting.ok(), "processes": processes,
        });
        println!("{record}");
    } else {
        operator::print(&processes, &["process", "process_id", "paused", "in_hand"]);
        let backlog = match waiting {
            Ok(count) => format!("{count} message(s) wait for it"),
            Err(error) => format!("it is not known how many messages wait for it: {error}"),
        };
        let state = if is_drained { "drained" } else { "not drained in time" };
        println!("\n{stage}: {state}; {backlog}. It stays paused until `postrider resume stage {stage}`.");
    }
    Ok(if is_drained { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn process_record(process: &ProcessRow) -> Value {
    json!({
        "process": process.name, "process_id": process.process_id, "paused": process.is_paused, "in_hand": process.in_hand,
    })
}

/// The running processes, and whether each has paused since the stage was. `None`: the stage is not paused any more.
async fn read_processes(pool: &PgPool, stage: &str) -> sqlx::Result<Option<Vec<ProcessRow>>> {
    let rows = sqlx::query!(
        r#"select h.process_id as "process_id?", h.name, h.paused and h.seen_at >= p.paused_at as "is_paused?",
                  h.in_hand as "in_hand?"
           from stage_pauses p
           left join heartbeats h on h.stage = p.stage and h.seen_at > now() - make_interval(secs => $2)
           where p.stage = $1
           order by h.process_id"#,
        stage,
        f64::from(PROCESS_LIFE_SECONDS),
    )
    .fetch_all(pool)
    .await?;
    if rows.is_empty() {
        return Ok(None);
    }
    let processes = rows.into_iter().filter_map(|row| {
        let (process_id, is_paused, in_hand) = (row.process_id?, row.is_paused?, row.in_hand?);
        Some(ProcessRow { process_id, name: row.name, is_paused, in_hand })
    });
    Ok(Some(processes.collect()))
}

/// The messages that wait for the stage, over all its consumers.
async fn waiting_messages(bus: &Bus, stage: &str) -> Result<u64, BusError> {
    let asked = async {
        let mut waiting = 0;
        for spec in STREAMS {
            let stream = bus.stream(spec.name).await?.ok_or(BusError::NoStream { stream: spec.name })?;
            let consumers: Vec<Info> = stream.consumers().try_collect().await.map_err(BusError::refused)?;
            let own = consumers.iter().filter(|info| info.name.split('-').next() == Some(stage));
            waiting += own.map(|info| info.num_pending + info.num_ack_pending as u64).sum::<u64>();
        }
        Ok::<u64, BusError>(waiting)
    };
    tokio::time::timeout(Duration::from_secs(3), asked).await.map_err(|_| BusError::Timeout)?
}
