//! Sequences and enrollments over HTTP; what moves them is the sequencing stage's, and tested there.

use chrono::{DateTime, TimeDelta, Utc};
use http::Method;
use rstest::rstest;
use schemas::Environment;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::{common::PRODUCT, fixtures, fixtures::Ready};

const WAIT: &str = "wait";

async fn sequence(ready: &Ready, steps: Value) -> String {
    let body = json!({"name": "Welcome", "sender_profile_id": ready.sender, "activate": true, "steps": steps});
    let made = ready.client.post("/v1/sequences", body).await;
    assert_eq!(made.status, 201, "{}", made.body);
    made.text("sequence_id")
}

async fn enroll(ready: &Ready, sequence: &str, email: &str) -> Value {
    let made = ready.client.post("/v1/enrollments", json!({"sequence_id": sequence, "email": email})).await;
    assert_eq!(made.status, 201, "{}", made.body);
    made.body
}

fn at(value: &Value) -> DateTime<Utc> {
    value.as_str().unwrap().parse().unwrap()
}

#[tokio::test]
async fn a_sequence_is_read_as_it_was_written() {
    let ready = Ready::start().await;
    let template = ready.template(json!({})).await;
    let tag = fixtures::audience(&ready.edge.pool, ready.client.tenant, "tag", "t", 0).await;
    let steps = json!([
        {"step_type": "send_email", "template_id": template},
        {"step_type": "apply_tag", "delay_amount": 3, "delay_unit": "business_days", "action_config": {"tag_id": tag}},
        {"step_type": "create_task", "action_config": {"title": "Call"}},
    ]);
    let body = json!({"name": " Welcome ", "description": "d", "sender_profile_id": ready.sender, "exit_on_bounce": false, "steps": steps});
    let made = ready.client.post("/v1/sequences", body).await;
    assert_eq!((made.status.as_u16(), &made.body["status"]), (201, &json!("draft")));
    let read = ready.client.get(&format!("/v1/sequences/{}", made.text("sequence_id"))).await.body;
    let sequence = &read["sequence"];
    assert_eq!((&sequence["name"], &sequence["trigger_type"]), (&json!("Welcome"), &json!("manual_enrollment")));
    assert_eq!((&sequence["exit_on_bounce"], &sequence["exit_on_complaint"]), (&json!(false), &json!(true)));
    assert_eq!(read["steps"][1]["action_config"], json!({"tag_id": tag}));
    assert_eq!(
        (&read["steps"][1]["delay_amount"], &read["steps"][1]["delay_unit"]),
        (&json!(3), &json!("business_days"))
    );
    let ids = |steps: &Value| steps.as_array().unwrap().iter().map(|step| step["step_id"].clone()).collect::<Vec<_>>();
    assert_eq!(ids(&read["steps"]), ids(&made.body["steps"]));
    let listed = ready.client.get("/v1/sequences?status=draft").await.body;
    assert_eq!(listed["sequences"][0], *sequence);
    assert_eq!(ready.client.get("/v1/sequences?status=active").await.body["sequences"], json!([]));
}

#[rstest]
#[case(json!([]), "steps", "out_of_range")]
#[case(json!(vec![json!({"step_type": "wait"}); 51]), "steps", "out_of_range")]
#[case(json!([{"step_type": "wait"}, {"step_type": "apply_tag", "action_config": {"tag_id": 7}}]), "steps[1].action_config.tag_id", "wrong_type")]
#[case(json!([{"step_type": "wait", "delay_amount": 1.5}]), "steps[0].delay_amount", "wrong_type")]
#[case(json!([{"step_type": "call_product_webhook", "action_config": {"url": "https://10.0.0.1/"}}]), "steps[0].action_config.url", "address_not_allowed")]
#[case(json!([{"step_type": "update_field", "action_config": {"field": "plan", "value": 1}}]), "steps[0].action_config.field", "unknown_field")]
#[tokio::test]
async fn what_is_wrong_with_a_step_is_named(#[case] steps: Value, #[case] path: &str, #[case] code: &str) {
    let ready = Ready::start().await;
    let answer = ready.client.post("/v1/sequences", json!({"name": "S", "steps": steps})).await;
    assert_eq!(answer.refusal(), (400, "validation_failed"));
    assert_eq!((&answer.body["fields"][0]["path"], &answer.body["fields"][0]["code"]), (&json!(path), &json!(code)));
}

#[tokio::test]
async fn what_a_step_names_must_be_the_tenants_own() {
    let ready = Ready::start().await;
    let stranger = ready.edge.client_for(PRODUCT, Environment::Production, "tenant-2").await;
    let tag = fixtures::audience(&ready.edge.pool, stranger.tenant, "tag", "x", 0).await;
    let template = ready.template(json!({})).await;
    let archived = ready.template(json!({})).await;
    ready.client.delete(&format!("/v1/templates/{archived}"), json!({})).await;
    let receipt = ready.template(json!({"template_type": "transactional"})).await;
    for (step, status, code) in [
        (json!({"step_type": "apply_tag", "action_config": {"tag_id": tag}}), 404, "tag_not_found"),
        (json!({"step_type": "apply_tag", "action_config": {"tag_id": ready.list}}), 404, "tag_not_found"),
        (
            json!({"step_type": "update_subscription", "action_config": {"list_id": tag, "status": "subscribed"}}),
            404,
            "list_not_found",
        ),
        (json!({"step_type": "send_email", "template_id": archived}), 404, "template_not_found"),
        (json!({"step_type": "send_email", "template_id": receipt}), 400, "validation_failed"),
    ] {
        let answer = ready.client.post("/v1/sequences", json!({"name": "S", "steps": [step]})).await;
        assert_eq!(answer.refusal(), (status, code));
    }
    let mail = json!([{"step_type": "send_email", "template_id": template}]);
    let theirs = stranger.post("/v1/sequences", json!({"name": "S", "steps": mail})).await;
    assert_eq!(theirs.refusal(), (404, "template_not_found"));
    let own = sequence(&ready, mail).await;
    let enrolled = enroll(&ready, &own, "ann@example.com").await;
    let enrollment = format!("/v1/enrollments/{}", enrolled["enrollment_id"].as_str().unwrap());
    let path = format!("/v1/sequences/{own}");
    for (method, path, code) in [
        (Method::GET, &path, "sequence_not_found"),
        (Method::PATCH, &path, "sequence_not_found"),
        (Method::GET, &enrollment, "enrollment_not_found"),
        (Method::DELETE, &enrollment, "enrollment_not_found"),
    ] {
        let answer = match method {
            Method::GET => stranger.get(path).await,
            _ => stranger.write(method.clone(), path, json!({}), &[]).await,
        };
        assert_eq!(answer.refusal(), (404, code), "{method} {path}");
    }
    let body = json!({"sequence_id": own, "email": "bob@example.com"});
    assert_eq!(stranger.post("/v1/enrollments", body).await.refusal(), (404, "sequence_not_found"));
    for path in ["/v1/sequences", "/v1/enrollments"] {
        assert_eq!(stranger.get(path).await.body[path.trim_start_matches("/v1/")], json!([]));
    }
}

#[tokio::test]
async fn a_status_changes_as_specified_and_a_draft_gets_its_sender() {
    let ready = Ready::start().await;
    let template = ready.template(json!({})).await;
    let steps = json!([{"step_type": "send_email", "template_id": template}]);
    let made = ready.client.post("/v1/sequences", json!({"name": "S", "steps": steps})).await.text("sequence_id");
    let path = format!("/v1/sequences/{made}");
    let change = async |body: Value| ready.client.patch(&path, body).await;
    let sender_required = (409, "sender_profile_required_to_activate");
    assert_eq!(change(json!({"status": "active"})).await.refusal(), sender_required);
    assert_eq!(change(json!({"sender_profile_id": ready.sender})).await.status, 200);
    assert_eq!(change(json!({"sender_profile_id": null})).await.status, 200);
    assert_eq!(ready.client.get(&path).await.body["sequence"]["sender_profile_id"], Value::Null);
    assert_eq!(change(json!({"status": "active"})).await.refusal(), sender_required);
    let with_sender = change(json!({"status": "active", "sender_profile_id": ready.sender, "name": "T"})).await;
    assert_eq!((with_sender.status.as_u16(), &with_sender.body["status"]), (200, &json!("active")));
    assert_eq!(change(json!({"sender_profile_id": null})).await.refusal(), sender_required);
    for (status, expected) in [
        ("active", (409, "invalid_status_transition")),
        ("paused", (200, "")),
        ("active", (200, "")),
        ("archived", (200, "")),
        ("archived", (200, "")),
        ("active", (409, "invalid_status_transition")),
        ("draft", (400, "validation_failed")),
    ] {
        assert_eq!(change(json!({"status": status})).await.refusal(), expected, "{status}");
    }
    let read = ready.client.get(&path).await.body["sequence"].clone();
    assert_eq!((&read["name"], &read["status"]), (&json!("T"), &json!("archived")));
    assert!(read["activated_at"].is_string() && read["archived_at"].is_string());
}

#[tokio::test]
async fn an_enrollment_finds_or_makes_its_contact_and_tells_its_time() {
    let ready = Ready::start().await;
    let id = sequence(&ready, json!([{"step_type": WAIT, "delay_amount": 2, "delay_unit": "hours"}])).await;
    let body =
        json!({"sequence_id": id, "email": "Ann@Example.com", "first_name": "Ann", "last_name": "", "title": "Dr"});
    let made = ready.client.post("/v1/enrollments", body).await;
    assert_eq!(made.status, 201, "{}", made.body);
    let wait = at(&made.body["next_action_at"]) - Utc::now();
    assert!(wait > TimeDelta::minutes(110) && wait <= TimeDelta::minutes(121), "{wait}");
    let contact = ready.client.get(&format!("/v1/contacts/{}", made.text("contact_id"))).await.body["contact"].clone();
    assert_eq!((&contact["email"], &contact["first_name"]), (&json!("ann@example.com"), &json!("Ann")));
    assert_eq!(contact["last_name"], Value::Null, "a later enrollment may fill what this one left blank");
    assert_eq!((&contact["marketing_status"], &contact["source"]), (&json!("subscribed"), &json!("enrollment")));

    // What is known stays: names are only filled, and a contact of which the product said that it has not agreed has not agreed.
    ready
        .client
        .post("/v1/contacts", json!({"email": "bob@example.com", "first_name": "Bob", "marketing_status": "pending"}))
        .await;
    let body = json!({"sequence_id": id, "email": "bob@example.com", "first_name": "Robert", "last_name": "Roe"});
    let bob = ready.client.post("/v1/enrollments", body).await;
    assert_eq!((&bob.body["mailable"], &bob.body["skip_reason"]), (&json!(false), &json!("no_consent")));
    let bob = bob.text("contact_id");
    let contact = ready.client.get(&format!("/v1/contacts/{bob}")).await.body["contact"].clone();
    assert_eq!((&contact["first_name"], &contact["last_name"]), (&json!("Bob"), &json!("Roe")));
    assert_eq!(contact["marketing_status"], "pending");
}

/// A contact that the engine made for a mail, with consent pending.
async fn known_from(ready: &Ready, source: &str, email: &str) -> Uuid {
    let id = schemas::new_id();
    sqlx::query(
        "insert into contacts (tenant_id, id, address, marketing_status, source) values ($1, $2, $3, 'pending', $4)",
    )
    .bind(ready.client.tenant)
    .bind(id)
    .bind(email)
    .bind(source)
    .execute(&ready.edge.pool)
    .await
    .unwrap();
    id
}

async fn marketing_status(ready: &Ready, contact: Uuid) -> Value {
    ready.client.get(&format!("/v1/contacts/{contact}")).await.body["contact"]["marketing_status"].clone()
}

#[rstest]
#[case::transactional("transactional")]
#[case::one_off("message")]
#[tokio::test]
async fn a_contact_first_seen_by_a_mail_is_enrolled_as_consenting(#[case] source: &str) {
    let ready = Ready::start().await;
    let id = sequence(&ready, json!([{"step_type": WAIT}])).await;
    let ann = known_from(&ready, source, "ann@example.com").await;
    let enrolled = enroll(&ready, &id, "ann@example.com").await;
    assert_eq!((&enrolled["mailable"], &enrolled["skip_reason"]), (&json!(true), &Value::Null));
    assert_eq!(marketing_status(&ready, ann).await, "subscribed");
}

#[derive(Debug)]
enum Statement {
    Patch,
    Post,
    Batch,
    Import,
    ImportWithoutLeave,
    Merge,
}

#[rstest]
#[case::patch(Statement::Patch)]
#[case::post(Statement::Post)]
#[case::batch(Statement::Batch)]
#[case::import(Statement::Import)]
#[case::import_without_leave(Statement::ImportWithoutLeave)]
#[case::merge(Statement::Merge)]
#[tokio::test]
async fn consent_that_the_product_said_is_pending_stays_so(#[case] statement: Statement) {
    let ready = Ready::start().await;
    let client = &ready.client;
    let id = sequence(&ready, json!([{"step_type": WAIT}])).await;
    let ann = known_from(&ready, "transactional", "ann@example.com").await;
    let pending = json!({"email": "ann@example.com", "marketing_status": "pending"});
    let csv = "email,marketing_status\nann@example.com,pending\n";
    let stated = match statement {
        Statement::Patch => client.patch(&format!("/v1/contacts/{ann}"), json!({"marketing_status": "pending"})).await,
        Statement::Post => client.post("/v1/contacts", pending).await,
        Statement::Batch => client.post("/v1/contacts/batch", json!({"contacts": [pending]})).await,
        Statement::Import => client.post("/v1/imports", json!({"csv": csv})).await,
        Statement::ImportWithoutLeave => {
            let compliance = json!({"marketing_allowed": false});
            let body = json!({"csv": "email\nann@example.com\n", "compliance": compliance});
            client.post("/v1/imports", body).await
        }
        Statement::Merge => {
            let body = json!({"email": "ann@work.example", "marketing_status": "pending", "source": "form"});
            let form = client.post("/v1/contacts", body).await.text("contact_id");
            client.post(&format!("/v1/contacts/{ann}/merge"), json!({"contact_id": form})).await
        }
    };
    assert_eq!(stated.status, 200, "{}", stated.body);
    let enrolled = enroll(&ready, &id, "ann@example.com").await;
    assert_eq!((&enrolled["mailable"], &enrolled["skip_reason"]), (&json!(false), &json!("no_consent")));
    let template = ready.template(json!({"template_type": "marketing"})).await;
    let body = json!({"template_id": template, "email": "ann@example.com"});
    assert_eq!(client.post("/v1/transactional", body).await.status, 202);
    assert_eq!(marketing_status(&ready, ann).await, "pending");
}

#[tokio::test]
async fn consent_that_was_taken_back_is_not_given_again() {
    let ready = Ready::start().await;
    let id = sequence(&ready, json!([{"step_type": WAIT}])).await;
    let ann = known_from(&ready, "transactional", "ann@example.com").await;
    for status in ["subscribed", "pending"] {
        ready.client.patch(&format!("/v1/contacts/{ann}"), json!({"marketing_status": status})).await;
    }
    assert_eq!(enroll(&ready, &id, "ann@example.com").await["skip_reason"], "no_consent");
    assert_eq!(marketing_status(&ready, ann).await, "pending");
}

#[rstest]
#[case::into_the_customer(true)]
#[case::of_the_customer(false)]
#[tokio::test]
async fn a_merge_with_a_contact_known_from_mail_takes_no_consent(#[case] is_customer_kept: bool) {
    let ready = Ready::start().await;
    let body = json!({"email": "ann@example.com", "consent": {"basis": "opt_in"}});
    let customer: Uuid = ready.client.post("/v1/contacts", body).await.text("contact_id").parse().unwrap();
    let known = known_from(&ready, "transactional", "ann@work.example").await;
    let (kept, gone) = if is_customer_kept { (customer, known) } else { (known, customer) };
    let merged = ready.client.post(&format!("/v1/contacts/{kept}/merge"), json!({"contact_id": gone})).await;
    let contact = &merged.body["contact"];
    assert_eq!(
        (&contact["marketing_status"], &contact["source"], &contact["consent"]["basis"]),
        (&json!("subscribed"), &json!("api"), &json!("opt_in")),
        "{}",
        merged.body
    );
}

#[tokio::test]
async fn enrolling_lifts_no_opt_out_and_no_suppression() {
    let ready = Ready::start().await;
    let id = sequence(&ready, json!([{"step_type": WAIT}])).await;
    let left = known_from(&ready, "transactional", "left@example.com").await;
    ready.client.patch(&format!("/v1/contacts/{left}"), json!({"marketing_status": "unsubscribed"})).await;
    known_from(&ready, "transactional", "held@example.com").await;
    ready.client.post("/v1/suppressions", json!({"email": "held@example.com", "reason": "complaint"})).await;
    for (email, reason) in [("left@example.com", "unsubscribed"), ("held@example.com", "complained")] {
        let enrolled = enroll(&ready, &id, email).await;
        assert_eq!((&enrolled["mailable"], &enrolled["skip_reason"]), (&json!(false), &json!(reason)), "{email}");
    }
    assert_eq!(marketing_status(&ready, left).await, "unsubscribed");
}

#[tokio::test]
async fn one_call_subscribes_a_pending_contact_but_none_that_left() {
    let ready = Ready::start().await;
    let pending = known_from(&ready, "transactional", "ann@example.com").await;
    let post = async |email: &str, change: Value| {
        let mut body = json!({"email": email});
        body.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        assert_eq!(ready.client.post("/v1/contacts", body).await.status, 200);
    };
    post("ann@example.com", json!({})).await;
    assert_eq!(marketing_status(&ready, pending).await, "pending");
    post("ann@example.com", json!({"marketing_status": "subscribed", "consent": {"basis": "opt_in"}})).await;
    assert_eq!(marketing_status(&ready, pending).await, "subscribed");
    let contact = ready.client.get(&format!("/v1/contacts/{pending}")).await.body["contact"].clone();
    assert_eq!(contact["consent"]["basis"], "opt_in");

    let left = known_from(&ready, "transactional", "left@example.com").await;
    ready.client.patch(&format!("/v1/contacts/{left}"), json!({"marketing_status": "unsubscribed"})).await;
    post("left@example.com", json!({"marketing_status": "subscribed"})).await;
    assert_eq!(marketing_status(&ready, left).await, "unsubscribed");
}

#[tokio::test]
async fn days_count_in_the_contacts_zone() {
    let ready = Ready::start().await;
    let id = sequence(&ready, json!([{"step_type": WAIT, "delay_amount": 1, "delay_unit": "business_days"}])).await;
    ready.client.post("/v1/contacts", json!({"email": "ann@example.com", "timezone": "Pacific/Auckland"})).await;
    let due = at(&enroll(&ready, &id, "ann@example.com").await["next_action_at"]);
    let local = due.with_timezone(&chrono_tz::Pacific::Auckland);
    assert!(!matches!(chrono::Datelike::weekday(&local), chrono::Weekday::Sat | chrono::Weekday::Sun), "{local}");
    assert!(due > Utc::now() + TimeDelta::hours(22));
}

#[tokio::test]
async fn a_contact_is_enrolled_once_at_a_time_and_may_be_taken_out() {
    let ready = Ready::start().await;
    let id = sequence(&ready, json!([{"step_type": WAIT}])).await;
    let first = enroll(&ready, &id, "ann@example.com").await;
    let body = json!({"sequence_id": id, "email": "ANN@example.com"});
    assert_eq!(ready.client.post("/v1/enrollments", body).await.refusal(), (409, "already_enrolled"));
    let path = format!("/v1/enrollments/{}", first["enrollment_id"].as_str().unwrap());
    let read = ready.client.get(&path).await.body["enrollment"].clone();
    assert_eq!((&read["status"], &read["next_step_order"], &read["steps"]), (&json!("active"), &json!(1), &json!([])));
    for _ in 0..2 {
        let gone = ready.client.delete(&path, json!({})).await.body;
        assert_eq!((&gone["status"], &gone["exit_reason"]), (&json!("exited"), &json!("manual")));
    }
    assert_eq!(ready.client.get(&path).await.body["enrollment"]["next_action_at"], Value::Null);
    enroll(&ready, &id, "ann@example.com").await;
    // As a trigger starts it that starts every time.
    sqlx::query("update enrollments set is_parallel = true").execute(&ready.edge.pool).await.unwrap();
    let body = json!({"sequence_id": id, "email": "ann@example.com"});
    assert_eq!(ready.client.post("/v1/enrollments", body).await.refusal(), (409, "already_enrolled"));
    assert_eq!(ready.edge.count("select count(*) from enrollments where status = 'active'").await, 1);
}

#[tokio::test]
async fn enrollments_follow_their_sequence_in_what_is_shown() {
    let ready = Ready::start().await;
    let id = sequence(&ready, json!([{"step_type": WAIT}])).await;
    let other = sequence(&ready, json!([{"step_type": WAIT}])).await;
    for (sequence, email) in [(&id, "ann@example.com"), (&id, "bob@example.com"), (&other, "ann@example.com")] {
        enroll(&ready, sequence, email).await;
    }
    let count = async |query: &str| {
        let body = ready.client.get(&format!("/v1/enrollments?{query}")).await.body;
        body["enrollments"].as_array().unwrap().len()
    };
    assert_eq!(count(&format!("sequence_id={id}")).await, 2);
    assert_eq!(count("email=ann%40example.com").await, 2);
    assert_eq!(count("email=nobody%40example.com").await, 0);
    assert_eq!(count("status=active").await, 3);
    ready.client.patch(&format!("/v1/sequences/{id}"), json!({"status": "paused"})).await;
    assert_eq!((count("status=paused").await, count("status=active").await), (2, 1));
    ready.client.patch(&format!("/v1/sequences/{id}"), json!({"status": "archived"})).await;
    assert_eq!((count("status=exited").await, count("status=active").await), (2, 1));
    let listed = ready.client.get(&format!("/v1/enrollments?sequence_id={id}&limit=1")).await.body;
    assert_eq!(listed["enrollments"][0]["exit_reason"], "sequence_archived");
    let archived = ready.client.get(&format!("/v1/sequences/{id}")).await.body["sequence"]["archived_at"].clone();
    assert_eq!((archived.is_string(), &listed["enrollments"][0]["ended_at"]), (true, &archived));
    let cursor = listed["next_cursor"].as_str().unwrap();
    assert_eq!(count(&format!("sequence_id={id}&cursor={cursor}")).await, 1);
    assert_eq!(ready.client.get("/v1/enrollments?status=gone").await.refusal(), (400, "validation_failed"));
}

#[tokio::test]
async fn an_exit_that_its_sequence_caused_is_not_called_manual() {
    let ready = Ready::start().await;
    let id = sequence(&ready, json!([{"step_type": WAIT}])).await;
    let enrolled = enroll(&ready, &id, "ann@example.com").await;
    ready.client.patch(&format!("/v1/sequences/{id}"), json!({"status": "archived"})).await;
    let path = format!("/v1/enrollments/{}", enrolled["enrollment_id"].as_str().unwrap());
    let ended = ready.client.delete(&path, json!({})).await.body;
    let read = ready.client.get(&path).await.body["enrollment"].clone();
    for shown in [ended, read] {
        let exit = (&shown["status"], &shown["exit_reason"]);
        assert_eq!(exit, (&json!("exited"), &json!("sequence_archived")), "{shown}");
    }
}

#[tokio::test]
async fn an_enrollment_says_what_its_step_waits_for_until_it_ends() {
    let ready = Ready::start().await;
    let id = sequence(&ready, json!([{"step_type": WAIT}])).await;
    let enrolled = enroll(&ready, &id, "ann@example.com").await["enrollment_id"].clone();
    let held_by = async || {
        let one = ready.client.get(&format!("/v1/enrollments/{}", enrolled.as_str().unwrap())).await.body;
        let listed = ready.client.get("/v1/enrollments").await.body;
        assert_eq!(one["enrollment"]["held_by"], listed["enrollments"][0]["held_by"]);
        one["enrollment"]["held_by"].clone()
    };
    assert_eq!(held_by().await, Value::Null);
    let held = "update enrollments set held_by = 'quiet_hours'";
    sqlx::query(held).execute(&ready.edge.pool).await.unwrap();
    assert_eq!(held_by().await, "quiet_hours");
    for (status, expected) in [("paused", Value::Null), ("active", json!("quiet_hours"))] {
        ready.client.patch(&format!("/v1/sequences/{id}"), json!({"status": status})).await;
        assert_eq!(held_by().await, expected, "{status}");
    }
    ready.client.delete(&format!("/v1/enrollments/{}", enrolled.as_str().unwrap()), json!({})).await;
    assert_eq!(held_by().await, Value::Null);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_exit_is_answered_after_the_fences_that_have_looked() {
    let ready = Ready::start().await;
    let id = sequence(&ready, json!([{"step_type": WAIT}])).await;
    let enrolled = enroll(&ready, &id, "ann@example.com").await["enrollment_id"].clone();
    let mut fencing = ready.edge.pool.begin().await.unwrap();
    sqlx::query("select try_gate($1)").bind(ready.client.tenant).execute(&mut *fencing).await.unwrap();
    let client = ready.client.clone();
    let path = format!("/v1/enrollments/{}", enrolled.as_str().unwrap());
    let leaving = tokio::spawn(async move { client.delete(&path, json!({})).await });
    ready.edge.until_waiting(1).await;
    assert!(!leaving.is_finished());
    fencing.commit().await.unwrap();
    assert_eq!(leaving.await.unwrap().body["exit_reason"], "manual");
}

#[tokio::test]
async fn it_is_explained_why_somebody_is_on_his_way_or_not() {
    let ready = Ready::start().await;
    let id = sequence(&ready, json!([{"step_type": WAIT}])).await;
    enroll(&ready, &id, "ann@example.com").await;
    let explain = async |email: &str| {
        let path = format!("/v1/explain?sequence_id={id}&email={}", email.replace('@', "%40"));
        ready.client.get(&path).await.body["explanation"].clone()
    };
    let ann = explain("ann@example.com").await;
    assert_eq!((&ann["verdict"], &ann["gates"][0]["detail"]), (&json!("pass"), &json!("is_enrolled")), "{ann}");
    let enrolled = ready.client.get("/v1/enrollments").await.body["enrollments"][0].clone();
    assert_eq!((enrolled["created_at"].is_string(), &ann["gates"][0]["at"]), (true, &enrolled["created_at"]));
    assert_eq!(explain("bob@example.com").await["decided_by"], "audience");
    ready.client.post("/v1/suppressions", json!({"email": "ann@example.com"})).await;
    assert_eq!(explain("ann@example.com").await["decided_by"], "suppression");
    ready.client.patch(&format!("/v1/sequences/{id}"), json!({"status": "archived"})).await;
    assert_eq!(explain("ann@example.com").await["decided_by"], "audience");
}

#[rstest]
#[case::the_owner("owner@example.com", 201)]
#[case::on_a_verified_domain("boss@acme.test", 201)]
#[case::on_a_domain_below("boss@mail.acme.test", 400)]
#[case::a_stranger("victim@elsewhere.example", 400)]
#[tokio::test]
async fn a_step_may_name_only_the_tenants_own_people_as_owner(#[case] to: &str, #[case] status: u16) {
    let ready = Ready::start().await;
    let config = json!({"subject": "News", "message": "Look", "to": to});
    let steps = json!([{"step_type": WAIT}, {"step_type": "notify_owner", "action_config": config}]);
    let made = ready.client.post("/v1/sequences", json!({"name": "S", "steps": steps})).await;
    assert_eq!(made.status.as_u16(), status, "{}", made.body);
    if status == 400 {
        assert_eq!(made.faults(), [("steps[1].action_config.to".to_owned(), "not_allowed".to_owned())]);
    }
}

#[tokio::test]
async fn a_merged_contact_gets_no_step_of_a_sequence_twice() {
    let ready = Ready::start().await;
    let steps = || json!([{"step_type": "wait", "delay_amount": 1, "delay_unit": "days"}]);
    let (both, one) = (sequence(&ready, steps()).await, sequence(&ready, steps()).await);
    let survivor = enroll(&ready, &both, "ann@example.com").await;
    let merged = enroll(&ready, &both, "ann@work.example").await;
    let alone = enroll(&ready, &one, "ann@work.example").await;
    let list = ready.client.post("/v1/audiences", json!({"kind": "list", "name": "News"})).await.text("audience_id");
    let body = json!({"name": "Joined", "sender_profile_id": ready.sender, "activate": true, "steps": steps(),
                      "trigger_type": "list_joined", "trigger_config": {"list_id": list}});
    assert_eq!(ready.client.post("/v1/sequences", body).await.status, 201);
    let members = format!("/v1/audiences/{list}/members");
    ready.client.post(&members, json!({"add": ["ann@work.example"]})).await;
    let event = json!({"name": "trial_started", "email": "ann@work.example"});
    assert!(ready.client.post("/v1/events", event).await.status.is_success());
    let path = format!("/v1/contacts/{}/merge", survivor["contact_id"].as_str().unwrap());
    let answer = ready.client.post(&path, json!({"contact_id": merged["contact_id"]})).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    for (enrolled, status, contact) in
        [(&survivor, "active", &survivor), (&merged, "exited", &merged), (&alone, "active", &survivor)]
    {
        let path = format!("/v1/enrollments/{}", enrolled["enrollment_id"].as_str().unwrap());
        let read = ready.client.get(&path).await.body["enrollment"].clone();
        assert_eq!((&read["status"], &read["contact_id"]), (&json!(status), &contact["contact_id"]), "{read}");
    }
    let active = "select count(*) from contacts c, recipient_eligibility(c.tenant_id, array[c.id]) e
                  where c.address like 'ann@%' and e.contact_active";
    assert_eq!(ready.edge.count(active).await, 1, "what waits for the merged contact is withheld");
    let facts: Vec<Uuid> =
        sqlx::query_scalar("select contact_id from product_events").fetch_all(&ready.edge.pool).await.unwrap();
    assert_eq!(json!(facts), json!([survivor["contact_id"]]), "its facts are the survivor's");
    let started = ready.edge.count("select count(distinct occurrence) from trigger_occurrences").await;
    assert_eq!(started, 1, "the survivor takes the place in the list, and joins nothing");
    let undecided: Vec<Uuid> = sqlx::query_scalar(
        "select o.contact_id from trigger_occurrences o join contacts c on c.id = o.contact_id
         where c.status = 'active' and o.decided_at is null",
    )
    .fetch_all(&ready.edge.pool)
    .await
    .unwrap();
    assert_eq!(json!(undecided), json!([survivor["contact_id"]]), "what was to start for the other starts");
}

#[rstest]
#[case::ended_by_its_step("exited", Some("end_step"), false)]
#[case::answered("exited", Some("replied"), false)]
#[case::failed("failed", Some("error"), false)]
#[case::completed("completed", None, false)]
#[case::deleted_by_retention("completed", None, true)]
#[tokio::test]
async fn a_merge_continues_no_sequence_that_the_survivor_was_in(
    #[case] status: &str,
    #[case] reason: Option<&str>,
    #[case] is_deleted: bool,
) {
    let ready = Ready::start().await;
    let id = sequence(&ready, json!([{"step_type": WAIT, "delay_amount": 1, "delay_unit": "days"}])).await;
    let survivor = enroll(&ready, &id, "ann@example.com").await;
    let over = "update enrollments set status = $1, exit_reason = $2, next_action_at = null, ended_at = now()";
    sqlx::query(over).bind(status).bind(reason).execute(&ready.edge.pool).await.unwrap();
    if is_deleted {
        sqlx::query("delete from enrollments").execute(&ready.edge.pool).await.unwrap();
        assert_eq!(ready.edge.count("select count(*) from past_enrollments").await, 1);
    }
    let merged = enroll(&ready, &id, "ann@work.example").await;
    let path = format!("/v1/contacts/{}/merge", survivor["contact_id"].as_str().unwrap());
    let answer = ready.client.post(&path, json!({"contact_id": merged["contact_id"]})).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    let path = format!("/v1/enrollments/{}", merged["enrollment_id"].as_str().unwrap());
    let read = ready.client.get(&path).await.body["enrollment"].clone();
    assert_eq!((&read["status"], &read["exit_reason"]), (&json!("exited"), &json!("manual")), "{read}");
    assert_eq!(read["contact_id"], merged["contact_id"]);
}

#[tokio::test]
async fn a_trigger_is_a_word_on_creation_and_on_change() {
    let ready = Ready::start().await;
    let path = format!("/v1/sequences/{}/trigger", sequence(&ready, json!([{"step_type": WAIT}])).await);
    for word in ["", "Manual", "2nd"] {
        let body = json!({"name": "S", "trigger_type": word, "steps": [{"step_type": WAIT}]});
        for answer in [
            ready.client.post("/v1/sequences", body).await,
            ready.client.patch(&path, json!({"trigger_type": word})).await,
        ] {
            assert_eq!(answer.faults(), [("trigger_type".to_owned(), "invalid".to_owned())], "{word:?}");
        }
    }
    let missing = ready.client.patch(&path, json!({})).await;
    assert_eq!(missing.faults(), [("trigger_type".to_owned(), "required".to_owned())]);
}

#[tokio::test]
async fn changed_steps_are_a_new_version_for_new_enrollments() {
    let ready = Ready::start().await;
    let id =
        sequence(&ready, json!([{"step_type": WAIT, "delay_amount": 1, "delay_unit": "days"}, {"step_type": WAIT}]))
            .await;
    let path = format!("/v1/sequences/{id}");
    enroll(&ready, &id, "first@example.com").await;
    let steps = json!([{"step_type": "create_task", "delay_amount": 2, "delay_unit": "hours", "action_config": {"title": "Call"}}]);
    let changed = ready.client.patch(&path, json!({"steps": steps})).await;
    assert_eq!((changed.status.as_u16(), &changed.body["version"]), (200, &json!(2)), "{}", changed.body);
    assert_eq!(changed.body["status"], "active");
    let second = enroll(&ready, &id, "second@example.com").await;
    let due = at(&second["next_action_at"]) - Utc::now();
    assert!(due < TimeDelta::hours(3), "the first step is that of the new version: {second}");

    let versions: Vec<(String, i32)> = sqlx::query_as(
        "select address, version from enrollments e join contacts c on c.id = e.contact_id order by e.created_at, e.id",
    )
    .fetch_all(&ready.edge.pool)
    .await
    .unwrap();
    assert_eq!(versions, [("first@example.com".to_owned(), 1), ("second@example.com".to_owned(), 2)]);
    let shown = ready.client.get(&format!("/v1/enrollments/{}", second["enrollment_id"].as_str().unwrap())).await.body;
    assert_eq!(shown["enrollment"]["sequence_version"], 2, "{shown}");

    let types =
        |body: &Value| body["steps"].as_array().unwrap().iter().map(|s| s["step_type"].clone()).collect::<Vec<_>>();
    let newest = ready.client.get(&path).await.body;
    assert_eq!((types(&newest), &newest["sequence"]["version"]), (vec![json!("create_task")], &json!(2)));
    let first = ready.client.get(&format!("{path}?version=1")).await.body;
    assert_eq!(types(&first), vec![json!(WAIT); 2]);
    let none = ready.client.get(&format!("{path}?version=3")).await;
    assert_eq!(none.refusal(), (404, "sequence_version_not_found"));
    let page = ready.client.get(&format!("{path}/versions?limit=1")).await.body;
    assert_eq!((&page["versions"][0]["version"], &page["versions"][0]["current"]), (&json!(2), &json!(true)), "{page}");
    let cursor = page["next_cursor"].as_str().unwrap();
    let older = ready.client.get(&format!("{path}/versions?limit=1&cursor={cursor}")).await.body;
    assert_eq!((&older["versions"][0]["version"], &older["versions"][0]["step_count"]), (&json!(1), &json!(2)));
    assert_eq!(ready.edge.count("select count(*) from audit_log where action = 'sequence.steps_changed'").await, 1);
}

#[tokio::test]
async fn bad_steps_make_no_version() {
    let ready = Ready::start().await;
    let made = json!({"name": "Welcome", "activate": true, "steps": [{"step_type": WAIT}]});
    let id = ready.client.post("/v1/sequences", made).await.text("sequence_id");
    let path = format!("/v1/sequences/{id}");
    let template = ready.template(json!({})).await;
    let unknown = json!({"steps": [{"step_type": "dance"}]});
    assert_eq!(
        ready.client.patch(&path, unknown).await.faults(),
        [("steps[0].step_type".to_owned(), "not_allowed".to_owned())]
    );
    assert_eq!(ready.client.patch(&path, json!({"steps": []})).await.status, 400);
    let missing =
        json!({"steps": [{"step_type": "send_email", "template_id": Uuid::max()}], "sender_profile_id": ready.sender});
    assert_eq!(ready.client.patch(&path, missing).await.refusal(), (404, "template_not_found"));
    let mail = json!({"steps": [{"step_type": "send_email", "template_id": template}]});
    let refused = ready.client.patch(&path, mail).await;
    assert_eq!(refused.refusal(), (409, "sender_profile_required_to_activate"));
    assert_eq!(ready.client.patch(&path, json!({"status": "archived"})).await.status, 200);
    let late = ready.client.patch(&path, json!({"steps": [{"step_type": WAIT}]})).await;
    assert_eq!(late.refusal(), (409, "sequence_archived"));
    let read = ready.client.get(&path).await.body;
    assert_eq!((&read["sequence"]["version"], read["steps"].as_array().map(Vec::len)), (&json!(1), Some(1)), "{read}");
    assert_eq!(ready.edge.count("select count(*) from sequence_steps").await, 1);
}
