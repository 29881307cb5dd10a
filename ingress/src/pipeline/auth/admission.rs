//! Checks nonce, rate limit and tenant of requests: one statement for all three, and for all requests that wait at the same time.
//!
//! A single request is admitted at once. Requests that arrive while a group is being admitted (under load, and a millisecond longer)
//! form the next group. One transaction for each would cost a third of what Postgres spends on a small read.

use std::time::Duration;

use async_trait::async_trait;
use runtime::{Backoff, Commit, Gathering, GroupCommitter, NotCommitted, column, commit_each, plans::PreparedPool};
use tokio::sync::{mpsc, oneshot};
use uuid::Uuid;

use super::keys::Caller;
use crate::pipeline::{error::ApiError, tenant::TenantClaim};

/// The seconds over which requests are limited: any so many, not those of a clock's minute.
pub const WINDOW_SECONDS: u32 = 60;

/// The most requests of one group.
const GROUP_MAX: usize = 64;
/// Requests waiting for a group; more wait their turn.
const QUEUE: usize = 1_024;
/// Under load larger groups form and share the cost of a group. Without load, no request waits.
const GATHERING: Gathering = Gathering { most: GROUP_MAX, busy: 3, window: Duration::from_millis(1) };
/// How long a request waits to be admitted. After it, Postgres counts as away.
const ADMISSION_TIMEOUT: Duration = Duration::from_secs(12);

/// The requests of a key, and of those that share its limit, in their sliding minute.
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
    pub fn remaining(self) -> u32 {
        self.limit.saturating_sub(self.used)
    }

    /// Whether this request is one too many.
    pub fn is_exceeded(self) -> bool {
        self.used > self.limit
    }
}

/// The tenant that a request names.
#[derive(Debug, Clone)]
pub struct NamedTenant {
    pub product: String,
    pub environment: &'static str,
    /// The product's own id of the tenant.
    pub product_tenant_id: String,
}

/// What is checked of a request before its handler runs.
#[derive(Debug, Clone)]
pub struct AdmissionRequest {
    /// The API key: the scope of the nonce.
    pub key_id: Uuid,
    /// Under which the request is counted.
    pub rate_key: Uuid,
    /// The nonce to record, if the request is signed.
    pub nonce: Option<String>,
    /// Requests allowed in a minute; 0 for any number.
    pub limit: u32,
    /// The tenant to find, if one is named.
    pub named: Option<NamedTenant>,
}

impl AdmissionRequest {
    /// A request of this caller, which may name a tenant.
    pub(super) fn of(caller: &Caller, nonce: Option<String>, limit: u32, product_tenant_id: Option<&str>) -> Self {
        let named = product_tenant_id.map(|name| NamedTenant {
            product: caller.product.clone(),
            environment: caller.environment.as_str(),
            product_tenant_id: name.to_owned(),
        });
        Self { key_id: caller.key_id, rate_key: caller.rate_lineage, nonce, limit, named }
    }
}

/// The result for a nonce, a count and a tenant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Admission {
    /// The nonce was not seen before (or none was asked about).
    pub nonce_is_fresh: bool,
    /// `None` when the limit is off, or the nonce was seen before (a replay costs the key's owner nothing).
    pub rate: Option<RateState>,
    /// The tenant that was named, if it is linked.
    pub tenant: Option<Uuid>,
}

impl From<NotCommitted> for ApiError {
    fn from(failed: NotCommitted) -> Self {
        match failed {
            NotCommitted::Away => Self::unavailable(),
            NotCommitted::Refused => Self::internal(),
        }
    }
}

/// A waiting request, and where its result is sent.
struct QueuedAdmission {
    wanted: AdmissionRequest,
    answer: oneshot::Sender<Result<Admission, NotCommitted>>,
}

/// Admits requests. Ends when it is dropped.
#[derive(Debug)]
pub struct Admissions {
    queue: mpsc::Sender<QueuedAdmission>,
}

impl Admissions {
    /// Starts to admit, a group at a time. Must be called in a runtime; connects at the first request.
    pub fn start(by_key: PreparedPool) -> Self {
        let (queue, entries) = mpsc::channel(QUEUE);
        tokio::spawn(run_admissions(by_key, entries));
        Self { queue }
    }

    /// Records the nonce, if one is given, counts the request, if there is a limit, and finds the tenant, if one is named. All of it
    /// holds over all ingress processes and is committed when this returns.
    ///
    /// The commit is asynchronous: a nonce survives restarts of the ingress, but a crash of Postgres can lose those of the last fraction of
    /// a second. Only requests that were signed within it could then be repeated.
    ///
    /// # Errors
    /// 503 when Postgres is away; twelve seconds later at the latest, when it is there and does not answer.
    pub async fn admit(&self, wanted: AdmissionRequest) -> Result<Admission, ApiError> {
        if wanted.nonce.is_none() && wanted.limit == 0 && wanted.named.is_none() {
            return Ok(Admission { nonce_is_fresh: true, rate: None, tenant: None });
        }
        let (answer, answered) = oneshot::channel();
        let admitted = async {
            self.queue.send(QueuedAdmission { wanted, answer }).await.ok()?;
            answered.await.ok()
        };
        match tokio::time::timeout(ADMISSION_TIMEOUT, admitted).await {
            Ok(Some(admission)) => Ok(admission?),
            _ => Err(ApiError::unavailable()),
        }
    }

    /// The tenant that a claim names, if it is linked. Looked up together with the requests that are being admitted.
    pub async fn find_tenant(&self, caller: &Caller, claim: &TenantClaim) -> Result<Option<Uuid>, ApiError> {
        Ok(self.admit(AdmissionRequest::of(caller, None, 0, Some(&claim.product_tenant_id))).await?.tenant)
    }
}

#[async_trait]
impl mcp::RateLimit for Admissions {
    async fn count(&self, key: Uuid, per_minute: u32) -> Result<Option<u32>, mcp::NotCounted> {
        let wanted = AdmissionRequest { key_id: key, rate_key: key, nonce: None, limit: per_minute, named: None };
        let admission = self.admit(wanted).await.map_err(|_| mcp::NotCounted)?;
        Ok(admission.rate.filter(|rate| rate.is_exceeded()).map(|rate| rate.resets_in))
    }
}

/// Admits group after group. If Postgres is away, all waiting requests are answered at once, not a group at a time.
async fn run_admissions(by_key: PreparedPool, entries: mpsc::Receiver<QueuedAdmission>) {
    let (mut admitter, mut groups) = (Admitter(by_key), GroupCommitter::new(entries, GATHERING));
    while let Some(mut group) = groups.next().await {
        // A request that was given up is not counted.
        group.retain(|entry| !entry.answer.is_closed());
        let (wanted, answers): (Vec<AdmissionRequest>, Vec<_>) =
            group.into_iter().map(|entry| (entry.wanted, entry.answer)).unzip();
        if wanted.is_empty() {
            continue;
        }
        let admitted = commit_each(&mut admitter, &wanted).await;
        if admitted.contains(&Err(NotCommitted::Away)) {
            for entry in groups.drain() {
                let _ = entry.answer.send(Err(NotCommitted::Away));
            }
        }
        for (admission, answer) in admitted.into_iter().zip(answers) {
            let _ = answer.send(admission);
        }
    }
}

struct Admitter(PreparedPool);

impl Commit for Admitter {
    type Entry = AdmissionRequest;
    type Answer = Admission;
    const TASK: (&'static str, &'static str) = ("ingress", "task");
    const RETRY: Option<Backoff> = None;

    async fn commit(&mut self, wanted: &[AdmissionRequest]) -> sqlx::Result<Vec<Admission>> {
        admit_group(&self.0, wanted).await
    }
}

async fn admit_group(by_key: &PreparedPool, wanted: &[AdmissionRequest]) -> sqlx::Result<Vec<Admission>> {
    let named = |part: fn(&NamedTenant) -> String| column(wanted, |one| one.named.as_ref().map(part));
    let mut db = by_key.take().await?;
    let mut rows = sqlx::query_file!(
        "queries/admit_requests.sql",
        &column(wanted, |one| one.key_id),
        &column(wanted, |one| one.nonce.clone()) as &[Option<String>],
        &column(wanted, |one| i32::try_from(one.limit).unwrap_or(i32::MAX / 2)),
        &named(|named| named.product.clone()) as &[Option<String>],
        &named(|named| named.environment.to_owned()) as &[Option<String>],
        &named(|named| named.product_tenant_id.clone()) as &[Option<String>],
        &column(wanted, |one| one.rate_key),
    )
    .fetch_all(&mut *db)
    .await?;
    db.put_back();
    if rows.len() != wanted.len() {
        return Err(sqlx::Error::RowNotFound);
    }
    rows.sort_unstable_by_key(|row| row.place);
    let admissions = rows.into_iter().zip(wanted).map(|(row, one)| {
        let resets_in = row.resets_in.and_then(|seconds| u32::try_from(seconds).ok()).unwrap_or(WINDOW_SECONDS);
        let rate = row.used_now.map(|used| RateState {
            limit: one.limit,
            used: u32::try_from(used).unwrap_or(u32::MAX),
            resets_in: resets_in.clamp(1, WINDOW_SECONDS),
        });
        Admission { nonce_is_fresh: row.nonce_is_fresh, rate, tenant: row.linked_tenant }
    });
    Ok(admissions.collect())
}

#[cfg(test)]
mod tests;
