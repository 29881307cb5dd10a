//! Exports, the request log and the audit log: everything once, in order, of the tenant alone.

use std::collections::BTreeSet;

use http::Method;
use http_body_util::BodyExt;
use schemas::Environment;
use serde_json::{Value, json};
use tower::ServiceExt;
use uuid::Uuid;

use crate::common::{Answer, Client, Edge, PRODUCT, settings};

/// More than two slices.
const MANY: i64 = 1_203;

async fn with_contacts(edge: &Edge, client: &Client) {
    let sql = "insert into contacts (tenant_id, id, address, first_name)
         select $1, gen_random_uuid(), 'c' || n || '@example.com', '=HYPERLINK(\"x\")' from generate_series(1, $2) n";
    stage_rig::run!(&edge.pool, sql, [client.tenant, MANY]);
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
    for data in ["contacts", "suppressions", "sends", "events", "product_events"] {
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
async fn exported_contacts_have_their_lists_tags_and_consent() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let body = json!({"email": "ann@example.com"});
    let contact = client.post("/v1/contacts", body).await.text("contact_id");
    for (kind, name) in [("list", "News"), ("list", "Friends"), ("tag", "vip"), ("list", "Gone")] {
        let audience = client.post("/v1/audiences", json!({"kind": kind, "name": name})).await.text("audience_id");
        let members =
            client.post(&format!("/v1/audiences/{audience}/members"), json!({"add": ["ann@example.com"]})).await;
        assert_eq!(members.status, 200, "{}", members.body);
        if name == "Gone" {
            assert_eq!(client.delete(&format!("/v1/audiences/{audience}"), json!({})).await.status, 200);
        }
    }
    sqlx::query("update contacts set consent_description = 'at the fair', opted_in_at = '2026-01-02T03:04:05Z'")
        .execute(&edge.pool)
        .await
        .unwrap();
    let rows = lines(&client.get("/v1/exports/contacts?format=ndjson").await);
    assert_eq!((&rows[0]["contact_id"], &rows[0]["tags"]), (&json!(contact), &json!(["vip"])));
    assert_eq!(rows[0]["lists"], json!(["Friends", "News"]));
    assert_eq!(rows[0]["consent_description"], json!("at the fair"));
    assert_eq!(rows[0]["opted_in_at"], json!("2026-01-02T03:04:05.000Z"));
    let csv = client.get("/v1/exports/contacts").await.bytes;
    assert!(String::from_utf8(csv).unwrap().contains(r#""[""Friends"",""News""]","[""vip""]""#));
}

#[tokio::test]
async fn events_are_exported_since_they_were_recorded() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    // The older the send, the newer its event: the order of keys is not that of recording.
    sqlx::query(
        "insert into events (tenant_id, send_id, id, month, type, occurred_at, recorded_at)
         select $1, first_id_at(now() + make_interval(secs => n)), gen_random_uuid(), date_trunc('month', now() at time zone 'utc')::date,
                'opened', now(), now() - make_interval(hours => n)
         from generate_series(1, 5) n",
    )
    .bind(client.tenant)
    .execute(&edge.pool)
    .await
    .unwrap();
    let all = lines(&client.get("/v1/exports/events?format=ndjson").await);
    assert_eq!(all.len(), 5);
    let since = all[2]["recorded_at"].as_str().unwrap();
    let added = lines(&client.get(&format!("/v1/exports/events?format=ndjson&recorded_since={since}")).await);
    assert_eq!(added, all[..3]);
    // What was being written then comes again.
    let at: chrono::DateTime<chrono::Utc> = since.parse().unwrap();
    for (minutes, count) in [(9, 3), (11, 2)] {
        let later = (at + chrono::TimeDelta::minutes(minutes)).to_rfc3339_opts(chrono::SecondsFormat::Millis, true);
        let path = format!("/v1/exports/events?format=ndjson&recorded_since={later}");
        assert_eq!(lines(&client.get(&path).await), all[..count], "{minutes} minutes later");
    }
    let cursor = added[0]["cursor"].as_str().unwrap();
    let path = format!("/v1/exports/events?format=ndjson&recorded_since={since}&cursor={cursor}");
    assert_eq!(lines(&client.get(&path).await), all[1..3], "continued");
    // Slices without a new event are not the end.
    sqlx::query(
        "insert into events (tenant_id, send_id, id, month, type, occurred_at, recorded_at)
         select $1, first_id_at(now() - interval '1 minute'), gen_random_uuid(), date_trunc('month', now() at time zone 'utc')::date,
                'opened', now(), now() - interval '9 hours'
         from generate_series(1, 1100)",
    )
    .bind(client.tenant)
    .execute(&edge.pool)
    .await
    .unwrap();
    let added = lines(&client.get(&format!("/v1/exports/events?format=ndjson&recorded_since={since}")).await);
    assert_eq!(added, all[..3], "after older ones");
    assert_eq!(client.get("/v1/exports/contacts?recorded_since=2026-01-01T00:00:00Z").await.status, 400);
}

#[tokio::test]
async fn events_of_products_are_exported_and_each_export_is_audited() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    client.post("/v1/contacts", json!({"email": "ann@example.com"})).await;
    let body = json!({"email": "ann@example.com", "name": "trial_started", "properties": {"plan": "pro"}, "source_event_id": "e-1"});
    let answer = client.post("/v1/events", body).await;
    assert!(answer.status.is_success(), "{}", answer.body);
    let rows = lines(&client.get("/v1/exports/product_events?format=ndjson").await);
    let row = json!({"email": rows[0]["email"], "name": rows[0]["name"], "properties": rows[0]["properties"]});
    assert_eq!(row, json!({"email": "ann@example.com", "name": "trial_started", "properties": {"plan": "pro"}}));
    let cursor = rows[0]["cursor"].as_str().unwrap();
    client.get(&format!("/v1/exports/product_events?cursor={cursor}")).await;
    client.get("/v1/exports/product_events?cursor=x").await;
    let entries = client.get("/v1/audit?action=export.begin").await.body["entries"].clone();
    let details: Vec<&Value> = entries.as_array().unwrap().iter().map(|entry| &entry["detail"]).collect();
    assert_eq!(details, [&json!({"continued": true}), &json!({"continued": false})], "{entries}");
    assert_eq!(entries[0]["subject"], json!("product_events"));
}

#[tokio::test]
async fn exported_sends_have_the_tags_and_metadata_of_their_request() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let request = with_request(&edge, &client, PRODUCT, "handled", 0, 0).await;
    sqlx::query("update requests set options = '{\"tags\": [\"receipt\"], \"metadata\": {\"order\": \"7\"}}'")
        .execute(&edge.pool)
        .await
        .unwrap();
    sqlx::query(
        "insert into sends (tenant_id, id, month, request_id, contact_id)
         values ($1, $2, date_trunc('month', now() at time zone 'utc')::date, $2, gen_random_uuid())",
    )
    .bind(client.tenant)
    .bind(request)
    .execute(&edge.pool)
    .await
    .unwrap();
    let rows = lines(&client.get("/v1/exports/sends?format=ndjson").await);
    assert_eq!((&rows[0]["tags"], &rows[0]["metadata"]), (&json!(["receipt"]), &json!({"order": "7"})));
    assert_eq!((&rows[0]["request_id"], &rows[0]["sequence_id"]), (&json!(request), &Value::Null));
}

#[tokio::test]
async fn exported_sends_name_their_step_variant_and_template() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let (batch, content, template) = (schemas::new_batch_id(), schemas::new_id(), schemas::new_id());
    let tenant = client.tenant;
    let mut db = edge.pool.begin().await.unwrap();
    // No sender, content or sequence is needed.
    stage_rig::run!(&mut *db, "set local session_replication_role = replica", []);
    let sql = "insert into batches (tenant_id, id, month, kind, lane, classification, content_id, sender_id, variant, state, size, sent)
         values ($1, $2, $3, 'sequence', 'bulk', 'marketing', $4, $4, 'B', 'done', 1, 1)";
    stage_rig::run!(&mut *db, sql, [tenant, batch, schemas::month_of(batch), content]);
    let sql = "insert into sends (tenant_id, id, month, contact_id, state)
         select tenant_id, id, month, gen_random_uuid(), 'sent' from batches where tenant_id = $1";
    stage_rig::run!(&mut *db, sql, [tenant]);
    let sql = "insert into sequence_sends (tenant_id, send_id, sequence_id, enrollment_id, step_id) values ($1, $2, $2, $2, $3)";
    stage_rig::run!(&mut *db, sql, [tenant, batch, content]);
    let sql = "insert into template_versions (tenant_id, template_id, version, content_id) values ($1, $2, 1, $3)";
    stage_rig::run!(&mut *db, sql, [tenant, template, content]);
    db.commit().await.unwrap();
    let rows = lines(&client.get("/v1/exports/sends?format=ndjson").await);
    let named = [&rows[0]["step_id"], &rows[0]["variant"], &rows[0]["template_id"]];
    assert_eq!(named, [&json!(content), &json!("B"), &json!(template)]);
}

#[tokio::test]
async fn a_slice_of_sends_reads_no_batches_but_its_own() {
    let edge = Edge::start().await;
    let tenant = edge.client().await.tenant;
    let mut rows = edge.pool.begin().await.unwrap();
    for sql in [
        // No content and no sender is needed.
        "set local session_replication_role = replica".to_owned(),
        format!(
            "insert into batches (tenant_id, id, month, kind, lane, classification, content_id, sender_id, state, size, sent)
             select '{tenant}', batch_of(gen_random_uuid()), date_trunc('month', now() at time zone 'utc'), 'one_off', 'bulk',
                    'operational', gen_random_uuid(), gen_random_uuid(), 'done', 1, 1
             from generate_series(1, 5000)"
        ),
        "insert into sends (tenant_id, id, month, contact_id, state)
         select tenant_id, id, month, gen_random_uuid(), 'sent' from batches"
            .to_owned(),
    ] {
        sqlx::query(sqlx::AssertSqlSafe(sql)).execute(&mut *rows).await.unwrap();
    }
    rows.commit().await.unwrap();
    sqlx::raw_sql("analyze batches; analyze sends").execute(&edge.pool).await.unwrap();
    let source = include_str!("../../src/api/exports/rows.rs");
    let mut statements = source.split("r#\"").filter_map(|text| text.split("\"#").next());
    let statement = statements.find(|text| text.starts_with("select s.id as send_id")).unwrap();
    let (quoted, nil) = (format!("'{tenant}'::uuid"), format!("'{}'::uuid", Uuid::nil()));
    let in_vain = edge.rows_in_vain(tenant, statement, &[quoted.as_str(), nil.as_str(), "500"]).await;
    assert!(in_vain < 500.0, "{in_vain} rows were looked at in vain");
}

/// Fetches a path as somebody without a key does.
async fn fetched(client: &Client, path: &str) -> Answer {
    client.send(http::Request::get(path).body(axum::body::Body::empty()).unwrap()).await
}

#[tokio::test]
async fn a_link_gives_one_export_of_its_tenant_without_a_key() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    with_contacts(&edge, &client).await;
    let stranger = edge.client_for(PRODUCT, Environment::Production, "tenant-2").await;
    let made = client.post("/v1/exports/contacts/links", json!({"format": "ndjson"})).await;
    let path = made.text("path");
    let answer = fetched(&client, &path).await;
    assert_eq!(answer.header("content-disposition"), "attachment; filename=\"contacts.ndjson\"");
    assert!(answer.header("cache-control").contains("no-store"));
    let rows = lines(&answer);
    assert_eq!(rows, lines(&client.get("/v1/exports/contacts?format=ndjson").await));
    let rest = json!({"format": "ndjson", "cursor": rows[0]["cursor"]});
    let rest = client.post("/v1/exports/contacts/links", rest).await.text("path");
    assert_eq!(lines(&fetched(&client, &rest).await), rows[1..], "a link continues after a broken transfer");
    let odd = client.post("/v1/exports/contacts/links", json!({"cursor": "x"})).await;
    assert_eq!(odd.faults(), [("cursor".to_owned(), "invalid".to_owned())]);
    let theirs = stranger.post("/v1/exports/contacts/links", json!({"format": "ndjson"})).await.text("path");
    assert_eq!(lines(&fetched(&client, &theirs).await), Vec::<Value>::new(), "each link is of its tenant");
    let begun = "select count(*) from audit_log where action = 'export.begin' and actor like 'key:%'";
    assert_eq!(edge.count(begun).await, 4);
    assert_eq!(edge.count("select count(*) from audit_log where action = 'export.link'").await, 3);
    // The terms of the one with the proof of the other.
    let forged = format!("{}.{}", path.rsplit_once('.').unwrap().0, theirs.rsplit_once('.').unwrap().1);
    for bad in [forged.as_str(), "/exports/x", "/exports/v1.000000.AAAA.AAAA"] {
        assert_eq!(fetched(&client, bad).await.refusal(), (404, "link_not_found"), "{bad}");
    }
    let key = edge.key(PRODUCT, Environment::Production, &["contacts:read"]).await;
    let reader = Client { key, ..client };
    assert_eq!(reader.post("/v1/exports/sends/links", json!({})).await.refusal(), (403, "missing_scope:sends:read"));
}

#[tokio::test]
async fn a_link_ends_after_an_hour_and_with_its_key() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let path = client.post("/v1/exports/contacts/links", json!({})).await.text("path");
    assert_eq!(fetched(&client, &path).await.status, 200);
    let token = path.strip_prefix("/exports/").unwrap();
    let claims = edge.ingress.tokens.open(schemas::token::Purpose::Export, token).unwrap();
    let mut terms: Value = serde_json::from_slice(&claims.rest).unwrap();
    terms["until"] = json!(chrono::Utc::now() - chrono::TimeDelta::seconds(1));
    let purpose = schemas::token::Purpose::Export;
    let over = edge.ingress.tokens.seal(purpose, claims.tenant_id, claims.send_id, terms.to_string().as_bytes());
    assert_eq!(fetched(&client, &format!("/exports/{over}")).await.refusal(), (404, "link_not_found"));
    sqlx::query("update api_keys set revoked_at = now()").execute(&edge.pool).await.unwrap();
    assert_eq!(fetched(&client, &path).await.refusal(), (404, "link_not_found"));
}

#[tokio::test]
async fn a_fetch_by_link_counts_against_the_key_that_made_the_link() {
    let mut settings = settings();
    settings.rate_limit_per_minute = 3;
    let edge = Edge::with(settings).await;
    let client = edge.client().await;
    let path = client.post("/v1/exports/contacts/links", json!({})).await.text("path");
    assert_eq!(fetched(&client, &path).await.status, 200);
    assert_eq!(client.get("/v1/exports/contacts").await.header("x-ratelimit-remaining"), "0");
    let refused = fetched(&client, &path).await;
    assert_eq!(refused.refusal(), (429, "rate_limit_exceeded"));
    assert!(!refused.header("retry-after").is_empty());
    assert_eq!(edge.count("select count(*) from audit_log where action = 'export.begin'").await, 2);
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

/// A request of transactional mail, received so many days ago, with the id of a time so many days ahead: mail that is scheduled has one.
async fn with_request(edge: &Edge, client: &Client, product: &str, state: &str, ago: i32, ahead: i32) -> Uuid {
    sqlx::query_scalar(
        "insert into requests (tenant_id, id, product, environment, kind, payload, state, received_at, announce_after)
         values ($1, (left(first_id_at(now() + make_interval(days => $5))::text, 24) || right(gen_random_uuid()::text, 12))::uuid,
                 $2, 'production', 'transactional', $6, $3, now() - make_interval(days => $4),
                 case when $3 = 'accepted' then now() end)
         returning id",
    )
    .bind(client.tenant)
    .bind(product)
    .bind(state)
    .bind(ago)
    .bind(ahead)
    .bind(json!({
        "address": "bob@example.com", "template_id": TEMPLATE,
        "data": {"reset_token": "0197a1c2-7b1e-7c44-9d3f-00000000beef", "by": {"eve@example.com": true}},
    }))
    .fetch_one(&edge.pool)
    .await
    .unwrap()
}

const TEMPLATE: &str = "0197a1c2-7b1e-7c44-9d3f-2a6b8c0d1e2f";

#[tokio::test]
async fn accepted_requests_show_ids_of_the_engine_and_no_other_product() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let id = with_request(&edge, &client, PRODUCT, "rejected", 1, 0).await;
    with_request(&edge, &client, "shop", "rejected", 1, 0).await;
    let listed = client.get("/v1/requests/accepted").await.body["requests"].clone();
    assert_eq!((listed.as_array().unwrap().len(), &listed[0]["request_id"]), (1, &json!(id)), "{listed}");
    assert_eq!(listed[0]["body"], json!({"template_id": TEMPLATE}), "neither addresses nor tokens");
}

#[tokio::test]
async fn accepted_requests_are_in_the_order_of_arrival() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let mut expected = Vec::new();
    for (state, ago, ahead) in [("accepted", 1, 0), ("rejected", 2, 30), ("handled", 3, 0), ("rejected", 40, 60)] {
        expected.push(json!(with_request(&edge, &client, PRODUCT, state, ago, ahead).await));
    }
    let ids = |body: &Value| -> Vec<Value> {
        body["requests"].as_array().unwrap().iter().map(|request| request["request_id"].clone()).collect()
    };
    let at =
        |days| (chrono::Utc::now() - chrono::TimeDelta::days(days)).to_rfc3339_opts(chrono::SecondsFormat::Secs, true);
    for (query, places) in [
        (String::new(), vec![0, 1, 2, 3]),
        ("&state=rejected".to_owned(), vec![1, 3]),
        ("&state=accepted".to_owned(), vec![0]),
        ("&kind=message".to_owned(), vec![]),
        (format!("&since={}", at(10)), vec![0, 1, 2]),
        (format!("&until={}&state=rejected", at(10)), vec![3]),
    ] {
        let (mut listed, mut cursor) = (Vec::new(), String::new());
        loop {
            let page = client.get(&format!("/v1/requests/accepted?limit=1{query}{cursor}")).await.body;
            listed.extend(ids(&page));
            let Some(next) = page["next_cursor"].as_str() else { break };
            cursor = format!("&cursor={next}");
        }
        let wanted: Vec<Value> = places.into_iter().map(|place: usize| expected[place].clone()).collect();
        assert_eq!(listed, wanted, "{query}");
    }
}
