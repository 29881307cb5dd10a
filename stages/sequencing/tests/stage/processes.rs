//! Several processes, and connections that die in the middle of transactions: each step once, none lost.

use std::time::Duration;

use serde_json::json;
use sqlx::{Connection, PgConnection};
use stage_rig::until;

use crate::world::{World, step, task};

#[tokio::test]
async fn each_step_is_taken_once_by_three_processes_whose_connections_die() {
    let world = World::new().await;
    let people = world.rig.people(&world.tenant, 1_500).await;
    let tag = world.rig.audience(&world.tenant, "tag", &[]).await;
    let sequence = world
        .sequence(&[
            step("apply_tag", json!({"tag_id": tag})),
            step("send_email", json!({})),
            task(),
            step("wait", json!({})),
        ])
        .await;
    world.enroll(sequence, &people, 0).await;
    for _ in 0..3 {
        world.start_in_groups_of(50).await;
    }
    // As `kill -9` does to transactions: whoever is in the middle of one loses it.
    let mut killer = PgConnection::connect(&world.rig.database.url()).await.unwrap();
    let mut kills_left = 12;
    until("every sequence is through", async || {
        if kills_left > 0 {
            let victims: i64 = sqlx::query_scalar(
                "select count(pg_terminate_backend(pid)) from (
                     select pid from pg_stat_activity
                     where datname = current_database() and state in ('active', 'idle in transaction') and pid <> pg_backend_pid()
                       and query ~ 'enrollment|sequence_|notices' and query !~ 'count'
                     limit 1) victim",
            )
            .fetch_one(&mut killer)
            .await
            .unwrap();
            kills_left -= victims;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
        let open = "select count(*) from enrollments where status in ('active', 'paused')";
        sqlx::query_scalar::<_, i64>(open).fetch_one(&mut killer).await.unwrap() == 0
    })
    .await;
    assert!(kills_left < 12, "no connection died");
    assert_eq!(world.number("select count(*) from enrollments where status = 'completed'").await, 1_500);
    assert_eq!(world.number("select count(*) from enrollment_steps").await, 6_000);
    assert_eq!(world.number("select count(*) from sends").await, 1_500);
    assert_eq!(world.number("select count(distinct contact_id) from sends").await, 1_500);
    assert_eq!(world.number("select count(*) from sequence_sends").await, 1_500);
    assert_eq!(world.number("select count(*) from notices where type = 'task.created'").await, 1_500);
    assert_eq!(world.number("select count(*) from notices where type = 'sequence.completed'").await, 1_500);
    assert_eq!(world.number("select count(*) from audience_members").await, 1_500);
    world.rig.assert_books().await;
}
