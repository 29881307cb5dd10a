//! Records the results of attempts in the ledger, many in one transaction.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use chrono::{DateTime, Utc};
use ledger::hours::random_shard;
use runtime::{
    AuditRecord, Backoff, Commit, Counter, Gathering, GroupCommitter, audit, column, commit_each, plans::PreparedPool,
};
use serde_json::json;
use sqlx::PgConnection;
use tokio::sync::mpsc;
use uuid::Uuid;

use super::{
    attempt::{AttemptResult, DeliveryTarget},
    endpoint::{DeliveryJob, SubscriberEndpoint},
    schedule::{AttemptOutcome, RetryDecision},
};

/// The most attempts one transaction records.
const GROUP_MAX: usize = 500;
/// How long results are gathered. No caller waits for them, and one transaction for many slows others down less.
const GATHER: Duration = Duration::from_millis(20);
/// The pauses while Postgres is unavailable.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(2));

/// A finished attempt, and what follows from it.
#[derive(Debug, Clone)]
pub(super) struct FinishedAttempt {
    pub endpoint: Arc<SubscriberEndpoint>,
    /// What was posted to.
    pub target: Arc<DeliveryTarget>,
    /// Without its body.
    pub job: DeliveryJob,
    pub decision: RetryDecision,
    pub reply: AttemptResult,
}

impl FinishedAttempt {
    fn address(&self) -> SubscriberAddress<'_> {
        (self.endpoint.tenant_id, self.endpoint.id, self.target.url.as_str())
    }

    fn status(&self) -> &'static str {
        match self.decision {
            RetryDecision::Delivered => "delivered",
            RetryDecision::Retry(_) => "pending",
            RetryDecision::Dead | RetryDecision::Disable => "dead",
        }
    }

    /// True if nothing was posted, as the body is gone: that says nothing about the receiver.
    fn is_body_gone(&self) -> bool {
        self.reply.outcome == AttemptOutcome::BodyGone
    }

    /// The outcome's label in totals and metrics; `None`: nothing was posted.
    fn outcome(&self) -> Option<&'static str> {
        match self.decision {
            _ if self.is_body_gone() => None,
            RetryDecision::Delivered => Some("delivered"),
            RetryDecision::Retry(_) => Some("failed"),
            RetryDecision::Dead => Some("dead"),
            RetryDecision::Disable => Some("disabled"),
        }
    }
}

/// A subscription that has only failed for this long is disabled, if in this time …
const GIVE_UP_AFTER: Duration = Duration::from_secs(5 * 24 * 60 * 60);
/// … there was also a delivery before the last day: those of one day are tried for about that long.
const LATELY: Duration = Duration::from_secs(24 * 60 * 60);

pub(super) struct AttemptRecorder {
    by_key: PreparedPool,
    shard: i16,
}

/// A subscription, and the URL that was posted to: tenant, id, URL.
type SubscriberAddress<'a> = (Uuid, Uuid, &'a str);

/// What the attempts of a group say about their subscriptions, where that is news. It counts only while the subscription has that URL.
type SubscriptionChanges<'a> = BTreeMap<SubscriberAddress<'a>, SubscriptionChange>;

#[derive(Debug, Clone, Copy, Default)]
struct SubscriptionChange {
    /// An attempt was answered with 2xx: nothing fails.
    has_answered: bool,
    /// The receiver answered 410.
    is_gone: bool,
}

#[derive(Debug)]
struct ChangedSubscription {
    url: String,
    failing_since: Option<DateTime<Utc>>,
    is_disabled: bool,
}

impl AttemptRecorder {
    pub fn new(by_key: PreparedPool) -> Self {
        Self { by_key, shard: random_shard() }
    }

    /// Records attempts in groups, however long that takes. Their deliveries are not attempted again here meanwhile. If the process ends
    /// first, another one attempts them again. A result that cannot be recorded does not affect the others: it is attempted again, too.
    pub async fn run(mut self, finished: mpsc::Receiver<FinishedAttempt>) {
        let mut groups = GroupCommitter::new(finished, Gathering { most: GROUP_MAX, busy: 0, window: GATHER });
        while let Some(group) = groups.next().await {
            commit_each(&mut self, &group).await;
            for attempt in group {
                attempt.endpoint.recorded(attempt.job.delivery_id);
            }
        }
    }

    async fn add_totals(&self, db: &mut PgConnection, group: &[FinishedAttempt]) -> sqlx::Result<()> {
        let mut totals: BTreeMap<&'static str, i64> = BTreeMap::new();
        for outcome in group.iter().filter_map(FinishedAttempt::outcome) {
            *totals.entry(outcome).or_default() += 1;
        }
        let (outcomes, counts): (Vec<&str>, Vec<i64>) = totals.into_iter().unzip();
        sqlx::query_file!("queries/totals.sql", &outcomes as &[&str], &counts, self.shard).execute(db).await.map(drop)
    }
}

impl Commit for AttemptRecorder {
    type Entry = FinishedAttempt;
    type Answer = ();
    const TASK: (&'static str, &'static str) = ("webhooks", "task");
    const RETRY: Option<Backoff> = Some(BACKOFF);

    async fn commit(&mut self, group: &[FinishedAttempt]) -> sqlx::Result<Vec<()>> {
        let mut tx = self.by_key.begin().await?;
        let changed = write_changes(&mut tx, &subscription_changes(group)).await?;
        let counted = counted(group, &changed);
        record_deliveries(&mut tx, &counted).await?;
        self.add_totals(&mut tx, &counted).await?;
        tx.commit().await?;
        for attempt in counted.iter() {
            match still_there(&changed, attempt) {
                Some(now) if now.is_disabled => attempt.endpoint.close(),
                Some(now) => attempt.endpoint.set_failing_since(now.failing_since),
                None => {}
            }
            let Some(outcome) = attempt.outcome() else { continue };
            Counter::WebhookAttemptsTotal.add(1, [("outcome", outcome)]);
            if let Some(code) = attempt.reply.error_code {
                Counter::WebhookFailuresTotal.add(1, [("reason", code)]);
            }
        }
        Ok(vec![(); group.len()])
    }
}

fn subscription_changes(group: &[FinishedAttempt]) -> SubscriptionChanges<'_> {
    let mut changes = SubscriptionChanges::new();
    let delivered = group.iter().filter(|attempt| attempt.decision == RetryDecision::Delivered);
    let answered: BTreeSet<SubscriberAddress<'_>> = delivered.map(FinishedAttempt::address).collect();
    let long_ago = Utc::now() - GIVE_UP_AFTER;
    for attempt in group {
        let address = attempt.address();
        let is_news = match (attempt.decision, attempt.endpoint.failing_since()) {
            (RetryDecision::Disable, _) => true,
            _ if attempt.is_body_gone() => false,
            (RetryDecision::Delivered, since) => since.is_some(),
            (RetryDecision::Retry(_) | RetryDecision::Dead, since) => {
                !answered.contains(&address) && since.is_none_or(|since| since < long_ago)
            }
        };
        if is_news {
            let change = changes.entry(address).or_default();
            change.has_answered |= attempt.decision == RetryDecision::Delivered;
            change.is_gone |= attempt.decision == RetryDecision::Disable;
        }
    }
    changes
}

async fn record_deliveries(db: &mut PgConnection, group: &[FinishedAttempt]) -> sqlx::Result<()> {
    sqlx::query_file!(
        "queries/record.sql",
        &column(group, |attempt| attempt.endpoint.tenant_id),
        &column(group, |attempt| attempt.endpoint.id),
        &column(group, |attempt| attempt.job.delivery_id),
        &column(group, |attempt| attempt.job.due_at),
        &column(group, |attempt| attempt.status().to_owned()),
        &column(group, |attempt| i16::try_from(attempt.job.attempt()).unwrap_or(i16::MAX)),
        &column(group, |attempt| match attempt.decision {
            RetryDecision::Retry(wait) => Some(wait.as_secs_f64()),
            RetryDecision::Delivered | RetryDecision::Dead | RetryDecision::Disable => None,
        }) as &[Option<f64>],
        &column(group, |attempt| attempt.reply.status_code.and_then(|code| i16::try_from(code).ok()))
            as &[Option<i16>],
        &column(group, |attempt| attempt.reply.error_code.map(str::to_owned)) as &[Option<String>],
        &column(group, |attempt| i32::try_from(attempt.reply.duration.as_millis()).unwrap_or(i32::MAX)),
        &column(group, |attempt| attempt.job.replayed)
    )
    .execute(db)
    .await
    .map(drop)
}

/// The attempts as they count: a 410 of an address that the subscription does not have any more is a failure, and the new address is next.
fn counted<'a>(group: &'a [FinishedAttempt], changed: &ChangedSubscriptions) -> Cow<'a, [FinishedAttempt]> {
    let is_outdated = |attempt: &FinishedAttempt| {
        attempt.decision == RetryDecision::Disable && still_there(changed, attempt).is_none()
    };
    let mut counted = Cow::Borrowed(group);
    for (position, _) in group.iter().enumerate().filter(|(_, attempt)| is_outdated(attempt)) {
        counted.to_mut()[position].decision = RetryDecision::Retry(Duration::ZERO);
    }
    counted
}

/// The changed subscriptions of a group, each with the URL that it has.
type ChangedSubscriptions = HashMap<(Uuid, Uuid), ChangedSubscription>;

/// The subscription of an attempt, if it was changed and still has the URL that was posted to.
fn still_there<'a>(changed: &'a ChangedSubscriptions, attempt: &FinishedAttempt) -> Option<&'a ChangedSubscription> {
    let (tenant, id, url) = attempt.address();
    changed.get(&(tenant, id)).filter(|now| now.url == url)
}

/// Writes the changes; mostly there are none. Locks the subscriptions' rows in the order of their ids. Returns those that still have
/// the URL that was posted to.
async fn write_changes(db: &mut PgConnection, changes: &SubscriptionChanges<'_>) -> sqlx::Result<ChangedSubscriptions> {
    if changes.is_empty() {
        return Ok(ChangedSubscriptions::new());
    }
    let rows = sqlx::query!(
        // Two failures with quiet weeks between them are no failing receiver: its count starts anew.
        r#"with locked as (
                 select s.tenant_id, s.id, s.status, w.fails, w.is_gone,
                        w.fails and s.failing_since < now() - make_interval(secs => $6) as is_long
                 from unnest($1::uuid[], $2::uuid[], $3::text[], $4::bool[], $5::bool[]) as w (tenant_id, id, url, fails, is_gone)
                 join webhook_subscriptions s on s.tenant_id = w.tenant_id and s.id = w.id and s.url = w.url
                 order by s.id
                 for no key update of s
             ), standing as materialized (
                 select l.*,
                        case when l.is_gone then 'gone'
                             when l.is_long and exists (
                                 select from webhook_deliveries d
                                 where d.tenant_id = l.tenant_id and d.subscription_id = l.id
                                   and d.created_at between now() - make_interval(secs => $6) and now() - make_interval(secs => $7)
                                 -- By the index of times, and not through all of the subscription's deliveries.
                                 order by d.created_at desc offset 0
                             ) then 'failing' end as reason
                 from locked l
             )
             update webhook_subscriptions s
             set failing_since = case when not n.fails then null
                                      when n.is_long and n.reason is null then now()
                                      else coalesce(s.failing_since, now()) end,
                 status = case when n.reason is null then s.status else 'disabled' end,
                 disabled_reason = coalesce(s.disabled_reason, n.reason),
                 disabled_at = case when n.reason is null then s.disabled_at else coalesce(s.disabled_at, now()) end,
                 updated_at = case when n.reason is null then s.updated_at else now() end
             from standing n
             where s.tenant_id = n.tenant_id and s.id = n.id
             returning s.tenant_id, s.id, s.url, s.failing_since, s.status = 'disabled' as "is_disabled!",
                       (n.reason is not null and n.status <> 'disabled') as "is_over!", s.disabled_reason"#,
        &column(changes, |((tenant, ..), _)| *tenant),
        &column(changes, |((_, id, _), _)| *id),
        &column(changes, |((.., url), _)| (*url).to_owned()),
        &column(changes, |(_, change)| !change.has_answered),
        &column(changes, |(_, change)| change.is_gone),
        GIVE_UP_AFTER.as_secs_f64(),
        LATELY.as_secs_f64()
    )
    .fetch_all(&mut *db)
    .await?;
    let disabled: Vec<AuditRecord<'_>> = rows
        .iter()
        .filter(|row| row.is_over)
        .map(|row| AuditRecord {
            tenant: Some(row.tenant_id),
            actor: "stage:webhooks",
            action: "webhook.disabled",
            subject: format!("webhook:{}", row.id),
            detail: json!({"reason": row.disabled_reason}),
            ..AuditRecord::default()
        })
        .collect();
    if !disabled.is_empty() {
        audit::write(db, &disabled).await?;
    }
    let changed = rows.into_iter().map(|row| {
        let now = ChangedSubscription { url: row.url, failing_since: row.failing_since, is_disabled: row.is_disabled };
        ((row.tenant_id, row.id), now)
    });
    Ok(changed.collect())
}

#[cfg(test)]
mod tests {
    use chrono::TimeDelta;
    use stage_rig::Rig;
    use tokio::time::Instant;
    use url::Url;

    use super::*;

    /// A delivery and the first attempt at it, which is not recorded.
    async fn attempted(rig: &Rig) -> FinishedAttempt {
        let target =
            DeliveryTarget { url: Url::parse("https://example.com/").unwrap(), secrets: Vec::new(), version: 0 };
        let tenant_id = rig.tenant().await.id;
        let endpoint = SubscriberEndpoint::new(tenant_id, Uuid::now_v7(), target.clone(), Instant::now(), None);
        let attempt = FinishedAttempt {
            endpoint: Arc::new(endpoint),
            target: Arc::new(target),
            job: DeliveryJob {
                delivery_id: Uuid::now_v7(),
                event_id: Uuid::now_v7(),
                event_type: "email.sent".to_owned(),
                attempts: 0,
                body: None,
                trace: None,
                due_at: DateTime::UNIX_EPOCH + TimeDelta::hours(1),
                made_at: DateTime::UNIX_EPOCH,
                replayed: 0,
            },
            decision: RetryDecision::Delivered,
            reply: AttemptResult {
                outcome: AttemptOutcome::Delivered,
                status_code: Some(200),
                error_code: None,
                duration: Duration::ZERO,
                is_silent: false,
            },
        };
        sqlx::query(
            "with d as (
                 insert into webhook_deliveries (tenant_id, id, subscription_id, product, event_id, type, next_attempt_at)
                 values ($1, $3, $2, 'crm', $3, 'email.sent', $4)
             )
             insert into webhook_queue (tenant_id, subscription_id, due_at, delivery_id) values ($1, $2, $4, $3)",
        )
        .bind(tenant_id)
        .bind(attempt.endpoint.id)
        .bind(attempt.job.delivery_id)
        .bind(attempt.job.due_at)
        .execute(&rig.pool)
        .await
        .unwrap();
        attempt
    }

    async fn record(by_key: &PreparedPool, attempt: &FinishedAttempt, decision: RetryDecision) {
        let attempt = FinishedAttempt { decision, ..attempt.clone() };
        let mut db = by_key.take().await.unwrap();
        record_deliveries(&mut db, &[attempt]).await.unwrap();
        db.put_back();
    }

    #[tokio::test]
    async fn what_arrived_is_delivered_though_the_attempt_was_repeated() {
        let rig = Rig::new().await;
        let by_key = PreparedPool::new(&rig.pool, 1);
        let waiting = "select count(*) from webhook_queue";
        let delivered = "select count(*) from webhook_deliveries
                         where status = 'delivered' and attempts = 1 and next_attempt_at is null and status_code = 200";
        for (repeated, waits) in [(RetryDecision::Retry(Duration::from_secs(60)), 1), (RetryDecision::Dead, 0)] {
            let attempt = attempted(&rig).await;
            // Another process had the lease meanwhile, and the receiver refused the event that it knew.
            record(&by_key, &attempt, repeated).await;
            assert_eq!(rig.number(waiting).await, waits);
            record(&by_key, &attempt, RetryDecision::Delivered).await;
            assert_eq!(rig.number(delivered).await, 1);
            let to_try = "select count(*) from webhook_queue q join webhook_deliveries d on d.id = q.delivery_id
                          where d.status = 'pending' and d.next_attempt_at = q.due_at";
            assert_eq!(rig.number(to_try).await, 0, "an entry that is left is an orphan");
            // And not the other way round.
            record(&by_key, &attempt, repeated).await;
            assert_eq!(rig.number(delivered).await, 1);
            for table in ["webhook_deliveries", "webhook_queue"] {
                sqlx::query(sqlx::AssertSqlSafe(format!("delete from {table}"))).execute(&rig.pool).await.unwrap();
            }
        }
    }

    #[tokio::test]
    async fn an_attempt_from_before_a_replay_ends_nothing() {
        let rig = Rig::new().await;
        let by_key = PreparedPool::new(&rig.pool, 1);
        let attempt = attempted(&rig).await;
        sqlx::query("update webhook_deliveries set replayed = 1, next_attempt_at = now()")
            .execute(&rig.pool)
            .await
            .unwrap();
        for decision in [RetryDecision::Dead, RetryDecision::Delivered] {
            record(&by_key, &attempt, decision).await;
            let pending = "select count(*) from webhook_deliveries where status = 'pending' and attempts = 0";
            assert_eq!(rig.number(pending).await, 1);
        }
    }
}
