//! The API over NATS: the same acts, the same answers.

use async_nats::{HeaderMap, Message};
use ingress::Serving;
use schemas::Environment;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::common::{Edge, PRODUCT, TENANT, settings};

/// An ingress that serves, a tenant, and an internal system's connection.
struct Caller {
    edge: Edge,
    client: async_nats::Client,
    shutdown: CancellationToken,
    serving: Option<Serving>,
}

struct Answer {
    status: String,
    error: Option<String>,
    replayed: Option<String>,
    body: Value,
}

impl Caller {
    async fn new() -> Self {
        Self::of(Edge::start().await).await
    }

    async fn of(edge: Edge) -> Self {
        edge.link(PRODUCT, Environment::Production, TENANT).await;
        let shutdown = CancellationToken::new();
        let serving = ingress::serve(edge.ingress.clone(), shutdown.clone()).await.unwrap();
        let client = async_nats::connect(edge.database.nats_url()).await.unwrap();
        let caller = Self { edge, client, shutdown, serving: Some(serving) };
        // Offered a moment after the start.
        let deadline = tokio::time::Instant::now() + std::time::Duration::from_secs(60);
        while caller.request("tenant.resolve", &json!({"product_tenant_id": TENANT}), None).await.is_none() {
            assert!(tokio::time::Instant::now() < deadline, "the service is offered");
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
        caller
    }

    async fn request(&self, operation: &str, body: &Value, message_id: Option<&str>) -> Option<Message> {
        self.request_as(PRODUCT, operation, body, message_id).await
    }

    async fn request_as(
        &self,
        product: &str,
        operation: &str,
        body: &Value,
        message_id: Option<&str>,
    ) -> Option<Message> {
        let subject = self.edge.ingress.bus.prefixed(&format!("mail.v1.api.{product}.production.{operation}"));
        let mut headers = HeaderMap::new();
        if let Some(id) = message_id {
            headers.insert("Nats-Msg-Id", id);
        }
        self.client.request_with_headers(subject, headers, body.to_string().into()).await.ok()
    }

    async fn call(&self, operation: &str, body: Value) -> Answer {
        read(&self.request(operation, &body, None).await.unwrap())
    }

    async fn call_once(&self, id: &str, operation: &str, body: Value) -> Answer {
        read(&self.request(operation, &body, Some(id)).await.unwrap())
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

fn read(message: &Message) -> Answer {
    let headers = message.headers.as_ref().unwrap();
    let text = |name: &str| headers.get(name).map(|value| value.as_str().to_owned());
    Answer {
        status: text("Mail-Status").unwrap(),
        error: text("Nats-Service-Error"),
        replayed: text("Idempotency-Replayed"),
        body: serde_json::from_slice(&message.payload).unwrap(),
    }
}

#[tokio::test]
async fn a_call_on_the_bus_is_answered_as_http_would() {
    let caller = Caller::new().await;
    let made = caller.call("createContact", json!({"product_tenant_id": TENANT, "email": "ann@example.com"})).await;
    assert_eq!((made.status.as_str(), made.error, &made.body["ok"]), ("201", None, &json!(true)));
    let id = made.body["contact_id"].clone();
    let found = caller.call("getContact", json!({"product_tenant_id": TENANT, "id": id})).await;
    assert_eq!(found.body["contact"]["email"], "ann@example.com");
    let listed = caller.call("listContacts", json!({"product_tenant_id": TENANT, "limit": 1})).await;
    assert_eq!(listed.body["contacts"].as_array().unwrap().len(), 1);
    let refused =
        caller.call("createContact", json!({"product_tenant_id": TENANT, "email": "ann@", "colour": 1})).await;
    assert_eq!((refused.status.as_str(), refused.error.as_deref()), ("400", Some("validation_failed")));
    let unknown = caller.call("getContact", json!({"product_tenant_id": TENANT, "id": schemas::new_id()})).await;
    assert_eq!((unknown.status.as_str(), unknown.error.as_deref()), ("404", Some("contact_not_found")));
}

#[tokio::test]
async fn a_call_in_progress_at_shutdown_is_answered() {
    let mut caller = Caller::new().await;
    let serving = caller.serving.take().unwrap();
    let made = caller.call("createContact", json!({"product_tenant_id": TENANT, "email": "ann@example.com"})).await;
    let mut lock = caller.edge.pool.begin().await.unwrap();
    sqlx::query("select from contacts for update").execute(&mut *lock).await.unwrap();
    let change = json!({"product_tenant_id": TENANT, "id": made.body["contact_id"], "first_name": "Ann"});
    let stop = async {
        caller.edge.until_waiting(1).await;
        caller.shutdown.cancel();
        let mut finished = std::pin::pin!(serving.finished());
        let early = tokio::time::timeout(std::time::Duration::from_millis(500), &mut finished).await;
        assert!(early.is_err(), "the call is waited for");
        lock.rollback().await.unwrap();
        finished.await;
    };
    let (answer, ()) = tokio::join!(caller.call("updateContact", change), stop);
    assert_eq!(answer.status, "200", "{}", answer.body);
}

/// An export is longer than a message: the bus answers its link.
#[tokio::test]
async fn links_to_exports_are_made_on_the_bus_and_exports_are_not() {
    let mut settings = settings();
    settings.rate_limit_per_minute = 1;
    let caller = Caller::of(Edge::with(settings).await).await;
    let tenant = || json!({"product_tenant_id": TENANT});
    let made = caller.call("linkContactsExport", tenant()).await;
    let path = made.body["path"].as_str().unwrap_or_default();
    assert_eq!((made.status.as_str(), made.error, path.starts_with("/exports/")), ("201", None, true), "{}", made.body);
    let client = caller.edge.client().await;
    let fetch = || client.send(http::Request::get(path).body(axum::body::Body::empty()).unwrap());
    assert_eq!(fetch().await.status, 200);
    assert_eq!(fetch().await.refusal(), (429, "rate_limit_exceeded"), "a fetch counts for the tenant");
    assert!(caller.request("exportContacts", &tenant(), None).await.is_none(), "nobody listens");
}

#[tokio::test]
async fn keys_made_on_the_bus_share_no_rate_limit() {
    let caller = Caller::new().await;
    caller.edge.link(PRODUCT, Environment::Production, "tenant-2").await;
    for tenant in [TENANT, "tenant-2"] {
        let body = json!({"product_tenant_id": tenant, "label": "Reader", "scopes": ["contacts:read"]});
        let made = caller.call("createKey", body).await;
        assert_eq!(made.status, "201", "{}", made.body);
    }
    let lineages = "select count(distinct rate_lineage) from api_keys where tenant_id is not null";
    assert_eq!(caller.edge.count(lineages).await, 2);
}

#[tokio::test]
async fn a_message_id_is_carried_out_once() {
    let caller = Caller::new().await;
    let body = || json!({"product_tenant_id": TENANT, "kind": "list", "name": "News"});
    let first = caller.call_once("m-1", "createAudience", body()).await;
    let again = caller.call_once("m-1", "createAudience", body()).await;
    assert_eq!((first.status.as_str(), &first.body), ("201", &again.body));
    assert_eq!((first.replayed, again.replayed.as_deref()), (None, Some("true")));
    let other = json!({"product_tenant_id": TENANT, "kind": "list", "name": "Other"});
    let reused = caller.call_once("m-1", "createAudience", other).await;
    assert_eq!((reused.status.as_str(), reused.error.as_deref()), ("422", Some("idempotency_key_reused")));
    assert_eq!(caller.edge.count("select count(*) from audiences").await, 1);
}

#[tokio::test]
async fn the_product_of_the_subject_is_who_calls() {
    let caller = Caller::new().await;
    let body = json!({"product_tenant_id": TENANT, "email": "ann@example.com"});
    let foreign = read(&caller.request_as("shop", "createContact", &body, None).await.unwrap());
    assert_eq!((foreign.status.as_str(), foreign.error.as_deref()), ("404", Some("tenant_not_found")));
    let resolved = caller.call("tenant.resolve", json!({"product_tenant_id": TENANT})).await;
    let tenant = caller.edge.link(PRODUCT, Environment::Production, TENANT).await;
    assert_eq!(resolved.body["engine_tenant_id"], json!(tenant));
}

#[tokio::test]
async fn what_is_validated_is_judged_and_not_kept() {
    let caller = Caller::new().await;
    let validate = |request: Value| json!({"operation": "createContact", "request": request});
    let good =
        caller.call("validate", validate(json!({"product_tenant_id": TENANT, "email": "ann@example.com"}))).await;
    assert_eq!(good.body, json!({"ok": true, "would_answer": 201}));
    let connection = json!({"product_tenant_id": TENANT, "provider": "postmark", "name": "A", "secret": "token"});
    let connection = caller.call("createConnection", connection).await.body["connection_id"].clone();
    let check = json!({"product_tenant_id": TENANT, "id": connection});
    let waits = caller.call("validate", json!({"operation": "checkConnection", "request": check})).await;
    assert_eq!(waits.body, json!({"ok": true, "would_answer": 200}), "of what answers after its commit");
    let bad = caller.call("validate", validate(json!({"product_tenant_id": TENANT}))).await;
    assert_eq!((bad.status.as_str(), bad.error.as_deref()), ("400", Some("validation_failed")));
    let short = caller.call("validate", json!({"operation": "event", "request": {"product_tenant_id": TENANT}})).await;
    assert_eq!(short.error.as_deref(), Some("validation_failed"), "a short name is a name: {}", short.body);
    assert_ne!(short.body["fields"][0]["path"], "operation");
    let read_only = caller.call("validate", json!({"operation": "getContact", "request": {}})).await;
    assert_eq!(read_only.error.as_deref(), Some("validation_failed"));
    assert_eq!(caller.edge.count("select count(*) from contacts").await, 0);
}

#[tokio::test]
async fn a_call_over_the_bus_is_in_the_request_log_and_a_dry_run_is_not() {
    let caller = Caller::new().await;
    let body = json!({"product_tenant_id": TENANT, "email": "ann@example.com"});
    caller.call("validate", json!({"operation": "createContact", "request": body})).await;
    caller.call("createContact", body).await;
    caller.call("getContact", json!({"product_tenant_id": TENANT, "id": schemas::new_id()})).await;
    caller.call("getContact", json!({"product_tenant_id": TENANT})).await;
    caller.edge.wait_for_calls(3).await;
    let calls = caller.edge.client().await.get("/v1/requests").await.body["requests"].clone();
    let calls: Vec<_> = calls
        .as_array()
        .unwrap()
        .iter()
        .map(|call| (&call["via"], &call["status"], &call["error"], &call["field"]))
        .collect();
    let (bus, none) = (&json!("bus"), &Value::Null);
    let expected = [
        (bus, &json!(400), &json!("validation_failed"), &json!("id")),
        (bus, &json!(404), &json!("contact_not_found"), none),
        (bus, &json!(201), none, none),
    ];
    assert_eq!(calls, expected);
}

#[tokio::test]
async fn the_service_is_found_with_what_it_takes_and_offers_nothing_of_the_operators() {
    let caller = Caller::new().await;
    let prefix = caller.edge.ingress.bus.prefixed("mail.v1.api.");
    // Services of other tests answer, too: those of this one have its prefix.
    let inbox = caller.client.new_inbox();
    let mut answers = caller.client.subscribe(inbox.clone()).await.unwrap();
    caller.client.publish_with_reply("$SRV.INFO.postrider", inbox, "".into()).await.unwrap();
    let found = tokio::time::timeout(std::time::Duration::from_secs(60), async {
        use futures::StreamExt;
        loop {
            let info: Value = serde_json::from_slice(&answers.next().await.unwrap().payload).unwrap();
            if info["endpoints"][0]["subject"].as_str().is_some_and(|subject| subject.starts_with(&prefix)) {
                return info;
            }
        }
    })
    .await
    .unwrap();
    let endpoints = found["endpoints"].as_array().unwrap();
    let named = |name: &str| endpoints.iter().find(|endpoint| endpoint["name"] == name);
    for name in ["message", "transactional", "send-status", "explain", "validate", "tenant-resolve", "createContact"] {
        assert!(named(name).is_some(), "{name}");
    }
    assert_eq!(named("message").unwrap()["metadata"]["http"], "POST /v1/messages");
    let schema = "asyncapi.json#/components/schemas/mail.v1.api.sendMessage";
    assert_eq!(named("message").unwrap()["metadata"]["request_schema"], schema);
    assert!(named("getPlatformHealth").is_none(), "operators' operations are not for products");
}
