//! Retention: for every table of the schema, how long its rows are kept and who removes them.
//!
//! The sweep here removes old rows by [`RULES`], oldest first and in slices. The tables of [`SWEPT_BY_THEIR_STAGE`] are cleaned by the stage
//! that writes them. The tables of [`KEPT`] stay, each for its reason. A table in none of the lists fails a test. Whole months of `sends` and `events` are detached and dropped.

mod tables;

use std::time::Duration;

use async_trait::async_trait;
use chrono::{DateTime, NaiveDate, Utc};
use ledger::end_stopped::end_old_months;
use runner::{StageError, Sweep, SweepSchedule};
use runtime::settings::keep_at_least;
use sqlx::{AssertSqlSafe, PgPool};

pub use self::tables::{KEPT, MONTHLY, RULES, RetentionRule, SWEPT_BY_THEIR_STAGE};

const INTERVAL: Duration = Duration::from_secs(5 * 60);
/// Rows removed in one transaction.
const SLICE: i64 = 2_000;
/// Slices of one table in one run.
const SLICES: u32 = 50;
/// The shortest time the ledger is kept: deferrals, complaints and late credits need its sends.
const KEEP_LEDGER_MIN: Duration = Duration::from_secs(60 * 24 * 60 * 60);
/// The shortest time handled requests are kept: a doubtful send is rendered again from its request's data.
const KEEP_REQUESTS_MIN: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// The shortest time raw events are kept: longer than providers repeat a request, so that each repetition is recognised.
const KEEP_INBOUND_MIN: Duration = Duration::from_secs(48 * 60 * 60);

/// How long rows are kept. `0s` keeps them for ever.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Retention")]
#[group(skip)]
pub struct RetentionSettings {
    /// How long sends, events and what belongs to them are kept: single messages and their batches, contact facts, notices, ended
    /// enrollments, credit histories. A month is dropped as a whole, once all of it is older: campaigns of it that are not over, as of a pause
    /// that nobody ended, are cancelled then, and other open mail expires. Counters, reports, suppressions and contacts stay. At least 60
    /// days; `0s`: for ever.
    #[arg(long, env = "POSTRIDER_KEEP_LEDGER", default_value = "400d", value_parser = keep_at_least(KEEP_LEDGER_MIN))]
    pub keep_ledger: Duration,
    /// How long handled requests with their merge data, and the bodies of one-off messages, are kept; those of open mail, as of a paused tenant,
    /// until it is over. At least 7 days; `0s`: for ever.
    #[arg(long, env = "POSTRIDER_KEEP_REQUESTS", default_value = "30d", value_parser = keep_at_least(KEEP_REQUESTS_MIN))]
    pub keep_requests: Duration,
    /// How long reports of imports, with the cells they complain of, are kept. `0s`: for ever.
    #[arg(long, env = "POSTRIDER_KEEP_IMPORTS", default_value = "90d", value_parser = keep_at_least(Duration::ZERO))]
    pub keep_imports: Duration,
    /// How long the audit log is kept. `0s`: for ever.
    #[arg(long, env = "POSTRIDER_KEEP_AUDIT", default_value = "730d", value_parser = keep_at_least(Duration::ZERO))]
    pub keep_audit: Duration,
    /// Days that calls of the API are kept in the request log. `0`: for ever.
    #[arg(long, env = "POSTRIDER_REQUEST_LOG_DAYS", default_value_t = 7)]
    pub request_log_days: u16,
    /// How long raw events of providers are kept, and mail that came back, to look at and to know a repetition by. At least two days;
    /// `0s`: for ever.
    #[arg(long, env = "POSTRIDER_INBOUND_KEEP", default_value = "7d", value_parser = keep_at_least(KEEP_INBOUND_MIN))]
    pub inbound_keep: Duration,
}

/// Which setting a rule follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keep {
    /// `keep-ledger`, in whole months that are gone from the ledger.
    Ledger,
    /// `keep-requests`.
    Requests,
    /// `keep-imports`.
    Imports,
    /// `keep-audit`.
    Audit,
    /// `request-log-days`.
    RequestLog,
    /// `inbound-keep`.
    Inbound,
    /// This many days, independent of the settings.
    Days(u16),
}

impl Keep {
    /// The column of `tenants` with the days that a tenant chose, where it may choose fewer than the setting says.
    pub(crate) fn chosen_by_tenant(self) -> Option<&'static str> {
        match self {
            Self::Requests => Some("keep_requests_days"),
            Self::Imports => Some("keep_imports_days"),
            Self::Ledger | Self::Audit | Self::RequestLog | Self::Inbound | Self::Days(_) => None,
        }
    }
}

/// Removes rows that are older than their setting. Any number of processes may run it.
#[derive(Debug)]
pub struct Retention {
    /// In the stages' role.
    pub pool: PgPool,
    /// How long rows are kept.
    pub settings: RetentionSettings,
}

impl Retention {
    /// The day before which months are too old; `None` if they are kept for ever.
    async fn first_day(&self) -> sqlx::Result<Option<NaiveDate>> {
        Ok(self.older_than(self.settings.keep_ledger).await?.map(|before| before.date_naive()))
    }

    /// Ends what is open of the months that are too old.
    async fn end_months(&self) -> sqlx::Result<u64> {
        let Some(before) = self.first_day().await? else { return Ok(0) };
        end_old_months(&self.pool, before).await
    }

    /// Detaches and drops the months that are too old and have nothing open. Answers how many steps that took.
    async fn drop_months(&self) -> sqlx::Result<u64> {
        let Some(before) = self.first_day().await? else { return Ok(0) };
        let mut steps = 0;
        // A month is at most three steps; a month a run is more than there ever is.
        for _ in 0..SLICES {
            let month = sqlx::query_scalar!("select drop_ledger_month($1)", before).fetch_one(&self.pool).await?;
            let Some(month) = month else { break };
            tracing::info!(stage = "audience", %month, "a month of the ledger is dropped");
            steps += 1;
        }
        Ok(steps)
    }

    /// The time before which rows are old, by this rule; `None` if they are kept for ever.
    async fn cutoff(&self, keep: Keep) -> sqlx::Result<Option<DateTime<Utc>>> {
        let keep = match keep {
            Keep::Requests => self.settings.keep_requests,
            Keep::Imports => self.settings.keep_imports,
            Keep::Audit => self.settings.keep_audit,
            Keep::Inbound => self.settings.inbound_keep,
            Keep::RequestLog => of_days(self.settings.request_log_days),
            Keep::Days(days) => of_days(days),
            Keep::Ledger => {
                // Never before their sends are dropped: a month may have to wait for mail that is being ended.
                let oldest = sqlx::query_scalar!("select oldest_ledger_month()").fetch_one(&self.pool).await?;
                let oldest = oldest.and_then(|month| month.and_hms_opt(0, 0, 0)).map(|at| at.and_utc());
                let old = self.older_than(self.settings.keep_ledger).await?;
                return Ok(old.zip(oldest).map(|(old, oldest)| old.min(oldest)));
            }
        };
        self.older_than(keep).await
    }

    /// The time before which rows are old that are kept this long; `None` if they are kept for ever. By the database's clock: one process
    /// whose own is fast would drop the ledger.
    async fn older_than(&self, keep: Duration) -> sqlx::Result<Option<DateTime<Utc>>> {
        if keep.is_zero() {
            return Ok(None);
        }
        sqlx::query_scalar!(r#"select now() - make_interval(secs => $1) as "at!""#, keep.as_secs_f64())
            .fetch_one(&self.pool)
            .await
            .map(Some)
    }

    async fn apply(&self, rule: &RetentionRule) -> sqlx::Result<u64> {
        let cutoff = self.cutoff(rule.keep).await?;
        if cutoff.is_none() && rule.keep.chosen_by_tenant().is_none() {
            return Ok(0);
        }
        let mut removed = 0;
        for _ in 0..SLICES {
            let rows = sqlx::query(AssertSqlSafe(rule.statement()))
                .bind(cutoff)
                .bind(SLICE)
                .execute(&self.pool)
                .await?
                .rows_affected();
            removed += rows;
            if rows < SLICE.unsigned_abs() {
                break;
            }
        }
        Ok(removed)
    }
}

fn of_days(days: u16) -> Duration {
    Duration::from_secs(u64::from(days) * 24 * 60 * 60)
}

#[async_trait]
impl Sweep for Retention {
    fn schedule(&self) -> SweepSchedule {
        SweepSchedule::every("retention", INTERVAL).also_when_paused()
    }

    async fn sweep(&self) -> Result<u64, StageError> {
        let mut removed = 0;
        let mut first_error = None;
        // One that fails, for somebody holds its table, keeps none of the others.
        let mut note = |step: sqlx::Result<u64>| match step {
            Ok(rows) => removed += rows,
            Err(error) => {
                first_error.get_or_insert(error);
            }
        };
        note(self.end_months().await);
        note(self.drop_months().await);
        for rule in RULES {
            note(self.apply(rule).await);
        }
        first_error.map_or(Ok(removed), |error| Err(error.into()))
    }
}
