//! Outcomes as products tell and read them, and what they add to reports. The stage's part is done by hand here, one look at a time.

use serde_json::{Value, json};
use sqlx::AssertSqlSafe;
use uuid::Uuid;

use crate::{
    common::{Answer, Client},
    fixtures::Ready,
};

async fn tell(client: &Client, change: Value) -> Answer {
    let mut body = json!({"contact_email": "ann@example.com", "outcome_type": "bind"});
    for (name, value) in change.as_object().unwrap() {
        body[name] = value.clone();
    }
    client.post("/v1/outcomes", body).await
}

async fn contact(client: &Client, email: &str, dot_number: Value) -> String {
    let answer = client.post("/v1/contacts", json!({"email": email, "dot_number": dot_number})).await;
    assert!(answer.status.is_success(), "{}", answer.body);
    answer.text("contact_id")
}

async fn shown(client: &Client, id: &str) -> Value {
    let answer = client.get(&format!("/v1/outcomes/{id}")).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.body["outcome"].clone()
}

/// What the stage would do.
async fn run_sweeps(ready: &Ready) {
    attribution::testing::run_sweeps(&ready.edge.pool).await.unwrap();
}

#[tokio::test]
async fn the_answer_says_whether_there_is_such_a_contact() {
    let ready = Ready::start().await;
    let client = &ready.client;
    let nobody = tell(client, json!({})).await;
    assert_eq!((nobody.status.as_u16(), &nobody.body["contact_matched"]), (200, &json!(false)), "{}", nobody.body);
    let ann = contact(client, "ann@example.com", json!(41)).await;
    let known = tell(client, json!({})).await;
    assert_eq!(known.body["contact_matched"], true);
    let number = tell(client, json!({"contact_email": null, "dot_number": 41})).await;
    assert_eq!(number.body["contact_matched"], true);
    assert_eq!(shown(client, &number.text("outcome_id")).await["contact_id"], json!(ann));
    // The first finds its contact, too, when it is looked at.
    run_sweeps(&ready).await;
    let first = shown(client, &nobody.text("outcome_id")).await;
    assert_eq!((&first["contact_id"], &first["matched_by"]), (&json!(ann), &json!("email")));
    assert_eq!(first["attribution"]["status"], "uncredited");
}

#[tokio::test]
async fn keys_of_different_contacts_are_refused() {
    let ready = Ready::start().await;
    contact(&ready.client, "ann@example.com", json!(1)).await;
    contact(&ready.client, "bob@example.com", json!(2)).await;
    let refused = tell(&ready.client, json!({"dot_number": 2})).await;
    assert_eq!(refused.refusal(), (422, "contact_conflict"));
    assert_eq!(ready.edge.count("select count(*) from outcomes").await, 0);
    assert_eq!(tell(&ready.client, json!({"dot_number": 1})).await.status, 200);
    assert_eq!(tell(&ready.client, json!({"dot_number": 3})).await.status, 200, "nobody has that number");
}

#[tokio::test]
async fn the_newest_contact_of_a_large_company_has_its_number() {
    let ready = Ready::start().await;
    for n in 0..50 {
        contact(&ready.client, &format!("p{n}@example.com"), json!(7)).await;
    }
    let ann = contact(&ready.client, "ann@example.com", json!(7)).await;
    assert_eq!(tell(&ready.client, json!({"dot_number": 7})).await.status, 200);
    // By an address that was merged into it, too.
    let other = contact(&ready.client, "ann@example.org", json!(null)).await;
    ready.client.post(&format!("/v1/contacts/{ann}/merge"), json!({"contact_id": other})).await;
    let by_merged = tell(&ready.client, json!({"contact_email": "ann@example.org", "dot_number": 7})).await;
    assert_eq!(by_merged.status, 200, "{}", by_merged.body);
}

#[tokio::test]
async fn every_fault_of_an_outcome_is_named() {
    let ready = Ready::start().await;
    let answer = ready
        .client
        .post(
            "/v1/outcomes",
            json!({"outcome_type": "sale", "premium_amount": 0.00001, "premium_cents": -1, "occurred_at": "now", "source_event_id": ""}),
        )
        .await;
    let paths: Vec<String> = answer.faults().into_iter().map(|(path, _)| path).collect();
    assert_eq!(answer.refusal(), (400, "validation_failed"));
    assert_eq!(
        paths,
        ["contact_email", "outcome_type", "premium_amount", "premium_cents", "occurred_at", "source_event_id"]
    );
    for (change, path) in [
        (json!({"premium_cents": 1.5}), "premium_cents"),
        (json!({"premium_amount": "12.50"}), "premium_amount"),
        (json!({"dot_number": "7"}), "dot_number"),
        (json!({"colour": "red"}), "colour"),
    ] {
        let answer = tell(&ready.client, change).await;
        assert_eq!((answer.refusal().0, answer.faults()[0].0.as_str()), (400, path), "{}", answer.body);
    }
}

#[tokio::test]
async fn a_source_event_is_one_outcome_however_often_it_is_told_and_amounts_are_exact() {
    let ready = Ready::start().await;
    let client = &ready.client;
    let first = tell(client, json!({"source_event_id": "p-1", "premium_amount": 1234.5678, "value_cents": 7})).await;
    let id = first.text("outcome_id");
    let record = shown(client, &id).await;
    assert_eq!(record["premium_amount"].to_string(), "1234.5678");
    assert_eq!((&record["premium_cents"], &record["value_cents"]), (&Value::Null, &json!(7)));
    assert_eq!((&record["source_system"], &record["attribution"]["status"]), (&json!("crm"), &json!("pending")));
    let again = tell(client, json!({"source_event_id": "p-1", "premium_amount": 0.1, "premium_cents": 99})).await;
    assert_eq!(again.text("outcome_id"), id);
    let now = shown(client, &id).await;
    assert_eq!((now["premium_amount"].to_string(), &now["premium_cents"]), ("0.1".to_owned(), &json!(10)));
    assert_eq!((&now["value_cents"], &now["occurred_at"]), (&Value::Null, &record["occurred_at"]));
    // Another product's event of this name is another outcome; and without a name each call is one.
    let other = ready.edge.client_for("billing", client.environment, "tenant-9").await;
    assert_ne!(tell(&other, json!({"source_event_id": "p-1"})).await.text("outcome_id"), id);
    let (one, two) = (tell(client, json!({})).await, tell(client, json!({})).await);
    assert_ne!(one.text("outcome_id"), two.text("outcome_id"));
    let once = client.post_once("k-1", "/v1/outcomes", json!({"dot_number": 5, "outcome_type": "quote"})).await;
    let twice = client.post_once("k-1", "/v1/outcomes", json!({"dot_number": 5, "outcome_type": "quote"})).await;
    assert_eq!(once.text("outcome_id"), twice.text("outcome_id"));
}

#[tokio::test]
async fn sixteen_at_once_with_one_source_event_are_one_outcome() {
    let ready = Ready::start().await;
    let calls = (0..16).map(|_| tell(&ready.client, json!({"source_event_id": "same", "premium_cents": 5})));
    let answers = futures::future::join_all(calls).await;
    assert!(answers.iter().all(|answer| answer.status == 200));
    let ids: std::collections::BTreeSet<String> = answers.iter().map(|answer| answer.text("outcome_id")).collect();
    assert_eq!((ids.len(), ready.edge.count("select count(*) from outcomes").await), (1, 1));
}

/// A campaign with a mail to Ann that was sent a while ago.
async fn mailed(ready: &Ready, contact: &str) -> (String, Uuid) {
    let campaign = ready.campaign(json!({})).await;
    let send = ready.batch(&campaign, &["sent"]).await[0];
    let pool = &ready.edge.pool;
    let sql = "update campaigns set launched_at = now() - interval '1 hour', month = (select month from sends where id = $2) where id = $1::uuid";
    stage_rig::run!(pool, sql, [&campaign, send]);
    let sql = "update sends set contact_id = $2::uuid, decided_at = now() - interval '1 hour' where id = $1";
    stage_rig::run!(pool, sql, [send, contact]);
    (campaign, send)
}

#[tokio::test]
async fn a_credited_outcome_shows_its_mails_and_its_campaign_the_revenue() {
    let ready = Ready::start().await;
    let client = &ready.client;
    let ann = contact(client, "ann@example.com", json!(null)).await;
    let (campaign, send) = mailed(&ready, &ann).await;
    let outcome = tell(client, json!({"outcome_type": "premium", "premium_amount": 99.99})).await.text("outcome_id");
    tell(client, json!({"outcome_type": "quote", "contact_email": "bob@example.com", "premium_amount": 5})).await;
    run_sweeps(&ready).await;
    let record = shown(client, &outcome).await;
    assert_eq!(record["attribution"]["status"], "credited", "{record}");
    let credit = &record["credits"][0];
    assert_eq!((&credit["send_id"], &credit["campaign_id"]), (&json!(send), &json!(campaign)));
    assert_eq!(
        (&credit["share"], &credit["premium_amount"], &credit["rule"]),
        (&json!(1.0), &json!(99.99), &json!("delivered"))
    );
    assert_eq!(
        (&record["restatements"][0]["reason"], &record["restatements"][0]["revision"]),
        (&json!("first"), &json!(1))
    );
    let report = client.get(&format!("/v1/analytics/campaigns/{campaign}")).await.body;
    assert_eq!(report["revenue_amount"], 99.99);
    let expected =
        json!({"outcome_type": "premium", "outcomes": 1, "credited": 1.0, "premium_amount": 99.99, "value_cents": 0});
    assert_eq!(report["outcomes"][3], expected);
    let overview = client.get("/v1/analytics/overview").await.body["report"].clone();
    assert_eq!((&overview["outcomes"][0]["recorded"], &overview["outcomes"][0]["credited"]), (&json!(1), &json!(0.0)));
    assert_eq!(overview["revenue"]["by_trigger"][0], json!({"trigger": "campaign", "amount": 99.99}));
    // Lists, and what they are narrowed by.
    for (query, found) in [
        ("", 2),
        (&*format!("?campaign_id={campaign}"), 1),
        (&*format!("?contact_id={ann}"), 1),
        ("?type=quote", 1),
        ("?type=bind", 0),
        ("?since=2020-01-01T00:00:00Z&limit=1", 1),
        ("?since=2099-01-01T00:00:00Z", 0),
    ] {
        let answer = client.get(&format!("/v1/outcomes{query}")).await;
        assert_eq!(answer.body["outcomes"].as_array().map(Vec::len), Some(found), "{query}: {}", answer.body);
    }
    // Another tenant sees none of it.
    let other = ready.edge.client_for("crm", client.environment, "tenant-2").await;
    assert_eq!(other.get(&format!("/v1/outcomes/{outcome}")).await.refusal(), (404, "outcome_not_found"));
    assert_eq!(other.get("/v1/outcomes").await.body["outcomes"], json!([]));
}

#[tokio::test]
async fn an_outcome_is_pending_only_until_it_is_credited_as_reported() {
    let ready = Ready::start().await;
    let client = &ready.client;
    let ann = contact(client, "ann@example.com", json!(null)).await;
    mailed(&ready, &ann).await;
    let report = |cents: i64| tell(client, json!({"source_event_id": "p-1", "value_cents": cents}));
    let outcome = report(5).await.text("outcome_id");
    let status = async || shown(client, &outcome).await["attribution"]["status"].clone();
    for cents in [5, 7] {
        report(cents).await;
        assert_eq!(status().await, "pending", "{cents}");
        run_sweeps(&ready).await;
        assert_eq!(status().await, "credited", "{cents}");
        // A recheck that waits, as while attribution is paused.
        stage_rig::run!(&ready.edge.pool, "update outcomes set credit_due = now() - interval '1 hour'", []);
        assert_eq!(status().await, "credited", "{cents}");
    }
}

#[tokio::test]
async fn few_outcomes_of_a_campaign_are_found_by_an_index() {
    let ready = Ready::start().await;
    let (edge, tenant, campaign) = (&ready.edge, ready.client.tenant, Uuid::now_v7());
    // The campaign is credited with the oldest three, and with one of them for two mails.
    sqlx::raw_sql(AssertSqlSafe(format!(
        "insert into outcomes (tenant_id, id, source_system, outcome_type, occurred_at, created_at)
         select '{tenant}', gen_random_uuid(), 'crm', 'bind', now(), now() - interval '1 day' + make_interval(secs => n)
         from generate_series(1, 5000) n;
         insert into outcome_credits (tenant_id, outcome_id, send_id, campaign_id, kind, contact_id, share, touched_at, evidence)
         select tenant_id, id, gen_random_uuid(), '{campaign}', 'campaign', gen_random_uuid(), 1, now(), '{{}}'
         from (select * from outcomes order by created_at limit 3) o, generate_series(1, 2);
         analyze outcomes;
         analyze outcome_credits"
    )))
    .execute(&edge.pool)
    .await
    .unwrap();
    let (quoted, campaign_id) = (format!("'{tenant}'::uuid"), format!("'{campaign}'::uuid"));
    let parameters =
        [quoted.as_str(), "null", "null", campaign_id.as_str(), "null", "null", "null", "null::uuid", "51"];
    let in_vain = edge.rows_in_vain(tenant, include_str!("../../queries/outcomes.sql"), &parameters).await;
    assert!(in_vain < 500.0, "{in_vain} rows were looked at in vain");
    let found = ready.client.get(&format!("/v1/outcomes?campaign_id={campaign}")).await.body;
    assert_eq!(found["outcomes"].as_array().map(Vec::len), Some(3), "each once: {found}");
}

#[tokio::test]
async fn erasing_a_contact_takes_the_keys_off_its_outcomes_and_leaves_the_numbers() {
    let ready = Ready::start().await;
    let client = &ready.client;
    let early = tell(client, json!({"premium_cents": 5})).await.text("outcome_id");
    let ann = contact(client, "ann@example.com", json!(12)).await;
    let outcome = tell(client, json!({"dot_number": 12, "premium_cents": 7})).await.text("outcome_id");
    run_sweeps(&ready).await;
    let answer = client.delete(&format!("/v1/contacts/{ann}"), json!({"erase": true})).await;
    assert!(answer.status.is_success(), "{}", answer.body);
    ready.edge.finish_erasures().await;
    run_sweeps(&ready).await;
    for (id, cents) in [(early, 5), (outcome, 7)] {
        let record = shown(client, &id).await;
        assert_eq!((&record["contact_email"], &record["dot_number"]), (&Value::Null, &Value::Null));
        assert_eq!((&record["premium_cents"], &record["contact_id"]), (&json!(cents), &json!(ann)));
    }
    assert_eq!(ready.edge.count("select count(*) from outcomes o where o::text like '%ann@%'").await, 0);
}
