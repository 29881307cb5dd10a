//! The stage on its own database, against the mail sink.

mod bus;
mod connections;
mod faults;
mod frequency;
mod one_off;
mod pacing;
mod panics;
mod quiet;
mod quota;
mod races;
mod sandbox;
mod world;

use std::time::Duration;

use rstest::rstest;
use schemas::{Lane, MessageKind, Rendered, RenderedRecipient, token::TokenKeys};
use uuid::Uuid;

use self::world::{Handle, Row, World, row, run};
use super::{OutcomeNotifier, SendContext, Sendable, find_owed, prepare};

#[tokio::test]
async fn a_campaign_batch_is_sent_signed_and_recorded() {
    let (world, batch) = World::with_campaign_batch(&["ann@example.com", "bob@example.net"]).await;
    world.stage().deliver(&[&batch]).await.unwrap();
    assert_eq!(world.row(batch.send(0)).await, row("sent", None, 1));
    assert_eq!(world.states(&batch).await, ["sent", "sent"]);
    assert_eq!(world.text("select state from batches where tenant_id = $1").await.unwrap(), "done");
    assert_eq!(world.number("select count(*) from send_facts where tenant_id = $1 and type = 'sent'").await, 2);
    assert_eq!(
        world
            .number(
                "select sum(count)::int8 from rollups where tenant_id = $1 and event = 'sent' and kind = 'campaign'"
            )
            .await,
        2
    );
    world.assert_counters_are_right().await;
    let mail = world.sink.inbox().messages(1, Some("ann@example.com")).pop().unwrap();
    let source = String::from_utf8(mail.source.to_vec()).unwrap();
    assert!(source.contains("DKIM-Signature: v=1; a=ed25519-sha256"), "{source}");
    assert!(source.contains("Hello you\r\n"));
}

#[tokio::test]
async fn mail_of_a_batch_that_waited_is_dated_by_its_time() {
    let (world, batch) = World::with_campaign_batch(&["ann@example.com"]).await;
    world.run("update batches set due_at = '2031-02-03 09:00+00' where tenant_id = $1").await;
    world.stage().deliver(&[&batch]).await.unwrap();
    let mail = world.sink.inbox().messages(1, None).pop().unwrap();
    let source = String::from_utf8(mail.source.to_vec()).unwrap();
    assert!(source.contains("\r\nDate: Mon, 03 Feb 2031 09:00:00 +0000\r\n"), "{source}");
}

#[rstest]
#[case::marketing("marketing", "2020-02-03T10:00:00Z")]
#[case::which_may_be_repeated("transactional", "2020-02-03T09:00:00Z")]
#[tokio::test]
async fn marketing_that_was_put_off_alone_is_dated_by_its_time(#[case] classification: &str, #[case] expected: &str) {
    let world = World::new().await;
    let batch = world.batch(None, MessageKind::Sequence, Lane::Priority, &["ann@example.com"]).await;
    run!(
        &world.pool,
        "update batches set classification = $2, due_at = '2020-02-03 09:00+00', queued = 0, deferred = 1 where id = $1",
        [batch.id, classification]
    );
    world
        .run("update sends set state = 'deferred', next_attempt_at = '2020-02-03 10:00+00' where tenant_id = $1")
        .await;
    let stage = world.stage();
    let by_key = stage.by_key.of_lane(Lane::Priority, "delivery");
    let inputs = [batch.rendered.clone()];
    let owed = find_owed(&by_key, &inputs, stage.ledger.session().token(), &stage.warm).await.unwrap();
    assert_eq!(owed.sendable[0].send.due_at, Some(expected.parse().unwrap()));
}

#[tokio::test]
async fn a_mail_that_comes_alone_waits_for_no_window() {
    let (world, batch) = World::with_transactional_batch("ann@example.com").await;
    let stage = world.stage_of(&crate::Settings { ledger_window: Duration::from_secs(120), ..world.settings(&[]) });
    // Its fence is committed, and a moment later its result.
    tokio::time::timeout(Duration::from_secs(60), stage.deliver(&[&batch]))
        .await
        .expect("a window was waited for")
        .unwrap();
    assert_eq!(world.states(&batch).await, ["sent"]);
}

#[tokio::test]
async fn the_return_path_names_the_send() {
    let (world, batch) = World::with_campaign_batch(&["ann@example.com"]).await;
    world.stage_with(&["--dkim-sign", "false"]).deliver(&[&batch]).await.unwrap();
    let mail = world.sink.inbox().messages(1, None).pop().unwrap();
    let (local, domain) = mail.from.split_once('@').unwrap();
    assert_eq!(domain, "send.acme.example");
    assert_eq!(TokenKeys::derive(world.keys.bytes()).returned_send(local), Some(batch.send(0)));
    assert!(!String::from_utf8_lossy(&mail.source).contains("DKIM-Signature"));
}

#[tokio::test]
async fn a_batch_announced_twice_is_sent_once() {
    let (world, batch) = World::with_campaign_batch(&["ann@example.com", "bob@example.net"]).await;
    let stage = world.stage();
    let (one, two) = tokio::join!(async { stage.deliver(&[&batch]).await }, async { stage.deliver(&[&batch]).await });
    one.and(two).unwrap();
    stage.deliver(&[&batch]).await.unwrap();
    assert_eq!(world.sink.inbox().stats().accepted, 2);
    assert_eq!(world.row(batch.send(0)).await, row("sent", None, 1));
    world.assert_counters_are_right().await;
}

#[tokio::test]
async fn a_hard_refusal_fails_bounces_and_suppresses() {
    let (world, batch) = World::with_campaign_batch(&["reject-550-5.1.1@example.com", "ann@example.com"]).await;
    world.stage().deliver(&[&batch]).await.unwrap();
    assert_eq!(world.row(batch.send(0)).await, row("failed", Some("hard"), 1));
    assert_eq!(world.row(batch.send(1)).await, row("sent", None, 1));
    let suppressed =
        "select reason || ' ' || scope || ' ' || source || ' ' || address from suppressions where tenant_id = $1";
    assert_eq!(world.text(suppressed).await.unwrap(), "hard_bounce all delivery reject-550-5.1.1@example.com");
    assert_eq!(world.number("select bounced::int8 from batches where tenant_id = $1").await, 1);
    assert_eq!(world.number("select count(*) from sends where tenant_id = $1 and bounced_at is not null").await, 1);
    assert_eq!(
        world
            .text("select detail->>'enhanced_code' from events where tenant_id = $1 and type = 'failed'")
            .await
            .unwrap(),
        "5.1.1"
    );
    world.assert_counters_are_right().await;
}

#[rstest]
#[case::policy("reject-550-5.7.1@example.com", "block")]
#[case::at_the_dot("reject-554-5.6.0-at-dot@example.com", "content")]
#[tokio::test]
async fn a_refusal_not_about_the_address_suppresses_nothing(#[case] address: &str, #[case] class: &str) {
    let (world, batch) = World::with_campaign_batch(&[address]).await;
    world.stage().deliver(&[&batch]).await.unwrap();
    assert_eq!(world.row(batch.send(0)).await, row("failed", Some(class), 1));
    assert_eq!(world.number("select count(*) from suppressions where tenant_id = $1").await, 0);
    world.assert_counters_are_right().await;
}

#[tokio::test]
async fn a_deferred_send_waits_until_it_is_due() {
    let (world, batch) = World::with_campaign_batch(&["greylist@example.com", "ann@example.com"]).await;
    let stage = world.stage();
    stage.deliver(&[&batch]).await.unwrap();
    assert_eq!(world.states(&batch).await, ["deferred", "sent"]);
    assert_eq!(world.text("select state from batches where tenant_id = $1").await.unwrap(), "resting");
    let wait = "select extract(epoch from announce_after - now())::int8 from batches where tenant_id = $1";
    assert!((50..=72).contains(&world.number(wait).await));
    stage.deliver(&[&batch]).await.unwrap();
    assert_eq!(world.row(batch.send(0)).await, row("deferred", Some("temporary"), 1));
    world.assert_counters_are_right().await;

    world.run("update sends set next_attempt_at = now() where tenant_id = $1 and state = 'deferred'").await;
    stage.deliver(&[&batch]).await.unwrap();
    assert_eq!(world.row(batch.send(0)).await, row("sent", None, 2));
    assert_eq!(world.text("select state from batches where tenant_id = $1").await.unwrap(), "done");
    world.assert_counters_are_right().await;
}

/// Nineteen attempts take 72 hours.
#[rstest]
#[case::the_last("update sends set attempts = 18 where tenant_id = $1", row("expired", Some("temporary"), 19))]
#[case::retried_after_it("update sends set attempts = 19 where tenant_id = $1", row("deferred", Some("temporary"), 20))]
#[tokio::test]
async fn the_last_attempt_expires_a_send_and_one_that_is_retried_has_as_many_again(
    #[case] change: &'static str,
    #[case] expected: Row,
) {
    let (world, batch) = World::with_campaign_batch(&["defer-451@example.com"]).await;
    world.run(change).await;
    world.stage().deliver(&[&batch]).await.unwrap();
    assert_eq!(world.row(batch.send(0)).await, expected);
    world.assert_counters_are_right().await;
}

#[tokio::test]
async fn a_transactional_message_of_yesterday_is_not_sent() {
    let (world, batch) = World::with_transactional_batch("ann@example.com").await;
    world.run("update batches set created_at = now() - interval '25 hours' where tenant_id = $1").await;
    world.stage().deliver(&[&batch]).await.unwrap();
    assert_eq!(world.row(batch.send(0)).await.state, "expired");
    assert_eq!(world.sink.inbox().stats().accepted, 0);
    world.assert_counters_are_right().await;
}

#[rstest]
#[case::taken("ann@example.com", row("sent", None, 3))]
#[case::refused_again("defer-451@example.com", row("expired", Some("temporary"), 3))]
#[tokio::test]
async fn the_last_attempt_of_a_transactional_message_is_made(#[case] address: &str, #[case] expected: Row) {
    let world = World::new().await;
    let batch = world.transactional_batch(address).await;
    // Its last attempt was due exactly at the deadline.
    world
        .run(
            "update batches set created_at = now() - interval '24 hours 1 minute', queued = 0, deferred = 1
             where tenant_id = $1",
        )
        .await;
    world
        .run(
            "update sends set state = 'deferred', reason = 'temporary', attempts = 2, next_attempt_at = now() - interval '1 minute'
             where tenant_id = $1",
        )
        .await;
    world.stage().deliver(&[&batch]).await.unwrap();
    assert_eq!(world.row(batch.send(0)).await, expected);
    world.assert_counters_are_right().await;
}

#[rstest]
#[case::queued(
    "update sends set attempts = 1 where tenant_id = $1",
    "update batches set created_at = now() - interval '24 hours 40 minutes' where tenant_id = $1"
)]
#[case::deferred_past_its_deadline(
    "update sends set state = 'deferred', reason = 'temporary', attempts = 1, next_attempt_at = now() where tenant_id = $1",
    "update batches set created_at = now() - interval '24 hours 40 minutes', queued = 0, deferred = 1 where tenant_id = $1"
)]
#[tokio::test]
async fn mail_that_waited_past_its_deadline_gets_no_last_attempt(#[case] send: &'static str, #[case] of: &'static str) {
    let (world, batch) = World::with_transactional_batch("ann@example.com").await;
    world.run(send).await;
    world.run(of).await;
    world.stage().deliver(&[&batch]).await.unwrap();
    assert_eq!(world.row(batch.send(0)).await.state, "expired");
    assert_eq!(world.sink.inbox().stats().accepted, 0);
    world.assert_counters_are_right().await;
}

#[rstest]
#[case::unsubscribed("update contacts set marketing_status = 'unsubscribed' where tenant_id = $1", "unsubscribed")]
#[case::archived("update contacts set status = 'archived' where tenant_id = $1", "contact_archived")]
#[case::bounced(
    "insert into suppressions (tenant_id, id, address, reason, scope, source)
     select tenant_id, id, address, 'hard_bounce', 'all', 'api' from contacts where tenant_id = $1",
    "hard_bounced"
)]
#[case::domain("update domains set status = 'failed' where tenant_id = $1", "domain_unverified")]
#[case::sender("update senders set status = 'disabled' where tenant_id = $1", "sender_disabled")]
#[case::tenant("update tenants set status = 'suspended' where id = $1", "tenant_suspended")]
#[case::erased("update contacts set status = 'erased', address = 'erased:x' where tenant_id = $1", "contact_archived")]
#[tokio::test]
async fn what_happened_since_the_compliance_gate_withholds_a_send(#[case] change: &'static str, #[case] reason: &str) {
    let (world, batch) = World::with_campaign_batch(&["ann@example.com"]).await;
    world.run(change).await;
    world.stage().deliver(&[&batch]).await.unwrap();
    assert_eq!(world.row(batch.send(0)).await, row("skipped", Some(reason), 0));
    assert_eq!(world.sink.inbox().stats().accepted, 0);
    assert_eq!(
        world.number("select sum(count)::int8 from rollups where tenant_id = $1 and event = 'skipped'").await,
        1
    );
    world.assert_counters_are_right().await;
}

#[rstest]
#[case::still_asked("pending", row("sent", None, 1))]
#[case::confirmed("subscribed", row("cancelled", None, 0))]
#[case::left("unsubscribed", row("skipped", Some("unsubscribed"), 0))]
#[tokio::test]
async fn nobody_is_asked_for_consent_who_has_answered(#[case] status: &str, #[case] expected: Row) {
    let (world, batch) = World::with_transactional_batch("ann@example.com").await;
    run!(
        &world.pool,
        "insert into requests (tenant_id, id, product, environment, kind, payload, options)
         values ($1, $2, 'shop', 'production', 'transactional', '{}', '{\"asks_to_confirm\": true}')",
        [world.tenant, batch.id]
    );
    run!(&world.pool, "update contacts set marketing_status = $2 where tenant_id = $1", [world.tenant, status]);
    world.stage().deliver(&[&batch]).await.unwrap();
    assert_eq!(world.row(batch.send(0)).await, expected);
    world.assert_counters_are_right().await;
}

#[rstest]
#[case::unsubscribed("update contacts set marketing_status = 'unsubscribed' where tenant_id = $1", None)]
#[case::archived("update contacts set status = 'archived' where tenant_id = $1", None)]
#[case::erased(
    "update contacts set status = 'erased', address = 'erased:x' where tenant_id = $1",
    Some("contact_archived")
)]
#[tokio::test]
async fn only_erasure_stops_transactional_mail(#[case] change: &'static str, #[case] reason: Option<&str>) {
    let (world, batch) = World::with_transactional_batch("ann@example.com").await;
    world.run(change).await;
    world.stage().deliver(&[&batch]).await.unwrap();
    let expected = if reason.is_some() { row("skipped", reason, 0) } else { row("sent", None, 1) };
    assert_eq!(world.row(batch.send(0)).await, expected);
}

#[tokio::test]
async fn a_cancelled_campaign_is_left_to_the_cancel_sweep() {
    let (world, batch) = World::with_campaign_batch(&["ann@example.com"]).await;
    world.run("update campaigns set status = 'cancelled' where tenant_id = $1").await;
    world.stage().deliver(&[&batch]).await.unwrap();
    assert_eq!(world.row(batch.send(0)).await, row("queued", None, 0));
    assert_eq!(world.sink.inbox().stats().accepted, 0);
    world.assert_counters_are_right().await;
}

#[tokio::test]
async fn a_paused_campaigns_batch_goes_back_to_waiting() {
    let (world, batch) = World::with_campaign_batch(&["ann@example.com"]).await;
    world.run("update campaigns set paused = true where tenant_id = $1").await;
    world.stage().deliver(&[&batch]).await.unwrap();
    assert_eq!(world.row(batch.send(0)).await, row("queued", None, 0));
    assert_eq!(world.text("select state from batches where tenant_id = $1").await.unwrap(), "waiting");
    world.assert_counters_are_right().await;
}

#[tokio::test]
async fn a_recipient_that_does_not_fit_its_skeleton_fails_alone() {
    let world = World::new().await;
    let (_, mut batch) = world.campaign_batch(&["ann@example.com", "bob@example.net", "eve@example.org"]).await;
    let recipient = |ordinal, address: &str, slots: &[&str]| {
        let slots: Vec<String> = slots.iter().map(|slot| (*slot).to_owned()).collect();
        RenderedRecipient::new(ordinal, Uuid::nil(), address, &slots)
    };
    batch.rendered.recipients[0] = recipient(0, "ann@example.com", &["ann@example.com"]);
    batch.rendered.recipients[1] = recipient(1, "bob@example.net", &["bob@example.net", "a\nb"]);
    world.stage().deliver(&[&batch]).await.unwrap();
    assert_eq!(world.row(batch.send(0)).await.reason.as_deref(), Some("render"));
    assert_eq!(world.states(&batch).await, ["failed", "failed", "sent"]);
    world.assert_counters_are_right().await;
}

#[tokio::test]
async fn an_unknown_skeleton_or_batch_is_rejected() {
    let world = World::new().await;
    let (_, mut batch) = world.campaign_batch(&["ann@example.com"]).await;
    batch.rendered.skeleton.0 = "00".into();
    let stage = world.stage();
    assert_eq!(stage.deliver(&[&batch]).await.unwrap_err().code(), "unknown_skeleton");
    batch.rendered.skeleton = world.skeleton.id();
    batch.rendered.batch_id = schemas::new_batch_id();
    assert_eq!(stage.deliver(&[&batch]).await.unwrap_err().code(), "unknown_batch");
    batch.rendered.batch_id = batch.id;
    assert_eq!(world.row(batch.send(0)).await, row("queued", None, 0));
}

#[tokio::test]
async fn transactional_messages_that_wait_together_are_sent_together() {
    let world = World::new().await;
    let mut batches = Vec::new();
    for number in 0..20 {
        batches.push(world.transactional_batch(&format!("user{number}@example.com")).await);
    }
    world.stage().deliver(&batches.iter().collect::<Vec<_>>()).await.unwrap();
    assert_eq!(world.sink.inbox().stats().accepted, 20);
    assert_eq!(world.number("select count(*) from batches where tenant_id = $1 and state = 'done'").await, 20);
    world.assert_counters_are_right().await;
}

#[tokio::test]
async fn a_campaign_mail_is_spliced_when_its_route_has_memory_for_it() {
    let (world, batch) = World::with_campaign_batch(&["ann@example.com"]).await;
    let (stage, inputs) = (world.stage(), [batch.rendered.clone()]);
    let admitted = stage.routes.admit(&inputs).await.unwrap();
    let parts = stage.sources.parts(&inputs, &admitted.routes).await.unwrap();
    let by_key = stage.by_key.of_lane(Lane::Bulk, "delivery");
    let owed = find_owed(&by_key, &inputs, stage.ledger.session().token(), &stage.warm).await.unwrap();
    let with_permits = |due| Sendable { due, pending_permit: None, _worker: None };
    let chunk: Vec<Sendable> = owed.sendable.into_iter().map(with_permits).collect();
    let outcomes = OutcomeNotifier::new(None, &inputs, &chunk);
    let context = SendContext { inputs: &inputs, parts: &parts, routes: &admitted.routes, outcomes: &outcomes };
    let limit = admitted.routes[0].in_memory.clone().unwrap();
    let all = limit.available_permits();
    let held = limit.acquire_many(u32::try_from(all).unwrap()).await.unwrap();
    let mut prepared = std::pin::pin!(prepare::prepare(&stage.sources, &context, chunk, &stage.shutdown));
    assert!(futures::poll!(&mut prepared).is_pending());
    drop(held);
    let ready = prepared.await;
    assert_eq!((ready.len(), limit.available_permits()), (1, all - 1));
    drop(ready);
    assert_eq!(limit.available_permits(), all);
}

/// A frame up to its recipients, and what may follow: counts, recipients, lengths that are too large or never end.
const FRAME: &[&[u8]] = &[
    b"\x01\0\0\x01\x02{\"tenant_id\":\"0197a1c2-7b1e-7c44-9d3f-2a6b8c0d1e2f\",\
      \"batch_id\":\"0197a1c2-7b1e-7c44-9d3f-2a6b8c0d1e00\",\"campaign_id\":null,\"kind\":\"campaign\",\
      \"lane\":\"bulk\",\"part\":0,\"skeleton\":\"s\",\"token_key\":[1,2,3],\"sending_domain\":\"a.test\",\
      \"return_path_domain\":\"send.a.test\"}",
    b"\0\x01",
    b"\0\x02",
    b"\xff\xff",
    b"\0\x03\0\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x0e\x0f\x05a@b.c",
    b"\x01\x03Ann",
    b"\x02\0\x01x",
    b"\x80",
    b"\xff\xff\xff\x7f",
    b"\x01{}",
];

#[test]
fn fuzz_rendered() {
    hostile::fuzz(FRAME, |input| {
        let Ok(message) = Rendered::of_frame(&input.to_vec().into()) else { return };
        for recipient in &message.recipients {
            let _ = (recipient.address(), recipient.slots());
        }
    });
}
