//! `POST /v1/domains/{id}/verify`: asks the DNS and stores what it says. [`super::recheck`] does the same by the clock.

use std::{
    collections::HashSet,
    sync::{Arc, LazyLock, Mutex, PoisonError},
    time::Duration,
};

use chrono::Utc;
use domains::{CheckError, CheckedRecord, DnsRecord, RecordPurpose, Validity};
use http::StatusCode;
use schemars::JsonSchema;
use schemas::{DomainStatus, Environment};
use serde::Serialize;
use serde_json::json;
use sqlx::PgConnection;
use tokio::sync::{Semaphore, SemaphorePermit};
use uuid::Uuid;

use super::{
    DKIM_PURPOSE,
    records::{self, RecordView},
    store::{self, DomainCheck, DomainRow},
};
use crate::{
    pipeline::{ApiReply, NoFields, RequestContext, error::ApiError},
    settings::Rechecks,
    state::Ingress,
};

/// Longest time for all questions of one check, well below the time a request may take.
const CHECK_MAX: Duration = Duration::from_secs(10);
/// Checks at a time in one process: name servers of strangers may be slow.
static CHECKS: Semaphore = Semaphore::const_new(4);
/// The tenants whose checks are running in this process: one at a time each.
static CHECKING: LazyLock<Mutex<HashSet<Uuid>>> = LazyLock::new(Mutex::default);
const RETRY_BUSY: u64 = 5;
/// In the audit log: a check moved a domain's status.
pub(super) const STATUS_CHANGED: &str = "domain.status_changed";
/// In the sandbox every domain verifies without DNS, except those that begin with this label.
const SANDBOX_UNVERIFIED_LABEL: &str = "unverified";

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct DomainChecked {
    domain_id: Uuid,
    status: DomainStatus,
    dns_records: Vec<RecordView>,
}

pub(super) async fn verify(ctx: &mut RequestContext, _: NoFields) -> Result<ApiReply, ApiError> {
    let (tenant, id) = (ctx.tenant, ctx.id("domain")?);
    let row = store::by_id(ctx.db(), tenant, id).await?.ok_or_else(|| ApiError::not_found("domain"))?;
    if !can_sign(&ctx.ingress, tenant, &row) {
        return Err(ApiError::conflict("domain_missing_provider_record"));
    }
    let results = match ctx.caller.environment {
        Environment::Sandbox => pretend(&row, wanted(&ctx.ingress, &row)),
        Environment::Production if is_fresh(&row, ctx.ingress.settings.rechecks.domain_check_fresh) => {
            let dns_records = records::view(&row, &ctx.ingress.settings.domain_targets.settings());
            return ApiReply::ok(&DomainChecked { domain_id: id, status: row.status, dns_records });
        }
        Environment::Production => {
            let (ingress, asked) = (Arc::clone(&ctx.ingress), row.clone());
            let answer = async move {
                let _turn = CheckPermit::take(tenant)?;
                Ok::<_, ApiError>(ask(&ingress, &asked).await)
            };
            ctx.wait_without_connection("dns".to_owned(), answer)??
        }
    };
    let again = match ctx.caller.environment {
        Environment::Sandbox => None,
        Environment::Production => Some(ctx.ingress.settings.rechecks),
    };
    match apply_check(ctx.db(), tenant, &row, &results, again).await? {
        CheckOutcome::Recorded { from, to, records } => {
            if from != to {
                ctx.audit(STATUS_CHANGED, &id.to_string(), json!({"from": from, "to": to})).await?;
            }
            ApiReply::ok(&DomainChecked { domain_id: id, status: to, dns_records: records })
        }
        CheckOutcome::ProvenElsewhere => Err(ApiError::conflict("domain_claimed_by_another_tenant")),
        CheckOutcome::Gone => Err(ApiError::not_found("domain")),
    }
}

/// Whether a check so young answers for this one.
fn is_fresh(row: &DomainRow, fresh: Duration) -> bool {
    row.last_checked_at.is_some_and(|at| (Utc::now() - at).to_std().unwrap_or_default() < fresh)
}

/// The right to ask the DNS for a tenant, until it is dropped.
struct CheckPermit {
    tenant: Uuid,
    _permit: SemaphorePermit<'static>,
}

impl CheckPermit {
    /// 429 while another check of the tenant runs, or as many as the process takes at a time.
    fn take(tenant: Uuid) -> Result<Self, ApiError> {
        let busy = || {
            ApiError::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_exceeded")
                .retry_after(RETRY_BUSY)
                .detail("other domain checks are waiting for the DNS: try again shortly")
        };
        let permit = CHECKS.try_acquire().map_err(|_| busy())?;
        if !CHECKING.lock().unwrap_or_else(PoisonError::into_inner).insert(tenant) {
            return Err(busy());
        }
        Ok(Self { tenant, _permit: permit })
    }
}

impl Drop for CheckPermit {
    fn drop(&mut self) {
        CHECKING.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.tenant);
    }
}

/// Whether the private half of the published key can be had. Without it (sealed under a master key that is not set any more)
/// mail could not be signed, and a domain that cannot sign must not count as verified.
pub(super) fn can_sign(ingress: &Ingress, tenant: Uuid, row: &DomainRow) -> bool {
    ingress.vault.open(tenant, DKIM_PURPOSE, &row.dkim_private).is_ok()
}

/// The result of a check.
pub(super) enum CheckOutcome {
    /// It is stored.
    Recorded {
        /// The status before.
        from: DomainStatus,
        /// The status now.
        to: DomainStatus,
        /// What the check saw.
        records: Vec<RecordView>,
    },
    /// Everything is there, but another tenant has proven the name or a domain above it; nothing was recorded.
    ProvenElsewhere,
    /// The domain is not there any more.
    Gone,
}

/// Records a check: the status it makes of the domain, what it saw, and when to look again (`None`: never). After
/// [`CheckOutcome::ProvenElsewhere`] the transaction can only be rolled back.
pub(super) async fn apply_check(
    db: &mut PgConnection,
    tenant: Uuid,
    row: &DomainRow,
    results: &[CheckedRecord],
    again: Option<Rechecks>,
) -> sqlx::Result<CheckOutcome> {
    // A statement of its own after the lock: what other checks have committed meanwhile is seen.
    let Some((from, degraded_since)) = store::lock(&mut *db, tenant, row.id).await? else {
        return Ok(CheckOutcome::Gone);
    };
    let now = Utc::now();
    let to = domains::status(from, results, degraded_since, now);
    // One that sends already keeps its name, also when another tenant proves a domain above it.
    if to == DomainStatus::Verified
        && !from.may_send()
        && store::proven_elsewhere(&mut *db, tenant, &row.domain).await?
    {
        return Ok(CheckOutcome::ProvenElsewhere);
    }
    let records: Vec<RecordView> = results.iter().map(|checked| RecordView::checked(checked, now)).collect();
    let next =
        again.and_then(|rechecks| rechecks.next(to, now - row.created_at, degraded_since.map(|since| now - since)));
    let check = DomainCheck {
        status: to,
        records: &json!(records),
        next_check_at: next.map(|wait| now + wait),
        second_published: second_published(results),
    };
    if !store::record_check(db, tenant, row.id, &check).await? {
        return Ok(CheckOutcome::ProvenElsewhere);
    }
    Ok(CheckOutcome::Recorded { from, to, records })
}

/// Whether the advised DKIM record stands. A DNS without a definite answer changes nothing.
fn second_published(results: &[CheckedRecord]) -> Option<bool> {
    let second =
        results.iter().find(|checked| checked.record.purpose == RecordPurpose::Dkim && !checked.record.required)?;
    match second.validity {
        Validity::Valid => Some(true),
        Validity::Invalid => Some(false),
        Validity::Undetermined => None,
    }
}

fn wanted(ingress: &Ingress, row: &DomainRow) -> Vec<DnsRecord> {
    records::wanted(row, &ingress.settings.domain_targets.settings())
}

/// Asks the DNS for every record. Takes a bounded time; what was not answered is undetermined.
pub(super) async fn ask(ingress: &Ingress, row: &DomainRow) -> Vec<CheckedRecord> {
    let records = wanted(ingress, row);
    let asked = domains::verify(&row.domain, records.clone(), &ingress.resolver);
    tokio::time::timeout(CHECK_MAX, asked).await.unwrap_or_else(|_| records.into_iter().map(unanswered).collect())
}

fn unanswered(record: DnsRecord) -> CheckedRecord {
    CheckedRecord { record, validity: Validity::Undetermined, observed: Vec::new(), error: Some(CheckError::NoAnswer) }
}

/// The sandbox's DNS: as if every record were there, or none.
fn pretend(row: &DomainRow, records: Vec<DnsRecord>) -> Vec<CheckedRecord> {
    let published = row.domain.split('.').next() != Some(SANDBOX_UNVERIFIED_LABEL);
    let look = |record: DnsRecord| match published {
        true => CheckedRecord { validity: Validity::Valid, observed: vec![record.value.clone()], error: None, record },
        false => CheckedRecord {
            validity: Validity::Invalid,
            observed: Vec::new(),
            error: Some(CheckError::Missing { type_: record.type_, host: record.host.clone() }),
            record,
        },
    };
    records.into_iter().map(look).collect()
}
