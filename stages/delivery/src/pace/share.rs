//! Shares reduced rates between processes through the ledger, within a second or two. Rows are valid for an hour (`live_paces`), so a
//! process that starts adopts them, too.

use std::{
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use async_trait::async_trait;
use runner::{StageError, Sweep, SweepSchedule};
use runtime::{Gauge, column, plans::PreparedPool};
use schemas::receiver::{Receiver, families};

use super::{
    Pacer,
    rate::ReducedRate,
    throttles::{ThrottleChange, ThrottleKey},
};

/// How often rates are shared.
const INTERVAL: Duration = Duration::from_secs(1);
/// How much further back rows are read, in seconds: a commit takes a moment.
const OVERLAP_SECONDS: f64 = 5.0;
/// Changes published at once; the rest is published the next time.
const CHANGES_MAX: usize = 500;
/// Rows read at once.
const ROWS_MAX: i64 = 5_000;

/// The sweep that publishes and reads rates.
pub(crate) struct PaceShare {
    by_key: PreparedPool,
    pacer: Pacer,
    read_at: Mutex<Option<Instant>>,
}

impl PaceShare {
    pub fn new(by_key: &PreparedPool, pacer: Pacer) -> Self {
        Self { by_key: by_key.priority("pace"), pacer, read_at: Mutex::new(None) }
    }

    async fn publish_changes(&self) -> sqlx::Result<()> {
        let mut changes = self.pacer.shared.lock().take_changes(CHANGES_MAX);
        if changes.is_empty() {
            return Ok(());
        }
        changes.sort_by(|a, b| sort_key(&a.key).cmp(&sort_key(&b.key)));
        let published = self.write_changes(&changes).await;
        if published.is_err() {
            self.pacer.shared.lock().return_changes(&changes);
        }
        published
    }

    async fn write_changes(&self, changes: &[ThrottleChange]) -> sqlx::Result<()> {
        let now = Instant::now();
        let age = |at: Instant| now.saturating_duration_since(at).as_secs_f64();
        let reduced: Vec<(&ThrottleKey, ReducedRate)> =
            changes.iter().filter_map(|change| Some((&change.key, change.reduced?))).collect();
        let mut db = self.by_key.take().await?;
        if !reduced.is_empty() {
            sqlx::query_file!(
                "queries/pace_publish.sql",
                &column(&reduced, |(key, _)| key.tenant),
                &column(&reduced, |(key, _)| key.sending_domain.to_string()),
                &column(&reduced, |(key, _)| key.receiver.name.to_string()),
                &column(&reduced, |(_, reduced)| reduced.limit),
                &column(&reduced, |(_, reduced)| reduced.threshold),
                &column(&reduced, |(_, reduced)| age(reduced.cut_at)),
                &column(&reduced, |(_, reduced)| age(reduced.since)),
                &column(&reduced, |(_, reduced)| reduced.good_at.map(age)) as &[Option<f64>],
            )
            .execute(&mut *db)
            .await?;
        }
        let free: Vec<&ThrottleKey> =
            changes.iter().filter(|change| change.reduced.is_none()).map(|change| &change.key).collect();
        if !free.is_empty() {
            sqlx::query_file!(
                "queries/pace_release.sql",
                &column(&free, |key| key.tenant),
                &column(&free, |key| key.sending_domain.to_string()),
                &column(&free, |key| key.receiver.name.to_string()),
            )
            .execute(&mut *db)
            .await?;
        }
        db.put_back();
        Ok(())
    }

    async fn read_changes(&self) -> sqlx::Result<()> {
        let asked_at = Instant::now();
        let read_at = *self.read_at.lock().unwrap_or_else(PoisonError::into_inner);
        let since = read_at.map(|at| (asked_at - at).as_secs_f64() + OVERLAP_SECONDS);
        let mut db = self.by_key.take().await?;
        let rows = sqlx::query_file!("queries/pace_read.sql", since, ROWS_MAX).fetch_all(&mut *db).await?;
        db.put_back();
        let now = Instant::now();
        let at = |age: f64| now.checked_sub(Duration::try_from_secs_f64(age).unwrap_or_default()).unwrap_or(now);
        let mut throttles = self.pacer.shared.lock();
        for row in rows {
            let reduced = ReducedRate {
                limit: row.rate,
                threshold: row.threshold,
                cut_at: at(row.cut_age),
                since: at(row.held_age),
                good_at: row.good_age.map(at),
            };
            let receiver = Receiver::named(&row.receiver);
            let key = ThrottleKey { tenant: row.tenant_id, sending_domain: row.sending_domain.into(), receiver };
            throttles.adopt(&key, reduced, now);
        }
        drop(throttles);
        *self.read_at.lock().unwrap_or_else(PoisonError::into_inner) = Some(asked_at);
        Ok(())
    }

    /// Removes idle throttle keys and sets the gauges.
    fn report_levels(&self) {
        let now = Instant::now();
        let mut throttles = self.pacer.shared.lock();
        throttles.evict_idle(now);
        let levels = throttles.levels(now);
        drop(throttles);
        for family in families() {
            let level = levels.get(family).copied().unwrap_or_default();
            Gauge::PaceKeysThrottled.set(level.reduced as f64, [("receiver", family)]);
            Gauge::PaceRate.set(level.limit, [("receiver", family)]);
            Gauge::PaceWaiting.set(level.waiting, [("receiver", family)]);
        }
    }
}

#[async_trait]
impl Sweep for PaceShare {
    fn schedule(&self) -> SweepSchedule {
        SweepSchedule::every("share_pace", INTERVAL).also_when_paused()
    }

    async fn sweep(&self) -> Result<u64, StageError> {
        self.publish_changes().await?;
        self.read_changes().await?;
        self.report_levels();
        Ok(0)
    }
}

fn sort_key(key: &ThrottleKey) -> (uuid::Uuid, &str, &str) {
    (key.tenant, &key.sending_domain, &key.receiver.name)
}
