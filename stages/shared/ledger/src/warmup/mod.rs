//! The warm-up of a new sending domain: on each day on which it sends, it may send a number of mails that grows from day to day.
//!
//! Every mail of the domain counts, when it passes its first fence, as with the send quota; only campaigns wait. Sends over the
//! day's cap are deferred to the next UTC day, which does not count as an attempt. Delivery reads the usage without a lock, so that few
//! sends reach the fence in vain; the fence locks the domain's row and enforces the cap exactly, over any number of processes.
//!
//! A day without mail does not count as a day of the plan: a reputation is made by sending.

mod permits;
mod plan;

use chrono::NaiveDate;
use sqlx::PgConnection;
use uuid::Uuid;

pub use self::permits::{WarmupPermit, WarmupPermits};
pub use self::plan::{DEFAULT_CAPS, cap, remaining};

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
    /// Today's cap. `None`: no limit.
    #[must_use]
    pub fn cap(&self) -> Option<i64> {
        if self.is_on { cap(self.caps.as_deref(), self.days_before) } else { None }
    }

    /// Mails it may still send today. `None`: no limit.
    #[must_use]
    pub fn remaining(&self) -> Option<i64> {
        remaining(self.cap(), self.used)
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
         on conflict (tenant_id, domain_id) do update
         set is_on = excluded.is_on, caps = excluded.caps, updated_at = now(),
             started_at = case when excluded.is_on and not domain_warmups.is_on then now() else domain_warmups.started_at end",
        tenant,
        domain,
        is_on,
        caps
    )
    .execute(db)
    .await
    .map(drop)
}
