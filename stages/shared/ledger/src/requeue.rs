//! Requeue: makes batches and requests due at once. The audience stage's sweeps announce them within a second.

use schemas::SendId;
use serde::Serialize;
use sqlx::{PgConnection, PgPool};
use uuid::Uuid;

use crate::decide::OperatorOutcome;

/// What an operator requeues.
#[derive(Debug, Clone, Copy)]
pub struct RequeueScope {
    /// The tenant.
    pub tenant: Uuid,
    /// What of it.
    pub work: RequeuedWork,
}

/// A batch, a send or a campaign, by its id.
#[derive(Debug, Clone, Copy)]
pub enum RequeuedWork {
    /// One batch.
    Batch(Uuid),
    /// One send, or the request that it will come from.
    Send(Uuid),
    /// All batches of a campaign.
    Campaign(Uuid),
}

impl RequeueScope {
    /// Name and id, for the audit log.
    #[must_use]
    pub fn subject(&self) -> String {
        match self.work {
            RequeuedWork::Batch(id) => format!("batch {id}"),
            RequeuedWork::Send(id) => format!("send {id}"),
            RequeuedWork::Campaign(id) => format!("campaign {id}"),
        }
    }

    /// The campaign, if all its batches are in scope; or the one batch.
    fn batches(&self) -> (Option<Uuid>, Option<Uuid>) {
        match self.work {
            RequeuedWork::Batch(id) | RequeuedWork::Send(id) => (None, Some(SendId(id).batch())),
            RequeuedWork::Campaign(id) => (Some(id), None),
        }
    }

    /// The send, if only one is in scope.
    fn send(&self) -> Option<Uuid> {
        match self.work {
            RequeuedWork::Send(id) => Some(id),
            RequeuedWork::Batch(_) | RequeuedWork::Campaign(_) => None,
        }
    }
}

/// The result of a requeue: what is due at once, and what is not.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Requeued {
    /// Batches that will be announced within a second.
    pub batches: u64,
    /// Requests that will be announced within a second.
    pub requests: u64,
    /// Deferred sends that will be tried now.
    pub forward: u64,
    /// Open batches and requests that were left alone, by reason.
    pub not_requeued: NotRequeued,
}

/// Open batches, and requests that become batches, that an announcement does not help, by reason.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct NotRequeued {
    /// Their campaign or their tenant is paused.
    pub paused: i64,
    /// They wait for dispatch.
    pub waiting: i64,
    /// They wait for the winner of an A/B test.
    pub held: i64,
    /// All that is open is fenced.
    pub in_progress: i64,
    /// All that is open is deferred to later.
    pub deferred: i64,
    /// Requests whose sends are not written yet: they wait for their time.
    pub scheduled: i64,
    /// Requests that are due and whose sends are not written yet: they wait for the audience stage, a launch also for an earlier one.
    pub unwritten: i64,
    /// Rejected requests whose attachments were purged, and one-off messages of that age: they would leave without their files.
    pub purged: i64,
}

impl Requeued {
    /// What was done, in one line for the operator.
    pub fn summary(&self, decided: u64, outcome: Option<OperatorOutcome>, unknown_sends: u64) -> String {
        let mut parts = Vec::new();
        let mut add = |count: u64, what: &str| {
            if count > 0 {
                parts.push(format!("{count} {what}"));
            }
        };
        add(self.batches, "batch(es) announced again");
        add(self.requests, "request(s) announced again");
        add(self.forward, "deferred send(s) brought forward");
        add(decided, &format!("unknown send(s) decided as {}", outcome.map_or("", OperatorOutcome::as_str)));
        let count = |left: i64| u64::try_from(left).unwrap_or(0);
        add(count(self.not_requeued.paused), "batch(es) paused: `postrider pause list`");
        add(count(self.not_requeued.waiting), "batch(es) waiting for dispatch or for their time");
        add(count(self.not_requeued.held), "batch(es) waiting for the winner of an A/B test");
        add(count(self.not_requeued.in_progress), "batch(es) in progress");
        add(count(self.not_requeued.deferred), "batch(es) deferred to later: `--now` tries them at once");
        add(count(self.not_requeued.scheduled), "request(s) waiting for their time: their sends are not written yet");
        add(
            count(self.not_requeued.unwritten),
            "request(s) waiting for the audience stage or an earlier launch: their sends are not written yet",
        );
        add(
            count(self.not_requeued.purged),
            "rejected request(s) whose attachments, if they had any, were purged: send them anew",
        );
        add(unknown_sends, "send(s) still unknown: they may have arrived; `--unknown-as sent|failed` decides them");
        if parts.is_empty() { "nothing is owed".to_owned() } else { parts.join("; ") }
    }
}

/// Makes the open batches and requests of a scope due at once; `now` also brings deferred sends forward.
pub async fn requeue(pool: &PgPool, scope: &RequeueScope, now: bool) -> sqlx::Result<Requeued> {
    let mut tx = pool.begin().await?;
    let (campaign, batch) = scope.batches();
    let tenant = scope.tenant;
    let requests = requeue_requests(&mut tx, scope).await?;
    // Lock order of the ledger: batches before sends, by id. Later statements read what is locked.
    let batches = sqlx::query_scalar!(
        "select id from batches
         where tenant_id = $1 and ($2::uuid is null or campaign_id = $2) and ($3::uuid is null or id = $3) and state <> 'done'
         order by id for no key update",
        tenant,
        campaign,
        batch,
    )
    .fetch_all(&mut *tx)
    .await?;
    let forward = if now { bring_forward(&mut tx, tenant, &batches, scope.send()).await? } else { 0 };
    let not_requeued = count_not_requeued(&mut tx, scope, &batches).await?;
    let requeued = sqlx::query!(
        "update batches b set announce_after = now(), quiet_at = least(b.quiet_at, now())
         from batches w
         join tenants t on t.id = w.tenant_id
         left join campaigns c on c.tenant_id = w.tenant_id and c.id = w.campaign_id
         where w.tenant_id = $1 and w.id = any($2) and b.tenant_id = w.tenant_id and b.id = w.id
           and t.paused_at is null and coalesce(not c.paused and c.status = 'sending', true)
           and (b.state = 'announced' and b.queued + b.deferred > 0
                or b.state in ('resting', 'timed') and b.announce_after <= now())",
        tenant,
        &batches,
    )
    .execute(&mut *tx)
    .await?
    .rows_affected();
    tx.commit().await?;
    Ok(Requeued { batches: requeued, requests, forward, not_requeued })
}

/// Makes requests due that were accepted and not handled: a campaign's launch, or the requests of a batch, which become sends together. And
/// those that the audience stage rejected: a launch goes on where it ended; a batch is written as if its requests had just been accepted,
/// unless its attachments were purged.
async fn requeue_requests(db: &mut PgConnection, scope: &RequeueScope) -> sqlx::Result<u64> {
    let (campaign, batch) = scope.batches();
    let launch_of = campaign.map(|id| id.to_string());
    sqlx::query!(
        "update requests r set state = 'accepted', outcome = null, handled_at = null, announce_after = now()
         where r.tenant_id = $1
           and (r.state = 'accepted' and r.announce_after > now() and r.announcements > 0
                or r.state = 'rejected' and r.kind = 'campaign-launch' and exists (
                    select from campaigns c
                    where c.tenant_id = r.tenant_id and c.id::text = r.payload ->> 'campaign_id'
                      and c.status in ('scheduled', 'sending') and c.materialized_at is null)
                or r.state = 'rejected' and r.kind in ('transactional', 'message')
                   and r.outcome not in ('cancelled', 'contact_erased') and not r.payload ? 'erased'
                   and not exists (select from batches b where b.tenant_id = r.tenant_id and b.id = $2)
                   and not exists (select from messages m where m.tenant_id = r.tenant_id and m.id = r.id and m.purged_at is not null)
                   and (not coalesce((r.options ->> 'has_attachments')::boolean, false)
                        or exists (select from message_attachments a where a.tenant_id = r.tenant_id and a.message_id = r.id)))
           and (r.id between $2 and last_id_of($2) or r.kind = 'campaign-launch' and r.payload ->> 'campaign_id' = $3)",
        scope.tenant,
        batch,
        launch_of,
    )
    .execute(db)
    .await
    .map(|done| done.rows_affected())
}

/// Makes deferred sends due.
async fn bring_forward(db: &mut PgConnection, tenant: Uuid, batches: &[Uuid], only: Option<Uuid>) -> sqlx::Result<u64> {
    let moved = sqlx::query!(
        "with late as (
             select s.id, s.month
             from batches b
             cross join lateral (
                 select s.id, s.month from sends s
                 where s.tenant_id = $1 and s.id between b.id and last_id_of(b.id) and s.month = b.month and s.state = 'deferred'
                   and s.next_attempt_at > now() and ($3::uuid is null or s.id = $3)
                 order by s.id
                 for update
             ) s
             where b.tenant_id = $1 and b.id = any($2)
         )
         update sends s set next_attempt_at = now()
         from late l
         where s.tenant_id = $1 and s.id = l.id and s.month = l.month",
        tenant,
        batches,
        only,
    )
    .execute(&mut *db)
    .await?
    .rows_affected();
    sqlx::query!(
        "update batches b set announce_after = now()
         where b.tenant_id = $1 and b.id = any($2) and b.state = 'resting'
           and exists (select from sends s
                       where s.tenant_id = b.tenant_id and s.month = b.month and s.state = 'deferred' and s.next_attempt_at <= now()
                         and s.id between b.id and last_id_of(b.id)
                       offset 0)",
        tenant,
        batches,
    )
    .execute(db)
    .await?;
    Ok(moved)
}

/// Counts the open batches and the requests that are not announced again, by reason.
async fn count_not_requeued(
    db: &mut PgConnection,
    scope: &RequeueScope,
    batches: &[Uuid],
) -> sqlx::Result<NotRequeued> {
    let (campaign, batch) = scope.batches();
    sqlx::query_as!(
        NotRequeued,
        // A request that was made due in this transaction is announced now.
        r#"with accepted as (
               select r.due_at from requests r
               where r.tenant_id = $1 and r.state = 'accepted' and r.announce_after <> now()
                 and (r.id between $3 and last_id_of($3) or r.kind = 'campaign-launch' and r.payload ->> 'campaign_id' = $4)
           )
           select count(*) filter (where r.is_paused) as "paused!",
                  count(*) filter (where not r.is_paused and r.state in ('waiting', 'timed')) as "waiting!",
                  count(*) filter (where not r.is_paused and r.state = 'held') as "held!",
                  count(*) filter (where not r.is_paused and r.state = 'announced' and r.queued + r.deferred = 0) as "in_progress!",
                  count(*) filter (where not r.is_paused and r.state = 'resting' and r.announce_after > now()) as "deferred!",
                  (select count(*) from accepted a where a.due_at > now()) as "scheduled!",
                  (select count(*) from accepted a where a.due_at <= now()) as "unwritten!",
                  (select count(*) from requests r
                   left join messages m on m.tenant_id = r.tenant_id and m.id = r.id
                   where r.tenant_id = $1 and r.id between $3 and last_id_of($3) and r.state = 'rejected'
                     and r.kind in ('transactional', 'message') and r.outcome not in ('cancelled', 'contact_erased')
                     and not r.payload ? 'erased'
                     and (m.purged_at is not null
                          or (r.options ->> 'has_attachments')::boolean
                             and not exists (select from message_attachments a
                                             where a.tenant_id = r.tenant_id and a.message_id = r.id))) as "purged!"
           from (
               select b.*, t.paused_at is not null or coalesce(c.paused, false) as is_paused
               from batches b
               join tenants t on t.id = b.tenant_id
               left join campaigns c on c.tenant_id = b.tenant_id and c.id = b.campaign_id
               where b.tenant_id = $1 and b.id = any($2)
           ) r"#,
        scope.tenant,
        batches,
        batch,
        campaign.map(|id| id.to_string()),
    )
    .fetch_one(db)
    .await
}

/// The sends in state `unknown`, each with its tenant.
pub async fn unknown_sends(pool: &PgPool, scope: &RequeueScope) -> sqlx::Result<Vec<(Uuid, Uuid)>> {
    let (campaign, batch) = scope.batches();
    let sends = sqlx::query_scalar!(
        "select s.id
         from batches b
         cross join lateral (
             select s.id from sends s
             where s.tenant_id = $1 and s.id between b.id and last_id_of(b.id) and s.month = b.month and s.state = 'unknown'
               and ($4::uuid is null or s.id = $4)
             offset 0
         ) s
         where b.tenant_id = $1 and ($2::uuid is null or b.campaign_id = $2) and ($3::uuid is null or b.id = $3) and b.unknown > 0
         order by s.id",
        scope.tenant,
        campaign,
        batch,
        scope.send(),
    )
    .fetch_all(pool)
    .await?;
    Ok(sends.into_iter().map(|send| (scope.tenant, send)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_names_what_was_done_and_what_was_not() {
        let nothing = Requeued::default();
        assert_eq!(nothing.summary(0, None, 0), "nothing is owed");
        let not_requeued = NotRequeued { paused: 2, scheduled: 5, ..NotRequeued::default() };
        let requeued = Requeued { batches: 3, not_requeued, ..Requeued::default() };
        let summary = requeued.summary(1, Some(OperatorOutcome::Sent), 4);
        for part in [
            "3 batch(es) announced again",
            "1 unknown send(s) decided as sent",
            "2 batch(es) paused",
            "5 request(s) waiting for their time",
            "4 send(s) still unknown",
        ] {
            assert!(summary.contains(part), "{summary}");
        }
    }
}
