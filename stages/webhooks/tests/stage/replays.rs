//! Replays: the same events with the same bytes, also to who came later.

use std::collections::BTreeMap;

use bytes::Bytes;
use schemas::new_id;
use serde_json::json;
use stage_rig::{
    receiver::{Manner, Receiver},
    until,
};

use crate::world::{World, facts, mail, notice};

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
    let (world, receiver, subscription) = World::receiving(Manner::Status(200), &["email.opened"]).await;
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

/// An acceptance stands in the row of its send; one by a provider's report is an event.
#[tokio::test]
async fn a_replay_has_the_acceptances_of_its_time_once() {
    let (world, receiver, subscription) = World::receiving(Manner::Status(200), &["email.sent"]).await;
    for _ in 0..2 {
        mail(&world.rig, &world.tenant, 500).await;
    }
    sqlx::raw_sql(
        "update sends set state = 'sent', attempts = 1, provider = 'smtp', smtp_code = 250, decided_at = now();
         update batches set queued = 0, sent = size, state = 'done', done_at = now()",
    )
    .execute(&world.rig.pool)
    .await
    .unwrap();
    let reported = [world.send(0), world.send(1)];
    facts(&world.rig, &world.tenant, &reported, "sent", json!({"attempt": 1, "evidence": true})).await;
    let earlier = "update sends set decided_at = now() - interval '2 hours' where id = $1";
    world.execute(earlier, world.send(2)).await;
    world.start(&[]).await;
    until("the reported ones are delivered", async || world.deliveries("delivered").await == 2).await;
    for _ in 0..2 {
        let replay = world.replay(subscription).await;
        until("the replay is over", async || is_over(&world, replay).await).await;
        until("nothing waits", async || world.deliveries("pending").await == 0).await;
    }
    assert_eq!(world.rig.number("select min(deliveries) from webhook_replays").await, 1_499);
    assert_eq!(receiver.count(), 2 + 2 * 1_499);
    assert_eq!(told(&receiver).len(), 1_499, "as many bodies as events");
}

#[tokio::test]
async fn a_replay_for_a_disabled_subscription_is_cancelled() {
    let (world, receiver, subscription) = World::receiving(Manner::Status(200), &["email.opened"]).await;
    world.opened(3).await;
    world.set_status(subscription, "disabled").await;
    world.replay(subscription).await;
    world.start(&[]).await;
    let cancelled = "select count(*) from webhook_replays where status = 'cancelled' and finished_at is not null";
    until("it is cancelled", async || world.rig.number(cancelled).await == 1).await;
    assert_eq!(receiver.count(), 0);
}

async fn suppress(world: &World, address: &str) {
    sqlx::query(
        "insert into suppressions (tenant_id, id, address, reason, scope, source) values ($1, $2, $3, 'manual', 'marketing', 'api')",
    )
    .bind(world.tenant.id)
    .bind(new_id())
    .bind(address)
    .execute(&world.rig.pool)
    .await
    .unwrap();
}

#[tokio::test]
async fn suppressions_from_before_any_subscription_are_replayed() {
    let world = World::new().await;
    suppress(&world, "ann@example.com").await;
    let ends_at = "update suppressions set expires_at = '2037-02-03T04:05:06.789Z'";
    sqlx::query(ends_at).execute(&world.rig.pool).await.unwrap();
    let receiver = Receiver::start(Manner::Status(200)).await;
    let subscription = world.subscribe(&receiver.url, &["suppression.added"]).await;
    world.start(&[]).await;
    world.replay(subscription).await;
    receiver.has(2).await;
    for hit in receiver.hits() {
        assert_eq!(hit.json()["data"]["email"], json!("ann@example.com"));
    }
    // Both are made anew, with what they said then.
    let ends: Vec<_> = receiver.hits().iter().filter_map(|hit| hit.json()["data"].get("expires_at").cloned()).collect();
    assert_eq!(ends, [json!("2037-02-03T04:05:06.789Z")]);
}

#[tokio::test]
async fn a_suppression_that_becomes_stricter_is_an_event() {
    let world = World::new().await;
    suppress(&world, "ann@example.com").await;
    for (change, events) in [
        ("note = 'asked by phone'", 1),
        ("expires_at = now() + interval '1 day'", 2),
        ("expires_at = null", 3),
        ("scope = 'all'", 4),
        ("source = 'recipient'", 5),
        ("source = source, scope = scope", 5),
    ] {
        sqlx::query(sqlx::AssertSqlSafe(format!("update suppressions set {change}")))
            .execute(&world.rig.pool)
            .await
            .unwrap();
        let told = "select count(*) from notices where type = 'suppression.added'";
        assert_eq!(world.rig.number(told).await, events, "{change}");
    }
}

#[tokio::test]
async fn the_event_of_a_suppressed_address_is_erased_with_its_later_contact() {
    let (world, receiver, subscription) = World::receiving(Manner::Status(200), &["suppression.added"]).await;
    world.start(&[]).await;
    suppress(&world, "ann@example.com").await;
    until("it is delivered", async || world.deliveries("delivered").await == 1).await;
    let stored = "select count(*) from webhook_events where strpos(convert_from(body, 'UTF8'), 'ann@example.com') > 0";
    assert_eq!(world.rig.number(stored).await, 1);
    let ann = world.rig.people(&world.tenant, 1).await.remove(0);
    for sql in [
        "update contacts set address = 'ann@example.com' where id = $1",
        "update contacts set status = 'erased', address = 'erased:1' where id = $1",
    ] {
        sqlx::query(sql).bind(ann.id).execute(&world.rig.pool).await.unwrap();
    }
    assert_eq!(world.rig.number("select count(*) from webhook_events").await, 0);
    world.replay(subscription).await;
    receiver.has(2).await;
    let replayed = receiver.hits()[1].json()["data"].clone();
    assert_eq!((&replayed["contact_id"], &replayed["email"]), (&json!(ann.id), &json!(null)));
}
