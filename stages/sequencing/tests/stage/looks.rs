//! Looks at triggers: each tenant in its turn.

use std::time::Duration;

use serde_json::json;
use stage_rig::until;
use uuid::Uuid;

use crate::{
    starts::{segment, segment_of, trigger, work_at},
    world::{World, task, template},
};

/// Another tenant's sequence by the contacts that enter a segment.
async fn others_trigger(world: &World) -> Uuid {
    let other = world.rig.tenant().await;
    let template = template(world.pool(), &other).await;
    let sequence = crate::world::sequence(world.pool(), &other, template, &[task()]).await;
    let segment = segment_of(world, &other, json!({"field": "company", "op": "exists"})).await;
    trigger(world, sequence, "segment_entered", json!({ "segment_id": segment })).await;
    sequence
}

#[tokio::test]
async fn the_triggers_of_one_tenant_keep_no_other_waiting() {
    let world = World::new().await;
    let segment = segment(&world, json!({"field": "company", "op": "exists"})).await;
    for _ in 0..45 {
        let sequence = world.sequence(&[task()]).await;
        trigger(&world, sequence, "segment_entered", json!({ "segment_id": segment })).await;
    }
    let other = others_trigger(&world).await;
    // It is not the longest due.
    sqlx::query("update sequences set triggers_tried_at = now() - interval '6 minutes' where id = $1")
        .bind(other)
        .execute(world.pool())
        .await
        .unwrap();
    world.start(&[]).await;
    let open = "select count(*) from sequences where triggers_swept_at is null";
    until("all are looked at", async || world.number(open).await == 0).await;
    let earlier: i64 = sqlx::query_scalar(
        "select count(*) from sequences s join sequences o on o.id = $1 where s.triggers_tried_at < o.triggers_tried_at",
    )
    .bind(other)
    .fetch_one(world.pool())
    .await
    .unwrap();
    assert!(earlier <= 1, "{earlier} before it");
}

#[tokio::test]
async fn a_look_that_hangs_keeps_no_other_waiting() {
    let world = World::new().await;
    let people = world.rig.people(&world.tenant, 1).await;
    work_at(&world, &people[0], Some("Acme")).await;
    let segment = segment(&world, json!({"field": "company", "op": "exists"})).await;
    let sequence = world.sequence(&[task()]).await;
    trigger(&world, sequence, "segment_entered", json!({ "segment_id": segment })).await;
    // The look waits for this row.
    let mut other = world.pool().begin().await.unwrap();
    sqlx::query("insert into segment_entries (tenant_id, sequence_id, contact_id) values ($1, $2, $3)")
        .bind(world.tenant.id)
        .bind(sequence)
        .bind(people[0].id)
        .execute(&mut *other)
        .await
        .unwrap();
    world.start_looking_for(Duration::from_millis(500)).await;
    let tried = "select count(*) from sequences where triggers_tried_at is not null";
    until("it is looked at", async || world.number(tried).await == 1).await;
    others_trigger(&world).await;
    let looked = "select count(*) from sequences where triggers_swept_at is not null";
    until("the other is looked at", async || world.number(looked).await == 1).await;
}

#[tokio::test]
async fn a_clock_that_was_set_back_holds_no_look() {
    let world = World::new().await;
    let sequence = others_trigger(&world).await;
    sqlx::query("update sequences set triggers_tried_at = now() + interval '1 hour' where id = $1")
        .bind(sequence)
        .execute(world.pool())
        .await
        .unwrap();
    world.start(&[]).await;
    let looked = "select count(*) from sequences where triggers_swept_at is not null and triggers_tried_at <= now()";
    until("it is looked at", async || world.number(looked).await == 1).await;
}
