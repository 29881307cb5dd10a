//! Replays: the same events with the same bytes, also to who came later.

use std::collections::BTreeMap;

use axum::body::Bytes;
use schemas::new_id;
use serde_json::json;
use stage_rig::until;

use crate::{
    receiver::{Manner, Receiver},
    world::{World, notice},
};

fn told(receiver: &Receiver) -> BTreeMap<String, Bytes> {
    receiver.hits().into_iter().map(|hit| (hit.event(), hit.body)).collect()
}

async fn is_over(world: &World, replay: uuid::Uuid) -> bool {
    let status: String = sqlx::query_scalar("select status from webhook_replays where id = $1")
        .bind(replay)
        .fetch_one(&world.rig.pool)
        .await
        .unwrap();
    status == "completed"
}

#[tokio::test]
async fn a_replay_to_a_new_subscription_has_the_same_bytes() {
    let world = World::new().await;
    let types = ["email.opened", "contact.created", "campaign.sent"];
    let (first, later) = (Receiver::start(Manner::Status(200)).await, Receiver::start(Manner::Status(200)).await);
    world.subscribe(&first.url, &types).await;
    world.start(&[]).await;
    world.opened(50).await;
    world.rig.people(&world.tenant, 10).await;
    notice(&world.rig, &world.tenant, "campaign.sent", None, new_id(), json!({"name": "May"})).await;
    until("all are delivered", async || world.deliveries("delivered").await == 61).await;
    let subscription = world.subscribe(&later.url, &types).await;
    let replay = world.replay(subscription).await;
    until("the replay is over", async || is_over(&world, replay).await).await;
    until("nothing waits", async || world.deliveries("pending").await == 0).await;
    let (first, later) = (told(&first), told(&later));
    assert!(first.iter().all(|(id, body)| later.get(id) == Some(body)));
    // The people of before the first subscription are contacts that were created as well.
    assert_eq!(later.len(), 61 + 500);
}

#[tokio::test]
async fn a_replay_repeats_ended_and_leaves_pending_deliveries() {
    let world = World::new().await;
    let receiver = Receiver::start(Manner::Status(200)).await;
    let subscription = world.subscribe(&receiver.url, &["email.opened"]).await;
    world.start(&[]).await;
    world.opened(20).await;
    until("all are delivered", async || world.deliveries("delivered").await == 20).await;
    receiver.manner(Manner::Status(500));
    world.opened(5).await;
    let waiting = "select count(*) from webhook_deliveries where status = 'pending' and attempts = 1";
    until("five wait", async || world.rig.number(waiting).await == 5).await;
    receiver.manner(Manner::Status(200));
    let replay = world.replay(subscription).await;
    until("the replay is over", async || is_over(&world, replay).await).await;
    until("only those wait that waited", async || world.deliveries("delivered").await == 20).await;
    assert_eq!(world.rig.number(waiting).await, 5);
    assert_eq!(receiver.count(), 20 + 5 + 20);
    assert_eq!(told(&receiver).len(), 25, "as many bodies as events");
    assert_eq!(world.rig.number("select deliveries from webhook_replays").await, 20);
}

#[tokio::test]
async fn a_replay_for_a_disabled_subscription_is_cancelled() {
    let world = World::new().await;
    let receiver = Receiver::start(Manner::Status(200)).await;
    let subscription = world.subscribe(&receiver.url, &["email.opened"]).await;
    world.opened(3).await;
    world.set_status(subscription, "disabled").await;
    world.replay(subscription).await;
    world.start(&[]).await;
    let cancelled = "select count(*) from webhook_replays where status = 'cancelled' and finished_at is not null";
    until("it is cancelled", async || world.rig.number(cancelled).await == 1).await;
    assert_eq!(receiver.count(), 0);
}
