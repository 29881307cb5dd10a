//! Exports, the request log and the audit log: everything once, in order, of the tenant alone.

use std::collections::BTreeSet;

use http::Method;
use http_body_util::BodyExt;
use schemas::Environment;
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::common::{Answer, Client, Edge, PRODUCT, settings};

/// More than two slices.
const MANY: i64 = 1_203;

async fn with_contacts(edge: &Edge, client: &Client) {
    sqlx::query(
        "insert into contacts (tenant_id, id, address, first_name)
         select $1, gen_random_uuid(), 'c' || n || '@example.com', '=HYPERLINK(\"x\")' from generate_series(1, $2) n",
    )
    .bind(client.tenant)
    .bind(MANY)
    .execute(&edge.pool)
    .await
    .unwrap();
}

fn lines(answer: &Answer) -> Vec<Value> {
    assert_eq!((answer.status.as_u16(), answer.header("content-type")), (200, "application/x-ndjson"));
    let text = String::from_utf8(answer.bytes.clone()).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[tokio::test]
async fn an_export_has_every_row_once_in_the_order_of_keys() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    with_contacts(&edge, &client).await;
    let rows = lines(&client.get("/v1/exports/contacts?format=ndjson").await);
    let ids: Vec<String> = rows.iter().map(|row| row["contact_id"].as_str().unwrap().to_owned()).collect();
    assert_eq!(ids.len(), MANY as usize);
    assert!(ids.is_sorted(), "by key");
    assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), ids.len());
    assert_eq!(rows[0]["first_name"], json!("=HYPERLINK(\"x\")"), "JSON is exact");
    // Broken off after a row, and continued.
    for place in [0, 499, 500, 1_000, MANY as usize - 1] {
        let cursor = rows[place]["cursor"].as_str().unwrap();
        let rest = lines(&client.get(&format!("/v1/exports/contacts?format=ndjson&cursor={cursor}")).await);
        assert_eq!(rest, rows[place + 1..], "after row {place}");
    }
}

#[tokio::test]
async fn a_csv_export_has_one_header_and_no_formulas() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    with_contacts(&edge, &client).await;
    let answer = client.get("/v1/exports/contacts").await;
    assert_eq!(answer.header("content-type"), "text/csv");
    let mut reader = csv::Reader::from_reader(answer.bytes.as_slice());
    let columns: Vec<String> = reader.headers().unwrap().iter().map(str::to_owned).collect();
    assert_eq!((columns[0].as_str(), columns.last().unwrap().as_str()), ("contact_id", "cursor"));
    let rows: Vec<csv::StringRecord> = reader.records().map(Result::unwrap).collect();
    assert_eq!(rows.len(), MANY as usize);
    assert!(rows.iter().all(|row| &row[3] == "'=HYPERLINK(\"x\")" && row.len() == columns.len()));
    let cursor = rows[MANY as usize - 2].get(columns.len() - 1).unwrap();
    let rest = client.get(&format!("/v1/exports/contacts?cursor={cursor}")).await;
    assert_eq!(String::from_utf8(rest.bytes).unwrap().lines().count(), 1, "a continued one has no header");
}

#[tokio::test]
async fn an_export_is_of_its_tenant_and_its_scope() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    with_contacts(&edge, &client).await;
    client.post("/v1/suppressions", json!({"email": "ann@example.com"})).await;
    let stranger = edge.client_for(PRODUCT, Environment::Production, "tenant-2").await;
    for data in ["contacts", "suppressions", "sends", "events"] {
        let path = format!("/v1/exports/{data}?format=ndjson");
        assert_eq!(lines(&stranger.get(&path).await), Vec::<Value>::new(), "{data}");
    }
    let theirs = lines(&client.get("/v1/exports/contacts?format=ndjson").await)[0]["cursor"].clone();
    let path = format!("/v1/exports/contacts?format=ndjson&cursor={}", theirs.as_str().unwrap());
    assert_eq!(lines(&stranger.get(&path).await), Vec::<Value>::new(), "a cursor opens nothing");
    assert_eq!(
        lines(&client.get("/v1/exports/suppressions?format=ndjson").await)[0]["email"],
        json!("ann@example.com")
    );
    for path in ["/v1/exports/contacts?format=xml", "/v1/exports/contacts?cursor=x", "/v1/exports/contacts?limit=5"] {
        assert_eq!(client.get(path).await.status, 400, "{path}");
    }
    let key = edge.key(PRODUCT, Environment::Production, &["contacts:read"]).await;
    let reader = Client { key, ..client };
    assert_eq!(reader.get("/v1/exports/contacts").await.status, 200);
    assert_eq!(reader.get("/v1/exports/sends").await.refusal(), (403, "missing_scope:sends:read"));
}

#[tokio::test]
async fn a_slow_reader_of_an_export_holds_no_connection() {
    let edge = Edge::with_connections(settings(), 2).await;
    let client = edge.client().await;
    with_contacts(&edge, &client).await;
    let target = format!("/v1/exports/contacts?product_tenant_id={}", client.product_tenant_id);
    let mut open = Vec::new();
    for _ in 0..8 {
        let request = client.signed(Method::GET, &target, b"");
        let response = client.router.clone().oneshot(request).await.unwrap();
        let mut body = response.into_body();
        assert!(body.frame().await.unwrap().is_ok(), "the first slice");
        open.push(body);
    }
    assert_eq!(client.get("/v1/contacts").await.status, 200, "eight exports wait for their readers");
    for body in open {
        let rest = body.collect().await.unwrap().to_bytes();
        assert_eq!(rest.iter().filter(|byte| **byte == b'\n').count(), MANY as usize - 500, "the other slices");
    }
}

#[tokio::test]
async fn the_audit_log_is_filtered_and_names_no_operator() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    for zone in ["Europe/Paris", "Europe/Rome"] {
        client.patch("/v1/tenant", json!({"timezone": zone})).await;
    }
    client.post("/v1/keys", json!({"label": "K", "scopes": ["contacts:read"]})).await;
    sqlx::query(
        "insert into audit_log (id, tenant_id, actor, action, subject, reason, at)
         values (gen_random_uuid(), $1, 'cli:ann@ops', 'tenant.pause', 'x', 'a complaint', now() - interval '1 day')",
    )
    .bind(client.tenant)
    .execute(&edge.pool)
    .await
    .unwrap();
    let first = client.get("/v1/audit?limit=2").await.body;
    let actions = |body: &Value| -> Vec<String> {
        let entries = body["entries"].as_array().unwrap();
        entries.iter().map(|entry| entry["action"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(actions(&first), ["key.issue", "tenant.changed"]);
    let next = client.get(&format!("/v1/audit?limit=2&cursor={}", first["next_cursor"].as_str().unwrap())).await.body;
    assert_eq!(actions(&next), ["tenant.changed", "tenant.pause"]);
    let operator = &next["entries"][1];
    assert_eq!(operator["actor"], json!("operator"));
    assert!(!operator.to_string().contains("ann@ops") && !operator.to_string().contains("complaint"), "{operator}");
    assert_eq!(actions(&client.get("/v1/audit?action=key.issue").await.body), ["key.issue"]);
    let hour_ago =
        (chrono::Utc::now() - chrono::TimeDelta::hours(1)).to_rfc3339_opts(chrono::SecondsFormat::Secs, true);
    assert_eq!(actions(&client.get(&format!("/v1/audit?until={hour_ago}")).await.body), ["tenant.pause"]);
    assert_eq!(actions(&client.get(&format!("/v1/audit?since={hour_ago}")).await.body).len(), 3);
    let stranger = edge.client_for(PRODUCT, Environment::Production, "tenant-2").await;
    assert_eq!(actions(&stranger.get("/v1/audit").await.body), Vec::<String>::new());
}

#[tokio::test]
async fn the_request_log_shows_no_texts_and_no_other_product() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    sqlx::query(
        "insert into requests (tenant_id, id, product, environment, kind, payload, state, outcome, handled_at)
         select $1, (lpad(to_hex(1700000000000), 12, '0') || lpad(n::text, 20, '0'))::uuid, p, 'production', 'transactional',
                '{\"address\": \"bob@example.com\"}', 'rejected', 'template_not_found', now()
         from unnest(array['crm', 'crm', 'shop']) with ordinality as u (p, n)",
    )
    .bind(client.tenant)
    .execute(&edge.pool)
    .await
    .unwrap();
    let listed = client.get("/v1/requests").await;
    let requests = listed.body["requests"].as_array().unwrap();
    assert_eq!((requests.len(), &requests[0]["state"]), (2, &json!("rejected")), "{}", listed.body);
    assert!(!listed.body.to_string().contains("example.com"), "{}", listed.body);
    assert_eq!(requests[0]["body"], json!({"address": "[redacted]"}));
    let first = client.get("/v1/requests?kind=transactional&limit=1").await.body;
    let cursor = first["next_cursor"].as_str().unwrap();
    let next = client.get(&format!("/v1/requests?kind=transactional&limit=1&cursor={cursor}")).await.body;
    assert_ne!(first["requests"][0]["request_id"], next["requests"][0]["request_id"]);
    assert_eq!(next["next_cursor"], Value::Null);
    assert_eq!(client.get("/v1/requests?state=accepted").await.body["requests"], json!([]));
    let old = client.get("/v1/requests?until=2024-01-01T00:00:00Z").await.body;
    assert_eq!(old["requests"].as_array().unwrap().len(), 2);
}
