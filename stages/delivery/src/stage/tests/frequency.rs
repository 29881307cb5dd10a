//! The frequency cap at the fence.

use std::time::{Duration, Instant};

use ledger::{
    decide::{OperatorDecision, OperatorOutcome, decide},
    frequency::load_usage,
};
use rstest::rstest;
use schemas::{Lane, MessageKind, month_of};
use uuid::Uuid;

use super::world::{Batch, Handle, World, row, run};

const COUNTED: &str = "select count(*) from capped_sends where tenant_id = $1";

async fn cap(world: &World, messages: i32) {
    run!(
        &world.pool,
        "update tenants set frequency_cap_messages = $2, frequency_cap_days = 7 where id = $1",
        [world.tenant, messages]
    );
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
    let (world, batch) = World::with_campaign_batch(&["ann@example.com"]).await;
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
    run!(&world.pool, "update batches set classification = 'operational' where id = $1", [notice.id]);
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
async fn what_ends_an_enrollment_comes_before_its_mail_that_waits() {
    let world = World::new().await;
    cap(&world, 1).await;
    let (_, campaign) = world.campaign_batch(&["ann@example.com"]).await;
    let step = step_to_the_same(&world, &campaign).await;
    let sequence = schemas::new_id();
    for sql in [
        "insert into sequences (tenant_id, id, product, environment, name, status)
         values ($1, $2, 'shop', 'production', 'Welcome', 'active')",
        "insert into enrollments (tenant_id, id, sequence_id, contact_id, product, next_action_at)
         select tenant_id, id, $2, contact_id, 'shop', now() from sends where tenant_id = $1 and campaign_id is null",
        "insert into sequence_sends (tenant_id, send_id, sequence_id, enrollment_id, step_id)
         select tenant_id, id, $2, id, id from enrollments where tenant_id = $1 and sequence_id = $2",
    ] {
        sqlx::query(sql).bind(world.tenant).bind(sequence).execute(&world.pool).await.unwrap();
    }
    let stage = world.stage();
    stage.deliver(&[&campaign]).await.unwrap();
    stage.deliver(&[&step]).await.unwrap();
    assert_eq!(world.row(step.send(0)).await, row("deferred", Some("frequency_cap"), 0));
    world
        .run("update enrollments set status = 'exited', exit_reason = 'event', next_action_at = null where tenant_id = $1")
        .await;
    make_due(&world).await;
    stage.deliver(&[&step]).await.unwrap();
    assert_eq!(world.row(step.send(0)).await, row("skipped", Some("enrollment_exited"), 0));
    world.assert_counters_are_right().await;
}

#[tokio::test]
async fn mail_that_an_operator_decides_as_failed_gives_its_room_back() {
    let world = World::new().await;
    cap(&world, 1).await;
    let (_, batch) = world.campaign_batch(&["drop-at-dot@example.com"]).await;
    world.stage().deliver(&[&batch]).await.unwrap();
    assert_eq!(world.number(COUNTED).await, 1);
    world.doubted_hours_ago().await;
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
    run!(&mut *other, "select 1 from tenants where id = $1 for no key update", [world.tenant]);
    run!(
        &mut *other,
        "insert into capped_sends (tenant_id, send_id, contact_id, fenced_at)
         select tenant_id, gen_random_uuid(), contact_id, now() from sends where tenant_id = $1 and id = $2",
        [world.tenant, batch.send(0)]
    );
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

/// A batch of a campaign of this urgency that was just launched, to the recipients of `first`, if there is one.
async fn urgent_batch(world: &World, urgency: &str, addresses: &[&str], first: Option<&Batch>) -> (Uuid, Batch) {
    let (campaign, batch) = world.campaign_batch(addresses).await;
    run!(
        &world.pool,
        "update campaigns set urgency = $2, month = $3, launched_at = now() where id = $1",
        [campaign, urgency, month_of(batch.id)]
    );
    if let Some(first) = first {
        to_the_same(world, &batch, first).await;
    }
    (campaign, batch)
}

/// The wait of what is put off is over.
async fn make_due(world: &World) {
    world.run("update sends set next_attempt_at = now() where tenant_id = $1 and reason = 'frequency_cap'").await;
}

#[rstest]
#[case::more_urgent("important", "deferred")]
#[case::equal("normal", "sent")]
#[case::less_urgent("low", "sent")]
#[tokio::test]
async fn mail_waits_for_more_urgent_campaigns_alone(#[case] urgency: &str, #[case] state: &str) {
    let world = World::new().await;
    cap(&world, 1).await;
    let (_, other) = urgent_batch(&world, urgency, &["ann@example.com", "bob@example.com"], None).await;
    let (_, campaign) = urgent_batch(&world, "normal", &["ann+2@example.com"], Some(&other)).await;
    let step = step_to_the_same(&world, &campaign).await;
    // The campaign's mail is to Ann, and the step's to Bob.
    run!(
        &world.pool,
        "update sends set contact_id = (select contact_id from sends where id = $1) where id = $2",
        [other.send(1), step.send(0)]
    );
    let stage = world.stage();
    stage.deliver(&[&campaign]).await.unwrap();
    stage.deliver(&[&step]).await.unwrap();
    let (reason, attempts) = if state == "sent" { (None, 1) } else { (Some("frequency_cap"), 0) };
    for batch in [&campaign, &step] {
        assert_eq!(world.row(batch.send(0)).await, row(state, reason, attempts));
    }
    let soon = "select count(*) from sends where tenant_id = $1 and reason = 'frequency_cap'
                and next_attempt_at between now() + interval '4 minutes' and now() + interval '5 minutes'";
    assert_eq!(world.number(soon).await, if state == "sent" { 0 } else { 2 });
    world.assert_counters_are_right().await;
}

#[rstest]
#[case::cancelled("update campaigns set status = 'cancelled' where tenant_id = $1 and urgency = 'urgent'")]
#[case::paused("update campaigns set paused = true where tenant_id = $1 and urgency = 'urgent'")]
#[case::window_closed(
    "update campaigns set closes_at = now(), on_miss = 'hold' where tenant_id = $1 and urgency = 'urgent'"
)]
#[case::three_days(
    "update campaigns set launched_at = now() - interval '3 days' where tenant_id = $1 and urgency = 'urgent'"
)]
#[case::put_off(
    "update sends s set state = 'deferred', next_attempt_at = now() + interval '61 minutes'
                 from campaigns c where s.tenant_id = $1 and s.campaign_id = c.id and c.urgency = 'urgent'"
)]
#[case::put_off_with_its_batch(
    "update batches b set state = 'timed', announce_after = now() + interval '61 minutes'
                 from campaigns c where b.tenant_id = $1 and b.campaign_id = c.id and c.urgency = 'urgent'"
)]
#[case::held_for_the_winner_of_a_test(
    "update batches b set state = 'held', announce_after = null
                 from campaigns c where b.tenant_id = $1 and b.campaign_id = c.id and c.urgency = 'urgent'"
)]
#[case::failed(
    "update sends s set state = 'failed' from campaigns c
                where s.tenant_id = $1 and s.campaign_id = c.id and c.urgency = 'urgent'"
)]
#[case::no_cap_any_more("update tenants set frequency_cap_messages = null, frequency_cap_days = null where id = $1")]
#[tokio::test]
async fn a_wait_ends_with_what_it_waits_for(#[case] end: &'static str) {
    let world = World::new().await;
    cap(&world, 1).await;
    let (_, urgent) = urgent_batch(&world, "urgent", &["ann@example.com"], None).await;
    let (_, low) = urgent_batch(&world, "low", &["ann+2@example.com"], Some(&urgent)).await;
    let stage = world.stage();
    // However often it is decided: it waits, and no attempt is counted.
    for _ in 0..2 {
        make_due(&world).await;
        stage.deliver(&[&low]).await.unwrap();
        assert_eq!(world.row(low.send(0)).await, row("deferred", Some("frequency_cap"), 0));
    }
    world.run(end).await;
    make_due(&world).await;
    stage.deliver(&[&low]).await.unwrap();
    assert_eq!(world.row(low.send(0)).await, row("sent", None, 1));
    assert_eq!(world.sink.inbox().stats().accepted, 1);
}

#[tokio::test]
async fn mail_that_waited_is_skipped_when_the_last_room_is_taken() {
    let world = World::new().await;
    cap(&world, 2).await;
    let (_, urgent) = urgent_batch(&world, "urgent", &["ann@example.com"], None).await;
    let (_, important) = urgent_batch(&world, "important", &["ann+2@example.com"], Some(&urgent)).await;
    let (_, low) = urgent_batch(&world, "low", &["ann+3@example.com"], Some(&urgent)).await;
    let stage = world.stage();
    stage.deliver(&[&low]).await.unwrap();
    stage.deliver(&[&urgent]).await.unwrap();
    assert_eq!(world.row(low.send(0)).await, row("deferred", Some("frequency_cap"), 0));
    make_due(&world).await;
    stage.deliver(&[&low]).await.unwrap();
    assert_eq!(world.row(low.send(0)).await, row("deferred", Some("frequency_cap"), 0), "one of two is still owed");
    stage.deliver(&[&important]).await.unwrap();
    make_due(&world).await;
    stage.deliver(&[&low]).await.unwrap();
    assert_eq!(world.row(low.send(0)).await, row("skipped", Some("frequency_cap"), 0));
    for batch in [&urgent, &important] {
        assert_eq!(world.row(batch.send(0)).await, row("sent", None, 1));
    }
    world.assert_counters_are_right().await;
}

#[rstest]
#[case::for_one(1, 0)]
#[case::for_both(2, 30)]
#[tokio::test(flavor = "multi_thread")]
async fn of_two_campaigns_at_once_the_more_urgent_has_the_room(#[case] messages: i32, #[case] less_urgent: i64) {
    let world = World::new().await;
    cap(&world, messages).await;
    let addresses: Vec<String> = (0..30).map(|number| format!("user{number}@example.com")).collect();
    let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
    let (_, urgent) = urgent_batch(&world, "urgent", &addresses, None).await;
    let others: Vec<String> = (0..30).map(|number| format!("other{number}@example.com")).collect();
    let others: Vec<&str> = others.iter().map(String::as_str).collect();
    let (_, low) = urgent_batch(&world, "low", &others, Some(&urgent)).await;
    let (one, two) = (world.stage(), world.stage());
    // In one process their fences share commits, in two they do not.
    let (both, again) = ([&low, &urgent], [&low]);
    let (first, second) = tokio::join!(one.deliver(&both), two.deliver(&again));
    first.and(second).unwrap();
    let sent: (i64, i64) = sqlx::query_as(
        "select count(*) filter (where c.urgency = 'urgent'), count(*) filter (where c.urgency = 'low')
         from sends s join campaigns c on c.id = s.campaign_id where s.tenant_id = $1 and s.state = 'sent'",
    )
    .bind(world.tenant)
    .fetch_one(&world.pool)
    .await
    .unwrap();
    assert_eq!(sent, (30, less_urgent));
    world.assert_counters_are_right().await;
}
