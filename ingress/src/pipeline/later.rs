//! Writes whose answer waits for an outcome after the commit.
//!
//! The idempotency row is committed with the effect, without an answer but with a reference to the effect. The request that waits holds
//! the lease of the row and renews it; a repeat meanwhile is answered 409 with `Retry-After`. After the lease, because the process died
//! or there was no outcome in time, a repeat waits for the same effect. No connection is held while a request waits.

use runtime::plans::PreparedPool;
use std::{borrow::Cow, convert::Infallible, future::Future, pin::Pin, sync::Arc, time::Duration};

use sqlx::PgPool;
use uuid::Uuid;

use super::{error::ApiError, idempotency::IdempotencyKey, reply::ApiReply};
use crate::state::Ingress;

/// The committed effect whose outcome a request waits for.
#[derive(Debug, Clone, Copy)]
pub struct Awaited {
    pub tenant: Uuid,
    /// The reference that the handler passed to [`ApiReply::later`].
    pub reference: Uuid,
    /// True in the first request, right after its commit: there is no outcome yet.
    pub fresh: bool,
}

/// Waits for the outcome of a committed effect, for as long as it chooses, and answers.
pub type OutcomeWaiter = fn(Arc<Ingress>, Awaited) -> Pin<Box<dyn Future<Output = Result<ApiReply, ApiError>> + Send>>;

/// How long a lease lasts: after a crash, repeats are answered 409 for at most so long.
pub(super) const LEASE: Duration = Duration::from_secs(5);
const RENEW_EVERY: Duration = Duration::from_secs(2);

/// Waits for the outcome, under the lease of the key, and stores the answer if it is final. The key comes with the lineage of the API key
/// that it belongs to.
pub(super) async fn wait_for_outcome(
    ingress: &Arc<Ingress>,
    waiter: OutcomeWaiter,
    awaited: Awaited,
    key: Option<(&IdempotencyKey, Uuid)>,
) -> Result<ApiReply, ApiError> {
    let outcome = waiter(Arc::clone(ingress), awaited);
    let Some((key, key_id)) = key else { return outcome.await };
    let result = tokio::select! {
        result = outcome => result,
        never = keep_lease(&ingress.pool, key, key_id) => match never {},
    };
    if let Err(error) = store_outcome(&ingress.by_key, key, key_id, &result).await {
        // A repeat finds the outcome as this request did.
        tracing::warn!(transient = runtime::db::is_transient(&error), "an answer was not stored");
    }
    result
}

async fn keep_lease(pool: &PgPool, key: &IdempotencyKey, key_id: Uuid) -> Infallible {
    loop {
        tokio::time::sleep(RENEW_EVERY).await;
        if let Err(error) = key.set_lease(pool, key_id, LEASE, true).await {
            tracing::debug!(transient = runtime::db::is_transient(&error), "lease not renewed");
        }
    }
}

async fn store_outcome(
    by_key: &PreparedPool,
    key: &IdempotencyKey,
    key_id: Uuid,
    result: &Result<ApiReply, ApiError>,
) -> sqlx::Result<()> {
    let answer = match result {
        Ok(reply) => Some((reply.status, Cow::from(&reply.body))),
        Err(error) => error.is_deterministic().then(|| (error.status, Cow::from(error.body()))),
    };
    let mut db = by_key.take().await?;
    match answer {
        // Asynchronous commit, since the caller waits: after a crash of Postgres a repeat finds the outcome again.
        Some((status, body)) => key.store_late_answer(&mut db, key_id, status, &body).await?,
        None => key.set_lease(&mut *db, key_id, Duration::ZERO, false).await?,
    }
    db.put_back();
    Ok(())
}
