//! A receiver that defers, beside others; rates shared between processes; the warm-up of a new domain.

use devtools::sink::SinkRule;
use runner::Sweep;
use runtime::plans::PreparedPool;
use uuid::Uuid;

use super::world::{Batch, Handle, World, row, run, within_a_day};
use crate::pace::{FLOOR, PacePriority, PaceRefusal, PaceShare, ThrottleKey};
use ledger::warmup;

const REASONS: &str = "select coalesce(string_agg(distinct reason, ' ' order by reason), '') from sends where tenant_id = $1 and state = 'deferred'";

/// The sink defers everybody at this domain.
fn defer(world: &World, domain: &str) {
    let rules = format!(r#"[{{"match": {{"domain": "{domain}"}}, "stage": "rcpt", "reply": "451 4.3.0 Not now"}}]"#);
    world.sink.inbox().set_rules(SinkRule::parse_list(&rules).unwrap());
}

fn key(world: &World, domain: &str) -> ThrottleKey {
    ThrottleKey::new(world.tenant, world.domain, domain)
}

/// A batch to this many recipients at each of these domains, alternating.
async fn mixed(world: &World, each: usize, domains: &[&str]) -> Batch {
    let mut addresses = Vec::new();
    for number in 0..each {
        addresses.extend(domains.iter().map(|domain| format!("p{}x{number}@{domain}", Uuid::now_v7().simple())));
    }
    world.campaign_batch(&addresses.iter().map(String::as_str).collect::<Vec<_>>()).await.1
}

#[tokio::test]
async fn a_deferring_receiver_delays_no_other_receiver() {
    let world = World::new().await;
    defer(&world, "slow.example");
    let stage = world.stage_with(&["--smtp-connections", "2"]);
    let batch = mixed(&world, 40, &["slow.example", "swift.example"]).await;
    stage.deliver(&[&batch]).await.unwrap();
    assert_eq!(world.sink.inbox().stats().accepted, 40, "all of the other domain are sent");
    let tried = "select count(*) from events where tenant_id = $1 and type = 'deferred'";
    assert!((2..=12).contains(&world.number(tried).await), "{} were tried", world.number(tried).await);
    assert_eq!(world.text(REASONS).await.unwrap(), "paced temporary");
    assert_eq!(world.text("select state from batches where tenant_id = $1").await.unwrap(), "resting");
    world.assert_counters_are_right().await;

    // The next batch is not tried at all, and nothing of it is prepared.
    let next = mixed(&world, 20, &["slow.example", "swift.example"]).await;
    let before = world.number(tried).await;
    stage.deliver(&[&next]).await.unwrap();
    assert_eq!(world.sink.inbox().stats().accepted, 60);
    assert!(world.number(tried).await <= before + 1);
    // What is put off did not use up an attempt, and comes back at some time or other, not all at once.
    let spread = "select count(distinct next_attempt_at) from sends where tenant_id = $1 and state = 'deferred' and reason = 'paced'";
    assert!(world.number(spread).await > 1);
    let attempts = "select count(*) from sends where tenant_id = $1 and reason = 'paced' and attempts > 0";
    assert_eq!(world.number(attempts).await, 0);
    world.assert_counters_are_right().await;
}

#[tokio::test]
async fn prompt_mail_to_a_receiver_that_defers_is_tried_all_the_same() {
    let world = World::new().await;
    defer(&world, "slow.example");
    let stage = world.stage();
    stage.deliver(&[&mixed(&world, 20, &["slow.example"]).await]).await.unwrap();
    assert!(stage.pacer.is_limited(&key(&world, "slow.example")));
    world.sink.inbox().set_rules(Vec::new());
    let batch = world.transactional_batch("ann@slow.example").await;
    stage.deliver(&[&batch]).await.unwrap();
    assert_eq!(world.row(batch.send(0)).await, row("sent", None, 1));
}

#[tokio::test]
async fn throttled_mail_goes_out_in_its_slot() {
    let world = World::new().await;
    defer(&world, "slow.example");
    let stage = world.stage();
    let batch = mixed(&world, 30, &["slow.example"]).await;
    stage.deliver(&[&batch]).await.unwrap();
    world.sink.inbox().set_rules(Vec::new());
    // Another process without shared rates: for it all due mail may go.
    world.run("update sends set next_attempt_at = now() where tenant_id = $1 and state = 'deferred'").await;
    world.stage().deliver(&[&batch]).await.unwrap();
    assert_eq!(world.sink.inbox().stats().accepted, 30);
    assert_eq!(world.text("select state from batches where tenant_id = $1").await.unwrap(), "done");
    world.assert_counters_are_right().await;
}

#[tokio::test]
async fn what_one_process_finds_out_another_knows() {
    let world = World::new().await;
    defer(&world, "gmail.com");
    let (one, two) = (world.stage(), world.stage());
    one.deliver(&[&mixed(&world, 20, &["gmail.com"]).await]).await.unwrap();
    assert!(!two.pacer.is_limited(&key(&world, "googlemail.com")));
    for stage in [&one, &two] {
        PaceShare::new(&PreparedPool::new(&world.pool, 1), stage.pacer.clone()).sweep().await.unwrap();
    }
    assert!(two.pacer.is_limited(&key(&world, "googlemail.com")));
    let rate: f64 = sqlx::query_scalar("select rate from paces where tenant_id = $1 and receiver = 'gmail'")
        .bind(world.tenant)
        .fetch_one(&world.pool)
        .await
        .unwrap();
    assert!(rate >= FLOOR);
    // One that starts now knows it, too.
    let three = world.stage();
    PaceShare::new(&PreparedPool::new(&world.pool, 1), three.pacer.clone()).sweep().await.unwrap();
    assert!(three.pacer.acquire(key(&world, "gmail.com"), None, PacePriority::New, false).await.is_err());
}

#[tokio::test]
async fn a_rate_that_is_not_in_force_expires_no_mail() {
    let world = World::new().await;
    run!(
        &world.pool,
        "insert into paces (tenant_id, sending_domain, receiver, rate, threshold, cut_at, throttled_since, good_at, updated_at)
         values ($1, $2, 'gmail', 1, 1, now() - interval '2 hours', now() - interval '80 hours', now() - interval '79 hours',
                 now() - interval '2 hours')",
        [world.tenant, world.domain]
    );
    defer(&world, "gmail.com");
    let (one, two) = (world.stage(), world.stage());
    one.deliver(&[&mixed(&world, 20, &["gmail.com"]).await]).await.unwrap();
    for stage in [&one, &two] {
        PaceShare::new(&PreparedPool::new(&world.pool, 1), stage.pacer.clone()).sweep().await.unwrap();
    }
    assert!(two.pacer.is_limited(&key(&world, "gmail.com")));
    let refusal = loop {
        // A slow machine may have gained some permits.
        if let Err(refusal) = two.pacer.acquire(key(&world, "gmail.com"), None, PacePriority::Retry, true).await {
            break refusal;
        }
    };
    assert_ne!(refusal, PaceRefusal::RetryDeadlinePassed);
    let old = "select count(*) from paces where tenant_id = $1 and least(throttled_since, good_at) < now() - interval '1 hour'";
    assert_eq!(world.number(old).await, 0);
}

/// Warms the tenant's domain up by these caps.
async fn warm(world: &World, caps: &[i64]) {
    let domain = domain(world).await;
    warmup::set(&mut world.pool.acquire().await.unwrap(), world.tenant, domain, true, Some(caps)).await.unwrap();
}

async fn domain(world: &World) -> Uuid {
    sqlx::query_scalar("select id from domains where tenant_id = $1")
        .bind(world.tenant)
        .fetch_one(&world.pool)
        .await
        .unwrap()
}

const WARMED: &str = "select coalesce(sum(used), 0)::int8 from warmup_usage where tenant_id = $1";
const UNTIL_TOMORROW: &str =
    "select count(*) from sends where tenant_id = $1 and state = 'deferred' and reason = 'warmup'
     and next_attempt_at >= date_trunc('day', now(), 'UTC') + interval '1 day'
     and next_attempt_at < date_trunc('day', now(), 'UTC') + interval '1 day 31 minutes'";

/// The day ends: what was used was used yesterday, and what waits for tomorrow is due.
async fn next_day(world: &World) {
    world.run("update warmup_usage set day = day - 1 where tenant_id = $1").await;
    world.run("update sends set next_attempt_at = now() where tenant_id = $1 and state = 'deferred'").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_processes_together_hand_over_exactly_the_days_cap() {
    within_a_day(async || {
        let world = World::new().await;
        warm(&world, &[33, 60]).await;
        let mut batches = Vec::new();
        for _ in 0..4 {
            batches.push(mixed(&world, 40, &["example.com"]).await);
        }
        let (one, two) = (world.stage(), world.stage());
        // Sends that found the cap used up try again, until no process has any left.
        for _ in 0..20 {
            if world.number(UNTIL_TOMORROW).await + 33 >= 160 {
                break;
            }
            let soon = "update sends set next_attempt_at = now() where tenant_id = $1 and state = 'deferred' and next_attempt_at < now() + interval '1 minute'";
            world.run(soon).await;
            let all = batches.iter().zip([&one, &two, &one, &two]);
            futures::future::try_join_all(all.map(|(batch, stage)| async move { stage.deliver(&[batch]).await }))
                .await
                .unwrap();
            world.assert_counters_are_right().await;
        }
        assert_eq!((world.sink.inbox().stats().accepted, world.number(WARMED).await), (33, 33));

        next_day(&world).await;
        for batch in &batches {
            one.deliver(&[batch]).await.unwrap();
        }
        assert_eq!((world.sink.inbox().stats().accepted, world.number(WARMED).await), (93, 93));

        // The plan is over: the domain is warm.
        next_day(&world).await;
        for batch in &batches {
            one.deliver(&[batch]).await.unwrap();
        }
        assert_eq!(world.sink.inbox().stats().accepted, 160);
        world.assert_counters_are_right().await;
    })
    .await;
}

#[tokio::test]
async fn priority_mail_counts_and_does_not_wait() {
    within_a_day(async || {
        let world = World::new().await;
        warm(&world, &[1]).await;
        let stage = world.stage();
        for number in 0..3 {
            let batch = world.transactional_batch(&format!("user{number}@example.com")).await;
            stage.deliver(&[&batch]).await.unwrap();
        }
        let batch = mixed(&world, 2, &["example.com"]).await;
        stage.deliver(&[&batch]).await.unwrap();
        assert_eq!((world.sink.inbox().stats().accepted, world.number(WARMED).await), (3, 3));
        assert_eq!(world.number(UNTIL_TOMORROW).await, 2);
        world.assert_counters_are_right().await;
    })
    .await;
}

#[tokio::test]
async fn unsent_mail_returns_quota_and_retries_count_once() {
    within_a_day(async || {
        let world = World::new().await;
        warm(&world, &[1]).await;
        let stage = world.stage();
        let (_, unsent) = world.campaign_batch(&["ann@example.com"]).await;
        world.stage_with(&["--smtp-url", "smtp://127.0.0.1:1?tls=none"]).deliver(&[&unsent]).await.unwrap();
        assert_eq!(world.number(WARMED).await, 0, "it never came to a fence");
        let (_, deferred) = world.campaign_batch(&["greylist-at-dot@example.com"]).await;
        stage.deliver(&[&deferred]).await.unwrap();
        assert_eq!(world.number(WARMED).await, 1);
        world.run("update sends set next_attempt_at = now() where tenant_id = $1 and state = 'deferred'").await;
        stage.deliver(&[&deferred]).await.unwrap();
        assert_eq!(world.row(deferred.send(0)).await, row("sent", None, 2));
        assert_eq!(world.number(WARMED).await, 1);
    })
    .await;
}

#[tokio::test]
async fn a_domain_that_is_not_warmed_up_has_no_cap_and_is_not_counted() {
    let world = World::new().await;
    warm(&world, &[1]).await;
    let mut db = world.pool.acquire().await.unwrap();
    warmup::set(&mut db, world.tenant, domain(&world).await, false, None).await.unwrap();
    world.stage().deliver(&[&mixed(&world, 5, &["example.com"]).await]).await.unwrap();
    assert_eq!((world.sink.inbox().stats().accepted, world.number(WARMED).await), (5, 0));
}
