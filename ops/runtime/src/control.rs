//! The control subject: what an operator tells running processes. Heard by every process, at once while NATS is there.

use std::time::Duration;

use futures::StreamExt;
use schemas::{Control, ControlAnswer, subjects};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::{Bus, Notifier, telemetry};

/// Pause before a subscription that ended is made anew.
const SUBSCRIBE_AGAIN: Duration = Duration::from_secs(1);

/// Who a process is, for commands that are not for all.
#[derive(Debug, Clone)]
pub struct Name {
    /// How it calls itself: all, ingress, audience+compliance, …
    pub process: String,
    /// The filter of its logs, by its settings.
    pub log: String,
}

impl Name {
    /// Whether a command for `wanted` is for this process.
    fn answers_to(&self, wanted: Option<&str>) -> bool {
        wanted.is_none_or(|wanted| {
            self.process == wanted || self.process == "all" || self.process.split('+').any(|part| part == wanted)
        })
    }
}

/// Listens until shut down, and notifies when pause switches were moved.
#[must_use]
pub fn listen(name: Name, bus: Bus, shutdown: CancellationToken) -> Notifier {
    let nudges = Notifier::default();
    tokio::spawn(hear(name, bus, nudges.clone(), shutdown));
    nudges
}

async fn hear(name: Name, bus: Bus, nudges: Notifier, shutdown: CancellationToken) {
    let (filters, wanted) = watch::channel(None);
    tokio::spawn(revert(name.log.clone(), wanted, shutdown.clone()));
    while !shutdown.is_cancelled() {
        if let Ok(mut told) = bus.client().subscribe(bus.prefixed(subjects::CONTROL)).await {
            while let Some(Some(message)) = shutdown.run_until_cancelled(told.next()).await {
                match serde_json::from_slice::<Control>(&message.payload) {
                    Ok(Control::PauseSwitches) => nudges.notify(),
                    Ok(Control::Log { filter, for_seconds, process }) if name.answers_to(process.as_deref()) => {
                        let answer = set_log(&name, filter.as_deref());
                        let is_for_a_while = answer.error.is_none() && filter.is_some();
                        let _ = filters.send(for_seconds.filter(|_| is_for_a_while).map(Duration::from_secs));
                        tell(&bus, message.reply, &answer).await;
                    }
                    Ok(Control::Log { .. }) => {}
                    Err(error) => tracing::warn!(%error, "a command on the control subject cannot be read"),
                }
            }
        }
        // A connection that comes back may have missed something.
        nudges.notify();
        shutdown.run_until_cancelled(tokio::time::sleep(SUBSCRIBE_AGAIN)).await;
    }
}

/// Puts the setting's filter back when the time of another one is over. A newer command takes the place of an older one.
async fn revert(setting: String, mut wanted: watch::Receiver<Option<Duration>>, shutdown: CancellationToken) {
    loop {
        let wait = *wanted.borrow_and_update();
        let over = async {
            match wait {
                Some(wait) => tokio::time::sleep(wait).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = shutdown.cancelled() => return,
            changed = wanted.changed() => if changed.is_err() { return },
            () = over => {
                if telemetry::set_log_filter(&setting).is_ok() {
                    tracing::info!(filter = setting, "the log filter is that of the settings again");
                }
                // Nothing more to put back: wait for the next command.
                if wanted.changed().await.is_err() { return }
            }
        }
    }
}

fn set_log(name: &Name, filter: Option<&str>) -> ControlAnswer {
    let set = telemetry::set_log_filter(filter.unwrap_or(&name.log));
    match &set {
        Ok(before) => tracing::info!(filter = telemetry::log_filter(), before, "the log filter was changed"),
        Err(error) => tracing::warn!(%error, "a log filter was refused"),
    }
    ControlAnswer {
        process: name.process.clone(),
        host: host(),
        pid: std::process::id(),
        filter: telemetry::log_filter(),
        error: set.err().map(|error| error.to_string()),
    }
}

/// The machine's name, as it knows it.
#[must_use]
pub fn host() -> String {
    let named = std::env::var("HOSTNAME").ok().filter(|name| !name.is_empty());
    named
        .or_else(|| std::fs::read_to_string("/etc/hostname").ok())
        .map_or_else(|| "localhost".to_owned(), |name| name.trim().to_owned())
}

async fn tell(bus: &Bus, reply: Option<async_nats::Subject>, answer: &ControlAnswer) {
    // The subject came with the message: answered is only where answers belong.
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
    fn a_command_is_for_those_it_names(#[case] process: &str, #[case] wanted: Option<&str>, #[case] expected: bool) {
        let name = Name { process: process.to_owned(), log: "info".to_owned() };
        assert_eq!(name.answers_to(wanted), expected);
    }
}
