//! `POST /v1/contacts/batch`, and `POST /v1/contacts` by both keys.

use std::time::Duration;

use schemas::Environment;
use serde_json::{Value, json};

use crate::common::{Client, Edge, PRODUCT};

async fn upsert(client: &Client, contacts: Value) -> Value {
    let answer = client.post("/v1/contacts/batch", json!({"contacts": contacts})).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.body
}

/// The results, with the error codes of refused rows.
fn results(body: &Value) -> Vec<String> {
    let result = |row: &Value| match row["error"].as_str() {
        Some(error) => format!("{error} at {}", row["fields"][0]["path"].as_str().unwrap()),
        None => row["result"].as_str().unwrap().to_owned(),
    };
    body["results"].as_array().unwrap().iter().map(result).collect()
}

async fn contact(client: &Client, query: &str) -> Value {
    client.get(&format!("/v1/contacts?{query}")).await.body["contacts"][0].clone()
}

#[tokio::test]
async fn a_bad_row_of_a_batch_costs_only_itself() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    client.post("/v1/fields", json!({"key": "seats", "label": "Seats", "type": "number"})).await;
    let unknown = schemas::new_id();
    let rows = json!([
        {"email": "ann@example.com", "first_name": "Ann", "fields": {"seats": 3}, "tags": ["vip"], "lists": ["News"]},
        {"email": "nobody"},
        {"email": "bob@example.com", "fields": {"seats": "three"}},
        {"email": "cid@example.com", "colour": "red"},
        "eve@example.com",
        {"email": "dan@example.com", "lists": ["Other", unknown]},
        {"first_name": "Nobody"},
        {"external_id": "user-9"},
        {"email": "ANN@example.com"},
        {"email": "eve@example.com", "external_id": "user-5", "tags": ["late"]},
        {"email": "fay@example.com", "consent": {"at": "0000-01-01T00:00:00Z"}},
    ]);
    let body = upsert(&client, rows).await;
    let expected = [
        "created",
        "validation_failed at email",
        "validation_failed at fields.seats",
        "validation_failed at colour",
        "validation_failed at ",
        "list_not_found at lists",
        "validation_failed at email",
        "validation_failed at email",
        "validation_failed at email",
        "created",
        "validation_failed at consent.at",
    ];
    assert_eq!(results(&body), expected);
    assert_eq!(body["counts"], json!({"created": 2, "updated": 0, "unchanged": 0, "refused": 9}));
    assert_eq!(edge.count("select count(*) from contacts").await, 2);
    assert_eq!(edge.count("select count(*) from audiences").await, 3, "a refused row makes no list");
    let ann = contact(&client, "email=ann@example.com").await;
    assert_eq!((&ann["tags"][0]["name"], &ann["lists"][0]["name"]), (&json!("vip"), &json!("News")));
    assert_eq!(ann["fields"], json!({"seats": 3}));
    let eve = contact(&client, "email=eve@example.com").await;
    assert_eq!(eve["tags"][0]["name"], "late", "after refused rows, too");
}

#[tokio::test]
async fn a_row_updates_what_it_names_and_says_when_nothing_changed() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let row = json!({"email": "ann@example.com", "external_id": "user-1", "first_name": "Ann", "phone": "+1 2", "tags": ["a"]});
    assert_eq!(results(&upsert(&client, json!([row])).await), ["created"]);
    assert_eq!(results(&upsert(&client, json!([row])).await), ["unchanged"]);
    let change = json!({"external_id": "user-1", "first_name": null, "company": "Acme"});
    assert_eq!(results(&upsert(&client, json!([change])).await), ["updated"]);
    let ann = contact(&client, "external_id=user-1").await;
    assert_eq!(
        (&ann["email"], &ann["first_name"], &ann["phone"], &ann["company"]),
        (&json!("ann@example.com"), &Value::Null, &json!("+1 2"), &json!("Acme"))
    );
    assert_eq!(results(&upsert(&client, json!([{"external_id": "user-1", "tags": ["b"]}])).await), ["updated"]);
    assert_eq!(results(&upsert(&client, json!([{"external_id": "user-1", "tags": ["a", "b"]}])).await), ["unchanged"]);
}

#[tokio::test]
async fn both_keys_of_a_contact_must_agree() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let rows = json!([{"email": "ann@example.com", "external_id": "1"}, {"email": "bob@example.com"}]);
    upsert(&client, rows).await;
    let rows = json!([
        {"email": "bob@example.com", "external_id": "1"},
        {"email": "ann@example.com", "external_id": "2"},
        {"email": "new@example.com", "external_id": "1"},
        {"email": "bob@example.com", "external_id": "2"},
    ]);
    let expected = [
        "external_id_taken at external_id",
        "external_id_differs at external_id",
        "address_differs at email",
        "updated",
    ];
    assert_eq!(results(&upsert(&client, rows).await), expected);
    let single = json!({"email": "new@example.com", "external_id": "1"});
    assert_eq!(client.post("/v1/contacts", single).await.refusal(), (409, "address_differs"));
    let bob = contact(&client, "external_id=2").await["contact_id"].as_str().unwrap().to_owned();
    let path = format!("/v1/contacts/{bob}");
    assert_eq!(client.patch(&path, json!({"external_id": "1"})).await.refusal(), (409, "external_id_taken"));
    assert_eq!(client.patch(&path, json!({"external_id": "3"})).await.body["contact"]["external_id"], "3");
    // The same id of another tenant is another contact.
    let other = edge.client_for("shop", schemas::Environment::Production, "another").await;
    assert_eq!(results(&upsert(&other, json!([{"email": "x@example.com", "external_id": "1"}])).await), ["created"]);
}

#[tokio::test]
async fn a_batch_lifts_no_opt_out_and_records_evidence() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let evidence = json!({"ip": "203.0.113.9", "text": "Yes, send me news", "url": "https://example.com/join"});
    let consent = json!({"basis": "opt_in", "at": "2026-01-02T03:04:05Z", "source": "form", "evidence": evidence});
    let rows = json!([
        {"email": "ann@example.com", "marketing_status": "pending"},
        {"email": "bob@example.com", "marketing_status": "unsubscribed"},
        {"email": "cid@example.com", "marketing_status": "pending"},
    ]);
    upsert(&client, rows).await;
    sqlx::query(
        "insert into suppressions (tenant_id, id, address, reason, scope, source)
         values ($1, $2, 'cid@example.com', 'unsubscribe', 'marketing', 'recipient')",
    )
    .bind(client.tenant)
    .bind(schemas::new_id())
    .execute(&edge.pool)
    .await
    .unwrap();
    let subscribed = |email: &str| json!({"email": email, "marketing_status": "subscribed", "consent": consent});
    let rows = json!([subscribed("ann@example.com"), subscribed("bob@example.com"), subscribed("cid@example.com")]);
    let expected =
        ["updated", "contact_unsubscribed at marketing_status", "unsubscribed_by_recipient at marketing_status"];
    assert_eq!(results(&upsert(&client, rows).await), expected);
    let ann = contact(&client, "email=ann@example.com").await;
    assert_eq!(
        (&ann["marketing_status"], &ann["consent"]["evidence"]["text"]),
        (&json!("subscribed"), &evidence["text"])
    );
    for (email, status) in [("bob@example.com", "unsubscribed"), ("cid@example.com", "pending")] {
        let contact = contact(&client, &format!("email={email}")).await;
        assert_eq!((&contact["marketing_status"], &contact["consent"]["basis"]), (&json!(status), &Value::Null));
    }
    assert_eq!(edge.count("select count(*) from suppressions").await, 1);
    assert_eq!(edge.count("select count(*) from audit_log where action = 'contact.marketing_status'").await, 1);
}

#[tokio::test]
async fn an_opt_out_by_the_recipient_outlives_the_contact() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let made = client.post("/v1/contacts", json!({"email": "ann@example.com"})).await.text("contact_id");
    sqlx::query(
        "insert into suppressions (tenant_id, id, address, reason, scope, source)
         select $1, id, address, 'unsubscribe', 'marketing', 'recipient'
         from unnest($2::uuid[], array['ann@example.com', 'bob@example.com']) as s (id, address)",
    )
    .bind(client.tenant)
    .bind([(); 2].map(|()| schemas::new_id()).to_vec())
    .execute(&edge.pool)
    .await
    .unwrap();
    assert_eq!(client.delete(&format!("/v1/contacts/{made}"), json!({"erase": true})).await.status, 200);
    let subscribed = json!({"email": "ann@example.com", "marketing_status": "subscribed"});
    assert_eq!(client.post("/v1/contacts", subscribed).await.refusal(), (409, "unsubscribed_by_recipient"));
    let asked = json!({"email": "ann@example.com", "require_verification": true});
    assert_eq!(client.post("/v1/contacts", asked).await.status, 201);
    client.post("/v1/imports", json!({"csv": "email\nbob@example.com\ndan@example.com\n"})).await;
    let statuses: Vec<(String, String)> =
        sqlx::query_as("select address, marketing_status from contacts where status = 'active' order by address")
            .fetch_all(&edge.pool)
            .await
            .unwrap();
    let expected = [("ann", "unsubscribed"), ("bob", "unsubscribed"), ("dan", "subscribed")];
    assert_eq!(statuses, expected.map(|(name, status)| (format!("{name}@example.com"), status.to_owned())));
    assert_eq!(edge.count("select count(*) from confirmations").await, 0);
}

#[tokio::test]
async fn batches_at_once_make_each_contact_once() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let rows: Vec<Value> =
        (0..50).map(|n| json!({"email": format!("c{n}@example.com"), "external_id": n.to_string()})).collect();
    let bodies = (0..6).map(|turn| {
        let (client, mut rows) = (client.clone(), rows.clone());
        rows.rotate_left(turn * 7);
        async move { upsert(&client, json!(rows)).await }
    });
    let bodies = futures::future::join_all(bodies).await;
    let created: u64 = bodies.iter().map(|body| body["counts"]["created"].as_u64().unwrap()).sum();
    let refused: u64 = bodies.iter().map(|body| body["counts"]["refused"].as_u64().unwrap()).sum();
    assert_eq!((created, refused), (50, 0));
    assert_eq!(edge.count("select count(*) from contacts").await, 50);
}

#[tokio::test]
async fn a_batch_of_a_thousand_takes_a_handful_of_statements() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let row =
        |n: usize| json!({"email": format!("c{n}@example.com"), "first_name": "C", "tags": ["a"], "lists": ["b"]});
    let body = upsert(&client, json!((0..1_000).map(row).collect::<Vec<_>>())).await;
    assert_eq!(body["counts"]["created"], 1_000);
    assert_eq!(edge.count("select count(*) from audience_members").await, 2_000);
    let audited: Value = sqlx::query_scalar("select detail from audit_log where action = 'contact.batch_upserted'")
        .fetch_one(&edge.pool)
        .await
        .unwrap();
    assert_eq!(audited, body["counts"], "one entry for the call");
    for rows in [json!([]), json!((0..1_001).map(row).collect::<Vec<_>>())] {
        let refused = client.post("/v1/contacts/batch", json!({"contacts": rows})).await;
        assert_eq!(refused.refusal(), (400, "validation_failed"));
    }
}

#[tokio::test]
async fn an_answer_names_so_many_faults_and_no_more() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let contact = json!({"email": "ann@example.com", "tags": vec![""; 1_000]});
    let alone = client.post("/v1/contacts", contact.clone()).await;
    assert_eq!((alone.status.as_u16(), alone.faults().len()), (400, 100));
    let body = upsert(&client, json!([contact])).await;
    assert_eq!(body["results"][0]["fields"].as_array().unwrap().len(), 10);
}

#[tokio::test]
async fn a_single_contact_is_updated_when_the_caller_asks() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let body = |first_name: &str, on_existing: &str| json!({"email": "ann@example.com", "first_name": first_name, "on_existing": on_existing});
    let made = client.post("/v1/contacts", body("Ann", "update")).await;
    assert_eq!((made.status.as_u16(), &made.body["result"]), (201, &json!("created")));
    let kept = client.post("/v1/contacts", body("Eve", "keep")).await;
    assert_eq!((kept.status.as_u16(), &kept.body["result"]), (200, &json!("unchanged")));
    let updated = client.post("/v1/contacts", body("Eve", "update")).await;
    assert_eq!((updated.status.as_u16(), &updated.body["result"]), (200, &json!("updated")));
    assert_eq!(contact(&client, "email=ann@example.com").await["first_name"], "Eve");
}

#[tokio::test]
async fn an_opt_out_counts_for_a_contact_that_is_kept() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let id =
        client.post("/v1/contacts", json!({"email": "ann@example.com", "first_name": "Ann"})).await.text("contact_id");
    assert_eq!(client.delete(&format!("/v1/contacts/{id}"), json!({})).await.status, 200);
    let body = json!({"email": "ann@example.com", "first_name": "A.", "marketing_status": "unsubscribed"});
    let left = client.post("/v1/contacts", body).await;
    assert_eq!((left.status.as_u16(), &left.body["result"]), (200, &json!("updated")), "{}", left.body);
    let kept = contact(&client, "email=ann@example.com").await;
    assert_eq!((&kept["status"], &kept["marketing_status"]), (&json!("active"), &json!("unsubscribed")));
    assert_eq!(kept["first_name"], "Ann");
}

#[tokio::test]
async fn writes_that_wait_for_their_tenants_rows_leave_connections_to_others() {
    let edge = Edge::start().await;
    let (busy, other) = (edge.client().await, edge.client_for(PRODUCT, Environment::Production, "tenant-2").await);
    upsert(&busy, json!([{"email": "ann@example.com"}])).await;
    let mut import = edge.pool.begin().await.unwrap();
    sqlx::query("select from contacts for no key update").execute(&mut *import).await.unwrap();
    let changed = json!({"email": "ann@example.com", "first_name": "Ann"});
    let waiting = futures::future::join_all((0..10).map(|_| busy.post("/v1/contacts", changed.clone())));
    let others = async {
        edge.until_waiting(4).await;
        let made = other.post("/v1/contacts", json!({"email": "ann@example.com"}));
        let made = tokio::time::timeout(Duration::from_secs(8), made).await;
        import.rollback().await.unwrap();
        made.unwrap().status.as_u16()
    };
    let (changed, made) = tokio::join!(waiting, others);
    assert_eq!(made, 201);
    assert!(changed.iter().all(|answer| answer.status.is_success()));
}
