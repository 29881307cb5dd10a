//! Webhook subscriptions: who may be told what, where, how many, and with which secret.

use http::Method;
use rstest::rstest;
use runtime::{MasterKeys, Vault};
use schemas::{
    Environment, Event,
    webhook::{CallSigner, SECRET_PURPOSE, WebhookSecret},
};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::common::{Answer, Client, Edge, PRODUCT};

const PATH: &str = "/v1/webhooks";
const HOOK: &str = "https://app.acme.example/hooks";

fn wish() -> Value {
    json!({"url": HOOK, "events": ["email.delivered", "email.bounced"]})
}

async fn subscribe(client: &Client) -> String {
    let answer = client.post(PATH, wish()).await;
    assert_eq!(answer.status, 201, "{}", answer.body);
    answer.text("subscription_id")
}

async fn set_status(client: &Client, id: &str, status: &str) -> Answer {
    client.patch(&format!("{PATH}/{id}"), json!({"status": status})).await
}

/// As the webhooks stage does it.
async fn disable(edge: &Edge, id: &str, reason: &str) {
    let sql =
        "update webhook_subscriptions set status = 'disabled', disabled_at = now(), disabled_reason = $2 where id = $1";
    stage_rig::run!(&edge.pool, sql, [id.parse::<Uuid>().unwrap(), reason]);
}

/// The secrets a subscription's deliveries are signed with now, newest first.
async fn secrets(edge: &Edge, client: &Client, id: &str) -> Vec<WebhookSecret> {
    let (newest, before): (Vec<u8>, Option<Vec<u8>>) = sqlx::query_as(
        "select secret, case when previous_until > now() then previous_secret end from webhook_subscriptions where id = $1",
    )
    .bind(id.parse::<Uuid>().unwrap())
    .fetch_one(&edge.pool)
    .await
    .unwrap();
    let vault = Vault::new(&MasterKeys::parse(&"5a".repeat(32)).unwrap()).unwrap();
    let open = |sealed: Vec<u8>| {
        let text = vault.open(client.tenant, SECRET_PURPOSE, &sealed).unwrap();
        WebhookSecret::parse(std::str::from_utf8(&text).unwrap()).unwrap()
    };
    std::iter::once(newest).chain(before).map(open).collect()
}

#[tokio::test]
async fn a_secret_is_told_once_and_is_the_one_that_signs() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let made = client.post(PATH, wish()).await;
    assert_eq!(made.status, 201, "{}", made.body);
    let (id, secret) = (made.text("subscription_id"), made.text("signing_secret"));
    assert_eq!(secrets(&edge, &client, &id).await, [WebhookSecret::parse(&secret).unwrap()]);
    let subscription = made.body["subscription"].clone();
    assert_eq!((&subscription["status"], &subscription["events"]), (&json!("active"), &wish()["events"]));
    let read = client.get(&format!("{PATH}/{id}")).await;
    assert_eq!(read.body["subscription"], subscription);
    for answer in [read, client.get(PATH).await, client.patch(&format!("{PATH}/{id}"), json!({})).await] {
        assert!(!answer.body.to_string().contains("whsec_"), "{}", answer.body);
    }
    // Nowhere in the database either.
    let rows: String = sqlx::query_scalar("select string_agg(s::text, '') from webhook_subscriptions s")
        .fetch_one(&edge.pool)
        .await
        .unwrap();
    assert!(!rows.contains(&secret) && !rows.contains(&hex::encode(secret.as_bytes())));
}

#[tokio::test]
async fn a_repeat_hears_the_same_secret_which_is_kept_encrypted() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let first = client.post_once("k-1", PATH, wish()).await;
    let id = first.text("subscription_id");
    let again = client.post_once("k-1", PATH, wish()).await;
    assert_eq!((again.status, &again.bytes), (first.status, &first.bytes));
    assert_eq!(again.header("idempotency-replayed"), "true");
    let rotate = format!("{PATH}/{id}/rotate_secret");
    let rotated = client.post_once("k-2", &rotate, json!({})).await;
    assert_eq!(client.post_once("k-2", &rotate, json!({})).await.bytes, rotated.bytes);
    let stored: Vec<Vec<u8>> =
        sqlx::query_scalar("select body from idempotency_keys").fetch_all(&edge.pool).await.unwrap();
    assert_eq!(stored.len(), 2);
    for body in stored {
        assert!(!String::from_utf8_lossy(&body).contains("whsec_"));
    }
    assert_eq!(edge.count("select count(*) from webhook_subscriptions").await, 1);
}

#[rstest]
#[case(json!({}), &["url:required", "events:required"])]
#[case(json!({"url": "http://a.example/", "events": ["email.sent"]}), &["url:not_https"])]
#[case(json!({"url": "https://10.0.0.1/", "events": ["email.sent"]}), &["url:address_not_allowed"])]
#[case(json!({"url": "https://[::ffff:127.0.0.1]/", "events": ["email.sent"]}), &["url:address_not_allowed"])]
#[case(json!({"url": "https://2130706433/", "events": ["email.sent"]}), &["url:address_not_allowed"])]
#[case(json!({"url": "https://metadata.google.internal/", "events": ["email.sent"]}), &["url:address_not_allowed"])]
#[case(json!({"url": "https://api.postrider.dev/", "events": ["email.sent"]}), &["url:address_not_allowed"])]
#[case(json!({"url": "https://u:p@a.example/", "events": ["email.sent"]}), &["url:credentials_not_allowed"])]
#[case(json!({"url": "https://a.example:22/", "events": ["email.sent"]}), &["url:port_not_allowed"])]
#[case(json!({"url": "nonsense", "events": []}), &["url:invalid", "events:empty"])]
#[case(json!({"url": HOOK, "events": ["email.sent", "email.lost", "*"]}), &["events[1]:not_allowed", "events[2]:not_allowed"])]
#[case(json!({"url": HOOK, "events": ["webhook.test"]}), &["events[0]:not_allowed"])]
#[case(json!({"url": HOOK, "events": ["email.sent"], "description": "x".repeat(501)}), &["description:too_long"])]
#[tokio::test]
async fn what_cannot_be_delivered_to_is_refused_with_every_fault(#[case] body: Value, #[case] expected: &[&str]) {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let refused = client.post(PATH, body).await;
    assert_eq!(refused.status, 400, "{}", refused.body);
    let found: Vec<String> = refused.faults().iter().map(|(path, code)| format!("{path}:{code}")).collect();
    assert_eq!(found, expected);
}

#[tokio::test]
async fn twenty_may_be_kept_however_few_are_active() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    for _ in 0..20 {
        let id = subscribe(&client).await;
        assert_eq!(set_status(&client, &id, "paused").await.status, 200);
    }
    assert_eq!(client.post(PATH, wish()).await.refusal(), (409, "subscription_limit_reached"));
}

#[tokio::test]
async fn ten_may_be_active_for_a_tenant_and_product_however_many_ask_at_once() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let other = client.at(edge.another().await);
    let answers = futures::future::join_all((0..24).map(|number| {
        let at = if number % 2 == 0 { client.clone() } else { other.clone() };
        async move { at.post(PATH, wish()).await }
    }))
    .await;
    let of = |status: u16| answers.iter().filter(|answer| answer.status.as_u16() == status).count();
    assert_eq!((of(201), of(409)), (10, 14));
    assert_eq!(client.post(PATH, wish()).await.refusal(), (409, "subscription_limit_reached"));
    // A paused one makes room, and needs room to come back.
    let ids: Vec<String> =
        answers.iter().filter(|answer| answer.status == 201).map(|answer| answer.text("subscription_id")).collect();
    assert_eq!(set_status(&client, &ids[0], "paused").await.status, 200);
    subscribe(&client).await;
    assert_eq!(set_status(&client, &ids[0], "active").await.refusal(), (409, "subscription_limit_reached"));
    client.delete(&format!("{PATH}/{}", ids[1]), json!({})).await;
    assert_eq!(set_status(&client, &ids[0], "active").await.status, 200);
    // To set what is so already needs none.
    assert_eq!(set_status(&client, &ids[0], "active").await.status, 200);
}

#[tokio::test]
async fn the_limit_is_each_products_own() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    for _ in 0..10 {
        subscribe(&client).await;
    }
    // Another product of the same tenant.
    let shop = edge.client_for("shop", Environment::Production, "tenant-9").await;
    sqlx::query("update tenant_links set tenant_id = $1 where product = 'shop'")
        .bind(client.tenant)
        .execute(&edge.pool)
        .await
        .unwrap();
    let id = subscribe(&shop).await;
    assert_eq!(client.get(&format!("{PATH}/{id}")).await.refusal(), (404, "subscription_not_found"));
    assert_eq!(shop.get(PATH).await.body["subscriptions"].as_array().unwrap().len(), 1);
    assert_eq!(client.get(PATH).await.body["subscriptions"].as_array().unwrap().len(), 10);
}

#[tokio::test]
async fn statuses_move_as_the_specification_has_them() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let id = subscribe(&client).await;
    for (status, seen) in [("paused", "paused"), ("paused", "paused"), ("active", "active")] {
        assert_eq!(set_status(&client, &id, status).await.body["subscription"]["status"], seen);
    }
    let odd = set_status(&client, &id, "disabled").await;
    assert_eq!((odd.status.as_u16(), odd.faults()), (400, vec![("status".to_owned(), "not_allowed".to_owned())]));
    let path = format!("{PATH}/{id}");
    for _ in 0..2 {
        let removed = client.delete(&path, json!({})).await;
        assert_eq!(removed.body, json!({"ok": true, "subscription_id": id, "status": "disabled"}));
    }
    let read = client.get(&path).await.body["subscription"].clone();
    assert_eq!((&read["status"], &read["disabled_reason"]), (&json!("disabled"), &json!("deleted")));
    for body in [json!({"status": "active"}), json!({"status": "paused"}), json!({"url": HOOK})] {
        assert_eq!(client.patch(&path, body).await.refusal(), (409, "invalid_status_transition"));
    }
    for act in ["test", "rotate_secret"] {
        assert_eq!(client.post(&format!("{path}/{act}"), json!({})).await.refusal(), (409, "subscription_not_active"));
    }
    let gone = subscribe(&client).await;
    disable(&edge, &gone, "gone").await;
    assert_eq!(client.get(&format!("{PATH}/{gone}")).await.body["subscription"]["disabled_reason"], "gone");
    assert_eq!(client.get(&format!("{PATH}?status=disabled")).await.body["subscriptions"].as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn a_change_keeps_what_it_does_not_name_and_another_address_starts_afresh() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let id = subscribe(&client).await;
    let path = format!("{PATH}/{id}");
    sqlx::query("update webhook_subscriptions set failing_since = now()").execute(&edge.pool).await.unwrap();
    let described = client.patch(&path, json!({"description": "CRM"})).await.body["subscription"].clone();
    assert_eq!((&described["description"], &described["url"]), (&json!("CRM"), &json!(HOOK)));
    assert!(described["failing_since"].is_string());
    let moved = client.patch(&path, json!({"url": "https://other.example/", "events": ["email.sent"]})).await;
    let moved = moved.body["subscription"].clone();
    assert_eq!((&moved["url"], &moved["events"]), (&json!("https://other.example/"), &json!(["email.sent"])));
    assert_eq!((&moved["failing_since"], &moved["description"]), (&Value::Null, &json!("CRM")));
    assert!(client.patch(&path, json!({"description": null})).await.body["subscription"]["description"].is_null());
    for field in ["url", "events", "status"] {
        let refused = client.patch(&path, json!({field: null})).await;
        assert_eq!(refused.faults(), [(field.to_owned(), "required".to_owned())]);
    }
}

#[tokio::test]
async fn somebody_listens_while_a_subscription_is_not_disabled() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let listening = || edge.count("select count(*) from event_listeners");
    assert_eq!(listening().await, 0);
    let id = subscribe(&client).await;
    assert_eq!(listening().await, 1);
    set_status(&client, &id, "paused").await;
    assert_eq!(listening().await, 1);
    client.delete(&format!("{PATH}/{id}"), json!({})).await;
    assert_eq!(listening().await, 0);
}

#[tokio::test]
async fn after_a_rotation_both_secrets_sign_for_a_day_and_after_two_the_first_is_gone() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let made = client.post(PATH, wish()).await;
    let (id, first) = (made.text("subscription_id"), made.text("signing_secret"));
    let rotate = async || client.post(&format!("{PATH}/{id}/rotate_secret"), json!({})).await;
    let rotated = rotate().await;
    assert_eq!(rotated.status, 200, "{}", rotated.body);
    let second = rotated.text("signing_secret");
    let exposed = async || secrets(&edge, &client, &id).await.iter().map(WebhookSecret::expose).collect::<Vec<_>>();
    assert_eq!(exposed().await, [second.clone(), first]);
    let shown = client.get(&format!("{PATH}/{id}")).await.body["subscription"]["previous_secret_until"].clone();
    assert_eq!(shown, rotated.body["previous_secret_until"]);
    let left: f64 =
        sqlx::query_scalar("select extract(epoch from previous_until - now())::float8 from webhook_subscriptions")
            .fetch_one(&edge.pool)
            .await
            .unwrap();
    assert!((23.0 * 3600.0..=24.0 * 3600.0).contains(&left), "{left}");
    let third = rotate().await.text("signing_secret");
    assert_eq!(exposed().await, [third.clone(), second]);
    // A day later.
    sqlx::query("update webhook_subscriptions set previous_until = now()").execute(&edge.pool).await.unwrap();
    assert_eq!(exposed().await, [third]);
    assert!(client.get(&format!("{PATH}/{id}")).await.body["subscription"]["previous_secret_until"].is_null());
}

#[tokio::test]
async fn the_secret_of_calls_is_the_tenants_and_products_own_and_stays_until_it_is_rotated() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let other = edge.client_for(PRODUCT, Environment::Production, "tenant-2").await;
    let path = "/v1/webhooks/call_secret";
    let told = client.get(path).await.text("signing_secret");
    let vault = Vault::new(&MasterKeys::parse(&"5a".repeat(32)).unwrap()).unwrap();
    let signer =
        |product, generation, is_rotating| CallSigner { tenant: client.tenant, product, generation, is_rotating };
    assert_eq!(vault.call_secrets(signer(PRODUCT, 0, false))[0].expose(), told);
    assert_ne!(vault.call_secrets(signer("another", 0, false))[0].expose(), told);
    assert_eq!(client.at(edge.another().await).get(path).await.text("signing_secret"), told);
    assert_ne!(other.get(path).await.text("signing_secret"), told);
    let rotated = client.post("/v1/webhooks/call_secret/rotate", json!({})).await;
    let fresh = rotated.text("signing_secret");
    assert_eq!(client.get(path).await.text("signing_secret"), fresh);
    let both: Vec<String> = vault.call_secrets(signer(PRODUCT, 1, true)).iter().map(WebhookSecret::expose).collect();
    assert_eq!(both, [fresh, told]);
    assert_eq!(edge.count("select count(*) from audit_log where action = 'webhook.call_secret_rotated'").await, 1);
}

#[tokio::test]
async fn a_change_of_where_events_go_is_audited() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let made = client.post(PATH, json!({"url": "https://app.acme.example/hooks", "events": ["email.opened"]})).await;
    let path = format!("{PATH}/{}", made.body["subscription"]["subscription_id"].as_str().unwrap());
    for body in [json!({"url": "https://app.acme.example/other"}), json!({"description": "no change of that"})] {
        assert_eq!(client.patch(&path, body).await.status, 200);
    }
    let audited: Vec<Value> = sqlx::query_scalar("select detail from audit_log where action = 'webhook.changed'")
        .fetch_all(&edge.pool)
        .await
        .unwrap();
    assert_eq!(audited, [json!({"fields": ["url"], "status": null})]);
}

#[tokio::test]
async fn a_test_is_a_notice_for_this_subscription_alone() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let id = subscribe(&client).await;
    subscribe(&client).await;
    let asked = client.post(&format!("{PATH}/{id}/test"), json!({})).await;
    assert_eq!(asked.status, 202, "{}", asked.body);
    let event: Uuid = asked.text("event_id").parse().unwrap();
    assert_eq!(asked.text("delivery_id"), Event::delivery_of(id.parse().unwrap(), event).to_string());
    let (kind, product, subject): (String, String, Uuid) =
        sqlx::query_as("select type, product, subject_id from notices where id = $1")
            .bind(event)
            .fetch_one(&edge.pool)
            .await
            .unwrap();
    assert_eq!((kind.as_str(), product.as_str(), subject.to_string()), ("webhook.test", PRODUCT, id.clone()));
    assert_eq!(edge.count("select count(*) from outbox where source = 'notices'").await, 1);
    set_status(&client, &id, "paused").await;
    let held = client.post(&format!("{PATH}/{id}/test"), json!({})).await;
    assert_eq!(held.refusal(), (409, "subscription_not_active"));
}

/// Deliveries as the webhooks stage writes them.
async fn deliver(edge: &Edge, client: &Client, subscription: &str, kind: &str, status: &str) -> Uuid {
    let (subscription, event): (Uuid, Uuid) = (subscription.parse().unwrap(), Uuid::new_v4());
    let id = Event::delivery_of(subscription, event);
    let body = format!(r#"{{"id":"{event}","type":"{kind}",  "spaced": 1}}"#);
    let sql = "insert into webhook_events (tenant_id, product, id, body) values ($1, $2, $3, $4)";
    stage_rig::run!(&edge.pool, sql, [client.tenant, &client.product, event, body.as_bytes()]);
    let sql = "insert into webhook_deliveries (tenant_id, id, subscription_id, product, event_id, type, status, attempts, status_code)
         values ($1, $2, $3, $4, $5, $6, 'pending', 2, 503)";
    stage_rig::run!(&edge.pool, sql, [client.tenant, id, subscription, &client.product, event, kind]);
    // It waits in the queue until it ends.
    let next = match status {
        "pending" => {
            "insert into webhook_queue select tenant_id, subscription_id, created_at, id from webhook_deliveries where id = $1 and $2 = status"
        }
        _ => "update webhook_deliveries set status = $2 where id = $1",
    };
    sqlx::query(next).bind(id).bind(status).execute(&edge.pool).await.unwrap();
    id
}

#[tokio::test]
async fn deliveries_are_listed_newest_first_by_status_and_event() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let (id, neighbour) = (subscribe(&client).await, subscribe(&client).await);
    for (kind, status) in [
        ("email.bounced", "delivered"),
        ("email.delivered", "dead"),
        ("email.delivered", "pending"),
        ("webhook.test", "dead"),
    ] {
        deliver(&edge, &client, &id, kind, status).await;
    }
    deliver(&edge, &client, &neighbour, "email.delivered", "dead").await;
    let list = async |query: &str| {
        let answer = client.get(&format!("{PATH}/{id}/deliveries{query}")).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        answer.body["deliveries"].as_array().unwrap().len()
    };
    assert_eq!(list("").await, 4);
    assert_eq!((list("?status=dead").await, list("?status=pending").await, list("?status=delivered").await), (2, 1, 1));
    assert_eq!(list("?event=email.delivered").await, 2);
    assert_eq!(list("?status=dead&event=webhook.test").await, 1);
    assert_eq!(list("?status=pending&event=email.delivered").await, 1);
    assert_eq!((list("?event=email.bounced").await, list("?status=delivered&event=email.delivered").await), (1, 0));
    for (query, path) in [("?status=lost", "status"), ("?event=email.lost", "event"), ("?limit=0", "limit")] {
        let refused = client.get(&format!("{PATH}/{id}/deliveries{query}")).await;
        assert_eq!((refused.status.as_u16(), refused.faults()[0].0.as_str()), (400, path));
    }
    // Page by page, each once.
    let mut seen = Vec::new();
    let mut cursor = String::new();
    loop {
        let page = client.get(&format!("{PATH}/{id}/deliveries?limit=3{cursor}")).await.body;
        let ids = page["deliveries"].as_array().unwrap().iter().map(|delivery| delivery["delivery_id"].to_string());
        seen.extend(ids);
        let Some(next) = page["next_cursor"].as_str() else { break };
        cursor = format!("&cursor={next}");
    }
    assert_eq!(seen.len(), 4);
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), 4);
}

#[tokio::test]
async fn a_delivery_shows_the_very_bytes_until_whom_they_are_about_is_erased() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let id = subscribe(&client).await;
    let delivery = deliver(&edge, &client, &id, "email.delivered", "dead").await;
    let path = format!("/v1/webhooks/deliveries/{delivery}");
    let shown = client.get(&path).await;
    assert_eq!(shown.body["delivery"]["status_code"], 503);
    assert!(String::from_utf8_lossy(&shown.bytes).contains(r#""type":"email.delivered",  "spaced": 1}"#));
    sqlx::query("delete from webhook_events").execute(&edge.pool).await.unwrap();
    assert!(client.get(&path).await.body["body"].is_null());
    for stranger in [
        edge.client_for(PRODUCT, Environment::Production, "tenant-2").await,
        edge.client_for("shop", Environment::Production, "tenant-1").await,
    ] {
        assert_eq!(stranger.get(&path).await.refusal(), (404, "delivery_not_found"));
    }
}

#[tokio::test]
async fn replays_are_of_the_past_and_one_at_a_time() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let id = subscribe(&client).await;
    let path = format!("{PATH}/{id}/replay");
    let begun = client.post(&path, json!({"since": "2025-01-01T00:00:00+01:00"})).await;
    assert_eq!(begun.status, 202, "{}", begun.body);
    let replay = begun.body["replay"].clone();
    assert_eq!((&replay["status"], &replay["since"]), (&json!("running"), &json!("2024-12-31T23:00:00.000Z")));
    assert_eq!(replay["until"], replay["created_at"], "by the database's clock, which facts are recorded by");
    assert_eq!(client.get(&format!("{PATH}/replays/{}", begun.text("replay_id"))).await.body["replay"], replay);
    let second = client.post(&path, json!({"since": "2025-01-01T00:00:00Z"})).await;
    assert_eq!(second.refusal(), (409, "replay_in_progress"));
    sqlx::query("update webhook_replays set status = 'completed', finished_at = now()")
        .execute(&edge.pool)
        .await
        .unwrap();
    let again = json!({"since": "2025-01-01T00:00:00Z", "until": "2025-02-01T00:00:00Z"});
    assert_eq!(client.post(&path, again.clone()).await.status, 202);
    let listed = client.get(&format!("{PATH}/{id}/replays")).await.body["replays"].clone();
    let statuses: Vec<&str> =
        listed.as_array().unwrap().iter().map(|replay| replay["status"].as_str().unwrap()).collect();
    assert_eq!(statuses, ["running", "completed"]);
    client.delete(&format!("{PATH}/{id}"), json!({})).await;
    assert_eq!(client.get(&format!("{PATH}/{id}/replays")).await.body["replays"][0]["status"], "cancelled");
    assert_eq!(client.post(&path, again).await.refusal(), (409, "subscription_not_active"));
    let odd = client.post(&path, json!({"since": "yesterday"})).await;
    assert_eq!(odd.status, 400, "{}", odd.body);
}

#[tokio::test]
async fn another_tenants_subscription_is_a_404_like_one_that_never_was() {
    let edge = Edge::start().await;
    let owner = edge.client().await;
    let id = subscribe(&owner).await;
    let strangers = [
        edge.client_for(PRODUCT, Environment::Production, "tenant-2").await,
        edge.client_for("shop", Environment::Production, "tenant-1").await,
        edge.client_for(PRODUCT, Environment::Sandbox, "tenant-1").await,
    ];
    for stranger in &strangers {
        for (method, suffix, body) in [
            (Method::PATCH, "", json!({"status": "paused"})),
            (Method::DELETE, "", json!({})),
            (Method::POST, "/test", json!({})),
            (Method::POST, "/rotate_secret", json!({})),
            (Method::POST, "/replay", json!({"since": "2025-01-01T00:00:00Z"})),
        ] {
            let answer = stranger.write(method, &format!("{PATH}/{id}{suffix}"), body, &[]).await;
            assert_eq!(answer.refusal(), (404, "subscription_not_found"), "{suffix}");
        }
        for suffix in ["", "/deliveries", "/replays"] {
            let answer = stranger.get(&format!("{PATH}/{id}{suffix}")).await;
            assert_eq!(answer.refusal(), (404, "subscription_not_found"), "{suffix}");
        }
        assert!(stranger.get(PATH).await.body["subscriptions"].as_array().unwrap().is_empty());
    }
    assert_eq!(owner.get(&format!("{PATH}/{id}")).await.body["subscription"]["status"], "active");
}
