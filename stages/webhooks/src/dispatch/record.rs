//! Records the results of attempts in the ledger, many in one transaction.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use chrono::{DateTime, Utc};
use runtime::{Backoff, Commit, Counter, Gathering, GroupCommitter, column, commit_each, plans::PreparedPool};
use schemas::new_id;
use sqlx::PgConnection;
use tokio::sync::mpsc;
use uuid::Uuid;

use super::{endpoint::SubscriberEndpoint, schedule::RetryDecision};

/// The most attempts one transaction records.
const GROUP_MAX: usize = 500;
/// How long results are gathered. No caller waits for them, and one transaction for many slows others down less.
const GATHER: Duration = Duration::from_millis(20);
/// The pauses while Postgres is unavailable.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(2));
/// Rows that an hour's total is spread over.
const SHARDS: u8 = 16;

/// A finished attempt, and what follows from it.
#[derive(Debug)]
pub(super) struct FinishedAttempt {
    pub endpoint: Arc<SubscriberEndpoint>,
    pub delivery_id: Uuid,
    pub due_at: DateTime<Utc>,
    /// The number of the attempt, from 1.
    pub attempt: u16,
    pub decision: RetryDecision,
    pub status_code: Option<u16>,
    pub error_code: Option<&'static str>,
    pub duration: Duration,
}

impl FinishedAttempt {
    fn status(&self) -> &'static str {
        match self.decision {
            RetryDecision::Delivered => "delivered",
            RetryDecision::Retry(_) => "pending",
            RetryDecision::Dead | RetryDecision::Disable => "dead",
        }
    }

    /// The outcome's label in totals and metrics.
    fn outcome(&self) -> &'static str {
        match self.decision {
            RetryDecision::Delivered => "delivered",
            RetryDecision::Retry(_) => "failed",
            RetryDecision::Dead => "dead",
            RetryDecision::Disable => "disabled",
        }
    }
}

/// Records attempts until the channel is closed.
pub(super) struct AttemptRecorder {
    by_key: PreparedPool,
    give_up_after: Duration,
    shard: i16,
}

/// How the attempts of a group change their subscriptions.
#[derive(Debug, Default)]
struct SubscriptionChanges {
    /// Subscriptions that answered after failures.
    recovered: BTreeSet<Uuid>,
    /// Subscriptions that failed for the first time.
    failing: BTreeSet<Uuid>,
    /// Subscriptions whose receiver answered 410.
    gone: BTreeSet<Uuid>,
    /// Subscriptions that failed for so long that they are disabled.
    expired: BTreeSet<Uuid>,
}

impl AttemptRecorder {
    pub fn new(by_key: PreparedPool, give_up_after: Duration) -> Self {
        Self { by_key, give_up_after, shard: i16::from(rand::random::<u8>() % SHARDS) }
    }

    /// Records attempts in groups, however long that takes. Their deliveries are not attempted again here meanwhile. If the process ends
    /// first, another one attempts them again. A result that cannot be recorded does not affect the others: it is attempted again, too.
    pub async fn run(mut self, finished: mpsc::Receiver<FinishedAttempt>) {
        let mut groups = GroupCommitter::new(finished, Gathering { most: GROUP_MAX, busy: 0, window: GATHER });
        while let Some(group) = groups.next().await {
            commit_each(&mut self, &group).await;
            for attempt in group {
                attempt.endpoint.recorded(attempt.delivery_id);
            }
        }
    }

    async fn record(&self, group: &[FinishedAttempt]) -> sqlx::Result<()> {
        let subscription_changes = self.subscription_changes(group);
        let mut tx = self.by_key.begin().await?;
        record_deliveries(&mut tx, group).await?;
        self.add_totals(&mut tx, group).await?;
        subscription_changes.write(&mut tx, group).await?;
        tx.commit().await?;
        subscription_changes.apply_to_endpoints(group);
        count_attempts(group);
        Ok(())
    }

    fn subscription_changes(&self, group: &[FinishedAttempt]) -> SubscriptionChanges {
        let mut subscription_changes = SubscriptionChanges::default();
        let answered: BTreeSet<Uuid> = group
            .iter()
            .filter(|attempt| attempt.decision == RetryDecision::Delivered)
            .map(|attempt| attempt.endpoint.id)
            .collect();
        let long_ago = Utc::now() - self.give_up_after;
        for attempt in group {
            let id = attempt.endpoint.id;
            match (attempt.decision, attempt.endpoint.failing_since()) {
                (RetryDecision::Disable, _) => drop(subscription_changes.gone.insert(id)),
                (RetryDecision::Delivered, Some(_)) => drop(subscription_changes.recovered.insert(id)),
                (RetryDecision::Delivered, None) => {}
                (RetryDecision::Retry(_) | RetryDecision::Dead, _) if answered.contains(&id) => {}
                (RetryDecision::Retry(_) | RetryDecision::Dead, None) => drop(subscription_changes.failing.insert(id)),
                (RetryDecision::Retry(_) | RetryDecision::Dead, Some(since)) if since < long_ago => {
                    subscription_changes.expired.insert(id);
                }
                (RetryDecision::Retry(_) | RetryDecision::Dead, Some(_)) => {}
            }
        }
        subscription_changes
    }

    async fn add_totals(&self, db: &mut PgConnection, group: &[FinishedAttempt]) -> sqlx::Result<()> {
        let mut totals: BTreeMap<&'static str, i64> = BTreeMap::new();
        for attempt in group {
            *totals.entry(attempt.outcome()).or_default() += 1;
        }
        let (outcomes, counts): (Vec<String>, Vec<i64>) =
            totals.into_iter().map(|(outcome, count)| (outcome.to_owned(), count)).unzip();
        sqlx::query_file!("queries/totals.sql", &outcomes, &counts, self.shard).execute(db).await.map(drop)
    }
}

impl Commit for AttemptRecorder {
    type Entry = FinishedAttempt;
    type Answer = ();
    const TASK: (&'static str, &'static str) = ("webhooks", "task");
    const RETRY: Option<Backoff> = Some(BACKOFF);

    async fn commit(&mut self, group: &[FinishedAttempt]) -> sqlx::Result<Vec<()>> {
        self.record(group).await.map(|()| vec![(); group.len()])
    }
}

async fn record_deliveries(db: &mut PgConnection, group: &[FinishedAttempt]) -> sqlx::Result<()> {
    sqlx::query_file!(
        "queries/record.sql",
        &column(group, |attempt| attempt.endpoint.tenant_id),
        &column(group, |attempt| attempt.endpoint.id),
        &column(group, |attempt| attempt.delivery_id),
        &column(group, |attempt| attempt.due_at),
        &column(group, |attempt| attempt.status().to_owned()),
        &column(group, |attempt| i16::try_from(attempt.attempt).unwrap_or(i16::MAX)),
        &column(group, |attempt| match attempt.decision {
            RetryDecision::Retry(wait) => Some(wait.as_secs_f64()),
            RetryDecision::Delivered | RetryDecision::Dead | RetryDecision::Disable => None,
        }) as &[Option<f64>],
        &column(group, |attempt| attempt.status_code.and_then(|code| i16::try_from(code).ok())) as &[Option<i16>],
        &column(group, |attempt| attempt.error_code.map(str::to_owned)) as &[Option<String>],
        &column(group, |attempt| i32::try_from(attempt.duration.as_millis()).unwrap_or(i32::MAX))
    )
    .fetch_one(db)
    .await
    .map(drop)
}

impl SubscriptionChanges {
    /// Writes the changes; mostly there are none. Locks the subscriptions' rows in the order of their ids.
    async fn write(&self, db: &mut PgConnection, group: &[FinishedAttempt]) -> sqlx::Result<()> {
        let tenant_of = |id: &Uuid| {
            group.iter().find(|attempt| attempt.endpoint.id == *id).map(|attempt| attempt.endpoint.tenant_id)
        };
        let columns = |ids: &BTreeSet<Uuid>| -> (Vec<Uuid>, Vec<Uuid>) {
            ids.iter().filter_map(|id| Some((tenant_of(id)?, *id))).unzip()
        };
        let changed: BTreeSet<Uuid> =
            [&self.recovered, &self.failing, &self.gone, &self.expired].into_iter().flatten().copied().collect();
        if changed.is_empty() {
            return Ok(());
        }
        let (tenants, ids) = columns(&changed);
        let disabled = sqlx::query!(
            r#"with standing as (
                 select s.tenant_id, s.id, s.status, w.fails, w.reason
                 from unnest($1::uuid[], $2::uuid[], $3::bool[], $4::text[]) as w (tenant_id, id, fails, reason)
                 join webhook_subscriptions s on s.tenant_id = w.tenant_id and s.id = w.id
                 order by s.id
                 for no key update of s
             )
             update webhook_subscriptions s
             set failing_since = case when n.fails then coalesce(s.failing_since, now()) end,
                 status = case when n.reason is null then s.status else 'disabled' end,
                 disabled_reason = coalesce(s.disabled_reason, n.reason),
                 disabled_at = case when n.reason is null then s.disabled_at else coalesce(s.disabled_at, now()) end,
                 updated_at = case when n.reason is null then s.updated_at else now() end
             from standing n
             where s.tenant_id = n.tenant_id and s.id = n.id
             returning s.tenant_id, s.id, (n.reason is not null and n.status <> 'disabled') as "is_over!", s.disabled_reason"#,
            &tenants,
            &ids,
            &column(&ids, |id| !self.recovered.contains(id)),
            &column(&ids, |id| self.reason(id).map(str::to_owned)) as &[Option<String>]
        )
        .fetch_all(&mut *db)
        .await?;
        for row in disabled.into_iter().filter(|row| row.is_over) {
            audit(db, row.tenant_id, row.id, row.disabled_reason.as_deref()).await?;
        }
        Ok(())
    }

    fn reason(&self, id: &Uuid) -> Option<&'static str> {
        match (self.gone.contains(id), self.expired.contains(id)) {
            (true, _) => Some("gone"),
            (false, true) => Some("failing"),
            (false, false) => None,
        }
    }

    /// Applies the committed changes to the endpoints.
    fn apply_to_endpoints(&self, group: &[FinishedAttempt]) {
        for FinishedAttempt { endpoint, .. } in group {
            if self.reason(&endpoint.id).is_some() {
                endpoint.close();
            } else if self.recovered.contains(&endpoint.id) {
                endpoint.set_failing_since(None);
            } else if self.failing.contains(&endpoint.id) && endpoint.failing_since().is_none() {
                endpoint.set_failing_since(Some(Utc::now()));
            }
        }
    }
}

/// Writes the audit entry of a subscription that the engine disabled, with the reason.
async fn audit(db: &mut PgConnection, tenant: Uuid, subscription: Uuid, reason: Option<&str>) -> sqlx::Result<()> {
    sqlx::query!(
        "insert into audit_log (id, tenant_id, actor, action, subject, detail)
         values ($1, $2, 'stage:webhooks', 'webhook.disabled', 'webhook:' || $3::text, jsonb_build_object('reason', $4::text))",
        new_id(),
        tenant,
        subscription.to_string(),
        reason
    )
    .execute(db)
    .await
    .map(drop)
}

fn count_attempts(group: &[FinishedAttempt]) {
    for attempt in group {
        Counter::WebhookAttemptsTotal.add(1, [("outcome", attempt.outcome())]);
        if let Some(code) = attempt.error_code {
            Counter::WebhookFailuresTotal.add(1, [("reason", code)]);
        }
    }
}
