//! The facts that the checks of the platform decide by: sums over all tenants, never one tenant's; of settings only the names.

use std::{
    future::Future,
    time::{Duration, Instant},
};

use chrono::{DateTime, Utc};
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
pub struct PlatformFacts {
    /// How long Postgres took to answer.
    pub database: Option<Duration>,
    /// The processes, by stage.
    pub stages: Option<Vec<StageFacts>>,
    /// The streams.
    pub streams: Option<Vec<StreamFacts>>,
    /// Totals of this hour and the one before.
    pub totals: Option<Vec<EventTotal>>,
    /// Unfinished work in the ledger.
    pub backlog: Option<BacklogFacts>,
    /// The oldest work of each stage.
    pub owed: Option<Vec<OwedWork>>,
    /// Routes that receivers slow down.
    pub pacing: Option<PacingFacts>,
    /// What operators have paused.
    pub pauses: Option<PauseFacts>,
    /// Sending domains.
    pub domains: Option<DomainFacts>,
    /// Outbound webhook deliveries.
    pub webhooks: Option<WebhookFacts>,
    /// The relay and the providers.
    pub pings: Option<Vec<ProviderPing>>,
}

/// The processes that run a stage.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StageFacts {
    /// The stage, or `ingress`.
    pub stage: String,
    /// Processes with a recent heartbeat.
    pub alive: i64,
    /// Processes that fell silent within the last minutes.
    pub silent: i64,
    /// Their sweeps whose last run failed.
    pub failing_sweeps: Vec<String>,
    /// Names of the settings that every living process was given.
    pub settings: Vec<String>,
}

/// A stream's backlog.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamFacts {
    /// Its name, without prefix.
    pub name: &'static str,
    /// Messages it holds.
    pub messages: u64,
    /// The age of the oldest, in seconds.
    pub oldest_seconds: i64,
    /// The age of the newest, in seconds.
    pub newest_seconds: i64,
    /// Bytes it holds.
    pub bytes: u64,
    /// Bytes it may hold; 0: no bound.
    pub bytes_max: i64,
}

/// Throttle keys (a sending domain's mail to one receiver) that a receiver has slowed down.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct PacingFacts {
    /// Throttle keys that are slowed down.
    pub throttled: i64,
    /// Of them, those of receivers that have accepted nothing for an hour.
    pub stalled: i64,
    /// Mails a second that the slowest may take.
    pub slowest: Option<f64>,
    /// Domains that are warmed up.
    pub warming: i64,
}

/// The oldest unfinished work of a stage by the ledger, whatever the bus says.
#[derive(Debug, Clone, PartialEq)]
pub struct OwedWork {
    /// The stage.
    pub stage: String,
    /// How old its oldest work is, in seconds.
    pub oldest: f64,
}

/// A total over all tenants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventTotal {
    /// A kind of message, or `failure`.
    pub kind: String,
    /// What happened, or why.
    pub event: String,
    /// How often.
    pub count: i64,
}

/// Unfinished work in the ledger. Ages are in seconds, and leave out what is paused; counts of one state stop at 10,000.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct BacklogFacts {
    /// Requests accepted and not handled.
    pub requests: i64,
    /// The age of the oldest.
    pub requests_oldest: Option<f64>,
    /// Batches of the priority lane that are not done and not deferred.
    pub priority: i64,
    /// The age of the oldest.
    pub priority_oldest: Option<f64>,
    /// Campaign batches dispatched.
    pub bulk_announced: i64,
    /// The highest number of announcements of one campaign batch.
    pub bulk_announcements: i32,
    /// Campaign batches not dispatched yet.
    pub bulk_waiting: i64,
}

/// What operators have paused.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PauseFacts {
    /// Paused stages.
    pub stages: Vec<String>,
    /// Paused tenants, counted to 10,000.
    pub tenants: i64,
    /// Since when all mail is paused because the database was restored.
    pub held_at: Option<DateTime<Utc>>,
    /// Why.
    pub held_reason: Option<String>,
}

/// Sending domains in production.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DomainFacts {
    /// Verified.
    pub verified: i64,
    /// A required DNS record is missing.
    pub degraded: i64,
    /// Degraded for too long.
    pub failed: i64,
    /// Verified, and not checked for two days.
    pub stale: i64,
}

/// Outbound webhook deliveries. Ages are in seconds; what is due is counted to 10,000; outcomes are of this hour and the last.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct WebhookFacts {
    /// Active subscriptions.
    pub active: i64,
    /// Of them, those with nothing but failures for an hour.
    pub failing: i64,
    /// Deliveries that are due.
    pub due: i64,
    /// How long the most overdue one waits.
    pub oldest: Option<f64>,
    /// The age of the oldest event that has no deliveries yet.
    pub unfanned: Option<f64>,
    /// Attempts that were answered 2xx.
    pub delivered: i64,
    /// Attempts that failed and are retried.
    pub failed: i64,
    /// Deliveries given up.
    pub dead: i64,
}

/// The last ping of a relay or provider by the delivery stage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProviderPing {
    /// smtp, ses, …
    pub provider: String,
    /// True if it answered.
    pub ok: bool,
    /// The error, if it did not answer.
    pub error_code: Option<String>,
    /// How long it took.
    pub latency_ms: Option<i32>,
    /// Seconds since it was asked.
    pub asked_seconds: i64,
    /// Seconds since it last answered.
    pub answered_seconds: Option<i64>,
}

impl PlatformFacts {
    /// Gathers all facts at the same time.
    pub async fn gather(pool: &PgPool, bus: &Bus) -> Self {
        let (database, stages, streams, totals, backlog, owed, pacing, pauses, domains, webhooks, pings) = tokio::join!(
            within_limit("database", database(pool)),
            within_limit("heartbeats", stages(pool)),
            within_limit_of_bus(streams(bus)),
            within_limit("totals", totals(pool)),
            within_limit("backlog", backlog(pool)),
            within_limit("owed", owed(pool)),
            within_limit("pacing", pacing(pool)),
            within_limit("pauses", pauses(pool)),
            within_limit("domains", domains(pool)),
            within_limit("webhooks", webhooks(pool)),
            within_limit("provider pings", pings(pool)),
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

async fn within_limit_of_bus<T>(query: impl Future<Output = Option<T>>) -> Option<T> {
    tokio::time::timeout(QUERY_MAX, query).await.ok().flatten()
}

async fn database(pool: &PgPool) -> sqlx::Result<Duration> {
    let asked = Instant::now();
    sqlx::query!("select 1 as one").fetch_one(pool).await?;
    Ok(asked.elapsed())
}

async fn stages(pool: &PgPool) -> sqlx::Result<Vec<StageFacts>> {
    sqlx::query_file_as!(StageFacts, "queries/platform_stages.sql", SILENT_SECONDS, GONE_SECONDS).fetch_all(pool).await
}

async fn totals(pool: &PgPool) -> sqlx::Result<Vec<EventTotal>> {
    sqlx::query_as!(
        EventTotal,
        r#"select kind as "kind!", event as "event!", count as "count!" from platform_totals()"#
    )
    .fetch_all(pool)
    .await
}

async fn backlog(pool: &PgPool) -> sqlx::Result<BacklogFacts> {
    sqlx::query_as!(
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
    )
    .fetch_one(pool)
    .await
}

async fn pauses(pool: &PgPool) -> sqlx::Result<PauseFacts> {
    sqlx::query_as!(
        PauseFacts,
        r#"select stages as "stages!", tenants as "tenants!", held_at, held_reason from platform_pauses()"#
    )
    .fetch_one(pool)
    .await
}

async fn owed(pool: &PgPool) -> sqlx::Result<Vec<OwedWork>> {
    sqlx::query_as!(
        OwedWork,
        r#"select stage as "stage!", oldest as "oldest!" from platform_owed() where oldest is not null order by oldest desc"#
    )
    .fetch_all(pool)
    .await
}

async fn pacing(pool: &PgPool) -> sqlx::Result<PacingFacts> {
    sqlx::query_as!(
        PacingFacts,
        r#"select throttled as "throttled!", stalled as "stalled!", slowest, warming as "warming!" from platform_pacing()"#
    )
    .fetch_one(pool)
    .await
}

async fn domains(pool: &PgPool) -> sqlx::Result<DomainFacts> {
    sqlx::query_as!(
        DomainFacts,
        r#"select verified as "verified!", degraded as "degraded!", failed as "failed!", stale as "stale!" from platform_domains()"#
    )
    .fetch_one(pool)
    .await
}

async fn webhooks(pool: &PgPool) -> sqlx::Result<WebhookFacts> {
    sqlx::query_as!(
        WebhookFacts,
        r#"select active as "active!", failing as "failing!", due as "due!", oldest, unfanned,
                  delivered as "delivered!", failed as "failed!", dead + disabled as "dead!"
           from platform_webhooks()"#
    )
    .fetch_one(pool)
    .await
}

async fn pings(pool: &PgPool) -> sqlx::Result<Vec<ProviderPing>> {
    sqlx::query_as!(
        ProviderPing,
        r#"select provider, ok, error_code, latency_ms, extract(epoch from now() - pinged_at)::bigint as "asked_seconds!",
                  extract(epoch from now() - ok_at)::bigint as answered_seconds
           from provider_pings order by provider"#
    )
    .fetch_all(pool)
    .await
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
