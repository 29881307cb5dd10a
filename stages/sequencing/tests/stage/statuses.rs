//! Pausing, resuming, archiving; suspended tenants; fairness.

use std::time::Duration;

use rstest::rstest;
use serde_json::{Value, json};
use sqlx::AssertSqlSafe;
use stage_rig::{rows_in_vain, until};

use crate::world::{World, enroll, sequence, step, task};

#[tokio::test]
async fn a_pause_keeps_times_and_a_resumption_takes_up_what_is_overdue() {
    let world = World::new().await;
    let people = world.rig.people(&world.tenant, 20).await;
    let sequence = world.sequence(&[task()]).await;
    world.execute("update sequences set status = 'paused'").await;
    world.enroll(sequence, &people[..10], -60).await;
    world.enroll(sequence, &people[10..], 3_600).await;
    let before = world.text("select string_agg(next_action_at::text, ' ' order by id) from enrollments").await;
    world.start(&[]).await;
    until("who came due is parked", async || {
        world.number("select count(*) from enrollments where status = 'paused'").await == 10
    })
    .await;
    let times = "select string_agg(next_action_at::text, ' ' order by id) from enrollments";
    assert_eq!(world.text(times).await, before);
    assert_eq!(world.number("select count(*) from notices").await, 0);

    world.execute("update sequences set status = 'active', unapplied_since = now(), updated_at = now()").await;
    until("what was overdue is done", async || {
        world.number("select count(*) from enrollments where status = 'completed'").await == 10
    })
    .await;
    assert_eq!(
        world.number("select count(*) from enrollments where status = 'active' and next_action_at > now()").await,
        10
    );
}

#[tokio::test]
async fn an_archived_sequence_ends_all_its_enrollments() {
    let world = World::new().await;
    let people = world.rig.people(&world.tenant, 30).await;
    let sequence = world.sequence(&[task()]).await;
    world.enroll(sequence, &people, 3_600).await;
    world.execute("update enrollments set status = 'paused' where id in (select id from enrollments limit 10)").await;
    world
        .execute(
            "update sequences set status = 'archived', unapplied_since = now(), updated_at = now() - interval '2 minutes'",
        )
        .await;
    world.start(&[]).await;
    world.over().await;
    assert!(world.states().await.iter().all(|state| state == "exited sequence_archived"));
    until("settled", async || {
        world.number("select count(*) from sequences where unapplied_since is not null").await == 0
    })
    .await;
    assert_eq!(world.told().await, vec!["enrollment.exited sequence_archived"; 30]);
}

/// A tenant is stopped and goes on later; another one works meanwhile.
async fn rest_while_the_tenant_is_stopped(stop: &'static str, go_on: &'static str) {
    let world = World::new().await;
    let people = world.rig.people(&world.tenant, 2).await;
    let resting = world.sequence(&[task()]).await;
    world.enroll(resting, &people, -60).await;
    world.execute(stop).await;
    let other = world.rig.tenant().await;
    let one = world.rig.people(&other, 1).await;
    let running = sequence(world.pool(), &other, world.template, &[task()]).await;
    enroll(world.pool(), &other, running, &one, 0).await;
    world.start(&[]).await;
    until("the other tenant's step is taken", async || {
        world.number("select count(*) from enrollments where status = 'completed'").await == 1
            && world.number("select count(*) from enrollments where status = 'paused'").await == 2
    })
    .await;
    let rows = "select string_agg(concat_ws(' ', next_action_at, updated_at), ', ' order by id) from enrollments
                where status = 'paused'";
    let before = world.text(rows).await;
    // Some runs of each sweep.
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(world.text(rows).await, before, "nothing writes them again");
    assert_eq!(world.number("select count(*) from enrollment_steps").await, 1);
    world.execute(go_on).await;
    world.over().await;
    assert!(world.states().await.iter().all(|state| state == "completed"));
}

#[tokio::test]
async fn enrollments_of_a_suspended_tenant_rest_until_it_is_active() {
    let (stop, go_on) = ("update tenants set status = 'suspended'", "update tenants set status = 'active'");
    rest_while_the_tenant_is_stopped(stop, go_on).await;
}

#[tokio::test]
async fn enrollments_of_a_paused_tenant_rest_until_it_is_resumed() {
    let (stop, go_on) = ("update tenants set paused_at = now()", "update tenants set paused_at = null");
    rest_while_the_tenant_is_stopped(stop, go_on).await;
}

#[tokio::test]
async fn a_sequence_resumed_while_its_tenant_is_stopped_goes_on_with_the_tenant() {
    let world = World::new().await;
    let people = world.rig.people(&world.tenant, 2).await;
    let sequence = world.sequence(&[task()]).await;
    world.enroll(sequence, &people, 0).await;
    world.execute("update enrollments set status = 'paused'").await;
    world.execute("update tenants set paused_at = now()").await;
    // Long ago: what is applied would be taken off the list.
    world.execute("update sequences set unapplied_since = now(), updated_at = now() - interval '2 minutes'").await;
    world.start(&[]).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(world.number("select count(*) from enrollments where status = 'paused'").await, 2);
    world.execute("update tenants set paused_at = null").await;
    world.over().await;
    assert!(world.states().await.iter().all(|state| state == "completed"));
}

#[tokio::test]
async fn a_group_that_read_the_sequence_before_its_resumption_pauses_nothing() {
    let world = World::new().await;
    let people = world.rig.people(&world.tenant, 1).await;
    let sequence = world.sequence(&[task()]).await;
    world.execute("update sequences set status = 'paused'").await;
    world.enroll(sequence, &people, 0).await;
    // The group has read the sequence, and waits for its contacts.
    let mut other = world.pool().begin().await.unwrap();
    sqlx::query("lock table confirmations in access exclusive mode").execute(&mut *other).await.unwrap();
    world.start(&[]).await;
    let waiting = "select count(*) from pg_locks l join pg_database d on d.oid = l.database
                   where d.datname = current_database() and l.relation = 'confirmations'::regclass and not l.granted";
    until("the group waits", async || world.number(waiting).await > 0).await;
    // It waits for so long that the resumption is applied, and the sequence is visited no more.
    world.execute("update sequences set status = 'active', unapplied_since = null, updated_at = now()").await;
    other.commit().await.unwrap();
    world.over().await;
    assert_eq!(world.states().await, ["completed"]);
}

/// One run of the sweep.
async fn apply_status_changes(world: &World) {
    sqlx::query(include_str!("../../queries/apply_status_changes.sql"))
        .bind(5_000_i64)
        .execute(world.pool())
        .await
        .unwrap();
}

#[rstest]
#[case::resumed("active", "archived", "exited sequence_archived")]
#[case::archived("archived", "active", "active")]
#[tokio::test]
async fn a_tenant_with_many_changed_sequences_holds_up_no_other(
    #[case] status: &'static str,
    #[case] of_the_other: &'static str,
    #[case] expected: &'static str,
) {
    let world = World::new().await;
    sqlx::query(
        "insert into sequences (tenant_id, id, product, environment, name, status, unapplied_since)
         select $1, gen_random_uuid(), 'shop', 'production', 'Many', $2, now() - interval '1 second' from generate_series(1, 500)",
    )
    .bind(world.tenant.id)
    .bind(status)
    .execute(world.pool())
    .await
    .unwrap();
    let small = world.rig.tenant().await;
    let one = world.rig.people(&small, 1).await;
    let changed = sequence(world.pool(), &small, world.template, &[task()]).await;
    enroll(world.pool(), &small, changed, &one, 3_600).await;
    world.execute("update enrollments set status = 'paused'").await;
    sqlx::query("update sequences set status = $2, unapplied_since = now() where id = $1")
        .bind(changed)
        .bind(of_the_other)
        .execute(world.pool())
        .await
        .unwrap();
    apply_status_changes(&world).await;
    assert_eq!(world.states().await, [expected]);
}

#[tokio::test]
async fn a_large_resumed_sequence_does_not_hold_up_a_small_one() {
    let world = World::new().await;
    let many = world.rig.people(&world.tenant, 6_000).await;
    let large = world.sequence(&[task()]).await;
    world.enroll(large, &many, 3_600).await;
    world.execute("update sequences set unapplied_since = now() - interval '1 second'").await;
    let small = world.rig.tenant().await;
    let one = world.rig.people(&small, 1).await;
    let other = sequence(world.pool(), &small, world.template, &[task()]).await;
    enroll(world.pool(), &small, other, &one, 3_600).await;
    world.execute("update enrollments set status = 'paused'").await;
    world.execute("update sequences set unapplied_since = now() where unapplied_since is null").await;
    apply_status_changes(&world).await;
    let of_both = "select string_agg(n::text, ' ' order by n) from (
                       select count(*) filter (where status = 'active') as n from enrollments group by sequence_id) a";
    assert_eq!(world.text(of_both).await, "1 2500");
}

#[tokio::test]
async fn a_resumption_is_applied_without_reading_active_enrollments() {
    let world = World::new().await;
    let people = world.rig.people(&world.tenant, 5_000).await;
    let sequence = world.sequence(&[task()]).await;
    world.enroll(sequence, &people, 3_600).await;
    world.execute("update sequences set unapplied_since = now(), updated_at = now() - interval '2 minutes'").await;
    let sql = concat!("explain (analyze, format json)\n", include_str!("../../queries/apply_status_changes.sql"));
    let plan: Value = sqlx::query_scalar(AssertSqlSafe(sql)).bind(5_000_i64).fetch_one(world.pool()).await.unwrap();
    let in_vain = rows_in_vain(&plan);
    assert!(in_vain < 1_000.0, "{in_vain} rows were looked at in vain: {plan:#}");
    assert_eq!(world.number("select count(*) from sequences where unapplied_since is not null").await, 0, "applied");
}

#[tokio::test]
async fn many_due_enrollments_of_one_contact_keep_no_other_contact_out() {
    let world = World::new().await;
    let people = world.rig.people(&world.tenant, 2).await;
    let busy = world.sequence(&[step("wait", json!({}))]).await;
    sqlx::query(
        "insert into enrollments (tenant_id, id, sequence_id, contact_id, product, next_action_at, is_parallel)
         select $1, gen_random_uuid(), $2, $3, 'shop', now() - interval '1 hour', true from generate_series(1, 1000)",
    )
    .bind(world.tenant.id)
    .bind(busy)
    .bind(people[0].id)
    .execute(world.pool())
    .await
    .unwrap();
    world.enroll(busy, &people[1..], 0).await;
    world.start(&[]).await;
    until("the other contact's step is taken", async || {
        world.number("select count(*) from enrollments where status = 'completed' and not is_parallel").await == 1
    })
    .await;
    let before = world
        .number(
            "select count(*) from enrollments b
             where b.is_parallel and b.ended_at < (select o.ended_at from enrollments o where not o.is_parallel)",
        )
        .await;
    assert!(before <= 20, "{before} of the busy contact's were taken first, one in each group");
}

#[tokio::test]
async fn a_tenant_with_much_due_does_not_hold_up_another() {
    let world = World::new().await;
    let many = world.rig.people(&world.tenant, 3_000).await;
    let busy = world.sequence(&[step("wait", json!({}))]).await;
    world.enroll(busy, &many, -600).await;
    let small = world.rig.tenant().await;
    let one = world.rig.people(&small, 1).await;
    let quiet = sequence(world.pool(), &small, world.template, &[step("wait", json!({}))]).await;
    enroll(world.pool(), &small, quiet, &one, 0).await;
    world.start_in_groups_of(50).await;
    world.over().await;
    // Places, not times: how many of the busy tenant's were done first.
    let before = sqlx::query_scalar::<_, i64>(
        "select count(*) from enrollment_steps b where b.tenant_id = $1
         and b.done_at < (select q.done_at from enrollment_steps q where q.tenant_id = $2)",
    )
    .bind(world.tenant.id)
    .bind(small.id)
    .fetch_one(world.pool())
    .await
    .unwrap();
    assert!(before <= 500, "{before} of 3000 were taken first");
}

#[tokio::test]
async fn nothing_is_early_and_what_is_due_is_taken_up_soon() {
    let world = World::new().await;
    let people = world.rig.people(&world.tenant, 50).await;
    let sequence = world.sequence(&[step("wait", json!({})), task()]).await;
    world.start(&[]).await;
    for (at, person) in people.chunks(10).enumerate() {
        world.enroll(sequence, person, i32::try_from(at).unwrap() / 2).await;
    }
    world.over().await;
    assert_eq!(world.number("select count(*) from enrollment_steps where done_at < due_at").await, 0);
    assert_eq!(
        world.number("select count(*) from enrollment_steps where done_at > due_at + interval '20 seconds'").await,
        0
    );
}

#[tokio::test]
async fn who_is_under_way_finishes_the_version_they_began() {
    let world = World::new().await;
    let people = world.rig.people(&world.tenant, 4).await;
    let sequence = world.sequence(&[task(), task()]).await;
    world.enroll(sequence, &people[..2], 3_600).await;
    // The second version has one step, of another type, and no second one.
    world
        .execute(
            "insert into sequence_steps (tenant_id, id, sequence_id, version, step_order, step_type)
             select tenant_id, gen_random_uuid(), id, 2, 1, 'wait' from sequences",
        )
        .await;
    world.execute("update sequences set version = 2").await;
    world.enroll(sequence, &people[2..], 3_600).await;
    world.execute("update enrollments set next_action_at = now()").await;
    world.start(&[]).await;
    world.over().await;
    assert!(world.states().await.iter().all(|state| state == "completed"));
    let taken = world
        .text(
            "select string_agg(version || ' ' || steps, ', ' order by version) from (
                 select e.version, count(l.*) filter (where l.step_type = 'create_task') as steps
                 from enrollments e join enrollment_steps l on l.enrollment_id = e.id group by e.version) v",
        )
        .await;
    assert_eq!(taken, "1 4, 2 0", "two contacts take both tasks of the first version, nobody the other's steps");
}
