//! Triggers: what starts a sequence, how often, and what ends it.

use serde_json::{Value, json};
use stage_rig::{Person, until};
use uuid::Uuid;

use crate::world::{World, step, task};

/// An occurrence for each of these contacts, under this name.
async fn occur(world: &World, sequence: Uuid, people: &[Person], occurrence: &str) {
    let contacts: Vec<Uuid> = people.iter().map(|person| person.id).collect();
    sqlx::query(
        "insert into trigger_occurrences (tenant_id, sequence_id, contact_id, occurrence)
         select $1, $2, w, $4 from unnest($3::uuid[]) as w on conflict do nothing",
    )
    .bind(world.tenant.id)
    .bind(sequence)
    .bind(&contacts)
    .bind(occurrence)
    .execute(world.pool())
    .await
    .unwrap();
}

async fn tell(world: &World, person: &Person, name: &str, properties: Value) {
    sqlx::query(
        "insert into product_events (tenant_id, id, product, contact_id, name, properties, occurred_at)
         values ($1, $2, 'shop', $3, $4, $5, now())",
    )
    .bind(world.tenant.id)
    .bind(schemas::new_id())
    .bind(person.id)
    .bind(name)
    .bind(properties)
    .execute(world.pool())
    .await
    .unwrap();
}

async fn decided(world: &World) {
    until("all occurrences decided", async || {
        world.number("select count(*) from trigger_occurrences where decided_at is null").await == 0
    })
    .await;
}

#[tokio::test]
async fn an_occurrence_starts_once_over_three_processes() {
    let world = World::new().await;
    let people = world.rig.people(&world.tenant, 700).await;
    let waits = [("wait", json!({}), 600)];
    let (once, every) = (world.sequence(&waits).await, world.sequence(&waits).await);
    sqlx::query("update sequences set reentry = 'every_time', reentry_gap_minutes = 1 where id = $1")
        .bind(every)
        .execute(world.pool())
        .await
        .unwrap();
    for _ in 0..3 {
        world.start(&[]).await;
    }
    // The same occurrences are noted again while they are decided, and others of the same contacts beside them.
    for occurrence in ["a", "b", "a", "c", "b"] {
        occur(&world, once, &people, occurrence).await;
        occur(&world, every, &people, occurrence).await;
    }
    decided(&world).await;
    let enrolled = |sequence: Uuid| {
        sqlx::query_as::<_, (i64, i64)>(
            "select count(*), count(distinct contact_id) from enrollments where sequence_id = $1",
        )
        .bind(sequence)
        .fetch_one(world.pool())
    };
    assert_eq!(enrolled(once).await.unwrap(), (700, 700));
    assert_eq!(enrolled(every).await.unwrap(), (700, 700), "the gap holds");
    assert_eq!(world.number("select count(*) from trigger_occurrences where outcome = 'enrolled'").await, 1_400);
    sqlx::query("update enrollments set created_at = now() - interval '2 minutes'")
        .execute(world.pool())
        .await
        .unwrap();
    occur(&world, once, &people, "d").await;
    occur(&world, every, &people, "d").await;
    decided(&world).await;
    assert_eq!(enrolled(once).await.unwrap(), (700, 700));
    assert_eq!(enrolled(every).await.unwrap(), (1_400, 700), "beside the one that is under way");
}

#[tokio::test]
async fn a_paused_sequence_takes_what_occurred_before_and_an_archived_one_nothing() {
    let world = World::new().await;
    let people = world.rig.people(&world.tenant, 2).await;
    let (paused, archived) = (world.sequence(&[task()]).await, world.sequence(&[task()]).await);
    occur(&world, paused, &people, "a").await;
    occur(&world, archived, &people, "a").await;
    for (sequence, status) in [(paused, "paused"), (archived, "archived")] {
        sqlx::query("update sequences set status = $2 where id = $1")
            .bind(sequence)
            .bind(status)
            .execute(world.pool())
            .await
            .unwrap();
    }
    world
        .execute("update contacts set status = 'archived' where id = (select max(id::text)::uuid from contacts)")
        .await;
    world.start(&[]).await;
    decided(&world).await;
    assert_eq!(world.number("select count(*) from enrollments").await, 1);
    assert_eq!(world.number("select count(*) from trigger_occurrences where outcome = 'not_active'").await, 3);
}

#[tokio::test]
async fn the_event_that_ends_a_sequence_ends_it_between_two_steps() {
    let world = World::new().await;
    let people = world.rig.people(&world.tenant, 2).await;
    let sequence = world.sequence(&[step("wait", json!({})), task()]).await;
    world.execute(r#"update sequences set exit_event = '{"event": "paid", "properties": {"plan": "pro"}}'"#).await;
    // Told before the enrollment: it ends nothing.
    tell(&world, &people[0], "paid", json!({"plan": "pro"})).await;
    world.enroll(sequence, &people, 3_600).await;
    world.start(&[]).await;
    tell(&world, &people[0], "paid", json!({"plan": "free"})).await;
    tell(&world, &people[1], "paid", json!({"plan": "pro", "seats": 2})).await;
    world.execute("insert into enrollment_checks (tenant_id, contact_id) select tenant_id, id from contacts").await;
    until("the checks are handled", async || world.number("select count(*) from enrollment_checks").await == 0).await;
    let over = "select count(*) from enrollments where exit_reason = 'event'";
    assert_eq!(world.number(over).await, 1);
    assert_eq!(world.told().await, ["enrollment.exited event"]);
    // A step finds it without a check.
    tell(&world, &people[0], "paid", json!({"plan": "pro"})).await;
    world.execute("update enrollments set next_action_at = now() where status = 'active'").await;
    world.over().await;
    assert_eq!(world.number(over).await, 2);
    assert_eq!(world.number("select count(*) from enrollment_steps").await, 0);
}

async fn trigger(world: &World, sequence: Uuid, kind: &str, config: Value) {
    sqlx::query(
        "update sequences set trigger_type = $2, trigger_config = $3, activated_at = now() - interval '30 days', reentry = 'after_finishing'
         where id = $1",
    )
    .bind(sequence)
    .bind(kind)
    .bind(config)
    .execute(world.pool())
    .await
    .unwrap();
}

/// Lets the stage look at every trigger again, and waits until it has.
async fn look_again(world: &World) {
    world
        .execute(
            "update sequences set triggers_swept_at = now() - interval '1 hour' where triggers_swept_at is not null",
        )
        .await;
    until("every trigger is looked at", async || {
        let old = "select count(*) from sequences
                   where trigger_config is not null and coalesce(triggers_swept_at < now() - interval '5 minutes', true)";
        world.number(old).await == 0
    })
    .await;
    decided(world).await;
}

#[tokio::test]
async fn a_date_that_has_come_starts_once_however_often_it_is_looked_at() {
    let world = World::new().await;
    let people = world.rig.people(&world.tenant, 4).await;
    let sequence = world.sequence(&[("wait", json!({}), 600)]).await;
    trigger(
        &world,
        sequence,
        "field_date",
        json!({"field": "renewal", "offset_days": -7, "yearly": false, "at": "00:00:00"}),
    )
    .await;
    // In seven days, in a month, never, and in seven days again.
    let soon = "to_char(now() at time zone 'UTC' + interval '7 days', 'YYYY-MM-DD')";
    for (person, days) in [(0, 7), (1, 30), (3, 7)] {
        sqlx::query(
            "update contacts set fields = jsonb_build_object('renewal', to_char(now() at time zone 'UTC' + make_interval(days => $2), 'YYYY-MM-DD'))
             where id = $1",
        )
        .bind(people[person].id)
        .bind(days)
        .execute(world.pool())
        .await
        .unwrap();
    }
    for _ in 0..2 {
        world.start(&[]).await;
    }
    look_again(&world).await;
    look_again(&world).await;
    let started = "select count(*) from enrollments";
    assert_eq!(world.number(started).await, 2);
    // A date that becomes known on its day is not too late.
    sqlx::query(sqlx::AssertSqlSafe(format!(
        "update contacts set fields = jsonb_build_object('renewal', {soon}) where id = $1"
    )))
    .bind(people[2].id)
    .execute(world.pool())
    .await
    .unwrap();
    look_again(&world).await;
    assert_eq!(world.number(started).await, 3);
    assert_eq!(world.number("select count(*) from trigger_occurrences").await, 3);
}

#[tokio::test]
async fn a_contact_that_enters_a_segment_starts_and_one_that_was_in_it_does_not() {
    let world = World::new().await;
    let people = world.rig.people(&world.tenant, 3).await;
    let sequence = world.sequence(&[("wait", json!({}), 600)]).await;
    let segment = schemas::new_id();
    sqlx::query("insert into segments (tenant_id, id, name, rule) values ($1, $2, 'Firms', $3)")
        .bind(world.tenant.id)
        .bind(segment)
        .bind(json!({"field": "company", "op": "exists"}))
        .execute(world.pool())
        .await
        .unwrap();
    let enter = async |person: &Person, company: Option<&str>| {
        sqlx::query("update contacts set company = $2 where id = $1")
            .bind(person.id)
            .bind(company)
            .execute(world.pool())
            .await
            .unwrap();
    };
    enter(&people[0], Some("Acme")).await;
    trigger(&world, sequence, "segment_entered", json!({ "segment_id": segment })).await;
    for _ in 0..2 {
        world.start(&[]).await;
    }
    look_again(&world).await;
    assert_eq!(world.number("select count(*) from enrollments").await, 0, "it was in it");
    enter(&people[1], Some("Bolt")).await;
    look_again(&world).await;
    look_again(&world).await;
    assert_eq!(world.number("select count(*) from enrollments").await, 1);
    // Who leaves and comes back enters again.
    enter(&people[1], None).await;
    look_again(&world).await;
    world.execute("update enrollments set status = 'completed', next_action_at = null, ended_at = now()").await;
    enter(&people[1], Some("Bolt")).await;
    look_again(&world).await;
    assert_eq!(world.number("select count(*) from enrollments").await, 2);
    assert_eq!(world.number("select count(*) from segment_entries").await, 2);
}
