//! Ringing: batches and requests become due at once, and the audience stage's sweeps announce them within a second.

mod scope;

use schemas::SendId;
use serde::Serialize;
use sqlx::{PgConnection, PgPool};
use uuid::Uuid;

pub use self::scope::{Scope, in_doubt};
use crate::decide::Outcome;

/// What was rung for, and what was left alone.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rung {
    /// Batches that will be announced within a second.
    pub batches: u64,
    /// Requests that will be.
    pub requests: u64,
    /// Deferred sends that will be tried now.
    pub forward: u64,
    /// Batches that are open and were left alone, by why.
    pub left: Left,
}

/// Open batches that ringing does not help.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Left {
    /// Their campaign or their tenant is paused.
    pub paused: i64,
    /// They wait for their turn to be handed on.
    pub waiting: i64,
    /// They wait for the winner of an A/B test.
    pub held: i64,
    /// Somebody has all that is open in hand.
    pub in_hand: i64,
    /// All that is open is deferred to later.
    pub deferred: i64,
}

impl Rung {
    /// What was done, in words.
    pub fn words(&self, decided: u64, outcome: Option<Outcome>, in_doubt: u64) -> String {
        let mut said = Vec::new();
        let mut say = |count: u64, words: &str| {
            if count > 0 {
                said.push(format!("{count} {words}"));
            }
        };
        say(self.batches, "batch(es) rung for");
        say(self.requests, "request(s) rung for");
        say(self.forward, "deferred send(s) brought forward");
        say(decided, &format!("send(s) in doubt decided as {}", outcome.map_or("", Outcome::as_str)));
        let left = |count: i64| u64::try_from(count).unwrap_or(0);
        say(left(self.left.paused), "batch(es) paused: `postrider pause list`");
        say(left(self.left.waiting), "batch(es) waiting for their turn");
        say(left(self.left.held), "batch(es) waiting for the winner of an A/B test");
        say(left(self.left.in_hand), "batch(es) in hand");
        say(left(self.left.deferred), "batch(es) deferred to later: `--now` tries them at once");
        say(in_doubt, "send(s) in doubt left so: they may have arrived; `--unknown-as sent|failed` decides them");
        if said.is_empty() { "nothing is owed".to_owned() } else { said.join("; ") }
    }
}

/// Rings for what is open.
pub async fn ring(pool: &PgPool, scope: &Scope, now: bool) -> sqlx::Result<Rung> {
    let mut tx = pool.begin().await?;
    let (campaign, batch) = scope.batches();
    let tenant = scope.tenant();
    let requests = ring_requests(&mut tx, scope).await?;
    // Batches before sends, in their order: as everybody locks them. What is locked is looked at in later statements.
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
    let left = leave(&mut tx, tenant, &batches).await?;
    let rung = sqlx::query!(
        "update batches b set announce_after = now()
         from batches w
         join tenants t on t.id = w.tenant_id
         left join campaigns c on c.tenant_id = w.tenant_id and c.id = w.campaign_id
         where w.tenant_id = $1 and w.id = any($2) and b.tenant_id = w.tenant_id and b.id = w.id
           and t.paused_at is null and coalesce(not c.paused and c.status = 'sending', true)
           and (b.state = 'announced' and b.queued + b.deferred > 0
                or b.state = 'resting' and b.announce_after <= now())",
        tenant,
        &batches,
    )
    .execute(&mut *tx)
    .await?
    .rows_affected();
    tx.commit().await?;
    Ok(Rung { batches: rung, requests, forward, left })
}

/// Requests that were accepted and not handled: a campaign's launch, or what the send will come from.
async fn ring_requests(db: &mut PgConnection, scope: &Scope) -> sqlx::Result<u64> {
    let (launch_of, id) = match scope {
        Scope::Campaign { id, .. } => (Some(id.to_string()), None),
        Scope::Send { id, .. } => (None, Some(*id)),
        Scope::Batch { id, .. } => (None, Some(*id)),
    };
    sqlx::query!(
        "update requests r set announce_after = now()
         where r.tenant_id = $1 and r.state = 'accepted' and r.announce_after > now() and r.announcements > 0
           and (r.id = $2 or r.kind = 'campaign-launch' and r.payload ->> 'campaign_id' = $3)",
        scope.tenant(),
        id,
        launch_of,
    )
    .execute(db)
    .await
    .map(|done| done.rows_affected())
}

/// Deferred sends become due.
async fn bring_forward(db: &mut PgConnection, tenant: Uuid, batches: &[Uuid], only: Option<Uuid>) -> sqlx::Result<u64> {
    let last: Vec<Uuid> = batches.iter().map(|batch| SendId::last_of(*batch)).collect();
    let months: Vec<_> = batches.iter().map(|batch| schemas::month_of(*batch)).collect();
    let moved = sqlx::query!(
        "update sends s set next_attempt_at = now()
         from unnest($2::uuid[], $3::uuid[], $4::date[]) as w (first, last, month)
         where s.tenant_id = $1 and s.id between w.first and w.last and s.month = w.month and s.state = 'deferred'
           and s.next_attempt_at > now() and ($5::uuid is null or s.id = $5)",
        tenant,
        batches,
        &last,
        &months,
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
                         and s.id between b.id and (left(b.id::text, 33) || lpad(to_hex(('x' || right(b.id::text, 3))::bit(12)::integer | 511), 3, '0'))::uuid)",
        tenant,
        batches,
    )
    .execute(db)
    .await?;
    Ok(moved)
}

/// What is open and will not be rung for.
async fn leave(db: &mut PgConnection, tenant: Uuid, batches: &[Uuid]) -> sqlx::Result<Left> {
    sqlx::query_as!(
        Left,
        r#"select count(*) filter (where r.is_paused) as "paused!",
                  count(*) filter (where not r.is_paused and r.state = 'waiting') as "waiting!",
                  count(*) filter (where not r.is_paused and r.state = 'held') as "held!",
                  count(*) filter (where not r.is_paused and r.state = 'announced' and r.queued + r.deferred = 0) as "in_hand!",
                  count(*) filter (where not r.is_paused and r.state = 'resting' and r.announce_after > now()) as "deferred!"
           from (
               select b.*, t.paused_at is not null or coalesce(c.paused, false) as is_paused
               from batches b
               join tenants t on t.id = b.tenant_id
               left join campaigns c on c.tenant_id = b.tenant_id and c.id = b.campaign_id
               where b.tenant_id = $1 and b.id = any($2)
           ) r"#,
        tenant,
        batches,
    )
    .fetch_one(db)
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_says_what_was_done_and_what_was_not() {
        let nothing = Rung::default();
        assert_eq!(nothing.words(0, None, 0), "nothing is owed");
        let left = Left { paused: 2, ..Left::default() };
        let rung = Rung { batches: 3, left, ..Rung::default() };
        let words = rung.words(1, Some(Outcome::Sent), 4);
        for part in [
            "3 batch(es) rung for",
            "1 send(s) in doubt decided as sent",
            "2 batch(es) paused",
            "4 send(s) in doubt left so",
        ] {
            assert!(words.contains(part), "{words}");
        }
    }
}
