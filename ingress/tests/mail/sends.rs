use rstest::rstest;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::fixtures::{Ready, audience};

fn ids(body: &Value) -> Vec<Uuid> {
    body["sends"].as_array().unwrap().iter().map(|send| send["send_id"].as_str().unwrap().parse().unwrap()).collect()
}

#[tokio::test]
async fn a_send_shows_its_attempts_facts_and_timeline_in_order() {
    let ready = Ready::start().await;
    let campaign = ready.campaign(json!({})).await;
    let send = ready.batch(&campaign, &["sent"]).await[0];
    sqlx::query(
        "update sends set attempts = 2, smtp_code = 250, enhanced_code = '2.0.0', response = 'ok', opened_at = now()",
    )
    .execute(&ready.edge.pool)
    .await
    .unwrap();
    for (kind, minutes, detail) in [
        ("opened", 9, json!({})),
        ("sent", 5, json!({"smtp_code": 250, "attempt": 2})),
        ("deferred", 1, json!({"smtp_code": 451, "enhanced_code": "4.7.1", "response": "later", "attempt": 1})),
    ] {
        sqlx::query(
            "insert into events (tenant_id, send_id, id, month, type, occurred_at, detail)
             values ($1, $2, gen_random_uuid(), $3, $4, now() + make_interval(mins => $5), $6)",
        )
        .bind(ready.client.tenant)
        .bind(send)
        .bind(schemas::month_of(send))
        .bind(kind)
        .bind(minutes)
        .bind(detail)
        .execute(&ready.edge.pool)
        .await
        .unwrap();
    }
    let record = ready.client.get(&format!("/v1/sends/{send}")).await.body["send"].clone();
    let types = |field: &str, key: &str| -> Vec<Value> {
        record[field].as_array().unwrap().iter().map(|entry| entry[key].clone()).collect()
    };
    assert_eq!(types("timeline", "type"), ["queued", "deferred", "sent", "opened"]);
    assert_eq!(types("attempts", "outcome"), ["deferred", "sent"]);
    assert_eq!(types("attempts", "smtp_code"), [451, 250]);
    assert_eq!((&record["state"], &record["email"]), (&json!("sent"), &json!("reader1@example.com")));
    assert_eq!((&record["skip_reason"], &record["failure_reason"]), (&Value::Null, &Value::Null));
    assert_eq!((&record["attempt_count"], &record["campaign_id"]), (&json!(2), &json!(campaign)));
    assert!(record["facts"]["opened_at"].is_string() && record["facts"]["clicked_at"].is_null());
}

#[rstest]
#[case::too_late("expired", json!({"smtp_code": 451, "reason": "temporary", "attempt": 9}), json!([451]))]
#[case::refused("failed", json!({"smtp_code": 550, "reason": "hard", "attempt": 1}), json!([550]))]
#[case::not_rendered("failed", json!({"reason": "render_error", "code": "render_html_unclosed"}), json!([]))]
#[case::too_late_to_be_tried("expired", json!({"reason": "expired", "attempt": 1}), json!([]))]
#[case::too_late_to_be_rendered("expired", json!({"reason": "expired"}), json!([]))]
#[tokio::test]
async fn the_event_that_ends_a_send_is_an_attempt_if_it_has_its_number(
    #[case] kind: &str,
    #[case] detail: Value,
    #[case] expected: Value,
) {
    let ready = Ready::start().await;
    let campaign = ready.campaign(json!({})).await;
    let send = ready.batch(&campaign, &["failed"]).await[0];
    sqlx::query(
        "insert into events (tenant_id, send_id, id, month, type, occurred_at, detail)
         values ($1, $2, gen_random_uuid(), $3, $4, now(), $5)",
    )
    .bind(ready.client.tenant)
    .bind(send)
    .bind(schemas::month_of(send))
    .bind(kind)
    .bind(detail)
    .execute(&ready.edge.pool)
    .await
    .unwrap();
    let record = ready.client.get(&format!("/v1/sends/{send}")).await.body["send"].clone();
    let codes: Vec<Value> =
        record["attempts"].as_array().unwrap().iter().map(|attempt| attempt["smtp_code"].clone()).collect();
    assert_eq!(json!(codes), expected, "{record}");
    assert!(record["timeline"].as_array().unwrap().iter().any(|entry| entry["type"] == kind), "{record}");
}

#[rstest]
#[case("skipped", json!("unsubscribed"), Value::Null)]
#[case("failed", Value::Null, json!("hard"))]
#[tokio::test]
async fn a_reason_stands_where_its_state_says(#[case] state: &str, #[case] skip: Value, #[case] failure: Value) {
    let ready = Ready::start().await;
    let campaign = ready.campaign(json!({})).await;
    let send = ready.batch(&campaign, &[state]).await[0];
    let record = ready.client.get(&format!("/v1/sends/{send}")).await.body["send"].clone();
    assert_eq!((&record["skip_reason"], &record["failure_reason"]), (&skip, &failure));
    assert_eq!(
        record["timeline"].as_array().unwrap().iter().any(|entry| entry["type"] == "skipped"),
        state == "skipped"
    );
}

#[tokio::test]
async fn an_erased_recipient_has_no_address_any_more() {
    let ready = Ready::start().await;
    let campaign = ready.campaign(json!({})).await;
    let send = ready.batch(&campaign, &["sent"]).await[0];
    sqlx::query("update contacts set status = 'erased', address = 'erased:' || id")
        .execute(&ready.edge.pool)
        .await
        .unwrap();
    assert_eq!(ready.client.get(&format!("/v1/sends/{send}")).await.body["send"]["email"], Value::Null);
}

#[tokio::test]
async fn a_campaigns_sends_are_listed_newest_first_over_batches_and_pages() {
    let ready = Ready::start().await;
    audience(&ready.edge.pool, ready.client.tenant, "list", "more", 4).await;
    let campaign = ready.campaign(json!({})).await;
    let path = format!("/v1/campaigns/{campaign}/sends");
    assert_eq!(ready.client.get(&path).await.body, json!({"ok": true, "sends": [], "next_cursor": null}));
    let mut all = ready.batch(&campaign, &["sent", "skipped", "sent"]).await;
    all.extend(ready.batch(&campaign, &["queued", "sent", "failed"]).await);
    all.reverse();
    assert_eq!(ids(&ready.client.get(&path).await.body), all);
    let (mut found, mut cursor) = (Vec::new(), String::new());
    for _ in 0..3 {
        let page = ready.client.get(&format!("{path}?limit=2{cursor}")).await.body;
        found.extend(ids(&page));
        cursor = page["next_cursor"].as_str().map(|cursor| format!("&cursor={cursor}")).unwrap_or_default();
    }
    assert_eq!((found, cursor.as_str()), (all, ""));
}

#[tokio::test]
async fn a_campaigns_sends_are_filtered_by_state_and_address() {
    let ready = Ready::start().await;
    let campaign = ready.campaign(json!({})).await;
    let first = ready.batch(&campaign, &["sent", "skipped"]).await;
    let second = ready.batch(&campaign, &["sent"]).await;
    let path = format!("/v1/campaigns/{campaign}/sends");
    let found = async |query: &str| ids(&ready.client.get(&format!("{path}?{query}")).await.body);
    assert_eq!(found("state=sent").await, [second[0], first[0]]);
    assert_eq!(found("state=skipped").await, [first[1]]);
    assert_eq!(found("state=deferred").await, Vec::<Uuid>::new());
    assert_eq!(found("email=READER2%40example.com").await, [first[1]]);
    assert_eq!(found("email=reader2%40example.com&state=sent").await, Vec::<Uuid>::new());
    assert_eq!(found("email=stranger%40example.com").await, Vec::<Uuid>::new());
    assert_eq!(
        ready.client.get(&format!("{path}?state=gone")).await.faults(),
        [("state".to_owned(), "not_allowed".to_owned())]
    );
    assert_eq!(
        ready.client.get(&format!("{path}?email=x")).await.faults(),
        [("email".to_owned(), "missing_at".to_owned())]
    );
}

#[tokio::test]
async fn the_source_of_a_captured_mail_can_be_read_by_its_tenant_only() {
    let ready = Ready::start().await;
    let campaign = ready.campaign(json!({})).await;
    let sends = ready.batch(&campaign, &["sent", "sent"]).await;
    sqlx::query("insert into captured_mails (tenant_id, send_id, source, is_cut) values ($1, $2, $3, true)")
        .bind(ready.client.tenant)
        .bind(sends[0])
        .bind(b"To: ann@example.com\r\n\r\nHello\r\n".as_slice())
        .execute(&ready.edge.pool)
        .await
        .unwrap();
    let answer = ready.client.get(&format!("/v1/sends/{}/source", sends[0])).await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.body["source"], "To: ann@example.com\r\n\r\nHello\r\n");
    assert_eq!(answer.body["truncated"], true);
    let refusal = |id: Uuid| {
        let path = format!("/v1/sends/{id}/source");
        let client = &ready.client;
        async move { client.get(&path).await.body["error"].clone() }
    };
    assert_eq!(refusal(sends[1]).await, "source_not_found");
    assert_eq!(refusal(Uuid::now_v7()).await, "send_not_found");
}

#[tokio::test]
async fn a_persons_data_has_the_mail_of_campaigns_with_its_events() {
    let ready = Ready::start().await;
    let campaign = ready.campaign(json!({})).await;
    let sends = ready.batch(&campaign, &["sent", "sent"]).await;
    let month = schemas::month_of(sends[0]);
    let pool = &ready.edge.pool;
    sqlx::query("update campaigns set month = $1").bind(month).execute(pool).await.unwrap();
    sqlx::query(
        "insert into events (tenant_id, send_id, id, month, type, occurred_at)
         select $1, $2, gen_random_uuid(), $3, 'opened', now() from generate_series(1, 150)",
    )
    .bind(ready.client.tenant)
    .bind(sends[0])
    .bind(month)
    .execute(pool)
    .await
    .unwrap();
    let contact: Uuid =
        sqlx::query_scalar("select contact_id from sends where id = $1").bind(sends[0]).fetch_one(pool).await.unwrap();
    let body = ready.client.post(&format!("/v1/contacts/{contact}/data"), json!({})).await.body;
    let records = body["records"].as_array().unwrap();
    assert_eq!(records.len(), 1, "{records:?}");
    assert_eq!((&records[0]["kind"], &records[0]["id"]), (&json!("send"), &json!(sends[0])));
    let events = records[0]["data"]["events"].as_array().unwrap();
    let types: Vec<&str> = events.iter().filter_map(|event| event["type"].as_str()).collect();
    assert_eq!((types.len(), types[0], types[150]), (151, "sent", "opened"), "all of them");
}

#[tokio::test]
async fn the_timeline_of_a_send_is_bounded() {
    let ready = Ready::start().await;
    let campaign = ready.campaign(json!({})).await;
    let send = ready.batch(&campaign, &["sent"]).await[0];
    sqlx::query(
        "insert into events (tenant_id, send_id, id, month, type, occurred_at)
         select $1, $2, gen_random_uuid(), $3, 'replied', now() from generate_series(1, 1100)",
    )
    .bind(ready.client.tenant)
    .bind(send)
    .bind(schemas::month_of(send))
    .execute(&ready.edge.pool)
    .await
    .unwrap();
    let body = ready.client.get(&format!("/v1/sends/{send}")).await.body;
    assert_eq!(body["send"]["timeline"].as_array().unwrap().len(), 1_001, "and that it was queued");
}
