//! The lanes of steps' mail: a few mails go at once, many wait for their tenant's turn.

use schemas::{Resolved, subjects::stream};
use serde_json::json;

use crate::world::{World, step};

async fn of_lane(world: &World, lane: &'static str) -> (i64, String) {
    let sums = sqlx::query_as(
        "select coalesce(sum(size), 0), coalesce(string_agg(distinct state || announcement, ','), '') from batches where lane = $1",
    );
    sums.bind(lane).fetch_one(world.pool()).await.unwrap()
}

async fn mail(world: &World, people: usize, group_max: u16) {
    let people = world.rig.people(&world.tenant, people).await;
    let sequence = world.sequence(&[step("send_email", json!({}))]).await;
    world.enroll(sequence, &people, 0).await;
    world.start_in_groups_of(group_max).await;
    world.over().await;
    world.rig.assert_books().await;
}

#[tokio::test]
async fn many_mails_of_a_step_take_the_bulk_lane_and_wait() {
    let world = World::new().await;
    mail(&world, 51, 500).await;
    assert_eq!(of_lane(&world, "priority").await, (0, String::new()));
    assert_eq!(of_lane(&world, "bulk").await, (51, "waiting0".to_owned()));
    assert!(world.rig.messages::<Resolved>(stream::RESOLVED).await.is_empty());
}

#[tokio::test]
async fn many_small_groups_do_not_fill_the_priority_lane() {
    let world = World::new().await;
    mail(&world, 200, 10).await;
    // Two processes of groups do not see each other's last batch.
    let (prompt, states) = of_lane(&world, "priority").await;
    assert!((50..=60).contains(&prompt) && states == "announced1", "{prompt} {states}");
    assert_eq!(of_lane(&world, "bulk").await, (200 - prompt, "waiting0".to_owned()));
}

#[tokio::test]
async fn mail_that_is_set_aside_does_not_fill_the_priority_lane() {
    let world = World::new().await;
    let people = world.rig.people(&world.tenant, 51).await;
    let sequence = world.sequence(&[step("send_email", json!({}))]).await;
    world.enroll(sequence, &people[..50], 0).await;
    world.start(&[]).await;
    world.over().await;
    world.set_aside().await;
    world.enroll(sequence, &people[50..], 0).await;
    world.over().await;
    assert_eq!(of_lane(&world, "priority").await, (51, "announced1,announced3".to_owned()));
}
