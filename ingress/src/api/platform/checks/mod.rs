//! The checks of the platform: pure functions from facts to a status with cause and fix.

mod outward;

use runtime::streams::STREAMS;
use schemas::subjects::stream;

use self::outward::{domains, failed_sends, pacing, providers, webhooks};
use super::{
    HealthCheck, HealthStatus,
    facts::{BacklogFacts, OwedWork, PauseFacts, PlatformFacts, StageFacts, StreamFacts},
};

/// The stages of the mail pipeline: without one of them nothing is sent.
const SENDING: [&str; 4] = ["audience", "compliance", "rendering", "delivery"];
/// What goes on without mail being stopped. The stages `engagement` and `webhooks` have a check of their own.
const BESIDE: [&str; 3] = ["ingress", "attribution", "sequencing"];
/// Settings whose default only fits a developer's machine: stage, setting, and what goes wrong without it.
const REQUIRED_SETTINGS: [(&str, &str, &str); 5] = [
    ("rendering", "public-url", "links in mail lead to localhost"),
    ("delivery", "smtp-url", "mail is sent to 127.0.0.1:25"),
    ("ingress", "return-path-target", "tenants are told to send bounces to a domain of others"),
    ("ingress", "spf-include", "tenants are told to allow servers of others"),
    ("ingress", "tracking-target", "tenants are told to lead links to a domain of others"),
];

/// Postgres is slow if it takes so long to answer.
const DATABASE_SLOW_SECONDS: f64 = 1.0;
/// Age of the oldest message in a stream between the stages. It may be of one tenant, whose provider is slow: never critical.
const QUEUE_WARN_SECONDS: i64 = 120;
/// Age of the oldest unfinished work in the ledger. Work is picked up within about 60 seconds.
const STUCK_WARN_SECONDS: f64 = 120.0;
const STUCK_CRIT_SECONDS: f64 = 900.0;
/// A batch that was announced so often and is not done needs attention.
const ANNOUNCED_TOO_OFTEN: i32 = 20;
/// A dead letter younger than this is a warning.
const DEAD_LETTER_WARN_SECONDS: i64 = 3_600;
/// Age of the oldest signal. No mail depends on signals.
const SIGNALS_WARN_SECONDS: i64 = 300;

/// Age of the oldest work of a stage by the ledger, as the alert WorkWaits.
const OWED_WARN_SECONDS: f64 = 300.0;
/// How full a stream is, as the alert StreamNearlyFull.
const STREAM_WARN_PERCENT: u64 = 70;

/// Runs all checks, in the order an operator would ask.
pub(super) fn run_checks(facts: &PlatformFacts) -> Vec<HealthCheck> {
    let mut checks = vec![database(facts), bus(facts.streams.as_deref())];
    checks.extend(SENDING.iter().map(|stage| heartbeat(stage, HealthStatus::Crit, facts.stages.as_deref())));
    checks.extend(BESIDE.iter().map(|stage| heartbeat(stage, HealthStatus::Warn, facts.stages.as_deref())));
    checks.push(paused(facts.pauses.as_ref()));
    checks.push(failing_sweeps(facts.stages.as_deref()));
    checks.push(dead_letters(facts.streams.as_deref()));
    checks.push(queues(facts.streams.as_deref()));
    checks.push(stuck(facts.backlog.as_ref()));
    checks.push(owed(facts.owed.as_deref(), facts.stages.as_deref()));
    checks.push(stream_capacity(facts.streams.as_deref()));
    checks.push(failed_sends(facts.totals.as_deref()));
    checks.push(pacing(facts.pacing.as_ref()));
    checks.push(engagement(facts));
    checks.push(webhooks(facts));
    checks.push(domains(facts.domains.as_ref()));
    checks.push(configuration(facts.stages.as_deref()));
    checks.push(providers(facts.pings.as_deref()));
    checks
}

impl HealthCheck {
    fn new(id: impl Into<String>, area: &'static str, name: impl Into<String>, observation: impl Into<String>) -> Self {
        Self {
            id: id.into(),
            area,
            name: name.into(),
            status: HealthStatus::Ok,
            observation: observation.into(),
            cause: None,
            fix: Vec::new(),
            link: None,
        }
    }

    fn observed(self, observation: impl Into<String>) -> Self {
        Self { observation: observation.into(), ..self }
    }

    fn because(self, status: HealthStatus, cause: impl Into<String>, fix: &[&str], runbook: &str) -> Self {
        Self {
            status,
            cause: Some(cause.into()),
            fix: fix.iter().map(|step| (*step).to_owned()).collect(),
            link: Some(format!("ops/runbooks/{runbook}.md")),
            ..self
        }
    }

    fn warn(self, cause: impl Into<String>, fix: &[&str], runbook: &str) -> Self {
        self.because(HealthStatus::Warn, cause, fix, runbook)
    }

    /// A warning that the facts could not be read. Another check has the cause.
    fn unavailable(self) -> Self {
        Self { status: HealthStatus::Warn, ..self.observed("could not be checked") }
    }
}

fn database(facts: &PlatformFacts) -> HealthCheck {
    let check = HealthCheck::new("database", "storage", "Postgres", "");
    match facts.database {
        Some(took) => {
            let check = check.observed(format!("answered in {:.1} ms", took.as_secs_f64() * 1_000.0));
            if took.as_secs_f64() < DATABASE_SLOW_SECONDS {
                return check;
            }
            check.warn(
                "Postgres is slow",
                &["look for long statements and a full disk in pg_stat_activity"],
                "api-slow",
            )
        }
        None => check.observed("no answer within two seconds").because(
            HealthStatus::Crit,
            "Postgres is away, or all connections are in use",
            &[
                "check that Postgres runs and that database-url reaches it",
                "compare database-pool with Postgres's max_connections",
            ],
            "api-errors",
        ),
    }
}

fn bus(streams: Option<&[StreamFacts]>) -> HealthCheck {
    let check = HealthCheck::new("bus", "storage", "JetStream", "all streams answer");
    if streams.is_some() {
        return check;
    }
    check.observed("no answer, or a stream is missing").because(
        HealthStatus::Crit,
        "NATS is away, JetStream is switched off (a full disk does so), or the streams were not made",
        &[
            "check that nats-server runs and has disk left",
            "run `postrider streams apply`",
            "accepted work is safe: it is announced again",
        ],
        "lane-behind",
    )
}

fn of_stage<'a>(stages: &'a [StageFacts], stage: &str) -> Option<&'a StageFacts> {
    stages.iter().find(|facts| facts.stage == stage)
}

/// Whether a process runs the stage; `missing` if none does.
fn heartbeat(stage: &str, missing: HealthStatus, stages: Option<&[StageFacts]>) -> HealthCheck {
    let check = HealthCheck::new(format!("heartbeat.{stage}"), "workers", format!("Stage {stage}"), "");
    let Some(stages) = stages else { return check.unavailable() };
    let (alive, silent) = of_stage(stages, stage).map_or((0, 0), |facts| (facts.alive, facts.silent));
    let observation = match silent {
        0 => format!("{alive} process(es) alive"),
        silent => format!("{alive} process(es) alive, {silent} fell silent in the last minutes"),
    };
    let check = check.observed(observation);
    match (alive, silent) {
        (0, _) => check.because(
            missing,
            format!("no process runs the stage {stage}"),
            &["start it: `postrider stage <name>`", "read the log of the process that stopped"],
            "process-down",
        ),
        (_, 0) => check,
        (_, _) => check.warn(
            "a process crashed or cannot reach Postgres; the others do its work",
            &["read its log"],
            "process-down",
        ),
    }
}

/// What operators have paused. It is intended, and mail waits because of it.
fn paused(pauses: Option<&PauseFacts>) -> HealthCheck {
    let check = HealthCheck::new("paused", "sending", "What operators have paused", "nothing is paused");
    let Some(pauses) = pauses else { return check.unavailable() };
    if let Some(since) = pauses.held_at {
        let reason = pauses.held_reason.as_deref().unwrap_or("no reason is given");
        let check = check.observed(format!("all mail is paused since {}", since.format("%Y-%m-%d %H:%M UTC")));
        return check.because(
            HealthStatus::Crit,
            format!("no mail goes out: {reason}"),
            &[
                "`postrider restore status` says what is missing and what is open",
                "close the gap as the runbook says, then `postrider restore release`",
            ],
            "paused",
        );
    }
    if pauses.stages.is_empty() && pauses.tenants == 0 {
        return check;
    }
    let stages = if pauses.stages.is_empty() { "no stage".to_owned() } else { pauses.stages.join(", ") };
    let check = check.observed(format!("{stages}; {} tenant(s)", pauses.tenants));
    // Without one of these no mail goes out at all.
    let stops_mail = pauses.stages.iter().any(|stage| SENDING.contains(&stage.as_str()));
    let (status, cause) = match stops_mail {
        true => (HealthStatus::Crit, "no mail goes out: a stage it goes through is paused"),
        false => (HealthStatus::Warn, "work waits because an operator wants it to"),
    };
    check.because(
        status,
        cause,
        &["`postrider pause list` has operator and reason", "`postrider resume stage|tenant …` ends the pause"],
        "paused",
    )
}

fn failing_sweeps(stages: Option<&[StageFacts]>) -> HealthCheck {
    let check = HealthCheck::new("failures.sweeps", "failures", "Sweeps", "no sweep fails");
    let Some(stages) = stages else { return check.unavailable() };
    let failing: Vec<String> = stages
        .iter()
        .flat_map(|facts| facts.failing_sweeps.iter().map(move |sweep| format!("{}/{sweep}", facts.stage)))
        .collect();
    if failing.is_empty() {
        return check;
    }
    check.observed(format!("last run failed: {}", failing.join(", "))).warn(
        "work that the bus lost is not announced again while its sweep fails",
        &["read the log for `sweep failed`: it has the error"],
        "sweep-failing",
    )
}

fn of_stream<'a>(streams: &'a [StreamFacts], name: &str) -> Option<&'a StreamFacts> {
    streams.iter().find(|facts| facts.name == name)
}

fn dead_letters(streams: Option<&[StreamFacts]>) -> HealthCheck {
    let check = HealthCheck::new("failures.dead_letters", "failures", "Dead letters", "none");
    let Some(dead) = streams.and_then(|streams| of_stream(streams, stream::DEAD)) else { return check.unavailable() };
    if dead.messages == 0 {
        return check;
    }
    let check = check.observed(format!("{} kept, the newest {} minutes ago", dead.messages, dead.newest_seconds / 60));
    if dead.newest_seconds >= DEAD_LETTER_WARN_SECONDS {
        return check;
    }
    check.warn(
        "a worker could not handle a message and set it aside",
        &["`postrider dead list` says what and why", "mend the cause, then `postrider dead replay`"],
        "dead-letters",
    )
}

fn queues(streams: Option<&[StreamFacts]>) -> HealthCheck {
    let check = HealthCheck::new("queue.depth", "queues", "Streams between the stages", "");
    let Some(streams) = streams else { return check.unavailable() };
    let between: Vec<&StreamFacts> =
        streams.iter().filter(|facts| ![stream::DEAD, stream::SIGNALS, stream::MARKS].contains(&facts.name)).collect();
    let waiting: Vec<String> = between
        .iter()
        .filter(|facts| facts.messages > 0)
        .map(|facts| format!("{} {} (oldest {} s)", facts.name, facts.messages, facts.oldest_seconds))
        .collect();
    let observation = if waiting.is_empty() { "empty".to_owned() } else { waiting.join(", ") };
    let check = check.observed(observation);
    let oldest = between.iter().max_by_key(|facts| facts.oldest_seconds);
    let Some(facts) = oldest.filter(|facts| facts.oldest_seconds >= QUEUE_WARN_SECONDS) else { return check };
    check.warn(
        format!("the stage that reads {} is behind", facts.name),
        &[
            "look at mail_stage_oldest_message_age_seconds: which stage and lane",
            "start more of it, or mend what it waits for",
        ],
        "lane-behind",
    )
}

fn stuck(backlog: Option<&BacklogFacts>) -> HealthCheck {
    let check = HealthCheck::new("queue.stuck", "queues", "Work in the ledger", "");
    let Some(backlog) = backlog else { return check.unavailable() };
    let check = check.observed(format!(
        "{} request(s) accepted, {} priority batch(es) open, {} campaign batch(es) dispatched, {} waiting",
        backlog.requests, backlog.priority, backlog.bulk_announced, backlog.bulk_waiting
    ));
    let oldest = |age: Option<f64>| age.unwrap_or(0.0);
    let waits = oldest(backlog.requests_oldest).max(oldest(backlog.priority_oldest));
    let status = if waits >= STUCK_CRIT_SECONDS {
        HealthStatus::Crit
    } else if waits >= STUCK_WARN_SECONDS || backlog.bulk_announcements >= ANNOUNCED_TOO_OFTEN {
        HealthStatus::Warn
    } else {
        return check;
    };
    let cause = if waits >= STUCK_WARN_SECONDS {
        format!("the oldest request or transactional message has waited for {waits:.0} s")
    } else {
        format!("a campaign batch was announced {} times and is not done", backlog.bulk_announcements)
    };
    check.because(
        status,
        cause,
        &["see which stage is silent or behind above", "`postrider dead list`: a message may have been set aside"],
        "lane-behind",
    )
}

/// The oldest work in the ledger of the stages beside the mail pipeline: requests, reports, outcomes, events, steps.
fn owed(owed: Option<&[OwedWork]>, stages: Option<&[StageFacts]>) -> HealthCheck {
    let check = HealthCheck::new("queue.owed", "queues", "Oldest work by the ledger", "no work waits");
    let Some(owed) = owed else { return check.unavailable() };
    let Some(oldest) = owed.iter().max_by(|a, b| a.oldest.total_cmp(&b.oldest)) else { return check };
    let observed: Vec<String> = owed.iter().map(|owed| format!("{} {:.0} s", owed.stage, owed.oldest)).collect();
    let check = check.observed(observed.join(", "));
    if oldest.oldest < OWED_WARN_SECONDS {
        return check;
    }
    let is_missing = stages.is_some_and(|stages| of_stage(stages, &oldest.stage).is_none_or(|facts| facts.alive == 0));
    let cause = if is_missing { "no process runs it" } else { "it is behind, or what announces its work fails" };
    check.warn(
        format!("the oldest work of the stage {} waits for {:.0} s: {cause}", oldest.stage, oldest.oldest),
        &[
            "start it, or more of it: `postrider stage <name>`",
            "see failing sweeps above, and `postrider streams report`",
        ],
        "work-waits",
    )
}

/// How full the streams are: a full work queue refuses new messages.
fn stream_capacity(streams: Option<&[StreamFacts]>) -> HealthCheck {
    let check = HealthCheck::new("queue.full", "queues", "Capacity of the streams", "");
    let Some(streams) = streams else { return check.unavailable() };
    // The others drop their oldest when they are full.
    let refuses = |name: &str| STREAMS.iter().any(|spec| spec.name == name && spec.work_queue);
    let bounded = streams.iter().filter(|facts| refuses(facts.name) && facts.bytes_max > 0);
    let Some((percent, name)) = bounded.map(|facts| (fill_percent(facts), facts.name)).max() else { return check };
    let check = check.observed(format!("the fullest, {name}, is {percent} % full"));
    if percent < STREAM_WARN_PERCENT {
        return check;
    }
    check.warn(
        format!("{name} is nearly full; a full stream refuses signals and direct requests"),
        &["start the stage that reads it, or more of it", "`postrider streams report` lists the consumers"],
        "nats",
    )
}

fn fill_percent(facts: &StreamFacts) -> u64 {
    facts.bytes.saturating_mul(100) / facts.bytes_max.unsigned_abs().max(1)
}

fn engagement(facts: &PlatformFacts) -> HealthCheck {
    let check = HealthCheck::new("engagement", "engagement", "Opens, clicks and opt-outs", "");
    let (Some(stages), Some(streams)) = (facts.stages.as_deref(), facts.streams.as_deref()) else {
        return check.unavailable();
    };
    let Some(signals) = of_stream(streams, stream::SIGNALS) else { return check.unavailable() };
    let alive = of_stage(stages, "engagement").map_or(0, |facts| facts.alive);
    let check = check.observed(format!(
        "{alive} process(es) alive, {} signal(s) wait, the oldest for {} s",
        signals.messages, signals.oldest_seconds
    ));
    // Mail goes out without it, and an opt-out is committed at the edge: never more than a warning.
    if alive == 0 {
        return check.warn(
            "no process runs the stage engagement; signals are kept",
            &["start it: `postrider stage engagement`"],
            "process-down",
        );
    }
    if signals.oldest_seconds >= SIGNALS_WARN_SECONDS {
        return check.warn("the stage engagement is behind", &["start more of it"], "lane-behind");
    }
    check
}

fn configuration(stages: Option<&[StageFacts]>) -> HealthCheck {
    let check = HealthCheck::new(
        "configuration",
        "configuration",
        "Settings (names only)",
        "every setting that has no right default is given",
    );
    let Some(stages) = stages else { return check.unavailable() };
    let missing: Vec<&(&str, &str, &str)> = REQUIRED_SETTINGS
        .iter()
        .filter(|(stage, setting, _)| {
            of_stage(stages, stage)
                .is_some_and(|facts| facts.alive > 0 && !facts.settings.iter().any(|given| given == setting))
        })
        .collect();
    if missing.is_empty() {
        return check;
    }
    let names: Vec<String> = missing.iter().map(|(stage, setting, _)| format!("{setting} ({stage})")).collect();
    let causes: Vec<&str> = missing.iter().map(|(_, _, consequence)| *consequence).collect();
    check.observed(format!("not given: {}", names.join(", "))).warn(
        causes.join("; "),
        &["set it as flag or as POSTRIDER_… and start the process again"],
        "process-down",
    )
}

#[cfg(test)]
mod tests;
