//! Each step type does its work, once.

use ledger::{
    confirmations::{ConfirmationLink, confirm},
    merged_mail,
    preferences::ConsentEvidence,
};
use rstest::rstest;
use schemas::{Classification, Resolved, month_of, new_id, subjects::stream};
use serde_json::json;
use stage_rig::{receiver::Receiver, until};
use uuid::Uuid;

use crate::{
    starts::{record, trigger},
    world::{World, enroll, field, sequence, step, task, template},
};

#[tokio::test]
async fn every_step_does_its_work_and_the_sequence_completes() {
    let world = World::new().await;
    field(&world, "plan").await;
    let people = world.rig.people(&world.tenant, 3).await;
    let (vip, old) =
        (world.rig.audience(&world.tenant, "tag", &[]).await, world.rig.audience(&world.tenant, "tag", &people).await);
    let list = world.rig.audience(&world.tenant, "list", &[]).await;
    let receiver = Receiver::answering(&[]).await;
    let sequence = world
        .sequence(&[
            step("send_email", json!({})),
            step("wait", json!({})),
            step("apply_tag", json!({"tag_id": vip})),
            step("remove_tag", json!({"tag_id": old})),
            step("update_field", json!({"field": "plan", "value": "pro"})),
            step("update_field", json!({"field": "company", "value": "Acme"})),
            step("update_lifecycle_stage", json!({"stage": "customer"})),
            step("notify_owner", json!({"subject": "News", "message": "Look <here>"})),
            step("create_task", json!({"title": "Call", "due_in_days": 2})),
            step("create_opportunity", json!({"name": "Big", "value_cents": 100})),
            step("update_subscription", json!({"list_id": list, "status": "subscribed"})),
            step("call_product_webhook", json!({"url": receiver.url, "payload": {"a": 1}})),
        ])
        .await;
    world.enroll(sequence, &people, 0).await;
    world.start(&[]).await;
    world.over().await;
    assert_eq!(world.states().await, ["completed", "completed", "completed"]);
    assert_eq!(
        world.number("select count(*) from enrollment_steps where outcome = 'done' and done_at >= due_at").await,
        36
    );

    // Mail: a batch of three in the priority lane, with the template's content, announced.
    let batch = "select concat_ws(' ', kind, lane, classification, state, size) from batches";
    assert_eq!(world.text(batch).await, "sequence priority marketing announced 3");
    assert_eq!(world.number("select count(*) from sends s join sequence_sends q on q.send_id = s.id").await, 3);
    let announced = world.rig.messages::<Resolved>(stream::RESOLVED).await;
    assert_eq!((announced.len(), announced[0].announcement), (1, 1));
    world.rig.assert_books().await;
    // A message to the owner for each, waiting for the audience stage.
    assert_eq!(
        world
            .number(
                "select count(*) from messages m join requests r on r.id = m.id and r.kind = 'message' and r.state = 'accepted'
                 join message_recipients p on p.message_id = m.id join contacts c on c.id = p.contact_id
                 join contents k on k.id = m.content_id
                 where c.address = 'owner@example.com' and c.marketing_status = 'pending' and k.body_html like '%Look &lt;here&gt;%'
                   and k.body_html like '%@example.org%'"
            )
            .await,
        3
    );
    // The contacts.
    assert_eq!(
        world
            .number(
                "select count(*) from contacts
                 where fields ->> 'plan' = 'pro' and company = 'Acme' and lifecycle_stage = 'customer'"
            )
            .await,
        3
    );
    let members = async |audience: uuid::Uuid| {
        sqlx::query_scalar::<_, i64>("select count(*) from audience_members where audience_id = $1")
            .bind(audience)
            .fetch_one(world.pool())
            .await
            .unwrap()
    };
    assert_eq!((members(vip).await, members(old).await, members(list).await), (3, 0, 3));
    // What products are told: tasks and opportunities the one that enrolled, completions all.
    let told = "select string_agg(concat_ws(' ', type, product, count), ', ' order by type)
                from (select type, product, count(*) from notices group by type, product) n";
    assert_eq!(world.text(told).await, "opportunity.created shop 3, sequence.completed 3, task.created shop 3");
    // The product's endpoint.
    let hits = receiver.hits();
    assert_eq!(hits.len(), 3);
    let (hit, event) = (&hits[0], hits[0].json());
    assert_eq!((&event["data"]["payload"]["a"], &event["type"]), (&json!(1), &json!("sequence.step")));
    assert_eq!(hit.header("x-service-event"), "sequence.step");
    assert!(hit.header("x-service-signature").starts_with("t=") && !hit.event().is_empty());
}

#[tokio::test]
async fn a_task_is_due_by_the_contacts_calendar() {
    let world = World::new().await;
    let people = world.rig.people(&world.tenant, 2).await;
    // At every moment another day.
    for (person, zone) in people.iter().zip(["Pacific/Kiritimati", "Pacific/Pago_Pago"]) {
        let moved = sqlx::query("update contacts set timezone = $2 where id = $1").bind(person.id).bind(zone);
        moved.execute(world.pool()).await.unwrap();
    }
    let sequence = world.sequence(&[step("create_task", json!({"title": "Call", "due_in_days": 2}))]).await;
    world.enroll(sequence, &people, 0).await;
    world.start(&[]).await;
    world.over().await;
    let due = "select count(*) from notices n join contacts c on c.id = n.contact_id
               where n.type = 'task.created'
                 and (n.data ->> 'due_on')::date = (n.occurred_at at time zone c.timezone)::date + 2";
    assert_eq!(world.number(due).await, 2);
}

#[tokio::test]
async fn no_step_stores_a_value_of_a_removed_field() {
    let world = World::new().await;
    let people = world.rig.people(&world.tenant, 1).await;
    let sequence = world.sequence(&[step("update_field", json!({"field": "plan", "value": "pro"}))]).await;
    world.enroll(sequence, &people, 0).await;
    world.start(&[]).await;
    world.over().await;
    assert_eq!(world.text("select outcome from enrollment_steps").await, "unchanged");
    assert_eq!(world.number("select count(*) from contacts where fields = '{}'").await, 1);
}

#[tokio::test]
async fn a_repeated_tag_or_value_is_noted_as_unchanged() {
    let world = World::new().await;
    let people = world.rig.people(&world.tenant, 1).await;
    let tag = world.rig.audience(&world.tenant, "tag", &people).await;
    let sequence = world
        .sequence(&[
            step("apply_tag", json!({"tag_id": tag})),
            step("update_field", json!({"field": "company", "value": null})),
        ])
        .await;
    world.enroll(sequence, &people, 0).await;
    world.start(&[]).await;
    world.over().await;
    assert_eq!(world.number("select count(*) from enrollment_steps where outcome = 'unchanged'").await, 2);
}

#[tokio::test]
async fn a_step_still_mails_a_template_that_is_archived() {
    let world = World::new().await;
    let people = world.rig.people(&world.tenant, 1).await;
    let sequence = world.sequence(&[step("send_email", json!({}))]).await;
    world.execute("update templates set status = 'archived'").await;
    world.enroll(sequence, &people, 0).await;
    world.start(&[]).await;
    world.over().await;
    assert_eq!(world.states().await, ["completed"]);
    let mailed = "select count(*) from sends s join batches b on b.id = batch_of(s.id) join templates t on t.content_id = b.content_id";
    assert_eq!(world.number(mailed).await, 1);
}

#[tokio::test]
async fn an_end_step_completes_the_sequence() {
    let world = World::new().await;
    let people = world.rig.people(&world.tenant, 1).await;
    let sequence = world.sequence(&[step("end_sequence", json!({"reason": "enough"})), task()]).await;
    world.enroll(sequence, &people, 0).await;
    world.start(&[]).await;
    world.over().await;
    assert_eq!(world.states().await, ["exited end_step"]);
    assert_eq!(world.told().await, ["sequence.completed"]);
    assert_eq!(world.text("select detail ->> 'reason' from enrollment_steps").await, "enough");
}

#[tokio::test]
async fn opting_out_by_a_step_ends_other_sequences_and_not_its_own() {
    let world = World::new().await;
    let people = world.rig.people(&world.tenant, 1).await;
    let other = world.sequence(&[("wait", json!({}), 0)]).await;
    world.enroll(other, &people, 3_600).await;
    let sequence = world
        .sequence(&[
            step("update_subscription", json!({"status": "unsubscribed"})),
            step("add_suppression", json!({"scope": "marketing", "note": "by plan"})),
            task(),
        ])
        .await;
    world.enroll(sequence, &people, 0).await;
    world.start(&[]).await;
    world.over().await;
    let mut states = world.states().await;
    states.sort();
    assert_eq!(states, ["completed", "exited unsubscribed"]);
    let held = "select concat_ws(' ', reason, scope, source, note) from suppressions";
    assert_eq!(world.text(held).await, "manual marketing sequence by plan");
}

#[tokio::test]
async fn what_the_recipient_chose_himself_is_not_undone() {
    let world = World::new().await;
    let people = world.rig.people(&world.tenant, 1).await;
    let list = world.rig.audience(&world.tenant, "list", &[]).await;
    world.execute("update contacts set marketing_status = 'unsubscribed'").await;
    world
        .execute(
            "insert into suppressions (tenant_id, id, address, reason, scope, source)
         select tenant_id, gen_random_uuid(), address, 'unsubscribe', 'marketing', 'recipient' from contacts",
        )
        .await;
    sqlx::query("insert into topic_opt_outs (tenant_id, audience_id, contact_id, send_id) values ($1, $2, $3, $4)")
        .bind(world.tenant.id)
        .bind(list)
        .bind(people[0].id)
        .bind(new_id())
        .execute(world.pool())
        .await
        .unwrap();
    let sequence = world
        .sequence(&[
            step("update_subscription", json!({"status": "subscribed"})),
            step("update_subscription", json!({"list_id": list, "status": "subscribed"})),
        ])
        .await;
    world.execute("update sequences set exit_on_unsubscribe = false").await;
    world.enroll(sequence, &people, 0).await;
    world.start(&[]).await;
    world.over().await;
    assert_eq!(world.states().await, ["completed"]);
    assert_eq!(world.number("select count(*) from enrollment_steps where outcome = 'withheld'").await, 2);
    assert_eq!(world.text("select marketing_status from contacts").await, "unsubscribed");
    assert_eq!(world.number("select count(*) from audience_members").await, 0);
}

#[tokio::test]
async fn a_step_that_the_ledger_refuses_costs_its_own_enrollment_only() {
    let world = World::new().await;
    let people = world.rig.people(&world.tenant, 20).await;
    let tag = world.rig.audience(&world.tenant, "tag", &[]).await;
    let good = world.sequence(&[step("apply_tag", json!({"tag_id": tag}))]).await;
    let poison = world.sequence(&[step("apply_tag", json!({"tag_id": new_id()}))]).await;
    world.enroll(poison, &people[..1], 0).await;
    world.enroll(good, &people[1..], 0).await;
    world.start(&[]).await;
    until("the others are done", async || {
        world.number("select count(*) from enrollments where status = 'completed'").await == 19
    })
    .await;
    // Tried again later, five times in all; then it has failed.
    for attempts in 1..=4 {
        until("tried", async || {
            world.number("select attempts::bigint from enrollments where status = 'active'").await == attempts
        })
        .await;
        world.execute("update enrollments set next_action_at = now() where status = 'active'").await;
    }
    world.over().await;
    assert_eq!(
        world.text("select concat_ws(' ', exit_reason, last_error) from enrollments where status = 'failed'").await,
        "error refused_by_ledger"
    );
    assert_eq!(world.number("select count(*) from enrollment_steps where outcome = 'failed'").await, 1);
    assert_eq!(world.told().await.iter().filter(|told| *told == "enrollment.failed refused_by_ledger 1").count(), 1);
}

#[rstest]
#[case::update(
    "update_lifecycle_stage",
    "update contacts set title = 'Dr' where id = $1",
    "select count(*) from contacts where lifecycle_stage = 'lead'"
)]
#[case::apply_tag(
    "apply_tag",
    "insert into audience_members (tenant_id, audience_id, contact_id)
     select a.tenant_id, a.id, c.id from audiences a join contacts c on c.id = $1",
    "select count(*) from audience_members"
)]
#[case::remove_tag(
    "remove_tag",
    "delete from audience_members where contact_id = $1",
    "select 10 - count(*) from audience_members"
)]
#[tokio::test]
async fn a_contact_that_somebody_holds_does_not_hold_up_the_others(
    #[case] kind: &str,
    #[case] change: &'static str,
    #[case] taken: &'static str,
) {
    let world = World::new().await;
    let people = world.rig.people(&world.tenant, 10).await;
    let members = if kind == "remove_tag" { people.len() } else { 0 };
    let tag = world.rig.audience(&world.tenant, "tag", &people[..members]).await;
    let config = if kind == "update_lifecycle_stage" { json!({"stage": "lead"}) } else { json!({ "tag_id": tag }) };
    let sequence = world.sequence(&[step(kind, config)]).await;
    world.enroll(sequence, &people, 0).await;
    let mut import = world.pool().begin().await.unwrap();
    for statement in ["select from contacts where id = $1 for no key update", change] {
        sqlx::query(statement).bind(people[0].id).execute(&mut *import).await.unwrap();
    }
    world.start(&[]).await;
    until("the others are done", async || {
        world.number("select count(*) from enrollments where status = 'completed'").await == 9
    })
    .await;
    import.commit().await.unwrap();
    world.over().await;
    assert_eq!(world.number(taken).await, 10);
    assert_eq!(world.number("select count(*) from enrollments where attempts > 0").await, 0);
}

fn notice(to: &str) -> crate::world::Step<'static> {
    step("notify_owner", json!({"subject": "News", "message": "Look", "to": to}))
}

#[tokio::test]
async fn a_notice_to_an_owner_whom_somebody_adds_does_not_hold_up_the_others() {
    let world = World::new().await;
    let people = world.rig.people(&world.tenant, 2).await;
    let (notices, tasks) = (world.sequence(&[notice("owner@example.com")]).await, world.sequence(&[task()]).await);
    world.enroll(notices, &people[..1], 0).await;
    world.enroll(tasks, &people[1..], 0).await;
    // Another tenant's notices are taken with these.
    let other = world.rig.tenant().await;
    let template = template(world.pool(), &other).await;
    let of_other = sequence(world.pool(), &other, template, &[notice("owner@example.com")]).await;
    enroll(world.pool(), &other, of_other, &world.rig.people(&other, 1).await, 0).await;
    let mut import = world.pool().begin().await.unwrap();
    let added = "insert into contacts (tenant_id, id, address, marketing_status, source)
                 values ($1, $2, 'owner@example.com', 'pending', 'message')";
    sqlx::query(added).bind(world.tenant.id).bind(new_id()).execute(&mut *import).await.unwrap();
    world.start(&[]).await;
    until("the task and the other tenant's notice are done", async || {
        world.number("select count(*) from enrollments where status = 'completed'").await == 2
    })
    .await;
    assert_eq!(world.number("select count(*) from messages").await, 1);
    import.commit().await.unwrap();
    world.over().await;
    assert_eq!(world.number("select count(*) from messages").await, 2);
    assert_eq!(world.number("select count(*) from enrollments where attempts > 0").await, 0);
}

#[tokio::test]
async fn owner_mails_beyond_the_hours_limit_wait_and_none_is_lost() {
    let world = World::new().await;
    let people = world.rig.people(&world.tenant, 10).await;
    let sequence = world.sequence(&[notice("owner@example.com")]).await;
    world.enroll(sequence, &people, 0).await;
    let deps = world.start(&["--sequencing-owner-mails-per-hour", "4"]).await;
    let waiting = "select count(*) from enrollments
                   where status = 'active' and next_action_at > now() + interval '30 minutes' and attempts = 0";
    until("the others wait", async || world.number(waiting).await == 6).await;
    assert_eq!(world.number("select count(*) from messages").await, 4);
    // The hour passes.
    for sent in [8, 10] {
        world.execute("update messages set created_at = created_at - interval '61 minutes'").await;
        world.execute("update enrollments set next_action_at = now() where status = 'active'").await;
        until("as many as fit", async || world.number("select count(*) from messages").await == sent).await;
    }
    world.over().await;
    assert_eq!(world.told().await, vec!["sequence.completed"; 10]);
    drop(deps);
}

#[tokio::test]
async fn an_enrollment_writes_to_the_owner_once_an_hour() {
    let world = World::new().await;
    let people = world.rig.people(&world.tenant, 1).await;
    let sequence = world.sequence(&[notice("owner@example.com"), notice("owner@example.com")]).await;
    world.enroll(sequence, &people, 0).await;
    world.start(&[]).await;
    until("the second waits", async || {
        let waiting =
            "select count(*) from enrollments where next_step = 2 and next_action_at > now() + interval '50 minutes'";
        world.number(waiting).await == 1
    })
    .await;
    assert_eq!(world.number("select count(*) from messages").await, 1);
    world.execute("update enrollment_steps set done_at = done_at - interval '61 minutes'").await;
    world.execute("update enrollments set next_action_at = now()").await;
    world.over().await;
    assert_eq!(world.number("select count(*) from messages").await, 2);
}

#[tokio::test]
async fn a_contact_that_is_made_for_a_notice_to_the_owner_starts_nothing() {
    let world = World::new().await;
    let people = world.rig.people(&world.tenant, 1).await;
    let welcome = world.sequence(&[task()]).await;
    trigger(&world, welcome, "contact_created", json!({})).await;
    let sequence = world.sequence(&[notice("owner@example.com")]).await;
    world.enroll(sequence, &people, 0).await;
    world.start(&[]).await;
    world.over().await;
    let owner = "select count(*) from contacts where address = 'owner@example.com' and source = 'message'";
    assert_eq!(world.number(owner).await, 1);
    assert_eq!(world.number("select count(*) from trigger_occurrences").await, 0);
}

#[tokio::test]
async fn a_step_writes_to_nobody_but_the_owner_and_the_tenants_own_domains() {
    let world = World::new().await;
    let people = world.rig.people(&world.tenant, 1).await;
    let own: String =
        sqlx::query_scalar("select 'boss@' || domain from domains").fetch_one(world.pool()).await.unwrap();
    for to in ["victim@elsewhere.example", own.as_str()] {
        let sequence = world.sequence(&[notice(to)]).await;
        world.enroll(sequence, &people, 0).await;
    }
    world.start(&[]).await;
    world.over().await;
    assert_eq!(world.states().await, ["completed", "completed"]);
    assert_eq!(world.number("select count(*) from messages").await, 1);
    let withheld = "select detail ->> 'reason' from enrollment_steps where outcome = 'withheld'";
    assert_eq!(world.text(withheld).await, "recipient_not_allowed");
    assert_eq!(world.number("select count(*) from contacts where address = 'victim@elsewhere.example'").await, 0);
}

#[tokio::test]
async fn a_mail_step_waits_while_the_frequency_cap_leaves_no_room() {
    let world = World::new().await;
    let people = world.rig.people(&world.tenant, 2).await;
    world.execute("update tenants set frequency_cap_messages = 1, frequency_cap_days = 7").await;
    sqlx::query("insert into capped_sends (tenant_id, send_id, contact_id, fenced_at) values ($1, $2, $3, now())")
        .bind(world.tenant.id)
        .bind(new_id())
        .bind(people[0].id)
        .execute(world.pool())
        .await
        .unwrap();
    let sequence = world.sequence(&[step("send_email", json!({})), step("wait", json!({}))]).await;
    world.enroll(sequence, &people, 0).await;
    world.start(&[]).await;
    let held = "select count(*) from enrollments where status = 'active' and next_step = 1 and attempts = 0
                and next_action_at between now() + interval '59 minutes' and now() + interval '61 minutes'";
    until("one mailed and one held", async || {
        world.number("select count(*) from enrollments where status = 'completed'").await == 1
            && world.number(held).await == 1
    })
    .await;
    assert_eq!(world.number("select count(*) from sends").await, 1);
    // There is room again, and the hour is over.
    world.execute("delete from capped_sends").await;
    world.execute("update enrollments set next_action_at = now() where status = 'active'").await;
    world.over().await;
    assert_eq!(world.states().await, ["completed", "completed"]);
    assert_eq!(world.number("select count(*) from sends").await, 2);
}

#[tokio::test]
async fn a_mail_step_waits_while_a_more_urgent_campaign_needs_the_room() {
    let world = World::new().await;
    let people = world.rig.people(&world.tenant, 2).await;
    world.execute("update tenants set frequency_cap_messages = 1, frequency_cap_days = 7").await;
    let list = world.rig.audience(&world.tenant, "list", &[]).await;
    for (person, urgency) in people.iter().zip(["normal", "important"]) {
        let campaign = world.rig.campaign(&world.tenant, list).await;
        let owed =
            world.rig.batch(&world.tenant, campaign, Classification::Marketing, std::slice::from_ref(person)).await;
        sqlx::query("update campaigns set urgency = $2, month = $3, launched_at = now() where id = $1")
            .bind(campaign)
            .bind(urgency)
            .bind(month_of(owed.batch_id))
            .execute(world.pool())
            .await
            .unwrap();
    }
    let sequence = world.sequence(&[step("send_email", json!({}))]).await;
    world.enroll(sequence, &people, 0).await;
    world.start(&[]).await;
    let held = "select count(*) from enrollments where held_by = 'frequency_cap' and attempts = 0";
    until("one mailed and one held", async || {
        world.number("select count(*) from enrollments where status = 'completed'").await == 1
            && world.number(held).await == 1
    })
    .await;
    world.execute("update campaigns set paused = true").await;
    world.execute("update enrollments set next_action_at = now() where status = 'active'").await;
    world.over().await;
    assert_eq!(world.states().await, ["completed", "completed"]);
}

#[tokio::test]
async fn mail_that_is_on_its_way_takes_room_under_the_cap() {
    let world = World::new().await;
    let people = world.rig.people(&world.tenant, 1).await;
    world.execute("update tenants set frequency_cap_messages = 1, frequency_cap_days = 7").await;
    let first = world.sequence(&[step("send_email", json!({}))]).await;
    let second = world.sequence(&[step("send_email", json!({}))]).await;
    world.start(&[]).await;
    world.enroll(first, &people, 0).await;
    until("the first is queued", async || world.number("select count(*) from sends").await == 1).await;
    world.enroll(second, &people, 0).await;
    let held = "select count(*) from enrollments where held_by = 'frequency_cap'";
    until("the second waits", async || world.number(held).await == 1).await;
    assert_eq!(world.number("select count(*) from sends").await, 1);
    // The first could not be delivered.
    world.execute("update sends set state = 'failed', decided_at = now()").await;
    world.execute("update enrollments set next_action_at = now() where status = 'active'").await;
    world.over().await;
    assert_eq!(world.number("select count(*) from sends").await, 2);
}

#[tokio::test]
async fn mail_that_is_set_aside_takes_no_room_under_the_cap() {
    let world = World::new().await;
    let people = world.rig.people(&world.tenant, 2).await;
    world.execute("update tenants set frequency_cap_messages = 1, frequency_cap_days = 7").await;
    // To one of them a mail of another sequence, to the other that of a more urgent campaign.
    let first = world.sequence(&[step("send_email", json!({}))]).await;
    let second = world.sequence(&[step("send_email", json!({}))]).await;
    world.enroll(first, &people[..1], 0).await;
    let list = world.rig.audience(&world.tenant, "list", &[]).await;
    let campaign = world.rig.campaign(&world.tenant, list).await;
    let owed = world.rig.batch(&world.tenant, campaign, Classification::Marketing, &people[1..]).await;
    sqlx::query("update campaigns set urgency = 'urgent', month = $2, launched_at = now() where id = $1")
        .bind(campaign)
        .bind(month_of(owed.batch_id))
        .execute(world.pool())
        .await
        .unwrap();
    world.start(&[]).await;
    until("both are queued", async || world.number("select count(*) from sends").await == 2).await;
    world.set_aside().await;
    world.enroll(second, &people, 0).await;
    world.over().await;
    assert_eq!(world.number("select count(*) from sends").await, 4);
}

#[tokio::test]
async fn in_quiet_hours_a_mail_step_waits_and_an_event_still_ends_it() {
    let world = World::new().await;
    let people = world.rig.people(&world.tenant, 2).await;
    world
        .execute(
            "update tenants set quiet_from = (now() at time zone 'utc' - interval '1 hour')::time,
                 quiet_to = (now() at time zone 'utc' + interval '2 hours')::time, quiet_by_contact = false,
                 quiet_for = array['marketing']",
        )
        .await;
    let sequence = world.sequence(&[step("send_email", json!({}))]).await;
    world.execute(r#"update sequences set exit_event = '{"event": "paid"}'"#).await;
    world.enroll(sequence, &people, 0).await;
    world.start(&[]).await;
    // They may be changed, so it looks again within the hour.
    let held = "select count(*) from enrollments where status = 'active' and held_by = 'quiet_hours'
                and next_action_at between now() + interval '59 minutes' and now() + interval '1 hour'";
    until("both wait for the end", async || world.number(held).await == 2).await;
    record(&mut world.pool().acquire().await.unwrap(), &world, &people[0], "paid", json!({})).await;
    world.execute("insert into enrollment_checks (tenant_id, contact_id) select tenant_id, id from contacts").await;
    until("one has left", async || world.number(held).await == 1).await;
    world
        .execute("update tenants set quiet_from = null, quiet_to = null, quiet_by_contact = null, quiet_for = null")
        .await;
    world.execute("update enrollments set next_action_at = now() where status = 'active'").await;
    world.over().await;
    let mailed: Vec<Uuid> = sqlx::query_scalar("select contact_id from sends").fetch_all(world.pool()).await.unwrap();
    assert_eq!(mailed, [people[1].id]);
}

#[tokio::test]
async fn a_mail_step_waits_for_the_consent_that_is_asked_for() {
    let world = World::new().await;
    let people = world.rig.people(&world.tenant, 4).await;
    world.execute("update contacts set marketing_status = 'pending'").await;
    // The first is to be asked, of the second nobody asks it, the third let its link expire, and the fourth got none in all the time that a
    // link has.
    for (person, asked_before, expires_in) in
        [(&people[0], 13, None), (&people[2], 0, Some(-1)), (&people[3], 15, None)]
    {
        sqlx::query(
            "insert into confirmations (tenant_id, contact_id, requested_at, expires_at)
             values ($1, $2, now() - make_interval(days => $3), now() + make_interval(days => $4))",
        )
        .bind(world.tenant.id)
        .bind(person.id)
        .bind(asked_before)
        .bind(expires_in)
        .execute(world.pool())
        .await
        .unwrap();
    }
    let sequence = world.sequence(&[step("send_email", json!({}))]).await;
    world.enroll(sequence, &people, 0).await;
    world.start(&[]).await;
    let held = "select count(*) from enrollments where status = 'active' and held_by = 'no_consent'";
    let over = "select count(*) from enrollments where status = 'completed'";
    until("one waits", async || world.number(held).await == 1 && world.number(over).await == 3).await;
    assert_eq!(world.number("select count(*) from sends").await, 3, "the gate says why they get nothing");
    // The link is followed: the mail is made at once.
    let mut db = world.pool().begin().await.unwrap();
    let evidence = ConsentEvidence::default();
    let link = confirm(&mut db, world.tenant.id, people[0].id, new_id(), &evidence, "Yes").await.unwrap();
    assert_eq!(link, Some(ConfirmationLink::Confirmed));
    db.commit().await.unwrap();
    world.over().await;
    assert_eq!(world.number("select count(*) from sends").await, 4);
}

#[rstest]
#[case::that_goes_on(true, None, None, 1)]
#[case::that_is_over(false, None, None, 1)]
#[case::that_is_over_and_has_begun_again(false, Some(0), None, 1)]
#[case::that_an_end_step_has_ended(false, None, Some(["exited", "end_step"]), 1)]
#[case::that_failed(false, None, Some(["failed", "error"]), 1)]
#[case::that_has_ended_early(false, None, Some(["exited", "manual"]), 0)]
#[case::that_the_survivor_is_in(false, Some(1), None, 0)]
#[tokio::test]
async fn mail_of_a_sequence_that_waits_is_the_survivors_of_a_merge(
    #[case] goes_on: bool,
    #[case] also_in_it: Option<usize>,
    #[case] ended_as: Option<[&'static str; 2]>,
    #[case] expected: i64,
) {
    let world = World::new().await;
    let people = world.rig.people(&world.tenant, 3).await;
    let [first, second, last] = [people[0].id, people[1].id, people[2].id];
    let mail = step("send_email", json!({}));
    let steps = if goes_on { vec![mail, ("create_task", json!({"title": "Call"}), 60)] } else { vec![mail] };
    let sequence = world.sequence(&steps).await;
    world.enroll(sequence, &people[..1], 0).await;
    world.start(&[]).await;
    until("the mail to be written", async || world.number("select count(*) from sends").await == 1).await;
    if let Some(person) = also_in_it {
        world.enroll(sequence, &people[person..=person], 3_600).await;
    }
    if let Some([status, reason]) = ended_as {
        let end = "update enrollments set status = $2, exit_reason = $3 where contact_id = $1";
        sqlx::query(end).bind(first).bind(status).bind(reason).execute(world.pool()).await.unwrap();
    }
    // A merge is repeated, and the survivor is merged, too.
    for (merged, survivor) in [(first, second), (first, second), (second, last)] {
        let mut merge = world.pool().begin().await.unwrap();
        merged_mail::transfer_owed(&mut merge, world.tenant.id, (merged, survivor), &[]).await.unwrap();
        // As the ingress does: an enrollment that is live goes on with the survivor.
        sqlx::query("update enrollments set contact_id = $2 where contact_id = $1 and status = 'active'")
            .bind(merged)
            .bind(survivor)
            .execute(&mut *merge)
            .await
            .unwrap();
        sqlx::query("update sends set state = 'skipped' where contact_id = $1")
            .bind(merged)
            .execute(&mut *merge)
            .await
            .unwrap();
        let skip =
            "update batches b set queued = 0, skipped = 1 from sends s where s.id = b.id and s.state = 'skipped'";
        sqlx::query(skip).execute(&mut *merge).await.unwrap();
        merge.commit().await.unwrap();
    }
    // The step shows it.
    let owed: i64 = sqlx::query_scalar(
        "select count(*) from sends s
         join sequence_sends q on q.tenant_id = s.tenant_id and q.send_id = s.id
         join enrollment_steps p on p.tenant_id = s.tenant_id and p.enrollment_id = q.enrollment_id and p.send_id = s.id
         join batches b on b.tenant_id = s.tenant_id and b.id = s.id
         where s.contact_id = $1 and s.state = 'queued' and b.kind = 'sequence' and b.state = 'waiting'",
    )
    .bind(last)
    .fetch_one(world.pool())
    .await
    .unwrap();
    assert_eq!(owed, expected);
}
