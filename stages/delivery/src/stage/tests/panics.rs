//! Panics cost what they must: one result of a writer's group, one call of a handler.

use std::time::Duration;

use schemas::SendState;
use stage_rig::until;
use uuid::Uuid;

use ledger::{
    claim,
    fence::{Answer, Change, ClaimedSend, Fence, Ledger, POISON},
    warmup::WarmupPermits,
};

use super::world::{Batch, Handle, World, row};

/// Claims all sends of these batches under the ledger's session.
async fn claim_all(world: &World, ledger: &Ledger, batches: &[&Batch]) -> Vec<ClaimedSend> {
    let inputs: Vec<_> = batches.iter().map(|batch| batch.rendered.clone()).collect();
    let plans = runtime::plans::PreparedPool::new(&world.pool, 1);
    let held = (ledger.session().token(), Duration::from_secs(300));
    let claimed = claim::claim(&plans, &inputs, held, &WarmupPermits::default()).await.unwrap();
    claimed.sendable.into_iter().map(|sendable| sendable.send).collect()
}

fn refused(send: &ClaimedSend, code: i16) -> Change {
    let answer = Answer { code: Some(code), ..Answer::default() };
    Change::failed(send.clone(), SendState::Claimed, "content", answer, None)
}

/// The panics of ledger writers this process has counted.
fn counted(metrics: &str) -> u64 {
    let is_writers = |line: &&str| line.starts_with("mail_panics_total{") && line.contains("ledger_writer");
    let count = metrics.lines().find(is_writers).and_then(|line| line.rsplit_once(' '));
    count.map_or(0, |(_, count)| count.parse().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ledger_writer_panic_costs_only_its_own_result() {
    let metrics = runtime::metric::start("delivery", true).unwrap();
    let world = World::new().await;
    let (_, batch) = world.campaign_batch(&["a@example.com", "b@example.com", "c@example.com", "d@example.com"]).await;
    let (_, first) = world.campaign_batch(&["first@example.com"]).await;
    let ledger = Ledger::start(&world.pool, world.settings(&[]).ledger()).unwrap();
    let sends = claim_all(&world, &ledger, &[&batch, &first]).await;
    let of = |batch: &Batch, ordinal: u16| sends.iter().find(|send| send.id == batch.send(ordinal)).unwrap();

    // While its first group waits for a row, the others gather to one group.
    let mut holder = world.pool.begin().await.unwrap();
    sqlx::query("select from batches where id = $1 for update").bind(first.id).execute(&mut *holder).await.unwrap();
    let before = ledger.record(refused(of(&first, 0), 550)).await;
    until("the writer waits", async || {
        let waits = "select exists (select from pg_locks l join pg_stat_activity a using (pid)
                                    where a.datname = current_database() and not l.granted)";
        sqlx::query_scalar::<_, bool>(waits).fetch_one(&world.pool).await.unwrap()
    })
    .await;
    let mut fence = Box::pin(ledger.fence(of(&batch, 0).clone()));
    assert!(futures::poll!(&mut fence).is_pending());
    let good = ledger.record(refused(of(&batch, 1), 550)).await;
    let poisonous = ledger.record(refused(of(&batch, 2), POISON)).await;
    let also_good = ledger.record(refused(of(&batch, 3), 550)).await;
    holder.rollback().await.unwrap();

    before.await.unwrap();
    assert_eq!(fence.await, Fence::Failed, "nothing leaves under a fence nobody knows of");
    good.await.unwrap();
    also_good.await.unwrap();
    assert!(poisonous.await.unwrap_err().is_transient());
    assert_eq!(world.states(&batch).await, ["claimed", "failed", "claimed", "failed"]);
    world.assert_counters_are_right().await;
    // With the fence, among the results, and alone.
    assert_eq!(counted(&metrics.render()), 3);

    // The writer goes on, also with what the panic put off.
    ledger.record(Change::released(of(&batch, 0).clone(), SendState::Claimed, Duration::ZERO)).await.await.unwrap();
    assert_eq!(world.states(&batch).await, ["queued", "failed", "claimed", "failed"]);
    world.assert_counters_are_right().await;
    assert_eq!(counted(&metrics.render()), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_handler_had_claimed_that_panics_is_owed_again_at_once() {
    let world = World::new().await;
    let poison = format!("reject-{POISON}@example.com");
    let (_, batch) = world.campaign_batch(&["slow-rcpt-240s@example.com", &poison]).await;
    let (_, other) = world.campaign_batch(&["ann@example.com"]).await;
    let planned = "select extract(epoch from max(announce_after) - now())::int8 from batches where tenant_id = $1";
    let stage = world.stage_with(&["--smtp-command-timeout", "300s", "--smtp-final-timeout", "10m"]);
    assert_eq!(stage.deliver(&[&batch]).await.unwrap_err().code(), "panicked");
    assert_eq!(world.states(&batch).await, ["queued", "queued"]);
    assert!(world.number(planned).await > 30, "a message that makes its handler panic each time must not go round");
    world.assert_counters_are_right().await;
    // The stage goes on: the next attempt claims them anew, and other mail is sent.
    assert_eq!(stage.deliver(&[&batch]).await.unwrap_err().code(), "panicked");
    assert_eq!(world.row(batch.send(1)).await, row("queued", None, 2));
    stage.deliver(&[&other]).await.unwrap();
    assert_eq!(world.states(&other).await, ["sent"]);
    world.assert_counters_are_right().await;
}

#[tokio::test]
async fn only_unfenced_claims_of_the_handlers_own_token_are_put_back() {
    let world = World::new().await;
    let (_, batch) = world.campaign_batch(&["a@example.com", "b@example.com", "c@example.com", "d@example.com"]).await;
    let (own, others) = (Uuid::now_v7(), Uuid::now_v7());
    for (ordinal, state, token) in [(0, "claimed", own), (1, "fenced", own), (2, "claimed", others)] {
        sqlx::query(
            "update sends set state = $3, claim_token = $4, lease_until = now() + interval '5 minutes', attempts = 1
             where tenant_id = $1 and id = $2",
        )
        .bind(world.tenant)
        .bind(batch.send(ordinal))
        .bind(state)
        .bind(token)
        .execute(&world.pool)
        .await
        .unwrap();
    }
    world.run("update batches set queued = 1, claimed = 2, fenced = 1, lease_until = now() + interval '5 minutes' where tenant_id = $1").await;
    let released =
        ledger::leases::release_claims(&world.pool, std::slice::from_ref(&batch.rendered), own).await.unwrap();
    assert_eq!((released, world.states(&batch).await.join(" ")), (1, "queued fenced claimed queued".to_owned()));
    world.assert_counters_are_right().await;
}
