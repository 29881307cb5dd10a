//! The send quota: how many mails a tenant may send in a UTC month and a UTC day.
//!
//! Metered at the fence, in the ledger writer's commit: a send counts when it passes its first fence, further attempts of the
//! same send do not, and a fence after which nothing left is taken back. So the usage equals a recount of sends with
//! a fence (`sends.fenced_at`). A tenant with a limit is exact over any number of delivery processes: its row in `tenants` is
//! locked, in tenant order, before its usage is read. A tenant without a limit is metered in shards, so no process waits for another.
//!
//! It stops campaigns and one-off messages. Transactional mail and sequences count against it, and are always sent.
//!
//! The gate at launch and at `POST /v1/messages` asks [`remaining_quota`] and locks nothing: it keeps a caller from queueing what cannot
//! be sent. The fence enforces the limit.

mod limits;

use schemas::MessageKind;
use sqlx::PgConnection;
use uuid::Uuid;

pub use limits::{PeriodUsage, QuotaLimits, QuotaRemaining, SentCounts};

/// How many mails a tenant may send, unless `postrider quota set` says otherwise for it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::Args)]
#[command(next_help_heading = "Send quota")]
#[group(skip)]
pub struct QuotaDefaults {
    /// Mails a tenant may send in a month (UTC) before its campaigns and one-off messages are refused. 0: no limit.
    #[arg(long, env = "POSTRIDER_SEND_QUOTA_MONTHLY", default_value_t = 0)]
    pub send_quota_monthly: u64,
    /// Mails a tenant may send in a day (UTC) before its campaigns and one-off messages are refused. 0: no limit.
    #[arg(long, env = "POSTRIDER_SEND_QUOTA_DAILY", default_value_t = 0)]
    pub send_quota_daily: u64,
}

impl QuotaDefaults {
    /// The limits of a tenant for which `monthly` and `daily` are set (null: not set; 0: no limit).
    #[must_use]
    pub fn limits(&self, monthly: Option<i64>, daily: Option<i64>) -> QuotaLimits {
        let effective = |set: Option<i64>, default: u64| {
            let limit = set.unwrap_or_else(|| i64::try_from(default).unwrap_or(i64::MAX));
            (limit > 0).then_some(limit)
        };
        QuotaLimits {
            monthly: effective(monthly, self.send_quota_monthly),
            daily: effective(daily, self.send_quota_daily),
        }
    }
}

/// True if a used-up quota stops mail of this kind.
#[must_use]
pub fn stops(kind: MessageKind) -> bool {
    match kind {
        MessageKind::Campaign | MessageKind::OneOff | MessageKind::Test => true,
        MessageKind::Transactional | MessageKind::Sequence => false,
    }
}

/// A tenant's quota: limits, usage and what is left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QuotaUsage {
    /// What is set for the tenant itself: null takes the default, 0 is no limit.
    pub set_monthly: Option<i64>,
    /// The daily limit set for the tenant itself: null takes the default, 0 is no limit.
    pub set_daily: Option<i64>,
    /// This month, with the limit in force.
    pub month: PeriodUsage,
    /// Today, with the limit in force.
    pub day: PeriodUsage,
    /// What is left.
    pub left: QuotaRemaining,
}

/// How many mails a tenant may still send. Locks nothing; in the ingress's role the transaction must be confined to the tenant.
pub async fn remaining_quota(
    db: &mut PgConnection,
    tenant: Uuid,
    defaults: &QuotaDefaults,
) -> sqlx::Result<QuotaRemaining> {
    quota_usage(db, tenant, defaults).await.map(|usage| usage.left)
}

/// A tenant's limits, usage and what is left.
pub async fn quota_usage(db: &mut PgConnection, tenant: Uuid, defaults: &QuotaDefaults) -> sqlx::Result<QuotaUsage> {
    let row = sqlx::query_file!("queries/quota/quota_usage.sql", &[tenant]).fetch_one(db).await?;
    let limits = defaults.limits(row.monthly, row.daily);
    let sent = SentCounts { month: row.used_month, day: row.used_day };
    let (month, day) = limits.periods(sent, row.today);
    let left = limits.remaining(sent, row.today);
    Ok(QuotaUsage { set_monthly: row.monthly, set_daily: row.daily, month, day, left })
}

/// The usage of these tenants. It is exact only while their rows are locked.
pub async fn sent_counts(db: &mut PgConnection, tenants: &[Uuid]) -> sqlx::Result<Vec<(Uuid, SentCounts)>> {
    let rows = sqlx::query_file!("queries/quota/quota_usage.sql", tenants).fetch_all(db).await?;
    Ok(rows.into_iter().map(|row| (row.tenant_id, SentCounts { month: row.used_month, day: row.used_day })).collect())
}

/// Sets a tenant's own limits. `None` leaves a limit as it is, `Some(None)` goes back to the default, `Some(Some(0))` is no limit.
///
/// # Errors
/// When Postgres is away, or there is no such tenant (a foreign key violation).
pub async fn set(
    db: &mut PgConnection,
    tenant: Uuid,
    monthly: Option<Option<i64>>,
    daily: Option<Option<i64>>,
) -> sqlx::Result<()> {
    sqlx::query!(
        "insert into send_limits (tenant_id, monthly, daily) values ($1, $2, $3)
         on conflict (tenant_id) do update
         set monthly = case when $4 then excluded.monthly else send_limits.monthly end,
             daily = case when $5 then excluded.daily else send_limits.daily end,
             updated_at = now()",
        tenant,
        monthly.flatten(),
        daily.flatten(),
        monthly.is_some(),
        daily.is_some()
    )
    .execute(db)
    .await
    .map(drop)
}
