//! `/v1/segments`, and contacts by segment.

use serde_json::{Value, json};

use crate::common::{Answer, Client, Edge};

/// Three contacts: two with a company, one of them a customer.
async fn people(client: &Client) {
    client.post("/v1/fields", json!({"key": "plan", "label": "Plan", "type": "string"})).await;
    for body in [
        json!({"email": "ann@example.com", "company": "Acme", "fields": {"plan": "pro"}}),
        json!({"email": "bob@example.com", "company": "Bolt"}),
        json!({"email": "cid@example.com"}),
    ] {
        assert_eq!(client.post("/v1/contacts", body).await.status, 201);
    }
}

fn has_company() -> Value {
    json!({"field": "company", "op": "exists"})
}

async fn make(client: &Client, name: &str, rule: Value) -> String {
    let answer = client.post("/v1/segments", json!({"name": name, "rule": rule})).await;
    assert_eq!(answer.status, 201, "{}", answer.body);
    answer.text("segment_id")
}

async fn preview(client: &Client, rule: Value) -> Answer {
    client.post("/v1/segments/preview", json!({ "rule": rule })).await
}

fn emails(contacts: &Value) -> Vec<&str> {
    contacts.as_array().unwrap().iter().map(|contact| contact["email"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn a_segment_reads_back_as_it_was_written() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    people(&client).await;
    let rule = json!({"all": [has_company(), {"field": "fields.plan", "op": "neq", "value": "PRO"}]});
    let body = json!({"name": " Prospects ", "description": "Nobody's yet", "rule": rule});
    let made = client.post("/v1/segments", body).await;
    assert_eq!((made.status.as_u16(), &made.body["name"]), (201, &json!("Prospects")), "{}", made.body);
    let id = made.text("segment_id");
    let path = format!("/v1/segments/{id}");
    let shown = client.get(&path).await.body["segment"].clone();
    let expected = json!({
        "segment_id": id, "name": "Prospects", "description": "Nobody's yet", "rule": rule, "created_at": shown["created_at"],
        "updated_at": shown["updated_at"],
    });
    assert_eq!(shown, expected);
    let found = client.get(&format!("/v1/contacts?segment_id={id}")).await;
    assert_eq!(emails(&found.body["contacts"]), ["bob@example.com"], "{}", found.body);
}

#[tokio::test]
async fn a_preview_counts_and_shows_the_newest_and_stores_nothing() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    people(&client).await;
    let answer = preview(&client, has_company()).await;
    assert_eq!((answer.status.as_u16(), &answer.body["count"]), (200, &json!(2)), "{}", answer.body);
    assert_eq!(emails(&answer.body["sample"]), ["bob@example.com", "ann@example.com"]);
    assert!(answer.text("evaluated_at").ends_with('Z'));
    let none = preview(&client, json!({"all": [has_company(), {"not": has_company()}]})).await;
    assert_eq!((&none.body["count"], &none.body["sample"]), (&json!(0), &json!([])));
    client
        .delete(&format!("/v1/contacts/{}", answer.body["sample"][0]["contact_id"].as_str().unwrap()), json!({}))
        .await;
    assert_eq!(preview(&client, has_company()).await.body["count"], 1, "archived contacts are in no segment");
    assert_eq!(edge.count("select count(*) from segments").await, 0);
    for _ in 0..11 {
        let email = format!("p{}@example.com", schemas::new_id().simple());
        client.post("/v1/contacts", json!({"email": email, "company": "Many"})).await;
    }
    let many = preview(&client, has_company()).await;
    assert_eq!((many.body["count"].as_i64(), many.body["sample"].as_array().unwrap().len()), (Some(12), 10));
}

#[tokio::test]
async fn every_fault_of_a_rule_is_answered_with_its_place() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let rule =
        json!({"all": [{"field": "colour", "op": "eq", "value": "red"}, {"field": "company", "op": "gt", "value": 1}]});
    let answer = client.post("/v1/segments", json!({"name": " ", "rule": rule})).await;
    let expected = [("name", "empty"), ("rule.all[0].field", "unknown_field"), ("rule.all[1].op", "not_allowed")];
    assert_eq!(answer.faults(), expected.map(|(path, code)| (path.to_owned(), code.to_owned())), "{}", answer.body);
    for (body, path, code) in [
        (json!({"name": "x"}), "rule", "required"),
        (json!({"name": "x", "rule": null}), "rule", "wrong_type"),
        (json!({"name": "x", "rule": []}), "rule", "wrong_type"),
        (json!({"name": "x", "rule": has_company(), "status": "active"}), "status", "unknown_field"),
    ] {
        let answer = client.post("/v1/segments", body).await;
        assert_eq!(answer.faults(), [(path.to_owned(), code.to_owned())], "{}", answer.body);
    }
    assert_eq!(preview(&client, json!({})).await.faults(), [("rule".to_owned(), "required".to_owned())]);
}

#[tokio::test]
async fn what_a_rule_names_is_the_tenants_own_or_not_found() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let other = edge.client_for("crm", schemas::Environment::Production, "tenant-2").await;
    let list = other.post("/v1/audiences", json!({"kind": "list", "name": "News"})).await.text("audience_id");
    let tag = other.post("/v1/audiences", json!({"kind": "tag", "name": "vip"})).await.text("audience_id");
    let segment = make(&other, "Theirs", has_company()).await;
    other.post("/v1/fields", json!({"key": "plan", "label": "Plan", "type": "string"})).await;
    for (rule, code) in [
        (json!({"in_list": list}), "list_not_found"),
        (json!({"has_tag": tag}), "tag_not_found"),
        (json!({"in_segment": segment}), "segment_not_found"),
        (json!({"event": "email.opened", "campaign_id": schemas::new_id()}), "campaign_not_found"),
    ] {
        assert_eq!(preview(&client, rule.clone()).await.refusal(), (404, code));
        let answer = client.post("/v1/segments", json!({"name": "x", "rule": rule})).await;
        assert_eq!(answer.refusal(), (404, code));
    }
    let field = preview(&client, json!({"field": "fields.plan", "op": "exists"})).await;
    assert_eq!(field.faults(), [("rule.field".to_owned(), "unknown_field".to_owned())]);
    let path = format!("/v1/segments/{segment}");
    assert_eq!(client.get(&path).await.refusal(), (404, "segment_not_found"));
    assert_eq!(client.patch(&path, json!({"name": "Mine"})).await.refusal(), (404, "segment_not_found"));
    assert_eq!(client.delete(&path, json!({})).await.refusal(), (404, "segment_not_found"));
    assert_eq!(client.get(&format!("/v1/contacts?segment_id={segment}")).await.refusal(), (404, "segment_not_found"));
    assert_eq!(client.get("/v1/segments/nonsense").await.refusal(), (404, "segment_not_found"));
}

#[tokio::test]
async fn a_change_replaces_what_it_names_and_keeps_the_rest() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    people(&client).await;
    let id = make(&client, "Firms", has_company()).await;
    let path = format!("/v1/segments/{id}");
    let renamed = client.patch(&path, json!({"name": "Companies", "description": "All"})).await;
    assert_eq!(renamed.body["segment"]["rule"], has_company(), "{}", renamed.body);
    let none = json!({ "not": has_company() });
    let changed = client.patch(&path, json!({"rule": none, "description": null})).await;
    assert_eq!(changed.body["segment"]["name"], "Companies");
    assert_eq!((&changed.body["segment"]["rule"], &changed.body["segment"]["description"]), (&none, &Value::Null));
    let found = client.get(&format!("/v1/contacts?segment_id={id}")).await;
    assert_eq!(emails(&found.body["contacts"]), ["cid@example.com"]);
    let bad = client.patch(&path, json!({"rule": {"all": []}})).await;
    assert_eq!(bad.faults(), [("rule.all".to_owned(), "empty".to_owned())]);
    assert_eq!(client.get(&path).await.body["segment"]["rule"], none);
}

#[tokio::test]
async fn a_name_is_one_segments_until_that_is_deleted() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let first = make(&client, "Firms", has_company()).await;
    let second = make(&client, "Others", has_company()).await;
    let again = client.post("/v1/segments", json!({"name": " Firms ", "rule": has_company()})).await;
    assert_eq!(again.refusal(), (409, "segment_name_taken"));
    let path = format!("/v1/segments/{second}");
    assert_eq!(client.patch(&path, json!({"name": "Firms"})).await.refusal(), (409, "segment_name_taken"));
    assert_eq!(client.patch(&path, json!({"name": "Others"})).await.status, 200, "its own name is its own");
    let deleted = client.delete(&format!("/v1/segments/{first}"), json!({})).await;
    assert_eq!((deleted.status.as_u16(), &deleted.body["status"]), (200, &json!("deleted")), "{}", deleted.body);
    assert_eq!(client.delete(&format!("/v1/segments/{first}"), json!({})).await.refusal(), (404, "segment_not_found"));
    make(&client, "Firms", has_company()).await;
}

#[tokio::test]
async fn segments_are_listed_newest_first_in_pages() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    for name in ["a", "b", "c"] {
        make(&client, name, has_company()).await;
    }
    let names = |answer: &Answer| -> Vec<String> {
        answer.body["segments"]
            .as_array()
            .unwrap()
            .iter()
            .map(|segment| segment["name"].as_str().unwrap().to_owned())
            .collect()
    };
    let page = client.get("/v1/segments?limit=2").await;
    assert_eq!(names(&page), ["c", "b"]);
    let next = client.get(&format!("/v1/segments?limit=2&cursor={}", page.text("next_cursor"))).await;
    assert_eq!((names(&next), &next.body["next_cursor"]), (vec!["a".to_owned()], &Value::Null));
}

#[tokio::test]
async fn a_segment_that_others_name_is_kept_and_kept_within_bounds() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let inner = make(&client, "Inner", has_company()).await;
    let outer = make(&client, "Outer", json!({"any": vec![json!({"in_segment": inner}); 4]})).await;
    let (inner_path, outer_path) = (format!("/v1/segments/{inner}"), format!("/v1/segments/{outer}"));
    assert_eq!(client.delete(&inner_path, json!({})).await.refusal(), (409, "segment_in_use"));
    let cycle = client.patch(&inner_path, json!({"rule": {"in_segment": outer}})).await;
    assert_eq!(cycle.faults(), [("rule.in_segment".to_owned(), "cycle".to_owned())]);
    assert_eq!(client.patch(&inner_path, json!({"rule": {"any": vec![has_company(); 50]}})).await.status, 200);
    // Four times fifty is as much as the outer one may have.
    let more = json!({"any": [{"in_segment": outer}, has_company()]});
    assert_eq!(client.post("/v1/segments", json!({"name": "More", "rule": more})).await.faults()[0].1, "too_many");
    client.patch(&inner_path, json!({"rule": {"any": vec![has_company(); 40]}})).await;
    make(&client, "More", more).await;
    let grown = client.patch(&inner_path, json!({"rule": {"any": vec![has_company(); 50]}})).await;
    assert_eq!(grown.faults(), [("rule".to_owned(), "too_many".to_owned())], "{}", grown.body);
    client.patch(&outer_path, json!({"rule": has_company()})).await;
    assert_eq!(client.delete(&inner_path, json!({})).await.status, 200, "nobody names it any more");
}

#[tokio::test]
async fn changes_at_once_close_no_circle() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let (a, b) = (make(&client, "A", has_company()).await, make(&client, "B", has_company()).await);
    let change = |id: String, names: String| {
        let client = client.clone();
        async move {
            client.patch(&format!("/v1/segments/{id}"), json!({"rule": {"in_segment": names}})).await.status.as_u16()
        }
    };
    let (one, other) = tokio::join!(change(a.clone(), b.clone()), change(b, a));
    assert_eq!([one.min(other), one.max(other)], [200, 400]);
}

#[tokio::test]
async fn contacts_of_a_segment_pass_the_other_filters_too_in_pages() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    people(&client).await;
    let all = make(&client, "All", json!({"field": "email", "op": "ends_with", "value": "@Example.com"})).await;
    let page = client.get(&format!("/v1/contacts?segment_id={all}&limit=2")).await;
    assert_eq!(emails(&page.body["contacts"]), ["cid@example.com", "bob@example.com"]);
    let next = client.get(&format!("/v1/contacts?segment_id={all}&limit=2&cursor={}", page.text("next_cursor"))).await;
    assert_eq!(emails(&next.body["contacts"]), ["ann@example.com"]);
    for (filter, found) in
        [("q=bolt", 1), ("q=B%C3%96LT", 0), ("status=archived", 0), ("status=active", 3), ("email=ann@example.com", 1)]
    {
        let answer = client.get(&format!("/v1/contacts?segment_id={all}&{filter}")).await;
        assert_eq!(emails(&answer.body["contacts"]).len(), found, "{filter}");
    }
}
