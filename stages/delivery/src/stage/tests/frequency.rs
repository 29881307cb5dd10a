//! The frequency cap at the fence.

use std::time::{Duration, Instant};

use ledger::{
    decide::{OperatorDecision, OperatorOutcome, decide},
    frequency::load_usage,
};
use rstest::rstest;
use schemas::{Lane, MessageKind};
use uuid::Uuid;

use super::world::{Batch, Handle, World, row};

const COUNTED: &str = "select count(*) from capped_sends where tenant_id = $1";

async fn cap(world: &World, messages: i32) {
    sqlx::query("update tenants set frequency_cap_messages = $2, frequency_cap_days = 7 where id = $1")
        .bind(world.tenant)
        .bind(messages)
        .execute(&world.pool)
        .await
        .unwrap();
}

/// The recipients of `batch` are those of `first`.
async fn to_the_same(world: &World, batch: &Batch, first: &Batch) {
    for ordinal in 0..u16::try_from(first.rendered.recipients.len()).unwrap() {
        let same = "update sends set contact_id = (select contact_id from sends where id = $1) where id = $2";
        sqlx::query(same).bind(first.send(ordinal)).bind(batch.send(ordinal)).execute(&world.pool).await.unwrap();
    }
}

async fn step_to_the_same(world: &World, first: &Batch) -> Batch {
    let step = world.batch(None, MessageKind::Sequence, Lane::Priority, &["step@example.com"]).await;
    world.run("update batches set classification = 'marketing' where tenant_id = $1 and kind = 'sequence'").await;
    to_the_same(world, &step, first).await;
    step
}

#[tokio::test(flavor = "multi_thread")]
async fn two_processes_let_exactly_as_many_pass_as_the_cap_allows() {
    let world = World::new().await;
    cap(&world, 2).await;
    let mut batches: Vec<Batch> = Vec::new();
    for group in 0..6 {
        let addresses: Vec<String> = (0..30).map(|number| format!("user{group}x{number}@example.com")).collect();
        let batch = world.campaign_batch(&addresses.iter().map(String::as_str).collect::<Vec<_>>()).await.1;
        if let Some(first) = batches.first() {
            to_the_same(&world, &batch, first).await;
        }
        batches.push(batch);
    }
    let (one, two) = (world.stage(), world.stage());
    let all = batches.iter().zip([&one, &two, &one, &two, &one, &two]);
    futures::future::try_join_all(all.map(|(batch, stage)| async move { stage.deliver(&[batch]).await }))
        .await
        .unwrap();
    let per_contact: Vec<(i64, i64)> = sqlx::query_as(
        "select count(*) filter (where state = 'sent'),
                count(*) filter (where state = 'skipped' and reason = 'frequency_cap' and attempts = 0)
         from sends where tenant_id = $1 group by contact_id",
    )
    .bind(world.tenant)
    .fetch_all(&world.pool)
    .await
    .unwrap();
    assert_eq!(per_contact, vec![(2, 4); 30]);
    assert_eq!(world.sink.inbox().stats().accepted, 60);
    assert_eq!(world.number(COUNTED).await, 60);
    world.assert_counters_are_right().await;
}

#[rstest]
#[case::accepted("ann@example.com", "sent", 1)]
#[case::in_doubt("drop-at-dot@example.com", "unknown", 1)]
#[case::refused("reject-550-5.1.1@example.com", "failed", 0)]
#[case::put_off("greylist-at-dot@example.com", "deferred", 0)]
#[tokio::test]
async fn mail_counts_that_left_or_may_have_left(#[case] address: &str, #[case] state: &str, #[case] counted: i64) {
    let world = World::new().await;
    cap(&world, 1).await;
    let (_, batch) = world.campaign_batch(&[address]).await;
    world.stage().deliver(&[&batch]).await.unwrap();
    assert_eq!((world.row(batch.send(0)).await.state.as_str(), world.number(COUNTED).await), (state, counted));
}

#[tokio::test]
async fn without_a_cap_nothing_is_counted() {
    let world = World::new().await;
    let (_, batch) = world.campaign_batch(&["ann@example.com"]).await;
    world.stage().deliver(&[&batch]).await.unwrap();
    assert_eq!(world.number(COUNTED).await, 0);
}

#[tokio::test]
async fn other_mail_passes_a_full_cap_and_does_not_count() {
    let world = World::new().await;
    cap(&world, 1).await;
    let (_, campaign) = world.campaign_batch(&["ann@example.com"]).await;
    let reset = world.transactional_batch("ann+reset@example.com").await;
    let message = world.batch(None, MessageKind::OneOff, Lane::Priority, &["ann+note@example.com"]).await;
    let (_, notice) = world.campaign_batch(&["ann+notice@example.com"]).await;
    sqlx::query("update batches set classification = 'operational' where id = $1")
        .bind(notice.id)
        .execute(&world.pool)
        .await
        .unwrap();
    for batch in [&reset, &message, &notice] {
        to_the_same(&world, batch, &campaign).await;
    }
    let stage = world.stage();
    stage.deliver(&[&campaign]).await.unwrap();
    stage.deliver(&[&reset, &message, &notice]).await.unwrap();
    for batch in [&campaign, &reset, &message, &notice] {
        assert_eq!(world.row(batch.send(0)).await, row("sent", None, 1));
    }
    assert_eq!(world.number(COUNTED).await, 1);
}

#[tokio::test]
async fn the_mail_of_a_sequence_waits_for_room() {
    let world = World::new().await;
    cap(&world, 1).await;
    let (_, campaign) = world.campaign_batch(&["ann@example.com"]).await;
    let step = step_to_the_same(&world, &campaign).await;
    let stage = world.stage();
    stage.deliver(&[&campaign]).await.unwrap();
    stage.deliver(&[&step]).await.unwrap();
    assert_eq!(world.row(step.send(0)).await, row("deferred", Some("frequency_cap"), 0));
    let contact: Uuid = sqlx::query_scalar("select contact_id from capped_sends").fetch_one(&world.pool).await.unwrap();
    let mut db = world.pool.acquire().await.unwrap();
    let usage = load_usage(&mut db, world.tenant, contact).await.unwrap().unwrap();
    assert_eq!((usage.messages, usage.used, usage.opens_at.is_some()), (1, 1, true));
    // A week passes, and the hour.
    world.run("update capped_sends set fenced_at = fenced_at - interval '7 days' where tenant_id = $1").await;
    world.run("update sends set next_attempt_at = now() where tenant_id = $1 and state = 'deferred'").await;
    stage.deliver(&[&step]).await.unwrap();
    assert_eq!(world.row(step.send(0)).await, row("sent", None, 1));
    world.assert_counters_are_right().await;
}

#[tokio::test]
async fn a_capped_mail_of_a_sequence_outlasts_every_deadline() {
    let world = World::new().await;
    cap(&world, 1).await;
    let (_, campaign) = world.campaign_batch(&["ann@example.com"]).await;
    let step = step_to_the_same(&world, &campaign).await;
    world
        .run("update batches set created_at = now() - interval '60 days' where tenant_id = $1 and kind = 'sequence'")
        .await;
    let stage = world.stage();
    stage.deliver(&[&campaign]).await.unwrap();
    stage.deliver(&[&step]).await.unwrap();
    assert_eq!(world.row(step.send(0)).await, row("deferred", Some("frequency_cap"), 0));
    world.run("delete from capped_sends where tenant_id = $1").await;
    world.run("update sends set next_attempt_at = now() where tenant_id = $1 and state = 'deferred'").await;
    stage.deliver(&[&step]).await.unwrap();
    assert_eq!(world.row(step.send(0)).await, row("sent", None, 1));
}

#[tokio::test]
async fn mail_that_an_operator_decides_as_failed_gives_its_room_back() {
    let world = World::new().await;
    cap(&world, 1).await;
    let (_, batch) = world.campaign_batch(&["drop-at-dot@example.com"]).await;
    world.stage().deliver(&[&batch]).await.unwrap();
    assert_eq!(world.number(COUNTED).await, 1);
    let decision = OperatorDecision { outcome: OperatorOutcome::Failed, from: &["unknown"], evidence: "operator" };
    let decided = decide(&world.pool, &[(world.tenant, batch.send(0))], decision, |_| ()).await.unwrap();
    assert_eq!((decided, world.number(COUNTED).await), (1, 0));
    world.assert_counters_are_right().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fence_waits_for_another_that_may_use_up_the_cap() {
    let world = World::new().await;
    cap(&world, 1).await;
    let (_, batch) = world.campaign_batch(&["ann@example.com"]).await;
    // Another process has counted the contact's last mail, and is not committed yet.
    let mut other = world.pool.begin().await.unwrap();
    sqlx::query("select 1 from tenants where id = $1 for no key update")
        .bind(world.tenant)
        .execute(&mut *other)
        .await
        .unwrap();
    sqlx::query(
        "insert into capped_sends (tenant_id, send_id, contact_id, fenced_at)
         select tenant_id, gen_random_uuid(), contact_id, now() from sends where tenant_id = $1 and id = $2",
    )
    .bind(world.tenant)
    .bind(batch.send(0))
    .execute(&mut *other)
    .await
    .unwrap();
    let stage = world.stage();
    let committed = async {
        let waiting = "select count(*) from pg_stat_activity
                       where datname = current_database() and wait_event_type = 'Lock' and $1::uuid is not null";
        let deadline = Instant::now() + Duration::from_secs(10);
        while world.number(waiting).await == 0 && Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        other.commit().await.unwrap();
    };
    let batches = [&batch];
    let (delivered, ()) = tokio::join!(stage.deliver(&batches), committed);
    delivered.unwrap();
    assert_eq!(world.row(batch.send(0)).await, row("skipped", Some("frequency_cap"), 0));
    assert_eq!(world.sink.inbox().stats().accepted, 0);
}
