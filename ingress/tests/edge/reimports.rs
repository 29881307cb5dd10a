//! `/v1/imports` of what `/v1/exports` writes: contacts and suppressions.

use schemas::Environment;
use serde_json::{Map, Value, json};

use crate::common::{Answer, Client, Edge, PRODUCT};

const PATH: &str = "/v1/imports";

async fn import(client: &Client, csv: &str) -> Answer {
    let answer = client.post(PATH, json!({"csv": csv})).await;
    assert_eq!(answer.body["status"], "completed", "{}", answer.body);
    answer
}

async fn import_suppressions(client: &Client, csv: &str) -> Value {
    client.post(PATH, json!({"csv": csv, "operation": "suppression_import"})).await.body
}

/// The rows of an export, without what each tenant has of its own.
async fn rows(client: &Client, of: &str, own: &[&str]) -> Vec<Value> {
    let lines = String::from_utf8(client.get(&format!("/v1/exports/{of}?format=ndjson")).await.bytes).unwrap();
    let mut rows: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for row in &mut rows {
        for own in own {
            row.as_object_mut().unwrap().remove(*own);
        }
    }
    rows.sort_by_key(|row| (row["email"].to_string(), row["reason"].to_string()));
    rows
}

/// What a tenant's contacts are.
async fn exported(client: &Client) -> Vec<Value> {
    let own = ["contact_id", "cursor", "created_at", "updated_at", "source", "consent_source", "consent_description"];
    rows(client, "contacts", &own).await
}

/// What a tenant's suppressions are.
async fn suppressed(client: &Client) -> Vec<Value> {
    rows(client, "suppressions", &["suppression_id", "cursor", "created_at", "source", "send_id"]).await
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
async fn an_export_of_suppressions_imports_as_the_same_suppressions() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let other = edge.client_for(PRODUCT, Environment::Production, "tenant-2").await;
    // A field of the tenant's own is no column of such a file.
    let field = json!({"key": "send_id", "label": "Send", "type": "number"});
    assert_eq!(other.post("/v1/fields", field).await.status, 201);
    for suppression in [
        json!({"email": "ann@example.com", "reason": "unsubscribe"}),
        json!({"email": "ann@example.com", "reason": "complaint", "note": "=asked,\nand \"again\""}),
        json!({"email": "bob@example.com", "reason": "hard_bounce"}),
        json!({"email": "cid@example.com", "scope": "marketing", "expires_at": "2099-01-02T03:04:05Z", "note": "a\\b\tc"}),
        json!({"email": "+dan@example.com", "reason": "import", "scope": "marketing"}),
    ] {
        let made = client.post("/v1/suppressions", suppression).await;
        assert_eq!(made.status, 201, "{}", made.body);
    }
    // Of soft bounces, and one that has expired.
    sqlx::query(
        "insert into suppressions (tenant_id, id, address, reason, scope, source, send_id, expires_at)
         values ($1, gen_random_uuid(), 'eve@example.com', 'invalid', 'marketing', 'engagement', gen_random_uuid(),
                 now() + interval '9 days'),
                ($1, gen_random_uuid(), 'fay@example.com', 'manual', 'all', 'api', null, now() - interval '1 day')",
    )
    .bind(client.tenant)
    .execute(&edge.pool)
    .await
    .unwrap();
    let csv = String::from_utf8(client.get("/v1/exports/suppressions").await.bytes).unwrap();
    let before = suppressed(&client).await;
    let counts = |answer: &Value| {
        ["total_rows", "valid", "created", "unchanged", "skipped", "duplicates", "invalid", "suppressed"]
            .map(|count| answer["counts"][count].as_i64().unwrap())
    };
    let answer = import_suppressions(&other, &csv).await;
    assert_eq!(counts(&answer), [7, 7, 6, 0, 1, 0, 0, 5], "{answer}");
    let in_force: Vec<Value> = before.iter().filter(|row| row["email"] != "fay@example.com").cloned().collect();
    assert_eq!(in_force.len(), 6);
    assert_eq!(suppressed(&other).await, in_force);
    let again = import_suppressions(&client, &csv).await;
    assert_eq!(counts(&again), [7, 7, 0, 6, 1, 0, 0, 5], "{again}");
    assert_eq!(suppressed(&client).await, before);
}

#[tokio::test]
async fn a_row_of_suppressions_weakens_none_and_a_bad_one_suppresses() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    client.post("/v1/suppressions", json!({"email": "ann@example.com"})).await;
    let long = "x".repeat(1_001);
    let csv = format!(
        "email,reason,scope,note,expires_at\n\
         ann@example.com,manual,marketing,,2099-01-01\n\
         bad-reason@example.com,because,,,\n\
         bad-scope@example.com,,half,,\n\
         bad-end@example.com,,,,soon\n\
         bad-pair@example.com,complaint,marketing,,\n\
         bad-note@example.com,,marketing,{long},2099-01-01\n\
         cid@example.com,,all,,2099-01-01\n\
         cid@example.com,,marketing,later,\n\
         cid@example.com,,,,2001-01-01\n\
         nobody,,,,\n"
    );
    let answer = import_suppressions(&client, &csv).await;
    assert_eq!(answer["status"], "completed_with_errors");
    let errors: Vec<(&Value, &Value, &Value)> = answer["errors"]
        .as_array()
        .unwrap()
        .iter()
        .map(|error| (&error["row"], &error["column"], &error["code"]))
        .collect();
    assert_eq!(
        json!(errors),
        json!([
            [3, "reason", "unknown_reason"],
            [4, "scope", "unknown_scope"],
            [5, "expires_at", "not_a_time"],
            [6, "scope", "not_allowed"],
            [7, "note", "too_long"],
            [11, "email", "missing_at"],
        ])
    );
    let counts = &answer["counts"];
    assert_eq!(
        json!([counts["valid"], counts["created"], counts["unchanged"], counts["duplicates"], counts["skipped"]]),
        json!([2, 6, 1, 2, 0])
    );
    let expected = [
        json!(["ann", "manual", "all", null, null]),
        json!(["bad-end", "import", "all", null, null]),
        json!(["bad-note", "import", "marketing", null, "2099-01-01T00:00:00.000Z"]),
        json!(["bad-pair", "complaint", "all", null, null]),
        json!(["bad-reason", "import", "all", null, null]),
        json!(["bad-scope", "import", "all", null, null]),
        json!(["cid", "import", "all", "later", null]),
    ];
    let found = suppressed(&client).await;
    let found: Vec<Value> = found
        .iter()
        .map(|row| {
            let name = row["email"].as_str().unwrap().trim_end_matches("@example.com");
            json!([name, row["reason"], row["scope"], row["note"], row["expires_at"]])
        })
        .collect();
    assert_eq!(found, expected);
    // In a file of contacts these columns say nothing.
    let contacts = import(&client, "email,reason,scope\nann@example.com,because,half\n").await;
    assert_eq!(contacts.body["ignored_columns"], json!(["reason", "scope"]));
}

#[tokio::test]
async fn each_reason_of_an_address_in_a_list_counts_by_either_name_of_the_column() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    for (address, column) in [("ann@example.com", "reason"), ("bob@example.com", "suppression_reason")] {
        let csv = format!("email,{column}\n{address},hard_bounce\n{address},unsubscribe\n");
        let answer = import_suppressions(&client, &csv).await;
        assert_eq!(json!([answer["counts"]["created"], answer["counts"]["duplicates"]]), json!([2, 0]), "{answer}");
    }
    assert_eq!(edge.count("select count(*) from suppressions where reason = 'unsubscribe'").await, 2);
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
