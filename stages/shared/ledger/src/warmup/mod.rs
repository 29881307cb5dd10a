//! The warm-up of a new sending domain: on each day on which it sends, it may send a number of mails that grows from day to day.
//!
//! Every mail of the domain counts, when it passes its first fence, as with the send quota; only campaigns wait. Sends over the
//! day's cap are deferred to the next UTC day, which does not count as an attempt. Delivery reads the usage without a lock, so that few
//! sends reach the fence in vain; the fence locks the domain's row and enforces the cap exactly, over any number of processes.
//!
//! A day without mail does not count as a day of the plan: a reputation is made by sending.

mod permits;

use chrono::NaiveDate;
use sqlx::PgConnection;
use uuid::Uuid;

pub use self::permits::{WarmupPermit, WarmupPermits};

/// How many mails receivers accept from an unknown domain on its first, second … day of sending: about twice as many every other
/// day. After the last day there is no limit.
pub const DEFAULT_CAPS: &[i64] = &[
    50, 100, 500, 1_000, 2_500, 5_000, 10_000, 20_000, 40_000, 70_000, 100_000, 150_000, 250_000, 400_000, 600_000,
    1_000_000,
];

/// A domain's warm-up: its plan and what it has used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WarmupState {
    /// The tenant.
    pub tenant_id: Uuid,
    /// The domain.
    pub domain_id: Uuid,
    /// True while the domain is limited.
    pub is_on: bool,
    /// The plan set for it; `None`: [`DEFAULT_CAPS`].
    pub caps: Option<Vec<i64>>,
    /// Days before today on which it has sent.
    pub days_before: i64,
    /// Mails it has sent today.
    pub used: i64,
    /// The UTC day.
    pub today: NaiveDate,
}

impl WarmupState {
    /// Today's cap. `None`: no limit, or the warm-up is over.
    #[must_use]
    pub fn cap(&self) -> Option<i64> {
        let day = usize::try_from(self.days_before).unwrap_or(0);
        self.caps.as_deref().unwrap_or(DEFAULT_CAPS).get(day).copied().filter(|_| self.is_on)
    }

    /// Mails it may still send today, never less than 0. `None`: no limit.
    #[must_use]
    pub fn remaining(&self) -> Option<i64> {
        self.cap().map(|cap| cap.saturating_sub(self.used).max(0))
    }
}

/// Tenant and domain. Locks are taken in this order.
pub type DomainKey = (Uuid, Uuid);

/// The warm-ups of these domains; a domain without one is left out. The usage is exact only while the domains are locked ([`lock`]).
pub async fn load_states(db: &mut PgConnection, domains: &[DomainKey]) -> sqlx::Result<Vec<WarmupState>> {
    let (tenants, ids): (Vec<Uuid>, Vec<Uuid>) = domains.iter().copied().unzip();
    sqlx::query_file_as!(WarmupState, "queries/quota/warmup.sql", &tenants, &ids).fetch_all(db).await
}

/// The warm-up of one domain, if it has one.
pub async fn load_state(db: &mut PgConnection, tenant: Uuid, domain: Uuid) -> sqlx::Result<Option<WarmupState>> {
    Ok(load_states(db, &[(tenant, domain)]).await?.pop())
}

/// Locks these domains, which must be sorted. Read their usage in a later statement.
pub async fn lock(db: &mut PgConnection, domains: &[DomainKey]) -> sqlx::Result<()> {
    let (tenants, ids): (Vec<Uuid>, Vec<Uuid>) = domains.iter().copied().unzip();
    sqlx::query_file!("queries/quota/lock_warmups.sql", &tenants, &ids).fetch_all(db).await.map(drop)
}

/// Starts the warm-up of a new domain by the default plan, unless one was set for it already.
///
/// # Errors
/// When Postgres is away, or there is no such domain (a foreign key violation).
pub async fn begin(db: &mut PgConnection, tenant: Uuid, domain: Uuid) -> sqlx::Result<()> {
    sqlx::query!(
        "insert into domain_warmups (tenant_id, domain_id) values ($1, $2) on conflict do nothing",
        tenant,
        domain
    )
    .execute(db)
    .await
    .map(drop)
}

/// Sets a domain's warm-up: `caps` is its own plan, `None` the default; `is_on: false` ends it. The recorded usage stays.
///
/// # Errors
/// When Postgres is away, or there is no such domain (a foreign key violation).
pub async fn set(
    db: &mut PgConnection,
    tenant: Uuid,
    domain: Uuid,
    is_on: bool,
    caps: Option<&[i64]>,
) -> sqlx::Result<()> {
    sqlx::query!(
        "insert into domain_warmups (tenant_id, domain_id, is_on, caps) values ($1, $2, $3, $4)
         on conflict (tenant_id, domain_id) do update set is_on = excluded.is_on, caps = excluded.caps",
        tenant,
        domain,
        is_on,
        caps
    )
    .execute(db)
    .await
    .map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn state(caps: Option<&[i64]>, days_before: i64, used: i64) -> WarmupState {
        let caps = caps.map(<[i64]>::to_vec);
        let (tenant_id, domain_id) = (Uuid::nil(), Uuid::nil());
        WarmupState { tenant_id, domain_id, is_on: true, caps, days_before, used, today: NaiveDate::MIN }
    }

    #[rstest]
    #[case::first(None, 0, Some(50))]
    #[case::second(None, 1, Some(100))]
    #[case::last(None, 15, Some(1_000_000))]
    #[case::warm(None, 16, None)]
    #[case::own(Some(&[7, 9][..]), 1, Some(9))]
    #[case::own_is_over(Some(&[7, 9][..]), 2, None)]
    fn each_day_of_sending_has_its_cap_and_after_the_last_there_is_none(
        #[case] own: Option<&[i64]>,
        #[case] days_before: i64,
        #[case] expected: Option<i64>,
    ) {
        assert_eq!(state(own, days_before, 0).cap(), expected);
        assert_eq!(WarmupState { is_on: false, ..state(own, days_before, 0) }.remaining(), None);
    }

    #[test]
    fn the_plan_rises() {
        assert!(DEFAULT_CAPS.is_sorted());
    }

    #[test]
    fn what_is_left_is_never_negative() {
        let left = |caps: &[i64], used| state(Some(caps), 0, used).remaining();
        assert_eq!((left(&[5], 3), left(&[5], 9), left(&[], 9)), (Some(2), Some(0), None));
    }
}
