//! One-off messages: attachments, and those who wait.

use std::time::Duration;

use futures::{FutureExt, StreamExt};
use runtime::Bus;
use schemas::{messages::Decided, subjects};
use stage_rig::until;
use tokio::sync::mpsc;

use super::{
    super::attachments::LARGEST_MESSAGE,
    world::{Handle, World, row},
};
use crate::provider::tests::stand_in::{Act, StandIn};

/// Lines of base64, a little over so many bytes.
fn attachment(bytes: usize) -> Vec<u8> {
    format!("{}\r\n", "QUJD".repeat(19)).repeat(bytes / 78).into_bytes()
}

/// A bus, and the decisions published on this subject.
async fn listen(world: &World, subject: &str) -> (Bus, mpsc::UnboundedReceiver<Decided>) {
    let bus = world.bus().await;
    let mut messages = bus.client().subscribe(bus.prefixed(subject)).await.unwrap();
    bus.client().flush().await.unwrap();
    let (tell, heard) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Some(message) = messages.next().await {
            tell.send(serde_json::from_slice(&message.payload).unwrap()).unwrap();
        }
    });
    (bus, heard)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_attachment_reaches_every_recipient_whole() {
    let world = World::new().await;
    let notify = subjects::reply("waiter");
    let (bus, mut heard) = listen(&world, &notify).await;
    // More than may be in memory at once.
    let large = attachment(15 * 1024 * 1024);
    let addresses: Vec<String> = (0..8).map(|number| format!("p{number}@example.com")).collect();
    let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
    let heavy = world.one_off_batch(&addresses, &large, &notify).await;
    let light = world.transactional_batch("eve@example.org").await;
    let mut stage = world.stage_with(&["--dkim-sign", "false"]);
    stage.bus = Some(bus);
    stage.deliver(&[&heavy, &light]).await.unwrap();
    assert_eq!(world.states(&heavy).await, vec!["sent"; 8]);
    assert_eq!(world.states(&light).await, ["sent"]);
    for address in addresses {
        let mail = world.sink.inbox().messages(1, Some(address)).pop().unwrap();
        assert!(mail.source.ends_with(&large), "{address}");
    }
    let decided = tokio::time::timeout(Duration::from_secs(120), heard.recv()).await.unwrap().unwrap();
    assert_eq!((decided.tenant_id, decided.batch_id), (world.tenant, heavy.id));
    world.assert_counters_are_right().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn attachments_of_a_slow_connection_delay_no_others() {
    let mut world = World::new().await;
    let slow = StandIn::playing(vec![Act::Hang]).await;
    world.connection("postmark", &slow.host()).await;
    let notify = subjects::reply("waiter");
    // Two of these are more than the share of one connection.
    let addresses = ["ann@example.com", "bob@example.com", "eve@example.com"];
    let heavy = world.one_off_batch(&addresses, &attachment(15 * 1024 * 1024), &notify).await;
    world.become_another().await;
    let other = world.one_off_batch(&["ann@example.org"], &attachment(100), &notify).await;
    let stage = world.stage_with(&["--provider-allow-hosts", &slow.host(), "--provider-timeout", "10m"]);
    let other_comes = async {
        until("the slow one to be asked", async || !slow.seen().is_empty()).await;
        stage.deliver(&[&other]).await.unwrap();
    };
    let one = [&heavy];
    tokio::select! {
        _ = stage.deliver(&one) => panic!("the other waited for the slow one"),
        () = other_comes => {}
    }
    assert_eq!(world.states(&other).await, ["sent"]);
    assert_eq!(slow.seen().len(), 1, "the next waits for its connection's share");
}

#[tokio::test]
async fn the_largest_request_counts_whole_and_fits_beside_others() {
    let mut world = World::new().await;
    let stage = world.stage_with(&["--provider-allow-hosts", "127.0.0.1:1"]);
    let mut inputs = Vec::new();
    for has_connection in [true, true, false] {
        if has_connection {
            world.connection("resend", "127.0.0.1:1").await;
        }
        inputs.push(world.transactional_batch("ann@example.com").await.rendered);
        world.become_another().await;
    }
    let routes = stage.routes.admit(&inputs).await.unwrap().routes;
    let memory = &stage.sources.attachments;
    let reserve = |route: usize| memory.reserve_memory(LARGEST_MESSAGE, &routes[route]).now_or_never();
    let reserved = [0, 1, 2].map(|route| reserve(route).flatten().expect("the largest message fits"));
    assert!(reserve(0).is_none(), "it takes all of its connection's share");
    drop(reserved);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_is_notified_of_a_batch_with_nothing_to_send() {
    let world = World::new().await;
    let notify = subjects::reply("waiter");
    let (bus, mut heard) = listen(&world, &notify).await;
    let batch = world.one_off_batch(&["ann@example.com"], &attachment(100), &notify).await;
    let mut stage = world.stage();
    stage.bus = Some(bus);
    for _ in 0..2 {
        stage.deliver(&[&batch]).await.unwrap();
        tokio::time::timeout(Duration::from_secs(120), heard.recv()).await.unwrap().unwrap();
    }
    assert_eq!(world.sink.inbox().stats().accepted, 1);
}

#[tokio::test]
async fn a_message_whose_attachment_is_gone_fails_alone() {
    let world = World::new().await;
    let notify = subjects::reply("waiter");
    let batch = world.one_off_batch(&["ann@example.com"], &attachment(100), &notify).await;
    world.run("delete from message_attachments where tenant_id = $1").await;
    let light = world.transactional_batch("eve@example.org").await;
    world.stage().deliver(&[&batch, &light]).await.unwrap();
    assert_eq!(world.row(batch.send(0)).await, row("failed", Some("render"), 1));
    assert_eq!(world.states(&light).await, ["sent"]);
    assert_eq!(world.sink.inbox().stats().accepted, 1);
}

#[tokio::test]
async fn a_message_whose_attachment_postgres_refuses_waits_for_it() {
    let world = World::new().await;
    let notify = subjects::reply("waiter");
    let batch = world.one_off_batch(&["ann@example.com"], &attachment(100), &notify).await;
    let stage = world.stage();
    // As its login, which owns the tables.
    let mut owner = world.pool.acquire().await.unwrap().detach();
    sqlx::raw_sql("set role none; revoke select on message_attachments from postrider_stages")
        .execute(&mut owner)
        .await
        .unwrap();
    let batches = [&batch];
    let mut delivered = std::pin::pin!(stage.deliver(&batches));
    assert!(tokio::time::timeout(Duration::from_millis(500), &mut delivered).await.is_err());
    assert_eq!(world.states(&batch).await, ["queued"]);
    sqlx::raw_sql("grant select on message_attachments to postrider_stages").execute(&mut owner).await.unwrap();
    delivered.await.unwrap();
    assert_eq!(world.states(&batch).await, ["sent"]);
}
