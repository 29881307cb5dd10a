//! API keys by API: what a key may hand on, and when one ends.

use schemas::{Environment, scope};
use serde_json::{Value, json};

use crate::common::{Client, Edge, PRODUCT, settings};

/// A caller with another key.
fn with_key(client: &Client, key: &str) -> Client {
    Client { key: key.to_owned(), ..client.clone() }
}

async fn made(client: &Client, body: Value) -> (String, String) {
    let answer = client.post("/v1/keys", body).await;
    assert_eq!(answer.status, 201, "{}", answer.body);
    (answer.text("key_id"), answer.text("key"))
}

#[tokio::test]
async fn a_key_made_by_api_works_for_its_tenant_only() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let (id, key) = made(&client, json!({"label": "Reader", "scopes": ["contacts:read", "contacts:read"]})).await;
    let reader = with_key(&client, &key);
    assert_eq!(reader.get("/v1/contacts").await.status, 200);
    assert_eq!(reader.get("/v1/fields").await.refusal(), (403, "missing_scope:fields:read"));
    edge.link(PRODUCT, Environment::Production, "tenant-2").await;
    let elsewhere = Client { product_tenant_id: "tenant-2".to_owned(), ..reader };
    assert_eq!(elsewhere.get("/v1/contacts").await.refusal(), (404, "tenant_not_found"));
    let seen = client.get(&format!("/v1/keys/{id}")).await.body["key"].clone();
    assert_eq!((&seen["label"], &seen["scopes"]), (&json!("Reader"), &json!(["contacts:read"])));
    assert!(seen["last_used_on"].is_string() && key.starts_with(seen["prefix"].as_str().unwrap()), "{seen}");
    let listed = client.get("/v1/keys").await.body["keys"].clone();
    assert_eq!(listed, json!([seen]), "the product's own key is the operator's");
    assert_eq!(edge.count("select count(*) from audit_log where action = 'key.issue'").await, 1);
    let (secret, hidden): (String, i64) =
        sqlx::query_as("select max(prefix), count(*) filter (where position($1 in r::text) > 0) from api_keys r")
            .bind(&key)
            .fetch_one(&edge.pool)
            .await
            .unwrap();
    assert!(secret.len() < key.len() && hidden == 0, "the key itself is stored nowhere");
}

#[tokio::test]
async fn a_key_never_grants_what_it_lacks() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let soon = "2099-01-01T00:00:00Z";
    let body = json!({"label": "Keys", "scopes": ["keys:read", "keys:write"], "expires_at": soon});
    let (_, key) = made(&client, body).await;
    let (rich, _) = made(&client, json!({"label": "Rich", "scopes": ["contacts:read", "keys:write"]})).await;
    let poor = with_key(&client, &key);
    let wanted = json!({"label": "More", "scopes": ["contacts:read"]});
    assert_eq!(poor.post("/v1/keys", wanted).await.refusal(), (403, "scope_not_held"));
    let rotated = poor.post(&format!("/v1/keys/{rich}/rotate"), json!({})).await;
    assert_eq!(rotated.refusal(), (403, "scope_not_held"), "another key's scopes are not to be had by rotating it");
    let later = json!({"label": "Later", "scopes": ["keys:read"], "expires_at": "2099-01-02T00:00:00Z"});
    let answer = poor.post("/v1/keys", later).await;
    assert_eq!(answer.faults(), [("expires_at".to_owned(), "too_late".to_owned())]);
    let answer = poor.post("/v1/keys", json!({"label": "Heir", "scopes": ["keys:read"]})).await;
    assert_eq!(answer.body["expires_at"], json!("2099-01-01T00:00:00.000Z"), "it ends with the key that made it");
    let refused = json!({"label": "", "scopes": ["platform:health:read"], "expires_at": "2020-01-01T00:00:00Z"});
    let faults = client.post("/v1/keys", refused).await.faults();
    let names: Vec<&str> = faults.iter().map(|(path, _)| path.as_str()).collect();
    assert_eq!(names, ["label", "scopes", "expires_at"]);
    assert_eq!(edge.count("select count(*) from api_keys where tenant_id is not null").await, 3);
}

#[tokio::test]
async fn a_replaced_key_goes_on_for_its_overlap() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let (old, key) = made(&client, json!({"label": "Mail", "scopes": scope::ALL})).await;
    let first = with_key(&client, &key);
    let rotated = first.post(&format!("/v1/keys/{old}/rotate"), json!({"overlap_hours": 1})).await;
    assert_eq!(rotated.status, 200, "{}", rotated.body);
    let second = with_key(&client, &rotated.text("key"));
    for caller in [&first, &second] {
        assert_eq!(caller.get("/v1/contacts").await.status, 200, "both work");
    }
    let seen = client.get(&format!("/v1/keys/{old}")).await.body["key"]["expires_at"].clone();
    assert_eq!(seen, rotated.body["replaced_key_until"]);
    let again = second.post(&format!("/v1/keys/{old}/rotate"), json!({"overlap_hours": 0})).await;
    assert_eq!(again.status, 200, "{}", again.body);
    // A process that has not looked the key up before.
    let fresh = first.at(edge.another().await);
    assert_eq!(fresh.get("/v1/contacts").await.refusal(), (401, "invalid_api_key"));
    let ended = client.post(&format!("/v1/keys/{old}/rotate"), json!({})).await;
    assert_eq!(ended.refusal(), (409, "key_not_live"));
    let long = client.post(&format!("/v1/keys/{old}/rotate"), json!({"overlap_hours": 169})).await;
    assert_eq!(long.faults(), [("overlap_hours".to_owned(), "out_of_range".to_owned())]);
}

#[tokio::test]
async fn a_replaced_or_ending_key_makes_no_longer_one() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let (old, key) = made(&client, json!({"label": "Mail", "scopes": scope::ALL})).await;
    let leaked = with_key(&client, &key);
    let rotated = leaked.post(&format!("/v1/keys/{old}/rotate"), json!({"overlap_hours": 1})).await;
    assert_eq!(rotated.status, 200, "{}", rotated.body);
    let (heir, ends) = (rotated.text("key_id"), rotated.body["replaced_key_until"].clone());
    assert_eq!(rotated.body["expires_at"], Value::Null);
    let ends_of = async |id: &str| client.get(&format!("/v1/keys/{id}")).await.body["key"]["expires_at"].clone();
    assert_eq!(ends_of(&heir).await, Value::Null, "it ends as the replaced one would have");
    let (child, _) = made(&leaked, json!({"label": "Child", "scopes": ["contacts:read"]})).await;
    assert_eq!(ends_of(&child).await, ends);
    for id in [&heir, &old] {
        let again = leaked.post(&format!("/v1/keys/{id}/rotate"), json!({"overlap_hours": 100})).await;
        assert_eq!(ends_of(&again.text("key_id")).await, ends, "{}", again.body);
        assert_eq!(again.body["expires_at"], ends, "it is announced");
    }
    client.delete(&format!("/v1/keys/{old}"), json!({})).await;
    // This process accepts the key for some seconds more.
    let body = json!({"label": "Late", "scopes": ["contacts:read"]});
    assert_eq!(leaked.post("/v1/keys", body).await.refusal(), (401, "invalid_api_key"));
    let rotated = leaked.post(&format!("/v1/keys/{child}/rotate"), json!({})).await;
    assert_eq!(rotated.refusal(), (401, "invalid_api_key"));
}

#[tokio::test]
async fn a_repeat_with_the_key_that_replaced_the_first_acts_once() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let (id, key) = made(&client, json!({"label": "Mail", "scopes": scope::ALL})).await;
    let first = with_key(&client, &key);
    let body = json!({"kind": "list", "name": "News"});
    let answer = first.post_once("k-1", "/v1/audiences", body.clone()).await;
    let rotated = client.post(&format!("/v1/keys/{id}/rotate"), json!({})).await;
    let second = with_key(&client, &rotated.text("key"));
    let again = second.post_once("k-1", "/v1/audiences", body).await;
    assert_eq!((again.bytes.as_slice(), again.header("idempotency-replayed")), (answer.bytes.as_slice(), "true"));
    let (_, key) = made(&second, json!({"label": "Other", "scopes": scope::ALL})).await;
    let other = json!({"kind": "list", "name": "Others"});
    let other = with_key(&client, &key).post_once("k-1", "/v1/audiences", other).await;
    assert_eq!(other.status, 201, "another key's requests are its own: {}", other.body);
    assert_eq!(edge.count("select count(*) from audiences").await, 2);
}

#[tokio::test]
async fn keys_share_the_rate_limit_of_the_key_that_made_them() {
    let mut settings = settings();
    settings.rate_limit_per_minute = 8;
    let edge = Edge::with(settings).await;
    let client = edge.client().await;
    let (id, key) = made(&client, json!({"label": "Mail", "scopes": scope::ALL})).await;
    let rotated = client.post(&format!("/v1/keys/{id}/rotate"), json!({})).await;
    let (_, grandchild) = made(&with_key(&client, &key), json!({"label": "More", "scopes": ["contacts:read"]})).await;
    let callers = [client.clone(), with_key(&client, &key), with_key(&client, &rotated.text("key"))];
    for (used, caller) in callers.iter().chain([&with_key(&client, &grandchild)]).enumerate() {
        let answer = caller.get("/v1/contacts").await;
        assert_eq!(answer.header("x-ratelimit-remaining"), (4 - used).to_string(), "{}", answer.body);
    }
    let stranger = edge.key(PRODUCT, Environment::Production, &["contacts:read"]).await;
    assert_eq!(with_key(&client, &stranger).get("/v1/contacts").await.header("x-ratelimit-remaining"), "7");
}

#[tokio::test]
async fn a_revoked_key_ends_and_stays_in_the_list() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let (id, key) = made(&client, json!({"label": "Mail", "scopes": ["contacts:read"]})).await;
    for revoked in [true, false] {
        let answer = client.delete(&format!("/v1/keys/{id}"), json!({})).await;
        assert_eq!(answer.body["revoked"], json!(revoked), "{}", answer.body);
    }
    assert_eq!(with_key(&client, &key).get("/v1/contacts").await.refusal(), (401, "invalid_api_key"));
    assert!(client.get("/v1/keys").await.body["keys"][0]["revoked_at"].is_string());
    assert_eq!(edge.count("select count(*) from audit_log where action = 'key.revoke'").await, 1);
}

#[tokio::test]
async fn keys_end_with_the_key_that_made_them() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let (maker, key) = made(&client, json!({"label": "Maker", "scopes": scope::ALL})).await;
    let first = with_key(&client, &key);
    let body = json!({"label": "Child", "scopes": ["keys:read", "keys:write", "contacts:read"]});
    let (child, key) = made(&first, body).await;
    let second = with_key(&client, &key);
    let (_, key) = made(&second, json!({"label": "Grandchild", "scopes": ["contacts:read"]})).await;
    let third = with_key(&client, &key);
    // A key that another one has made by rotation.
    let (other, _) = made(&client, json!({"label": "Other", "scopes": ["contacts:read"]})).await;
    let taken = second.post(&format!("/v1/keys/{other}/rotate"), json!({})).await;
    assert_eq!(taken.status, 200, "{}", taken.body);
    let fourth = with_key(&client, &taken.text("key"));
    let rotated = first.post(&format!("/v1/keys/{maker}/rotate"), json!({})).await;
    assert_eq!(rotated.status, 200, "{}", rotated.body);
    let successor = rotated.text("key_id");
    let callers = [&second, &third, &fourth];
    for (id, status) in [(&maker, 200_u16), (&successor, 401)] {
        let answer = client.delete(&format!("/v1/keys/{id}"), json!({})).await;
        assert_eq!(answer.body["revoked"], json!(true), "{}", answer.body);
        // A process that has not looked the keys up before.
        let fresh = edge.another().await;
        for caller in callers {
            let answer = caller.at(fresh.clone()).get("/v1/contacts").await;
            assert_eq!(answer.status, status, "they belong to the successor: {}", answer.body);
        }
    }
    let answer = client.delete(&format!("/v1/keys/{child}"), json!({})).await;
    assert_eq!(answer.body["revoked"], json!(false), "it has ended with its maker");
    assert_eq!(edge.count("select count(*) from audit_log where action = 'key.revoke'").await, 5);
}

#[tokio::test]
async fn keys_of_other_tenants_products_and_environments_are_not_found() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let (id, _) = made(&client, json!({"label": "Mail", "scopes": ["contacts:read"]})).await;
    let tenant = edge.client_for(PRODUCT, Environment::Production, "tenant-2").await;
    let sandbox = edge.client_for(PRODUCT, Environment::Sandbox, "tenant-1").await;
    // A product that shares the tenant.
    edge.share(client.tenant, "shop", Environment::Production, "shop-1").await;
    let product = edge.client_for("shop", Environment::Production, "shop-1").await;
    for stranger in [&tenant, &sandbox, &product] {
        assert_eq!(stranger.get("/v1/keys").await.body["keys"], json!([]));
        assert_eq!(stranger.get(&format!("/v1/keys/{id}")).await.refusal(), (404, "key_not_found"));
        let rotated = stranger.post(&format!("/v1/keys/{id}/rotate"), json!({})).await;
        assert_eq!(rotated.refusal(), (404, "key_not_found"));
        assert_eq!(stranger.delete(&format!("/v1/keys/{id}"), json!({})).await.refusal(), (404, "key_not_found"));
    }
    assert_eq!(edge.count("select count(*) from api_keys where revoked_at is not null").await, 0);
}

#[tokio::test]
async fn a_repeated_creation_answers_the_same_key() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let body = json!({"label": "Mail", "scopes": ["contacts:read"]});
    let first = client.post_once("once", "/v1/keys", body.clone()).await;
    let second = client.post_once("once", "/v1/keys", body).await;
    assert_eq!((first.status.as_u16(), first.text("key")), (201, second.text("key")));
    assert_eq!(edge.count("select count(*) from api_keys where tenant_id is not null").await, 1);
}
