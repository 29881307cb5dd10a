//! `/v1/imports` of what `/v1/exports/contacts` writes.

use schemas::Environment;
use serde_json::{Map, Value, json};

use crate::common::{Answer, Client, Edge, PRODUCT};

const PATH: &str = "/v1/imports";

async fn import(client: &Client, csv: &str) -> Answer {
    let answer = client.post(PATH, json!({"csv": csv})).await;
    assert_eq!(answer.body["status"], "completed", "{}", answer.body);
    answer
}

/// What a tenant's contacts are, without what each tenant has of its own.
async fn exported(client: &Client) -> Vec<Value> {
    let lines = String::from_utf8(client.get("/v1/exports/contacts?format=ndjson").await.bytes).unwrap();
    let mut rows: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for row in &mut rows {
        for own in
            ["contact_id", "cursor", "created_at", "updated_at", "source", "consent_source", "consent_description"]
        {
            row.as_object_mut().unwrap().remove(own);
        }
    }
    rows.sort_by_key(|row| row["email"].to_string());
    rows
}

#[tokio::test]
async fn an_export_of_contacts_imports_as_the_same_contacts() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let other = edge.client_for(PRODUCT, Environment::Production, "tenant-2").await;
    for tenant in [&client, &other] {
        for (key, kind) in [("plan", "string"), ("seats", "number"), ("trial", "boolean"), ("langs", "string_list")] {
            let made = tenant.post("/v1/fields", json!({"key": key, "label": key, "type": kind})).await;
            assert_eq!(made.status, 201, "{}", made.body);
        }
    }
    for contact in [
        json!({
            "email": "ann@example.com", "external_id": "-7", "first_name": "=SUM(A1)", "last_name": "'=O", "phone": "+49 30 1234",
            "company": "'t Hoen", "dot_number": 42, "timezone": "Europe/Paris", "locale": "fr-FR", "tags": ["a;b", "[vip]"],
            "lists": ["News", "Old, \"good\" friends"], "fields": {"plan": "a\nb;c", "seats": -3.5, "trial": false, "langs": ["de", "f;r"]},
            "consent": {"basis": "opt_in", "at": "2026-01-02T03:04:05Z"},
        }),
        json!({"email": "+left@example.com", "marketing_status": "unsubscribed", "lists": ["News"]}),
        json!({"email": "asked@example.com", "marketing_status": "pending"}),
    ] {
        let made = client.post("/v1/contacts", contact).await;
        assert_eq!(made.status, 201, "{}", made.body);
    }
    let archived = client.post("/v1/contacts", json!({"email": "gone@example.com"})).await.text("contact_id");
    assert_eq!(client.delete(&format!("/v1/contacts/{archived}"), json!({})).await.status, 200);
    let csv = String::from_utf8(client.get("/v1/exports/contacts").await.bytes).unwrap();
    let answer = import(&other, &csv).await;
    assert_eq!(answer.body["counts"]["created"], 4, "{}", answer.body);
    assert_eq!(exported(&other).await, exported(&client).await);
    let again = import(&client, &csv).await;
    assert_eq!(again.body["counts"]["unchanged"], 4, "{}", again.body);
}

#[tokio::test]
async fn a_contact_with_long_texts_and_many_tags_imports_as_it_was_exported() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    for at in 0..5 {
        let field = json!({"key": format!("note_{at}"), "label": "Note", "type": "string"});
        assert_eq!(client.post("/v1/fields", field).await.status, 201);
    }
    let texts: Map<String, Value> = (0..5).map(|at| (format!("note_{at}"), "x".repeat(2_000).into())).collect();
    let tags: Vec<String> = (0..100).map(|at| format!("tag {at}")).collect();
    let mut contact =
        json!({"email": "ann@example.com", "fields": texts, "tags": tags, "consent": {"basis": "b".repeat(200)}});
    for column in ["first_name", "last_name", "title", "phone", "company", "lifecycle_stage"] {
        contact[column] = "x".repeat(200).into();
    }
    let made = client.post("/v1/contacts", contact).await;
    assert_eq!(made.status, 201, "{}", made.body);
    let more = json!({"email": "ann@example.com", "tags": ["one more"], "on_existing": "update"});
    assert_eq!(client.post("/v1/contacts", more).await.status, 200);
    let before = exported(&client).await;
    assert_eq!(before[0]["tags"].as_array().map(Vec::len), Some(101));
    let csv = String::from_utf8(client.get("/v1/exports/contacts").await.bytes).unwrap();
    assert_eq!(import(&client, &csv).await.body["counts"]["unchanged"], 1);
    assert_eq!(exported(&client).await, before);
}

#[tokio::test]
async fn a_field_that_is_named_as_a_column_of_the_export_keeps_its_value() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    // From before such names were refused.
    sqlx::query(
        "insert into fields (tenant_id, id, key, label, type)
         select $1, gen_random_uuid(), key, key, 'string' from unnest('{status,source}'::text[]) key",
    )
    .bind(client.tenant)
    .execute(&edge.pool)
    .await
    .unwrap();
    let contact = json!({"email": "ann@example.com", "fields": {"status": "gold", "source": "fair"}});
    assert_eq!(client.post("/v1/contacts", contact).await.status, 201);
    let csv = String::from_utf8(client.get("/v1/exports/contacts").await.bytes).unwrap();
    assert_eq!(import(&client, &csv).await.body["counts"]["unchanged"], 1);
    assert_eq!(exported(&client).await[0]["fields"], json!({"status": "gold", "source": "fair"}));
}

#[tokio::test]
async fn a_marketing_status_of_a_row_subscribes_nobody_who_is_not() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    for (address, status) in [
        ("left", "unsubscribed"),
        ("asked", "pending"),
        ("still", "pending"),
        ("in", "subscribed"),
        ("out", "subscribed"),
    ] {
        let body = json!({"email": format!("{address}@example.com"), "marketing_status": status});
        assert_eq!(client.post("/v1/contacts", body).await.status, 201);
    }
    let csv = "email,marketing_status\nleft@example.com,subscribed\nasked@example.com,subscribed\nstill@example.com,pending\n\
               in@example.com,pending\nout@example.com,unsubscribed\nodd@example.com,active\nnew@example.com,pending\n";
    let agreed = json!({"marketing_allowed": true, "consent_basis": "opt_in"});
    let expected = |asked| {
        [
            ("left", "unsubscribed"),
            ("asked", asked),
            ("still", "pending"),
            ("in", "pending"),
            ("out", "unsubscribed"),
            ("new", "pending"),
        ]
    };
    for (compliance, asked) in [(json!({}), "pending"), (agreed, "subscribed")] {
        let answer = client.post(PATH, json!({"csv": csv, "compliance": compliance})).await;
        let error = &answer.body["errors"][0];
        assert_eq!(
            (&error["row"], &error["column"], &error["code"]),
            (&json!(7), &json!("marketing_status"), &json!("unknown_status"))
        );
        for (address, status) in expected(asked) {
            let seen = client.get(&format!("/v1/contacts?email={address}@example.com")).await;
            assert_eq!(seen.body["contacts"][0]["marketing_status"], status, "{address}");
        }
    }
}
