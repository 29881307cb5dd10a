//! How fast: `cargo test -p sequencing --test stage -- --ignored --nocapture measure`.
#![allow(clippy::print_stdout, reason = "says what was measured")]

use std::time::Instant;

use serde_json::json;

use crate::world::{World, step, task};

#[tokio::test]
#[ignore = "a measurement: prints a line"]
async fn measure_a_hundred_thousand_due_enrollments() {
    let world = World::new().await;
    let tag = world.rig.audience(&world.tenant, "tag", &[]).await;
    world.start(&[]).await;
    for (name, first) in [
        ("wait", step("wait", json!({}))),
        ("send_email", step("send_email", json!({}))),
        ("apply_tag", step("apply_tag", json!({"tag_id": tag}))),
        ("create_task", task()),
    ] {
        let people = world.rig.people(&world.tenant, 100_000).await;
        let sequence = world.sequence(&[first, ("wait", json!({}), 60)]).await;
        world.enroll(sequence, &people, 0).await;
        let began = Instant::now();
        while world.number("select count(*) from (select from enrollments where status = 'active' and next_action_at <= now() limit 1) w").await > 0 {
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
        println!("100,000 due enrollments, {name}: {:.1} s", began.elapsed().as_secs_f64());
        world
            .execute("update enrollments set status = 'completed', next_action_at = null where status = 'active'")
            .await;
    }
}
