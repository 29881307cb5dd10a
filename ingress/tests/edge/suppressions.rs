//! `/v1/suppressions`

use serde_json::{Value, json};

use crate::common::{Client, Edge};

const PATH: &str = "/v1/suppressions";

async fn held(client: &Client, address: &str) -> Vec<Value> {
    client.get(&format!("{PATH}?email={address}")).await.body["suppressions"].as_array().unwrap().clone()
}

#[tokio::test]
async fn a_suppression_is_written_once_and_never_weakened() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let first = client
        .post(PATH, json!({"email": "Ann@example.com", "scope": "marketing", "expires_at": "2999-01-01T00:00:00Z"}))
        .await;
    assert_eq!((first.status.as_u16(), first.body["already_existed"].as_bool()), (201, Some(false)), "{}", first.body);
    let wider = client.post(PATH, json!({"email": "ann@example.com", "scope": "all", "note": "asked by phone"})).await;
    assert_eq!((wider.status.as_u16(), wider.body["already_existed"].as_bool()), (200, Some(true)));
    client
        .post(PATH, json!({"email": "ann@example.com", "scope": "marketing", "expires_at": "2998-01-01T00:00:00Z"}))
        .await;
    let rows = held(&client, "ann@example.com").await;
    assert_eq!(rows.len(), 1);
    assert_eq!((&rows[0]["scope"], &rows[0]["expires_at"]), (&json!("all"), &Value::Null));
    assert_eq!((&rows[0]["note"], &rows[0]["source"]), (&json!("asked by phone"), &json!("api")));
    assert_eq!(rows[0]["suppression_id"], first.body["suppression_id"]);
}

#[tokio::test]
async fn one_that_has_run_out_starts_anew() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    client.post(PATH, json!({"email": "ann@example.com", "scope": "all"})).await;
    sqlx::query(
        "update suppressions set expires_at = now() - interval '1 day', created_at = now() - interval '9 days'",
    )
    .execute(&edge.pool)
    .await
    .unwrap();
    assert!(held(&client, "ann@example.com").await.is_empty(), "only what is in force is listed");
    for (status, already_existed) in [(201, false), (200, true)] {
        let answer = client.post(PATH, json!({"email": "ann@example.com", "scope": "marketing"})).await;
        assert_eq!((answer.status.as_u16(), &answer.body["already_existed"]), (status, &json!(already_existed)));
    }
    assert_eq!(
        edge.count("select count(*) from suppressions where scope = 'marketing' and expires_at is null").await,
        1
    );
    let report = client.get("/v1/analytics/overview").await.body["report"]["suppressions"].clone();
    assert_eq!(report, json!([{"reason": "manual", "total": 1, "added": 2}]));
    assert_eq!(edge.count("select count(*) from suppressions where created_at > now() - interval '1 hour'").await, 1);
}

#[tokio::test]
async fn many_are_written_together_and_each_fault_is_named() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    client.post(PATH, json!({"email": "a@example.com"})).await;
    let many = client
        .post(
            PATH,
            json!({"suppressions": [
                {"email": "b@example.com", "reason": "hard_bounce"},
                {"email": "a@example.com"},
                {"email": "B@example.com", "reason": "hard_bounce"},
                {"email": "b@example.com", "reason": "unsubscribe"},
            ]}),
        )
        .await;
    assert_eq!(
        (many.status.as_u16(), many.body["created"].as_i64(), many.body["already_existed"].as_i64()),
        (201, Some(2), Some(1))
    );
    let bad = client
        .post(PATH, json!({"suppressions": [{"email": "x"}, {"email": "c@example.com", "reason": "complaint", "scope": "marketing"}]}))
        .await;
    let expected = [("suppressions[0].email", "missing_at"), ("suppressions[1].scope", "not_allowed")];
    assert_eq!(bad.faults(), expected.map(|(path, code)| (path.to_owned(), code.to_owned())));
    let thousand: Vec<Value> = (0..1001).map(|number| json!({"email": format!("p{number}@example.com")})).collect();
    assert_eq!(client.post(PATH, json!({"suppressions": thousand})).await.faults()[0].1, "too_many");
    assert_eq!(
        client.post(PATH, json!({"suppressions": [], "email": "a@example.com"})).await.faults()[0].1,
        "ambiguous"
    );
    assert_eq!(client.post(PATH, json!({})).await.faults()[0].1, "required");
    assert_eq!(edge.count("select count(*) from suppressions").await, 3);
}

#[tokio::test]
async fn lifting_a_bounce_or_complaint_needs_confirmation_and_is_audited() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    for reason in ["hard_bounce", "complaint", "manual"] {
        client.post(PATH, json!({"email": "ann@example.com", "reason": reason})).await;
    }
    let manual = held(&client, "ann@example.com").await.into_iter().find(|row| row["reason"] == "manual").unwrap();
    let lifted = client.delete(PATH, json!({"suppression_id": manual["suppression_id"]})).await;
    assert_eq!((lifted.status.as_u16(), lifted.body["lifted"].as_i64()), (200, Some(1)), "{}", lifted.body);
    let refused = client.delete(PATH, json!({"email": "ann@example.com"})).await;
    assert_eq!(refused.refusal(), (409, "confirmation_required"));
    let one = client.delete(PATH, json!({"email": "ann@example.com", "reason": "complaint", "confirm": true})).await;
    assert_eq!(one.body["lifted"], 1);
    let rest = client.delete(PATH, json!({"email": "ANN@example.com", "confirm": true})).await;
    assert_eq!(rest.body["lifted"], 1);
    assert_eq!(
        client.delete(PATH, json!({"email": "ann@example.com"})).await.refusal(),
        (404, "suppression_not_found")
    );
    assert_eq!(edge.count("select count(*) from audit_log where action = 'suppression.lifted'").await, 3);
    assert_eq!(
        edge.count("select count(*) from audit_log where detail::text like '%@%' or subject like '%@%'").await,
        0
    );
}

#[tokio::test]
async fn what_the_recipient_decided_is_not_the_tenants_to_lift() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let id = schemas::new_id();
    sqlx::query(
        "insert into suppressions (tenant_id, id, address, reason, scope, source)
         values ($1, $2, 'ann@example.com', 'unsubscribe', 'marketing', 'recipient')",
    )
    .bind(client.tenant)
    .bind(id)
    .execute(&edge.pool)
    .await
    .unwrap();
    for body in [json!({"suppression_id": id, "confirm": true}), json!({"email": "ann@example.com", "confirm": true})] {
        assert_eq!(client.delete(PATH, body).await.refusal(), (409, "unsubscribed_by_recipient"));
    }
    // One that the tenant itself recorded can be lifted.
    client.post(PATH, json!({"email": "bob@example.com", "reason": "unsubscribe"})).await;
    assert_eq!(client.delete(PATH, json!({"email": "bob@example.com"})).await.status, 200);
    assert_eq!(client.delete(PATH, json!({})).await.refusal(), (400, "validation_failed"));
}

#[tokio::test]
async fn a_suppression_waits_for_a_fence_that_holds_the_contact() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    client.post("/v1/contacts", json!({"email": "ann@example.com"})).await;
    let mut fence = edge.pool.begin().await.unwrap();
    sqlx::query("select from contacts for share").execute(&mut *fence).await.unwrap();
    let writing = tokio::spawn({
        let client = client.clone();
        async move { client.post(PATH, json!({"email": "ann@example.com"})).await.status.as_u16() }
    });
    edge.until_waiting(1).await;
    assert_eq!(edge.count("select count(*) from suppressions").await, 0);
    fence.commit().await.unwrap();
    assert_eq!(writing.await.unwrap(), 201);
}

#[tokio::test]
async fn few_suppressions_of_a_reason_or_scope_are_found_by_an_index() {
    let edge = Edge::start().await;
    let tenant = edge.client().await.tenant;
    // The oldest three were made by a person.
    sqlx::query(
        "insert into suppressions (tenant_id, id, address, reason, scope, source, created_at)
         select $1, gen_random_uuid(), 'p' || n || '@example.com', case when n <= 3 then 'manual' else 'hard_bounce' end,
                case when n <= 3 then 'marketing' else 'all' end, 'api', now() - interval '1 day' + make_interval(secs => n)
         from generate_series(1, 5000) n",
    )
    .bind(tenant)
    .execute(&edge.pool)
    .await
    .unwrap();
    sqlx::query("analyze suppressions").execute(&edge.pool).await.unwrap();
    let quoted = format!("'{tenant}'");
    for (reason, scope) in [("'manual'", "null"), ("null", "'marketing'")] {
        let parameters = [quoted.as_str(), "null", reason, scope, "null", "null", "51"];
        let in_vain = edge.rows_in_vain(tenant, include_str!("../../queries/suppressions.sql"), &parameters).await;
        assert!(in_vain < 500.0, "{reason} {scope}: {in_vain} rows were looked at in vain");
    }
}
