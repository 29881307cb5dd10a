//! Contacts that leave a sequence do so before its next step.

use ledger::suppressions::{self, NewSuppression, SuppressionReason};
use rstest::rstest;
use serde_json::json;
use stage_rig::until;
use uuid::Uuid;

use crate::world::{World, earlier_mail, mail, step, task};

const SUPPRESS: [(&str, &str); 5] = [
    ("unsubscribe", "exited unsubscribed"),
    ("hard_bounce", "exited bounced"),
    ("complaint", "exited complained"),
    ("manual", "exited suppressed"),
    ("invalid", "exited suppressed"),
];

/// The statement that makes each happen.
fn cause(name: &str) -> &'static str {
    match name {
        "archived" => "update contacts set status = 'archived'",
        "erased" => "update contacts set status = 'erased', address = 'erased:x'",
        _ => "update contacts set marketing_status = 'unsubscribed'",
    }
}

#[rstest]
#[case::by_suppression(None)]
#[case::by_archiving(Some(("archived", "exited contact_archived")))]
#[case::by_erasure(Some(("erased", "exited contact_archived")))]
#[case::by_the_tenant(Some(("left", "exited unsubscribed")))]
#[tokio::test]
async fn who_must_leave_leaves_between_two_steps(#[case] change: Option<(&str, &str)>) {
    let world = World::new().await;
    let sequence = world.sequence(&[task()]).await;
    let mut expected = Vec::new();
    match change {
        None => {
            for (reason, state) in SUPPRESS {
                let people = world.rig.people(&world.tenant, 1).await;
                world.enroll(sequence, &people, 3_600).await;
                let scope = if reason == "unsubscribe" { "marketing" } else { "all" };
                world.rig.suppress(&world.tenant, &people[0], reason, scope).await;
                expected.push(state);
            }
        }
        Some((name, state)) => {
            let people = world.rig.people(&world.tenant, 1).await;
            world.enroll(sequence, &people, 3_600).await;
            world.execute(cause(name)).await;
            expected.push(state);
        }
    }
    world.start(&[]).await;
    world.over().await;
    assert_eq!(world.states().await, expected);
    let mut told: Vec<String> = expected.iter().map(|state| state.replace("exited", "enrollment.exited")).collect();
    told.sort();
    assert_eq!(world.told().await, told);
    assert_eq!(world.number("select count(*) from enrollment_checks").await, 0);
}

#[tokio::test]
async fn a_suppression_that_is_in_force_again_ends_the_enrollment() {
    let world = World::new().await;
    let people = world.rig.people(&world.tenant, 1).await;
    world.rig.suppress(&world.tenant, &people[0], "manual", "all").await;
    world.execute("update suppressions set expires_at = now() - interval '1 second'").await;
    let sequence = world.sequence(&[task()]).await;
    world.enroll(sequence, &people, 3_600).await;
    let again = NewSuppression::new(world.tenant.id, people[0].address.clone(), SuppressionReason::Manual, "api");
    let mut db = world.pool().acquire().await.unwrap();
    suppressions::suppress(&mut db, vec![again]).await.unwrap();
    world.start(&[]).await;
    world.over().await;
    assert_eq!(world.states().await, ["exited suppressed"]);
}

/// A person answers this mail.
async fn answer(world: &World, send: Uuid) {
    sqlx::query("insert into events (tenant_id, send_id, id, month, type, occurred_at) values ($1, $2, $2, $3, 'replied', now())")
        .bind(world.tenant.id)
        .bind(send)
        .bind(schemas::month_of(send))
        .execute(world.pool())
        .await
        .unwrap();
}

#[tokio::test]
async fn an_answer_ends_the_enrollment_whose_mail_was_answered() {
    let world = World::new().await;
    let people = world.rig.people(&world.tenant, 1).await;
    let (answered, other) = (world.sequence(&[mail()]).await, world.sequence(&[mail()]).await);
    world.enroll(answered, &people, 3_600).await;
    world.enroll(other, &people, 3_600).await;
    let send = earlier_mail(&world, answered).await;
    answer(&world, send).await;
    world.start(&[]).await;
    until("the answered one is over", async || {
        world.number("select count(*) from enrollments where exit_reason = 'replied'").await == 1
    })
    .await;
    let left: uuid::Uuid = sqlx::query_scalar("select sequence_id from enrollments where status = 'active'")
        .fetch_one(world.pool())
        .await
        .unwrap();
    assert_eq!(left, other);
}

#[tokio::test]
async fn the_owners_answer_to_a_notice_ends_nothing() {
    let world = World::new().await;
    let people = world.rig.people(&world.tenant, 1).await;
    let notice = step("notify_owner", json!({"subject": "News", "message": "Look"}));
    let (notices, mails) = (world.sequence(&[notice]).await, world.sequence(&[mail()]).await);
    for sequence in [notices, mails] {
        world.enroll(sequence, &people, 3_600).await;
        answer(&world, earlier_mail(&world, sequence).await).await;
    }
    world.start(&[]).await;
    until("the enrollment whose mail was answered is over", async || {
        world.number("select count(*) from enrollments where exit_reason = 'replied'").await > 0
    })
    .await;
    let left: Vec<Uuid> = sqlx::query_scalar("select sequence_id from enrollments where status = 'active'")
        .fetch_all(world.pool())
        .await
        .unwrap();
    assert_eq!(left, [notices]);
}

#[tokio::test]
async fn an_answer_noted_before_a_merge_ends_the_enrollment() {
    let world = World::new().await;
    let people = world.rig.people(&world.tenant, 2).await;
    let sequence = world.sequence(&[mail()]).await;
    world.enroll(sequence, &people[..1], 3_600).await;
    let send = earlier_mail(&world, sequence).await;
    answer(&world, send).await;
    for sql in [
        "update enrollments set contact_id = $2 where contact_id = $1",
        "update contacts set status = 'merged', merged_into = $2 where id = $1",
    ] {
        sqlx::query(sql).bind(people[0].id).bind(people[1].id).execute(world.pool()).await.unwrap();
    }
    world.start(&[]).await;
    world.over().await;
    assert_eq!(world.states().await, ["exited replied"]);
}

#[tokio::test]
async fn an_answer_during_a_merge_ends_the_survivors_enrollment() {
    let world = World::new().await;
    let people = world.rig.people(&world.tenant, 2).await;
    let sequence = world.sequence(&[mail()]).await;
    world.enroll(sequence, &people[..1], 3_600).await;
    let send = earlier_mail(&world, sequence).await;
    let mut merge = world.pool().begin().await.unwrap();
    sqlx::query("select from enrollments for update").execute(&mut *merge).await.unwrap();
    for sql in [
        "update enrollments set contact_id = $2 where contact_id = $1",
        "update contacts set status = 'merged', merged_into = $2 where id = $1",
    ] {
        sqlx::query(sql).bind(people[0].id).bind(people[1].id).execute(&mut *merge).await.unwrap();
    }
    let answer = sqlx::query("insert into events (tenant_id, send_id, id, month, type, occurred_at) values ($1, $2, $2, $3, 'replied', now())")
        .bind(world.tenant.id)
        .bind(send)
        .bind(schemas::month_of(send))
        .execute(world.pool());
    let merged = async {
        until("the answer waits, or was noted", async || {
            world.rig.statements_waiting().await > 0 || world.number("select count(*) from enrollment_checks").await > 0
        })
        .await;
        merge.commit().await.unwrap();
    };
    let (answered, ()) = tokio::join!(answer, merged);
    answered.unwrap();
    world.start(&[]).await;
    world.over().await;
    assert_eq!(world.states().await, ["exited replied"]);
}

/// An absence note, a ticket system: RFC 3834.
#[tokio::test]
async fn an_automatic_reply_ends_nothing() {
    let world = World::new().await;
    let people = world.rig.people(&world.tenant, 1).await;
    let sequence = world.sequence(&[mail()]).await;
    world.enroll(sequence, &people, 3_600).await;
    let send = earlier_mail(&world, sequence).await;
    for (automatic, expected) in [(true, 0), (false, 1)] {
        sqlx::query(
            "insert into events (tenant_id, send_id, id, month, type, occurred_at, detail)
             values ($1, $2, $3, $4, 'replied', now(), jsonb_build_object('automatic', $5::bool))",
        )
        .bind(world.tenant.id)
        .bind(send)
        .bind(schemas::new_id())
        .bind(schemas::month_of(send))
        .bind(automatic)
        .execute(world.pool())
        .await
        .unwrap();
        assert_eq!(world.number("select count(*) from enrollment_checks").await, expected, "automatic: {automatic}");
    }
}

#[tokio::test]
async fn a_step_looks_for_itself_before_it_acts() {
    let world = World::new().await;
    let people = world.rig.people(&world.tenant, 4).await;
    let sequence = world.sequence(&[step("send_email", json!({}))]).await;
    world.enroll(sequence, &people, 0).await;
    // The stage was down, and what notes facts for it was lost as well.
    world.rig.suppress(&world.tenant, &people[0], "unsubscribe", "marketing").await;
    world.rig.suppress(&world.tenant, &people[1], "complaint", "all").await;
    sqlx::query("update contacts set status = 'archived' where id = $1")
        .bind(people[2].id)
        .execute(world.pool())
        .await
        .unwrap();
    world.execute("delete from enrollment_checks").await;
    world.start(&[]).await;
    world.over().await;
    let mut states = world.states().await;
    states.sort();
    assert_eq!(states, ["completed", "exited complained", "exited contact_archived", "exited unsubscribed"]);
    assert_eq!(world.number("select count(*) from sends").await, 1);
}

#[tokio::test]
async fn flags_keep_who_left_in_and_the_gate_withholds_his_mail() {
    let world = World::new().await;
    let people = world.rig.people(&world.tenant, 1).await;
    let sequence = world.sequence(&[step("send_email", json!({})), task()]).await;
    world
        .execute("update sequences set exit_on_unsubscribe = false, exit_on_bounce = false, exit_on_complaint = false")
        .await;
    for (reason, scope) in [("unsubscribe", "marketing"), ("hard_bounce", "all"), ("complaint", "all")] {
        world.rig.suppress(&world.tenant, &people[0], reason, scope).await;
    }
    world.enroll(sequence, &people, 0).await;
    world.start(&[]).await;
    world.over().await;
    assert_eq!(world.states().await, ["completed"]);
    // The send has its row, and the compliance stage gives it its reason.
    assert_eq!(world.number("select count(*) from sends where state = 'queued'").await, 1);
}

#[tokio::test]
async fn more_steps_in_a_day_than_allowed_are_a_loop() {
    let world = World::new().await;
    let people = world.rig.people(&world.tenant, 1).await;
    let sequence = world.sequence(&[task(), task(), task(), task(), task()]).await;
    world.enroll(sequence, &people, 0).await;
    world.start(&["--sequencing-steps-per-day", "3"]).await;
    world.over().await;
    assert_eq!(world.states().await, ["exited loop_detected"]);
    assert_eq!(world.number("select count(*) from enrollment_steps").await, 3);
}

#[tokio::test]
async fn the_steps_of_a_day_count_over_all_enrollments_of_a_contact() {
    let world = World::new().await;
    let people = world.rig.people(&world.tenant, 2).await;
    let sequence = world.sequence(&[task(), task()]).await;
    // Four at the same time of the first, two of the second.
    for of in [&people[..1], &people[..1], &people[..], &people[..]] {
        world.enroll(sequence, of, 0).await;
        world.execute("update enrollments set is_parallel = true").await;
    }
    world.start(&["--sequencing-steps-per-day", "5"]).await;
    world.over().await;
    let steps = |person: Uuid| {
        sqlx::query_scalar::<_, i64>(
            "select count(*) from enrollment_steps s join enrollments e on e.id = s.enrollment_id where e.contact_id = $1",
        )
        .bind(person)
        .fetch_one(world.pool())
    };
    assert_eq!(steps(people[0].id).await.unwrap(), 5);
    assert_eq!(steps(people[1].id).await.unwrap(), 4);
    // A new enrollment counts on, until the day is over.
    world.enroll(sequence, &people[..1], 0).await;
    world.over().await;
    assert_eq!(steps(people[0].id).await.unwrap(), 5);
    world.execute("update enrollments set steps_day = steps_day - 1").await;
    world.enroll(sequence, &people[..1], 0).await;
    world.over().await;
    assert_eq!(steps(people[0].id).await.unwrap(), 7);
}
