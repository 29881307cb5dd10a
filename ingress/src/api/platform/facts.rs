//! The facts that the checks of the platform decide by: sums over all tenants, never one tenant's; of settings only the names.

use std::{
    future::Future,
    time::{Duration, Instant},
};

use chrono::{DateTime, Utc};
use futures::TryFutureExt;
use runtime::Bus;
use schemas::subjects::stream;
use sqlx::PgPool;

/// Longest a query may take. All run at the same time.
const QUERY_MAX: Duration = Duration::from_secs(2);
/// A process without a heartbeat for so long is silent: it beats every five seconds.
const SILENT_SECONDS: i32 = 20;
/// A process that is silent for longer is left out: it has been replaced.
const GONE_SECONDS: i32 = 300;

/// What was found. `None`: the query failed or took too long.
#[derive(Debug, Clone, Default)]
pub(super) struct PlatformFacts {
    /// How long Postgres took to answer.
    pub(super) database: Option<Duration>,
    pub(super) stages: Option<Vec<StageFacts>>,
    pub(super) streams: Option<Vec<StreamFacts>>,
    /// Totals of this hour and the one before.
    pub(super) totals: Option<Vec<EventTotal>>,
    pub(super) backlog: Option<BacklogFacts>,
    pub(super) owed: Option<Vec<OwedWork>>,
    pub(super) pacing: Option<PacingFacts>,
    pub(super) pauses: Option<PauseFacts>,
    pub(super) domains: Option<DomainFacts>,
    pub(super) webhooks: Option<WebhookFacts>,
    pub(super) pings: Option<Vec<ProviderPing>>,
}

/// The processes that run a stage.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct StageFacts {
    /// The stage, or `ingress`.
    pub(super) stage: String,
    /// Processes with a recent heartbeat.
    pub(super) alive: i64,
    /// Processes that fell silent within the last minutes.
    pub(super) silent: i64,
    /// Their sweeps whose last run failed.
    pub(super) failing_sweeps: Vec<String>,
    /// Names of the settings that every living process was given.
    pub(super) settings: Vec<String>,
}

/// A stream's backlog. Ages are in seconds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct StreamFacts {
    /// Without prefix.
    pub(super) name: &'static str,
    pub(super) messages: u64,
    pub(super) oldest_seconds: i64,
    pub(super) newest_seconds: i64,
    pub(super) bytes: u64,
    /// 0: no bound.
    pub(super) bytes_max: i64,
}

/// Throttle keys (a sending domain's mail to one receiver) that a receiver has slowed down.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct PacingFacts {
    pub(super) throttled: i64,
    /// Of them, those of receivers that have accepted nothing for an hour.
    pub(super) stalled: i64,
    /// Mails a second that the slowest may take.
    pub(super) slowest: Option<f64>,
    /// Domains that are warmed up.
    pub(super) warming: i64,
}

/// The oldest unfinished work of a stage by the ledger, whatever the bus says.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct OwedWork {
    pub(super) stage: String,
    /// In seconds.
    pub(super) oldest: f64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct EventTotal {
    /// A kind of message, or `failure`.
    pub(super) kind: String,
    /// What happened, or why.
    pub(super) event: String,
    pub(super) count: i64,
}

/// Unfinished work in the ledger. Ages are in seconds, and leave out what is paused; counts of one state stop at 10,000.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct BacklogFacts {
    /// Requests accepted and not handled.
    pub(super) requests: i64,
    pub(super) requests_oldest: Option<f64>,
    /// Batches of the priority lane that are not done and not deferred.
    pub(super) priority: i64,
    pub(super) priority_oldest: Option<f64>,
    /// Campaign batches dispatched.
    pub(super) bulk_announced: i64,
    /// The highest number of announcements of one campaign batch.
    pub(super) bulk_announcements: i32,
    /// Campaign batches not dispatched yet.
    pub(super) bulk_waiting: i64,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct PauseFacts {
    pub(super) stages: Vec<String>,
    /// Counted to 10,000.
    pub(super) tenants: i64,
    /// Since when all mail is paused: the database was restored, or an operator paused it.
    pub(super) held_at: Option<DateTime<Utc>>,
    pub(super) held_reason: Option<String>,
}

/// Sending domains in production.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct DomainFacts {
    pub(super) verified: i64,
    /// A required DNS record is missing.
    pub(super) degraded: i64,
    /// Degraded for too long.
    pub(super) failed: i64,
    /// By the operator.
    pub(super) suspended: i64,
    /// Verified, and not checked for two days.
    pub(super) stale: i64,
}

/// Outbound webhook deliveries. Ages are in seconds; what is due is counted to 10,000; outcomes are of this hour and the last.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct WebhookFacts {
    pub(super) active: i64,
    /// Of them, those with nothing but failures for an hour.
    pub(super) failing: i64,
    pub(super) due: i64,
    /// How long the most overdue one waits.
    pub(super) oldest: Option<f64>,
    /// The age of the oldest event that has no deliveries yet.
    pub(super) unfanned: Option<f64>,
    /// Attempts that were answered 2xx.
    pub(super) delivered: i64,
    /// Attempts that failed and are retried.
    pub(super) failed: i64,
    pub(super) dead: i64,
}

/// The last ping of a relay or provider by the delivery stage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ProviderPing {
    /// smtp, ses, …
    pub(super) provider: String,
    pub(super) ok: bool,
    pub(super) error_code: Option<String>,
    pub(super) latency_ms: Option<i32>,
    /// Seconds since it was asked.
    pub(super) asked_seconds: i64,
    /// Seconds since it last answered.
    pub(super) answered_seconds: Option<i64>,
}

impl PlatformFacts {
    /// Gathers all facts at the same time.
    pub(super) async fn gather(pool: &PgPool, bus: &Bus) -> Self {
        let asked = Instant::now();
        let database = sqlx::query!("select 1 as one").fetch_one(pool).map_ok(|_| asked.elapsed());
        let stages = sqlx::query_file_as!(StageFacts, "queries/platform_stages.sql", SILENT_SECONDS, GONE_SECONDS);
        let totals = sqlx::query_as!(
            EventTotal,
            r#"select kind as "kind!", event as "event!", count as "count!" from platform_totals()"#
        );
        let backlog = sqlx::query_as!(
            BacklogFacts,
            r#"select r.requests as "requests!", r.oldest as requests_oldest, b.priority as "priority!", b.priority_oldest,
                      b.announced as "bulk_announced!", b.announcements as "bulk_announcements!", b.waiting as "bulk_waiting!"
               from (select coalesce(sum(requests), 0)::bigint as requests, max(oldest) as oldest from platform_requests()) r
               cross join (
                   select coalesce(sum(batches) filter (where lane = 'priority'), 0)::bigint as priority,
                          max(oldest) filter (where lane = 'priority') as priority_oldest,
                          coalesce(sum(batches) filter (where lane = 'bulk' and state = 'announced'), 0)::bigint as announced,
                          coalesce(max(announcements) filter (where lane = 'bulk' and state = 'announced'), 0) as announcements,
                          coalesce(sum(batches) filter (where lane = 'bulk' and state = 'waiting'), 0)::bigint as waiting
                   from platform_batches()
                   where state in ('waiting', 'announced')
               ) b"#
        );
        let owed = sqlx::query_as!(
            OwedWork,
            r#"select stage as "stage!", oldest as "oldest!" from platform_owed() where oldest is not null order by oldest desc"#
        );
        let pacing = sqlx::query_as!(
            PacingFacts,
            r#"select throttled as "throttled!", stalled as "stalled!", slowest, warming as "warming!" from platform_pacing()"#
        );
        let pauses = sqlx::query_as!(
            PauseFacts,
            r#"select stages as "stages!", tenants as "tenants!", held_at, held_reason from platform_pauses()"#
        );
        let domains = sqlx::query_as!(
            DomainFacts,
            r#"select verified as "verified!", degraded as "degraded!", failed as "failed!", suspended as "suspended!",
                      stale as "stale!"
               from platform_domains()"#
        );
        let webhooks = sqlx::query_as!(
            WebhookFacts,
            r#"select active as "active!", failing as "failing!", due as "due!", oldest, unfanned,
                      delivered as "delivered!", failed as "failed!", dead + disabled as "dead!"
               from platform_webhooks()"#
        );
        let pings = sqlx::query_as!(
            ProviderPing,
            r#"select provider, ok, error_code, latency_ms, extract(epoch from now() - pinged_at)::bigint as "asked_seconds!",
                      extract(epoch from now() - ok_at)::bigint as answered_seconds
               from provider_pings order by provider"#
        );
        let (database, stages, streams, totals, backlog, owed, pacing, pauses, domains, webhooks, pings) = tokio::join!(
            within_limit("database", database),
            within_limit("heartbeats", stages.fetch_all(pool)),
            async { tokio::time::timeout(QUERY_MAX, streams(bus)).await.ok().flatten() },
            within_limit("totals", totals.fetch_all(pool)),
            within_limit("backlog", backlog.fetch_one(pool)),
            within_limit("owed", owed.fetch_all(pool)),
            within_limit("pacing", pacing.fetch_one(pool)),
            within_limit("pauses", pauses.fetch_one(pool)),
            within_limit("domains", domains.fetch_one(pool)),
            within_limit("webhooks", webhooks.fetch_one(pool)),
            within_limit("provider pings", pings.fetch_all(pool)),
        );
        Self { database, stages, streams, totals, backlog, owed, pacing, pauses, domains, webhooks, pings }
    }
}

/// Runs a query for at most [`QUERY_MAX`]. `None` if it fails or takes too long; the log has the reason.
async fn within_limit<T>(what: &'static str, query: impl Future<Output = sqlx::Result<T>>) -> Option<T> {
    match tokio::time::timeout(QUERY_MAX, query).await {
        Ok(Ok(found)) => Some(found),
        Ok(Err(error)) => {
            tracing::warn!(what, error = runtime::db::describe(&error), "a health query failed");
            None
        }
        Err(_) => {
            tracing::warn!(what, "a health query took too long");
            None
        }
    }
}

/// The streams that the checks look at.
pub(super) const WATCHED: [&str; 8] = [
    stream::REQUESTS,
    stream::ACCEPTED,
    stream::RESOLVED,
    stream::CLEARED,
    stream::RENDERED,
    stream::SIGNALS,
    stream::DEAD,
    stream::MARKS,
];

async fn streams(bus: &Bus) -> Option<Vec<StreamFacts>> {
    let mut found = Vec::with_capacity(WATCHED.len());
    for name in WATCHED {
        let held = bus.jetstream().get_stream(bus.prefixed(name)).await.ok()?;
        let info = held.get_info().await.ok()?;
        let state = info.state;
        let now: DateTime<Utc> = Utc::now();
        let age = |unix: i64| if state.messages == 0 { 0 } else { (now.timestamp() - unix).max(0) };
        found.push(StreamFacts {
            name,
            messages: state.messages,
            oldest_seconds: age(state.first_timestamp.unix_timestamp()),
            newest_seconds: age(state.last_timestamp.unix_timestamp()),
            bytes: state.bytes,
            bytes_max: info.config.max_bytes,
        });
    }
    Some(found)
}
