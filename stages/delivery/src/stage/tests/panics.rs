//! Panics cost what they must: one result of a writer's group, one call of a handler.

use std::time::Duration;

use stage_rig::until;

use ledger::{
    fence::{Answer, Change, Fence, Ledger, POISON, SendAttempt},
    owed::find_owed,
    warmup::WarmupPermits,
};

use super::world::{Batch, Handle, World, row};

/// The owed sends of these batches, as a worker reads them.
pub async fn owed(world: &World, ledger: &Ledger, batches: &[&Batch]) -> Vec<SendAttempt> {
    let inputs: Vec<_> = batches.iter().map(|batch| batch.rendered.clone()).collect();
    let plans = runtime::plans::PreparedPool::new(&world.pool, 1);
    let found = find_owed(&plans, &inputs, ledger.session().token(), &WarmupPermits::default()).await.unwrap();
    found.sendable.into_iter().map(|sendable| sendable.send).collect()
}

fn refused(send: &SendAttempt, code: i16) -> Change {
    let answer = Answer { code: Some(code), ..Answer::default() };
    Change::failed(send.clone(), "content", answer, None)
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
    let (world, batch) =
        World::with_campaign_batch(&["a@example.com", "b@example.com", "c@example.com", "d@example.com"]).await;
    let (_, first) = world.campaign_batch(&["first@example.com"]).await;
    let ledger = Ledger::start(&world.pool, world.settings(&[]).ledger()).unwrap();
    let sends = owed(&world, &ledger, &[&batch, &first]).await;
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
    assert_eq!(world.states(&batch).await, ["queued", "failed", "queued", "failed"]);
    world.assert_counters_are_right().await;
    // With the fence, among the results, and alone.
    assert_eq!(counted(&metrics.render()), 3);

    // The writer goes on, also with what the panic put off.
    ledger.record(Change::released(of(&batch, 0).clone(), Duration::ZERO)).await.await.unwrap();
    assert_eq!(world.states(&batch).await, ["queued", "failed", "queued", "failed"]);
    assert_eq!(world.number("select count(*) from batches where tenant_id = $1 and announce_after <= now()").await, 1);
    world.assert_counters_are_right().await;
    assert_eq!(counted(&metrics.render()), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_panicking_handler_had_not_fenced_is_still_owed() {
    let world = World::new().await;
    let poison = format!("reject-{POISON}@example.com");
    let (_, batch) = world.campaign_batch(&[&poison, "bob@example.com"]).await;
    let (_, other) = world.campaign_batch(&["ann@example.com"]).await;
    let planned = "select extract(epoch from max(announce_after) - now())::int8 from batches where tenant_id = $1";
    // The second waits for the connection of the first.
    let stage = world.stage_with(&["--smtp-connections", "1"]);
    assert_eq!(stage.deliver(&[&batch]).await.unwrap_err().code(), "panicked");
    assert_eq!(world.states(&batch).await, ["fenced", "queued"]);
    assert_eq!(world.row(batch.send(1)).await, row("queued", None, 0));
    assert!(world.number(planned).await > 30, "a message that makes its handler panic each time must not go round");
    world.assert_counters_are_right().await;
    // The stage goes on, and other mail is sent.
    stage.deliver(&[&batch]).await.unwrap();
    assert_eq!(world.states(&batch).await, ["fenced", "sent"]);
    stage.deliver(&[&other]).await.unwrap();
    assert_eq!(world.states(&other).await, ["sent"]);
    world.assert_counters_are_right().await;
}
