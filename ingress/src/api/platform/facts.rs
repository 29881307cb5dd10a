//! What can be seen of the platform: sums over all tenants, never one tenant's, and nothing of a setting but its name.

use std::{
    future::Future,
    time::{Duration, Instant},
};

use chrono::{DateTime, Utc};
use runtime::Bus;
use schemas::subjects::stream;
use sqlx::PgPool;

/// Longest one look may take. All are taken at the same time.
const LOOK_MAX: Duration = Duration::from_secs(2);
/// A process not heard of for so long is silent: it beats every five seconds.
const SILENT_SECONDS: i32 = 20;
/// Processes silent for longer have been replaced; they are not talked about any more.
const FORGOTTEN_SECONDS: i32 = 300;

/// What was seen. `None`: it could not be looked at.
#[derive(Debug, Clone, Default)]
pub struct Facts {
    /// How long Postgres took to answer.
    pub database: Option<Duration>,
    /// The processes, by stage.
    pub stages: Option<Vec<StageFacts>>,
    /// The streams.
    pub streams: Option<Vec<StreamFacts>>,
    /// Totals of this hour and the one before.
    pub totals: Option<Vec<Total>>,
    /// What is owed.
    pub backlog: Option<Backlog>,
    /// What stages owe.
    pub owed: Option<Vec<Owed>>,
    /// Receivers that slow us down.
    pub pacing: Option<Pacing>,
    /// What operators have paused.
    pub pauses: Option<Pauses>,
    /// Sending domains.
    pub domains: Option<Domains>,
    /// Outbound webhook deliveries.
    pub webhooks: Option<Webhooks>,
    /// The ways out of the platform itself.
    pub pings: Option<Vec<Ping>>,
}

/// The processes that run a stage.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StageFacts {
    /// The stage, or `ingress`.
    pub stage: String,
    /// Processes heard of lately.
    pub alive: i64,
    /// Processes that fell silent within the last minutes.
    pub silent: i64,
    /// Their sweeps whose last run failed.
    pub failing_sweeps: Vec<String>,
    /// Names of settings that all living ones were given.
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

/// Ways (a sending domain's mail to one receiver) that a receiver has slowed down.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Pacing {
    /// Ways that are slowed down.
    pub held: i64,
    /// Of them those that have taken nothing for an hour.
    pub barren: i64,
    /// Mails a second that the slowest may take.
    pub slowest: Option<f64>,
    /// Domains that are warmed up.
    pub warming: i64,
}

/// The oldest work a stage owes by the ledger, whatever the bus says.
#[derive(Debug, Clone, PartialEq)]
pub struct Owed {
    /// The stage.
    pub stage: String,
    /// How old its oldest work is, in seconds.
    pub oldest: f64,
}

/// A total over all tenants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Total {
    /// A kind of message, or `failure`.
    pub kind: String,
    /// What happened, or why.
    pub event: String,
    /// How often.
    pub count: i64,
}

/// What is owed. Ages are in seconds; counts stop at 10,000.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Backlog {
    /// Requests accepted and not handled.
    pub requests: i64,
    /// The age of the oldest.
    pub requests_oldest: Option<f64>,
    /// Batches of the priority lane that are not done and not resting.
    pub priority: i64,
    /// The age of the oldest.
    pub priority_oldest: Option<f64>,
    /// Campaign batches handed on.
    pub bulk_announced: i64,
    /// How often the one rung for most was rung for.
    pub bulk_announcements: i32,
    /// Campaign batches not handed on yet.
    pub bulk_waiting: i64,
}

/// What operators have paused.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pauses {
    /// Stages that start nothing.
    pub stages: Vec<String>,
    /// Tenants of which nothing is mailed, counted to 10,000.
    pub tenants: i64,
    /// Since when the whole ledger is held: it was restored.
    pub held_at: Option<DateTime<Utc>>,
    /// Why.
    pub held_reason: Option<String>,
}

/// Sending domains in production.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Domains {
    /// Proven.
    pub verified: i64,
    /// A required record is gone.
    pub degraded: i64,
    /// Stayed so too long.
    pub failed: i64,
    /// Proven, and not looked at for two days.
    pub stale: i64,
}

/// Outbound webhook deliveries. Ages are in seconds; what is due is counted to 10,000; outcomes are of this hour and the last.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Webhooks {
    /// Active subscriptions.
    pub active: i64,
    /// Of them those that have only failed for an hour.
    pub failing: i64,
    /// Deliveries that are due.
    pub due: i64,
    /// How long the most overdue one waits.
    pub oldest: Option<f64>,
    /// The age of the oldest event that has no deliveries yet.
    pub untold: Option<f64>,
    /// Attempts that were answered 2xx.
    pub delivered: i64,
    /// Attempts that failed and are made again.
    pub failed: i64,
    /// Deliveries given up.
    pub dead: i64,
}

/// What delivery last heard from a way out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ping {
    /// smtp, ses, …
    pub provider: String,
    /// Whether it answered.
    pub ok: bool,
    /// Why not.
    pub error_code: Option<String>,
    /// How long it took.
    pub latency_ms: Option<i32>,
    /// Seconds since it was asked.
    pub asked_seconds: i64,
    /// Seconds since it last answered.
    pub answered_seconds: Option<i64>,
}

impl Facts {
    /// Looks at everything.
    pub async fn gather(pool: &PgPool, bus: &Bus) -> Self {
        let (database, stages, streams, totals, backlog, owed, pacing, pauses, domains, webhooks, pings) = tokio::join!(
            look("database", database(pool)),
            look("heartbeats", stages(pool)),
            look_at_bus(streams(bus)),
            look("totals", totals(pool)),
            look("backlog", backlog(pool)),
            look("owed", owed(pool)),
            look("pacing", pacing(pool)),
            look("pauses", pauses(pool)),
            look("domains", domains(pool)),
            look("webhooks", webhooks(pool)),
            look("provider pings", pings(pool)),
        );
        Self { database, stages, streams, totals, backlog, owed, pacing, pauses, domains, webhooks, pings }
    }
}

/// `None` for what fails or takes too long; the log has the rest.
async fn look<T>(what: &'static str, looking: impl Future<Output = sqlx::Result<T>>) -> Option<T> {
    match tokio::time::timeout(LOOK_MAX, looking).await {
        Ok(Ok(seen)) => Some(seen),
        Ok(Err(error)) => {
            tracing::warn!(what, error = runtime::db::describe(&error), "health could not look");
            None
        }
        Err(_) => {
            tracing::warn!(what, "health looked for too long");
            None
        }
    }
}

async fn look_at_bus<T>(looking: impl Future<Output = Option<T>>) -> Option<T> {
    tokio::time::timeout(LOOK_MAX, looking).await.ok().flatten()
}

async fn database(pool: &PgPool) -> sqlx::Result<Duration> {
    let asked = Instant::now();
    sqlx::query!("select 1 as one").fetch_one(pool).await?;
    Ok(asked.elapsed())
}

async fn stages(pool: &PgPool) -> sqlx::Result<Vec<StageFacts>> {
    sqlx::query_file_as!(StageFacts, "queries/platform_stages.sql", SILENT_SECONDS, FORGOTTEN_SECONDS)
        .fetch_all(pool)
        .await
}

async fn totals(pool: &PgPool) -> sqlx::Result<Vec<Total>> {
    sqlx::query_as!(Total, r#"select kind as "kind!", event as "event!", count as "count!" from platform_totals()"#)
        .fetch_all(pool)
        .await
}

async fn backlog(pool: &PgPool) -> sqlx::Result<Backlog> {
    sqlx::query_as!(
        Backlog,
        r#"select requests_accepted as "requests!", requests_oldest, priority_open as "priority!", priority_oldest,
                  bulk_announced as "bulk_announced!", coalesce(bulk_announcements_max, 0) as "bulk_announcements!",
                  bulk_waiting as "bulk_waiting!"
           from platform_backlog()"#
    )
    .fetch_one(pool)
    .await
}

async fn pauses(pool: &PgPool) -> sqlx::Result<Pauses> {
    sqlx::query_as!(
        Pauses,
        r#"select stages as "stages!", tenants as "tenants!", held_at, held_reason from platform_pauses()"#
    )
    .fetch_one(pool)
    .await
}

async fn owed(pool: &PgPool) -> sqlx::Result<Vec<Owed>> {
    sqlx::query_as!(
        Owed,
        r#"select stage as "stage!", oldest as "oldest!" from platform_owed() where oldest is not null order by oldest desc"#
    )
    .fetch_all(pool)
    .await
}

async fn pacing(pool: &PgPool) -> sqlx::Result<Pacing> {
    sqlx::query_as!(
        Pacing,
        r#"select throttled as "held!", stalled as "barren!", slowest, warming as "warming!" from platform_pacing()"#
    )
    .fetch_one(pool)
    .await
}

async fn domains(pool: &PgPool) -> sqlx::Result<Domains> {
    sqlx::query_as!(
        Domains,
        r#"select verified as "verified!", degraded as "degraded!", failed as "failed!", stale as "stale!" from platform_domains()"#
    )
    .fetch_one(pool)
    .await
}

async fn webhooks(pool: &PgPool) -> sqlx::Result<Webhooks> {
    sqlx::query_as!(
        Webhooks,
        r#"select active as "active!", failing as "failing!", due as "due!", oldest, unfanned as untold,
                  delivered as "delivered!", failed as "failed!", dead + disabled as "dead!"
           from platform_webhooks()"#
    )
    .fetch_one(pool)
    .await
}

async fn pings(pool: &PgPool) -> sqlx::Result<Vec<Ping>> {
    sqlx::query_as!(
        Ping,
        r#"select provider, ok, error_code, latency_ms, extract(epoch from now() - pinged_at)::bigint as "asked_seconds!",
                  extract(epoch from now() - ok_at)::bigint as answered_seconds
           from provider_pings order by provider"#
    )
    .fetch_all(pool)
    .await
}

async fn streams(bus: &Bus) -> Option<Vec<StreamFacts>> {
    let names = [
        stream::REQUESTS,
        stream::ACCEPTED,
        stream::RESOLVED,
        stream::CLEARED,
        stream::RENDERED,
        stream::SIGNALS,
        stream::DEAD,
    ];
    let mut seen = Vec::with_capacity(names.len());
    for name in names {
        let found = bus.jetstream().get_stream(bus.prefixed(name)).await.ok()?;
        let info = found.get_info().await.ok()?;
        let state = info.state;
        let now: DateTime<Utc> = Utc::now();
        let age = |unix: i64| if state.messages == 0 { 0 } else { (now.timestamp() - unix).max(0) };
        seen.push(StreamFacts {
            name,
            messages: state.messages,
            oldest_seconds: age(state.first_timestamp.unix_timestamp()),
            newest_seconds: age(state.last_timestamp.unix_timestamp()),
            bytes: state.bytes,
            bytes_max: info.config.max_bytes,
        });
    }
    Some(seen)
}
