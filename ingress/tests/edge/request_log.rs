//! The request log: which calls of a tenant came, and how each was answered.

use http::Method;
use schemas::Environment;
use serde_json::{Value, json};
use sqlx::AssertSqlSafe;
use tokio_util::sync::CancellationToken;

use crate::common::{Client, Edge, PRODUCT, TENANT, settings};

/// The log as the client reads it, with a query.
async fn log(client: &Client, query: &str) -> Vec<Value> {
    let answer = client.get(&format!("/v1/requests?{query}")).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.body["requests"].as_array().unwrap().clone()
}

/// Operation, status, code and field of each call, newest first.
fn brief(calls: &[Value]) -> Vec<Value> {
    calls.iter().map(|call| json!([call["operation"], call["status"], call["error"], call["field"]])).collect()
}

#[tokio::test]
async fn a_refused_call_is_in_the_log_with_its_code_and_field() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let refused = client.post("/v1/contacts", json!({"email": "nobody"})).await;
    client.get(&format!("/v1/contacts/{}", schemas::new_id())).await;
    assert_eq!(client.get("/v1/contacts").await.status, 200);
    assert_eq!(client.post("/v1/contacts", json!({"email": "ann@example.com"})).await.status, 201);
    edge.wait_for_calls(3).await;
    let calls = log(&client, "").await;
    assert_eq!(
        brief(&calls),
        [
            json!(["createContact", 201, null, null]),
            json!(["getContact", 404, "contact_not_found", null]),
            json!(["createContact", 400, "validation_failed", "email"]),
        ]
    );
    assert_eq!(calls[2]["request_id"], refused.header("x-request-id"));
    assert_eq!((&calls[2]["via"], &calls[2]["replayed"]), (&json!("http"), &json!(false)));
}

#[tokio::test]
async fn the_log_is_read_in_pages_and_by_what_was_called_and_answered() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let other = Client { key: edge.key(PRODUCT, Environment::Production, schemas::scope::ALL).await, ..client.clone() };
    other.post("/v1/contacts", json!({"email": "nobody"})).await;
    edge.wait_for_calls(1).await;
    let begun = chrono::Utc::now().to_rfc3339_opts(chrono::SecondsFormat::Micros, true);
    client.post("/v1/contacts", json!({"email": "ann@example.com"})).await;
    client.post("/v1/audiences", json!({"kind": "list", "name": "News"})).await;
    edge.wait_for_calls(3).await;
    let all = log(&client, "").await;
    let key_of = |call: &Value| call["key_id"].as_str().unwrap().to_owned();
    for (query, places) in [
        (String::new(), vec![0, 1, 2]),
        ("&operation=createContact".to_owned(), vec![1, 2]),
        ("&status=201".to_owned(), vec![0, 1]),
        ("&status=400".to_owned(), vec![2]),
        ("&refused=true".to_owned(), vec![2]),
        ("&refused=false".to_owned(), vec![0, 1]),
        (format!("&key_id={}", key_of(&all[2])), vec![2]),
        (format!("&key_id={}&operation=createAudience", key_of(&all[0])), vec![0]),
        (format!("&since={begun}"), vec![0, 1]),
        (format!("&until={begun}"), vec![2]),
    ] {
        let (mut listed, mut cursor) = (Vec::new(), String::new());
        loop {
            let page = client.get(&format!("/v1/requests?limit=1{query}{cursor}")).await.body;
            listed.extend(page["requests"].as_array().unwrap().clone());
            let Some(next) = page["next_cursor"].as_str() else { break };
            cursor = format!("&cursor={next}");
        }
        let wanted: Vec<Value> = places.into_iter().map(|place: usize| all[place].clone()).collect();
        assert_eq!(listed, wanted, "{query}");
    }
    assert_eq!(client.get("/v1/requests?status=7").await.refusal(), (400, "validation_failed"));
}

#[tokio::test]
async fn a_replay_is_marked_and_keeps_its_code() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    for body in [json!({"email": "ann@example.com"}), json!({"email": "nobody"})] {
        for _ in 0..2 {
            client.post_once(&format!("key-{}", body["email"].as_str().unwrap()), "/v1/contacts", body.clone()).await;
        }
    }
    edge.wait_for_calls(4).await;
    let calls = log(&client, "").await;
    let replays: Vec<_> =
        calls.iter().map(|call| (call["replayed"].as_bool().unwrap(), call["field"].as_str())).collect();
    assert_eq!(replays, [(true, Some("email")), (false, Some("email")), (true, None), (false, None)]);
    assert_eq!(calls[0]["error"], "validation_failed");
}

#[tokio::test]
async fn calls_of_other_tenants_products_and_environments_are_not_shown() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let strangers = [
        edge.client_for(PRODUCT, Environment::Production, "tenant-2").await,
        edge.client_for("shop", Environment::Production, "tenant-3").await,
        edge.client_for(PRODUCT, Environment::Sandbox, TENANT).await,
    ];
    // A tenant that two products share.
    sqlx::query("update tenant_links set tenant_id = $1 where product_tenant_id = 'tenant-3'")
        .bind(client.tenant)
        .execute(&edge.pool)
        .await
        .unwrap();
    client.post("/v1/contacts", json!({"email": "ann@example.com"})).await;
    for stranger in &strangers {
        stranger.post("/v1/audiences", json!({"kind": "list", "name": "News"})).await;
    }
    edge.wait_for_calls(4).await;
    assert_eq!(log(&client, "").await.len(), 1);
    for stranger in &strangers {
        let calls = log(stranger, "").await;
        assert_eq!(calls.iter().map(|call| call["operation"].clone()).collect::<Vec<_>>(), ["createAudience"]);
    }
}

#[tokio::test]
async fn nothing_that_a_call_says_reaches_the_log() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let marked = "marker-7f3a@example.com";
    let field = json!({"key": "marker_7f3a", "label": "marker-7f3a", "type": "number"});
    client.post("/v1/fields", field).await;
    for body in [
        json!({"email": marked, "first_name": "marker-7f3a"}),
        json!({"email": format!("{marked}@"), "external_id": "marker-7f3a"}),
        json!({"email": "ann@example.com", marked: 1}),
        json!({"email": "ann@example.com", "consent": {marked: 1}}),
        json!({"email": "ann@example.com", "fields": {"marker_7f3a": "marker-7f3a"}}),
        json!({"email": "ann@example.com", "timezone": "marker-7f3a"}),
    ] {
        client.post_once("marker-7f3a", "/v1/contacts", body).await;
    }
    client.get("/v1/contacts/marker-7f3a").await;
    client.get("/v1/contacts?marker-7f3a=1").await;
    client.get("/v1/contacts?status=marker-7f3a").await;
    client.write(Method::POST, "/v1/contacts", json!({}), &[("idempotency-key", "marker 7f3a")]).await;
    edge.wait_for_calls(11).await;
    let quoted: Vec<String> = sqlx::query_scalar("select r::text from request_log r where r::text ~ 'marker|7f3a|@'")
        .fetch_all(&edge.pool)
        .await
        .unwrap();
    assert_eq!(quoted, Vec::<String>::new());
}

#[tokio::test]
async fn a_call_that_is_refused_before_its_tenant_is_looked_up_is_in_its_log() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let poor = Client { key: edge.key(PRODUCT, Environment::Production, &["contacts:read"]).await, ..client.clone() };
    poor.post("/v1/contacts", json!({"email": "ann@example.com"})).await;
    poor.get("/v1/audiences").await;
    let body = json!({"product_tenant_id": TENANT, "email": "ann@example.com"}).to_string();
    let mut request = client.signed(Method::POST, "/v1/contacts", body.as_bytes());
    request.headers_mut().insert("x-service-signature", "sha256=00".parse().unwrap());
    assert_eq!(client.send(request).await.refusal(), (401, "invalid_signature"));
    let mut request = client.signed(Method::POST, "/v1/contacts", body.as_bytes());
    request.headers_mut().insert("content-type", "text/plain".parse().unwrap());
    client.send(request).await;
    let mismatch = json!({"email": "ann@example.com", "engine_tenant_id": schemas::new_id()});
    client.post("/v1/contacts", mismatch).await;
    // Of a tenant that is not linked, and of none.
    client.post("/v1/contacts", json!({"product_tenant_id": "tenant-9", "email": "ann@example.com"})).await;
    client.send(client.signed(Method::POST, "/v1/contacts", b"{")).await;
    edge.wait_for_calls(5).await;
    let calls = log(&client, "").await;
    let codes: Vec<_> = calls.iter().map(|call| call["error"].as_str().unwrap()).collect();
    assert_eq!(
        codes,
        [
            "tenant_mismatch",
            "unsupported_media_type",
            "invalid_signature",
            "missing_scope:audiences:read",
            "missing_scope:contacts:write",
        ]
    );
}

#[tokio::test]
async fn a_call_over_the_rate_limit_is_in_the_log() {
    let mut settings = settings();
    settings.rate_limit_per_minute = 1;
    let edge = Edge::with(settings).await;
    let client = edge.client().await;
    client.post("/v1/contacts", json!({"email": "ann@example.com"})).await;
    assert_eq!(client.post("/v1/contacts", json!({"email": "bob@example.com"})).await.status, 429);
    edge.wait_for_calls(2).await;
    assert_eq!(edge.count("select count(*) from request_log where error = 'rate_limit_exceeded'").await, 1);
}

#[tokio::test]
async fn every_answered_call_is_in_the_log_when_the_process_has_stopped() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let shutdown = CancellationToken::new();
    let serving = ingress::serve(edge.ingress.clone(), shutdown.clone()).await.unwrap();
    for _ in 0..3 {
        client.post("/v1/contacts", json!({"email": "nobody"})).await;
    }
    shutdown.cancel();
    serving.finished().await;
    assert_eq!(edge.count("select count(*) from request_log").await, 3);
}

#[tokio::test]
async fn few_requests_of_a_kind_or_state_are_found_by_an_index() {
    let edge = Edge::start().await;
    let tenant = edge.client().await.tenant;
    // The oldest three are launches, the next three wait.
    sqlx::query(
        "insert into requests (tenant_id, id, product, environment, kind, payload, state, announce_after, received_at)
         select $1, gen_random_uuid(), 'crm', 'production', case when n <= 3 then 'campaign-launch' else 'transactional' end, '{}',
                case when n between 4 and 6 then 'accepted' else 'handled' end,
                case when n between 4 and 6 then now() + interval '1 hour' end, now() - interval '1 day' + make_interval(secs => n)
         from generate_series(1, 5000) n",
    )
    .bind(tenant)
    .execute(&edge.pool)
    .await
    .unwrap();
    sqlx::query("analyze requests").execute(&edge.pool).await.unwrap();
    let quoted = format!("'{tenant}'");
    for (kind, state) in [("'campaign-launch'", "null"), ("null", "'accepted'"), ("null", "'rejected'")] {
        let parameters = [quoted.as_str(), "'crm'", "'production'", kind, state, "null", "null", "null", "null", "51"];
        let in_vain = edge.rows_in_vain(tenant, include_str!("../../queries/requests.sql"), &parameters).await;
        assert!(in_vain < 500.0, "{kind} {state}: {in_vain} rows were looked at in vain");
    }
}

#[tokio::test]
async fn the_page_of_a_quiet_product_reads_no_requests_of_a_busy_one() {
    let edge = Edge::start().await;
    let tenant = edge.client().await.tenant;
    sqlx::query(
        "insert into requests (tenant_id, id, product, environment, kind, payload, state, received_at)
         select $1, gen_random_uuid(), case when n <= 3 then 'quiet' else 'crm' end, 'production', 'transactional',
                jsonb_build_object('data', repeat('x', 600)), 'handled', now() - interval '1 day' + make_interval(secs => n)
         from generate_series(1, 5000) n",
    )
    .bind(tenant)
    .execute(&edge.pool)
    .await
    .unwrap();
    sqlx::query("analyze requests").execute(&edge.pool).await.unwrap();
    let quoted = format!("'{tenant}'");
    let parameters = [quoted.as_str(), "'quiet'", "'production'", "null", "null", "null", "null", "null", "null", "51"];
    let in_vain = edge.rows_in_vain(tenant, include_str!("../../queries/requests.sql"), &parameters).await;
    assert!(in_vain < 500.0, "{in_vain} rows were looked at in vain");
}

#[tokio::test]
async fn the_requests_and_copies_to_an_address_are_found_by_an_index() {
    let edge = Edge::start().await;
    let tenant = edge.client().await.tenant;
    // The planner takes those to an address for two hundred: fewer in all are read from end to end.
    sqlx::query(
        "insert into requests (tenant_id, id, product, environment, kind, payload, state, options)
         select $1, gen_random_uuid(), 'crm', 'production', 'transactional',
                jsonb_build_object('address', 'p' || n || '@example.com'), case when n % 2 = 0 then 'accepted' else 'handled' end,
                jsonb_build_object('copies', jsonb_build_array(jsonb_build_object('address', 'c' || n || '@example.com', 'role', 'cc')))
         from generate_series(1, 20000) n",
    )
    .bind(tenant)
    .execute(&edge.pool)
    .await
    .unwrap();
    sqlx::query("analyze requests").execute(&edge.pool).await.unwrap();
    let (quoted, contacts) = (format!("'{tenant}'"), format!("array['{tenant}'::uuid]"));
    let nil = "'00000000-0000-0000-0000-000000000000'::uuid";
    let held = [quoted.as_str(), contacts.as_str(), "array['p7@example.com']", "''", nil, "101"];
    let taken_back = [quoted.as_str(), "'p8@example.com'"];
    let copied = [quoted.as_str(), "'c8@example.com'", "'erased@example.com'"];
    let erasure = include_str!("../../../stages/shared/ledger/src/erasure/records.rs");
    let statement = |start: &str| erasure.split('"').find(|text| text.starts_with(start)).unwrap();
    // What the function runs, as its owner does: without row security.
    let copies =
        include_str!("../../../migrations/0005_ledger.sql").split("function requests_copied_to").nth(1).unwrap();
    let copies = copies.split("$$").nth(1).unwrap().replace("of_tenant = app_tenant() and", "");
    let copies = copies.replace("of_tenant", &quoted).replace("'address', address", "'address', 'c8@example.com'");
    let plan: Value = sqlx::query_scalar(AssertSqlSafe(format!("explain (analyze, format json) {copies}")))
        .fetch_one(&edge.pool)
        .await
        .unwrap();
    let in_vain = stage_rig::rows_in_vain(&plan);
    assert!(in_vain < 500.0, "{in_vain} rows were looked at in vain: {copies}");
    let data = include_str!("../../queries/contact_data.sql");
    for (statement, parameters) in [
        (data, held.as_slice()),
        (statement("select id from requests where tenant_id = $1 and id in"), taken_back.as_slice()),
        (statement("update requests set options"), copied.as_slice()),
    ] {
        let in_vain = edge.rows_in_vain(tenant, statement, parameters).await;
        assert!(in_vain < 500.0, "{in_vain} rows were looked at in vain: {statement}");
    }
}
