use rstest::rstest;
use schemas::{SendId, month_of, parse_id, subjects::stream};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::{
    common::Edge,
    fixtures::{Ready, first_on, open_streams, sender},
};

#[tokio::test]
async fn a_mail_that_is_due_now_has_its_send_and_is_announced_to_rendering() {
    let ready = Ready::start().await;
    open_streams(&ready.edge).await;
    let template = ready.template(json!({"template_type": "transactional", "body_html": "{{ data.order.id }}"})).await;
    let body = json!({
        "template_id": template, "email": " Ann@Example.COM", "first_name": "Ann", "phone": "+1 555", "data": {"order": {"id": 7}},
    });
    let answer = ready.client.post("/v1/transactional", body).await;
    let send_id = answer.text("send_id");
    assert_eq!(answer.status, 202);
    assert_eq!(answer.body, json!({"ok": true, "send_id": send_id, "status": "scheduled"}));
    let id = parse_id(&send_id).unwrap();
    assert_eq!((SendId(id).ordinal(), SendId(id).batch()), (0, id));

    let (row_id, kind, state, payload): (Uuid, String, String, Value) =
        sqlx::query_as("select id, kind, state, payload from requests").fetch_one(&ready.edge.pool).await.unwrap();
    assert_eq!((row_id, kind.as_str(), state.as_str()), (id, "transactional", "handled"));
    let payload: schemas::messages::TransactionalPayload = serde_json::from_value(payload).unwrap();
    assert_eq!((payload.send_id, payload.address.as_str(), payload.sender_id), (id, "ann@example.com", ready.sender));
    assert_eq!(
        (payload.contact.first_name.as_deref(), payload.contact.last_name, payload.data["order"]["id"].clone()),
        (Some("Ann"), None, json!(7))
    );

    let contact: Uuid = sqlx::query_scalar(
        "select c.id from sends s join contacts c on c.tenant_id = s.tenant_id and c.id = s.contact_id
         where s.id = $1 and s.request_id = $1 and s.state = 'queued' and c.first_name = 'Ann' and c.phone = '+1 555'",
    )
    .bind(id)
    .fetch_one(&ready.edge.pool)
    .await
    .unwrap();
    let (subject, cleared) = first_on(&ready.edge, stream::CLEARED).await;
    assert!(subject.ends_with("mail.v1.cleared.priority"), "{subject}");
    assert_eq!((&cleared["batch_id"], &cleared["recipients"][0]["contact_id"]), (&json!(id), &json!(contact)));
}

#[tokio::test]
async fn a_mail_whose_recipient_may_not_be_mailed_is_announced_to_the_gate() {
    let ready = Ready::start().await;
    open_streams(&ready.edge).await;
    let suppressed =
        ready.client.post("/v1/suppressions", json!({"email": "ann@example.com", "reason": "hard_bounce"}));
    assert_eq!(suppressed.await.status, 201);
    let body = json!({"template_id": ready.template(json!({})).await, "email": "ann@example.com"});
    let send = ready.client.post("/v1/transactional", body).await.text("send_id");
    let (subject, resolved) = first_on(&ready.edge, stream::RESOLVED).await;
    assert!(subject.ends_with("mail.v1.resolved.priority"), "{subject}");
    assert_eq!(resolved["batch_id"], json!(send));
}

#[tokio::test]
async fn a_mail_to_somebody_whom_an_import_holds_is_accepted_and_left_to_the_audience_stage() {
    let ready = Ready::start().await;
    open_streams(&ready.edge).await;
    let template = ready.template(json!({})).await;
    ready.client.post("/v1/contacts", json!({"email": "ann@example.com"})).await;
    let mut import = ready.edge.pool.begin().await.unwrap();
    let held = sqlx::query("select from contacts where address = 'ann@example.com' for update").execute(&mut *import);
    assert_eq!(held.await.unwrap().rows_affected(), 1);
    // Her first name would be filled in.
    let body = json!({"template_id": template, "email": "ann@example.com", "first_name": "Ann"});
    let send = ready.client.post_once("order-1", "/v1/transactional", body.clone()).await.text("send_id");
    let batch = json!({"messages": [{"template_id": template, "email": "ann@example.com", "first_name": "Ann"}]});
    assert_eq!(ready.client.post(BATCH, batch).await.body["accepted"], 1);
    let waiting = "select count(*) from requests where state = 'accepted' and announce_after is not null";
    assert_eq!(ready.edge.count(waiting).await, 2);
    assert_eq!(ready.edge.count("select count(*) from sends").await, 0);
    let (subject, announced) = first_on(&ready.edge, stream::ACCEPTED).await;
    assert!(subject.ends_with("mail.v1.accepted.crm.production.transactional"), "{subject}");
    assert_eq!(announced, json!({"tenant_id": ready.client.tenant, "request_id": send, "kind": "transactional"}));
    import.rollback().await.unwrap();
    assert_eq!(ready.client.post_once("order-1", "/v1/transactional", body).await.text("send_id"), send);
    assert_eq!(ready.edge.count(waiting).await, 2);
}

#[tokio::test]
async fn a_blank_name_is_none() {
    let ready = Ready::start().await;
    let template = ready.template(json!({})).await;
    let body = json!({"template_id": template, "email": "ann@example.com", "first_name": "", "last_name": " ", "phone": "+1 555"});
    assert_eq!(ready.client.post("/v1/transactional", body).await.status, 202);
    let payload: Value = sqlx::query_scalar("select payload from requests").fetch_one(&ready.edge.pool).await.unwrap();
    let payload: schemas::messages::TransactionalPayload = serde_json::from_value(payload).unwrap();
    let contact = payload.contact;
    assert_eq!((contact.first_name, contact.last_name, contact.phone.as_deref()), (None, None, Some("+1 555")));
}

#[tokio::test]
async fn a_request_is_accepted_while_the_bus_is_away() {
    // No streams: nothing can be stored on the bus.
    let ready = Ready::start().await;
    let template = ready.template(json!({})).await;
    let body = json!({"template_id": template, "email": "ann@example.com"});
    assert_eq!(ready.client.post("/v1/transactional", body).await.status, 202);
    let due =
        "select count(*) from batches where state = 'announced' and announce_after <= now() + interval '10 seconds'";
    assert_eq!(ready.edge.count(due).await, 1);
}

#[tokio::test]
async fn a_send_can_be_followed_from_the_first_answer_on() {
    let ready = Ready::start().await;
    let template = ready.template(json!({})).await;
    let body = json!({"template_id": template, "email": "ann@example.com"});
    let send_id = ready.client.post("/v1/transactional", body).await.text("send_id");
    let path = format!("/v1/sends/{send_id}");
    let send = ready.client.get(&path).await.body["send"].clone();
    assert_eq!(
        (&send["state"], &send["email"], &send["message_kind"]),
        (&json!("queued"), &json!("ann@example.com"), &json!("transactional"))
    );
    assert_eq!((&send["attempts"], &send["timeline"][0]["type"]), (&json!([]), &json!("queued")));
    let other = SendId::of(parse_id(&send_id).unwrap(), 1).0;
    assert_eq!(ready.client.get(&format!("/v1/sends/{other}")).await.refusal(), (404, "send_not_found"));
}

#[tokio::test]
async fn a_mail_whose_month_was_dropped_is_not_shown_as_queued() {
    let ready = Ready::start().await;
    let body = json!({"template_id": ready.template(json!({})).await, "email": "ann@example.com"});
    let send_id = ready.client.post("/v1/transactional", body).await.text("send_id");
    let dropped = "delete from events; delete from sends; delete from batches";
    sqlx::raw_sql(dropped).execute(&ready.edge.pool).await.unwrap();
    assert_eq!(ready.edge.count("select count(*) from requests where state = 'handled'").await, 1);
    assert_eq!(ready.client.get(&format!("/v1/sends/{send_id}")).await.refusal(), (404, "send_not_found"));
}

#[tokio::test]
async fn a_request_that_no_stage_could_handle_shows_why() {
    let ready = Ready::start().await;
    let due = (chrono::Utc::now() + chrono::TimeDelta::days(1)).to_rfc3339();
    let body = json!({"template_id": ready.template(json!({})).await, "email": "ann@example.com", "scheduled_at": due});
    let send_id = ready.client.post("/v1/transactional", body).await.text("send_id");
    sqlx::query(
        "update requests set state = 'rejected', outcome = 'template_gone', announce_after = null, handled_at = now()",
    )
    .execute(&ready.edge.pool)
    .await
    .unwrap();
    let send = ready.client.get(&format!("/v1/sends/{send_id}")).await.body["send"].clone();
    assert_eq!((&send["state"], &send["failure_reason"]), (&json!("failed"), &json!("template_gone")));
}

#[rstest]
#[case::transactional("transactional", "transactional")]
#[case::marketing("marketing", "marketing")]
#[tokio::test]
async fn the_type_of_its_template_says_what_a_mail_is(#[case] template_type: &str, #[case] email_type: &str) {
    let ready = Ready::start().await;
    let template = ready.template(json!({"template_type": template_type})).await;
    let body = json!({"template_id": template, "email": "ann@example.com"});
    let send_id = ready.client.post("/v1/transactional", body).await.text("send_id");
    let send = ready.client.get(&format!("/v1/sends/{send_id}")).await.body["send"].clone();
    assert_eq!((&send["email_type"], &send["lane"]), (&json!(email_type), &json!("priority")));
}

#[rstest]
#[case::plain(json!([]))]
#[case::with_files(file("SGVsbG8="))]
#[tokio::test]
async fn a_mail_of_a_large_array_waits_in_the_bulk_lane(#[case] attachments: Value) {
    let ready = Ready::start().await;
    open_streams(&ready.edge).await;
    let template = ready.template(json!({})).await;
    for (count, lane) in [(50, "priority"), (51, "bulk")] {
        let message = |at: i32| json!({"template_id": template, "email": format!("c{at}@example.com"), "attachments": attachments});
        let messages: Vec<Value> = (0..count).map(message).collect();
        let answer = ready.client.post(BATCH, json!({"messages": messages})).await;
        assert_eq!(answer.body["accepted"], count, "{}", answer.body);
        let send_id = answer.body["results"][0]["send_id"].as_str().unwrap().to_owned();
        let send = ready.client.get(&format!("/v1/sends/{send_id}")).await.body["send"].clone();
        assert_eq!(send["lane"], json!(lane), "{count} messages");
    }
}

#[rstest]
#[case::no_template(json!({"template_id": Uuid::max().to_string()}), 404, "template_not_found")]
#[case::no_sender(json!({"sender_profile_id": Uuid::max().to_string()}), 404, "sender_profile_not_found")]
#[case::bad_address(json!({"email": "nobody"}), 400, "validation_failed")]
#[case::no_address(json!({"email": null}), 400, "validation_failed")]
#[case::header_in_a_name(json!({"first_name": "a\r\nBcc: b"}), 400, "validation_failed")]
#[case::data_is_an_object(json!({"data": [1]}), 400, "validation_failed")]
#[case::unknown_field(json!({"subject": "x"}), 400, "validation_failed")]
#[case::header_of_the_engine(json!({"headers": {"Bcc": "all@example.com"}}), 400, "validation_failed")]
#[case::two_lines_in_a_header(json!({"headers": {"X-A": "1\r\nBcc: all@example.com"}}), 400, "validation_failed")]
#[case::tag_of_two_lines(json!({"tags": ["a\nb"]}), 400, "validation_failed")]
#[case::metadata_is_text(json!({"metadata": {"order": 17}}), 400, "validation_failed")]
#[case::unknown_tracking(json!({"tracking": {"replies": true}}), 400, "validation_failed")]
#[tokio::test]
async fn a_request_that_cannot_be_sent_is_refused(#[case] change: Value, #[case] status: u16, #[case] code: &str) {
    let ready = Ready::start().await;
    let mut body = json!({"template_id": ready.template(json!({})).await, "email": "ann@example.com"});
    body.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
    assert_eq!(ready.client.post("/v1/transactional", body).await.refusal(), (status, code));
    assert_eq!(ready.edge.count("select count(*) from requests").await, 0);
}

#[tokio::test]
async fn a_tenant_without_a_default_sender_must_name_one() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let template =
        client.post("/v1/templates", json!({"name": "T", "subject": "S", "body_html": "B"})).await.text("template_id");
    let body = json!({"template_id": template, "email": "ann@example.com"});
    assert_eq!(client.post("/v1/transactional", body.clone()).await.refusal(), (422, "sender_required"));
    sender(&edge.pool, client.tenant, "pending.test", "pending").await;
    assert_eq!(client.post("/v1/transactional", body).await.refusal(), (422, "sender_missing_verified_domain"));
}

#[tokio::test]
async fn an_archived_template_is_not_sent_and_a_draft_is() {
    let ready = Ready::start().await;
    let template = ready.template(json!({"status": "draft"})).await;
    let body = json!({"template_id": template, "email": "ann@example.com"});
    assert_eq!(ready.client.post("/v1/transactional", body.clone()).await.status, 202);
    ready.client.delete(&format!("/v1/templates/{template}"), json!({})).await;
    assert_eq!(ready.client.post("/v1/transactional", body).await.refusal(), (404, "template_not_found"));
}

#[tokio::test]
async fn a_request_pins_the_version_it_was_accepted_with() {
    let ready = Ready::start().await;
    let template = ready.template(json!({})).await;
    let body = json!({"template_id": template, "email": "ann@example.com"});
    ready.client.post("/v1/transactional", body).await;
    ready.client.patch(&format!("/v1/templates/{template}"), json!({"subject": "New"})).await;
    let pinned: String = sqlx::query_scalar(
        "select c.subject from requests r join contents c on c.id = (r.payload ->> 'content_id')::uuid",
    )
    .fetch_one(&ready.edge.pool)
    .await
    .unwrap();
    assert_eq!(pinned, "Your receipt");
}

#[tokio::test]
async fn options_are_stored_with_their_request_and_answered_with_its_send() {
    let ready = Ready::start().await;
    let template = ready.template(json!({})).await;
    let body = json!({
        "template_id": template, "email": "ann@example.com", "from_name": "Billing", "reply_to": "Desk@Acme.test",
        "headers": {"X-Order": "17"}, "tags": ["receipt", "receipt"], "metadata": {"order": "17"},
        "tracking": {"opens": false},
    });
    let send = ready.client.post("/v1/transactional", body).await.text("send_id");
    let options: Value = sqlx::query_scalar("select options from requests").fetch_one(&ready.edge.pool).await.unwrap();
    let expected = json!({
        "from_name": "Billing", "reply_to": "desk@acme.test", "headers": {"X-Order": "17"}, "tags": ["receipt"],
        "metadata": {"order": "17"}, "no_open_tracking": true,
    });
    assert_eq!(options, expected);
    let send = ready.client.get(&format!("/v1/sends/{send}")).await.body["send"].clone();
    assert_eq!((&send["tags"], &send["metadata"]), (&json!(["receipt"]), &json!({"order": "17"})));
    let plain = json!({"template_id": template, "email": "bob@example.com"});
    ready.client.post("/v1/transactional", plain).await;
    assert_eq!(ready.edge.count("select count(*) from requests where options is null").await, 1);
}

#[rstest]
#[case::second_to(json!({"cc": [{"email": "nobody"}]}))]
#[case::too_many(json!({"bcc": (0..50).map(|n| json!({"email": format!("b{n}@example.com")})).collect::<Vec<_>>()}))]
#[case::header_in_a_name(json!({"cc": [{"email": "bob@example.com", "name": "a\r\nBcc: b"}]}))]
#[tokio::test]
async fn copies_are_checked_like_the_recipient(#[case] change: Value) {
    let ready = Ready::start().await;
    let mut body = json!({"template_id": ready.template(json!({})).await, "email": "ann@example.com"});
    body.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
    assert_eq!(ready.client.post("/v1/transactional", body).await.refusal(), (400, "validation_failed"));
}

#[tokio::test]
async fn a_scheduled_mail_waits_for_its_time_and_can_be_cancelled_until_then() {
    let ready = Ready::start().await;
    open_streams(&ready.edge).await;
    let due = chrono::Utc::now() + chrono::TimeDelta::days(29);
    let template = ready.template(json!({})).await;
    let body = json!({"template_id": template, "email": "ann@example.com", "scheduled_at": due.to_rfc3339()});
    let send = ready.client.post("/v1/transactional", body.clone()).await.text("send_id");
    let in_batch = ready.client.post(BATCH, json!({"messages": [body]})).await;
    assert_eq!(in_batch.body["accepted"], 1);
    let waiting =
        "select count(*) from requests where announce_after > now() + interval '28 days' and state = 'accepted'";
    assert_eq!(ready.edge.count(waiting).await, 2);
    assert_eq!(SendId(parse_id(&send).unwrap()).made_at().timestamp(), due.timestamp());
    let path = format!("/v1/sends/{send}");
    let read = ready.client.get(&path).await.body["send"].clone();
    assert_eq!(read["state"], "queued");
    assert!(read["scheduled_at"].as_str().unwrap().starts_with(&due.format("%Y-%m-%dT%H:%M").to_string()));
    let answer = ready.client.delete(&path, json!({})).await;
    assert_eq!((answer.status.as_u16(), &answer.body["status"]), (200, &json!("cancelled")));
    let read = ready.client.get(&path).await.body["send"].clone();
    assert_eq!((&read["state"], &read["failure_reason"]), (&json!("cancelled"), &Value::Null));
    assert_eq!(ready.client.delete(&path, json!({})).await.refusal(), (409, "send_not_scheduled"));
    assert_eq!(ready.edge.count(waiting).await, 1, "the other one waits on");
    assert_eq!(ready.edge.count("select count(*) from audit_log where action = 'send.cancel'").await, 1);
}

#[tokio::test]
async fn an_erased_persons_scheduled_mail_and_copies_are_taken_back() {
    let ready = Ready::start().await;
    let contact = ready.client.post("/v1/contacts", json!({"email": "ann@example.com"})).await.text("contact_id");
    let due = chrono::Utc::now() + chrono::TimeDelta::days(29);
    let template = ready.template(json!({})).await;
    let post = async |change: Value| {
        let mut body = json!({"template_id": template, "scheduled_at": due.to_rfc3339()});
        body.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        let answer = ready.client.post("/v1/transactional", body).await;
        assert_eq!(answer.status, 202, "{}", answer.body);
        answer.text("send_id")
    };
    let own = post(json!({
        "email": "ann@example.com", "headers": {"X-Customer": "Annabel"}, "cc": [{"email": "eve@example.com"}],
        "attachments": [{"filename": "a.txt", "content_base64": "SGVsbG8="}],
    }))
    .await;
    let others = post(json!({
        "email": "bob@example.com", "headers": {"X-Order": "17"},
        "cc": [{"email": "ann@example.com", "name": "Annabel"}, {"email": "eve@example.com"}],
    }))
    .await;
    let message = json!({
        "sender_id": ready.sender, "to": [{"email": "bob@example.com"}], "subject": "Hi", "html": "<p>Hi</p>",
        "message_class": "business", "scheduled_at": due.to_rfc3339(),
        "bcc": [{"email": "ann@example.com"}, {"email": "eve@example.com"}],
    });
    let answer = ready.client.post("/v1/messages", message).await;
    assert_eq!(answer.status, 202, "{}", answer.body);
    let message = answer.text("message_id");

    let erased = ready.client.delete(&format!("/v1/contacts/{contact}"), json!({"erase": true})).await;
    assert_eq!(erased.status, 200, "{}", erased.body);
    // Before any slice of the erasure, in which any of it might fall due.
    let request = async |id: &str| -> (String, Option<Value>) {
        let found = sqlx::query_as("select state, options -> 'copies' from requests where id = $1::uuid").bind(id);
        found.fetch_one(&ready.edge.pool).await.unwrap()
    };
    let eve = |role: &str| json!({"address": "eve@example.com", "role": role});
    assert_eq!(request(&own).await.0, "rejected");
    for (id, role) in [(&others, "cc"), (&message, "bcc")] {
        let place = json!({"address": "erased@example.com", "role": role});
        assert_eq!(request(id).await, ("accepted".to_owned(), Some(json!([place, eve(role)]))));
    }
    let copies = ready.client.get(&format!("/v1/sends/{others}")).await.body["send"]["copies"].clone();
    let batch = parse_id(&others).unwrap();
    let shown = |place: usize| (copies[place]["send_id"].clone(), copies[place]["email"].clone());
    let expected = [(0, "bob"), (2, "eve")]
        .map(|(place, name)| (json!(SendId::of(batch, place).0), json!(format!("{name}@example.com"))));
    assert_eq!([shown(0), shown(1)], expected);
    let erased = format!("/v1/sends/{}", SendId::of(batch, 1).0);
    assert_eq!(ready.client.get(&erased).await.refusal(), (404, "send_not_found"));
    ready.edge.finish_erasures().await;
    assert_eq!(ready.edge.count("select count(*) from message_attachments").await, 0);
    let left = "select count(*) from requests r where r::text like '%ann@example.com%' or r::text like '%Annabel%'";
    assert_eq!(ready.edge.count(left).await, 0);
    assert_eq!(request(&own).await.1, None, "its options are gone");
    assert_eq!(ready.edge.count("select count(*) from requests where options -> 'headers' ? 'X-Order'").await, 1);
}

/// Rejects what is accepted, as the audience stage does and an operator may requeue it, and erases this contact.
async fn reject_and_erase(ready: &Ready, contact: &str) {
    let reject =
        "update requests set state = 'rejected', outcome = 'malformed', announce_after = null where state = 'accepted'";
    sqlx::query(reject).execute(&ready.edge.pool).await.unwrap();
    let erased = ready.client.delete(&format!("/v1/contacts/{contact}"), json!({"erase": true})).await;
    assert_eq!(erased.status, 200, "{}", erased.body);
}

#[tokio::test]
async fn an_erased_person_is_no_copy_of_a_rejected_request() {
    let ready = Ready::start().await;
    let contact = ready.client.post("/v1/contacts", json!({"email": "ann@example.com"})).await.text("contact_id");
    let template = ready.template(json!({})).await;
    let due = (chrono::Utc::now() + chrono::TimeDelta::days(2)).to_rfc3339();
    let mut paths = Vec::new();
    for _ in 0..2 {
        let body = json!({"template_id": template, "email": "bob@example.com", "cc": [{"email": "ann@example.com"}],
                          "scheduled_at": due});
        let answer = ready.client.post("/v1/transactional", body).await;
        assert_eq!(answer.status, 202, "{}", answer.body);
        paths.push(format!("/v1/sends/{}", answer.text("send_id")));
    }
    assert_eq!(ready.client.delete(&paths[0], json!({})).await.status, 200);
    reject_and_erase(&ready, &contact).await;
    let named = "select count(*) from requests r where r.state = 'rejected' and r::text like '%ann@example.com%'";
    assert_eq!(ready.edge.count(named).await, 0, "before any slice of the erasure");
    for path in &paths {
        let shown = ready.client.get(path).await;
        assert_eq!((shown.status.as_u16(), &shown.body["send"]["email"]), (200, &json!("bob@example.com")));
        assert!(!shown.body.to_string().contains("ann@example.com"), "{}", shown.body);
    }
}

#[tokio::test]
async fn a_rejected_request_to_an_erased_person_cannot_be_requeued() {
    let ready = Ready::start().await;
    let contact = ready.client.post("/v1/contacts", json!({"email": "ann@example.com"})).await.text("contact_id");
    let template = ready.template(json!({})).await;
    let due = (chrono::Utc::now() + chrono::TimeDelta::days(2)).to_rfc3339();
    let mut sends = Vec::new();
    for _ in 0..2 {
        let body = json!({"template_id": template, "email": "ann@example.com", "scheduled_at": due});
        sends.push(ready.client.post("/v1/transactional", body).await.text("send_id"));
    }
    assert_eq!(ready.client.delete(&format!("/v1/sends/{}", sends[0]), json!({})).await.status, 200);
    reject_and_erase(&ready, &contact).await;
    let outcomes: Vec<String> = sqlx::query_scalar("select outcome from requests order by received_at")
        .fetch_all(&ready.edge.pool)
        .await
        .unwrap();
    assert_eq!(outcomes, ["cancelled", "contact_erased"]);
}

#[tokio::test]
async fn a_mail_that_is_due_at_once_is_not_cancelled() {
    let ready = Ready::start().await;
    let body = json!({"template_id": ready.template(json!({})).await, "email": "ann@example.com"});
    let send = ready.client.post("/v1/transactional", body).await.text("send_id");
    let path = format!("/v1/sends/{send}");
    assert_eq!(ready.client.delete(&path, json!({})).await.refusal(), (409, "send_not_scheduled"));
    let unknown = format!("/v1/sends/{}", schemas::new_batch_id());
    assert_eq!(ready.client.delete(&unknown, json!({})).await.refusal(), (404, "send_not_found"));
}

#[tokio::test]
async fn a_scheduled_mail_shows_the_sends_of_its_copies() {
    let ready = Ready::start().await;
    let template = ready.template(json!({})).await;
    let due = (chrono::Utc::now() + chrono::TimeDelta::days(2)).to_rfc3339();
    let mail = json!({"template_id": template, "email": "ann@example.com", "cc": [{"email": "eve@example.com"}],
                      "scheduled_at": due});
    let message = json!({
        "sender_id": ready.sender, "to": [{"email": "ann@example.com"}], "subject": "Hi", "html": "<p>Hi</p>",
        "message_class": "business", "scheduled_at": due, "cc": [{"email": "eve@example.com"}],
    });
    let mail = ready.client.post("/v1/transactional", mail).await.text("send_id");
    let message = ready.client.post("/v1/messages", message).await;
    assert_eq!(message.status, 202, "{}", message.body);
    let of_message = message.body["recipients"][0]["send_id"].as_str().unwrap();
    for send in [mail.as_str(), of_message] {
        let batch = SendId(parse_id(send).unwrap()).batch();
        let copy = |ordinal: u16, email: &str, role: &str| {
            let id = SendId::of(batch, ordinal).0;
            json!({"send_id": id, "email": email, "role": role, "state": "queued", "skip_reason": null})
        };
        let copies = ready.client.get(&format!("/v1/sends/{send}")).await.body["send"]["copies"].clone();
        assert_eq!(copies, json!([copy(0, "ann@example.com", "to"), copy(1, "eve@example.com", "cc")]), "{send}");
        let path = |place: usize| format!("/v1/sends/{}", copies[place]["send_id"].as_str().unwrap());
        for (place, email, role) in [(0, "ann@example.com", "to"), (1, "eve@example.com", "cc")] {
            let shown = ready.client.get(&path(place)).await.body["send"].clone();
            assert_eq!([&shown["email"], &shown["role"], &shown["copies"]], [&json!(email), &json!(role), &copies]);
        }
        let none = format!("/v1/sends/{}", SendId::of(batch, 2).0);
        assert_eq!(ready.client.get(&none).await.refusal(), (404, "send_not_found"));
        assert_eq!(ready.client.delete(&path(1), json!({})).await.status, 200);
        for place in [0, 1] {
            assert_eq!(ready.client.get(&path(place)).await.body["send"]["state"], "cancelled");
        }
    }
}

const BATCH: &str = "/v1/transactional/batch";

#[tokio::test]
async fn a_template_that_needs_an_event_is_none_for_a_single_mail() {
    let ready = Ready::start().await;
    open_streams(&ready.edge).await;
    let template = |html: &str| ready.template(json!({"template_type": "sequence", "body_html": html}));
    let with_event = template("<p>{{ event.properties.plan }}</p>").await;
    let without = template("<p>{{ first_name }}</p>").await;
    let message = |template: &str| json!({"template_id": template, "email": "ann@example.com"});
    let refused = ready.client.post("/v1/transactional", message(&with_event)).await;
    assert_eq!(refused.refusal(), (400, "validation_failed"));
    assert_eq!(refused.faults(), [("template_id".to_owned(), "unknown_variable".to_owned())]);
    assert_eq!(ready.client.post("/v1/transactional", message(&without)).await.status, 202);
    let answer = ready.client.post(BATCH, json!({"messages": [message(&with_event), message(&without)]})).await;
    assert_eq!(answer.status, 202, "{}", answer.body);
    let results = &answer.body["results"];
    assert_eq!((&results[0]["error"], &results[1]["error"]), (&json!("validation_failed"), &Value::Null));
    assert_eq!(
        (&results[0]["fields"][0]["path"], &results[0]["fields"][0]["code"]),
        (&json!("template_id"), &json!("unknown_variable"))
    );
}

#[tokio::test]
async fn a_batch_answers_each_message_and_a_bad_one_costs_no_other() {
    let ready = Ready::start().await;
    open_streams(&ready.edge).await;
    let template = ready.template(json!({})).await;
    let message = |email: &str| json!({"template_id": template, "email": email});
    let mut copied = message("cc@example.com");
    copied["bcc"] = json!([{"email": "eve@example.com"}]);
    let unknown = json!({"template_id": Uuid::max().to_string(), "email": "ann@example.com"});
    let messages = json!([message("ann@example.com"), message("nobody"), copied, unknown, message("bob@example.com")]);
    let answer = ready.client.post(BATCH, json!({"messages": messages})).await;
    assert_eq!(
        (answer.status.as_u16(), &answer.body["accepted"], &answer.body["refused"]),
        (202, &json!(3), &json!(2))
    );
    let results = answer.body["results"].as_array().unwrap();
    let errors: Vec<Option<&str>> = results.iter().map(|result| result["error"].as_str()).collect();
    let expected = [None, Some("validation_failed"), None, Some("template_not_found"), None];
    assert_eq!(errors, expected);
    assert_eq!(results[1]["fields"][0]["path"], "email");
    let send = |place: usize| parse_id(results[place]["send_id"].as_str().unwrap()).unwrap();
    assert_eq!(SendId(send(0)).batch(), SendId(send(4)).batch(), "one content and sender are one batch");
    assert_eq!((SendId(send(2)).ordinal(), SendId(send(2)).batch()), (0, send(2)), "copies take ordinals of their own");
    assert_ne!(SendId(send(2)).batch(), SendId(send(0)).batch());
    assert_eq!(ready.edge.count("select count(*) from requests").await, 3);
    assert_eq!(ready.edge.count("select count(*) from sends").await, 4, "copies too");
}

#[tokio::test]
async fn a_message_of_a_batch_is_accepted_once_under_its_key() {
    let ready = Ready::start().await;
    let template = ready.template(json!({})).await;
    let message = |email: &str, key: &str| json!({"template_id": template, "email": email, "idempotency_key": key});
    let messages =
        json!([message("ann@example.com", "k-1"), message("nobody", "k-2"), message("ann@example.com", "k-1")]);
    let first = ready.client.post(BATCH, json!({"messages": messages})).await;
    let again = ready.client.post(BATCH, json!({"messages": messages})).await;
    assert_eq!((first.status.as_u16(), &first.body), (202, &again.body));
    assert_eq!(first.body["results"][0], first.body["results"][2]);
    let changed = json!([message("bob@example.com", "k-1"), message("bob@example.com", "k-3")]);
    let other = ready.client.post(BATCH, json!({"messages": changed})).await;
    assert_eq!(other.body["results"][0]["error"], "idempotency_key_reused");
    assert_eq!(other.body["results"][1]["status"], "scheduled");
    let repeated = json!([message("bob@example.com", "k-1"), message("ann@example.com", "k-1")]);
    let repeated = ready.client.post(BATCH, json!({"messages": repeated})).await;
    assert_eq!(repeated.body["results"][0]["error"], "idempotency_key_reused");
    assert_eq!(repeated.body["results"][1], first.body["results"][0], "what stands before it changes nothing");
    assert_eq!(ready.edge.count("select count(*) from requests").await, 2);
}

#[rstest]
#[case::none(0)]
#[case::too_many(501)]
#[tokio::test]
async fn a_batch_has_one_to_five_hundred_messages(#[case] count: usize) {
    let ready = Ready::start().await;
    let message = json!({"template_id": Uuid::max(), "email": "ann@example.com"});
    let body = json!({"messages": vec![message; count]});
    assert_eq!(ready.client.post(BATCH, body).await.refusal(), (400, "validation_failed"));
}

#[tokio::test]
async fn a_repeat_with_its_key_is_one_request() {
    let ready = Ready::start().await;
    let template = ready.template(json!({})).await;
    let body = json!({"template_id": template, "email": "ann@example.com"});
    let mut ids = Vec::new();
    for _ in 0..3 {
        ids.push(ready.client.post_once("order-1", "/v1/transactional", body.clone()).await.text("send_id"));
    }
    ids.dedup();
    assert_eq!((ids.len(), ready.edge.count("select count(*) from requests").await), (1, 1));
    assert_eq!(month_of(parse_id(&ids[0]).unwrap()), month_of(schemas::new_id()));
}

/// The one file of a mail.
fn file(content_base64: &str) -> Value {
    json!([{"filename": "a.txt", "content_base64": content_base64}])
}

#[tokio::test]
async fn a_bad_file_of_a_batch_costs_its_message_only() {
    let ready = Ready::start().await;
    let template = ready.template(json!({})).await;
    let message = |more: Value| {
        let mut message = json!({"template_id": template, "email": "ann@example.com"});
        message.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        message
    };
    let invite = json!({"method": "CANCEL", "content": INVITE});
    let messages = json!([
        message(json!({"attachments": file("SGVsbG8="), "calendar": invite})),
        message(json!({"attachments": file("!")})),
        message(json!({"calendar": {"method": "REQUEST", "content": INVITE}})),
        message(json!({"attachments": file("V29ybGQ=")})),
        message(json!({"attachments": [{"filename": "a.exe", "content_base64": "SGVsbG8="}]})),
        message(json!({})),
    ]);
    let answer = ready.client.post(BATCH, json!({"messages": messages})).await;
    assert_eq!(answer.status, 202, "{}", answer.body);
    let results = answer.body["results"].as_array().unwrap();
    let paths: Vec<Option<&str>> = results.iter().map(|result| result["fields"][0]["path"].as_str()).collect();
    let (content, calendar, name) = ("attachments[0].content_base64", "calendar.content", "attachments[0].filename");
    assert_eq!(paths, [None, Some(content), Some(calendar), None, Some(name), None]);
    let send = |place: usize| parse_id(results[place]["send_id"].as_str().unwrap()).unwrap();
    let stored: Vec<(Uuid, String, Vec<u8>)> = sqlx::query_as(
        "select a.message_id, a.filename, a.encoded from message_attachments a join requests r on r.id = a.message_id
         where (r.options->>'has_attachments')::boolean order by a.message_id, a.place",
    )
    .fetch_all(&ready.edge.pool)
    .await
    .unwrap();
    let stored_of = |place: usize| -> Vec<&str> {
        let own = stored.iter().filter(|(id, ..)| *id == SendId(send(place)).batch());
        own.map(|(_, filename, _)| filename.as_str()).collect()
    };
    assert_eq!((stored_of(0), stored_of(3)), (vec!["a.txt", "invite.ics"], vec!["a.txt"]));
    assert_eq!((stored.len(), stored_of(5).len()), (3, 0));
    assert!(stored.iter().any(|(id, _, encoded)| *id == send(3) && encoded == b"V29ybGQ=\r\n"));
    assert_eq!(ready.edge.count("select count(*) from requests").await, 3);
}

#[tokio::test]
async fn a_repeated_message_of_a_batch_stores_its_files_once() {
    let ready = Ready::start().await;
    let template = ready.template(json!({})).await;
    let message = |content: &str| json!({"template_id": template, "email": "ann@example.com", "idempotency_key": "k-1", "attachments": file(content)});
    let twice = json!({"messages": [message("SGVsbG8="), message("SGVsbG8=")]});
    let first = ready.client.post(BATCH, twice.clone()).await;
    let again = ready.client.post(BATCH, twice).await;
    assert_eq!((first.status.as_u16(), &first.body), (202, &again.body));
    assert_eq!(first.body["results"][0], first.body["results"][1]);
    let changed = ready.client.post(BATCH, json!({"messages": [message("V29ybGQ=")]})).await;
    assert_eq!(changed.body["results"][0]["error"], "idempotency_key_reused", "the key is that of the file, too");
    assert_eq!(ready.edge.count("select count(*) from message_attachments").await, 1);
    assert_eq!(ready.edge.count("select count(*) from requests").await, 1);
}

#[tokio::test]
async fn the_files_of_a_batch_have_fifteen_megabytes_together() {
    let ready = Ready::start().await;
    let template = ready.template(json!({})).await;
    let message = |megabytes: usize| {
        // Four characters are three bytes.
        let content = "eHh4".repeat(megabytes * 1024 * 1024 / 3);
        json!({"template_id": template, "email": "ann@example.com", "attachments": file(&content)})
    };
    let together = ready.client.post(BATCH, json!({"messages": [message(9), message(7)]})).await;
    assert_eq!(together.refusal(), (413, "attachments_too_large"));
    assert_eq!(ready.edge.count("select count(*) from requests").await, 0);
    let plain = json!({"template_id": template, "email": "bob@example.com"});
    let alone = ready.client.post(BATCH, json!({"messages": [message(16), plain]})).await;
    let results = alone.body["results"].as_array().unwrap();
    assert_eq!((&results[0]["error"], &results[1]["status"]), (&json!("attachments_too_large"), &json!("scheduled")));
}

const INVITE: &str = "BEGIN:VCALENDAR\nVERSION:2.0\nPRODID:x\nMETHOD:CANCEL\nBEGIN:VEVENT\nUID:1\nDTSTAMP:20260301T090000Z\n\
    ORGANIZER:mailto:ann@acme.test\nEND:VEVENT\nEND:VCALENDAR";

#[tokio::test]
async fn the_files_of_a_mail_are_stored_with_its_request() {
    let ready = Ready::start().await;
    let body = json!({"template_id": ready.template(json!({})).await, "email": "ann@example.com"});
    let with = |change: Value| {
        let mut body = body.clone();
        body.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        body
    };
    let invite = json!({"method": "CANCEL", "content": INVITE});
    let good = with(json!({"attachments": file("SGVsbG8="), "calendar": invite}));
    let answer = ready.client.post("/v1/transactional", good).await;
    assert_eq!(answer.status, 202, "{}", answer.body);
    let stored: Vec<(String, String)> = sqlx::query_as(
        "select a.filename, a.media_type from message_attachments a join requests r on r.id = a.message_id
         where (r.options->>'has_attachments')::boolean order by a.place",
    )
    .fetch_all(&ready.edge.pool)
    .await
    .unwrap();
    let expected =
        [("a.txt", "text/plain; charset=utf-8"), ("invite.ics", "text/calendar; method=CANCEL; charset=utf-8")];
    assert_eq!(stored, expected.map(|(name, kind)| (name.to_owned(), kind.to_owned())));

    let refusals = [
        (with(json!({"attachments": file("!")})), "attachments[0].content_base64"),
        (
            with(json!({"attachments": [{"filename": "a.exe", "content_base64": "SGVsbG8="}]})),
            "attachments[0].filename",
        ),
        (with(json!({"calendar": {"method": "REQUEST", "content": INVITE}})), "calendar.content"),
        (with(json!({"calendar": {"content": INVITE}})), "calendar.method"),
    ];
    for (body, path) in refusals {
        assert_eq!(ready.client.post("/v1/transactional", body).await.faults()[0].0, path);
    }
    let too_many = with(json!({"attachments": vec![file("SGVsbG8=")[0].clone(); 11]}));
    assert_eq!(ready.client.post("/v1/transactional", too_many).await.faults()[0].1, "too_many");
    assert_eq!(ready.edge.count("select count(*) from message_attachments").await, 2);
    assert_eq!(ready.edge.count("select count(*) from requests").await, 1);
}
