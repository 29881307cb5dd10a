//! What one process finds out about a receiver, the others take over: through the ledger, a second or two later. What is told is
//! kept for an hour, so a process that starts knows it, too.

use std::{
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use async_trait::async_trait;
use runner::{StageError, Sweep};
use runtime::Gauge;
use schemas::receiver::{Receiver, families};
use sqlx::PgPool;

use super::{
    Paces,
    paths::{News, Path},
    rate::Held,
};

/// How often.
const EVERY: Duration = Duration::from_secs(1);
/// For how long what was told is good, in seconds.
const TOLD_FOR: f64 = 3_600.0;
/// What is told and heard is looked for this much further back, in seconds: commits take a moment.
const OVERLAP: f64 = 5.0;
/// Paths told of at once; more are told of the next time.
const TELL_AT_ONCE: usize = 500;
/// Paths heard of at once.
const HEAR_AT_ONCE: i64 = 5_000;

/// The sweep that tells and hears.
pub(crate) struct Share {
    pool: PgPool,
    paces: Paces,
    heard_at: Mutex<Option<Instant>>,
}

impl Share {
    pub fn new(pool: PgPool, paces: Paces) -> Self {
        Self { pool, paces, heard_at: Mutex::new(None) }
    }

    async fn tell(&self) -> sqlx::Result<()> {
        let mut news = self.paces.shared.lock().news(TELL_AT_ONCE);
        if news.is_empty() {
            return Ok(());
        }
        news.sort_by(|a, b| key(&a.path).cmp(&key(&b.path)));
        let told = self.tell_of(&news).await;
        if told.is_err() {
            self.paces.shared.lock().untold(&news);
        }
        told
    }

    async fn tell_of(&self, news: &[News]) -> sqlx::Result<()> {
        let now = Instant::now();
        let age = |at: Instant| now.saturating_duration_since(at).as_secs_f64();
        let held: Vec<(&Path, Held)> = news.iter().filter_map(|news| Some((&news.path, news.held?))).collect();
        if !held.is_empty() {
            let (tenants, domains, receivers) = columns(held.iter().map(|(path, _)| *path));
            sqlx::query_file!(
                "queries/pace_tell.sql",
                &tenants,
                &domains,
                &receivers,
                &held.iter().map(|(_, held)| held.limit).collect::<Vec<f64>>(),
                &held.iter().map(|(_, held)| held.threshold).collect::<Vec<f64>>(),
                &held.iter().map(|(_, held)| age(held.cut_at)).collect::<Vec<f64>>(),
                &held.iter().map(|(_, held)| age(held.since)).collect::<Vec<f64>>(),
                &held.iter().map(|(_, held)| held.good_at.map(age)).collect::<Vec<Option<f64>>>() as &[Option<f64>],
            )
            .execute(&self.pool)
            .await?;
        }
        let free: Vec<&Path> = news.iter().filter(|news| news.held.is_none()).map(|news| &news.path).collect();
        if !free.is_empty() {
            let (tenants, domains, receivers) = columns(free.into_iter());
            sqlx::query_file!("queries/pace_free.sql", &tenants, &domains, &receivers).execute(&self.pool).await?;
        }
        Ok(())
    }

    async fn hear(&self) -> sqlx::Result<()> {
        let asked_at = Instant::now();
        let heard_at = *self.heard_at.lock().unwrap_or_else(PoisonError::into_inner);
        let since = heard_at.map_or(TOLD_FOR, |at| (asked_at - at).as_secs_f64() + OVERLAP).min(TOLD_FOR);
        let rows = sqlx::query_file!("queries/pace_hear.sql", since, HEAR_AT_ONCE).fetch_all(&self.pool).await?;
        let now = Instant::now();
        let at = |age: f64| now.checked_sub(Duration::try_from_secs_f64(age).unwrap_or_default()).unwrap_or(now);
        let told = rows.into_iter().map(|row| {
            let held = Held {
                limit: row.rate,
                threshold: row.threshold,
                cut_at: at(row.cut_age),
                since: at(row.held_age),
                good_at: row.good_age.map(at),
            };
            let receiver = Receiver::named(&row.receiver);
            (Path { tenant: row.tenant_id, sending_domain: row.sending_domain.into(), receiver }, held)
        });
        self.paces.adopt(told, now);
        *self.heard_at.lock().unwrap_or_else(PoisonError::into_inner) = Some(asked_at);
        Ok(())
    }

    /// Forgets what is idle, and shows the levels.
    fn tidy(&self) {
        let levels = self.paces.tidy();
        for family in families() {
            let level = levels.get(family).copied().unwrap_or_default();
            Gauge::PaceKeysThrottled.set(level.held as f64, [("receiver", family)]);
            Gauge::PaceRate.set(level.limit, [("receiver", family)]);
            Gauge::PaceWaiting.set(level.waiting, [("receiver", family)]);
        }
    }
}

#[async_trait]
impl Sweep for Share {
    fn name(&self) -> &'static str {
        "paces"
    }

    fn interval(&self) -> Duration {
        EVERY
    }

    fn stops_when_paused(&self) -> bool {
        false
    }

    async fn sweep(&self) -> Result<u64, StageError> {
        self.tell().await?;
        self.hear().await?;
        self.tidy();
        Ok(0)
    }
}

fn key(path: &Path) -> (uuid::Uuid, &str, &str) {
    (path.tenant, &path.sending_domain, &path.receiver.name)
}

/// The columns of the key.
fn columns<'a>(paths: impl Iterator<Item = &'a Path>) -> (Vec<uuid::Uuid>, Vec<String>, Vec<String>) {
    let mut columns = (Vec::new(), Vec::new(), Vec::new());
    for path in paths {
        columns.0.push(path.tenant);
        columns.1.push(path.sending_domain.to_string());
        columns.2.push(path.receiver.name.to_string());
    }
    columns
}
