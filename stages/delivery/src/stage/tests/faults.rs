//! Crashes, outages, doubts.

use rstest::rstest;
use stage_rig::until;

use super::world::{Batch, Handle, World, row};

#[rstest]
#[case::stored_and_not_answered("drop-after-dot@example.com", 1)]
#[case::not_stored("drop-at-dot@example.com", 0)]
#[tokio::test]
async fn a_campaign_send_without_an_answer_stays_unknown(#[case] address: &str, #[case] stored: u64) {
    let world = World::new().await;
    let (_, batch) = world.campaign_batch(&[address]).await;
    let stage = world.stage();
    stage.deliver(&[&batch]).await.unwrap();
    assert_eq!(world.row(batch.send(0)).await, row("unknown", Some("no_answer"), 1));
    assert_eq!(world.text("select state from batches where tenant_id = $1").await.unwrap(), "done");
    stage.deliver(&[&batch]).await.unwrap();
    assert_eq!(world.sink.inbox().stats().accepted, stored);
    world.assert_counters_are_right().await;
}

#[tokio::test]
async fn an_unknown_transactional_send_gets_one_more_attempt() {
    let world = World::new().await;
    let batch = world.transactional_batch("drop-at-dot@example.com").await;
    let stage = world.stage();
    stage.deliver(&[&batch]).await.unwrap();
    assert_eq!(world.row(batch.send(0)).await.state, "queued");
    assert_eq!(world.number("select count(*) from events where tenant_id = $1 and type = 'unknown'").await, 1);
    world.assert_counters_are_right().await;
    stage.deliver(&[&batch]).await.unwrap();
    assert_eq!(world.row(batch.send(0)).await, row("unknown", Some("no_answer"), 2));
    assert_eq!(world.number("select count(*) from events where tenant_id = $1 and type = 'unknown'").await, 2);
    world.assert_counters_are_right().await;
}

#[tokio::test]
async fn an_unreachable_relay_fails_no_send() {
    let world = World::new().await;
    let (_, batch) = world.campaign_batch(&["ann@example.com", "bob@example.net"]).await;
    let stage = world.stage_with(&["--smtp-url", "smtp://127.0.0.1:1?tls=none"]);
    stage.deliver(&[&batch]).await.unwrap();
    assert_eq!(world.row(batch.send(0)).await, row("queued", None, 0));
    assert_eq!(world.states(&batch).await, ["queued", "queued"]);
    let wait = "select extract(epoch from announce_after - now())::int8 from batches where tenant_id = $1";
    assert!((10..=16).contains(&world.number(wait).await));
    // While it lasts, nothing is claimed at all.
    stage.deliver(&[&batch]).await.unwrap();
    assert_eq!(world.states(&batch).await, ["queued", "queued"]);
    world.assert_counters_are_right().await;
    // Another process, whose relay serves, sends them.
    world.stage().deliver(&[&batch]).await.unwrap();
    assert_eq!(world.states(&batch).await, ["sent", "sent"]);
}

#[tokio::test]
async fn a_stopping_process_releases_what_it_has_not_begun() {
    let world = World::new().await;
    let (_, batch) = world.campaign_batch(&["ann@example.com", "bob@example.net"]).await;
    let stage = world.stage();
    world.shutdown.cancel();
    stage.deliver(&[&batch]).await.unwrap();
    assert_eq!(world.row(batch.send(0)).await, row("queued", None, 0));
    assert_eq!(world.sink.inbox().stats().accepted, 0);
    world.assert_counters_are_right().await;
}

#[tokio::test]
async fn a_crash_before_the_fence_leaves_nothing_behind_but_a_lease() {
    let world = World::new().await;
    let (_, batch) = world.campaign_batch(&["slow-rcpt-240s@example.com", "ann@example.com"]).await;
    let stage = world.stage_with(&["--smtp-command-timeout", "300s", "--smtp-final-timeout", "10m"]);
    // Killed in mid-transaction.
    tokio::select! {
        _ = runner::Stage::handle(&stage, std::slice::from_ref(&batch.rendered)) => panic!("over before it was killed"),
        () = until("one sent, one under way", async || world.states(&batch).await == ["claimed", "sent"]) => {}
    }
    assert_eq!(world.sweep_leases().await, 0);
    let soon = "select count(*) from batches where tenant_id = $1 and lease_until < now() + interval '301 s'";
    assert_eq!(world.number(soon).await, 1, "what is only claimed does not wait for the lease of what was fenced");
    world
        .run("update sends set lease_until = now() - interval '1 s' where tenant_id = $1 and lease_until is not null")
        .await;
    world.run("update batches set lease_until = now() - interval '1 s' where tenant_id = $1").await;
    assert_eq!(world.sweep_leases().await, 1);
    assert_eq!(world.states(&batch).await, ["queued", "sent"]);
    world.assert_counters_are_right().await;
    assert!(world.number("select count(*) from batches where tenant_id = $1 and announce_after <= now()").await == 1);
}

/// A stage whose process is killed while it sends to these addresses, as soon as the states are these.
async fn killed_at(world: &World, batch: &Batch, states: &[&str]) {
    let stage = world.stage_with(&["--smtp-command-timeout", "300s", "--smtp-final-timeout", "10m"]);
    tokio::select! {
        _ = runner::Stage::handle(&stage, std::slice::from_ref(&batch.rendered)) => panic!("over before it was killed"),
        () = until("the process has come this far", async || world.states(batch).await == states) => {}
    }
    until("its session is known", async || {
        sqlx::query_scalar::<_, bool>("select exists (select from delivery_sessions)")
            .fetch_one(&world.pool)
            .await
            .unwrap()
    })
    .await;
    drop(stage);
}

#[tokio::test]
async fn the_claims_of_a_dead_process_are_released_at_once() {
    let world = World::new().await;
    let addresses = ["slow-rcpt-240s@example.com", "slow-dot-240s@example.com", "ann@example.com"];
    let (_, batch) = world.campaign_batch(&addresses).await;
    killed_at(&world, &batch, &["claimed", "fenced", "sent"]).await;
    // Heard of just now: it lives.
    world.silence_sessions(5.0).await;
    assert_eq!(world.sweep_leases().await, 0);
    // Gone: what was only claimed has certainly not left.
    world.silence_sessions(20.0).await;
    assert_eq!(world.sweep_leases().await, 1);
    assert_eq!(world.states(&batch).await, ["queued", "fenced", "sent"]);
    assert_eq!(world.number("select count(*) from batches where tenant_id = $1 and announce_after <= now()").await, 1);
    world.assert_counters_are_right().await;
    // Nothing more is to be expected: a campaign's mail is not tried again, so it need not wait until it may be.
    world.silence_sessions(70.0).await;
    assert_eq!(world.sweep_leases().await, 1);
    assert_eq!(world.states(&batch).await, ["queued", "unknown", "sent"]);
    world.assert_counters_are_right().await;
    // Nothing is left of it.
    assert_eq!(world.sweep_leases().await, 0);
    let sessions: i64 =
        sqlx::query_scalar("select count(*) from delivery_sessions").fetch_one(&world.pool).await.unwrap();
    assert_eq!(sessions, 0);
}

#[tokio::test]
async fn a_second_attempt_waits_for_the_end_of_the_first() {
    let world = World::new().await;
    let batch = world.transactional_batch("slow-dot-240s@example.com").await;
    killed_at(&world, &batch, &["fenced"]).await;
    world.silence_sessions(3_600.0).await;
    assert_eq!(world.sweep_leases().await, 0, "its lease is not over");
    world.run("update sends set lease_until = now() - interval '1 s' where tenant_id = $1").await;
    world.run("update batches set lease_until = now() - interval '1 s' where tenant_id = $1").await;
    assert_eq!(world.sweep_leases().await, 1);
    assert_eq!(world.states(&batch).await, ["queued"]);
    world.assert_counters_are_right().await;
}

/// A process that is cut off from Postgres and declared dead: its claims go to others, and it sends nothing under the old claim.
#[tokio::test]
async fn a_revived_process_fences_nothing_under_old_claims() {
    let world = World::new().await;
    let (_, batch) = world.campaign_batch(&["slow-rcpt-5s@example.com"]).await;
    let stage = world.stage();
    let batches = [&batch];
    let mut delivered = stage.deliver(&batches);
    let taken_for_dead = async {
        until("the claim", async || world.states(&batch).await == ["claimed"]).await;
        until("it is taken for dead", async || {
            let silent = "update delivery_sessions set seen_at = now() - interval '1 minute'";
            sqlx::query(silent).execute(&world.pool).await.unwrap();
            world.sweep_leases().await == 1
        })
        .await;
        assert_eq!(world.states(&batch).await, ["queued"]);
    };
    tokio::select! {
        _ = &mut delivered => panic!("sent before it was taken for dead"),
        () = taken_for_dead => {}
    }
    delivered.await.unwrap();
    assert_eq!((world.states(&batch).await, world.sink.inbox().stats().accepted), (vec!["queued".to_owned()], 0));
    world.assert_counters_are_right().await;
    stage.deliver(&[&batch]).await.unwrap();
    assert_eq!((world.states(&batch).await, world.sink.inbox().stats().accepted), (vec!["sent".to_owned()], 1));
}

/// The commit of an acceptance waits for Postgres longer than the fence's lease. The sweep is first when Postgres is back.
#[rstest]
#[case::before_it_is_tried_again("select 1 where $1::uuid is not null", &[])]
#[case::when_it_is_claimed_again(
    "update sends set state = 'claimed', claim_token = gen_random_uuid(), lease_until = now() + interval '5 minutes', attempts = attempts + 1
     where tenant_id = $1",
    &["update batches set queued = 0, claimed = 1, lease_until = now() + interval '5 minutes' where tenant_id = $1"]
)]
#[tokio::test]
async fn a_late_acceptance_counts_and_prevents_a_second_mail(
    #[case] meanwhile: &'static str,
    #[case] and: &'static [&'static str],
) {
    let world = World::new().await;
    // Longer than the commits in between take on a slow disk.
    let batch = world.transactional_batch("slow-dot-10s@example.com").await;
    let stage = world.stage_with(&["--smtp-final-timeout", "60s"]);
    let batches = [&batch];
    let mut delivered = stage.deliver(&batches);
    let doubted = async {
        until("the fence", async || world.states(&batch).await == ["fenced"]).await;
        world.run("update sends set lease_until = now() - interval '1 s' where tenant_id = $1").await;
        world.run("update batches set lease_until = now() - interval '1 s' where tenant_id = $1").await;
        assert_eq!(world.sweep_leases().await, 1);
        assert_eq!(world.states(&batch).await, ["queued"]);
        let soon = "select count(*) from batches where tenant_id = $1 and announce_after < now() + interval '20 s'";
        assert_eq!(world.number(soon).await, 0, "the late answer has time to come");
        for statement in std::iter::once(meanwhile).chain(and.iter().copied()) {
            world.run(statement).await;
        }
    };
    tokio::select! {
        _ = &mut delivered => panic!("answered before it was doubted"),
        () = doubted => {}
    }
    delivered.await.unwrap();
    assert_eq!(world.states(&batch).await, ["sent"]);
    assert_eq!(world.text("select state from batches where tenant_id = $1").await.unwrap(), "done");
    world.assert_counters_are_right().await;
    stage.deliver(&[&batch]).await.unwrap();
    assert_eq!(world.sink.inbox().stats().accepted, 1);
}

#[tokio::test]
async fn late_evidence_resolves_an_unknown_outcome() {
    let world = World::new().await;
    // Longer than the commits in between take on a slow disk.
    let (_, batch) = world.campaign_batch(&["slow-dot-10s@example.com"]).await;
    let stage = world.stage_with(&["--smtp-final-timeout", "60s"]);
    let batches = [&batch];
    let mut delivered = stage.deliver(&batches);
    let doubted = async {
        // The body is on its way; another process thinks its lease over.
        until("the fence", async || world.states(&batch).await == ["fenced"]).await;
        world.run("update sends set lease_until = now() - interval '1 s' where tenant_id = $1").await;
        world.run("update batches set lease_until = now() - interval '1 s' where tenant_id = $1").await;
        assert_eq!(world.sweep_leases().await, 1);
        assert_eq!(world.states(&batch).await, ["unknown"]);
        world.assert_counters_are_right().await;
    };
    tokio::select! {
        _ = &mut delivered => panic!("answered before it was doubted"),
        () = doubted => {}
    }
    delivered.await.unwrap();
    assert_eq!(world.states(&batch).await, ["sent"]);
    world.assert_counters_are_right().await;
}

#[tokio::test]
async fn a_transactional_crash_after_the_fence_is_tried_once_more() {
    let world = World::new().await;
    let batch = world.transactional_batch("ann@example.com").await;
    let fenced = "update sends set state = 'fenced', claim_token = gen_random_uuid(), attempts = 1, lease_until = now() - interval '1 s'
                  where tenant_id = $1";
    let counted =
        "update batches set queued = 0, fenced = 1, lease_until = now() - interval '1 s' where tenant_id = $1";
    for state in ["queued", "unknown"] {
        world.run(fenced).await;
        world.run(counted).await;
        assert_eq!(world.sweep_leases().await, 1);
        assert_eq!(world.row(batch.send(0)).await.state, state);
        world.assert_counters_are_right().await;
    }
}

#[tokio::test]
async fn a_relay_that_never_answers_opens_the_circuit_breaker() {
    let world = World::new().await;
    let addresses: Vec<String> = (0..200).map(|number| format!("drop-at-dot+{number}@example.com")).collect();
    let (_, batch) = world.campaign_batch(&addresses.iter().map(String::as_str).collect::<Vec<_>>()).await;
    world.stage().deliver(&[&batch]).await.unwrap();
    let doubted = world.states(&batch).await.iter().filter(|state| *state == "unknown").count();
    // Twenty, and what was under way at the same time.
    assert!((20..=40).contains(&doubted), "{doubted}");
    world.assert_counters_are_right().await;
}
