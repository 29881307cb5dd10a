//! `POST /v1/domains/{id}/verify`: asks the DNS and stores what it says. [`super::recheck`] does the same by the clock.

use std::{
    sync::{Arc, LazyLock},
    time::Duration,
};

use chrono::{DateTime, Utc};
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
    store::{self, DomainRow},
};
use crate::{
    pipeline::{
        ApiReply, NoFields, RequestContext,
        error::ApiError,
        shares::{Share, Shares},
    },
    settings::Rechecks,
    state::Ingress,
};

/// Longest time for all questions of one check, well below the time a request may take.
const CHECK_MAX: Duration = Duration::from_secs(10);
/// Checks at a time in one process, the first to come first: name servers of strangers may be slow.
static CHECKS: Semaphore = Semaphore::const_new(16);
/// The tenants whose checks are running or waiting in this process: one at a time each.
static TENANTS: LazyLock<Shares> = LazyLock::new(|| Shares::new(usize::MAX, 1));
/// Longest wait until a check may run.
const WAIT_MAX: Duration = Duration::from_secs(10);
const RETRY_BUSY: u64 = 5;
/// The index that lets only one tenant have a proven name.
const PROVEN_ONCE: &str = "domains_proven_once";
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

impl DomainChecked {
    /// What the last check found.
    fn stored(ingress: &Ingress, row: &DomainRow) -> Self {
        let dns_records = records::view(row, &ingress.settings.domain_targets.settings());
        Self { domain_id: row.id, status: row.status, dns_records }
    }
}

pub(super) async fn verify(ctx: &mut RequestContext, _: NoFields) -> Result<ApiReply, ApiError> {
    let (tenant, id) = (ctx.tenant, ctx.id("domain")?);
    let row = store::by_id(ctx.db(), tenant, id).await?.ok_or_else(|| ApiError::not_found("domain"))?;
    if !can_sign(&ctx.ingress, tenant, &row) {
        return Err(ApiError::conflict("domain_missing_provider_record").detail(CheckError::KeyLost.to_string()));
    }
    let rechecks = ctx.ingress.settings.rechecks;
    let (answers, again) = match ctx.caller.environment {
        Environment::Sandbox => {
            (DnsAnswers { asked_at: Utc::now(), records: pretend(&row, wanted(&ctx.ingress, &row)) }, None)
        }
        Environment::Production if is_fresh(row.last_checked_at, Utc::now(), rechecks.domain_check_fresh) => {
            return ApiReply::ok(&DomainChecked::stored(&ctx.ingress, &row));
        }
        Environment::Production => {
            let ingress = Arc::clone(&ctx.ingress);
            let answer = async move {
                let _permits = take_permits(tenant).await?;
                Ok::<_, ApiError>(ask(&ingress, tenant, &row).await)
            };
            (ctx.wait_without_connection("dns".to_owned(), answer)??, Some(rechecks))
        }
    };
    match apply_check(ctx.db(), tenant, id, &answers, again, true).await? {
        CheckOutcome::Recorded { from, to, records } => {
            if from != to {
                ctx.audit(STATUS_CHANGED, &id.to_string(), json!({"from": from, "to": to})).await?;
            }
            ApiReply::ok(&DomainChecked { domain_id: id, status: to, dns_records: records })
        }
        CheckOutcome::Outdated(row) => ApiReply::ok(&DomainChecked::stored(&ctx.ingress, &row)),
        CheckOutcome::ProvenElsewhere => Err(ApiError::conflict("domain_claimed_by_another_tenant")),
        CheckOutcome::Gone => Err(ApiError::not_found("domain")),
    }
}

/// Whether a check so young answers for this one. Postgres' clock may be a little ahead of this process's, and no more: it was set back
/// since then.
fn is_fresh(last_checked_at: Option<DateTime<Utc>>, now: DateTime<Utc>, fresh: Duration) -> bool {
    last_checked_at.is_some_and(|at| (now - at).abs().to_std().is_ok_and(|age| age < fresh))
}

/// When the recorded check asked the DNS.
fn recorded_at(row: &DomainRow) -> Option<DateTime<Utc>> {
    row.records.get(0)?.get("checked_at")?.as_str()?.parse().ok()
}

/// Whether a check that asked the DNS after this one is recorded. One from the future says nothing: the clock was set back since then.
fn is_outdated(asked_at: DateTime<Utc>, recorded_at: Option<DateTime<Utc>>, now: DateTime<Utc>) -> bool {
    recorded_at.is_some_and(|recorded| asked_at < recorded && recorded <= now)
}

/// Waits until the DNS may be asked for a tenant. 429 at once while another check of the tenant runs or waits, and after [`WAIT_MAX`].
async fn take_permits(tenant: Uuid) -> Result<(Share, SemaphorePermit<'static>), ApiError> {
    let busy = || {
        ApiError::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_exceeded")
            .retry_after(RETRY_BUSY)
            .detail("other domain checks are waiting for the DNS: try again shortly")
    };
    let own = TENANTS.try_take(&tenant.to_string(), 1).ok_or_else(busy)?;
    match tokio::time::timeout(WAIT_MAX, CHECKS.acquire()).await {
        Ok(Ok(permit)) => Ok((own, permit)),
        Ok(Err(_)) | Err(_) => Err(busy()),
    }
}

/// Whether the private half of the published key can be had. Without it (sealed under a master key that is not set any more)
/// mail could not be signed, and a domain that cannot sign must not count as verified.
pub(super) fn can_sign(ingress: &Ingress, tenant: Uuid, row: &DomainRow) -> bool {
    ingress.vault.open(tenant, DKIM_PURPOSE, &row.dkim_private).is_ok()
}

/// What the DNS said of a domain's records.
#[derive(Clone)]
pub(super) struct DnsAnswers {
    asked_at: DateTime<Utc>,
    records: Vec<CheckedRecord>,
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
    /// A check that asked the DNS later is recorded already, as the domain shows; nothing was recorded.
    Outdated(Box<DomainRow>),
    /// Everything is there, but another tenant has proven the name or a domain above it; nothing was recorded.
    ProvenElsewhere,
    /// The domain is not there any more.
    Gone,
}

/// Records a check: the status it makes of the domain, what it saw, and when to look again (`None`: never). One that the owner asked for
/// starts the rechecks anew. After [`CheckOutcome::ProvenElsewhere`] the transaction can only be rolled back.
pub(super) async fn apply_check(
    db: &mut PgConnection,
    tenant: Uuid,
    id: Uuid,
    answers: &DnsAnswers,
    again: Option<Rechecks>,
    is_asked: bool,
) -> sqlx::Result<CheckOutcome> {
    // A statement of its own after the lock: what other checks have committed meanwhile is seen.
    let Some(row) = store::lock(&mut *db, tenant, id).await? else {
        return Ok(CheckOutcome::Gone);
    };
    let (now, asked_at) = (Utc::now(), answers.asked_at);
    if is_outdated(asked_at, recorded_at(&row), now) {
        return Ok(CheckOutcome::Outdated(Box::new(row)));
    }
    let (from, degraded_since) = (row.status, row.degraded_since);
    let to = domains::status(from, &answers.records, degraded_since, now);
    // One that sends already keeps its name, also when another tenant proves a domain above it.
    if to == DomainStatus::Verified
        && !from.may_send()
        && store::proven_elsewhere(&mut *db, tenant, &row.domain).await?
    {
        return Ok(CheckOutcome::ProvenElsewhere);
    }
    let records: Vec<RecordView> =
        answers.records.iter().map(|checked| RecordView::checked(checked, asked_at)).collect();
    let checks_from = if is_asked { now } else { row.checks_from };
    let next = again.and_then(|rechecks| rechecks.next(to, now - checks_from, degraded_since.map(|since| now - since)));
    let written = sqlx::query!(
        "update domains
         set status = $3,
             records = $4,
             last_checked_at = now(),
             next_check_at = $5,
             checks_from = $7,
             second_published = coalesce($6, second_published),
             verified_at = case when $3 = 'verified' then coalesce(verified_at, now()) else verified_at end,
             degraded_since = case when $3 = 'degraded' then coalesce(degraded_since, now())
                                   when $3 = 'verified' then null else degraded_since end,
             updated_at = now()
         where tenant_id = $1 and id = $2",
        tenant,
        id,
        to.as_str(),
        json!(records),
        next.map(|wait| now + wait),
        second_published(&answers.records),
        checks_from,
    )
    .execute(db)
    .await;
    match written {
        Ok(_) => Ok(CheckOutcome::Recorded { from, to, records }),
        Err(sqlx::Error::Database(error)) if error.constraint() == Some(PROVEN_ONCE) => {
            Ok(CheckOutcome::ProvenElsewhere)
        }
        Err(error) => Err(error),
    }
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

/// Asks the DNS for every record. Takes a bounded time; what was not answered is undetermined. A DKIM record whose private key is lost is
/// wrong, whatever the DNS says.
pub(super) async fn ask(ingress: &Ingress, tenant: Uuid, row: &DomainRow) -> DnsAnswers {
    let (asked_at, records) = (Utc::now(), wanted(ingress, row));
    let asked = domains::verify(&row.domain, records.clone(), &ingress.resolver);
    let answered = tokio::time::timeout(CHECK_MAX, asked).await;
    let mut records = answered.unwrap_or_else(|_| records.into_iter().map(unanswered).collect());
    if !can_sign(ingress, tenant, row) {
        tracing::error!(tenant_id = %tenant, domain_id = %row.id, "a domain's DKIM key cannot be opened: is its master key still set?");
        for checked in records.iter_mut().filter(|checked| checked.record.purpose == RecordPurpose::Dkim) {
            (checked.validity, checked.error) = (Validity::Invalid, Some(CheckError::KeyLost));
        }
    }
    DnsAnswers { asked_at, records }
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

#[cfg(test)]
mod tests {
    use super::*;
    use chrono::TimeDelta;

    #[tokio::test(start_paused = true)]
    async fn slow_name_servers_keep_no_other_tenant_from_a_check() {
        let mut held = Vec::new();
        while CHECKS.available_permits() > 0 {
            held.push(take_permits(Uuid::from_u128(held.len() as u128)).await.unwrap());
        }
        let waits = Uuid::from_u128(u128::MAX);
        let waiting = tokio::spawn(take_permits(waits));
        tokio::task::yield_now().await;
        assert!(take_permits(Uuid::from_u128(0)).await.is_err(), "a check of the tenant is running");
        assert!(take_permits(waits).await.is_err(), "a check of the tenant is waiting");
        held.pop();
        let permits = waiting.await.unwrap().unwrap();
        assert_eq!(take_permits(Uuid::from_u128(77)).await.unwrap_err().retry_after, Some(RETRY_BUSY), "not for ever");
        drop((held, permits));
        assert!(take_permits(waits).await.is_ok());
    }

    #[test]
    fn a_check_from_the_future_is_not_fresh() {
        let now = Utc::now();
        let is_fresh_after = |seconds| is_fresh(Some(now - TimeDelta::seconds(seconds)), now, Duration::from_secs(5));
        assert_eq!([4, 6, -1, -3_600].map(is_fresh_after), [true, false, true, false]);
        assert!(!is_fresh(None, now, Duration::from_secs(5)));
    }

    #[test]
    fn a_later_check_outdates_one_unless_it_is_from_the_future() {
        let asked_at = Utc::now();
        let is_outdated_by = |seconds| {
            let last = asked_at + TimeDelta::seconds(seconds);
            is_outdated(asked_at, Some(last), asked_at + TimeDelta::seconds(5))
        };
        assert_eq!([-1, 0, 1, 5, 6].map(is_outdated_by), [false, false, true, true, false]);
        assert!(!is_outdated(asked_at, None, asked_at));
    }
}
