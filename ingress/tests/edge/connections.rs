//! Provider connections by API: what is stored, what is never shown, and the order of the routes.

use rstest::rstest;
use runtime::{MasterKeys, Vault};
use schemas::Environment;
use serde_json::{Value, json};
use stage_rig::until;
use uuid::Uuid;

use crate::common::{Client, Edge, PRODUCT};

const PATH: &str = "/v1/connections";

async fn added(client: &Client, name: &str) -> String {
    let body = json!({"provider": "postmark", "name": name, "secret": "server-token", "stream": "broadcast"});
    let answer = client.post(PATH, body).await;
    assert_eq!(answer.status, 201, "{}", answer.body);
    answer.text("connection_id")
}

async fn seen(client: &Client, id: &str) -> Value {
    client.get(&format!("{PATH}/{id}")).await.body["connection"].clone()
}

async fn ordered(client: &Client, ids: &[&String]) -> (u16, String) {
    let answer = client.post("/v1/connections/order", json!({"connection_ids": ids})).await;
    (answer.status.as_u16(), answer.body["error"].as_str().unwrap_or_default().to_owned())
}

#[tokio::test]
async fn a_secret_is_sealed_and_never_shown() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let id = added(&client, "Postmark").await;
    let connection = seen(&client, &id).await;
    assert!(!connection.to_string().contains("server-token"), "{connection}");
    assert_eq!((&connection["stream"], &connection["position"]), (&json!("broadcast"), &Value::Null));
    assert_eq!(connection["health"]["circuit"], json!("closed"));
    let open = async || {
        let sealed: Vec<u8> =
            sqlx::query_scalar("select secret from provider_connections").fetch_one(&edge.pool).await.unwrap();
        let vault = Vault::new(&MasterKeys::parse(&"5a".repeat(32)).unwrap()).unwrap();
        String::from_utf8(vault.open(client.tenant, providers::PROVIDER_PURPOSE, &sealed).unwrap()).unwrap()
    };
    assert_eq!(open().await, "server-token");
    let changed = client.patch(&format!("{PATH}/{id}"), json!({"secret": "another", "stream": null})).await;
    assert_eq!((changed.status.as_u16(), &changed.body["connection"]["stream"]), (200, &Value::Null));
    assert_eq!(open().await, "another");
    let renamed = client.patch(&format!("{PATH}/{id}"), json!({"name": "Main", "max_per_second": 5})).await;
    assert_eq!(renamed.body["connection"]["max_per_second"], json!(5), "{}", renamed.body);
    assert_eq!(open().await, "another", "what is left out stays");
    let entries = "select count(*) from audit_log where action like 'provider.%' and detail::text not like '%another%'";
    assert_eq!(edge.count(entries).await, 3);
}

#[rstest]
#[case(json!({"provider": "pigeon", "name": "A", "secret": "k"}), "provider not_allowed")]
#[case(json!({"provider": "smtp", "name": "A", "secret": "smtp://10.0.0.1"}), "provider not_allowed")]
#[case(json!({"provider": "ses", "name": "A", "secret": "id:key"}), "region required")]
#[case(json!({"provider": "ses", "name": "A", "secret": "id:key", "region": "evil.example/"}), "region invalid")]
#[case(json!({"provider": "ses", "name": "A", "secret": "id", "region": "eu-central-1"}), "secret invalid")]
#[case(json!({"provider": "mailgun", "name": "A", "secret": "k"}), "domain required")]
#[case(json!({"provider": "mailgun", "name": "A", "secret": "k", "domain": "a.example/../x"}), "domain invalid")]
#[case(json!({"provider": "sendgrid", "name": "A", "secret": "k", "region": "mars"}), "region invalid")]
#[case(json!({"provider": "resend", "name": "A", "secret": "k", "stream": "x"}), "stream not_allowed")]
#[case(json!({"provider": "resend", "name": "A", "secret": "k\r\nX: y"}), "secret invalid")]
#[case(json!({"provider": "resend", "name": " ", "secret": "k"}), "name empty")]
#[case(json!({"provider": "resend", "name": "A"}), "secret required")]
#[case(json!({"provider": "resend", "name": "A", "secret": "k", "base_url": "http://10.0.0.1/"}), "base_url unknown_field")]
#[tokio::test]
async fn an_account_that_cannot_work_is_refused(#[case] body: Value, #[case] expected: &str) {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let answer = client.post(PATH, body).await;
    let faults: Vec<String> = answer.faults().into_iter().map(|(path, code)| format!("{path} {code}")).collect();
    assert!(faults.contains(&expected.to_owned()), "{}", answer.body);
    assert_eq!(edge.count("select count(*) from provider_connections").await, 0);
}

#[tokio::test]
async fn the_order_names_active_connections_of_the_tenant_once() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let (one, two, three) = (added(&client, "1").await, added(&client, "2").await, added(&client, "3").await);
    let positions = async || {
        let mut found = Vec::new();
        for id in [&one, &two, &three] {
            found.push(seen(&client, id).await["position"].as_i64());
        }
        found
    };
    assert_eq!(ordered(&client, &[&two, &one]).await.0, 200);
    assert_eq!(positions().await, [Some(2), Some(1), None]);
    assert_eq!(ordered(&client, &[&three, &two, &one]).await.0, 200);
    assert_eq!(positions().await, [Some(3), Some(2), Some(1)]);
    assert_eq!(ordered(&client, &[&one, &one]).await, (400, "validation_failed".to_owned()));
    let nobody = Uuid::new_v4().to_string();
    assert_eq!(ordered(&client, &[&one, &nobody]).await, (404, "connection_not_found".to_owned()));
    assert_eq!(client.patch(&format!("{PATH}/{two}"), json!({"status": "disabled"})).await.status, 200);
    assert_eq!(ordered(&client, &[&two]).await, (409, "connection_disabled".to_owned()));
    assert_eq!(positions().await, [Some(3), Some(2), Some(1)], "a refused order changes nothing");
    let kept = client.delete(&format!("{PATH}/{one}"), json!({})).await;
    assert_eq!(kept.refusal(), (409, "connection_in_use"));
    assert_eq!(ordered(&client, &[]).await.0, 200);
    assert_eq!(positions().await, [None, None, None]);
    assert_eq!(client.delete(&format!("{PATH}/{one}"), json!({})).await.status, 200);
    assert_eq!(client.get(&format!("{PATH}/{one}")).await.refusal(), (404, "connection_not_found"));
}

#[tokio::test]
async fn a_name_is_taken_once_and_another_tenants_connection_is_not_found() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let id = added(&client, "Main").await;
    let other = added(&client, "Other").await;
    let body = json!({"provider": "resend", "name": "Main", "secret": "k"});
    assert_eq!(client.post(PATH, body.clone()).await.refusal(), (409, "connection_name_taken"));
    let renamed = client.patch(&format!("{PATH}/{other}"), json!({"name": "Main"})).await;
    assert_eq!(renamed.refusal(), (409, "connection_name_taken"));
    let stranger = edge.client_for(PRODUCT, Environment::Production, "tenant-2").await;
    assert_eq!(stranger.post(PATH, body).await.status, 201);
    assert_eq!(stranger.get(&format!("{PATH}/{id}")).await.refusal(), (404, "connection_not_found"));
    assert_eq!(ordered(&stranger, &[&id]).await, (404, "connection_not_found".to_owned()));
    let changed = stranger.patch(&format!("{PATH}/{id}"), json!({"status": "disabled"})).await;
    assert_eq!(changed.refusal(), (404, "connection_not_found"));
}

#[tokio::test]
async fn the_check_of_events_is_set_by_api_and_its_secrets_are_never_shown() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let secrets = json!(["hook-user:0123456789abcdef", "hook-user:fedcba9876543210"]);
    let body = json!({"provider": "postmark", "name": "Main", "secret": "server-token", "hook_secrets": secrets});
    let id = client.post(PATH, body).await.text("connection_id");
    let path = format!("{PATH}/{id}");
    let connection = seen(&client, &id).await;
    assert_eq!(connection["hook_path"], json!(format!("/hooks/postmark/{id}")));
    assert_eq!(connection["hook_is_checked"], json!(true));
    assert!(!connection.to_string().contains("hook-user"), "{connection}");
    let reported = async |authorization: &str| {
        let request = http::Request::post(format!("/hooks/postmark/{id}"))
            .header("authorization", authorization)
            .header("content-type", "application/json")
            .body(axum::body::Body::from(
                r#"{"RecordType":"Delivery","MessageID":"m-1","DeliveredAt":"2026-01-01T00:00:00Z"}"#,
            ))
            .unwrap();
        client.send(request).await.status.as_u16()
    };
    // base64 of the second user:password.
    assert_eq!(reported("Basic aG9vay11c2VyOmZlZGNiYTk4NzY1NDMyMTA=").await, 200);
    assert_eq!(reported("Basic aG9vay11c2VyOndyb25n").await, 401);
    for (change, field) in [
        (json!({"hook_secrets": ["short"]}), "hook_secrets"),
        (json!({"hook_secrets": ["hook-user:0123456789abcdef\nx"]}), "hook_secrets"),
        (json!({"hook_topics": ["arn:aws:sns:eu-west-1:1:t"]}), "hook_topics"),
    ] {
        assert_eq!(client.patch(&path, change).await.faults(), [(field.to_owned(), "invalid".to_owned())]);
    }
    client.patch(&path, json!({"name": "Same"})).await;
    assert_eq!(seen(&client, &id).await["hook_is_checked"], json!(true), "what is left out stays");
    client.patch(&path, json!({"hook_secrets": null})).await;
    assert_eq!(seen(&client, &id).await["hook_is_checked"], json!(false));
    let entries = client.get("/v1/audit?action=provider.change").await.body["entries"].clone();
    assert_eq!(entries[0]["detail"], json!({"fields": ["hook_secrets"]}));
    assert_eq!(edge.count("select count(*) from audit_log a where position('hook-user' in a::text) > 0").await, 0);
}

#[tokio::test]
async fn a_connection_that_served_this_week_stays() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let id = added(&client, "Main").await;
    let path = format!("{PATH}/{id}");
    sqlx::query("insert into connection_health (tenant_id, connection_id, served_at) values ($1, $2::uuid, now() - interval '6 days')")
        .bind(client.tenant)
        .bind(&id)
        .execute(&edge.pool)
        .await
        .unwrap();
    let kept = client.delete(&path, json!({})).await;
    assert_eq!(kept.refusal(), (409, "connection_in_use"), "late bounces still come");
    assert!(kept.text("detail").contains("take it out of the order"), "{}", kept.body);
    sqlx::query("update connection_health set served_at = now() - interval '8 days'")
        .execute(&edge.pool)
        .await
        .unwrap();
    assert_eq!(client.delete(&path, json!({})).await.status, 200);
}

#[tokio::test]
async fn an_operators_relay_is_ordered_and_not_redirected() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let id = Uuid::new_v4();
    sqlx::query(
        "insert into provider_connections (tenant_id, id, provider, name, secret) values ($1, $2, 'smtp', 'relay', '')",
    )
    .bind(client.tenant)
    .bind(id)
    .execute(&edge.pool)
    .await
    .unwrap();
    sqlx::query(
        "insert into connection_health (tenant_id, connection_id, open_until, error_class, failed_at, served_at)
         values ($1, $2, now() + interval '1 minute', 'unreachable', now(), now() - interval '1 hour')",
    )
    .bind(client.tenant)
    .bind(id)
    .execute(&edge.pool)
    .await
    .unwrap();
    let redirected = client.patch(&format!("{PATH}/{id}"), json!({"secret": "smtp://10.0.0.1"})).await;
    assert_eq!(redirected.refusal(), (409, "connection_of_operator"));
    assert_eq!(client.patch(&format!("{PATH}/{id}"), json!({"name": "Relay"})).await.status, 200);
    assert_eq!(ordered(&client, &[&id.to_string()]).await.0, 200);
    let health = seen(&client, &id.to_string()).await["health"].clone();
    assert_eq!((&health["circuit"], &health["last_error"]), (&json!("open"), &json!("unreachable")), "{health}");
    assert!(health["last_success_at"].is_string() && health["open_until"].is_string());
}

/// Asks for a check, and answers it as the delivery stage does.
async fn checked(edge: &Edge, client: &Client, id: &str, error: Option<&str>) -> Value {
    let asking = tokio::spawn({
        let (client, path) = (client.clone(), format!("{PATH}/{id}/check"));
        async move { client.post(&path, json!({})).await }
    });
    until("the check is asked for", async || {
        let answer = "update connection_checks set answered_at = now(), error_code = $2, latency_ms = 7
                      where connection_id::text = $1 and answered_at is null";
        sqlx::query(answer).bind(id).bind(error).execute(&edge.pool).await.unwrap().rows_affected() == 1
    })
    .await;
    let answer = asking.await.unwrap();
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.body
}

#[tokio::test]
async fn a_check_answers_what_the_provider_said() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let id = added(&client, "Postmark").await;
    let refused = checked(&edge, &client, &id, Some("credentials")).await;
    assert_eq!((&refused["passed"], &refused["error"]), (&json!(false), &json!("credentials")), "{refused}");
    // For ten seconds the provider is not asked again.
    let path = format!("{PATH}/{id}/check");
    assert_eq!(client.post(&path, json!({})).await.body, refused);
    // Nor is it by a clock that was set back since.
    for since in ["11 s", "-1 h"] {
        let pass = "update connection_checks
                    set asked_at = now() - $1::text::interval, answered_at = now() - $1::text::interval";
        sqlx::query(pass).bind(since).execute(&edge.pool).await.unwrap();
        let well = checked(&edge, &client, &id, None).await;
        assert_eq!(
            (&well["passed"], &well["error"], &well["latency_ms"]),
            (&json!(true), &Value::Null, &json!(7)),
            "{well}"
        );
    }
    // A changed connection is another question.
    client.patch(&format!("{PATH}/{id}"), json!({"secret": "another"})).await;
    let changed = checked(&edge, &client, &id, Some("credentials")).await;
    assert_eq!(changed["passed"], json!(false), "{changed}");
    assert_eq!(edge.count("select count(*) from audit_log where action = 'provider.check'").await, 5);
}

#[tokio::test]
async fn only_its_tenant_checks_a_connection() {
    let edge = Edge::start().await;
    let id = added(&edge.client().await, "Postmark").await;
    let stranger = edge.client_for(PRODUCT, Environment::Production, "tenant-2").await;
    let refused = stranger.post(&format!("{PATH}/{id}/check"), json!({})).await;
    assert_eq!(refused.refusal(), (404, "connection_not_found"));
    assert_eq!(edge.count("select count(*) from connection_checks").await, 0);
}

#[tokio::test]
async fn in_the_sandbox_no_provider_is_asked() {
    let edge = Edge::start().await;
    let client = edge.client_for(PRODUCT, Environment::Sandbox, "tenant-1").await;
    let id = added(&client, "Postmark").await;
    let well = client.post(&format!("{PATH}/{id}/check"), json!({})).await;
    assert_eq!((well.status.as_u16(), &well.body["passed"]), (200, &json!(true)), "{}", well.body);
    assert_eq!(edge.count("select count(*) from connection_checks").await, 0);
}
