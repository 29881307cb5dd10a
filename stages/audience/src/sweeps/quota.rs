//! Tells a tenant that a send quota is nearly used up: the event `quota.near`, once in each day and each month.

use std::time::Duration;

use async_trait::async_trait;
use ledger::quota::QuotaDefaults;
use runner::{StageError, Sweep, SweepSchedule};
use sqlx::PgPool;

/// The part of a quota that counts as near, in percent.
const NEAR_PERCENT: i64 = 80;

/// The sweep that warns tenants of a quota that is nearly used up.
#[derive(Debug)]
pub struct WarnQuotas {
    /// In the stages' role.
    pub pool: PgPool,
    /// The quotas of tenants that have none of their own.
    pub defaults: QuotaDefaults,
}

#[async_trait]
impl Sweep for WarnQuotas {
    fn schedule(&self) -> SweepSchedule {
        SweepSchedule::every("warn_quotas", Duration::from_secs(60)).also_when_paused()
    }

    /// The notice's id follows from tenant and period: of any number of processes one writes it, once.
    async fn sweep(&self) -> Result<u64, StageError> {
        let limit = |limit: u64| i64::try_from(limit).unwrap_or(i64::MAX);
        let warned = sqlx::query!(
            "insert into notices (tenant_id, id, type, data)
             select t.id, md5('quota.near ' || t.id || ' ' || p.period || ' ' || p.starts_on)::uuid, 'quota.near',
                    jsonb_build_object('period', p.period, 'starts_on', p.starts_on, 'limit', p.most, 'used', u.used)
             from tenants t
             cross join (select (now() at time zone 'utc')::date as today) c
             left join send_limits l on l.tenant_id = t.id
             cross join lateral (values
                 ('day', c.today, coalesce(l.daily, $2)),
                 ('month', date_trunc('month', c.today::timestamp)::date, coalesce(l.monthly, $1))
             ) as p (period, starts_on, most)
             cross join lateral (
                 select sum(u.used)::bigint as used from send_usage u
                 where u.tenant_id = t.id and u.day between p.starts_on and c.today
             ) u
             where p.most > 0 and u.used * 100.0 >= p.most::numeric * $3::bigint
             on conflict (tenant_id, id) do nothing",
            limit(self.defaults.send_quota_monthly),
            limit(self.defaults.send_quota_daily),
            NEAR_PERCENT,
        )
        .execute(&self.pool)
        .await?;
        Ok(warned.rows_affected())
    }
}
