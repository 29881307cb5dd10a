//! What becomes of a delivery, by what its receiver does.

use std::collections::BTreeSet;

use rstest::rstest;
use serde_json::json;
use stage_rig::{
    receiver::{Manner, Receiver},
    until,
};

use crate::world::{AT_ONCE, World};

/// Status code and error code of the only delivery.
async fn codes(world: &World) -> (Option<i16>, Option<String>) {
    sqlx::query_as("select status_code, error_code from webhook_deliveries").fetch_one(&world.rig.pool).await.unwrap()
}

/// Seconds from the only delivery's last attempt to the next.
async fn pause(world: &World) -> i64 {
    world.rig.number("select extract(epoch from next_attempt_at - attempted_at)::bigint from webhook_deliveries").await
}

async fn one_attempt(world: &World) {
    let tried = "select count(*) from webhook_deliveries where attempts >= 1";
    until("an attempt is recorded", async || world.rig.number(tried).await == 1).await;
}

#[tokio::test]
async fn five_failures_with_one_id_and_one_body_and_it_is_dead() {
    let (world, receiver, _) = World::receiving(Manner::Status(500), &["email.opened"]).await;
    world.start(AT_ONCE).await;
    world.opened(1).await;
    until("it is dead", async || world.deliveries("dead").await == 1).await;
    let hits = receiver.hits();
    let attempts: Vec<&str> = hits.iter().map(|hit| hit.header("x-service-attempt")).collect();
    assert_eq!(attempts, ["1", "2", "3", "4", "5"]);
    assert_eq!(hits.iter().map(|hit| (hit.event(), hit.body.clone())).collect::<BTreeSet<_>>().len(), 1);
    assert_eq!(codes(&world).await, (Some(500), Some("server_error".to_owned())));
    let left = "select (select count(*) from webhook_queue) + (select count(*) from webhook_deliveries where next_attempt_at is not null)";
    assert_eq!(world.rig.number(left).await, 0);
    assert_eq!(world.rig.number("select count(*) from webhook_subscriptions where failing_since is not null").await, 1);
}

#[tokio::test]
async fn a_receiver_that_is_back_gets_it_and_is_not_failing_any_more() {
    let (world, receiver, _) = World::receiving(Manner::Status(503), &["email.opened"]).await;
    world.start(&["--webhook-backoff", "1ms,1ms,1ms,1ms,1h,1h,1h,1h"]).await;
    world.opened(1).await;
    receiver.has(2).await;
    receiver.manner(Manner::Status(200));
    until("it is delivered", async || world.deliveries("delivered").await == 1).await;
    let failing = "select count(*) from webhook_subscriptions where failing_since is not null";
    until("nothing fails", async || world.rig.number(failing).await == 0).await;
}

#[rstest]
#[case::by_the_schedule(Manner::Status(500), 60, 67)]
#[case::when_asked_to_wait(Manner::Wait(429, "120"), 120, 133)]
#[case::no_longer_than_the_next_pause(Manner::Wait(503, "86400"), 300, 331)]
#[case::no_sooner_than_the_schedule(Manner::Wait(503, "1"), 60, 67)]
#[case::only_those_two_may_ask(Manner::Wait(500, "120"), 60, 67)]
#[tokio::test]
async fn a_failed_delivery_is_tried_again_in_time(#[case] manner: Manner, #[case] at_least: i64, #[case] at_most: i64) {
    let (world, ..) = World::receiving(manner, &["email.opened"]).await;
    world.start(&[]).await;
    world.opened(1).await;
    one_attempt(&world).await;
    let pause = pause(&world).await;
    assert!((at_least..=at_most).contains(&pause), "{pause}");
    assert_eq!(world.deliveries("pending").await, 1);
}

#[tokio::test]
async fn redirects_are_not_followed() {
    let world = World::new().await;
    let target = Receiver::start(Manner::Status(200)).await;
    let receiver = Receiver::start(Manner::Redirect(target.url.clone())).await;
    world.subscribe(&receiver.url, &["email.opened"]).await;
    world.start(AT_ONCE).await;
    world.opened(1).await;
    until("it is dead", async || world.deliveries("dead").await == 1).await;
    assert_eq!(target.count(), 0);
    assert_eq!(codes(&world).await, (Some(307), Some("redirected".to_owned())));
}

#[tokio::test]
async fn no_answer_in_time_is_a_failure() {
    let (world, ..) = World::receiving(Manner::Silent, &["email.opened"]).await;
    world.start(&["--webhook-timeout", "200ms"]).await;
    world.opened(1).await;
    one_attempt(&world).await;
    assert_eq!(codes(&world).await, (None, Some("timed_out".to_owned())));
}

#[tokio::test]
async fn a_long_answer_is_a_success_all_the_same() {
    let (world, receiver, _) = World::receiving(Manner::Huge(1_000_000), &["email.opened"]).await;
    world.start(&[]).await;
    world.opened(2).await;
    until("both are delivered", async || world.deliveries("delivered").await == 2).await;
    assert_eq!(receiver.count(), 2);
}

#[tokio::test]
async fn an_address_that_may_not_be_dialled_is_never_dialled() {
    let world = World::new().await;
    world.subscribe("http://10.0.0.1/hook", &["email.opened"]).await;
    world.start(AT_ONCE).await;
    world.opened(1).await;
    until("it is dead", async || world.deliveries("dead").await == 1).await;
    assert_eq!(codes(&world).await, (None, Some("address_not_allowed".to_owned())));
}

#[tokio::test]
async fn gone_switches_the_subscription_off_and_what_waits_is_dead() {
    let (world, receiver, _) = World::receiving(Manner::Status(410), &["email.opened"]).await;
    world.start(&[]).await;
    world.opened(20).await;
    until("all are dead", async || world.deliveries("dead").await == 20).await;
    let reason = world.text("select disabled_reason from webhook_subscriptions where status = 'disabled'").await;
    assert_eq!(reason.as_deref(), Some("gone"));
    assert!(receiver.count() < 20, "nothing is posted to who wants no more");
    let audited = "select count(*) from audit_log where action = 'webhook.disabled' and detail ->> 'reason' = 'gone'";
    assert_eq!(world.rig.number(audited).await, 1);
    assert_eq!(world.rig.number("select count(*) from event_listeners").await, 0);
    let told = "select concat_ws(' ', n.product, n.data ->> 'reason') from notices n
                join webhook_subscriptions w on w.id = n.subject_id where n.type = 'webhook.disabled'";
    assert!(world.text(told).await.is_some_and(|told| told.ends_with(" gone")), "an event for its product");
}

/// A world whose subscription has failed for six days, with a delivery of so many days ago.
async fn failing(days: i32) -> World {
    let (world, _, subscription) = World::receiving(Manner::Status(500), &["email.opened"]).await;
    sqlx::query(
        "with s as (
             update webhook_subscriptions set failing_since = now() - interval '6 days' where id = $1
             returning tenant_id, id, product
         )
         insert into webhook_deliveries (tenant_id, id, subscription_id, product, event_id, type, status, created_at)
         select tenant_id, gen_random_uuid(), id, product, gen_random_uuid(), 'email.opened', 'delivered', now() - make_interval(days => $2)
         from s",
    )
    .bind(subscription)
    .bind(days)
    .execute(&world.rig.pool)
    .await
    .unwrap();
    world
}

#[tokio::test]
async fn a_subscription_that_fails_for_days_is_disabled() {
    let world = failing(2).await;
    world.start(&[]).await;
    world.opened(1).await;
    until("it is dead", async || world.deliveries("dead").await == 1).await;
    let reason = world.text("select disabled_reason from webhook_subscriptions where status = 'disabled'").await;
    assert_eq!(reason.as_deref(), Some("failing"));
}

#[tokio::test]
async fn a_failure_after_quiet_days_disables_nothing() {
    let world = failing(6).await;
    world.start(&[]).await;
    world.opened(1).await;
    let tried = "select count(*) from webhook_deliveries where attempts = 1 and status = 'pending'";
    until("an attempt is recorded", async || world.rig.number(tried).await == 1).await;
    let anew = "select count(*) from webhook_subscriptions
                where status = 'active' and failing_since > now() - interval '1 hour'";
    assert_eq!(world.rig.number(anew).await, 1);
}

#[tokio::test]
async fn a_paused_subscription_delivers_after_it_resumes() {
    let (world, receiver, subscription) = World::receiving(Manner::Status(200), &["email.opened"]).await;
    world.set_status(subscription, "paused").await;
    world.start(&[]).await;
    world.opened(5).await;
    until("they wait", async || world.deliveries("pending").await == 5).await;
    world.opened(2).await;
    until("more wait", async || world.deliveries("pending").await == 7).await;
    assert_eq!(receiver.count(), 0);
    world.set_status(subscription, "active").await;
    until("all are delivered", async || world.deliveries("delivered").await == 7).await;
    assert_eq!(receiver.count(), 7);
}

#[tokio::test]
async fn a_resumed_subscription_fails_from_its_resumption_on() {
    let (world, _, subscription) = World::receiving(Manner::Status(500), &["email.opened"]).await;
    world.start(&["--webhook-backoff", "1h"]).await;
    world.opened(1).await;
    let failing = "select count(*) from webhook_subscriptions where failing_since is not null";
    until("it fails", async || world.rig.number(failing).await == 1).await;
    // Paused and resumed while its queue in memory is empty.
    world.execute("update webhook_subscriptions set failing_since = null where id = $1", subscription).await;
    world.opened(1).await;
    until("its failures count anew", async || world.rig.number(failing).await == 1).await;
}

#[tokio::test]
async fn a_repointed_subscription_is_delivered_to_at_its_new_address() {
    let world = World::new().await;
    let (old, new) = (Receiver::start(Manner::Status(500)).await, Receiver::start(Manner::Status(200)).await);
    let subscription = world.subscribe(&old.url, &["email.opened"]).await;
    world.start(&["--webhook-backoff", "2s,2s,2s,2s,2s,2s,2s,2s"]).await;
    world.opened(1).await;
    old.has(1).await;
    sqlx::query("update webhook_subscriptions set url = $2 where id = $1")
        .bind(subscription)
        .bind(&new.url)
        .execute(&world.rig.pool)
        .await
        .unwrap();
    until("it is delivered", async || world.deliveries("delivered").await == 1).await;
    assert_eq!(new.events(), old.events()[..1]);
}

/// What the old address answers late says nothing about the new one: neither that it is gone, nor for how long it fails.
#[rstest]
#[case::gone(410, 200, "delivered")]
#[case::failing(500, 500, "dead")]
#[tokio::test]
async fn the_old_address_does_not_disable_the_new_one(#[case] late: u16, #[case] then: u16, #[case] end: &str) {
    let world = World::new().await;
    let (old, new) = (Receiver::start(Manner::Gated(late)).await, Receiver::start(Manner::Status(then)).await);
    let subscription = world.subscribe(&old.url, &["email.opened"]).await;
    let long_ago = "update webhook_subscriptions set failing_since = now() - interval '6 days' where id = $1";
    world.execute(long_ago, subscription).await;
    world.start(AT_ONCE).await;
    world.opened(1).await;
    old.has(1).await;
    sqlx::query("update webhook_subscriptions set url = $2, failing_since = null where id = $1")
        .bind(subscription)
        .bind(&new.url)
        .execute(&world.rig.pool)
        .await
        .unwrap();
    old.let_through(1);
    until("it ended", async || world.deliveries(end).await == 1).await;
    assert!(new.count() >= 1);
    let kept = "select count(*) from webhook_subscriptions
                where status = 'active' and coalesce(failing_since, now()) > now() - interval '1 hour'";
    assert_eq!(world.rig.number(kept).await, 1);
}

#[tokio::test]
async fn what_waits_for_a_deleted_subscription_is_dead() {
    let (world, _, subscription) = World::receiving(Manner::Status(500), &["email.opened"]).await;
    world.start(&[]).await;
    world.opened(3).await;
    let tried = "select count(*) from webhook_deliveries where attempts = 1";
    until("all are tried", async || world.rig.number(tried).await == 3).await;
    world.set_status(subscription, "disabled").await;
    until("all are dead", async || world.deliveries("dead").await == 3).await;
    assert_eq!(world.rig.number("select count(*) from webhook_queue").await, 0);
}

#[tokio::test]
async fn what_arrives_while_its_subscription_is_deleted_is_delivered() {
    let (world, receiver, subscription) = World::receiving(Manner::Gated(200), &["email.opened"]).await;
    world.start(&[]).await;
    world.opened(2).await;
    receiver.has(1).await;
    world.set_status(subscription, "disabled").await;
    until("both are dead", async || world.deliveries("dead").await == 2).await;
    receiver.let_through(1);
    until("one is delivered", async || world.deliveries("delivered").await == 1).await;
    assert_eq!((receiver.count(), world.deliveries("dead").await), (1, 1));
    assert_eq!(world.rig.number("select count(*) from webhook_dead").await, 1);
}

#[tokio::test]
async fn no_event_is_delivered_about_an_erased_contact() {
    let (world, receiver, subscription) = World::receiving(Manner::Status(200), &["email.opened"]).await;
    world.set_status(subscription, "paused").await;
    world.start(&[]).await;
    world.opened(2).await;
    until("they wait", async || world.deliveries("pending").await == 2).await;
    let erase = "update contacts set status = 'erased', address = 'erased:1' where id = $1";
    world.execute(erase, world.people[0].id).await;
    world.set_status(subscription, "active").await;
    until("one is delivered", async || world.deliveries("delivered").await == 1).await;
    until("one is dead", async || world.deliveries("dead").await == 1).await;
    assert_eq!(receiver.count(), 1);
    let erased = "select count(*) from webhook_deliveries where error_code = 'body_gone'";
    assert_eq!(world.rig.number(erased).await, 1);
    let totals = "select string_agg(outcome, ' ' order by outcome) from webhook_totals where count > 0";
    assert_eq!(world.text(totals).await.as_deref(), Some("delivered"), "no attempt was made of the other");
}

#[tokio::test]
async fn a_delivery_in_memory_is_not_posted_after_the_erasure() {
    let (world, receiver, _) = World::receiving(Manner::Gated(200), &["email.opened"]).await;
    world.start(&[]).await;
    world.opened(2).await;
    // The second one waits for the answer to the first.
    receiver.has(1).await;
    let first: schemas::Event = serde_json::from_slice(&receiver.hits()[0].body).unwrap();
    let about = first.data.mail.unwrap().contact_id;
    let other = world.people[..2].iter().find(|person| person.id != about).unwrap();
    sqlx::query("update contacts set status = 'erased', address = 'erased:1' where id = $1")
        .bind(other.id)
        .execute(&world.rig.pool)
        .await
        .unwrap();
    receiver.let_through(2);
    until("one is delivered", async || world.deliveries("delivered").await == 1).await;
    until("both ended", async || world.deliveries("pending").await == 0).await;
    assert_eq!(receiver.count(), 1);
    let erased = "select count(*) from webhook_deliveries where status = 'dead' and error_code = 'body_gone'";
    assert_eq!(world.rig.number(erased).await, 1);
    let failing = "select count(*) from webhook_subscriptions where failing_since is not null";
    assert_eq!(world.rig.number(failing).await, 0, "the receiver did not fail");
}

#[tokio::test]
async fn an_event_about_an_erased_contact_has_no_personal_details() {
    let (world, ..) = World::receiving(Manner::Status(200), &["email.bounced", "email.clicked"]).await;
    world.start(&[]).await;
    let erase = "update contacts set status = 'erased', address = 'erased:1' where id = $1";
    world.execute(erase, world.people[0].id).await;
    let bounce = json!({"class": "hard", "smtp_code": 550, "diagnostic": "no such user ann@example.com"});
    world.facts("bounced", 1, bounce).await;
    let url = "https://shop.example/?e=ann@example.com";
    world.facts("clicked", 1, json!({"url": url, "link": 1, "ip": "203.0.113.9", "user_agent": "curl"})).await;
    until("both are delivered", async || world.deliveries("delivered").await == 2).await;
    let bodies = world.text("select string_agg(convert_from(body, 'UTF8'), ' ') from webhook_events").await.unwrap();
    for personal in ["ann@example.com", "203.0.113.9", "curl"] {
        assert!(!bodies.contains(personal), "{personal}: {bodies}");
    }
    assert!(bodies.contains(r#""smtp_code":550"#) && bodies.contains(r#""link_id":1"#), "{bodies}");
}
