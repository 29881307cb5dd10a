//! The sandbox: nothing leaves, everything can be read, magic recipients do what their name says.

use std::{io::ErrorKind, net::TcpListener};

use ledger::fence::{Answer, Change, Fence, Ledger};
use rstest::rstest;
use runtime::Bus;
use schemas::{Signal, SignalKind, subjects::stream};

use super::panics::owed;
use super::world::{Handle, World, row};
use crate::stage::Delivery;

/// A stage with a bus, which has no streams yet.
async fn on_the_bus(world: &World) -> (Delivery, Bus) {
    let bus = world.bus().await;
    let mut stage = world.stage();
    stage.bus = Some(bus.clone());
    (stage, bus)
}

/// The facts that the bus has.
async fn published(bus: &Bus) -> Vec<Signal> {
    let stream = bus.jetstream().get_stream(bus.prefixed(stream::SIGNALS)).await.unwrap();
    let last = stream.get_info().await.unwrap().state.last_sequence;
    let mut found = Vec::new();
    for sequence in 1..=last {
        let message = stream.get_raw_message(sequence).await.unwrap();
        found.push(serde_json::from_slice(&message.payload).unwrap());
    }
    found
}

#[tokio::test]
async fn sandbox_mail_is_captured_without_a_connection() {
    let world = World::of_environment("sandbox").await;
    // Neither to the relay nor to the tenant's own connection.
    let relay = TcpListener::bind("127.0.0.1:0").unwrap();
    relay.set_nonblocking(true).unwrap();
    let address = relay.local_addr().unwrap().to_string();
    world.connection("resend", &address).await;
    let (_, batch) = world.campaign_batch(&["ann@example.com", "bob@example.net"]).await;
    let prompt = world.transactional_batch("eve@example.org").await;
    let url = format!("smtp://{address}?tls=none");
    let stage = world.stage_with(&["--smtp-url", &url, "--provider-allow-hosts", &address]);
    stage.deliver(&[&batch]).await.unwrap();
    stage.deliver(&[&prompt]).await.unwrap();
    assert_eq!(relay.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
    assert_eq!(world.states(&batch).await, ["sent", "sent"]);
    assert_eq!(world.states(&prompt).await, ["sent"]);
    let told = "select distinct provider || ' ' || response from sends where tenant_id = $1";
    assert_eq!(world.text(told).await.unwrap(), "capture captured");
    let source = "select convert_from(source, 'utf8') from captured_mails m join sends s on s.id = m.send_id
                  where m.tenant_id = $1 and s.request_id is not null";
    let source = world.text(source).await.unwrap();
    assert!(source.contains("To: eve@example.org\r\n") && source.contains("\r\nSubject: Hello\r\n"), "{source}");
    world.assert_counters_are_right().await;
}

#[tokio::test]
async fn the_sandbox_works_while_the_relay_is_away() {
    let mut world = World::new().await;
    let stage = world.stage_with(&["--smtp-url", "smtp://127.0.0.1:1?tls=none"]);
    let (_, batch) = world.campaign_batch(&["ann@example.com"]).await;
    stage.deliver(&[&batch]).await.unwrap();
    assert_eq!(world.states(&batch).await, ["queued"]);
    world.become_another().await;
    world.run("update tenants set environment = 'sandbox' where id = $1").await;
    let (_, captured) = world.campaign_batch(&["ann@example.com"]).await;
    stage.deliver(&[&batch, &captured]).await.unwrap();
    assert_eq!(world.states(&captured).await, ["sent"]);
}

#[tokio::test]
async fn only_the_newest_captured_mails_are_kept() {
    let world = World::of_environment("sandbox").await;
    world
        .run(
            "insert into captured_mails (tenant_id, send_id, source, is_cut, captured_at)
             select $1, gen_random_uuid(), '\\x00', false, now() - interval '1 hour' from generate_series(1, 600)",
        )
        .await;
    let (_, batch) = world.campaign_batch(&["ann@example.com"]).await;
    world.stage().deliver(&[&batch]).await.unwrap();
    let kept = "select count(*) from captured_mails where tenant_id = $1";
    assert_eq!(world.number(kept).await, 500);
    let own = "select count(*) from captured_mails where tenant_id = $1 and octet_length(source) > 1";
    assert_eq!(world.number(own).await, 1);
}

#[tokio::test]
async fn a_magic_recipient_bounces() {
    let world = World::of_environment("sandbox").await;
    let (_, batch) = world.campaign_batch(&["bounced+1@sandbox.test"]).await;
    world.stage().deliver(&[&batch]).await.unwrap();
    assert_eq!(world.row(batch.send(0)).await, row("failed", Some("hard"), 1));
    assert_eq!(world.number("select count(*) from suppressions where tenant_id = $1").await, 1);
    assert_eq!(world.number("select count(*) from captured_mails where tenant_id = $1").await, 0);
    world.assert_counters_are_right().await;
}

#[tokio::test]
async fn a_magic_recipient_is_ready_at_the_second_attempt() {
    let world = World::of_environment("sandbox").await;
    let (_, batch) = world.campaign_batch(&["deferred@sandbox.test"]).await;
    let stage = world.stage();
    stage.deliver(&[&batch]).await.unwrap();
    assert_eq!(world.row(batch.send(0)).await, row("deferred", Some("temporary"), 1));
    world.run("update sends set next_attempt_at = now() where tenant_id = $1 and state = 'deferred'").await;
    stage.deliver(&[&batch]).await.unwrap();
    assert_eq!(world.row(batch.send(0)).await, row("sent", None, 2));
    world.assert_counters_are_right().await;
}

#[rstest]
#[case::plain("sandbox", "suppressed@sandbox.test", "skipped")]
#[case::tagged("sandbox", "suppressed+a@sandbox.test", "skipped")]
#[case::another_name("sandbox", "suppressedly@sandbox.test", "sent")]
#[case::production("production", "suppressed@sandbox.test", "sent")]
#[tokio::test]
async fn a_magic_recipient_is_suppressed_in_the_sandbox_without_a_row(
    #[case] environment: &str,
    #[case] address: &str,
    #[case] state: &str,
) {
    let world = World::of_environment(environment).await;
    let batch = world.transactional_batch(address).await;
    world.stage().deliver(&[&batch]).await.unwrap();
    assert_eq!(world.row(batch.send(0)).await.state, state);
    let reason = if state == "skipped" { Some("suppressed") } else { None };
    assert_eq!(world.row(batch.send(0)).await.reason.as_deref(), reason);
    assert_eq!(world.number("select count(*) from suppressions where tenant_id = $1").await, 0);
}

#[rstest]
#[case("ann@example.com", &[])]
#[case("delivered@sandbox.test", &["delivered"])]
#[case("opened@sandbox.test", &["delivered", "opened"])]
#[case("clicked@sandbox.test", &["delivered", "opened", "clicked"])]
#[case("complained@sandbox.test", &["delivered", "complained"])]
#[tokio::test]
async fn facts_of_magic_recipients_become_events(#[case] address: &str, #[case] facts: &[&str]) {
    let world = World::of_environment("sandbox").await;
    let batch = world.transactional_batch(address).await;
    let (stage, bus) = on_the_bus(&world).await;
    bus.apply_streams().await.unwrap();
    stage.deliver(&[&batch]).await.unwrap();
    let signals = published(&bus).await;
    assert_eq!(signals.iter().map(|signal| signal.kind.label()).collect::<Vec<_>>(), facts);
    assert!(signals.iter().all(|signal| signal.send_id == batch.send(0) && signal.tenant_id == world.tenant));
    if let Some(SignalKind::Clicked { url, .. }) = signals.last().map(|signal| &signal.kind) {
        assert_eq!(url, "https://sandbox.test/");
    }
    // A repeat of the message finds nothing to do and publishes nothing.
    stage.deliver(&[&batch]).await.unwrap();
    assert_eq!(published(&bus).await.len(), facts.len());
}

#[tokio::test]
async fn a_mail_is_captured_when_its_facts_are_published() {
    let world = World::of_environment("sandbox").await;
    let batch = world.transactional_batch("delivered@sandbox.test").await;
    let (stage, bus) = on_the_bus(&world).await;
    // The bus takes nothing yet.
    stage.deliver(&[&batch]).await.unwrap();
    assert_eq!(world.row(batch.send(0)).await, row("queued", None, 0));
    bus.apply_streams().await.unwrap();
    stage.deliver(&[&batch]).await.unwrap();
    assert_eq!(world.row(batch.send(0)).await, row("sent", None, 1));
    assert_eq!(published(&bus).await.len(), 1);
    world.assert_counters_are_right().await;
}

#[tokio::test]
async fn a_delivery_that_is_recorded_before_the_result_counts_once() {
    let world = World::of_environment("sandbox").await;
    let batch = world.transactional_batch("delivered@sandbox.test").await;
    let ledger = Ledger::start(&world.pool, world.settings(&[]).ledger()).unwrap();
    let send = owed(&world, &ledger, &[&batch]).await.remove(0);
    let Fence::Passed { metered_on, .. } = ledger.fence(send.clone()).await else { panic!("not fenced") };
    let delivered = Signal {
        signal_id: schemas::new_id(),
        tenant_id: world.tenant,
        send_id: send.id,
        occurred_at: chrono::Utc::now(),
        kind: SignalKind::Delivered,
        ip: None,
        user_agent: None,
    };
    let mut tx = world.pool.begin().await.unwrap();
    ledger::facts::record(&mut tx, &[delivered], &[], 0).await.unwrap();
    tx.commit().await.unwrap();
    world.assert_counters_are_right().await;
    let sent = Change::sent(send.fenced(Some(metered_on)), Answer::default()).by("capture", None);
    ledger.record(sent).await.await.unwrap();
    assert_eq!(world.row(batch.send(0)).await, row("sent", None, 1));
    world.assert_counters_are_right().await;
    assert_eq!(world.number("select sum(confirmed)::int8 from batches where tenant_id = $1").await, 0);
}
