//! A sequence with every step type, from HTTP to the sink, the product's endpoint and the events, on a shortened clock.

use std::time::Duration;

use pipeline::{Rig, eventually};
use serde_json::{Value, json};

use crate::{recount::recount, webhooks::receiver::Receiver};

const WITHIN: Duration = Duration::from_secs(60);

/// Lets minutes pass: what is to come is due.
async fn pass_time(rig: &Rig) {
    sqlx::query("update enrollments set next_action_at = now() where status = 'active' and claim_token is null and next_action_at > now()")
        .execute(&rig.pool)
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sequence_with_every_step_type_runs_to_completion_over_killed_processes() {
    let mut rig = Rig::shared().await.with("WEBHOOK_ALLOW_NETWORKS", "127.0.0.0/8").with("AUDIENCE_REANNOUNCE", "5s");
    rig.start_separate().await;
    let receiver = Receiver::start().await;
    rig.client
        .post(
            "/v1/webhooks",
            json!({"url": receiver.url(), "events": ["sequence.completed", "task.created", "opportunity.created", "email.sent"]}),
        )
        .await
        .expect(201);
    rig.made("/v1/fields", json!({"key": "plan", "label": "Plan", "type": "string"}), "field_id").await;
    let vip = rig.made("/v1/audiences", json!({"kind": "tag", "name": "vip"}), "audience_id").await;
    let list = rig.made("/v1/audiences", json!({"kind": "list", "name": "Readers"}), "audience_id").await;
    let template = rig
        .made(
            "/v1/templates",
            json!({"name": "W", "template_type": "sequence", "subject": "Welcome {{ first_name }}",
               "body_html": "<p>Hello {{ first_name }} of {{ contact.fields.plan }}</p>"}),
            "template_id",
        )
        .await;
    let later = |step: Value| {
        let mut step = step;
        step["delay_amount"] = json!(5);
        step
    };
    let steps = json!([
        {"step_type": "update_field", "action_config": {"field": "fields.plan", "value": "pro"}},
        {"step_type": "send_email", "template_id": template},
        later(json!({"step_type": "wait"})),
        {"step_type": "apply_tag", "action_config": {"tag_id": vip}},
        {"step_type": "update_lifecycle_stage", "action_config": {"stage": "customer"}},
        later(json!({"step_type": "create_task", "action_config": {"title": "Call", "due_in_days": 1}})),
        {"step_type": "create_opportunity", "action_config": {"name": "Big", "value_cents": 100}},
        {"step_type": "notify_owner", "action_config": {"subject": "A new one", "message": "Have a look", "to": "boss@acme.example"}},
        later(json!({"step_type": "call_product_webhook", "action_config": {"url": receiver.url(), "payload": {"n": 1}}})),
        {"step_type": "update_subscription", "action_config": {"list_id": list, "status": "subscribed"}},
        {"step_type": "remove_tag", "action_config": {"tag_id": vip}},
        {"step_type": "add_suppression", "action_config": {"scope": "marketing", "note": "done"}},
    ]);
    let body = json!({"name": "Welcome", "sender_profile_id": rig.sender_id, "activate": true, "steps": steps});
    let sequence = rig.made("/v1/sequences", body, "sequence_id").await;
    let ending = json!([{"step_type": "end_sequence", "action_config": {"reason": "enough"}}, {"step_type": "wait"}]);
    let short =
        rig.made("/v1/sequences", json!({"name": "Short", "activate": true, "steps": ending}), "sequence_id").await;
    let enroll = |sequence: String, email: &str| json!({"sequence_id": sequence, "email": email, "first_name": "Dora"});
    let enrolled = rig.client.post("/v1/enrollments", enroll(sequence.clone(), "dora@example.org")).await.expect(201);
    let short = rig.made("/v1/enrollments", enroll(short, "emil@example.org"), "enrollment_id").await;

    // Through all of it, and the stage is killed again and again.
    let path = format!("/v1/enrollments/{}", enrolled["enrollment_id"].as_str().unwrap());
    let done = eventually("the enrollment to be over", WITHIN * 2, || {
        let (rig, path) = (&rig, path.as_str());
        async move {
            pass_time(rig).await;
            let found = rig.client.get(path, &[]).await.expect(200)["enrollment"].clone();
            let taken = found["steps"].as_array().unwrap().len();
            (found["status"] != "active" || taken > 4).then_some(found)
        }
    })
    .await;
    assert_eq!(done["exit_reason"], Value::Null, "{done}");
    let mut seen = done["steps"].as_array().unwrap().len();
    for _ in 0..3 {
        rig.kill9("sequencing");
        rig.start("sequencing", &["stage", "sequencing"]).await;
        let now = eventually("a step more", WITHIN, || {
            let (rig, path) = (&rig, path.as_str());
            async move {
                pass_time(rig).await;
                let found = rig.client.get(path, &[]).await.expect(200)["enrollment"].clone();
                let taken = found["steps"].as_array().unwrap().len();
                (taken > seen || found["status"] != "active").then_some(taken)
            }
        })
        .await;
        seen = now;
    }
    let done = eventually("the enrollment to be over", WITHIN * 2, || {
        let (rig, path) = (&rig, path.as_str());
        async move {
            pass_time(rig).await;
            let found = rig.client.get(path, &[]).await.expect(200)["enrollment"].clone();
            (found["status"] != "active").then_some(found)
        }
    })
    .await;
    assert_eq!((&done["status"], &done["exit_reason"]), (&json!("completed"), &Value::Null), "{done}");
    let steps = done["steps"].as_array().unwrap();
    assert_eq!(steps.len(), 12);
    assert!(steps.iter().all(|step| step["outcome"] == "done"), "{done}");

    // The mail, as every mail: personal, with a way out, and followed by its id.
    let send = steps[1]["send_id"].as_str().unwrap();
    let send = eventually("the mail to be sent", WITHIN, || async {
        let found = rig.client.get(&format!("/v1/sends/{send}"), &[]).await.expect(200)["send"].clone();
        (found["state"] == "sent").then_some(found)
    })
    .await;
    assert_eq!((&send["message_kind"], &send["sequence_id"]), (&json!("sequence"), &json!(sequence)));
    assert_eq!((&send["enrollment_id"], &send["step_id"]), (&done["enrollment_id"], &steps[1]["step_id"]));
    let mails = rig.sink.messages_to("dora@example.org").await;
    assert_eq!(mails.len(), 1);
    let html = mails[0]["html"].as_str().unwrap();
    assert!(html.contains("Hello Dora of pro") && html.contains("/u/v1."), "{html}");
    // The owner's.
    eventually("the notification", WITHIN, || async {
        let mails = rig.sink.messages_to("boss@acme.example").await;
        (mails.len() == 1 && mails[0]["text"].as_str().unwrap_or_default().contains("dora@example.org")).then_some(())
    })
    .await;
    // The contact.
    let contact = done["contact_id"].as_str().unwrap();
    let contact = rig.client.get(&format!("/v1/contacts/{contact}"), &[]).await.expect(200)["contact"].clone();
    assert_eq!((&contact["fields"]["plan"], &contact["lifecycle_stage"]), (&json!("pro"), &json!("customer")));
    assert_eq!((contact["tags"].as_array().unwrap().len(), contact["lists"].as_array().unwrap().len()), (0, 1));
    assert_eq!(contact["suppression"]["reason"], "manual");
    // What the product is told.
    let called = receiver.wait_for("sequence.step", WITHIN).await;
    assert_eq!((&called["data"]["payload"]["n"], &called["data"]["email"]), (&json!(1), &json!("dora@example.org")));
    for (event, field, value) in [
        ("task.created", "title", "Call"),
        ("opportunity.created", "name", "Big"),
        ("sequence.completed", "enrollment_id", done["enrollment_id"].as_str().unwrap()),
        ("email.sent", "message_kind", "sequence"),
    ] {
        receiver.wait_for_about(event, field, value, WITHIN).await;
    }
    receiver.assert_ids_are_stable();
    let short = rig.client.get(&format!("/v1/enrollments/{short}"), &[]).await.expect(200)["enrollment"].clone();
    assert_eq!((&short["status"], &short["exit_reason"]), (&json!("exited"), &json!("end_step")));
    // It was over as well.
    receiver
        .wait_for_about("sequence.completed", "enrollment_id", short["enrollment_id"].as_str().unwrap(), WITHIN)
        .await;
    rig.books_balance().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_unsubscribes_by_the_mails_own_link_leaves_the_sequence() {
    let mut rig = Rig::shared().await;
    rig.start_all().await;
    let template = rig
        .made("/v1/templates", json!({"name": "W", "subject": "Welcome", "body_html": "<p>Hello</p>"}), "template_id")
        .await;
    let steps = json!([
        {"step_type": "send_email", "template_id": template},
        {"step_type": "send_email", "template_id": template, "delay_amount": 9, "delay_unit": "days"},
    ]);
    let body = json!({"name": "Welcome", "sender_profile_id": rig.sender_id, "activate": true, "steps": steps});
    let sequence = rig.made("/v1/sequences", body, "sequence_id").await;
    let body = json!({"sequence_id": sequence, "email": "dora@example.org"});
    let enrollment = rig.made("/v1/enrollments", body, "enrollment_id").await;
    rig.sink.wait(1, 60_000).await;
    let source = rig.sink.messages_to("dora@example.org").await;
    let html = source[0]["html"].as_str().unwrap();
    let link = html.split('"').find(|part| part.contains("/u/v1.")).unwrap();
    let left = rig.client.http().post(link).body("List-Unsubscribe=One-Click").send().await.unwrap();
    assert!(left.status().is_success(), "{}", left.status());
    let path = format!("/v1/enrollments/{enrollment}");
    let over = eventually("the enrollment to end", WITHIN, || async {
        let found = rig.client.get(&path, &[]).await.expect(200)["enrollment"].clone();
        (found["status"] == "exited").then_some(found)
    })
    .await;
    assert_eq!(over["exit_reason"], "unsubscribed");
    pass_time(&rig).await;
    assert_eq!(rig.sink.accepted().await, 1);
    assert_reported(&rig, &sequence).await;
}

/// Reports show the sequence's mail by its trigger and among the top messages, and their totals equal a recount.
async fn assert_reported(rig: &Rig, sequence: &str) {
    let report = eventually("the report to show who left", WITHIN, || async {
        let report = rig.client.get("/v1/analytics/overview", &[]).await.expect(200)["report"].clone();
        (report["sequence_triggers"][0]["unsubscribed"] == 1).then_some(report)
    })
    .await;
    let of = &report["sequence_triggers"][0];
    assert_eq!((&of["trigger_type"], &of["sent"]), (&json!("manual_enrollment"), &json!(1)));
    let top = &report["top_messages"][0];
    assert_eq!(
        (&top["kind"], &top["sequence_id"], &top["totals"]["sent"]),
        (&json!("sequence"), &json!(sequence), &json!(1))
    );
    assert_eq!(recount(rig), (Vec::new(), true));
    // One that differs is named.
    eventually("the log of contents to be folded", WITHIN, || async {
        let left: i64 = sqlx::query_scalar("select count(*) from content_changes").fetch_one(&rig.pool).await.ok()?;
        (left == 0).then_some(())
    })
    .await;
    sqlx::query("update content_totals set clicked = clicked + 1 where sequence_id = $1::uuid")
        .bind(sequence)
        .execute(&rig.pool)
        .await
        .unwrap();
    let (found, well) = recount(rig);
    assert_eq!((found.len(), &found[0]["counter"], well), (1, &json!("clicked"), false), "{found:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_starts_a_sequence_whose_mail_says_what_happened() {
    let mut rig = Rig::shared().await;
    rig.start_all().await;
    let template = rig.made(
        "/v1/templates",
        json!({"name": "W", "template_type": "sequence", "subject": "Your {{ event.properties.plan }}",
               "body_html": "<p>{{ event.name }}: {{ event.properties.order.items | first }}, {{ event.properties.none | default: 'n/a' }}</p>"}),
        "template_id",
    )
    .await;
    let steps = json!([
        {"step_type": "send_email", "template_id": template},
        {"step_type": "send_email", "template_id": template, "delay_amount": 9, "delay_unit": "days"},
    ]);
    let body = json!({
        "name": "Trial", "sender_profile_id": rig.sender_id, "activate": true, "steps": steps, "trigger_type": "event",
        "trigger_config": {"event": "trial_started"}, "exit_on_event": {"event": "paid"},
    });
    let sequence = rig.made("/v1/sequences", body, "sequence_id").await;
    rig.client.post("/v1/contacts", json!({"email": "dora@example.org"})).await.expect(201);
    let event = json!({
        "name": "trial_started", "email": "dora@example.org", "source_event_id": "t-1",
        "properties": {"plan": "pro", "order": {"items": ["tea", "cup"]}},
    });
    rig.client.post("/v1/events", event.clone()).await.expect(201);
    rig.client.post("/v1/events", event).await.expect(200);
    rig.sink.wait(1, 60_000).await;
    let mails = rig.sink.messages_to("dora@example.org").await;
    assert_eq!((mails.len(), &mails[0]["subject"]), (1, &json!("Your pro")), "{}", mails[0]);
    assert!(mails[0]["html"].as_str().unwrap().contains("trial_started: tea, n/a"), "{}", mails[0]["html"]);
    rig.client.post("/v1/events", json!({"name": "paid", "email": "dora@example.org"})).await.expect(201);
    let ended = eventually("the enrollment to end", WITHIN, || async {
        let found = rig.client.get("/v1/enrollments", &[("sequence_id", &sequence)]).await.expect(200);
        let [only] = found["enrollments"].as_array().unwrap().as_slice() else { panic!("{found}") };
        (only["status"] != "active").then(|| only.clone())
    })
    .await;
    assert_eq!((&ended["status"], &ended["exit_reason"]), (&json!("exited"), &json!("event")));
    rig.books_balance().await;
}
