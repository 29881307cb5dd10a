//! `/v1/fields`

use rstest::rstest;
use serde_json::{Value, json};
use sqlx::AssertSqlSafe;

use crate::common::{Client, Edge};

#[tokio::test]
async fn a_field_is_defined_once_and_its_label_and_fallback_change() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let body = json!({"key": "plan", "label": "Plan", "type": "string", "fallback": "free"});
    let created = client.post("/v1/fields", body.clone()).await;
    assert_eq!(created.status, 201, "{}", created.body);
    assert_eq!(client.post("/v1/fields", body).await.refusal(), (409, "field_already_exists"));
    let path = format!("/v1/fields/{}", created.text("field_id"));
    let changed = client.patch(&path, json!({"label": "Tier", "fallback": null})).await;
    assert_eq!((&changed.body["field"]["label"], &changed.body["field"]["fallback"]), (&json!("Tier"), &json!(null)));
    assert_eq!(client.patch(&path, json!({"type": "number"})).await.faults()[0].1, "unknown_field");
    let list = client.get("/v1/fields").await;
    assert_eq!(list.body["fields"][0]["key"], "plan");
    assert_eq!(list.body["fields"][0]["type"], "string");
}

#[rstest]
#[case("Plan")]
#[case("2nd")]
#[case("")]
#[case("email")]
#[case("first_name")]
#[case("unsubscribed")]
#[case("status")]
#[case("consent_source")]
#[case("cursor")]
#[case("plan tier")]
#[tokio::test]
async fn a_key_that_is_no_word_or_taken_is_refused(#[case] key: &str) {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let answer = client.post("/v1/fields", json!({"key": key, "label": "X", "type": "string"})).await;
    assert_eq!((answer.refusal(), answer.faults()[0].0.as_str()), ((400, "validation_failed"), "key"));
}

#[tokio::test]
async fn requests_at_once_do_not_pass_the_limit() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    sqlx::query(
        "insert into fields (tenant_id, id, key, label, type)
         select $1, gen_random_uuid(), 'f' || n, 'F', 'string' from generate_series(1, 198) n",
    )
    .bind(client.tenant)
    .execute(&edge.pool)
    .await
    .unwrap();
    let field = |n: i32| json!({"key": format!("more{n}"), "label": "More", "type": "string"});
    let answers = futures::future::join_all((0..6).map(|n| client.post("/v1/fields", field(n)))).await;
    let refused = answers.iter().filter(|answer| answer.refusal() == (409, "field_limit_reached"));
    assert_eq!(refused.count(), 4);
    assert_eq!(edge.count("select count(*) from fields").await, 200);
}

#[tokio::test]
async fn a_removed_field_counts_until_its_values_are_taken_out() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    for sql in [
        "insert into fields (tenant_id, id, key, label, type)
         select $1, gen_random_uuid(), 'f' || n, 'F', 'string' from generate_series(1, 150) n",
        "insert into removed_fields (tenant_id, id, key) select $1, gen_random_uuid(), 'r' || n from generate_series(1, 50) n",
    ] {
        sqlx::query(sql).bind(client.tenant).execute(&edge.pool).await.unwrap();
    }
    let field = json!({"key": "more", "label": "More", "type": "string"});
    assert_eq!(client.post("/v1/fields", field.clone()).await.refusal(), (409, "field_limit_reached"));
    edge.take_out_removed_fields().await;
    assert_eq!(client.post("/v1/fields", field).await.status, 201);
}

/// A field `plan` of texts.
async fn plan(client: &Client) -> String {
    let created = client.post("/v1/fields", json!({"key": "plan", "label": "Plan", "type": "string"})).await;
    format!("/v1/fields/{}", created.text("field_id"))
}

async fn remove(client: &Client, field: &str) {
    let removed = client.delete(field, json!({})).await;
    assert_eq!((removed.status.as_u16(), removed.text("status").as_str()), (200, "deleted"), "{}", removed.body);
}

/// The field with the key of the removed one is of another type.
async fn define_anew(client: &Client) -> u16 {
    client.post("/v1/fields", json!({"key": "plan", "label": "Plan", "type": "number"})).await.status.as_u16()
}

#[tokio::test]
async fn nobody_sees_or_stores_a_value_of_a_removed_field() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    client.post("/v1/fields", json!({"key": "seats", "label": "Seats", "type": "number"})).await;
    let field = plan(&client).await;
    let ann = json!({"email": "ann@example.com", "fields": {"plan": "pro", "seats": 3}});
    let ann = format!("/v1/contacts/{}", client.post("/v1/contacts", ann).await.text("contact_id"));
    remove(&client, &field).await;
    assert_eq!(client.get(&field).await.refusal(), (404, "field_not_found"));
    assert_eq!(client.delete(&field, json!({})).await.refusal(), (404, "field_not_found"));
    let stored = edge.count("select count(*) from contacts where fields ? 'plan'").await;
    assert_eq!(stored, 1, "the value is taken out later");
    assert_eq!(client.get(&ann).await.body["contact"]["fields"], json!({"seats": 3}));
    let exported: Value =
        serde_json::from_slice(&client.get("/v1/exports/contacts?format=ndjson").await.bytes).unwrap();
    assert_eq!(exported["fields"], json!({"seats": 3}));
    let rule = json!({"field": "fields.plan", "op": "eq", "value": "pro"});
    let segment = client.post("/v1/segments", json!({"name": "Pros", "rule": rule})).await;
    assert_eq!(segment.faults()[0].1, "unknown_field");
    let html = json!({"name": "t", "type": "marketing", "subject": "s", "body_html": "{{ contact.fields.plan }}"});
    assert_eq!(client.post("/v1/templates", html).await.faults()[0].1, "unknown_field");
    let changed = client.patch(&ann, json!({"fields": {"plan": "free"}})).await;
    assert_eq!(changed.faults()[0], ("fields.plan".to_owned(), "unknown_field".to_owned()));
    assert_eq!(define_anew(&client).await, 409);
    edge.take_out_removed_fields().await;
    assert_eq!(define_anew(&client).await, 201);
    assert_eq!(client.patch(&ann, json!({"fields": {"plan": 7}})).await.status, 200);
    assert_eq!(client.get(&ann).await.body["contact"]["fields"], json!({"plan": 7, "seats": 3}));
}

#[tokio::test]
async fn a_change_that_knew_a_removed_field_leaves_no_value() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let field = plan(&client).await;
    let ann = client.post("/v1/contacts", json!({"email": "ann@example.com"})).await.text("contact_id");
    let ann = format!("/v1/contacts/{ann}");
    let mut lock = edge.pool.begin().await.unwrap();
    sqlx::query("select from contacts for update").execute(&mut *lock).await.unwrap();
    // It has read the definitions, and waits for the contact.
    let change = tokio::spawn({
        let (client, ann) = (client.clone(), ann.clone());
        async move { client.patch(&ann, json!({"fields": {"plan": "pro"}})).await }
    });
    edge.until_waiting(1).await;
    remove(&client, &field).await;
    edge.take_out_removed_fields().await;
    assert_eq!(define_anew(&client).await, 409, "the change is waited for");
    lock.rollback().await.unwrap();
    assert_eq!(change.await.unwrap().body["contact"]["fields"], json!({}));
    edge.take_out_removed_fields().await;
    assert_eq!(define_anew(&client).await, 201);
    assert_eq!(client.get(&ann).await.body["contact"]["fields"], json!({}));
}

#[tokio::test]
async fn an_import_that_was_read_before_stores_no_value_of_a_removed_field() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let field = plan(&client).await;
    let mut lock = edge.pool.begin().await.unwrap();
    sqlx::query("select wait_for_field_writers($1)").bind(client.tenant).execute(&mut *lock).await.unwrap();
    // It has read its file, and waits to write.
    let import = tokio::spawn({
        let client = client.clone();
        async move { client.post("/v1/imports", json!({"csv": "email,plan,first_name\nann@example.com,pro,Ann\n"})).await }
    });
    edge.until_waiting(1).await;
    remove(&client, &field).await;
    // No contact has a value.
    sqlx::query("delete from removed_fields").execute(&edge.pool).await.unwrap();
    assert_eq!(define_anew(&client).await, 201);
    lock.rollback().await.unwrap();
    assert_eq!(import.await.unwrap().body["counts"]["created"], 1);
    assert_eq!(edge.count("select count(*) from contacts where first_name = 'Ann' and fields = '{}'").await, 1);
}

#[rstest]
#[case::template("/v1/templates", "contents", "unknown_variable", json!({
    "name": "T", "subject": "S", "body_html": "<p>{{ contact.fields.since }}</p>"}))]
#[case::segment("/v1/segments", "segments", "unknown_field", json!({
    "name": "Old", "rule": {"field": "fields.since", "op": "eq", "value": "2026-01-01"}}))]
#[case::step("/v1/sequences", "sequences", "unknown_field", json!({
    "name": "Steps", "steps": [{"step_type": "update_field", "action_config": {"field": "since", "value": "2026-01-01"}}]}))]
#[case::trigger("/v1/sequences", "sequences", "unknown_field", json!({
    "name": "Days", "trigger_type": "field_date", "trigger_config": {"field": "since"},
    "steps": [{"step_type": "update_lifecycle_stage", "action_config": {"stage": "customer"}}]}))]
#[tokio::test]
async fn what_names_a_field_and_its_removal_take_turns(
    #[case] path: &'static str,
    #[case] table: &str,
    #[case] unknown: &str,
    #[case] body: Value,
) {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let since = json!({"key": "since", "label": "Since", "type": "date"});
    let field = format!("/v1/fields/{}", client.post("/v1/fields", since).await.text("field_id"));
    let removal = || {
        let (client, field) = (client.clone(), field.clone());
        tokio::spawn(async move { client.delete(&field, json!({})).await })
    };
    let save = || {
        let (client, body) = (client.clone(), body.clone());
        tokio::spawn(async move { client.post(path, body).await })
    };
    // What names it is about to be stored: the removal waits, and finds it.
    let mut stalled = edge.pool.begin().await.unwrap();
    sqlx::query(AssertSqlSafe(format!("lock table {table} in share mode"))).execute(&mut *stalled).await.unwrap();
    let saved = save();
    edge.until_waiting(1).await;
    let removed = removal();
    edge.until_waiting(2).await;
    stalled.rollback().await.unwrap();
    let saved = saved.await.unwrap();
    assert_eq!(saved.status, 201, "{}", saved.body);
    assert_eq!(removed.await.unwrap().refusal(), (409, "field_in_use"));
    for forgotten in [
        "update templates set status = 'archived'",
        "update segments set deleted_at = now(), name = 'x'",
        "update sequences set status = 'archived'",
    ] {
        sqlx::query(forgotten).execute(&edge.pool).await.unwrap();
    }
    // The removal has found nothing, and is about to be stored: what names it waits, and is refused.
    let mut stalled = edge.pool.begin().await.unwrap();
    sqlx::query("select from fields for update").execute(&mut *stalled).await.unwrap();
    let removed = removal();
    edge.until_waiting(1).await;
    let saved = save();
    edge.until_waiting(2).await;
    stalled.rollback().await.unwrap();
    assert_eq!(removed.await.unwrap().status, 200);
    let saved = saved.await.unwrap();
    assert_eq!((saved.status.as_u16(), saved.faults()[0].1.as_str()), (400, unknown), "{}", saved.body);
}
