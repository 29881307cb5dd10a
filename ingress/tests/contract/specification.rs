//! Every row of the specification: each endpoint with each status and error code it names, seen once. What only a running
//! pipeline or a dead database can show is said where it is seen instead.

use std::collections::BTreeSet;

use axum::body::Body;
use http::{Method, Request};
use schemas::Environment;
use serde_json::{Value, json};

use crate::{
    common::{Answer, Client, PRODUCT, contract::CONTRACT, send, settings},
    fixtures::{self, Ready},
};

/// Method, path, status, error code. An empty code is a success.
const ROWS: &[(&str, &str, u16, &str)] = &[
    ("GET", "/health", 200, ""),
    ("GET", "/v1/platform/health", 503, "sending_impaired"),
    ("GET", "/v1/platform/health", 403, "missing_scope:platform:health:read"),
    ("GET", "/v1/campaigns", 200, ""),
    ("GET", "/v1/campaigns", 400, "validation_failed"),
    ("POST", "/v1/campaigns", 201, ""),
    ("POST", "/v1/campaigns", 400, "validation_failed"),
    ("POST", "/v1/campaigns", 404, "list_not_found"),
    ("POST", "/v1/campaigns", 404, "segment_not_found"),
    ("POST", "/v1/campaigns", 404, "sender_profile_not_found"),
    ("POST", "/v1/campaigns", 404, "template_not_found"),
    ("GET", "/v1/campaigns/{id}", 200, ""),
    ("GET", "/v1/campaigns/{id}", 404, "campaign_not_found"),
    ("PATCH", "/v1/campaigns/{id}", 200, ""),
    ("POST", "/v1/campaigns/{id}/launch", 202, ""),
    ("POST", "/v1/campaigns/{id}/launch", 409, "campaign_already_preflight"),
    ("POST", "/v1/campaigns/{id}/launch", 409, "campaign_already_scheduled"),
    ("POST", "/v1/campaigns/{id}/launch", 409, "campaign_already_sending"),
    ("POST", "/v1/campaigns/{id}/launch", 409, "campaign_already_sent"),
    ("POST", "/v1/campaigns/{id}/launch", 409, "campaign_already_cancelled"),
    ("POST", "/v1/campaigns/{id}/launch", 422, "audience_resolved_to_zero_contacts"),
    ("POST", "/v1/campaigns/{id}/launch", 422, "sender_missing_verified_domain"),
    ("POST", "/v1/campaigns/{id}/launch", 422, "all_contacts_suppressed_or_bounced"),
    ("GET", "/v1/templates", 200, ""),
    ("GET", "/v1/templates", 400, "validation_failed"),
    ("POST", "/v1/templates", 201, ""),
    ("GET", "/v1/templates/{id}", 200, ""),
    ("GET", "/v1/templates/{id}", 404, "template_not_found"),
    ("PATCH", "/v1/templates/{id}", 200, ""),
    ("DELETE", "/v1/templates/{id}", 200, ""),
    ("GET", "/v1/sequences", 200, ""),
    ("GET", "/v1/sequences", 400, "validation_failed"),
    ("POST", "/v1/sequences", 201, ""),
    ("POST", "/v1/sequences", 404, "template_not_found"),
    ("POST", "/v1/sequences", 404, "sender_profile_not_found"),
    ("POST", "/v1/sequences", 409, "sender_profile_required_to_activate"),
    ("GET", "/v1/sequences/{id}", 200, ""),
    ("GET", "/v1/sequences/{id}", 404, "sequence_not_found"),
    ("PATCH", "/v1/sequences/{id}", 200, ""),
    ("PATCH", "/v1/sequences/{id}", 409, "invalid_status_transition"),
    ("PATCH", "/v1/sequences/{id}", 409, "sequence_has_no_steps"),
    ("PATCH", "/v1/sequences/{id}", 409, "sender_profile_required_to_activate"),
    ("POST", "/v1/enrollments", 201, ""),
    ("POST", "/v1/enrollments", 409, "already_enrolled"),
    ("POST", "/v1/enrollments", 409, "sequence_not_active"),
    ("POST", "/v1/enrollments", 409, "sequence_has_no_steps"),
    ("POST", "/v1/imports", 200, ""),
    ("POST", "/v1/imports", 413, "too_many_rows"),
    ("GET", "/v1/contacts", 200, ""),
    ("POST", "/v1/contacts", 201, ""),
    ("GET", "/v1/contacts/{id}", 200, ""),
    ("PATCH", "/v1/contacts/{id}", 200, ""),
    ("DELETE", "/v1/contacts/{id}", 200, ""),
    ("GET", "/v1/audiences", 200, ""),
    ("POST", "/v1/audiences", 201, ""),
    ("GET", "/v1/segments", 200, ""),
    ("POST", "/v1/segments", 201, ""),
    ("GET", "/v1/fields", 200, ""),
    ("POST", "/v1/fields", 201, ""),
    ("GET", "/v1/suppressions", 200, ""),
    ("POST", "/v1/suppressions", 201, ""),
    ("DELETE", "/v1/suppressions", 200, ""),
    ("POST", "/v1/transactional", 202, ""),
    ("POST", "/v1/transactional", 404, "template_not_found"),
    ("POST", "/v1/messages", 403, "domain_not_verified"),
    ("POST", "/v1/messages", 422, "use_campaigns_for_marketing"),
    ("GET", "/v1/domains", 200, ""),
    ("POST", "/v1/domains", 200, ""),
    ("POST", "/v1/domains", 409, "domain_claimed_by_another_tenant"),
    ("POST", "/v1/domains", 422, "platform_domain_not_allowed"),
    ("POST", "/v1/domains", 422, "freemail_domain_not_allowed"),
    ("POST", "/v1/domains/{id}/verify", 200, ""),
    ("POST", "/v1/domains/{id}/verify", 404, "domain_not_found"),
    ("POST", "/v1/domains/{id}/verify", 409, "domain_missing_provider_record"),
    ("GET", "/v1/senders", 200, ""),
    ("POST", "/v1/senders", 200, ""),
    ("POST", "/v1/senders", 422, "domain_not_found_for_tenant"),
    ("POST", "/v1/senders", 422, "domain_not_verified"),
    ("POST", "/v1/senders", 422, "physical_address_required"),
    ("POST", "/v1/tenants/link", 200, ""),
    ("POST", "/v1/tenants/link", 400, "validation_failed"),
    ("POST", "/v1/outcomes", 200, ""),
    ("POST", "/v1/outcomes", 400, "validation_failed"),
    ("POST", "/v1/outcomes", 422, "contact_conflict"),
    ("GET", "/v1/analytics/overview", 200, ""),
    ("GET", "/v1/analytics/campaigns/{id}", 200, ""),
    ("GET", "/v1/analytics/campaigns/{id}", 404, "campaign_not_found"),
    ("GET", "/v1/webhooks", 200, ""),
    ("POST", "/v1/webhooks", 201, ""),
    ("POST", "/v1/webhooks", 409, "subscription_limit_reached"),
    ("PATCH", "/v1/webhooks/{id}", 200, ""),
    ("PATCH", "/v1/webhooks/{id}", 409, "invalid_status_transition"),
    ("DELETE", "/v1/webhooks/{id}", 200, ""),
    // Rules for all endpoints, seen at one.
    ("GET", "/v1/contacts", 403, "missing_scope:contacts:read"),
    ("GET", "/v1/contacts", 429, "rate_limit_exceeded"),
    ("POST", "/v1/contacts", 422, "idempotency_key_reused"),
];

/// Documented, and seen to happen by another test, which is named.
const SEEN_ELSEWHERE: &[(&str, &str, u16, &str, &str)] = &[
    ("GET", "/health", 503, "", "tests/pipeline/outages.rs"),
    ("GET", "/v1/platform/health", 200, "", "tests/pipeline"),
    ("POST", "/v1/messages", 200, "", "tests/pipeline"),
    ("POST", "/v1/messages", 429, "message_rate_exceeded", "ingress/tests/mail"),
    ("POST", "/v1/messages", 429, "send_quota_exceeded", "ingress/tests/mail"),
    ("POST", "/v1/campaigns/{id}/launch", 429, "send_quota_exceeded", "ingress/tests/mail"),
];

fn documented(method: &str, path: &str, status: u16, code: &str) -> bool {
    let operation = &CONTRACT.document()["paths"][path][method.to_lowercase()];
    let Some(response) = operation["responses"].get(status.to_string()) else { return false };
    let schema = &CONTRACT.resolve(response)["content"]["application/json"]["schema"];
    let lists = |schema: &Value| {
        let schema = CONTRACT.resolve(schema);
        // Refusals narrow the shape of all errors; the report of the platform's health has a code of its own.
        let codes =
            [&schema["allOf"][1]["properties"], &schema["properties"]].map(|fields| fields["error"]["enum"].as_array());
        codes.into_iter().flatten().any(|codes| codes.iter().any(|known| known == code))
    };
    code.is_empty() || lists(schema) || schema["anyOf"].as_array().is_some_and(|any| any.iter().any(lists))
}

#[test]
fn every_row_is_documented() {
    for (method, path, status, code) in ROWS {
        assert!(documented(method, path, *status, code), "{method} {path} {status} {code}");
    }
    for (method, path, status, code, place) in SEEN_ELSEWHERE {
        assert!(documented(method, path, *status, code), "{method} {path} {status} {code} ({place})");
    }
}

/// What was seen.
#[derive(Default)]
struct Seen(BTreeSet<(String, String, u16, String)>);

impl Seen {
    /// Takes an answer as the row it must be.
    #[track_caller]
    fn row(&mut self, method: &str, path: &str, answer: &Answer, status: u16, code: &str) {
        assert_eq!(answer.refusal(), (status, code), "{method} {path}: {}", answer.body);
        let success = code.is_empty() && answer.status.is_success();
        assert!(!success || answer.body["ok"] == true, "every success body has ok: true");
        assert!(code.is_empty() || answer.body["ok"] == false);
        assert!(status != 429 || !answer.header("retry-after").is_empty(), "a 429 carries Retry-After");
        self.0.insert((method.to_owned(), path.to_owned(), status, code.to_owned()));
    }
}

#[tokio::test]
async fn every_row_of_the_specification_is_seen() {
    let ready = Ready::start().await;
    let mut seen = Seen::default();
    system(&ready, &mut seen).await;
    campaigns(&ready, &mut seen).await;
    launches(&ready, &mut seen).await;
    templates(&ready, &mut seen).await;
    people(&ready, &mut seen).await;
    sequences(&ready, &mut seen).await;
    mail(&ready, &mut seen).await;
    domains_and_senders(&ready, &mut seen).await;
    outcomes(&ready, &mut seen).await;
    analytics(&ready, &mut seen).await;
    webhooks(&ready, &mut seen).await;
    rules_for_all(&mut seen).await;
    let wanted: BTreeSet<_> =
        ROWS.iter().map(|(m, p, s, c)| ((*m).to_owned(), (*p).to_owned(), *s, (*c).to_owned())).collect();
    let missing: Vec<_> = wanted.difference(&seen.0).collect();
    let unlisted: Vec<_> = seen.0.difference(&wanted).collect();
    assert!(missing.is_empty() && unlisted.is_empty(), "not seen: {missing:?}; seen and not in ROWS: {unlisted:?}");
}

fn nobody() -> String {
    schemas::new_id().to_string()
}

async fn system(ready: &Ready, seen: &mut Seen) {
    let client = &ready.client;
    let health = Request::builder().uri("/health").body(Body::empty()).unwrap();
    seen.row("GET", "/health", &send(&client.router, health).await, 200, "");
    let platform = async |client: &Client| client.send(client.signed(Method::GET, "/v1/platform/health", b"")).await;
    let scope = "missing_scope:platform:health:read";
    seen.row("GET", "/v1/platform/health", &platform(client).await, 403, scope);
    let key = ready.edge.key(PRODUCT, Environment::Production, &[schemas::scope::PLATFORM_HEALTH_READ]).await;
    let operations = Client { key, ..client.clone() };
    // No stage runs beside a test of the ingress: sending is impaired, and it says so in the same shape.
    let answer = platform(&operations).await;
    assert_eq!(answer.body["overall"], "crit", "{}", answer.body);
    seen.row("GET", "/v1/platform/health", &answer, 503, "sending_impaired");
    let link = async |body: Value| client.post("/v1/tenants/link", body).await;
    let good = json!({"product_tenant_id": "new-1", "email": "owner@example.com"});
    seen.row("POST", "/v1/tenants/link", &link(good).await, 200, "");
    let bad = json!({"product_tenant_id": "new-1", "email": "nobody"});
    seen.row("POST", "/v1/tenants/link", &link(bad).await, 400, "validation_failed");
}

async fn campaigns(ready: &Ready, seen: &mut Seen) {
    let client = &ready.client;
    let create = async |change: Value| client.post("/v1/campaigns", ready.campaign_body(change)).await;
    let made = create(json!({})).await;
    seen.row("POST", "/v1/campaigns", &made, 201, "");
    assert_eq!((&made.body["status"], &made.body["email_type"]), (&json!("draft"), &json!("marketing")));
    for (change, status, code) in [
        (json!({"name": ""}), 400, "validation_failed"),
        (json!({"list_id": nobody()}), 404, "list_not_found"),
        (json!({"audience_mode": "segment", "list_id": null, "segment_id": nobody()}), 404, "segment_not_found"),
        (json!({"sender_profile_id": nobody()}), 404, "sender_profile_not_found"),
        (json!({"template_id": nobody()}), 404, "template_not_found"),
    ] {
        seen.row("POST", "/v1/campaigns", &create(change).await, status, code);
    }
    seen.row("GET", "/v1/campaigns", &client.get("/v1/campaigns?status=draft&limit=200").await, 200, "");
    for query in ["limit=201", "limit=0", "status=gone"] {
        seen.row(
            "GET",
            "/v1/campaigns",
            &client.get(&format!("/v1/campaigns?{query}")).await,
            400,
            "validation_failed",
        );
    }
    let path = format!("/v1/campaigns/{}", made.text("campaign_id"));
    let one = client.get(&path).await;
    assert!(one.body["campaign"].is_object() && one.body["send_counts"].is_object());
    seen.row("GET", "/v1/campaigns/{id}", &one, 200, "");
    let missing = client.get(&format!("/v1/campaigns/{}", nobody())).await;
    seen.row("GET", "/v1/campaigns/{id}", &missing, 404, "campaign_not_found");
    seen.row("PATCH", "/v1/campaigns/{id}", &client.patch(&path, json!({"name": "Other"})).await, 200, "");
}

async fn launches(ready: &Ready, seen: &mut Seen) {
    const LAUNCH: &str = "/v1/campaigns/{id}/launch";
    let client = &ready.client;
    let launch = async |id: &str| client.post(&LAUNCH.replace("{id}", id), json!({})).await;
    for status in ["scheduled", "sending", "sent", "cancelled"] {
        let id = ready.campaign(json!({})).await;
        ready.set_status(&id, status).await;
        seen.row("POST", LAUNCH, &launch(&id).await, 409, &format!("campaign_already_{status}"));
    }
    let pool = &ready.edge.pool;
    let id = ready.campaign(json!({})).await;
    let mut other = pool.begin().await.unwrap();
    stage_rig::run!(&mut *other, "select begin_preflight($1, $2::uuid)", [client.tenant, &id]);
    seen.row("POST", LAUNCH, &launch(&id).await, 409, "campaign_already_preflight");
    other.rollback().await.unwrap();
    let empty = fixtures::audience(pool, client.tenant, "list", "nobody", 0).await;
    let id = ready.campaign(json!({"list_id": empty})).await;
    seen.row("POST", LAUNCH, &launch(&id).await, 422, "audience_resolved_to_zero_contacts");
    let unproven = fixtures::sender(pool, client.tenant, "unproven.test", "pending").await;
    let id = ready.campaign(json!({"sender_profile_id": unproven})).await;
    seen.row("POST", LAUNCH, &launch(&id).await, 422, "sender_missing_verified_domain");
    let gone = fixtures::audience(pool, client.tenant, "list", "gone", 1).await;
    let id = ready.campaign(json!({"list_id": gone})).await;
    client.post("/v1/suppressions", json!({"email": "gone1@example.com"})).await;
    seen.row("POST", LAUNCH, &launch(&id).await, 422, "all_contacts_suppressed_or_bounced");
    let launched = launch(&ready.campaign(json!({})).await).await;
    assert_eq!((&launched.body["queued"], &launched.body["scheduled_for"]), (&json!(3), &Value::Null));
    seen.row("POST", LAUNCH, &launched, 202, "");
}

async fn templates(ready: &Ready, seen: &mut Seen) {
    let client = &ready.client;
    let body = json!({"name": "T", "subject": "S", "body_html": "<p>B</p>"});
    let made = client.post("/v1/templates", body).await;
    assert_eq!((&made.body["status"], &made.body["version"]), (&json!("active"), &json!(1)));
    seen.row("POST", "/v1/templates", &made, 201, "");
    seen.row("GET", "/v1/templates", &client.get("/v1/templates?status=active&limit=200").await, 200, "");
    for query in ["limit=201", "status=gone"] {
        seen.row(
            "GET",
            "/v1/templates",
            &client.get(&format!("/v1/templates?{query}")).await,
            400,
            "validation_failed",
        );
    }
    let path = format!("/v1/templates/{}", made.text("template_id"));
    seen.row("GET", "/v1/templates/{id}", &client.get(&path).await, 200, "");
    let missing = client.get(&format!("/v1/templates/{}", nobody())).await;
    seen.row("GET", "/v1/templates/{id}", &missing, 404, "template_not_found");
    seen.row("PATCH", "/v1/templates/{id}", &client.patch(&path, json!({"status": "draft"})).await, 200, "");
    seen.row("DELETE", "/v1/templates/{id}", &client.delete(&path, json!({})).await, 200, "");
}

async fn people(ready: &Ready, seen: &mut Seen) {
    let client = &ready.client;
    seen.row(
        "POST",
        "/v1/imports",
        &client.post("/v1/imports", json!({"csv": "email\nx@example.com\n"})).await,
        200,
        "",
    );
    let csv = format!("email\n{}", "x@example.com\n".repeat(50_001));
    seen.row("POST", "/v1/imports", &client.post("/v1/imports", json!({"csv": csv})).await, 413, "too_many_rows");
    let made = client.post("/v1/contacts", json!({"email": "ann@example.com"})).await;
    seen.row("POST", "/v1/contacts", &made, 201, "");
    let path = format!("/v1/contacts/{}", made.text("contact_id"));
    seen.row("GET", "/v1/contacts", &client.get("/v1/contacts").await, 200, "");
    seen.row("GET", "/v1/contacts/{id}", &client.get(&path).await, 200, "");
    seen.row("PATCH", "/v1/contacts/{id}", &client.patch(&path, json!({"first_name": "Ann"})).await, 200, "");
    seen.row("DELETE", "/v1/contacts/{id}", &client.delete(&path, json!({})).await, 200, "");
    for (path, body) in [
        ("/v1/audiences", json!({"kind": "list", "name": "News"})),
        ("/v1/segments", json!({"name": "Named", "rule": {"field": "first_name", "op": "exists"}})),
        ("/v1/fields", json!({"key": "plan", "label": "Plan", "type": "string"})),
        ("/v1/suppressions", json!({"email": "bob@example.com"})),
    ] {
        seen.row("POST", path, &client.post(path, body).await, 201, "");
        seen.row("GET", path, &client.get(path).await, 200, "");
    }
    let lifted = client.delete("/v1/suppressions", json!({"email": "bob@example.com"})).await;
    seen.row("DELETE", "/v1/suppressions", &lifted, 200, "");
}

async fn sequences(ready: &Ready, seen: &mut Seen) {
    const ALL: &str = "/v1/sequences";
    const ONE: &str = "/v1/sequences/{id}";
    const ENROLL: &str = "/v1/enrollments";
    let client = &ready.client;
    let template = ready.template(json!({})).await;
    let create = async |sender: Value, template: &str, activate: bool| {
        let steps = json!([{"step_type": "send_email", "template_id": template}, {"step_type": "wait"}]);
        let body = json!({"name": "S", "sender_profile_id": sender, "activate": activate, "steps": steps});
        client.post(ALL, body).await
    };
    let draft = create(Value::Null, &template, false).await;
    assert_eq!((&draft.body["status"], &draft.body["steps"][1]["step_order"]), (&json!("draft"), &json!(2)));
    seen.row("POST", ALL, &draft, 201, "");
    let unsent = create(Value::Null, &template, true).await;
    seen.row("POST", ALL, &unsent, 409, "sender_profile_required_to_activate");
    seen.row("POST", ALL, &create(json!(ready.sender), &nobody(), false).await, 404, "template_not_found");
    seen.row("POST", ALL, &create(json!(nobody()), &template, false).await, 404, "sender_profile_not_found");
    seen.row("GET", ALL, &client.get("/v1/sequences?status=draft").await, 200, "");
    seen.row("GET", ALL, &client.get("/v1/sequences?status=gone").await, 400, "validation_failed");
    let draft = ONE.replace("{id}", &draft.text("sequence_id"));
    let one = client.get(&draft).await;
    assert!(one.body["sequence"].is_object() && one.body["steps"][0]["step_type"] == "send_email");
    seen.row("GET", ONE, &one, 200, "");
    seen.row("GET", ONE, &client.get(&ONE.replace("{id}", &nobody())).await, 404, "sequence_not_found");
    let to = async |path: &str, status: &str| client.patch(path, json!({"status": status})).await;
    seen.row("PATCH", ONE, &to(&draft, "active").await, 409, "sender_profile_required_to_activate");
    seen.row("PATCH", ONE, &to(&draft, "paused").await, 409, "invalid_status_transition");
    let active = create(json!(ready.sender), &template, true).await.text("sequence_id");
    let path = ONE.replace("{id}", &active);
    let enroll = async |email: &str| client.post(ENROLL, json!({"sequence_id": active, "email": email})).await;
    seen.row("POST", ENROLL, &enroll("first@example.com").await, 201, "");
    seen.row("POST", ENROLL, &enroll("first@example.com").await, 409, "already_enrolled");
    seen.row("PATCH", ONE, &to(&path, "paused").await, 200, "");
    seen.row("POST", ENROLL, &enroll("second@example.com").await, 409, "sequence_not_active");
    // Nothing makes such a sequence; the answer is there all the same.
    sqlx::query("delete from sequence_steps").execute(&ready.edge.pool).await.unwrap();
    seen.row("PATCH", ONE, &to(&path, "active").await, 409, "sequence_has_no_steps");
    sqlx::query("update sequences set status = 'active'").execute(&ready.edge.pool).await.unwrap();
    seen.row("POST", ENROLL, &enroll("second@example.com").await, 409, "sequence_has_no_steps");
}

async fn mail(ready: &Ready, seen: &mut Seen) {
    let client = &ready.client;
    let send = async |template: &str| {
        client.post("/v1/transactional", json!({"template_id": template, "email": "ann@example.com"})).await
    };
    let accepted = send(&ready.template(json!({})).await).await;
    assert_eq!(accepted.body["status"], "scheduled");
    seen.row("POST", "/v1/transactional", &accepted, 202, "");
    seen.row("POST", "/v1/transactional", &send(&nobody()).await, 404, "template_not_found");
    let message = async |sender: &str, class: &str| {
        let body = json!({
            "sender_id": sender, "to": [{"email": "ann@example.com", "name": "Ann"}], "subject": "S", "html": "<p>H</p>",
            "message_class": class,
        });
        client.post("/v1/messages", body).await
    };
    seen.row("POST", "/v1/messages", &message(&nobody(), "business").await, 403, "domain_not_verified");
    let marketing = message(&ready.sender.to_string(), "marketing").await;
    seen.row("POST", "/v1/messages", &marketing, 422, "use_campaigns_for_marketing");
}

async fn domains_and_senders(ready: &Ready, seen: &mut Seen) {
    const VERIFY: &str = "/v1/domains/{id}/verify";
    let client = &ready.client;
    let claim = async |name: &str| client.post("/v1/domains", json!({"domain": name})).await;
    let claimed = claim("new.test").await;
    seen.row("POST", "/v1/domains", &claimed, 200, "");
    let again = claim("new.test").await;
    assert_eq!(
        (&again.body["already_existed"], &again.body["dns_records"]),
        (&json!(true), &claimed.body["dns_records"])
    );
    let stranger = ready.edge.client_for(PRODUCT, Environment::Production, "tenant-2").await;
    fixtures::domain(&ready.edge.pool, stranger.tenant, "taken.test", "verified").await;
    seen.row("POST", "/v1/domains", &claim("taken.test").await, 409, "domain_claimed_by_another_tenant");
    seen.row("POST", "/v1/domains", &claim("x.postrider.dev").await, 422, "platform_domain_not_allowed");
    seen.row("POST", "/v1/domains", &claim("gmail.com").await, 422, "freemail_domain_not_allowed");
    seen.row("GET", "/v1/domains", &client.get("/v1/domains").await, 200, "");
    let verify = async |id: &str| client.post(&VERIFY.replace("{id}", id), json!({})).await;
    seen.row("POST", VERIFY, &verify(&nobody()).await, 404, "domain_not_found");
    // The fixture's domains have no private key.
    let keyless = fixtures::domain(&ready.edge.pool, client.tenant, "keyless.test", "pending").await;
    seen.row("POST", VERIFY, &verify(&keyless.to_string()).await, 409, "domain_missing_provider_record");
    let sandbox = ready.edge.client_for(PRODUCT, Environment::Sandbox, "sandbox-1").await;
    let id = sandbox.post("/v1/domains", json!({"domain": "acme.test"})).await.text("domain_id");
    let verified = sandbox.post(&VERIFY.replace("{id}", &id), json!({})).await;
    assert_eq!(verified.body["status"], "verified");
    seen.row("POST", VERIFY, &verified, 200, "");

    let sender = async |email: &str, address: Value| {
        client.post("/v1/senders", json!({"email": email, "name": "N", "physical_address": address})).await
    };
    seen.row("POST", "/v1/senders", &sender("b@acme.test", json!("1 Main Street")).await, 200, "");
    let unknown = sender("a@unknown.test", json!("x")).await;
    seen.row("POST", "/v1/senders", &unknown, 422, "domain_not_found_for_tenant");
    seen.row("POST", "/v1/senders", &sender("a@new.test", json!("x")).await, 422, "domain_not_verified");
    seen.row("POST", "/v1/senders", &sender("c@acme.test", Value::Null).await, 422, "physical_address_required");
    seen.row("GET", "/v1/senders", &client.get("/v1/senders").await, 200, "");
}

async fn outcomes(ready: &Ready, seen: &mut Seen) {
    const ALL: &str = "/v1/outcomes";
    let client = &ready.client;
    let told = json!({"contact_email": "outcome@example.com", "outcome_type": "bind", "source_event_id": "e"});
    seen.row("POST", ALL, &client.post(ALL, told).await, 200, "");
    seen.row("POST", ALL, &client.post(ALL, json!({"outcome_type": "bind"})).await, 400, "validation_failed");
    for (email, number) in [("outcome@example.com", 901), ("other.outcome@example.com", 902)] {
        client.post("/v1/contacts", json!({"email": email, "dot_number": number})).await;
    }
    let both = json!({"contact_email": "outcome@example.com", "dot_number": 902, "outcome_type": "bind"});
    seen.row("POST", ALL, &client.post(ALL, both).await, 422, "contact_conflict");
}

async fn analytics(ready: &Ready, seen: &mut Seen) {
    const ONE: &str = "/v1/analytics/campaigns/{id}";
    let client = &ready.client;
    seen.row("GET", "/v1/analytics/overview", &client.get("/v1/analytics/overview").await, 200, "");
    let id = ready.campaign(json!({})).await;
    seen.row("GET", ONE, &client.get(&ONE.replace("{id}", &id)).await, 200, "");
    seen.row("GET", ONE, &client.get(&ONE.replace("{id}", &nobody())).await, 404, "campaign_not_found");
}

async fn webhooks(ready: &Ready, seen: &mut Seen) {
    const ALL: &str = "/v1/webhooks";
    const ONE: &str = "/v1/webhooks/{id}";
    let client = &ready.client;
    let subscribe = async || {
        client.post(ALL, json!({"url": "https://app.acme.example/hooks", "events": ["email.delivered"]})).await
    };
    let made = subscribe().await;
    seen.row("POST", ALL, &made, 201, "");
    let path = ONE.replace("{id}", &made.text("subscription_id"));
    for _ in 1..10 {
        assert_eq!(subscribe().await.status, 201);
    }
    seen.row("POST", ALL, &subscribe().await, 409, "subscription_limit_reached");
    seen.row("GET", ALL, &client.get(ALL).await, 200, "");
    seen.row("PATCH", ONE, &client.patch(&path, json!({"status": "paused"})).await, 200, "");
    seen.row("DELETE", ONE, &client.delete(&path, json!({})).await, 200, "");
    let resumed = client.patch(&path, json!({"status": "active"})).await;
    seen.row("PATCH", ONE, &resumed, 409, "invalid_status_transition");
}

async fn rules_for_all(seen: &mut Seen) {
    let mut settings = settings();
    settings.rate_limit_per_minute = 3;
    let edge = crate::common::Edge::with(settings).await;
    let client = edge.client().await;
    let key = edge.key(PRODUCT, Environment::Production, &["contacts:write"]).await;
    let writer = Client { key, ..client.clone() };
    seen.row("GET", "/v1/contacts", &writer.get("/v1/contacts").await, 403, "missing_scope:contacts:read");
    let body = |name: &str| json!({"email": "ann@example.com", "first_name": name});
    assert_eq!(writer.post_once("k", "/v1/contacts", body("A")).await.status, 201);
    let reused = writer.post_once("k", "/v1/contacts", body("B")).await;
    seen.row("POST", "/v1/contacts", &reused, 422, "idempotency_key_reused");
    for _ in 0..4 {
        let answer = client.get("/v1/contacts").await;
        if answer.status == 429 {
            seen.row("GET", "/v1/contacts", &answer, 429, "rate_limit_exceeded");
        }
    }
}
