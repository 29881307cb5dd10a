//! `POST /v1/contacts/{id}/merge`, and what is held about a person

use serde_json::{Value, json};

use crate::common::{Client, Edge};

async fn make(client: &Client, body: Value) -> String {
    client.post("/v1/contacts", body).await.text("contact_id")
}

async fn merge(client: &Client, survivor: &str, merged: &str) -> Value {
    let answer = client.post(&format!("/v1/contacts/{survivor}/merge"), json!({"contact_id": merged})).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.body["contact"].clone()
}

async fn show(client: &Client, id: &str) -> Value {
    client.get(&format!("/v1/contacts/{id}")).await.body["contact"].clone()
}

fn names(contact: &Value, of: &str) -> Vec<String> {
    contact[of].as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn a_merged_contact_lives_on_in_the_survivor() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    for key in ["plan", "seats"] {
        client.post("/v1/fields", json!({"key": key, "label": key, "type": "string"})).await;
    }
    let ann = make(
        &client,
        json!({"email": "ann@example.com", "first_name": "Ann", "tags": ["a"], "fields": {"plan": "pro"}}),
    )
    .await;
    let other = json!({"email": "ann@work.example", "external_id": "user-1", "first_name": "A.", "phone": "+1", "tags": ["a", "b"],
                       "lists": ["News"], "fields": {"plan": "free", "seats": "3"}});
    let other = make(&client, other).await;
    for _ in 0..2 {
        let merged = merge(&client, &ann, &other).await;
        assert_eq!((&merged["contact_id"], &merged["merged"]), (&json!(ann), &json!([other])));
        assert_eq!(
            (&merged["email"], &merged["first_name"], &merged["phone"], &merged["external_id"]),
            (&json!("ann@example.com"), &json!("Ann"), &json!("+1"), &json!("user-1"))
        );
        assert_eq!(merged["fields"], json!({"plan": "pro", "seats": "3"}));
        assert_eq!(
            (names(&merged, "tags"), names(&merged, "lists")),
            (vec!["a".into(), "b".into()], vec!["News".into()])
        );
    }
    assert_eq!(show(&client, &other).await["contact_id"], json!(ann), "the id leads to the survivor");
    let listed = client.get("/v1/contacts").await.body["contacts"].as_array().unwrap().len();
    assert_eq!(listed, 1);
    let again = client.post("/v1/contacts", json!({"email": "ann@work.example"})).await;
    assert_eq!((again.status.as_u16(), again.text("contact_id")), (200, ann.clone()), "and so does its address");
    assert_eq!(edge.count("select count(*) from audit_log where action = 'contact.merged'").await, 1);
    let itself = client.post(&format!("/v1/contacts/{ann}/merge"), json!({"contact_id": ann})).await;
    assert_eq!(itself.refusal(), (400, "validation_failed"));
    let unknown = client.post(&format!("/v1/contacts/{ann}/merge"), json!({"contact_id": schemas::new_id()})).await;
    assert_eq!(unknown.refusal(), (404, "contact_not_found"));
    // Imports and members reach the survivor as well.
    client.post("/v1/imports", json!({"csv": "email,company\nann@work.example,Acme\n"})).await;
    assert_eq!(show(&client, &ann).await["company"], "Acme");
}

#[tokio::test]
async fn the_stricter_consent_and_suppression_survive_a_merge() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let ann = make(&client, json!({"email": "ann@example.com"})).await;
    let other = make(&client, json!({"email": "ann@work.example", "marketing_status": "unsubscribed"})).await;
    for reason in ["complaint", "hard_bounce"] {
        client.post("/v1/suppressions", json!({"email": "ann@work.example", "reason": reason})).await;
    }
    let merged = merge(&client, &ann, &other).await;
    assert_eq!(
        (&merged["marketing_status"], &merged["suppression"]["reason"]),
        (&json!("unsubscribed"), &json!("complaint"))
    );
    let reasons: Vec<String> = sqlx::query_scalar("select reason from suppressions where address = 'ann@example.com'")
        .fetch_all(&edge.pool)
        .await
        .unwrap();
    assert_eq!(reasons, ["complaint"], "a bounce is about one address");
}

#[tokio::test]
async fn a_later_opt_out_of_the_merged_address_holds_for_the_survivor() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let ann = make(&client, json!({"email": "ann@example.com"})).await;
    let other = make(&client, json!({"email": "ann@work.example"})).await;
    merge(&client, &ann, &other).await;
    client.post("/v1/suppressions", json!({"email": "ann@work.example", "reason": "unsubscribe"})).await;
    assert_eq!(show(&client, &ann).await["suppression"]["reason"], "unsubscribe");
}

#[tokio::test]
async fn erasing_the_survivor_erases_what_was_merged_into_it() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let ann = make(&client, json!({"email": "ann@example.com"})).await;
    let other = make(&client, json!({"email": "ann@work.example", "external_id": "user-1"})).await;
    merge(&client, &ann, &other).await;
    assert_eq!(client.delete(&format!("/v1/contacts/{other}"), json!({"erase": true})).await.status, 200);
    assert_eq!(
        edge.count("select count(*) from contacts where address like '%example%' or external_id is not null").await,
        0
    );
    assert_eq!(edge.count("select count(*) from contacts where status = 'erased'").await, 2);
}

#[tokio::test]
async fn chains_of_merges_lead_to_the_last_survivor() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let mut ids = Vec::new();
    for n in 0..3 {
        ids.push(make(&client, json!({"email": format!("c{n}@example.com")})).await);
    }
    merge(&client, &ids[1], &ids[0]).await;
    merge(&client, &ids[2], &ids[1]).await;
    for id in &ids {
        assert_eq!(show(&client, id).await["contact_id"], json!(ids[2]));
    }
    let back = client.post(&format!("/v1/contacts/{}/merge", ids[0]), json!({"contact_id": ids[2]})).await;
    assert_eq!((back.status.as_u16(), &back.body["contact"]["contact_id"]), (200, &json!(ids[2])));
}

#[tokio::test]
async fn a_person_reads_everything_that_is_held_page_by_page() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let ann = make(&client, json!({"email": "ann@example.com"})).await;
    let other = make(&client, json!({"email": "ann@work.example"})).await;
    merge(&client, &ann, &other).await;
    make(&client, json!({"email": "bob@example.com"})).await;
    client.post("/v1/suppressions", json!({"email": "ann@work.example", "reason": "hard_bounce"})).await;
    let events = |email: &str, count: usize| {
        (0..count).map(|n| json!({"name": format!("event_{n}"), "email": email})).collect::<Vec<_>>()
    };
    for event in events("ann@work.example", 205).into_iter().chain(events("bob@example.com", 1)) {
        assert!(client.post("/v1/events", event).await.status.is_success());
    }
    let path = format!("/v1/contacts/{ann}/data");
    let first = client.post(&path, json!({})).await.body;
    assert_eq!(
        (&first["contact"]["contact_id"], &first["merged_addresses"]),
        (&json!(ann), &json!(["ann@work.example"]))
    );
    assert_eq!(first["suppressions"][0]["reason"], "hard_bounce");
    let second = client.post(&path, json!({"cursor": first["next_cursor"]})).await.body;
    assert_eq!(second["next_cursor"], Value::Null);
    let mut names: Vec<&str> = [&first, &second]
        .into_iter()
        .flat_map(|page| page["records"].as_array().unwrap())
        .map(|record| record["data"]["name"].as_str().unwrap())
        .collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), 205, "each once, and nobody else's");
    assert_eq!(edge.count("select count(*) from audit_log where action = 'contact.data_read'").await, 1);
    let wrong = client.post(&path, json!({"cursor": "x"})).await;
    assert_eq!(wrong.refusal(), (400, "validation_failed"));
}
