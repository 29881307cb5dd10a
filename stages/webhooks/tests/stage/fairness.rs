//! One endpoint never delays another, and none is overrun.

use stage_rig::until;

use crate::{
    receiver::{Manner, Receiver},
    world::World,
};

#[tokio::test]
async fn an_endpoint_has_four_requests_at_a_time_over_all_processes() {
    let world = World::new().await;
    let receiver = Receiver::start(Manner::Gated(200)).await;
    world.subscribe(&receiver.url, &["email.opened"]).await;
    world.start(&[]).await;
    world.start(&[]).await;
    world.opened(60).await;
    // The first answer shows that somebody is there.
    receiver.has(1).await;
    receiver.let_through(1);
    until("four are under way", async || receiver.under_way() == 4).await;
    for _ in 0..59 {
        receiver.let_through(1);
    }
    until("all are delivered", async || world.deliveries("delivered").await == 60).await;
    assert_eq!((receiver.most(), receiver.count()), (4, 60));
}

#[tokio::test]
async fn silent_receivers_delay_no_other_receiver() {
    let world = World::new().await;
    let mut silent = Vec::new();
    for _ in 0..20 {
        let receiver = Receiver::start(Manner::Silent).await;
        world.subscribe(&receiver.url, &["email.opened"]).await;
        silent.push(receiver);
    }
    let healthy = Receiver::start(Manner::Status(200)).await;
    world.subscribe(&healthy.url, &["email.opened"]).await;
    // Fewer sockets than a shared queue would need for the silent alone.
    world.start(&["--webhook-in-flight", "24", "--webhook-timeout", "10m"]).await;
    for _ in 0..10 {
        world.opened(100).await;
    }
    healthy.has(1_000).await;
    until("all of the healthy is delivered", async || world.deliveries("delivered").await == 1_000).await;
    for receiver in silent {
        assert_eq!(receiver.count(), 1, "one request finds out that nobody is there");
    }
    assert_eq!(world.deliveries("pending").await, 20_000);
}

#[tokio::test]
async fn a_backlog_longer_than_memory_is_delivered_from_the_ledger() {
    let world = World::new().await;
    let receiver = Receiver::start(Manner::Gated(200)).await;
    world.subscribe(&receiver.url, &["email.opened"]).await;
    world.start(&[]).await;
    for _ in 0..3 {
        world.opened(500).await;
    }
    until("all wait", async || world.deliveries("pending").await == 1_500).await;
    receiver.let_through(1_500);
    until("all are delivered", async || world.deliveries("delivered").await == 1_500).await;
    assert_eq!(receiver.count(), 1_500, "none twice");
}
