//! `retry_failed`: what may be mended goes back into the queue, once.

use rstest::rstest;
use serde_json::json;
use uuid::Uuid;

use crate::fixtures::{Ready, audience};

/// A finished campaign whose sends failed for these reasons; the ids.
async fn failed(ready: &Ready, reasons: &[&str]) -> (String, Vec<Uuid>) {
    audience(&ready.edge.pool, ready.client.tenant, "list", "more", 20).await;
    let id = ready.campaign(json!({})).await;
    let sends = ready.batch(&id, &vec!["failed"; reasons.len()]).await;
    for (send, reason) in sends.iter().zip(reasons) {
        stage_rig::run!(&ready.edge.pool, "update sends set reason = $2, attempts = 2 where id = $1", [send, reason]);
    }
    sqlx::query("update batches set state = 'done', done_at = now()").execute(&ready.edge.pool).await.unwrap();
    sqlx::query("update campaigns set status = 'sent', completed_at = now(), counts = '{}' where id = $1::uuid")
        .bind(&id)
        .execute(&ready.edge.pool)
        .await
        .unwrap();
    (id, sends)
}

#[tokio::test]
async fn what_may_be_mended_goes_back_and_the_rest_stays() {
    let ready = Ready::start().await;
    let (id, sends) = failed(&ready, &["block", "hard", "mailbox_full", "inactive", "render"]).await;
    let path = format!("/v1/campaigns/{id}/retry_failed");
    let answer = ready.client.post(&path, json!({})).await;
    assert_eq!(answer.body, json!({"ok": true, "campaign_id": id, "queued": 3, "skipped": 2}), "{}", answer.body);
    let campaign = ready.client.get(&format!("/v1/campaigns/{id}")).await.body;
    assert_eq!(
        (&campaign["campaign"]["status"], &campaign["campaign"]["completed_at"]),
        (&json!("sending"), &json!(null))
    );
    assert_eq!((&campaign["send_counts"]["queued"], &campaign["send_counts"]["failed"]), (&json!(3), &json!(2)));
    let send = ready.client.get(&format!("/v1/sends/{}", sends[0])).await.body["send"].clone();
    assert_eq!(
        (&send["state"], &send["failure_reason"], &send["attempt_count"]),
        (&json!("queued"), &json!(null), &json!(2)),
        "attempts stay counted"
    );
    assert_eq!(ready.edge.count("select count(*) from batches where state = 'waiting' and done_at is null").await, 1);
    let totals = "select coalesce(sum(count), 0)::bigint from rollups where event = 'failed' and kind = 'campaign'";
    assert_eq!(ready.edge.count(totals).await, -3, "what was said of them is taken back");
    let again = ready.client.post(&path, json!({})).await;
    assert_eq!((&again.body["queued"], &again.body["skipped"]), (&json!(0), &json!(2)), "nothing is left to do");
}

#[rstest]
#[case::to_a_topic(&[Some("News")])]
#[case::to_one_that_is_none_any_more(&[Some("News"), None])]
#[tokio::test]
async fn mail_that_the_gate_would_skip_stays_failed_until_it_may_go(#[case] public_names: &[Option<&str>]) {
    let ready = Ready::start().await;
    let (id, sends) = failed(&ready, &["block"; 5]).await;
    for name in public_names {
        let changed = ready.client.patch(&format!("/v1/audiences/{}", ready.list), json!({"public_name": name})).await;
        assert_eq!(changed.status, 200, "{}", changed.body);
    }
    for (send, sql) in sends[1..].iter().zip([
        "update contacts set status = 'archived' where id = (select contact_id from sends where id = $1)",
        "update contacts set status = 'erased' where id = (select contact_id from sends where id = $1)",
        "insert into suppressions (tenant_id, id, address, reason, scope, source)
         select c.tenant_id, c.id, c.address, 'complaint', 'all', 'api'
         from contacts c join sends s on s.tenant_id = c.tenant_id and s.contact_id = c.id where s.id = $1",
        "insert into topic_opt_outs (tenant_id, audience_id, contact_id, send_id)
         select s.tenant_id, k.list_id, s.contact_id, s.id
         from sends s join campaigns k on k.tenant_id = s.tenant_id and k.id = s.campaign_id where s.id = $1",
    ]) {
        assert_eq!(sqlx::query(sql).bind(send).execute(&ready.edge.pool).await.unwrap().rows_affected(), 1, "{sql}");
    }
    let path = format!("/v1/campaigns/{id}/retry_failed");
    let answer = ready.client.post(&path, json!({})).await;
    assert_eq!((&answer.body["queued"], &answer.body["skipped"]), (&json!(1), &json!(4)), "{}", answer.body);
    assert_eq!(ready.client.get(&format!("/v1/sends/{}", sends[0])).await.body["send"]["state"], json!("queued"));
    sqlx::query("update contacts set status = 'active' where status = 'archived'")
        .execute(&ready.edge.pool)
        .await
        .unwrap();
    let answer = ready.client.post(&path, json!({})).await;
    assert_eq!((&answer.body["queued"], &answer.body["skipped"]), (&json!(1), &json!(3)), "{}", answer.body);
}

#[tokio::test]
async fn of_ten_retries_at_once_each_send_goes_back_once() {
    let ready = Ready::start().await;
    let (id, _) = failed(&ready, &["block"; 10]).await;
    let path = format!("/v1/campaigns/{id}/retry_failed");
    let answers = futures::future::join_all((0..10).map(|_| ready.client.post(&path, json!({})))).await;
    let queued: i64 = answers.iter().map(|answer| answer.body["queued"].as_i64().unwrap()).sum();
    assert_eq!(queued, 10);
    assert_eq!(ready.edge.count("select queued::bigint from batches").await, 10);
}

#[rstest]
#[case("draft")]
#[case("scheduled")]
#[case("cancelled")]
#[tokio::test]
async fn only_what_was_launched_is_tried_again(#[case] status: &str) {
    let ready = Ready::start().await;
    let id = ready.campaign(json!({})).await;
    ready.set_status(&id, status).await;
    let answer = ready.client.post(&format!("/v1/campaigns/{id}/retry_failed"), json!({})).await;
    assert_eq!(answer.refusal(), (409, format!("campaign_already_{status}").as_str()));
}

#[tokio::test]
async fn what_the_quota_has_no_room_for_stays_failed() {
    let ready = Ready::start().await;
    let (id, _) = failed(&ready, &["block"; 3]).await;
    sqlx::query("insert into send_limits (tenant_id, daily) values ($1, 2)")
        .bind(ready.client.tenant)
        .execute(&ready.edge.pool)
        .await
        .unwrap();
    let answer = ready.client.post(&format!("/v1/campaigns/{id}/retry_failed"), json!({})).await;
    assert_eq!(answer.refusal(), (429, "send_quota_exceeded"));
    assert_eq!(ready.edge.count("select count(*) from sends where state = 'failed'").await, 3);
    // What was handed over once is counted already, and needs no room.
    sqlx::query("update sends set fenced_at = now()").execute(&ready.edge.pool).await.unwrap();
    let answer = ready.client.post(&format!("/v1/campaigns/{id}/retry_failed"), json!({})).await;
    assert_eq!((answer.status.as_u16(), &answer.body["queued"]), (200, &json!(3)), "{}", answer.body);
}
