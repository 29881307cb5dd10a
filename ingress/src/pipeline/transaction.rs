//! The transaction of a request.

use runtime::plans::{AccessPattern, PreparedTransaction};
use sqlx::{AssertSqlSafe, PgConnection, Postgres, Transaction};
use uuid::Uuid;

use super::perform::WRITE_STATEMENT_MAX;
use crate::state::{Ingress, READ_STATEMENT_MAX};

/// The transaction of a request. Dropping it rolls back in the background.
pub(crate) enum Tx {
    Scan(Transaction<'static, Postgres>),
    ByKey(PreparedTransaction),
}

impl Tx {
    pub fn db(&mut self) -> &mut PgConnection {
        match self {
            Self::Scan(tx) => tx,
            Self::ByKey(tx) => tx,
        }
    }

    pub async fn commit(self) -> sqlx::Result<()> {
        match self {
            Self::Scan(tx) => tx.commit().await,
            Self::ByKey(tx) => tx.commit().await,
        }
    }

    pub async fn rollback(self) -> sqlx::Result<()> {
        match self {
            Self::Scan(tx) => tx.rollback().await,
            Self::ByKey(tx) => tx.rollback().await,
        }
    }

    /// Rolls back before a refusal is answered, so that a repeat finds its idempotency key free. The refusal is the answer even if this
    /// fails: the connection is closed then.
    pub async fn undo(self) {
        if self.rollback().await.is_err() {
            tracing::debug!("rollback failed; the connection is dropped");
        }
    }
}

/// Begins a write, confined to a tenant (nil for what stands above tenants) and bounded in time: one round trip.
pub(crate) async fn begin_write(ingress: &Ingress, access: AccessPattern, tenant: Uuid) -> sqlx::Result<Tx> {
    let (confined, longest) = (runtime::db::confined(tenant), WRITE_STATEMENT_MAX.as_millis());
    let begin = AssertSqlSafe(format!("begin; {confined}; set local statement_timeout = {longest}"));
    match access {
        AccessPattern::ByKey => ingress.by_key.begin_with(begin).await.map(Tx::ByKey),
        AccessPattern::Scan => ingress.pool.begin_with(begin).await.map(Tx::Scan),
    }
}

/// Begins a read, confined to a tenant (nil for what stands above tenants) and bounded in time: one round
/// trip.
pub(crate) async fn begin_read(ingress: &Ingress, access: AccessPattern, tenant: Uuid) -> sqlx::Result<Tx> {
    match access {
        // The pool's connections have a statement timeout.
        AccessPattern::ByKey => ingress.by_key.read(tenant).await.map(Tx::ByKey),
        AccessPattern::Scan => {
            let begin = runtime::db::begin_read_only(tenant);
            let begin = format!("{begin}; set local statement_timeout = '{READ_STATEMENT_MAX}'");
            ingress.pool.begin_with(AssertSqlSafe(begin)).await.map(Tx::Scan)
        }
    }
}
