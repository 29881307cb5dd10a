//! What became of attempts, into the ledger: in groups, one transaction each.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use chrono::{DateTime, Utc};
use runtime::{Backoff, Commit, Counter, Gathering, GroupCommitter, commit_each, plans::PreparedPool};
use schemas::new_id;
use sqlx::PgConnection;
use tokio::sync::mpsc;
use uuid::Uuid;

use super::{endpoint::Endpoint, schedule::Verdict};

/// The most attempts one transaction records.
const GROUP_MAX: usize = 500;
/// How long results are gathered: nobody waits for them, and one transaction for many costs who does wait less than one for each.
const GATHER: Duration = Duration::from_millis(20);
/// The pauses while Postgres is away.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(2));
/// Rows an hour's total is spread over.
const SHARDS: u8 = 16;

/// An attempt and its verdict.
#[derive(Debug)]
pub(super) struct Tried {
    pub endpoint: Arc<Endpoint>,
    pub delivery_id: Uuid,
    pub due_at: DateTime<Utc>,
    /// Its number, from 1.
    pub attempt: u16,
    pub verdict: Verdict,
    pub status_code: Option<u16>,
    pub error_code: Option<&'static str>,
    pub duration: Duration,
}

impl Tried {
    fn status(&self) -> &'static str {
        match self.verdict {
            Verdict::Delivered => "delivered",
            Verdict::Again(_) => "pending",
            Verdict::Dead | Verdict::Disable => "dead",
        }
    }

    /// The word in totals and metrics.
    fn outcome(&self) -> &'static str {
        match self.verdict {
            Verdict::Delivered => "delivered",
            Verdict::Again(_) => "failed",
            Verdict::Dead => "dead",
            Verdict::Disable => "disabled",
        }
    }
}

/// Records what comes, until nobody is left to send anything.
pub(super) struct Recorder {
    by_key: PreparedPool,
    give_up_after: Duration,
    shard: i16,
}

/// What a group means for its subscriptions.
#[derive(Debug, Default)]
struct Standing {
    /// They answered after they had failed.
    recovered: BTreeSet<Uuid>,
    /// They failed, and had not before.
    failing: BTreeSet<Uuid>,
    /// They want no more.
    gone: BTreeSet<Uuid>,
    /// They have failed for so long that they are given up.
    given_up: BTreeSet<Uuid>,
}

impl Recorder {
    pub fn new(by_key: PreparedPool, give_up_after: Duration) -> Self {
        Self { by_key, give_up_after, shard: i16::from(rand::random::<u8>() % SHARDS) }
    }

    /// Until it is recorded an attempt is held, and not made again here. Should this process end first, another one makes it again. One that
    /// cannot be recorded costs itself only: it is made again, too.
    pub async fn run(mut self, tried: mpsc::Receiver<Tried>) {
        let mut groups = GroupCommitter::new(tried, Gathering { most: GROUP_MAX, busy: 0, window: GATHER });
        while let Some(group) = groups.next().await {
            commit_each(&mut self, &group).await;
            for tried in group {
                tried.endpoint.recorded(tried.delivery_id);
            }
        }
    }

    async fn record(&self, group: &[Tried]) -> sqlx::Result<()> {
        let standing = self.standing(group);
        let mut tx = self.by_key.begin().await?;
        record_deliveries(&mut tx, group).await?;
        self.add_totals(&mut tx, group).await?;
        standing.write(&mut tx, group).await?;
        tx.commit().await?;
        standing.tell(group);
        count(group);
        Ok(())
    }

    fn standing(&self, group: &[Tried]) -> Standing {
        let mut standing = Standing::default();
        let answered: BTreeSet<Uuid> =
            group.iter().filter(|tried| tried.verdict == Verdict::Delivered).map(|tried| tried.endpoint.id).collect();
        let long_ago = Utc::now() - self.give_up_after;
        for tried in group {
            let id = tried.endpoint.id;
            match (tried.verdict, tried.endpoint.failing_since()) {
                (Verdict::Disable, _) => drop(standing.gone.insert(id)),
                (Verdict::Delivered, Some(_)) => drop(standing.recovered.insert(id)),
                (Verdict::Delivered, None) => {}
                (Verdict::Again(_) | Verdict::Dead, _) if answered.contains(&id) => {}
                (Verdict::Again(_) | Verdict::Dead, None) => drop(standing.failing.insert(id)),
                (Verdict::Again(_) | Verdict::Dead, Some(since)) if since < long_ago => {
                    standing.given_up.insert(id);
                }
                (Verdict::Again(_) | Verdict::Dead, Some(_)) => {}
            }
        }
        standing
    }

    async fn add_totals(&self, db: &mut PgConnection, group: &[Tried]) -> sqlx::Result<()> {
        let mut totals: BTreeMap<&'static str, i64> = BTreeMap::new();
        for tried in group {
            *totals.entry(tried.outcome()).or_default() += 1;
        }
        let (outcomes, counts): (Vec<String>, Vec<i64>) =
            totals.into_iter().map(|(outcome, count)| (outcome.to_owned(), count)).unzip();
        sqlx::query_file!("queries/totals.sql", &outcomes, &counts, self.shard).execute(db).await.map(drop)
    }
}

impl Commit for Recorder {
    type Entry = Tried;
    type Answer = ();
    const TASK: (&'static str, &'static str) = ("webhooks", "task");
    const RETRY: Option<Backoff> = Some(BACKOFF);

    async fn commit(&mut self, group: &[Tried]) -> sqlx::Result<Vec<()>> {
        self.record(group).await.map(|()| vec![(); group.len()])
    }
}

async fn record_deliveries(db: &mut PgConnection, group: &[Tried]) -> sqlx::Result<()> {
    let column = |of: fn(&Tried) -> Uuid| -> Vec<Uuid> { group.iter().map(of).collect() };
    let due: Vec<DateTime<Utc>> = group.iter().map(|tried| tried.due_at).collect();
    let statuses: Vec<String> = group.iter().map(|tried| tried.status().to_owned()).collect();
    let attempts: Vec<i16> = group.iter().map(|tried| i16::try_from(tried.attempt).unwrap_or(i16::MAX)).collect();
    let waits: Vec<Option<f64>> = group
        .iter()
        .map(|tried| match tried.verdict {
            Verdict::Again(wait) => Some(wait.as_secs_f64()),
            Verdict::Delivered | Verdict::Dead | Verdict::Disable => None,
        })
        .collect();
    let codes: Vec<Option<i16>> =
        group.iter().map(|tried| tried.status_code.and_then(|code| i16::try_from(code).ok())).collect();
    let errors: Vec<Option<String>> = group.iter().map(|tried| tried.error_code.map(str::to_owned)).collect();
    let durations: Vec<i32> =
        group.iter().map(|tried| i32::try_from(tried.duration.as_millis()).unwrap_or(i32::MAX)).collect();
    sqlx::query_file!(
        "queries/record.sql",
        &column(|tried| tried.endpoint.tenant_id),
        &column(|tried| tried.endpoint.id),
        &column(|tried| tried.delivery_id),
        &due,
        &statuses,
        &attempts,
        &waits as &[Option<f64>],
        &codes as &[Option<i16>],
        &errors as &[Option<String>],
        &durations
    )
    .fetch_one(db)
    .await
    .map(drop)
}

impl Standing {
    /// Writes what has changed; mostly nothing has. The subscriptions' rows are locked in the order of their ids.
    async fn write(&self, db: &mut PgConnection, group: &[Tried]) -> sqlx::Result<()> {
        let tenant_of =
            |id: &Uuid| group.iter().find(|tried| tried.endpoint.id == *id).map(|tried| tried.endpoint.tenant_id);
        let columns = |ids: &BTreeSet<Uuid>| -> (Vec<Uuid>, Vec<Uuid>) {
            ids.iter().filter_map(|id| Some((tenant_of(id)?, *id))).unzip()
        };
        let changed: BTreeSet<Uuid> =
            [&self.recovered, &self.failing, &self.gone, &self.given_up].into_iter().flatten().copied().collect();
        if changed.is_empty() {
            return Ok(());
        }
        let (tenants, ids) = columns(&changed);
        let failing: Vec<bool> = ids.iter().map(|id| !self.recovered.contains(id)).collect();
        let reasons: Vec<Option<String>> = ids.iter().map(|id| self.reason(id).map(str::to_owned)).collect();
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
            &failing,
            &reasons as &[Option<String>]
        )
        .fetch_all(&mut *db)
        .await?;
        for row in disabled.into_iter().filter(|row| row.is_over) {
            audit(db, row.tenant_id, row.id, row.disabled_reason.as_deref()).await?;
        }
        Ok(())
    }

    fn reason(&self, id: &Uuid) -> Option<&'static str> {
        match (self.gone.contains(id), self.given_up.contains(id)) {
            (true, _) => Some("gone"),
            (false, true) => Some("failing"),
            (false, false) => None,
        }
    }

    /// Tells the endpoints, once it is committed.
    fn tell(&self, group: &[Tried]) {
        for Tried { endpoint, .. } in group {
            if self.reason(&endpoint.id).is_some() {
                endpoint.close();
            } else if self.recovered.contains(&endpoint.id) {
                endpoint.fails_since(None);
            } else if self.failing.contains(&endpoint.id) && endpoint.failing_since().is_none() {
                endpoint.fails_since(Some(Utc::now()));
            }
        }
    }
}

/// The engine itself has switched a subscription off: its owner finds out why.
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

fn count(group: &[Tried]) {
    for tried in group {
        Counter::WebhookAttemptsTotal.add(1, [("outcome", tried.outcome())]);
        if let Some(code) = tried.error_code {
            Counter::WebhookFailuresTotal.add(1, [("reason", code)]);
        }
    }
}
