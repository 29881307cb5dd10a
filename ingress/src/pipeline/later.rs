//! Writes in two phases: the effect is committed, and the answer waits for something that happens afterwards.
//!
//! The idempotency row is committed with the effect, without an answer but with what the answer waits for. While somebody waits
//! he holds the row's lease and renews it; a repeat meanwhile is told to come back. Once the lease is over, because the process
//! died or the answer was "not yet", a repeat takes over and waits for the same effect. Nothing holds a connection meanwhile.

use runtime::plans::PreparedPool;
use std::{borrow::Cow, convert::Infallible, future::Future, pin::Pin, sync::Arc, time::Duration};

use sqlx::PgPool;
use uuid::Uuid;

use super::{error::ApiError, idempotency::IdempotencyKey, reply::Reply};
use crate::state::Ingress;

/// What is waited for.
#[derive(Debug, Clone, Copy)]
pub struct Awaited {
    /// The tenant.
    pub tenant: Uuid,
    /// What the handler named in [`Reply::later`].
    pub reference: Uuid,
    /// It was committed just now: there is no outcome yet.
    pub fresh: bool,
}

/// The outcome of what was committed: waits as long as it sees fit, and answers.
pub type Later = fn(Arc<Ingress>, Awaited) -> Pin<Box<dyn Future<Output = Result<Reply, ApiError>> + Send>>;

/// How long a lease lasts: after a crash, a repeat is told to come back for at most so long.
pub(super) const LEASE: Duration = Duration::from_secs(5);
const RENEW_EVERY: Duration = Duration::from_secs(2);

/// A key with the API key it is scoped to.
pub(super) struct Scoped<'a> {
    pub key: &'a IdempotencyKey,
    pub key_id: Uuid,
}

/// Waits for the outcome, under the key's lease, and keeps it as the answer where it is one to keep.
pub(super) async fn conclude(
    ingress: &Arc<Ingress>,
    later: Later,
    awaited: Awaited,
    scoped: Option<Scoped<'_>>,
) -> Result<Reply, ApiError> {
    let outcome = later(Arc::clone(ingress), awaited);
    let Some(scoped) = scoped else { return outcome.await };
    let result = tokio::select! {
        result = outcome => result,
        never = keep_lease(&ingress.pool, &scoped) => match never {},
    };
    if let Err(error) = store(&ingress.by_key, &scoped, &result).await {
        // A repeat finds the outcome as this request did.
        tracing::warn!(transient = runtime::db::is_transient(&error), "an answer was not kept");
    }
    result
}

async fn keep_lease(pool: &PgPool, scoped: &Scoped<'_>) -> Infallible {
    loop {
        tokio::time::sleep(RENEW_EVERY).await;
        if let Err(error) = scoped.key.renew(pool, scoped.key_id, LEASE).await {
            tracing::debug!(transient = runtime::db::is_transient(&error), "lease not renewed");
        }
    }
}

async fn store(by_key: &PreparedPool, scoped: &Scoped<'_>, result: &Result<Reply, ApiError>) -> sqlx::Result<()> {
    let Scoped { key, key_id } = scoped;
    let answer = match result {
        Ok(reply) => Some((reply.status, Cow::from(&reply.body))),
        Err(error) => error.is_deterministic().then(|| (error.status, Cow::from(error.body()))),
    };
    let mut db = by_key.take().await?;
    match answer {
        // The caller waits, and waits for no disk: should a crash of Postgres take this back, a repeat finds the outcome anew.
        Some((status, body)) => key.complete_unhurried(&mut db, *key_id, status, &body).await?,
        None => key.hold(&mut *db, *key_id, Duration::ZERO).await?,
    }
    db.put_back();
    Ok(())
}
