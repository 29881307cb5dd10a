use std::time::Duration;

use chrono::Utc;
use rstest::rstest;

use super::*;
use crate::api::platform::{
    HealthReport,
    facts::{DomainFacts, EventTotal, PacingFacts, ProviderPing, WATCHED, WebhookFacts},
};

fn stage(name: &str) -> StageFacts {
    let settings = REQUIRED_SETTINGS.map(|(_, setting, _)| setting.to_owned()).to_vec();
    StageFacts { stage: name.to_owned(), alive: 1, settings, ..StageFacts::default() }
}

fn streams(change: impl Fn(&mut StreamFacts)) -> Option<Vec<StreamFacts>> {
    let empty =
        |name| StreamFacts { name, messages: 0, oldest_seconds: 0, newest_seconds: 0, bytes: 100, bytes_max: 1_000 };
    let mut all: Vec<StreamFacts> = WATCHED.into_iter().map(empty).collect();
    all.iter_mut().for_each(change);
    Some(all)
}

fn total(kind: &str, event: &str, count: i64) -> EventTotal {
    EventTotal { kind: kind.to_owned(), event: event.to_owned(), count }
}

fn ping(ok: bool, asked_seconds: i64, answered_seconds: Option<i64>) -> ProviderPing {
    let error_code = (!ok).then(|| "connect".to_owned());
    ProviderPing {
        provider: "smtp".to_owned(),
        ok,
        error_code,
        latency_ms: ok.then_some(3),
        asked_seconds,
        answered_seconds,
    }
}

/// A platform that is well.
fn well() -> PlatformFacts {
    PlatformFacts {
        database: Some(Duration::from_millis(2)),
        stages: Some([&SENDING[..], &BESIDE, &["engagement", "webhooks"]].concat().into_iter().map(stage).collect()),
        streams: streams(|_| ()),
        pauses: Some(PauseFacts::default()),
        totals: Some(vec![
            total("campaign", "sent", 1_000),
            total("campaign", "failed", 5),
            total("failure", "hard", 5),
        ]),
        backlog: Some(BacklogFacts::default()),
        owed: Some(Vec::new()),
        pacing: Some(PacingFacts::default()),
        domains: Some(DomainFacts { verified: 40, ..DomainFacts::default() }),
        webhooks: Some(WebhookFacts {
            active: 3,
            due: 2,
            oldest: Some(1.0),
            delivered: 500,
            failed: 9,
            ..WebhookFacts::default()
        }),
        pings: Some(vec![ping(true, 10, Some(10))]),
    }
}

fn of_all(facts: &mut PlatformFacts, change: impl Fn(&mut StageFacts)) {
    facts.stages.iter_mut().flatten().for_each(change);
}

fn waits(name: &'static str, seconds: i64) -> impl Fn(&mut StreamFacts) {
    move |facts| {
        if facts.name == name {
            *facts = StreamFacts { messages: 3, oldest_seconds: seconds, newest_seconds: seconds, ..facts.clone() };
        }
    }
}

/// What is changed about a platform that is well, and which check says so, how loudly.
#[rstest]
#[case::no_database(|facts: &mut PlatformFacts| facts.database = None, "database", HealthStatus::Crit)]
#[case::slow_database(|facts: &mut PlatformFacts| facts.database = Some(Duration::from_millis(1_500)), "database", HealthStatus::Warn)]
#[case::no_bus(|facts: &mut PlatformFacts| facts.streams = None, "bus", HealthStatus::Crit)]
#[case::a_stage_is_missing(|facts: &mut PlatformFacts| of_all(facts, |stage| if stage.stage == "rendering" { stage.alive = 0 }), "heartbeat.rendering", HealthStatus::Crit)]
#[case::a_stage_never_ran(|facts: &mut PlatformFacts| facts.stages = Some(Vec::new()), "heartbeat.delivery", HealthStatus::Crit)]
#[case::no_steps_are_taken(|facts: &mut PlatformFacts| of_all(facts, |stage| if stage.stage == "sequencing" { stage.alive = 0 }), "heartbeat.sequencing", HealthStatus::Warn)]
#[case::one_of_two_died(|facts: &mut PlatformFacts| of_all(facts, |stage| if stage.stage == "delivery" { stage.silent = 1 }), "heartbeat.delivery", HealthStatus::Warn)]
#[case::a_sweep_fails(|facts: &mut PlatformFacts| of_all(facts, |stage| if stage.stage == "audience" { stage.failing_sweeps = vec!["batches".to_owned()] }), "failures.sweeps", HealthStatus::Warn)]
#[case::a_fresh_dead_letter(|facts: &mut PlatformFacts| facts.streams = streams(waits(stream::DEAD, 60)), "failures.dead_letters", HealthStatus::Warn)]
#[case::an_old_dead_letter(|facts: &mut PlatformFacts| facts.streams = streams(waits(stream::DEAD, 7_200)), "failures.dead_letters", HealthStatus::Ok)]
#[case::a_short_queue(|facts: &mut PlatformFacts| facts.streams = streams(waits(stream::RENDERED, 119)), "queue.depth", HealthStatus::Ok)]
#[case::a_queue(|facts: &mut PlatformFacts| facts.streams = streams(waits(stream::RENDERED, 120)), "queue.depth", HealthStatus::Warn)]
#[case::a_slow_provider(|facts: &mut PlatformFacts| facts.streams = streams(waits(stream::RENDERED, 3_000)), "queue.depth", HealthStatus::Warn)]
#[case::attribution_is_behind(|facts: &mut PlatformFacts| facts.streams = streams(waits(stream::ACCEPTED, 3_000)), "queue.depth", HealthStatus::Warn)]
#[case::requests_to_the_bus_wait(|facts: &mut PlatformFacts| facts.streams = streams(waits(stream::REQUESTS, 3_000)), "queue.depth", HealthStatus::Warn)]
#[case::the_mark_is_old(|facts: &mut PlatformFacts| facts.streams = streams(waits(stream::MARKS, 3_000)), "queue.depth", HealthStatus::Ok)]
#[case::signals_wait(|facts: &mut PlatformFacts| facts.streams = streams(waits(stream::SIGNALS, 3_000)), "engagement", HealthStatus::Warn)]
#[case::nobody_takes_signals(|facts: &mut PlatformFacts| of_all(facts, |stage| if stage.stage == "engagement" { stage.alive = 0 }), "engagement", HealthStatus::Warn)]
#[case::a_request_waits(|facts: &mut PlatformFacts| facts.backlog = Some(BacklogFacts { requests: 1, requests_oldest: Some(130.0), ..BacklogFacts::default() }), "queue.stuck", HealthStatus::Warn)]
#[case::a_message_is_stuck(|facts: &mut PlatformFacts| facts.backlog = Some(BacklogFacts { priority: 1, priority_oldest: Some(901.0), ..BacklogFacts::default() }), "queue.stuck", HealthStatus::Crit)]
#[case::a_batch_goes_round(|facts: &mut PlatformFacts| facts.backlog = Some(BacklogFacts { bulk_announced: 1, bulk_announcements: 20, ..BacklogFacts::default() }), "queue.stuck", HealthStatus::Warn)]
#[case::a_tenth_fails(|facts: &mut PlatformFacts| facts.totals = Some(vec![total("campaign", "sent", 90), total("campaign", "failed", 10)]), "sends.failed", HealthStatus::Warn)]
#[case::half_fails(|facts: &mut PlatformFacts| facts.totals = Some(vec![total("campaign", "sent", 10), total("transactional", "failed", 10)]), "sends.failed", HealthStatus::Crit)]
#[case::some_are_in_doubt(|facts: &mut PlatformFacts| facts.totals = Some(vec![total("campaign", "sent", 99), total("campaign", "unknown", 1)]), "sends.failed", HealthStatus::Warn)]
#[case::too_few_to_tell(|facts: &mut PlatformFacts| facts.totals = Some(vec![total("campaign", "failed", 19)]), "sends.failed", HealthStatus::Ok)]
#[case::domains_break(|facts: &mut PlatformFacts| facts.domains = Some(DomainFacts { verified: 90, degraded: 10, ..DomainFacts::default() }), "domains", HealthStatus::Warn)]
#[case::one_owners_domain(|facts: &mut PlatformFacts| facts.domains = Some(DomainFacts { verified: 99, degraded: 1, ..DomainFacts::default() }), "domains", HealthStatus::Ok)]
#[case::nobody_checks(|facts: &mut PlatformFacts| facts.domains = Some(DomainFacts { verified: 5, stale: 1, ..DomainFacts::default() }), "domains", HealthStatus::Warn)]
#[case::nobody_tells(|facts: &mut PlatformFacts| of_all(facts, |stage| if stage.stage == "webhooks" { stage.alive = 0 }), "webhooks", HealthStatus::Warn)]
#[case::nobody_tells_and_nobody_asked(|facts: &mut PlatformFacts| { facts.webhooks = Some(WebhookFacts::default()); facts.stages.iter_mut().flatten().for_each(|stage| stage.alive = i64::from(stage.stage != "webhooks")); }, "webhooks", HealthStatus::Ok)]
#[case::deliveries_wait(|facts: &mut PlatformFacts| facts.webhooks = Some(WebhookFacts { due: 1, oldest: Some(400.0), ..WebhookFacts::default() }), "webhooks", HealthStatus::Warn)]
#[case::facts_are_not_told(|facts: &mut PlatformFacts| facts.webhooks = Some(WebhookFacts { unfanned: Some(400.0), ..WebhookFacts::default() }), "webhooks", HealthStatus::Warn)]
#[case::many_are_given_up(|facts: &mut PlatformFacts| facts.webhooks = Some(WebhookFacts { delivered: 80, dead: 20, ..WebhookFacts::default() }), "webhooks", HealthStatus::Warn)]
#[case::a_default_that_is_wrong(|facts: &mut PlatformFacts| of_all(facts, |stage| if stage.stage == "rendering" { stage.settings.clear() }), "configuration", HealthStatus::Warn)]
#[case::tenants_are_told_of_others_domains(|facts: &mut PlatformFacts| of_all(facts, |stage| stage.settings.retain(|setting| setting != "spf-include")), "configuration", HealthStatus::Warn)]
#[case::the_relay_hiccups(|facts: &mut PlatformFacts| facts.pings = Some(vec![ping(false, 5, Some(40))]), "provider", HealthStatus::Warn)]
#[case::the_relay_is_down(|facts: &mut PlatformFacts| facts.pings = Some(vec![ping(false, 5, Some(300))]), "provider", HealthStatus::Crit)]
#[case::the_relay_never_answered(|facts: &mut PlatformFacts| facts.pings = Some(vec![ping(false, 5, None)]), "provider", HealthStatus::Crit)]
#[case::nobody_asks_it(|facts: &mut PlatformFacts| facts.pings = Some(vec![ping(true, 600, Some(600))]), "provider", HealthStatus::Warn)]
#[case::nobody_ever_asked(|facts: &mut PlatformFacts| facts.pings = Some(Vec::new()), "provider", HealthStatus::Warn)]
fn what_is_wrong_is_said_by_its_check(
    #[case] change: fn(&mut PlatformFacts),
    #[case] id: &str,
    #[case] status: HealthStatus,
) {
    let mut facts = well();
    change(&mut facts);
    let checks = run_checks(&facts);
    let Some(check) = checks.iter().find(|check| check.id == id) else { panic!("no check {id}") };
    assert_eq!(check.status, status, "{check:?}");
    // What is not well says why, what to do and where to read more; what is well says nothing of the kind.
    assert_eq!(check.cause.is_some(), status > HealthStatus::Ok, "{check:?}");
    assert_eq!((check.fix.is_empty(), check.link.is_none()), (status == HealthStatus::Ok, status == HealthStatus::Ok));
    let report = HealthReport::from_facts(&facts, Utc::now());
    assert!(report.overall >= status && report.ok == (report.overall < HealthStatus::Crit));
}

#[test]
fn a_platform_that_is_well_is_ok() {
    let report = HealthReport::from_facts(&well(), Utc::now());
    let odd: Vec<&HealthCheck> = report.checks.iter().filter(|check| check.status != HealthStatus::Ok).collect();
    assert!(report.ok && odd.is_empty(), "{odd:?}");
}

#[test]
fn every_documented_check_is_there_and_names_are_unique() {
    let report = HealthReport::from_facts(&well(), Utc::now());
    let mut ids: Vec<&str> = report.checks.iter().map(|check| check.id.as_str()).collect();
    for wanted in [
        "database",
        "heartbeat.delivery",
        "failures.dead_letters",
        "queue.depth",
        "queue.stuck",
        "queue.owed",
        "queue.full",
        "pacing",
        "sends.failed",
        "engagement",
        "webhooks",
        "domains",
        "configuration",
        "provider",
    ] {
        assert!(ids.contains(&wanted), "{wanted}");
    }
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), report.checks.len());
}

#[test]
fn what_cannot_be_looked_at_is_a_warning_and_its_own_cause_is_named_once() {
    let report = HealthReport::from_facts(&PlatformFacts::default(), Utc::now());
    let critical: Vec<&str> = report
        .checks
        .iter()
        .filter(|check| check.status == HealthStatus::Crit)
        .map(|check| check.id.as_str())
        .collect();
    assert_eq!(critical, ["database", "bus"]);
    assert!(report.checks.iter().all(|check| check.status != HealthStatus::Ok));
}

#[test]
fn every_link_is_a_runbook_that_is_there() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let reports = [HealthReport::from_facts(&PlatformFacts::default(), Utc::now()), {
        let mut facts = well();
        facts.pings = Some(vec![ping(false, 5, None)]);
        facts.totals = Some(vec![total("campaign", "failed", 99)]);
        facts.webhooks = Some(WebhookFacts { delivered: 80, dead: 20, ..WebhookFacts::default() });
        facts.domains = Some(DomainFacts { verified: 5, stale: 1, ..DomainFacts::default() });
        HealthReport::from_facts(&facts, Utc::now())
    }];
    for link in reports.iter().flat_map(|report| &report.checks).filter_map(|check| check.link.as_ref()) {
        assert!(root.join(link).is_file(), "{link}");
    }
}

#[rstest]
#[case::nothing(&[], HealthStatus::Ok)]
#[case::of_seconds(&[("webhooks", 2.0), ("sequencing", 9.0)], HealthStatus::Ok)]
#[case::of_minutes(&[("webhooks", 2.0), ("sequencing", 400.0)], HealthStatus::Warn)]
fn old_work_is_reported_with_its_stage(#[case] work: &[(&str, f64)], #[case] expected: HealthStatus) {
    let work: Vec<OwedWork> =
        work.iter().map(|(stage, oldest)| OwedWork { stage: (*stage).to_owned(), oldest: *oldest }).collect();
    let check = owed(Some(&work), Some(&[]));
    assert_eq!(check.status, expected);
    if expected != HealthStatus::Ok {
        let cause = check.cause.unwrap_or_default();
        assert!(cause.contains("sequencing") && cause.contains("no process runs it"), "{cause}");
    }
}

#[test]
fn only_a_receiver_that_takes_nothing_is_a_warning() {
    let slowed = PacingFacts { throttled: 2, slowest: Some(0.5), ..PacingFacts::default() };
    assert_eq!(pacing(Some(&slowed)).status, HealthStatus::Ok);
    assert!(pacing(Some(&slowed)).observation.contains("0.50"));
    assert_eq!(pacing(Some(&PacingFacts { stalled: 1, ..slowed })).status, HealthStatus::Warn);
}

#[rstest]
#[case::nothing(&[], 0, false, HealthStatus::Ok)]
#[case::a_tenant(&[], 3, false, HealthStatus::Warn)]
#[case::webhooks(&["webhooks"], 0, false, HealthStatus::Warn)]
#[case::delivery(&["delivery"], 0, false, HealthStatus::Crit)]
#[case::the_ledger(&[], 0, true, HealthStatus::Crit)]
fn a_pause_is_a_warning_and_critical_if_it_stops_mail(
    #[case] stages: &[&str],
    #[case] tenants: i64,
    #[case] held: bool,
    #[case] expected: HealthStatus,
) {
    let stages = stages.iter().map(|stage| (*stage).to_owned()).collect();
    let pauses = PauseFacts { stages, tenants, held_at: held.then(Utc::now), held_reason: None };
    assert_eq!(paused(Some(&pauses)).status, expected);
}

#[test]
fn a_finding_is_explained_by_what_was_found() {
    let held_reason = Some("held by an operator".to_owned());
    let by_operator = paused(Some(&PauseFacts { held_at: Some(Utc::now()), held_reason, ..PauseFacts::default() }));
    assert!(!by_operator.observation.contains("restored"), "{by_operator:?}");
    assert!(by_operator.cause.is_some_and(|cause| cause.contains("held by an operator")));
    let find = |facts: &PlatformFacts, id: &str| run_checks(facts).into_iter().find(|check| check.id == id).unwrap();
    let mut facts = well();
    facts.totals = Some(vec![total("campaign", "unknown", 24)]);
    let in_doubt = find(&facts, "sends.failed");
    assert!(in_doubt.fix.iter().all(|step| !step.contains("lists")), "{in_doubt:?}");
    facts.domains = Some(DomainFacts { verified: 1, degraded: 1, suspended: 3, ..DomainFacts::default() });
    let domains = find(&facts, "domains");
    assert!(domains.observation.contains("3 suspended"), "{domains:?}");
    assert!(domains.cause.is_some_and(|cause| cause.contains("1 domain(s)")));
}

#[test]
fn a_nearly_full_work_queue_is_a_warning() {
    let of = |name: &'static str, bytes: u64| StreamFacts {
        name,
        messages: 1,
        oldest_seconds: 0,
        newest_seconds: 0,
        bytes,
        bytes_max: 1_000,
    };
    let others = [stream::DEAD, stream::EVENTS, stream::MARKS].map(|name| of(name, 990));
    let streams = [&[of(stream::SIGNALS, 690)][..], &others[..]].concat();
    assert_eq!(stream_capacity(Some(&streams)).status, HealthStatus::Ok);
    let nearly = stream_capacity(Some(&[of(stream::SIGNALS, 700), of(stream::REQUESTS, 1)]));
    assert_eq!(nearly.status, HealthStatus::Warn);
    assert!(nearly.cause.is_some_and(|cause| cause.contains(stream::SIGNALS)));
}
