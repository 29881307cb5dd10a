//! Domains are looked at again by themselves: a record that vanishes is noticed before receivers notice it, one that was
//! published at last is found without a call of "verify".

use std::{sync::Arc, time::Duration};

use chrono::{TimeDelta, Utc};
use futures::{StreamExt, stream};
use runtime::Counter;
use schemas::DomainStatus;
use serde_json::json;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::{
    check::{self, CheckOutcome, STATUS_CHANGED},
    store,
};
use crate::{pipeline::write_audit_log, settings::Rechecks, state::Ingress};

/// How often due domains are looked for.
const EVERY: Duration = Duration::from_secs(10);
/// Domains one round takes, and how many of them ask the DNS at once.
const AT_ONCE: i32 = 40;
const CONCURRENT: usize = 8;
/// How long a claim that was never proven is looked at soon, and how long at all.
const PENDING_SOON: TimeDelta = TimeDelta::days(3);
const PENDING_AT_ALL: TimeDelta = TimeDelta::days(30);
/// How long after it degraded a failed domain is looked at.
const FAILED_AT_ALL: TimeDelta = TimeDelta::days(30);
const ACTOR: &str = "recheck";

impl Rechecks {
    /// How long after a check that left the domain in this status the next one is due; `None` when no more
    /// checks are due. `age`: since the domain was claimed, or since the last call of `verify`, which starts them again.
    pub(super) fn next(
        self,
        status: DomainStatus,
        age: TimeDelta,
        degraded_for: Option<TimeDelta>,
    ) -> Option<Duration> {
        match status {
            DomainStatus::Verified => Some(self.domain_recheck),
            DomainStatus::Degraded => Some(self.domain_recheck_soon),
            DomainStatus::Pending if age < PENDING_SOON => Some(self.domain_recheck_soon),
            DomainStatus::Pending => (age < PENDING_AT_ALL).then_some(self.domain_recheck),
            DomainStatus::Failed => {
                degraded_for.is_none_or(|since| since.min(age) < FAILED_AT_ALL).then_some(self.domain_recheck)
            }
            DomainStatus::Suspended => None,
        }
    }
}

/// Looks at due domains until shut down. Every ingress process may do so at once.
pub(crate) async fn run(ingress: Arc<Ingress>, shutdown: CancellationToken) {
    let labels = [("stage", "ingress"), ("sweep", "domains")];
    Counter::SweepFoundTotal.add(0, labels);
    Counter::SweepFailedTotal.add(0, labels);
    while shutdown.run_until_cancelled(tokio::time::sleep(EVERY)).await.is_some() {
        match shutdown.run_until_cancelled(sweep(&ingress)).await {
            Some(Ok(found)) => Counter::SweepFoundTotal.add(found, labels),
            Some(Err(error)) => {
                Counter::SweepFailedTotal.add(1, labels);
                tracing::warn!(
                    transient = runtime::db::is_transient(&error),
                    "domain check sweep failed; it runs again"
                );
            }
            _ => {}
        }
    }
}

/// One round: domains of all tenants whose check is due are taken for ten minutes. Answers how many were looked at. No connection is held
/// while the DNS thinks. Served by `domains_to_check`.
pub async fn sweep(ingress: &Ingress) -> sqlx::Result<u64> {
    let due = sqlx::query!(r#"select tenant_id as "tenant_id!", id as "id!" from take_domains_to_check($1)"#, AT_ONCE)
        .fetch_all(&ingress.pool)
        .await?;
    let checks = stream::iter(due).map(|row| recheck(ingress, row.tenant_id, row.id)).buffer_unordered(CONCURRENT);
    let results: Vec<sqlx::Result<()>> = checks.collect().await;
    let found = results.len() as u64;
    results.into_iter().collect::<sqlx::Result<()>>()?;
    Ok(found)
}

async fn recheck(ingress: &Ingress, tenant: Uuid, id: Uuid) -> sqlx::Result<()> {
    let mut tx = runtime::db::begin_for_tenant(&ingress.pool, tenant).await?;
    let row = store::by_id(&mut tx, tenant, id).await?;
    tx.rollback().await?;
    let Some(row) = row else { return Ok(()) };
    let rechecks = ingress.settings.rechecks;
    let answers = check::ask(ingress, tenant, &row).await;
    let mut tx = runtime::db::begin_for_tenant(&ingress.pool, tenant).await?;
    match check::apply_check(&mut tx, tenant, id, &answers, Some(rechecks), false).await? {
        CheckOutcome::Recorded { from, to, .. } => {
            if from != to {
                let subject = vec![(id.to_string(), json!({"from": from, "to": to}))];
                write_audit_log(&mut tx, Some(tenant), ACTOR, STATUS_CHANGED, subject).await?;
                tracing::info!(tenant_id = %tenant, domain_id = %id, %from, %to, "a domain's status changed");
            }
            tx.commit().await?;
            ingress.facts.notify();
            Ok(())
        }
        CheckOutcome::ProvenElsewhere => {
            tx.rollback().await?;
            let wait = rechecks.next(DomainStatus::Pending, Utc::now() - row.checks_from, None);
            again_later(ingress, tenant, id, wait).await
        }
        CheckOutcome::Outdated(_) | CheckOutcome::Gone => tx.rollback().await,
    }
}

/// Says when a domain is looked at again, and nothing else.
async fn again_later(ingress: &Ingress, tenant: Uuid, id: Uuid, wait: Option<Duration>) -> sqlx::Result<()> {
    let mut tx = runtime::db::begin_for_tenant(&ingress.pool, tenant).await?;
    sqlx::query!(
        "update domains set next_check_at = $3, last_checked_at = now() where tenant_id = $1 and id = $2",
        tenant,
        id,
        wait.map(|wait| Utc::now() + wait),
    )
    .execute(&mut *tx)
    .await?;
    tx.commit().await
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    const DAILY: Duration = Duration::from_secs(86_400);
    const SOON: Duration = Duration::from_secs(3_600);

    #[rstest]
    #[case::verified(DomainStatus::Verified, 400, None, Some(DAILY))]
    #[case::degraded(DomainStatus::Degraded, 400, Some(1), Some(SOON))]
    #[case::just_claimed(DomainStatus::Pending, 0, None, Some(SOON))]
    #[case::claimed_last_week(DomainStatus::Pending, 7, None, Some(DAILY))]
    #[case::claimed_and_unused(DomainStatus::Pending, 30, None, None)]
    #[case::failed(DomainStatus::Failed, 400, Some(4), Some(DAILY))]
    #[case::failed_and_unused(DomainStatus::Failed, 400, Some(30), None)]
    #[case::failed_and_asked_for(DomainStatus::Failed, 0, Some(400), Some(DAILY))]
    #[case::suspended(DomainStatus::Suspended, 0, None, None)]
    fn a_domain_is_looked_at_again_as_its_status_asks(
        #[case] status: DomainStatus,
        #[case] days_from: i64,
        #[case] days_degraded: Option<i64>,
        #[case] expected: Option<Duration>,
    ) {
        let rechecks =
            Rechecks { domain_recheck: DAILY, domain_recheck_soon: SOON, domain_check_fresh: Duration::ZERO };
        assert_eq!(rechecks.next(status, TimeDelta::days(days_from), days_degraded.map(TimeDelta::days)), expected);
    }
}
