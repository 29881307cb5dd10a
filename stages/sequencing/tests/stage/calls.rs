//! Calls to products: outside of transactions, tried again, the same id each time.

use rstest::rstest;
use serde_json::json;
use stage_rig::{receiver::Receiver, until};
use tokio::net::TcpListener;

use crate::world::{World, step};

#[tokio::test]
async fn a_failed_call_is_made_again_under_the_same_id_and_then_goes_on() {
    let world = World::new().await;
    let people = world.rig.people(&world.tenant, 1).await;
    let receiver = Receiver::answering(&[500, 503]).await;
    let sequence = world.sequence(&[step("call_product_webhook", json!({"url": receiver.url}))]).await;
    world.enroll(sequence, &people, 0).await;
    world.start(&[]).await;
    for attempts in 1..=2 {
        until("tried", async || {
            world.number("select count(*) from enrollments where claim_token is null and attempts > 0").await == 1
                && world.number("select attempts::bigint from enrollments").await == attempts
        })
        .await;
        // Not at once: a minute later, then five.
        assert_eq!(
            world.number("select count(*) from enrollments where next_action_at > now() + interval '30 seconds'").await,
            1
        );
        world.execute("update enrollments set next_action_at = now()").await;
    }
    world.over().await;
    assert_eq!(world.states().await, ["completed"]);
    let hits = receiver.hits();
    let attempts: Vec<_> = hits.iter().map(|hit| hit.header("x-service-attempt")).collect();
    assert_eq!(attempts, ["1", "2", "3"]);
    let ids = receiver.events();
    assert!(!ids[0].is_empty() && ids.iter().all(|id| *id == ids[0]), "{ids:?}");
    assert_eq!(world.text("select detail ->> 'status' from enrollment_steps").await, "200");
}

#[tokio::test]
async fn a_call_whose_config_cannot_be_read_fails() {
    let world = World::new().await;
    let people = world.rig.people(&world.tenant, 1).await;
    let sequence = world.sequence(&[step("call_product_webhook", json!({}))]).await;
    world.enroll(sequence, &people, 0).await;
    world.start(&[]).await;
    let failed = "select count(*) from enrollments where attempts = 1 and last_error = 'malformed_step'";
    until("an attempt failed", async || world.number(failed).await == 1).await;
}

#[tokio::test]
async fn a_call_names_the_tenant_as_its_product_did_first() {
    let world = World::new().await;
    let people = world.rig.people(&world.tenant, 1).await;
    world
        .execute(
            "insert into tenant_links (product, environment, product_tenant_id, tenant_id, owner_email, created_at)
             select 'shop', 'production', l.name, t.id, 'owner@example.com', l.at
             from tenants t, (values ('a-second', now()), ('z-first', now() - interval '1 day')) as l (name, at)",
        )
        .await;
    let receiver = Receiver::answering(&[]).await;
    let sequence = world.sequence(&[step("call_product_webhook", json!({"url": receiver.url}))]).await;
    world.enroll(sequence, &people, 0).await;
    world.start(&[]).await;
    world.over().await;
    assert_eq!(receiver.hits()[0].json()["product_tenant_id"], "z-first", "as in events");
}

#[rstest]
#[case::answered_gone(410, "answered_gone")]
#[case::refused_address(0, "address_not_allowed")]
#[tokio::test]
async fn what_can_never_succeed_fails_at_once(#[case] status: u16, #[case] code: &str) {
    let world = World::new().await;
    let people = world.rig.people(&world.tenant, 1).await;
    let receiver = Receiver::answering(&[status]).await;
    let url = if status == 0 { "http://169.254.169.254/latest".to_owned() } else { receiver.url.clone() };
    let sequence = world.sequence(&[step("call_product_webhook", json!({ "url": url }))]).await;
    world.enroll(sequence, &people, 0).await;
    world.start(&[]).await;
    world.over().await;
    assert_eq!(world.states().await, ["failed error"]);
    assert_eq!(world.text("select last_error from enrollments").await, code);
    assert_eq!(world.number("select attempts::bigint from enrollments").await, 1);
    assert_eq!(world.text("select detail ->> 'attempts' from enrollment_steps").await, "1");
}

#[tokio::test]
async fn a_claim_that_runs_out_is_called_again_and_its_first_answer_counts_for_nothing() {
    let world = World::new().await;
    let people = world.rig.people(&world.tenant, 1).await;
    let receiver = Receiver::answering(&[]).await;
    let sequence = world.sequence(&[step("call_product_webhook", json!({"url": receiver.url}))]).await;
    world.enroll(sequence, &people, 0).await;
    // A process claimed it and died: its claim has run out.
    world.execute("update enrollments set claim_token = gen_random_uuid()").await;
    world.start(&[]).await;
    world.over().await;
    assert_eq!(world.states().await, ["completed"]);
    assert_eq!(receiver.count(), 1);
}

#[tokio::test]
async fn more_calls_than_there_is_room_for_are_made_in_turn() {
    let world = World::new().await;
    let people = world.rig.people(&world.tenant, 30).await;
    let receiver = Receiver::answering(&[]).await;
    let sequence = world.sequence(&[step("call_product_webhook", json!({"url": receiver.url}))]).await;
    world.enroll(sequence, &people, 0).await;
    world.start(&[]).await;
    world.over().await;
    assert_eq!(receiver.count(), 30);
    assert_eq!(world.number("select count(*) from enrollments where attempts > 0").await, 0);
}

#[tokio::test]
async fn calls_that_wait_for_a_slow_receiver_are_put_off_by_their_place() {
    let world = World::new().await;
    let people = world.rig.people(&world.tenant, 1_000).await;
    // Takes connections, and answers nothing.
    let receiver = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/hook", receiver.local_addr().unwrap());
    let sequence = world.sequence(&[step("call_product_webhook", json!({ "url": url }))]).await;
    world.enroll(sequence, &people, 0).await;
    world.start(&[]).await;
    let later =
        "select count(*) from enrollments where claim_token is null and next_action_at > now() + interval '10 seconds'";
    until("most are put off", async || world.number(later).await > 700).await;
    let claimed = "select count(*) from enrollments where claim_token is not null";
    assert_eq!(world.number(claimed).await, 8);
    let longest = "select count(*) from enrollments where next_action_at > now() + interval '45 seconds'";
    assert_eq!(world.number(longest).await, 0);
}
