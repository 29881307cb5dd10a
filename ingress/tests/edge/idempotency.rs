//! `Idempotency-Key`: once, or not at all.

use std::time::Duration;

use http::Method;
use ingress::pipeline::IdempotencyKey;
use serde_json::json;

use crate::common::{Client, Edge, PRODUCT};

const PATH: &str = "/v1/audiences";

#[tokio::test]
async fn a_repeat_is_answered_with_the_stored_answer_also_after_a_restart() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let body = json!({"kind": "list", "name": "News"});
    let first = client.post_once("k-1", PATH, body.clone()).await;
    assert_eq!((first.status.as_u16(), first.header("idempotency-replayed")), (201, ""));
    let restarted = client.at(edge.another().await);
    for at in [&client, &restarted] {
        let again = at.post_once("k-1", PATH, body.clone()).await;
        assert_eq!((again.status, &again.bytes), (first.status, &first.bytes));
        assert_eq!(again.header("idempotency-replayed"), "true");
    }
    assert_eq!(edge.count("select count(*) from audiences").await, 1);
}

#[tokio::test]
async fn another_body_path_or_method_under_the_same_key_is_refused() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    client.post_once("k-1", PATH, json!({"kind": "list", "name": "News"})).await;
    let other_body = client.post_once("k-1", PATH, json!({"kind": "list", "name": "Olds"})).await;
    assert_eq!(other_body.refusal(), (422, "idempotency_key_reused"));
    let other_path = client.post_once("k-1", "/v1/contacts", json!({"kind": "list", "name": "News"})).await;
    assert_eq!(other_path.refusal(), (422, "idempotency_key_reused"));
    let other_method = client
        .write(
            Method::DELETE,
            "/v1/suppressions",
            json!({"kind": "list", "name": "News"}),
            &[("idempotency-key", "k-1")],
        )
        .await;
    assert_eq!(other_method.refusal(), (422, "idempotency_key_reused"));
}

#[tokio::test]
async fn a_key_is_scoped_to_the_api_key() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let other = Client { key: edge.key(PRODUCT, client.environment, schemas::scope::ALL).await, ..client.clone() };
    assert_eq!(client.post_once("k-1", PATH, json!({"kind": "list", "name": "A"})).await.status, 201);
    assert_eq!(other.post_once("k-1", PATH, json!({"kind": "list", "name": "B"})).await.status, 201);
}

#[tokio::test]
async fn of_many_at_once_one_acts_and_the_others_replay_or_wait() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let other = client.at(edge.another().await);
    let body = json!({"csv": "email\nann@example.com\nbob@example.com\n"});
    let answers = futures::future::join_all((0..12).map(|number| {
        let at = if number % 2 == 0 { client.clone() } else { other.clone() };
        let body = body.clone();
        async move { at.post_once("k-1", "/v1/imports", body).await }
    }))
    .await;
    let acted =
        answers.iter().filter(|answer| answer.status == 200 && answer.header("idempotency-replayed").is_empty());
    assert_eq!(acted.count(), 1);
    for answer in &answers {
        match answer.status.as_u16() {
            200 => {}
            _ => {
                assert_eq!(answer.refusal(), (409, "idempotency_in_progress"));
                assert_eq!(answer.header("retry-after"), "1");
            }
        }
    }
    assert_eq!(edge.count("select count(*) from imports").await, 1);
    let replay = client.post_once("k-1", "/v1/imports", body).await;
    assert_eq!((replay.status.as_u16(), replay.header("idempotency-replayed")), (200, "true"));
}

#[tokio::test]
async fn a_request_that_meets_one_in_hand_hears_so_at_once() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    // Holds the row that the act needs, so that the first request stays in hand for as long as we like.
    let mut holder = edge.pool.begin().await.unwrap();
    sqlx::query("insert into audiences (tenant_id, id, kind, name) values ($1, $2, 'list', 'News')")
        .bind(client.tenant)
        .bind(schemas::new_id())
        .execute(&mut *holder)
        .await
        .unwrap();
    let body = json!({"kind": "list", "name": "News"});
    let first = tokio::spawn({
        let (client, body) = (client.clone(), body.clone());
        async move { client.post_once("k-1", PATH, body).await }
    });
    edge.until_waiting(1).await;
    assert_eq!(client.post_once("k-1", PATH, body.clone()).await.refusal(), (409, "idempotency_in_progress"));
    holder.rollback().await.unwrap();
    assert_eq!(first.await.unwrap().status, 201);
    assert_eq!(client.post_once("k-1", PATH, body).await.header("idempotency-replayed"), "true");
}

/// Postgres may come to a renewal after the waiter who sent it has answered "not yet" and gone: the repeat must be able to wait at once.
#[tokio::test]
async fn a_lease_is_renewed_while_it_is_held_and_not_after_it_was_given_up() {
    let edge = Edge::start().await;
    edge.client().await.post_once("k-1", PATH, json!({"kind": "list", "name": "News"})).await;
    let parked =
        "update idempotency_keys set status = null, waits_for = key_id, locked_until = now() + interval '1 minute'
                  returning key_id";
    let key_id = sqlx::query_scalar(parked).fetch_one(&edge.pool).await.unwrap();
    let key = IdempotencyKey::of("k-1", "POST", PATH, b"");
    let held_for_an_hour = "select count(*) from idempotency_keys where locked_until > now() + interval '1 hour'";
    let lease = Duration::from_secs(7200);
    key.set_lease(&edge.pool, key_id, lease, true).await.unwrap();
    assert_eq!(edge.count(held_for_an_hour).await, 1);
    key.set_lease(&edge.pool, key_id, Duration::ZERO, false).await.unwrap();
    key.set_lease(&edge.pool, key_id, lease, true).await.unwrap();
    assert_eq!(edge.count(held_for_an_hour).await, 0);
}

#[tokio::test]
async fn a_refusal_of_the_act_is_stored_and_its_effect_undone() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    client.post(PATH, json!({"kind": "list", "name": "News"})).await;
    let refused = client.post_once("k-1", PATH, json!({"kind": "list", "name": "News"})).await;
    assert_eq!(refused.refusal(), (409, "audience_already_exists"));
    sqlx::query("delete from audiences").execute(&edge.pool).await.unwrap();
    let again = client.post_once("k-1", PATH, json!({"kind": "list", "name": "News"})).await;
    assert_eq!((again.refusal(), again.header("idempotency-replayed")), ((409, "audience_already_exists"), "true"));

    // The contact is made before its list is looked for: the refusal takes it back, and keeps the answer.
    let missing = schemas::new_id();
    let body = json!({"email": "ann@example.com", "lists": [missing]});
    let refused = client.post_once("k-2", "/v1/contacts", body.clone()).await;
    assert_eq!(refused.refusal(), (404, "list_not_found"));
    assert_eq!(edge.count("select count(*) from contacts").await, 0);
    assert_eq!(client.post_once("k-2", "/v1/contacts", body).await.header("idempotency-replayed"), "true");
}

#[tokio::test]
async fn a_conflict_that_ends_by_itself_is_not_stored() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let plan = json!({"key": "plan", "label": "Plan", "type": "string"});
    let field = client.post("/v1/fields", plan.clone()).await.text("field_id");
    client.delete(&format!("/v1/fields/{field}"), json!({})).await;
    let removing = client.post_once("k-1", "/v1/fields", plan.clone()).await;
    assert_eq!(removing.refusal(), (409, "field_being_removed"));
    assert_eq!(removing.header("retry-after"), "60");
    edge.take_out_removed_fields().await;
    assert_eq!(client.post_once("k-1", "/v1/fields", plan).await.status, 201);

    let hook = json!({"url": "https://8.8.8.8/hook", "events": ["email.delivered"]});
    let hook = client.post("/v1/webhooks", hook).await.text("subscription_id");
    let path = format!("/v1/webhooks/{hook}/replay");
    let since = json!({"since": "2025-01-01T00:00:00Z"});
    assert_eq!(client.post(&path, since.clone()).await.status, 202);
    let running = client.post_once("k-2", &path, since.clone()).await;
    assert_eq!((running.refusal(), running.header("retry-after")), ((409, "replay_in_progress"), "60"));
    let over = "update webhook_replays set status = 'completed', finished_at = now()";
    sqlx::query(over).execute(&edge.pool).await.unwrap();
    assert_eq!(client.post_once("k-2", &path, since).await.status, 202);
}

#[tokio::test]
async fn what_happened_before_the_act_is_never_stored() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let reader = Client { key: edge.key(PRODUCT, client.environment, &["audiences:read"]).await, ..client.clone() };
    let body = json!({"kind": "list", "name": "News"});
    assert_eq!(reader.post_once("k-1", PATH, body.clone()).await.status, 403);
    let mut elsewhere = body.clone();
    elsewhere["product_tenant_id"] = json!("nobody");
    assert_eq!(client.post_once("k-1", PATH, elsewhere).await.refusal(), (404, "tenant_not_found"));
    assert_eq!(edge.count("select count(*) from idempotency_keys").await, 0);
    assert_eq!(client.post_once("k-1", PATH, body).await.status, 201);
}

#[tokio::test]
async fn a_key_is_forgotten_after_a_day() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    client.post_once("k-1", PATH, json!({"kind": "list", "name": "A"})).await;
    sqlx::query("update idempotency_keys set created_at = now() - interval '25 hours'")
        .execute(&edge.pool)
        .await
        .unwrap();
    let later = client.post_once("k-1", PATH, json!({"kind": "list", "name": "B"})).await;
    assert_eq!((later.status.as_u16(), later.header("idempotency-replayed")), (201, ""));
}

#[tokio::test]
async fn a_client_that_hangs_up_does_not_cancel_its_write() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let mut holder = edge.pool.begin().await.unwrap();
    sqlx::query("insert into audiences (tenant_id, id, kind, name) values ($1, $2, 'list', 'News')")
        .bind(client.tenant)
        .bind(schemas::new_id())
        .execute(&mut *holder)
        .await
        .unwrap();
    let request = tokio::spawn({
        let client = client.clone();
        async move { client.post(PATH, json!({"kind": "list", "name": "News"})).await }
    });
    edge.until_waiting(1).await;
    request.abort();
    assert!(request.await.unwrap_err().is_cancelled());
    holder.rollback().await.unwrap();
    edge.ingress.tasks.close();
    edge.ingress.tasks.wait().await;
    assert_eq!(edge.count("select count(*) from audiences").await, 1);
}
