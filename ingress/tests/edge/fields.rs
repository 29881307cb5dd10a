//! `/v1/fields`

use rstest::rstest;
use serde_json::json;

use crate::common::Edge;

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
#[case("plan tier")]
#[tokio::test]
async fn a_key_that_is_no_word_or_taken_is_refused(#[case] key: &str) {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let answer = client.post("/v1/fields", json!({"key": key, "label": "X", "type": "string"})).await;
    assert_eq!((answer.refusal(), answer.faults()[0].0.as_str()), ((400, "validation_failed"), "key"));
}
