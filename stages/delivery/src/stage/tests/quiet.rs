//! Quiet hours at the fence.

use rstest::rstest;
use schemas::{Lane, MessageKind};

use super::world::{Handle, World, row, run};

/// Quiet from so many hours ago, for so many hours, by the tenant's clock.
async fn quiet(world: &World, hours_ago: i32, hours: i32, classification: &str) {
    run!(
        &world.pool,
        "update tenants set quiet_from = (now() at time zone 'utc' - make_interval(hours => $2))::time,
             quiet_to = (now() at time zone 'utc' - make_interval(hours => $2) + make_interval(hours => $3))::time,
             quiet_by_contact = false, quiet_for = array[$4]
         where id = $1",
        [world.tenant, hours_ago, hours, classification]
    );
}

#[tokio::test]
async fn a_mail_in_quiet_hours_is_put_off_and_then_sent_once() {
    let world = World::new().await;
    quiet(&world, 1, 3, "marketing").await;
    let (_, campaign) = world.campaign_batch(&["ann@example.com", "bob@example.com"]).await;
    let reset = world.transactional_batch("eve@example.com").await;
    let note = world.batch(None, MessageKind::OneOff, Lane::Priority, &["kim@example.com"]).await;
    let stage = world.stage();
    stage.deliver(&[&campaign]).await.unwrap();
    stage.deliver(&[&reset, &note]).await.unwrap();
    for ordinal in [0, 1] {
        assert_eq!(world.row(campaign.send(ordinal)).await, row("deferred", Some("quiet_hours"), 0));
    }
    assert_eq!(world.row(reset.send(0)).await, row("sent", None, 1));
    assert_eq!(world.row(note.send(0)).await, row("sent", None, 1));
    let until_the_end = "select count(*) from sends where tenant_id = $1 and state = 'deferred'
                         and next_attempt_at between now() + interval '119 minutes' and now() + interval '2 hours'";
    assert_eq!(world.number(until_the_end).await, 2);
    world.assert_counters_are_right().await;
    // Their end has come.
    quiet(&world, 3, 3, "marketing").await;
    world.run("update sends set next_attempt_at = now() where tenant_id = $1 and state = 'deferred'").await;
    stage.deliver(&[&campaign]).await.unwrap();
    stage.deliver(&[&campaign]).await.unwrap();
    for ordinal in [0, 1] {
        assert_eq!(world.row(campaign.send(ordinal)).await, row("sent", None, 1));
    }
    assert_eq!(world.sink.inbox().stats().accepted, 4);
    world.assert_counters_are_right().await;
}

#[rstest]
#[case::waited_through_them("transactional", "sent")]
#[case::they_did_not_hold_for_it("marketing", "expired")]
#[tokio::test]
async fn quiet_hours_do_not_count_against_the_retry_deadline(#[case] classification: &str, #[case] state: &str) {
    let world = World::new().await;
    quiet(&world, 12, 11, classification).await;
    let reset = world.transactional_batch("ann@example.com").await;
    world.run("update batches set created_at = now() - interval '30 hours' where tenant_id = $1").await;
    world.stage().deliver(&[&reset]).await.unwrap();
    assert_eq!(world.row(reset.send(0)).await.state, state);
}
