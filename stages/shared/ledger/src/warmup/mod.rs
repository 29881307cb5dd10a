//! The warm-up of a new sending domain: on each day on which it sends it may hand over so many mails, by a plan that rises.
//!
//! Every mail of the domain counts, when it passes its first fence, as with the send quota; only campaigns wait. What is over the
//! day's cap is deferred, uncounted, to the next UTC day. The claim looks without a lock, so that hardly anything goes as far as
//! the fence in vain; the fence locks the domain's row and holds the cap exactly, over any number of processes.
//!
//! A day without mail does not count as a day of the plan: a reputation is made by sending.

mod permits;
mod plan;

use chrono::NaiveDate;
use sqlx::PgConnection;
use uuid::Uuid;

pub use self::permits::{WarmupPermit, WarmupPermits};
pub use self::plan::{DEFAULT_CAPS, cap, remaining};

/// A domain's warm-up as it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WarmupState {
    /// Whose.
    pub tenant_id: Uuid,
    /// The domain.
    pub domain_id: Uuid,
    /// Whether it is limited at all.
    pub is_on: bool,
    /// The plan set for it; `None`: [`DEFAULT_CAPS`].
    pub caps: Option<Vec<i64>>,
    /// Days before today on which it has sent.
    pub days_before: i64,
    /// What it has handed over today.
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

    /// What it may still hand over today. `None`: no limit.
    #[must_use]
    pub fn remaining(&self) -> Option<i64> {
        remaining(self.cap(), self.used)
    }
}

/// A domain, with its tenant. Sorted, it is the order they are locked in.
pub type DomainKey = (Uuid, Uuid);

/// How these domains stand; those without a warm-up are left out. To be exact, they must be locked ([`lock`]).
///
/// # Errors
/// When Postgres is away.
pub async fn load_states(db: &mut PgConnection, domains: &[DomainKey]) -> sqlx::Result<Vec<WarmupState>> {
    let (tenants, ids): (Vec<Uuid>, Vec<Uuid>) = domains.iter().copied().unzip();
    sqlx::query_file_as!(WarmupState, "queries/quota/warmup.sql", &tenants, &ids).fetch_all(db).await
}

/// How one domain stands.
///
/// # Errors
/// When Postgres is away.
pub async fn load_state(db: &mut PgConnection, tenant: Uuid, domain: Uuid) -> sqlx::Result<Option<WarmupState>> {
    Ok(load_states(db, &[(tenant, domain)]).await?.pop())
}

/// One commit at a time for these domains, which must be sorted: what they have used is read in a later statement.
pub async fn lock(db: &mut PgConnection, domains: &[DomainKey]) -> sqlx::Result<()> {
    let (tenants, ids): (Vec<Uuid>, Vec<Uuid>) = domains.iter().copied().unzip();
    sqlx::query_file!("queries/quota/lock_warmups.sql", &tenants, &ids).fetch_all(db).await.map(drop)
}

/// Warms a new domain up by the program's plan, unless something was set for it already.
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

/// Warms a domain up, by its own plan or the program's; `false` ends it. What it has used stays.
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
