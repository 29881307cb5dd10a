//! `postrider log-level`: another log filter for running processes, for a while.

use std::time::Duration;

use anyhow::{bail, ensure};
use clap::builder::PossibleValuesParser;
use futures::StreamExt;
use runtime::{Bus, StageName};
use schemas::{Control, ControlAnswer, subjects};
use serde_json::{Value, json};

use crate::{
    invocation::audit_record,
    operator::{self, ServerArgs},
};

/// After so long without another answer, all have answered that will.
const QUIET: Duration = Duration::from_millis(1_500);

/// Changes the log filter of running processes. One that is started later has that of its settings.
#[derive(Debug, clap::Args)]
pub struct LogLevelArgs {
    #[command(flatten)]
    servers: ServerArgs,
    /// The filter, as the setting `log` has it: `debug`, `info,delivery=debug`.
    #[arg(required_unless_present = "reset")]
    filter: Option<String>,
    /// Back to the filter of the settings.
    #[arg(long, conflicts_with = "filter")]
    reset: bool,
    /// Only processes of this name (`all`, `ingress`), or that run this stage.
    #[arg(long, value_parser = process_names())]
    process: Option<String>,
    /// For so long; then the filter of the settings again. Without: until it is changed.
    #[arg(long = "for", value_parser = humantime::parse_duration, value_name = "DURATION", conflicts_with = "reset")]
    for_long: Option<Duration>,
}

fn process_names() -> PossibleValuesParser {
    PossibleValuesParser::new(["all", "ingress"].into_iter().chain(StageName::NAMES.iter().copied()))
}

pub async fn run(args: LogLevelArgs) -> anyhow::Result<()> {
    let (pool, bus) = (args.servers.database.pool()?, args.servers.bus.connect().await?);
    let control = Control::Log {
        filter: args.filter.clone(),
        for_seconds: args.for_long.map(|wait| wait.as_secs().max(1)),
        process: args.process.clone(),
    };
    let answers = ask(&bus, &control).await?;
    let outcome = format!("{} process(es) follow", answers.iter().filter(|answer| answer.error.is_none()).count());
    let subject = args.process.as_deref().unwrap_or("every process");
    audit_record(&pool, None, "log.filter", subject, Some(&outcome), serde_json::to_value(&control)?).await?;
    let record = |answer: &ControlAnswer| {
        let ControlAnswer { process, host, pid, filter, error } = answer;
        json!({"process": process, "host": host, "pid": pid, "filter": filter, "error": error})
    };
    let records: Vec<Value> = answers.iter().map(record).collect();
    operator::print(&records, &["process", "host", "pid", "filter", "error"]);
    ensure!(!answers.is_empty(), "no process answered: is NATS there, and does one of this name run?");
    if let Some(error) = answers.iter().find_map(|answer| answer.error.as_deref()) {
        bail!("not everywhere: {error}");
    }
    Ok(())
}

async fn ask(bus: &Bus, control: &Control) -> anyhow::Result<Vec<ControlAnswer>> {
    let client = bus.client();
    let inbox = bus.prefixed(&subjects::control_answer(&schemas::new_id().simple().to_string()));
    let mut replies = client.subscribe(inbox.clone()).await?;
    client.publish_with_reply(bus.prefixed(subjects::CONTROL), inbox, serde_json::to_vec(control)?.into()).await?;
    let mut answers = Vec::new();
    while let Ok(Some(message)) = tokio::time::timeout(QUIET, replies.next()).await {
        answers.extend(serde_json::from_slice::<ControlAnswer>(&message.payload).ok());
    }
    answers.sort_by(|one, other| (&one.process, &one.host, one.pid).cmp(&(&other.process, &other.host, other.pid)));
    Ok(answers)
}
