//! The send quota at the fence.

use std::time::Duration;

use schemas::{Lane, MessageKind, SendId};
use uuid::Uuid;

use super::panics::owed;
use super::world::{Handle, World, row, run, within_a_day};
use ledger::fence::{Answer, Change, Fence, Ledger};
use ledger::quota::{QuotaDefaults, QuotaRemaining, remaining_quota};

const USED: &str = "select coalesce(sum(used), 0)::int8 from send_usage where tenant_id = $1";
/// What counts, by the definition: sends with a fence.
const RECOUNTED: &str = "select count(*) from sends where tenant_id = $1 and fenced_at is not null";

async fn limit(world: &World, monthly: Option<i64>, daily: Option<i64>) {
    run!(
        &world.pool,
        "insert into send_limits (tenant_id, monthly, daily) values ($1, $2, $3)",
        [world.tenant, monthly, daily]
    );
}

/// Mails that were sent on another day.
async fn handed_over(world: &World, days_ago: i32, count: i64) {
    run!(
        &world.pool,
        "insert into send_usage (tenant_id, day, shard, used) values ($1, (now() at time zone 'utc')::date - $2, 3, $3)",
        [world.tenant, days_ago, count]
    );
}

async fn quota_of(world: &World) -> QuotaRemaining {
    let mut db = world.pool.acquire().await.unwrap();
    remaining_quota(&mut db, world.tenant, &QuotaDefaults::default()).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn two_processes_together_let_exactly_as_many_pass_as_remain() {
    let world = World::new().await;
    limit(&world, Some(73), Some(1_000)).await;
    let mut batches = Vec::new();
    for group in 0..4 {
        let addresses: Vec<String> = (0..40).map(|number| format!("user{group}x{number}@example.com")).collect();
        batches.push(world.campaign_batch(&addresses.iter().map(String::as_str).collect::<Vec<_>>()).await.1);
    }
    let (one, two) = (world.stage(), world.stage());
    let all = batches.iter().zip([&one, &two, &one, &two]);
    futures::future::try_join_all(all.map(|(batch, stage)| async move { stage.deliver(&[batch]).await }))
        .await
        .unwrap();
    assert_eq!(world.sink.inbox().stats().accepted, 73);
    assert_eq!(world.number(USED).await, 73);
    assert_eq!(world.number(RECOUNTED).await, 73);
    let skipped = "select count(*) from sends where tenant_id = $1 and state = 'skipped' and reason = 'quota_exceeded'";
    assert_eq!(world.number(skipped).await, 160 - 73);
    assert_eq!(quota_of(&world).await.remaining, Some(0));
    world.assert_counters_are_right().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_in_the_hands_of_two_processes_uses_the_whole_quota() {
    let world = World::new().await;
    limit(&world, None, Some(30)).await;
    let addresses: Vec<String> = (0..40).map(|number| format!("user{number}@example.com")).collect();
    let (_, batch) = world.campaign_batch(&addresses.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let (one, two, batches) = (world.stage(), world.stage(), [&batch]);
    futures::future::try_join(one.deliver(&batches), two.deliver(&batches)).await.unwrap();
    assert_eq!(world.sink.inbox().stats().accepted, 30);
    let skipped = "select count(*) from sends where tenant_id = $1 and state = 'skipped' and reason = 'quota_exceeded'";
    assert_eq!(world.number(skipped).await, 10);
    world.assert_counters_are_right().await;
}

/// Two workers read the same sends; their fences come at once.
#[tokio::test]
async fn a_fence_that_does_not_pass_uses_no_quota() {
    let world = World::new().await;
    limit(&world, None, Some(2)).await;
    let (_, batch) = world.campaign_batch(&["ann@example.com", "bob@example.com", "eve@example.com"]).await;
    let ledger = Ledger::start(&world.pool, world.settings(&[]).ledger()).unwrap();
    let one = owed(&world, &ledger, &[&batch]).await;
    let other = owed(&world, &ledger, &[&batch]).await;
    let sends = [&one[0], &other[0], &one[1], &other[1], &one[2]];
    let fences = futures::future::join_all(sends.map(|send| ledger.fence(send.clone()))).await;
    assert_eq!(fences.iter().filter(|fence| matches!(fence, Fence::Passed { .. })).count(), 2);
    assert_eq!(world.states(&batch).await, ["fenced", "fenced", "skipped"]);
    assert_eq!(world.number(USED).await, 2);
}

#[tokio::test]
async fn a_tenant_without_a_limit_is_metered_and_has_no_limit() {
    let world = World::new().await;
    let (_, batch) =
        world.campaign_batch(&["ann@example.com", "reject-550-5.1.1@example.com", "bob@example.net"]).await;
    world.stage().deliver(&[&batch]).await.unwrap();
    // The refused recipient was tried like the others.
    assert_eq!(world.number(USED).await, 3);
    assert_eq!(quota_of(&world).await.remaining, None);
}

#[tokio::test]
async fn the_setting_binds_a_tenant_for_which_nothing_is_set() {
    let (world, batch) = World::with_campaign_batch(&["ann@example.com", "bob@example.net"]).await;
    let mut settings = world.settings(&[]);
    settings.quota = QuotaDefaults { send_quota_monthly: 0, send_quota_daily: 1 };
    world.stage_of(&settings).deliver(&[&batch]).await.unwrap();
    let mut states = world.states(&batch).await;
    states.sort();
    assert_eq!(states, ["sent", "skipped"]);
}

#[tokio::test]
async fn sends_count_for_their_own_day_and_month() {
    within_a_day(async || {
        let world = World::new().await;
        limit(&world, Some(10), Some(3)).await;
        handed_over(&world, 40, 500).await;
        assert_eq!(quota_of(&world).await.remaining, Some(3));
        handed_over(&world, 0, 2).await;
        assert_eq!(quota_of(&world).await.remaining, Some(1));
        let (_, batch) = world.campaign_batch(&["ann@example.com", "bob@example.net"]).await;
        world.stage().deliver(&[&batch]).await.unwrap();
        assert_eq!(world.sink.inbox().stats().accepted, 1);
        // The day is over: its usage moves to the day before, which is of this month or not.
        world.run("update send_usage set day = day - 1 where tenant_id = $1").await;
        let is_first = chrono::Datelike::day(&chrono::Utc::now()) == 1;
        assert_eq!(quota_of(&world).await.remaining, Some(3));
        world.run("update send_limits set daily = 0 where tenant_id = $1").await;
        assert_eq!(quota_of(&world).await.remaining, Some(if is_first { 10 } else { 7 }));
    })
    .await;
}

#[tokio::test]
async fn a_fence_after_which_nothing_left_gives_back() {
    let world = World::new().await;
    limit(&world, None, Some(5)).await;
    let (_, batch) = world.campaign_batch(&["ann@example.com"]).await;
    let ledger = Ledger::start(&world.pool, world.settings(&[]).ledger()).unwrap();
    let send = owed(&world, &ledger, &[&batch]).await.remove(0);
    let Fence::Passed { metered_on, .. } = ledger.fence(send.clone()).await else { panic!("not fenced") };
    assert_eq!((world.number(USED).await, world.number(RECOUNTED).await), (1, 1));
    ledger.record(Change::released(send.fenced(Some(metered_on)), Duration::ZERO)).await.await.unwrap();
    assert_eq!(world.states(&batch).await, ["queued"]);
    assert_eq!((world.number(USED).await, world.number(RECOUNTED).await), (0, 0));
    assert_eq!(quota_of(&world).await.remaining, Some(5));
}

#[tokio::test]
async fn mail_in_doubt_counts_once_over_both_attempts() {
    let world = World::new().await;
    limit(&world, None, Some(5)).await;
    let batch = world.transactional_batch("drop-at-dot@example.com").await;
    let stage = world.stage();
    // It goes back to the queue and is owed once more.
    stage.deliver(&[&batch]).await.unwrap();
    assert_eq!(world.row(batch.send(0)).await.state, "queued");
    assert_eq!((world.number(USED).await, world.number(RECOUNTED).await), (1, 1));
    stage.deliver(&[&batch]).await.unwrap();
    assert_eq!(world.row(batch.send(0)).await, row("unknown", Some("no_answer"), 2));
    assert_eq!((world.number(USED).await, world.number(RECOUNTED).await), (1, 1));
    assert_eq!(quota_of(&world).await.remaining, Some(4));
}

#[tokio::test]
async fn a_released_retry_gives_back_no_day_that_never_counted_it() {
    within_a_day(async || {
        let world = World::new().await;
        let (_, batch) = world.campaign_batch(&["ann@example.com"]).await;
        let ledger = Ledger::start(&world.pool, world.settings(&[]).ledger()).unwrap();
        let fence = async || {
            let send = owed(&world, &ledger, &[&batch]).await.remove(0);
            let Fence::Passed { metered_on, .. } = ledger.fence(send.clone()).await else { panic!("not fenced") };
            send.fenced(Some(metered_on))
        };
        // Deferred two days ago, and yesterday.
        for night in ["update send_usage set day = day - 2 where tenant_id = $1", "select $1::uuid"] {
            let later = Change::deferred(fence().await, "temporary", Answer::default(), Duration::ZERO);
            ledger.record(later).await.await.unwrap();
            world.run("update sends set fenced_at = fenced_at - interval '1 day' where tenant_id = $1").await;
            world.run(night).await;
        }
        ledger.record(Change::released(fence().await, Duration::ZERO)).await.await.unwrap();
        assert_eq!(world.states(&batch).await, ["queued"]);
        let off = "select count(*) from send_usage where tenant_id = $1 and used < 0";
        assert_eq!((world.number(USED).await, world.number(RECOUNTED).await, world.number(off).await), (1, 1, 0));
        fence().await;
        assert_eq!(world.number(USED).await, 1);
    })
    .await;
}

#[tokio::test]
async fn retries_count_once_and_pass_without_quota() {
    let world = World::new().await;
    limit(&world, Some(1), None).await;
    let (_, batch) = world.campaign_batch(&["greylist-at-dot@example.com"]).await;
    world.stage().deliver(&[&batch]).await.unwrap();
    assert_eq!(world.row(batch.send(0)).await.state, "deferred");
    assert_eq!(quota_of(&world).await.remaining, Some(0));
    world.run("update sends set next_attempt_at = now() where tenant_id = $1 and state = 'deferred'").await;
    // Another process: this one paces the domain that deferred it.
    world.stage().deliver(&[&batch]).await.unwrap();
    assert_eq!(world.row(batch.send(0)).await, row("sent", None, 2));
    assert_eq!((world.number(USED).await, world.number(RECOUNTED).await), (1, 1));
}

#[tokio::test]
async fn a_used_up_campaign_quota_stops_no_other_mail() {
    let world = World::new().await;
    limit(&world, None, Some(1)).await;
    let (_, campaign) = world.campaign_batch(&["ann@example.com", "bob@example.net"]).await;
    let reset = world.transactional_batch("eve@example.org").await;
    let step = world.batch(None, MessageKind::Sequence, Lane::Priority, &["joe@example.org"]).await;
    let message = world.batch(None, MessageKind::OneOff, Lane::Priority, &["kim@example.org"]).await;
    let stage = world.stage();
    stage.deliver(&[&campaign]).await.unwrap();
    stage.deliver(&[&reset, &step, &message]).await.unwrap();
    assert_eq!(world.row(reset.send(0)).await, row("sent", None, 1));
    assert_eq!(world.row(step.send(0)).await, row("sent", None, 1));
    assert_eq!(world.row(message.send(0)).await, row("skipped", Some("quota_exceeded"), 0));
    // What always leaves is counted all the same.
    assert_eq!((world.number(USED).await, world.number(RECOUNTED).await), (3, 3));
    assert_eq!(quota_of(&world).await.remaining, Some(0));
}

#[tokio::test]
async fn one_tenants_quota_does_not_touch_another() {
    let (world, other) = (World::new().await, Uuid::now_v7());
    run!(
        &world.pool,
        "insert into tenants (id, environment, owner_email) values ($1, 'production', 'o@example.com')",
        [other]
    );
    run!(&world.pool, "insert into send_limits (tenant_id, daily) values ($1, 1)", [other]);
    run!(
        &world.pool,
        "insert into send_usage (tenant_id, day, shard, used) values ($1, (now() at time zone 'utc')::date, 0, 1)",
        [other]
    );
    let (_, batch) = world.campaign_batch(&["ann@example.com", "bob@example.net"]).await;
    world.stage().deliver(&[&batch]).await.unwrap();
    assert_eq!(world.row(SendId::of(batch.id, 1).0).await.state, "sent");
}
