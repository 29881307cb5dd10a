use rstest::rstest;
use schemas::{SendId, month_of, parse_id, subjects::stream};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::{
    common::Edge,
    fixtures::{Ready, first_on, open_streams, sender},
};

#[tokio::test]
async fn a_request_is_stored_under_the_id_of_its_send_and_rung_for() {
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
    assert_eq!((row_id, kind.as_str(), state.as_str()), (id, "transactional", "accepted"));
    let payload: schemas::messages::TransactionalPayload = serde_json::from_value(payload).unwrap();
    assert_eq!((payload.send_id, payload.address.as_str(), payload.sender_id), (id, "ann@example.com", ready.sender));
    assert_eq!(
        (payload.first_name.as_deref(), payload.last_name, payload.data["order"]["id"].clone()),
        (Some("Ann"), None, json!(7))
    );

    let (subject, ring) = first_on(&ready.edge, stream::ACCEPTED).await;
    assert!(subject.ends_with("mail.v1.accepted.crm.production.transactional"), "{subject}");
    assert_eq!(ring, json!({"tenant_id": ready.client.tenant, "request_id": send_id, "kind": "transactional"}));
}

#[tokio::test]
async fn a_request_is_accepted_while_the_bus_is_away() {
    // No streams: nothing can be stored on the bus.
    let ready = Ready::start().await;
    let template = ready.template(json!({})).await;
    let body = json!({"template_id": template, "email": "ann@example.com"});
    assert_eq!(ready.client.post("/v1/transactional", body).await.status, 202);
    let due = "select count(*) from requests where announce_after <= now() + interval '5 seconds'";
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
    sqlx::query("update requests set state = 'rejected', outcome = 'template_gone', handled_at = now()")
        .execute(&ready.edge.pool)
        .await
        .unwrap();
    let send = ready.client.get(&path).await.body["send"].clone();
    assert_eq!((&send["state"], &send["failure_reason"]), (&json!("failed"), &json!("template_gone")));
    let other = SendId::of(parse_id(&send_id).unwrap(), 1).0;
    assert_eq!(ready.client.get(&format!("/v1/sends/{other}")).await.refusal(), (404, "send_not_found"));
}

#[rstest]
#[case::no_template(json!({"template_id": Uuid::max().to_string()}), 404, "template_not_found")]
#[case::no_sender(json!({"sender_profile_id": Uuid::max().to_string()}), 404, "sender_profile_not_found")]
#[case::bad_address(json!({"email": "nobody"}), 400, "validation_failed")]
#[case::no_address(json!({"email": null}), 400, "validation_failed")]
#[case::header_in_a_name(json!({"first_name": "a\r\nBcc: b"}), 400, "validation_failed")]
#[case::data_is_an_object(json!({"data": [1]}), 400, "validation_failed")]
#[case::unknown_field(json!({"subject": "x"}), 400, "validation_failed")]
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
