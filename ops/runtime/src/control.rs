//! The control subject: commands of an operator to running processes. Every process receives them while NATS is available.

use std::time::Duration;

use futures::StreamExt;
use schemas::{Control, ControlAnswer, subjects};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::{Bus, Notifier, bus::RESUBSCRIBE_PAUSE, causes::chain, runs, telemetry};

/// The name of a process, for commands to certain processes.
#[derive(Debug, Clone)]
pub struct ProcessName {
    /// What it runs: all, ingress, audience+compliance, …
    pub process: String,
    /// The log filter of its settings.
    pub log: String,
}

impl ProcessName {
    /// True if a command for `wanted` is for this process.
    fn answers_to(&self, wanted: Option<&str>) -> bool {
        wanted.is_none_or(|wanted| self.process == wanted || runs(&self.process, wanted))
    }
}

/// Receives commands until shutdown, and notifies when pause switches were changed.
#[must_use]
pub fn listen(name: ProcessName, bus: Bus, shutdown: CancellationToken) -> Notifier {
    let changes = Notifier::default();
    tokio::spawn(receive_commands(name, bus, changes.clone(), shutdown));
    changes
}

async fn receive_commands(name: ProcessName, bus: Bus, changes: Notifier, shutdown: CancellationToken) {
    // When a temporary log filter ends.
    let mut filter_ends: Option<Instant> = None;
    while !shutdown.is_cancelled() {
        if let Ok(mut messages) = bus.client().subscribe(bus.prefixed(subjects::CONTROL)).await {
            loop {
                let message = tokio::select! {
                    () = shutdown.cancelled() => break,
                    () = sleep_until(filter_ends.unwrap_or_else(Instant::now)), if filter_ends.is_some() => {
                        filter_ends = None;
                        set_log(&name, None);
                        continue;
                    }
                    message = messages.next() => message,
                };
                let Some(message) = message else { break };
                match serde_json::from_slice::<Control>(&message.payload) {
                    Ok(Control::PauseSwitches) => changes.notify(),
                    Ok(Control::Log { filter, for_seconds, process }) if name.answers_to(process.as_deref()) => {
                        let answer = set_log(&name, filter.as_deref());
                        if answer.error.is_none() {
                            let wait = for_seconds.filter(|_| filter.is_some()).map(Duration::from_secs);
                            filter_ends = wait.and_then(|wait| Instant::now().checked_add(wait));
                        }
                        send_answer(&bus, message.reply, &answer).await;
                    }
                    Ok(Control::Log { .. }) => {}
                    Err(error) => tracing::warn!(%error, "a command on the control subject cannot be read"),
                }
            }
        }
        // Commands may have been missed while the connection was down.
        changes.notify();
        shutdown.run_until_cancelled(tokio::time::sleep(RESUBSCRIBE_PAUSE)).await;
    }
}

fn set_log(name: &ProcessName, filter: Option<&str>) -> ControlAnswer {
    let set = telemetry::set_log_filter(filter.unwrap_or(&name.log)).map_err(|error| chain(&error));
    match &set {
        Ok(before) => tracing::info!(filter = telemetry::log_filter(), before, "the log filter was changed"),
        Err(error) => tracing::warn!(error, "a log filter was refused"),
    }
    ControlAnswer {
        process: name.process.clone(),
        host: host(),
        pid: std::process::id(),
        filter: telemetry::log_filter(),
        error: set.err(),
    }
}

/// The name of this host.
#[must_use]
pub fn host() -> String {
    let named = std::env::var("HOSTNAME").ok().filter(|name| !name.is_empty());
    named
        .or_else(|| std::fs::read_to_string("/etc/hostname").ok())
        .map_or_else(|| "localhost".to_owned(), |name| name.trim().to_owned())
}

async fn send_answer(bus: &Bus, reply: Option<async_nats::Subject>, answer: &ControlAnswer) {
    // The reply subject came with the message: answer only on the subjects for answers.
    let belongs = |subject: &str| subject.starts_with(&bus.prefixed(&subjects::control_answer("")));
    let Some(reply) = reply.filter(|reply| belongs(reply)) else { return };
    let Ok(body) = serde_json::to_vec(answer) else { return };
    if let Err(error) = bus.client().publish(reply, body.into()).await {
        tracing::debug!(%error, "an answer on the control subject was lost");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::everybody("delivery", None, true)]
    #[case::by_name("delivery", Some("delivery"), true)]
    #[case::another("delivery", Some("ingress"), false)]
    #[case::one_of_its_stages("audience+compliance", Some("compliance"), true)]
    #[case::all_runs_every_stage("all", Some("webhooks"), true)]
    #[case::all_runs_what_there_is("all", Some("nobody"), false)]
    fn a_command_is_for_those_it_names(#[case] process: &str, #[case] wanted: Option<&str>, #[case] expected: bool) {
        let name = ProcessName { process: process.to_owned(), log: "info".to_owned() };
        assert_eq!(name.answers_to(wanted), expected);
    }

    #[test]
    fn a_refused_filter_is_answered_with_its_fault() {
        let name = ProcessName { process: "all".to_owned(), log: "info".to_owned() };
        let error = set_log(&name, Some("=nonsense=")).error;
        assert!(error.as_deref().is_some_and(|error| error.starts_with("log filter: ")), "{error:?}");
    }
}
