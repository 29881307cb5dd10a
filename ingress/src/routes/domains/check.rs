//! `POST /v1/domains/{id}/verify`: asks the DNS and stores what it says.

use std::time::Duration;

use chrono::Utc;
use delivery::domain::{self, CheckError, Checked, DnsRecord, Validity};
use schemas::{DomainStatus, Environment};
use serde_json::json;
use tokio::sync::Semaphore;

use super::{
    DKIM_PURPOSE,
    records::{self, RecordView},
    store::{self, DomainRow},
};
use crate::{
    act::{Act, NoFields, Reply},
    error::ApiError,
};

/// Longest time for all questions of one check, well below the time Postgres lets a transaction idle.
const CHECK_MAX: Duration = Duration::from_secs(10);
/// Checks at a time in one process. Each keeps a database connection while the DNS thinks: slow name servers of some tenants must
/// not take the connections of all the others.
static CHECKS: Semaphore = Semaphore::const_new(4);
const RETRY_BUSY: u64 = 5;
/// In the sandbox every domain verifies without DNS, except those that begin with this label.
const SANDBOX_UNVERIFIED_LABEL: &str = "unverified";

pub(super) async fn verify(act: &mut Act, _: NoFields) -> Result<Reply, ApiError> {
    let (tenant, id) = (act.tenant, act.id("domain")?);
    let row = store::by_id(act.db(), tenant, id).await?.ok_or_else(|| ApiError::not_found("domain"))?;
    // The records name a public key. Without its private half (sealed under a master key that is not set any more) mail could
    // not be signed, and a domain that cannot sign must not count as verified.
    if act.ingress.vault.open(tenant, DKIM_PURPOSE, &row.dkim_private).is_err() {
        return Err(ApiError::conflict("domain_missing_provider_record"));
    }
    let results = match act.caller.environment {
        Environment::Sandbox => pretend(&row, wanted(act, &row)),
        Environment::Production => ask(act, &row).await?,
    };

    // A statement of its own after the lock: what other checks have committed meanwhile is seen.
    let (previous, degraded_since) =
        store::lock(act.db(), tenant, id).await?.ok_or_else(|| ApiError::not_found("domain"))?;
    let now = Utc::now();
    let status = domain::status(previous, &results, degraded_since, now);
    if status == DomainStatus::Verified && store::proven_elsewhere(act.db(), tenant, &row.domain).await? {
        return Err(ApiError::conflict("domain_claimed_by_another_tenant"));
    }
    let views: Vec<RecordView> = results.iter().map(|checked| RecordView::checked(checked, now)).collect();
    if !store::record_check(act.db(), tenant, id, status, &json!(views)).await? {
        return Err(ApiError::conflict("domain_claimed_by_another_tenant"));
    }
    Reply::ok(&json!({"ok": true, "domain_id": id, "status": status, "dns_records": views}))
}

fn wanted(act: &Act, row: &DomainRow) -> Vec<DnsRecord> {
    records::wanted(row, &act.ingress.settings.domain_targets.settings())
}

async fn ask(act: &Act, row: &DomainRow) -> Result<Vec<Checked>, ApiError> {
    let _permit = CHECKS.try_acquire().map_err(|_| {
        ApiError::unavailable()
            .retry_after(RETRY_BUSY)
            .detail("other domain checks are waiting for the DNS: try again shortly")
    })?;
    let records = wanted(act, row);
    let asked = domain::verify(&row.domain, records.clone(), &act.ingress.resolver);
    Ok(tokio::time::timeout(CHECK_MAX, asked).await.unwrap_or_else(|_| records.into_iter().map(unanswered).collect()))
}

fn unanswered(record: DnsRecord) -> Checked {
    Checked { record, validity: Validity::Undetermined, observed: Vec::new(), error: Some(CheckError::NoAnswer) }
}

/// The sandbox's DNS: as if every record were there, or none.
fn pretend(row: &DomainRow, records: Vec<DnsRecord>) -> Vec<Checked> {
    let published = row.domain.split('.').next() != Some(SANDBOX_UNVERIFIED_LABEL);
    let look = |record: DnsRecord| match published {
        true => Checked { validity: Validity::Valid, observed: vec![record.value.clone()], error: None, record },
        false => Checked {
            validity: Validity::Invalid,
            observed: Vec::new(),
            error: Some(CheckError::Missing { type_: record.type_, host: record.host.clone() }),
            record,
        },
    };
    records.into_iter().map(look).collect()
}
