//! Triggers: what starts a sequence, how often, and what ends it.

use std::collections::HashMap;

use serde_json::{Value, json};
use sqlx::PgConnection;
use stage_rig::{Person, Tenant, until};
use uuid::Uuid;

use crate::world::{World, step, task, template};

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
    record(&mut world.pool().acquire().await.unwrap(), world, person, name, properties).await;
}

/// Records an event as one of this connection's transaction; answers its id.
pub(crate) async fn record(
    db: &mut PgConnection,
    world: &World,
    person: &Person,
    name: &str,
    properties: Value,
) -> Uuid {
    let id = schemas::new_id();
    sqlx::query(
        "insert into product_events (tenant_id, id, product, contact_id, name, properties, occurred_at)
         values ($1, $2, 'shop', $3, $4, $5, now())",
    )
    .bind(world.tenant.id)
    .bind(id)
    .bind(person.id)
    .bind(name)
    .bind(properties)
    .execute(db)
    .await
    .unwrap();
    id
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
async fn what_a_merged_contact_went_through_starts_no_sequence_anew() {
    let world = World::new().await;
    let people = world.rig.people(&world.tenant, 2).await;
    let once = world.sequence(&[("wait", json!({}), 600)]).await;
    world.start(&[]).await;
    occur(&world, once, &people[..1], "a").await;
    decided(&world).await;
    world.execute("update enrollments set status = 'completed', next_action_at = null, ended_at = now()").await;
    sqlx::query("update contacts set status = 'merged', merged_into = $2 where id = $1")
        .bind(people[0].id)
        .bind(people[1].id)
        .execute(world.pool())
        .await
        .unwrap();
    occur(&world, once, &people[1..], "b").await;
    decided(&world).await;
    assert_eq!(world.number("select count(*) from enrollments").await, 1);
    assert_eq!(world.number("select count(*) from trigger_occurrences where outcome = 'reentry'").await, 1);
}

#[tokio::test]
async fn what_retention_deleted_starts_nothing_anew() {
    let world = World::new().await;
    let people = world.rig.people(&world.tenant, 2).await;
    let waits = [("wait", json!({}), 600)];
    let (once, gap) = (world.sequence(&waits).await, world.sequence(&waits).await);
    sqlx::query("update sequences set reentry = 'every_time', reentry_gap_minutes = 60 * 24 * 501 where id = $1")
        .bind(gap)
        .execute(world.pool())
        .await
        .unwrap();
    for sequence in [once, gap] {
        world.enroll(sequence, &people[..1], 600).await;
    }
    world
        .execute(
            "update enrollments set status = 'completed', next_action_at = null, ended_at = now(),
                 created_at = now() - interval '500 days'",
        )
        .await;
    world.execute("delete from enrollments").await;
    world.start(&[]).await;
    for sequence in [once, gap] {
        occur(&world, sequence, &people, "a").await;
    }
    decided(&world).await;
    let contacts: Vec<Uuid> =
        sqlx::query_scalar("select contact_id from enrollments").fetch_all(world.pool()).await.unwrap();
    assert_eq!(contacts, [people[1].id; 2], "who was enrolled before is not again");
}

#[tokio::test]
async fn what_is_to_start_a_contact_that_is_being_merged_starts_the_survivor() {
    let world = World::new().await;
    let people = world.rig.people(&world.tenant, 2).await;
    let once = world.sequence(&[("wait", json!({}), 600)]).await;
    occur(&world, once, &people[..1], "a").await;
    let mut merging = world.pool().begin().await.unwrap();
    sqlx::query("select from contacts for update").execute(&mut *merging).await.unwrap();
    sqlx::query("update contacts set status = 'merged', merged_into = $2 where id = $1")
        .bind(people[0].id)
        .bind(people[1].id)
        .execute(&mut *merging)
        .await
        .unwrap();
    world.start(&[]).await;
    let waiting = "select count(*) from pg_locks l join pg_database d on d.oid = l.database
                   where d.datname = current_database() and l.relation = 'contacts'::regclass and l.locktype = 'tuple'";
    until("the stage to wait for the merge", async || world.number(waiting).await > 0).await;
    merging.commit().await.unwrap();
    decided(&world).await;
    let enrolled: Vec<Uuid> =
        sqlx::query_scalar("select contact_id from enrollments").fetch_all(world.pool()).await.unwrap();
    assert_eq!(enrolled, [people[1].id]);
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

pub(crate) async fn trigger(world: &World, sequence: Uuid, kind: &str, config: Value) {
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

/// A sequence that starts for who gets a company. Its trigger has been looked at.
async fn start_for_firms(world: &World) {
    let sequence = world.sequence(&[("wait", json!({}), 600)]).await;
    let segment = segment(world, json!({"field": "company", "op": "exists"})).await;
    trigger(world, sequence, "segment_entered", json!({ "segment_id": segment })).await;
    world.start(&[]).await;
    look_again(world).await;
}

/// Lets the stage look at every trigger again, and waits until it has.
async fn look_again(world: &World) {
    world
        .execute(
            "update sequences set triggers_tried_at = null,
                 triggers_swept_at = case when triggers_swept_at is not null then now() - interval '1 hour' end",
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
    // A date of a field that is being removed starts nothing.
    sqlx::query("insert into removed_fields (tenant_id, id, key) values ($1, $1, 'renewal')")
        .bind(world.tenant.id)
        .execute(world.pool())
        .await
        .unwrap();
    sqlx::query(sqlx::AssertSqlSafe(format!(
        "update contacts set fields = jsonb_build_object('renewal', {soon}) where id = $1"
    )))
    .bind(people[1].id)
    .execute(world.pool())
    .await
    .unwrap();
    look_again(&world).await;
    assert_eq!(world.number(started).await, 3);
    assert_eq!(world.number("select count(*) from trigger_occurrences").await, 3);
}

#[tokio::test]
async fn the_same_day_in_another_field_starts_again() {
    let world = World::new().await;
    world.rig.people(&world.tenant, 1).await;
    let sequence = world.sequence(&[("wait", json!({}), 600)]).await;
    let on = |field: &str| json!({"field": field, "offset_days": 0, "yearly": false, "at": "00:00:00"});
    trigger(&world, sequence, "field_date", on("renewal")).await;
    world
        .execute(
            "update contacts set fields = jsonb_build_object(
                 'renewal', to_char(now() at time zone 'UTC', 'YYYY-MM-DD'), 'trial_end', to_char(now() at time zone 'UTC', 'YYYY-MM-DD'))",
        )
        .await;
    world.start(&[]).await;
    look_again(&world).await;
    let started = "select count(*) from enrollments";
    assert_eq!(world.number(started).await, 1);
    world.execute("update enrollments set status = 'completed', next_action_at = null, ended_at = now()").await;
    trigger(&world, sequence, "field_date", on("trial_end")).await;
    look_again(&world).await;
    assert_eq!(world.number(started).await, 2);
}

#[tokio::test]
async fn a_date_that_started_a_merged_contact_starts_no_survivor() {
    let world = World::new().await;
    let people = world.rig.people(&world.tenant, 2).await;
    let sequence = world.sequence(&[("wait", json!({}), 600)]).await;
    let date = json!({"field": "renewal", "offset_days": -7, "yearly": false, "at": "00:00:00"});
    trigger(&world, sequence, "field_date", date).await;
    let both = async |sql: &'static str| {
        sqlx::query(sql).bind(people[0].id).bind(people[1].id).execute(world.pool()).await.unwrap();
    };
    both(
        "update contacts set fields = jsonb_build_object('renewal', to_char(now() at time zone 'UTC' + interval '7 days', 'YYYY-MM-DD'))
         where id = $1 and id <> $2",
    )
    .await;
    world.start(&[]).await;
    look_again(&world).await;
    let started = "select count(*) from enrollments";
    assert_eq!(world.number(started).await, 1);
    world.execute("update enrollments set status = 'completed', next_action_at = null, ended_at = now()").await;
    // The survivor takes the field that it lacks, as a merge does.
    both("update contacts set fields = (select fields from contacts where id = $1) where id = $2").await;
    both("update contacts set status = 'merged', merged_into = $2 where id = $1").await;
    look_again(&world).await;
    look_again(&world).await;
    assert_eq!(world.number(started).await, 1);
    let noted = "select count(*) from trigger_occurrences o join enrollments e on e.id = o.enrollment_id
                 where o.outcome = 'enrolled' and o.decided_at is not null";
    assert_eq!(world.number(noted).await, 2, "the survivor is shown as started");
}

#[tokio::test]
async fn every_occurrence_of_a_contact_is_decided_by_what_it_went_through() {
    let world = World::new().await;
    let people = world.rig.people(&world.tenant, 3).await;
    let (once, other) = (world.sequence(&[task()]).await, world.sequence(&[task()]).await);
    // The first was in the sequence, the second by a contact that is merged into it, and all in another one.
    world.enroll(once, &people[..1], 3_600).await;
    let merged = world.rig.people(&world.tenant, 1).await;
    world.enroll(once, &merged, 3_600).await;
    world.enroll(other, &people, 3_600).await;
    sqlx::query("update contacts set status = 'merged', merged_into = $2 where id = $1")
        .bind(merged[0].id)
        .bind(people[1].id)
        .execute(world.pool())
        .await
        .unwrap();
    for occurrence in ["a", "b"] {
        occur(&world, once, &people, occurrence).await;
    }
    world.start(&[]).await;
    decided(&world).await;
    let outcomes = sqlx::query_as::<_, (Uuid, String)>(
        "select contact_id, string_agg(outcome, ' ' order by outcome) from trigger_occurrences group by contact_id",
    );
    let outcomes: HashMap<Uuid, String> = outcomes.fetch_all(world.pool()).await.unwrap().into_iter().collect();
    for (person, expected) in people.iter().zip(["reentry reentry", "reentry reentry", "enrolled reentry"]) {
        assert_eq!(outcomes[&person.id], expected);
    }
}

pub(crate) async fn segment(world: &World, rule: Value) -> Uuid {
    segment_of(world, &world.tenant, rule).await
}

pub(crate) async fn segment_of(world: &World, tenant: &Tenant, rule: Value) -> Uuid {
    let id = schemas::new_id();
    sqlx::query("insert into segments (tenant_id, id, name, rule) values ($1, $2, $2::text, $3)")
        .bind(tenant.id)
        .bind(id)
        .bind(rule)
        .execute(world.pool())
        .await
        .unwrap();
    id
}

pub(crate) async fn work_at(world: &World, person: &Person, company: Option<&str>) {
    sqlx::query("update contacts set company = $2 where id = $1")
        .bind(person.id)
        .bind(company)
        .execute(world.pool())
        .await
        .unwrap();
}

#[tokio::test]
async fn a_contact_that_enters_a_segment_starts_and_one_that_was_in_it_does_not() {
    let world = World::new().await;
    let people = world.rig.people(&world.tenant, 3).await;
    let sequence = world.sequence(&[("wait", json!({}), 600)]).await;
    let segment = segment(&world, json!({"field": "company", "op": "exists"})).await;
    let enter = async |person: &Person, company: Option<&str>| work_at(&world, person, company).await;
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

#[tokio::test]
async fn a_contact_that_mail_made_enters_a_segment_when_it_agrees() {
    let world = World::new().await;
    let people = world.rig.people(&world.tenant, 3).await;
    for (person, source) in people.iter().zip(["transactional", "message", "campaign_test"]) {
        sqlx::query("update contacts set source = $2, marketing_status = 'pending' where id = $1")
            .bind(person.id)
            .bind(source)
            .execute(world.pool())
            .await
            .unwrap();
    }
    start_for_firms(&world).await;
    for person in &people {
        work_at(&world, person, Some("Acme")).await;
    }
    look_again(&world).await;
    let noted = "select count(*) from trigger_occurrences";
    assert_eq!(world.number(noted).await, 0);
    world.execute("update contacts set marketing_status = 'subscribed'").await;
    look_again(&world).await;
    assert_eq!(world.number(noted).await, 3);
}

#[tokio::test]
async fn who_is_passed_over_starts_with_a_later_entry_only() {
    let world = World::new().await;
    let people = world.rig.people(&world.tenant, 2).await;
    start_for_firms(&world).await;
    work_at(&world, &people[0], Some("Acme")).await;
    world.execute("select pass_over_segments(tenant_id, array_agg(id)) from contacts group by tenant_id").await;
    look_again(&world).await;
    assert_eq!(world.number("select count(*) from segment_entries").await, 1, "who is not in it is taken out");
    // It was before the last look, which the next one is to take for an hour old.
    world.execute("update segments_passed set passed_at = passed_at - interval '1 day'").await;
    work_at(&world, &people[1], Some("Bolt")).await;
    look_again(&world).await;
    let started: Vec<Uuid> =
        sqlx::query_scalar("select contact_id from enrollments").fetch_all(world.pool()).await.unwrap();
    assert_eq!(started, [people[1].id]);
}

#[tokio::test]
async fn who_is_passed_over_after_a_clock_was_set_back_starts_nothing() {
    let world = World::new().await;
    let people = world.rig.people(&world.tenant, 1).await;
    start_for_firms(&world).await;
    world.execute("update sequences set triggers_swept_at = now() + interval '1 minute'").await;
    work_at(&world, &people[0], Some("Acme")).await;
    world.execute("select pass_over_segments(tenant_id, array_agg(id)) from contacts group by tenant_id").await;
    world.execute("update sequences set triggers_tried_at = null").await;
    until("it is seen", async || world.number("select count(*) from segment_entries").await == 1).await;
    assert_eq!(world.number("select count(*) from trigger_occurrences").await, 0);
}

#[tokio::test]
async fn a_trigger_that_is_changed_during_a_look_is_looked_at_anew() {
    let world = World::new().await;
    let people = world.rig.people(&world.tenant, 2).await;
    let sequence = world.sequence(&[("wait", json!({}), 600)]).await;
    let firms = segment(&world, json!({"field": "company", "op": "exists"})).await;
    let people_of_no_firm = segment(&world, json!({"field": "company", "op": "not_exists"})).await;
    trigger(&world, sequence, "segment_entered", json!({ "segment_id": firms })).await;
    world.start(&[]).await;
    look_again(&world).await;
    work_at(&world, &people[0], Some("Acme")).await;
    // The next look waits here, and the trigger is changed meanwhile.
    let mut other = world.pool().begin().await.unwrap();
    sqlx::query("lock table segment_entries in share mode").execute(&mut *other).await.unwrap();
    world.execute("update sequences set triggers_tried_at = null").await;
    let waiting = "select count(*) from pg_locks where relation = 'segment_entries'::regclass and not granted";
    until("the look waits", async || world.number(waiting).await > 0).await;
    sqlx::query(
        "update sequences set trigger_config = $1, triggers_swept_at = null, triggers_tried_at = null, updated_at = now()",
    )
    .bind(json!({ "segment_id": people_of_no_firm }))
    .execute(world.pool())
    .await
    .unwrap();
    other.commit().await.unwrap();
    look_again(&world).await;
    look_again(&world).await;
    assert_eq!(world.number("select count(*) from trigger_occurrences").await, 0, "they were in it");
    let entries: Vec<Uuid> =
        sqlx::query_scalar("select contact_id from segment_entries").fetch_all(world.pool()).await.unwrap();
    assert_eq!(entries, [people[1].id]);
}

#[tokio::test]
async fn triggers_that_cannot_be_evaluated_keep_no_other_waiting() {
    let world = World::new().await;
    let people = world.rig.people(&world.tenant, 1).await;
    for _ in 0..20 {
        let broken = world.sequence(&[task()]).await;
        trigger(&world, broken, "field_date", json!({"field": 5})).await;
    }
    world.start(&[]).await;
    let tried = "select count(*) from sequences where triggers_tried_at is not null";
    until("they are looked at", async || world.number(tried).await == 20).await;
    let sequence = world.sequence(&[("wait", json!({}), 600)]).await;
    let segment = segment(&world, json!({"field": "company", "op": "exists"})).await;
    trigger(&world, sequence, "segment_entered", json!({ "segment_id": segment })).await;
    let looked = "select count(*) from sequences where triggers_swept_at is not null";
    until("the other is looked at", async || world.number(looked).await == 1).await;
    work_at(&world, &people[0], Some("Acme")).await;
    world.execute("update sequences set triggers_tried_at = null where triggers_swept_at is not null").await;
    until("it starts", async || world.number("select count(*) from enrollments").await == 1).await;
}

#[tokio::test]
async fn the_occurrences_of_one_tenant_keep_no_other_waiting() {
    let world = World::new().await;
    let people = world.rig.people(&world.tenant, 600).await;
    let sequence = world.sequence(&[("wait", json!({}), 600)]).await;
    occur(&world, sequence, &people, "a").await;
    let other = world.rig.tenant().await;
    let contact = world.rig.people(&other, 1).await;
    let template = template(world.pool(), &other).await;
    let others = crate::world::sequence(world.pool(), &other, template, &[("wait", json!({}), 600)]).await;
    sqlx::query(
        "insert into trigger_occurrences (tenant_id, sequence_id, contact_id, occurrence) values ($1, $2, $3, 'a')",
    )
    .bind(other.id)
    .bind(others)
    .bind(contact[0].id)
    .execute(world.pool())
    .await
    .unwrap();
    world.start(&[]).await;
    decided(&world).await;
    let first: Vec<Uuid> = sqlx::query_scalar(
        "select distinct tenant_id from trigger_occurrences
         where decided_at = (select min(decided_at) from trigger_occurrences)",
    )
    .fetch_all(world.pool())
    .await
    .unwrap();
    assert_eq!(first.len(), 2, "the newer one is among the first that are decided");
}

#[tokio::test]
async fn an_event_between_the_occurrence_and_the_enrollment_ends_it() {
    let world = World::new().await;
    let people = world.rig.people(&world.tenant, 3).await;
    let sequence = world.sequence(&[("wait", json!({}), 600)]).await;
    world.execute(r#"update sequences set exit_event = '{"event": "paid"}'"#).await;
    // Both events come with one request: of the first they end what they follow, of the second they are before it.
    for (person, names) in people.iter().zip([["trial", "paid"], ["paid", "trial"], ["trial", "other"]]) {
        let mut db = world.pool().begin().await.unwrap();
        for name in names {
            let event = record(&mut db, &world, person, name, json!({})).await;
            if name == "trial" {
                sqlx::query(
                    "insert into trigger_occurrences (tenant_id, sequence_id, contact_id, occurrence, event_id, noted_at)
                     select tenant_id, $2, contact_id, id::text, id, received_at from product_events where id = $1",
                )
                .bind(event)
                .bind(sequence)
                .execute(&mut *db)
                .await
                .unwrap();
            }
        }
        db.commit().await.unwrap();
    }
    tell(&world, &people[2], "paid", json!({})).await;
    world.start(&[]).await;
    decided(&world).await;
    until("two have left", async || {
        world.number("select count(*) from enrollments where exit_reason = 'event'").await == 2
    })
    .await;
    let left: Vec<Uuid> = sqlx::query_scalar("select contact_id from enrollments where status = 'active'")
        .fetch_all(world.pool())
        .await
        .unwrap();
    assert_eq!(left, [people[1].id]);
}
