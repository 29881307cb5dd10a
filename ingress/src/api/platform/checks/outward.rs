//! The checks of what mail and events meet outside: receivers, webhook endpoints, DNS, relays and providers.

use super::of_stage;
use crate::api::platform::{
    HealthCheck, HealthStatus,
    facts::{DomainFacts, EventTotal, PacingFacts, PlatformFacts, ProviderPing, WebhookFacts},
};

/// With fewer sends than this, no share is computed.
const ENOUGH_SENDS: i64 = 20;
const FAILED_WARN_PERCENT: i64 = 10;
const FAILED_CRIT_PERCENT: i64 = 50;
const UNKNOWN_WARN_PERCENT: i64 = 1;
/// Reasons named in one observation.
const REASONS_NAMED: usize = 5;
/// Age of the oldest event without a delivery. No mail depends on webhooks.
const WEBHOOKS_WARN_SECONDS: f64 = 300.0;
/// With fewer attempts than this, no share is computed.
const ENOUGH_ATTEMPTS: i64 = 20;
const DEAD_WARN_PERCENT: i64 = 10;
/// Share of degraded domains at which our resolver is suspected rather than their owners.
const DEGRADED_WARN_PERCENT: i64 = 5;
/// A relay or provider without an answer for so long is down.
const SILENT_PROVIDER_SECONDS: i64 = 120;
/// A relay or provider that was not pinged for so long is a warning.
const UNASKED_PROVIDER_SECONDS: i64 = 180;

pub(super) fn failed_sends(totals: Option<&[EventTotal]>) -> HealthCheck {
    let check = HealthCheck::new("sends.failed", "sending", "Failed sends", "");
    let Some(totals) = totals else { return check.unavailable() };
    let of = |event: &str| {
        let counted = totals
            .iter()
            .filter(|total| total.event == event && !["failure", "suppression"].contains(&total.kind.as_str()));
        counted.map(|total| total.count).sum::<i64>()
    };
    let (sent, failed, unknown) = (of("sent"), of("failed"), of("unknown"));
    let mut reasons: Vec<&EventTotal> = totals.iter().filter(|total| total.kind == "failure").collect();
    reasons.sort_by_key(|total| std::cmp::Reverse(total.count));
    let named: Vec<String> =
        reasons.iter().take(REASONS_NAMED).map(|total| format!("{} {}", total.event, total.count)).collect();
    let mut observation = format!("this hour and the last: {sent} sent, {failed} failed, {unknown} unknown");
    if !named.is_empty() {
        observation.push_str(&format!(" ({})", named.join(", ")));
    }
    let check = check.observed(observation);
    let tried = sent + failed + unknown;
    if tried < ENOUGH_SENDS {
        return check;
    }
    let percent = |count: i64| count * 100 / tried;
    let status = match (percent(failed + unknown), percent(unknown)) {
        (FAILED_CRIT_PERCENT.., _) => HealthStatus::Crit,
        (FAILED_WARN_PERCENT.., _) | (_, UNKNOWN_WARN_PERCENT..) => HealthStatus::Warn,
        _ => return check,
    };
    let is_doubt = percent(unknown) >= UNKNOWN_WARN_PERCENT;
    let fix = if is_doubt && (failed < unknown || percent(failed) < FAILED_WARN_PERCENT) {
        &[
            "the relay or provider gave no answer after it had the mail, or a process ended meanwhile: read their logs",
            "`postrider requeue … --unknown-as sent|failed` decides what the relay's log says of it",
        ]
    } else {
        &[
            "hard: the lists are old; block or policy: the receivers refuse us; render: a template is at fault",
            "`GET /v1/sends/{id}` has the server's own words",
        ]
    };
    check.because(
        status,
        format!("{} % of what was tried failed, {} % is in doubt", percent(failed), percent(unknown)),
        fix,
        if is_doubt { "unknown-outcomes" } else { "many-failures" },
    )
}

/// Receivers that slow down our mail. It goes out later; a receiver that accepts nothing for an hour is a warning.
pub(super) fn pacing(pacing: Option<&PacingFacts>) -> HealthCheck {
    let check = HealthCheck::new("pacing", "sending", "Receivers that slow us down", "none");
    let Some(PacingFacts { throttled, stalled, slowest, warming }) = pacing else { return check.unavailable() };
    let slowest = slowest.map(|rate| format!(", the slowest to {rate:.2} mail(s) a second")).unwrap_or_default();
    let check = check.observed(format!(
        "{throttled} route(s) slowed down{slowest}; {stalled} of them took nothing for an hour; {warming} domain(s) warmed up"
    ));
    if *stalled == 0 {
        return check;
    }
    check.warn(
        format!("{stalled} route(s) to a receiver accept nothing; their mail waits, other mail does not"),
        &[
            "`mail_smtp_answers_total` and `GET /v1/sends/{id}` have the receivers' answers",
            "mend reputation or lists; the pace rises by itself with good answers",
        ],
        "deferrals",
    )
}

pub(super) fn webhooks(facts: &PlatformFacts) -> HealthCheck {
    let check = HealthCheck::new("webhooks", "webhooks", "Outbound webhook deliveries", "");
    let (Some(stages), Some(webhooks)) = (facts.stages.as_deref(), facts.webhooks.as_ref()) else {
        return check.unavailable();
    };
    let WebhookFacts { active, failing, due, delivered, failed, dead, .. } = *webhooks;
    let waits = webhooks.oldest.unwrap_or(0.0).max(webhooks.unfanned.unwrap_or(0.0));
    let check = check.observed(format!(
        "{active} active subscription(s), {failing} failing for an hour; {due} delivery(s) due, the oldest for {waits:.0} s; \
         this hour and the last: {delivered} delivered, {failed} to be tried again, {dead} given up"
    ));
    let alive = of_stage(stages, "webhooks").map_or(0, |facts| facts.alive);
    if alive == 0 && (active > 0 || webhooks.unfanned.is_some()) {
        return check.warn(
            "no process runs the stage webhooks; events are kept",
            &["start it: `postrider stage webhooks`"],
            "process-down",
        );
    }
    if waits >= WEBHOOKS_WARN_SECONDS {
        return check.warn(
            "deliveries are behind: too few processes, or receivers that answer slowly",
            &["look at mail_webhooks_in_flight and mail_webhook_attempt_seconds", "start more of the stage webhooks"],
            "webhooks-behind",
        );
    }
    let ended = delivered + dead;
    if ended >= ENOUGH_ATTEMPTS && dead * 100 >= ended * DEAD_WARN_PERCENT {
        return check.warn(
            "many deliveries are given up: receivers are away, or this installation cannot reach them",
            &["mail_webhook_failures_total says why", "`GET /v1/webhooks/{id}/deliveries` says which"],
            "webhooks-failing",
        );
    }
    check
}

pub(super) fn domains(domains: Option<&DomainFacts>) -> HealthCheck {
    let check = HealthCheck::new("domains", "sending", "Sending domains", "");
    let Some(domains) = domains else { return check.unavailable() };
    let DomainFacts { verified, degraded, failed, suspended, stale } = *domains;
    let check = check.observed(format!(
        "{verified} verified, {degraded} degraded, {failed} failed, {suspended} suspended by the operator, \
         {stale} not checked for two days"
    ));
    if degraded > 0 && degraded * 100 >= (verified + degraded) * DEGRADED_WARN_PERCENT {
        return check.warn(
            format!("required DNS records of {degraded} domain(s) are gone, or our resolver sees them so"),
            &["check dns-servers first", "owners see which record on `GET /v1/domains`; they have 72 hours"],
            "blocked",
        );
    }
    if stale > 0 {
        return check.warn(
            "proven domains were not checked again",
            &["`POST /v1/domains/{id}/verify` checks one now", "check dns-servers"],
            "blocked",
        );
    }
    check
}

/// The relay and the providers: do they answer?
pub(super) fn providers(pings: Option<&[ProviderPing]>) -> HealthCheck {
    let check = HealthCheck::new("provider", "sending", "Relay and providers", "");
    let Some(pings) = pings else { return check.unavailable() };
    let fix = &[
        "check the relay's or provider's own status",
        "check smtp-url and what lies between",
        "mail waits and goes out when it is back",
    ];
    let Some(worst) = pings.iter().max_by_key(|ping| (status_of(ping), ping.asked_seconds)) else {
        return check.observed("never asked").warn(
            "no delivery process has pinged it yet",
            &["see whether the stage delivery runs"],
            "relay-unreachable",
        );
    };
    let observed: Vec<String> = pings
        .iter()
        .map(|ping| {
            let said = match (&ping.error_code, ping.latency_ms) {
                (_, Some(latency)) if ping.ok => format!("answered in {latency} ms"),
                (Some(code), _) => format!("said {code}"),
                (None, _) if ping.ok => "answered".to_owned(),
                (None, _) => "did not answer".to_owned(),
            };
            format!("{} {said}, {} s ago", ping.provider, ping.asked_seconds)
        })
        .collect();
    let check = check.observed(observed.join("; "));
    match status_of(worst) {
        HealthStatus::Ok => check,
        HealthStatus::Warn if worst.ok => check.warn(
            format!("{} was not asked for {} s", worst.provider, worst.asked_seconds),
            &["see whether the stage delivery runs"],
            "relay-unreachable",
        ),
        status => check.because(status, format!("{} does not answer", worst.provider), fix, "relay-unreachable"),
    }
}

fn status_of(ping: &ProviderPing) -> HealthStatus {
    match (ping.ok, ping.answered_seconds) {
        (false, Some(seconds)) if seconds < SILENT_PROVIDER_SECONDS => HealthStatus::Warn,
        (false, _) => HealthStatus::Crit,
        (true, _) if ping.asked_seconds >= UNASKED_PROVIDER_SECONDS => HealthStatus::Warn,
        (true, _) => HealthStatus::Ok,
    }
}
