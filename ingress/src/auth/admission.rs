//! Nonces, the rate limit and the name of the tenant: one statement for all, and for all requests that are waiting together.
//!
//! As the ledger's writer does it: a request that comes alone is admitted at once; those that come while a group is being admitted (under
//! load, within two milliseconds of its beginning) are the next group. Each would else cost a transaction of its own, a third of what
//! Postgres spends on a small read.

use std::time::Duration;

use async_trait::async_trait;
use runtime::plans;
use sqlx::PgPool;
use tokio::{
    sync::{mpsc, oneshot},
    time::Instant,
};
use uuid::Uuid;

use super::Caller;
use crate::{act::TenantClaim, error::ApiError};

/// The seconds over which requests are limited: any so many, not those of a clock's minute.
pub const WINDOW_SECONDS: u32 = 60;

/// The most requests of one group.
const GROUP_MAX: usize = 64;
/// Requests waiting for a group; more wait their turn.
const QUEUE: usize = 1_024;
/// Connections for it: one group is under way at a time, beside one that is given back and one that is asked for to see how long that
/// takes.
const CONNECTIONS: u32 = 3;
/// How long Postgres may take over a group: a disk that stands still for some seconds refuses nobody.
const STATEMENT_TIMEOUT: &str = "10s";
/// A group of so many says that there is load: the next begins this long after it at the earliest, so that more go together and share
/// what a group costs whatever its size. Where there is none, nobody waits.
const BUSY: usize = 3;
const GROUP_EVERY: Duration = Duration::from_millis(2);
/// How long a request waits to be admitted. Whoever waited so long finds Postgres away.
const PATIENCE: Duration = Duration::from_secs(12);

/// Where a key stands in its sliding minute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RateState {
    /// Requests allowed in a minute.
    pub limit: u32,
    /// Requests admitted in the last minute, and this one.
    pub used: u32,
    /// Seconds until the oldest of them count no more.
    pub resets_in: u32,
}

impl RateState {
    /// Requests left for now.
    #[must_use]
    pub fn remaining(self) -> u32 {
        self.limit.saturating_sub(self.used)
    }

    /// Whether this request is one too many.
    #[must_use]
    pub fn is_exceeded(self) -> bool {
        self.used > self.limit
    }
}

/// A tenant as a request names it.
#[derive(Debug, Clone)]
pub struct Named {
    /// The product of the key.
    pub product: String,
    /// The environment of the key.
    pub environment: &'static str,
    /// The product's own id of the tenant.
    pub product_tenant_id: String,
}

/// What a request asks for before its act.
#[derive(Debug, Clone)]
pub struct Wanted {
    /// Who calls.
    pub key_id: Uuid,
    /// The nonce to burn, if it is signed.
    pub nonce: Option<String>,
    /// Requests allowed in a minute; 0 for any number.
    pub limit: u32,
    /// The tenant to find, if one is named.
    pub named: Option<Named>,
}

/// What became of a nonce, a count and a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Admission {
    /// The nonce was not seen before (or none was asked about).
    pub nonce_is_fresh: bool,
    /// `None` when the limit is off, or the nonce was seen before (a replay costs the key's owner nothing).
    pub rate: Option<RateState>,
    /// The tenant that was named, if it is linked.
    pub tenant: Option<Uuid>,
}

/// Why a request could not be admitted: nothing is known of it.
#[derive(Debug, Clone, Copy)]
struct Failed {
    is_transient: bool,
}

impl From<Failed> for ApiError {
    fn from(failed: Failed) -> Self {
        if failed.is_transient { Self::unavailable() } else { Self::internal() }
    }
}

/// A request that waits, and who hears of it.
struct Entry {
    wanted: Wanted,
    answer: oneshot::Sender<Result<Admission, Failed>>,
}

/// Admits requests. Ends when it is dropped.
#[derive(Debug)]
pub struct Admissions {
    pool: PgPool,
    queue: mpsc::Sender<Entry>,
}

impl Admissions {
    /// Begins to admit, on connections of its own like those of `pool`: nobody's work stands before it. To be called in a runtime;
    /// connects when first asked.
    #[must_use]
    pub fn start(pool: &PgPool) -> Self {
        let settings = [("statement_timeout", STATEMENT_TIMEOUT), ("synchronous_commit", "off")];
        let pool = plans::pool_by_kept_key(pool, CONNECTIONS, &settings);
        let (queue, entries) = mpsc::channel(QUEUE);
        tokio::spawn(carry(pool.clone(), entries));
        Self { pool, queue }
    }

    /// Its connections, for whoever watches them.
    pub(crate) fn pool(&self) -> &PgPool {
        &self.pool
    }

    /// Burns the nonce, if one is given, counts the request, if there is a limit, and finds the tenant, if one is named. All of it
    /// holds over all ingress processes and is committed when this returns.
    ///
    /// Nothing waits for the disk here: the nonce outlives our restarts, but a crash of Postgres itself can forget those of the last
    /// fraction of a second, and with them only requests that were signed within it.
    ///
    /// # Errors
    /// 503 when Postgres is away; twelve seconds later at the latest, when it is there and does not answer.
    pub async fn admit(&self, wanted: Wanted) -> Result<Admission, ApiError> {
        if wanted.nonce.is_none() && wanted.limit == 0 && wanted.named.is_none() {
            return Ok(Admission { nonce_is_fresh: true, rate: None, tenant: None });
        }
        let (answer, heard) = oneshot::channel();
        let admitted = async {
            self.queue.send(Entry { wanted, answer }).await.ok()?;
            heard.await.ok()
        };
        match tokio::time::timeout(PATIENCE, admitted).await {
            Ok(Some(admission)) => Ok(admission?),
            _ => Err(ApiError::unavailable()),
        }
    }
}

impl Admissions {
    /// The tenant that a claim names, if it is linked. Along with the requests that are being admitted: no connection is held for it.
    ///
    /// # Errors
    /// As [`Self::admit`].
    pub async fn find(&self, caller: &Caller, claim: &TenantClaim) -> Result<Option<Uuid>, ApiError> {
        let named = Named {
            product: caller.product.clone(),
            environment: caller.environment.as_str(),
            product_tenant_id: claim.product_tenant_id.clone(),
        };
        let wanted = Wanted { key_id: caller.key_id, nonce: None, limit: 0, named: Some(named) };
        Ok(self.admit(wanted).await?.tenant)
    }
}

#[async_trait]
impl mcp::RateLimit for Admissions {
    async fn count(&self, key: Uuid, per_minute: u32) -> Result<Option<u32>, mcp::NotCounted> {
        let wanted = Wanted { key_id: key, nonce: None, limit: per_minute, named: None };
        let admission = self.admit(wanted).await.map_err(|_| mcp::NotCounted)?;
        Ok(admission.rate.filter(|rate| rate.is_exceeded()).map(|rate| rate.resets_in))
    }
}

/// Admits group after group: what came while the one before was under way. While Postgres is away all who wait hear so at once,
/// not a group at a time.
async fn carry(pool: PgPool, mut entries: mpsc::Receiver<Entry>) {
    let mut group = Vec::with_capacity(GROUP_MAX);
    while entries.recv_many(&mut group, GROUP_MAX).await > 0 {
        let (begun, is_busy) = (Instant::now(), group.len() >= BUSY);
        // Whoever has given up uses up nothing.
        group.retain(|entry| !entry.answer.is_closed());
        let (wanted, answers): (Vec<Wanted>, Vec<_>) =
            group.drain(..).map(|entry| (entry.wanted, entry.answer)).unzip();
        if wanted.is_empty() {
            continue;
        }
        let (count, pool) = (wanted.len(), pool.clone());
        // A task of its own: a panic costs its group, and not all who come after it.
        let admitted = tokio::spawn(async move { admit_each(&pool, &wanted).await }).await;
        let admitted = admitted.unwrap_or_else(|_| vec![Err(Failed { is_transient: false }); count]);
        let is_away = admitted.iter().any(|admission| admission.is_err_and(|failed| failed.is_transient));
        for (admission, answer) in admitted.into_iter().zip(answers) {
            let _ = answer.send(admission);
        }
        while is_away && let Ok(entry) = entries.try_recv() {
            let _ = entry.answer.send(Err(Failed { is_transient: true }));
        }
        if is_busy {
            tokio::time::sleep_until(begun + GROUP_EVERY).await;
        }
    }
}

/// Admits a group. What Postgres refuses is tried one by one: one at fault costs itself only.
async fn admit_each(pool: &PgPool, wanted: &[Wanted]) -> Vec<Result<Admission, Failed>> {
    match admit_group(pool, wanted).await {
        Ok(admissions) => admissions.into_iter().map(Ok).collect(),
        Err(error) if runtime::db::is_transient(&error) => {
            wanted.iter().map(|_| Err(Failed { is_transient: true })).collect()
        }
        Err(error) if wanted.len() == 1 => {
            tracing::error!(error = runtime::db::describe(&error), "a request could not be admitted");
            vec![Err(Failed { is_transient: false })]
        }
        Err(_) => {
            let mut each = Vec::with_capacity(wanted.len());
            for one in wanted {
                each.extend(Box::pin(admit_each(pool, std::slice::from_ref(one))).await);
            }
            each
        }
    }
}

async fn admit_group(pool: &PgPool, wanted: &[Wanted]) -> sqlx::Result<Vec<Admission>> {
    let keys: Vec<Uuid> = wanted.iter().map(|one| one.key_id).collect();
    let nonces: Vec<Option<String>> = wanted.iter().map(|one| one.nonce.clone()).collect();
    let limits: Vec<i32> = wanted.iter().map(|one| i32::try_from(one.limit).unwrap_or(i32::MAX / 2)).collect();
    let of_names = |part: fn(&Named) -> String| -> Vec<Option<String>> {
        wanted.iter().map(|one| one.named.as_ref().map(part)).collect()
    };
    let rows = sqlx::query_file!(
        "queries/admit.sql",
        &keys,
        &nonces as &[Option<String>],
        &limits,
        &of_names(|named| named.product.clone()) as &[Option<String>],
        &of_names(|named| named.environment.to_owned()) as &[Option<String>],
        &of_names(|named| named.product_tenant_id.clone()) as &[Option<String>],
    )
    .fetch_all(pool)
    .await?;
    let mut admissions: Vec<Option<Admission>> = vec![None; wanted.len()];
    for row in rows {
        let at = usize::try_from(row.place - 1).unwrap_or(usize::MAX);
        let (Some(one), Some(admission)) = (wanted.get(at), admissions.get_mut(at)) else { continue };
        let rate = row.used_now.map(|used| RateState {
            limit: one.limit,
            used: u32::try_from(used).unwrap_or(u32::MAX),
            resets_in: row
                .resets_in
                .and_then(|seconds| u32::try_from(seconds).ok())
                .unwrap_or(WINDOW_SECONDS)
                .clamp(1, WINDOW_SECONDS),
        });
        *admission = Some(Admission { nonce_is_fresh: row.nonce_is_fresh, rate, tenant: row.linked_tenant });
    }
    admissions.into_iter().collect::<Option<Vec<Admission>>>().ok_or(sqlx::Error::RowNotFound)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
