//! Crashes, outages, doubts.

use std::{net::SocketAddr, time::Duration};

use ledger::fence::{Answer, Change, Fence, Ledger, SendAttempt};
use ledger::leases::{ExpireLeases, SERVED_BEFORE};
use rstest::rstest;
use runner::Sweep;
use runtime::plans::PreparedPool;
use schemas::SkipReason;
use stage_rig::until;
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufStream},
    net::TcpListener,
};

use super::panics::owed;
use super::world::{Batch, Handle, Row, World, row};

#[rstest]
#[case::stored_and_not_answered("drop-after-dot@example.com", 1)]
#[case::not_stored("drop-at-dot@example.com", 0)]
#[tokio::test]
async fn a_campaign_send_without_an_answer_stays_unknown(#[case] address: &str, #[case] stored: u64) {
    let (world, batch) = World::with_campaign_batch(&[address]).await;
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
    let (world, batch) = World::with_transactional_batch("drop-at-dot@example.com").await;
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

#[rstest]
#[case::recipient("reject-550-5.1.1@example.com", row("failed", Some("hard"), 1))]
#[case::greylisted("greylist@example.com", row("deferred", Some("temporary"), 1))]
#[case::before_the_body("reject-554-at-data@example.com", row("failed", Some("block"), 1))]
#[tokio::test]
async fn a_refused_envelope_of_a_fenced_send_is_no_doubt(#[case] address: &str, #[case] expected: Row) {
    let (world, batch) = World::with_campaign_batch(&[address]).await;
    world.stage().deliver(&[&batch]).await.unwrap();
    assert_eq!(world.row(batch.send(0)).await, expected);
    assert_eq!(world.number("select count(*) from sends where tenant_id = $1 and fenced_at is not null").await, 1);
    assert_eq!(world.sink.inbox().stats().accepted, 0);
    world.assert_counters_are_right().await;
}

#[tokio::test]
async fn a_refusal_of_mail_that_has_bounced_before_is_no_second_bounce() {
    let (world, batch) = World::with_transactional_batch("reject-550-5.1.1@example.com").await;
    world.run("update sends set bounced_at = now() - interval '2 hours' where tenant_id = $1").await;
    world.run("update batches set bounced = 1 where tenant_id = $1").await;
    world.stage().deliver(&[&batch]).await.unwrap();
    assert_eq!(world.row(batch.send(0)).await, row("failed", Some("hard"), 1));
    let earlier = "select count(*) from sends where tenant_id = $1 and bounced_at < now() - interval '1 hour'";
    assert_eq!(world.number(earlier).await, 1);
    assert_eq!(world.number("select count(*) from rollups where tenant_id = $1 and event = 'bounced'").await, 0);
    world.assert_counters_are_right().await;
}

#[tokio::test]
async fn an_unreachable_relay_fails_no_send() {
    let (world, batch) = World::with_campaign_batch(&["ann@example.com", "bob@example.net"]).await;
    let stage = world.stage_with(&["--smtp-url", "smtp://127.0.0.1:1?tls=none"]);
    stage.deliver(&[&batch]).await.unwrap();
    assert_eq!(world.row(batch.send(0)).await, row("queued", None, 0));
    assert_eq!(world.states(&batch).await, ["queued", "queued"]);
    let wait = "select extract(epoch from announce_after - now())::int8 from batches where tenant_id = $1";
    assert!((10..=16).contains(&world.number(wait).await));
    // While it lasts, nothing is read at all.
    stage.deliver(&[&batch]).await.unwrap();
    assert_eq!(world.states(&batch).await, ["queued", "queued"]);
    world.assert_counters_are_right().await;
    // Another process, whose relay serves, sends them.
    world.stage().deliver(&[&batch]).await.unwrap();
    assert_eq!(world.states(&batch).await, ["sent", "sent"]);
}

#[tokio::test]
async fn a_stopping_process_releases_what_it_has_not_begun() {
    let (world, batch) = World::with_campaign_batch(&["ann@example.com", "bob@example.net"]).await;
    let stage = world.stage();
    world.shutdown.cancel();
    stage.deliver(&[&batch]).await.unwrap();
    assert_eq!(world.row(batch.send(0)).await, row("queued", None, 0));
    assert_eq!(world.sink.inbox().stats().accepted, 0);
    world.assert_counters_are_right().await;
}

/// A stage with one connection, whose process is killed while it sends to these addresses, as soon as the states are these.
async fn killed_at(world: &World, batch: &Batch, states: &[&str]) {
    let stage = world.stage_with(&["--smtp-connections", "1", "--smtp-final-timeout", "10m"]);
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
async fn what_a_dead_process_had_not_fenced_is_still_owed() {
    let world = World::new().await;
    let addresses = ["ann@example.com", "slow-dot-240s@example.com", "bob@example.com"];
    let (_, batch) = world.campaign_batch(&addresses).await;
    killed_at(&world, &batch, &["sent", "fenced", "queued"]).await;
    // Heard of not long ago: its result may still come.
    world.silence_sessions(20.0).await;
    assert_eq!(world.sweep_leases().await, 0);
    // Postgres may have been away, and other processes live.
    world.silence_sessions(70.0).await;
    let restarted = ExpireLeases::new(&PreparedPool::new(&world.pool, 1), SERVED_BEFORE);
    assert_eq!(restarted.sweep().await.unwrap(), 0);
    // Nothing more is to be expected: a campaign's mail is not tried again, so it need not wait until it may be.
    assert_eq!(world.sweep_leases().await, 1);
    assert_eq!(world.states(&batch).await, ["sent", "unknown", "queued"]);
    assert_eq!(world.row(batch.send(2)).await, row("queued", None, 0));
    world.assert_counters_are_right().await;
    // Nothing is left of it.
    assert_eq!(world.sweep_leases().await, 0);
    let sessions: i64 =
        sqlx::query_scalar("select count(*) from delivery_sessions").fetch_one(&world.pool).await.unwrap();
    assert_eq!(sessions, 0);
}

#[tokio::test]
async fn a_second_attempt_waits_for_the_end_of_the_first() {
    let (world, batch) = World::with_transactional_batch("slow-dot-240s@example.com").await;
    killed_at(&world, &batch, &["fenced"]).await;
    world.silence_sessions(3_600.0).await;
    assert_eq!(world.sweep_leases().await, 0, "its lease is not over");
    world.leases_are_over().await;
    assert_eq!(world.sweep_leases().await, 1);
    assert_eq!(world.states(&batch).await, ["queued"]);
    assert_eq!(world.text("select provider from sends where tenant_id = $1").await.as_deref(), Some("smtp"));
    world.assert_counters_are_right().await;
}

#[tokio::test]
async fn a_batch_that_is_set_aside_stays_so_when_its_leases_end() {
    let (world, batch) = World::with_transactional_batch("slow-dot-240s@example.com").await;
    killed_at(&world, &batch, &["fenced"]).await;
    runner::Stage::given_up(&world.stage(), &batch.rendered, "never_finished").await.unwrap();
    world.silence_sessions(3_600.0).await;
    world.leases_are_over().await;
    assert_eq!(world.sweep_leases().await, 1);
    assert_eq!(world.states(&batch).await, ["queued"]);
    let set_aside =
        "select count(*) from batches where tenant_id = $1 and announce_after > now() + interval '23 hours'";
    assert_eq!(world.number(set_aside).await, 1);
    world.assert_counters_are_right().await;
}

#[tokio::test]
async fn a_batch_that_is_set_aside_while_it_waits_is_not_dispatched_for_a_day() {
    let (world, batch) = World::with_campaign_batch(&["ann@example.com"]).await;
    world
        .run("update batches set state = 'waiting', announce_after = null, dispatched_sends = 1 where tenant_id = $1")
        .await;
    runner::Stage::given_up(&world.stage(), &batch.rendered, "never_finished").await.unwrap();
    let set_aside = "select count(*) from batches
         where tenant_id = $1 and state = 'announced' and dispatched_sends is null and announce_after > now() + interval '23 hours'";
    assert_eq!(world.number(set_aside).await, 1);
    let in_flight = "select count(*) from bulk_in_flight where tenant_id = $1";
    assert_eq!(world.number(in_flight).await, 0, "it takes no capacity from others");
}

/// A process that was held up, and whose mail another process took over.
#[tokio::test]
async fn a_send_that_has_moved_meanwhile_passes_no_fence() {
    for (meanwhile, batch_too) in [
        ("update sends set attempts = 1 where tenant_id = $1", None),
        (
            "update sends set state = 'deferred', next_attempt_at = now() + interval '1 hour' where tenant_id = $1",
            Some("update batches set queued = 0, deferred = 1 where tenant_id = $1"),
        ),
        (
            "update sends set state = 'fenced', attempts = 1, fence_token = gen_random_uuid() where tenant_id = $1",
            Some("update batches set queued = 0, fenced = 1 where tenant_id = $1"),
        ),
    ] {
        let world = World::new().await;
        let (_, batch) = world.campaign_batch(&["ann@example.com"]).await;
        let ledger = Ledger::start(&world.pool, world.settings(&[]).ledger()).unwrap();
        let send = owed(&world, &ledger, &[&batch]).await.remove(0);
        for statement in std::iter::once(meanwhile).chain(batch_too) {
            world.run(statement).await;
        }
        let before = world.row(batch.send(0)).await;
        assert_eq!(ledger.fence(send.clone()).await, Fence::Refused, "{meanwhile}");
        // Nor does any other change of that attempt take place.
        let skip = Change::skipped(send.clone(), SkipReason::Suppressed);
        for change in [skip, Change::failed(send, "content", Answer::default(), None)] {
            ledger.record(change).await.await.unwrap();
        }
        assert_eq!(world.row(batch.send(0)).await, before, "{meanwhile}");
        world.assert_counters_are_right().await;
    }
}

/// Two workers read the same send; their fences, and a refusal by a third, come in one group.
#[tokio::test]
async fn of_the_changes_of_one_send_in_a_group_one_takes_place() {
    let (world, batch) = World::with_campaign_batch(&["ann@example.com", "bob@example.com"]).await;
    let settings = crate::Settings { ledger_window: Duration::from_secs(2), ..world.settings(&[]) };
    let ledger = Ledger::start(&world.pool, settings.ledger()).unwrap();
    let one = owed(&world, &ledger, &[&batch]).await;
    let other = owed(&world, &ledger, &[&batch]).await;
    let refused = |send: &SendAttempt| Change::failed(send.clone(), "content", Answer::default(), None);
    let (first, second, third, fourth) = tokio::join!(
        ledger.fence(one[0].clone()),
        ledger.fence(other[0].clone()),
        async { ledger.record(refused(&one[1])).await.await },
        async { ledger.record(refused(&other[1])).await.await },
    );
    third.and(fourth).unwrap();
    assert_eq!([first, second].iter().filter(|fence| matches!(fence, Fence::Passed { .. })).count(), 1);
    assert_eq!(world.states(&batch).await, ["fenced", "failed"]);
    assert_eq!(world.row(batch.send(0)).await.attempts, 1);
    world.assert_counters_are_right().await;
}

#[tokio::test]
async fn a_deferred_send_that_is_released_waits_and_counts_no_attempt() {
    let (world, batch) = World::with_campaign_batch(&["ann@example.com"]).await;
    world
        .run(
            "update sends set state = 'deferred', attempts = 3, reason = 'temporary', next_attempt_at = now()
              where tenant_id = $1",
        )
        .await;
    world.run("update batches set queued = 0, deferred = 1 where tenant_id = $1").await;
    let stage = world.stage_with(&["--smtp-url", "smtp://127.0.0.1:1?tls=none"]);
    stage.deliver(&[&batch]).await.unwrap();
    assert_eq!(world.row(batch.send(0)).await, row("deferred", Some("temporary"), 3));
    let wait = "select extract(epoch from announce_after - now())::int8 from batches where tenant_id = $1";
    assert!((10..=16).contains(&world.number(wait).await));
    world.assert_counters_are_right().await;
    // Another process, whose relay serves, sends it when it is due.
    world.stage().deliver(&[&batch]).await.unwrap();
    assert_eq!(world.sink.inbox().stats().accepted, 0);
    world.run("update sends set next_attempt_at = now() where tenant_id = $1").await;
    world.stage().deliver(&[&batch]).await.unwrap();
    assert_eq!(world.row(batch.send(0)).await, row("sent", None, 4));
    world.assert_counters_are_right().await;
}

#[tokio::test]
async fn a_batch_in_a_workers_hands_is_not_announced_again() {
    let (world, batch) =
        World::with_campaign_batch(&["ann@example.com", "slow-dot-240s@example.com", "bob@example.com"]).await;
    world.run("update batches set announce_after = now() where tenant_id = $1").await;
    killed_at(&world, &batch, &["sent", "fenced", "queued"]).await;
    let soon = "select count(*) from batches where tenant_id = $1 and announce_after < now() + interval '5 s'";
    assert_eq!(world.number(soon).await, 0, "a fence has just been passed");
}

/// The commit of an acceptance waits for Postgres longer than the fence's lease. The sweep is first when Postgres is back.
#[rstest]
#[case::before_it_is_tried_again("select 1 where $1::uuid is not null", &[])]
#[case::when_it_was_deferred_meanwhile(
    "update sends set state = 'deferred', next_attempt_at = now() + interval '5 minutes', attempts = attempts + 1 where tenant_id = $1",
    &["update batches set queued = 0, deferred = 1 where tenant_id = $1"]
)]
#[case::when_it_is_fenced_again(
    "update sends set state = 'fenced', fence_token = gen_random_uuid(), lease_until = now() + interval '5 minutes', attempts = attempts + 1
     where tenant_id = $1",
    &["update batches set queued = 0, fenced = 1, lease_until = now() + interval '5 minutes' where tenant_id = $1"]
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
        world.leases_are_over().await;
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
        world.leases_are_over().await;
        assert_eq!(world.sweep_leases().await, 1);
        assert_eq!(world.states(&batch).await, ["unknown"]);
        world.doubted_hours_ago().await;
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

/// A process was cut off from Postgres until the sweep doubted its mail, which was certainly not taken.
#[rstest]
#[case::refused_for_now(
    |send| Change::deferred(send, "mailbox_full", Answer::default(), Duration::from_secs(60)),
    row("failed", Some("temporary"), 1)
)]
#[case::not_begun(|send| Change::released(send, Duration::ZERO), row("failed", Some("temporary"), 1))]
#[case::too_late(|send| Change::expired(send, "temporary", Answer::default()), row("expired", Some("temporary"), 1))]
#[tokio::test]
async fn doubted_mail_that_was_certainly_not_taken_can_be_tried_again(
    #[case] end: fn(SendAttempt) -> Change,
    #[case] expected: Row,
) {
    let world = World::new().await;
    let (campaign, batch) = world.campaign_batch(&["ann@example.com"]).await;
    let ledger = Ledger::start(&world.pool, world.settings(&[]).ledger()).unwrap();
    let send = owed(&world, &ledger, &[&batch]).await.remove(0);
    let Fence::Passed { metered_on, .. } = ledger.fence(send.clone()).await else { panic!("not fenced") };
    world.leases_are_over().await;
    assert_eq!(world.sweep_leases().await, 1);
    assert_eq!(world.states(&batch).await, ["unknown"]);
    world.doubted_hours_ago().await;
    ledger.record(end(send.fenced(Some(metered_on)))).await.await.unwrap();
    assert_eq!(world.row(batch.send(0)).await, expected);
    assert_eq!(world.number("select doubtful::int8 from sends where tenant_id = $1").await, 0);
    world.assert_counters_are_right().await;
    let mut db = world.pool.acquire().await.unwrap();
    let reasons = ["temporary", "throttled"];
    let retried = ledger::retry::retry_failed(&mut db, world.tenant, campaign, &reasons).await.unwrap();
    assert_eq!((retried.queued, retried.unmetered), (1, 0), "it counts already");
    assert_eq!(world.states(&batch).await, ["queued"]);
    world.assert_counters_are_right().await;
}

/// The second attempt was not taken, and nothing is known of the first.
#[tokio::test]
async fn mail_in_doubt_stays_so_when_its_second_attempt_is_put_off_late() {
    let (world, batch) = World::with_transactional_batch("ann@example.com").await;
    world.run("update sends set doubtful = 1, attempts = 1 where tenant_id = $1").await;
    let ledger = Ledger::start(&world.pool, world.settings(&[]).ledger()).unwrap();
    let send = owed(&world, &ledger, &[&batch]).await.remove(0);
    let Fence::Passed { metered_on, .. } = ledger.fence(send.clone()).await else { panic!("not fenced") };
    world.leases_are_over().await;
    assert_eq!(world.sweep_leases().await, 1);
    let late = Change::deferred(send.fenced(Some(metered_on)), "temporary", Answer::default(), Duration::from_secs(60));
    ledger.record(late).await.await.unwrap();
    assert_eq!(world.states(&batch).await, ["unknown"]);
    world.assert_counters_are_right().await;
}

#[tokio::test]
async fn a_transactional_crash_after_the_fence_is_tried_once_more() {
    let (world, batch) = World::with_transactional_batch("ann@example.com").await;
    let fenced = "update sends set state = 'fenced', fence_token = gen_random_uuid(), attempts = 1, lease_until = now() - interval '1 s'
                  where tenant_id = $1";
    let counted =
        "update batches set queued = 0, fenced = 1, lease_until = now() - interval '1 s' where tenant_id = $1";
    for expected in [row("queued", None, 1), row("unknown", Some("lease_over"), 1)] {
        world.run(fenced).await;
        world.run(counted).await;
        assert_eq!(world.sweep_leases().await, 1);
        assert_eq!(world.row(batch.send(0)).await, expected);
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

#[tokio::test]
async fn after_a_pause_one_mail_at_a_time_tries_the_relay() {
    let world = World::new().await;
    let addresses: Vec<String> = (0..200).map(|number| format!("drop-at-dot+{number}@example.com")).collect();
    let (_, batch) = world.campaign_batch(&addresses.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let stage = world.stage();
    let doubted = async || world.states(&batch).await.iter().filter(|state| *state == "unknown").count();
    stage.deliver(&[&batch]).await.unwrap();
    for _ in 0..2 {
        let before = doubted().await;
        stage.routes.platform_breaker().end_pause();
        stage.deliver(&[&batch]).await.unwrap();
        assert!((before..=before + 1).contains(&doubted().await));
    }
    world.assert_counters_are_right().await;
}

/// A relay without extensions that ends each connection instead of answering RCPT.
async fn relay_without_answers() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let (mut stream, mut line, mut answer) = (BufStream::new(stream), String::new(), "220 relay\r\n");
                while !line.starts_with("RCPT") {
                    stream.write_all(answer.as_bytes()).await.unwrap();
                    stream.flush().await.unwrap();
                    line.clear();
                    if stream.read_line(&mut line).await.unwrap_or(0) == 0 {
                        return;
                    }
                    answer = "250 relay\r\n";
                }
            });
        }
    });
    address
}

#[tokio::test]
async fn a_relay_that_ends_every_envelope_opens_the_circuit_breaker() {
    let world = World::new().await;
    let addresses: Vec<String> = (0..200).map(|number| format!("user{number}@example.com")).collect();
    let (_, batch) = world.campaign_batch(&addresses.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let relay = format!("smtp://{}?tls=none", relay_without_answers().await);
    world.stage_with(&["--smtp-url", &relay]).deliver(&[&batch]).await.unwrap();
    let deferred = world.states(&batch).await.iter().filter(|state| *state == "deferred").count();
    // Twenty, and what was under way at the same time.
    assert!((20..=40).contains(&deferred), "{deferred}");
    let owed = "select count(*) from sends where tenant_id = $1 and state = 'queued' and attempts = 0";
    assert_eq!(world.number(owed).await, 200 - deferred as i64);
    world.assert_counters_are_right().await;
}
