//! Postgres or NATS away: honest answers meanwhile, recovery by itself.

use std::time::Duration;

use pipeline::{Rig, eventually};
use serde_json::json;

#[tokio::test(flavor = "multi_thread")]
async fn postgres_restarted_under_load_gives_503_with_retry_after_and_then_recovers_by_itself() {
    let mut rig = Rig::private()
        .await
        .with("AUDIENCE_REANNOUNCE", "5s")
        .with("SMTP_FINAL_TIMEOUT", "5s")
        .with("SMTP_COMMAND_TIMEOUT", "10s");
    rig.start_all().await;
    let (list, addresses) = rig.list_of(5_000, "pg", "example.com").await;
    let campaign = rig.campaign(list, "Hello", "<p>Hello {{ first_name }}</p>").await;
    rig.launch(campaign).await;
    rig.sink.wait(500, 60_000).await;
    rig.servers().postgres().stop().await.unwrap();
    let answer = rig.client.post("/v1/contacts", json!({"email": "new@example.com"})).await;
    assert_eq!((answer.status.as_u16(), answer.error()), (503, "unavailable"), "{}", answer.body);
    assert!(answer.retry_after.is_some());
    rig.servers().postgres().start().await.unwrap();
    eventually("the API to answer again", Duration::from_secs(60), || async {
        let answer = rig.client.post("/v1/contacts", json!({"email": "new@example.com"})).await;
        answer.status.is_success().then_some(())
    })
    .await;
    rig.status(campaign, "sent", Duration::from_secs(120)).await;
    let counts = rig.sink.counts(&addresses).await;
    assert_eq!(counts.iter().filter(|count| **count > 1).count(), 0, "somebody was mailed twice");
    let unknown: i64 = sqlx::query_scalar("select count(*) from sends where campaign_id = $1 and state = 'unknown'")
        .bind(campaign)
        .fetch_one(&rig.pool)
        .await
        .unwrap();
    let missed = counts.iter().filter(|count| **count == 0).count() as i64;
    assert!(missed <= unknown, "{missed} not mailed, {unknown} in doubt");
    rig.books_balance().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_accepted_while_nats_is_down_go_out_when_it_is_back() {
    let mut rig = Rig::private().await;
    rig.start_all().await;
    let template = rig.transactional_template().await;
    rig.servers().nats().stop().await.unwrap();
    let mut addresses = Vec::new();
    for n in 0..20 {
        let address = format!("nats-{n}@example.com");
        let body = json!({"template_id": template, "email": address});
        rig.client.post("/v1/transactional", body).await.expect(202);
        addresses.push(address);
    }
    let health: serde_json::Value =
        rig.client.http().get(format!("{}/health", rig.base_url)).send().await.unwrap().json().await.unwrap();
    assert_eq!((&health["checks"]["database"], &health["checks"]["bus"]), (&json!(true), &json!(false)), "{health}");
    rig.servers().nats().start().await.unwrap();
    rig.sink.wait(20, 60_000).await;
    assert_eq!(rig.sink.counts(&addresses).await, vec![1; 20]);
}

/// The caller of a one-off message waits for the mail itself. It is committed, so it is neither refused nor forgotten: the caller is
/// told that it is on its way, and a repeat of the key hears what became of it.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_accepted_while_nats_is_down_is_pending_and_its_repeat_answers_for_one_mail() {
    let mut rig = Rig::private().await.with("MESSAGE_TIMEOUT", "2s");
    rig.start_all().await;
    let message = json!({
        "sender_id": rig.sender_id, "to": [{"email": "dora@example.com"}], "subject": "Your certificate", "html": "<p>Here it is</p>",
        "message_class": "business",
    });
    rig.servers().nats().stop().await.unwrap();
    let ask = || rig.client.post_once("certificate", "/v1/messages", message.clone());
    let mut pending = Vec::new();
    for _ in 0..2 {
        let answer = ask().await.unwrap();
        assert_eq!((answer.status.as_u16(), answer.error()), (504, "dispatch_pending"), "{}", answer.body);
        assert!(answer.retry_after.is_some());
        pending.push(answer.body["message_id"].clone());
    }
    assert_eq!(pending[0], pending[1], "the repeat is about the same message");
    assert_eq!(rig.sink.accepted().await, 0);

    rig.servers().nats().start().await.unwrap();
    let answer = eventually("the repeat to be answered", Duration::from_secs(90), || async {
        let answer = ask().await.ok()?;
        (answer.status.as_u16() != 504).then_some(answer)
    })
    .await;
    assert_eq!(answer.expect(200)["message_id"], pending[0]);
    assert_eq!(rig.sink.counts(&["dora@example.com".to_owned()]).await, [1]);
    rig.books_balance().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_single_mail_goes_on_soon_after_a_restart_of_nats() {
    let mut rig = Rig::private().await;
    rig.start("front", &["ingress"]).await;
    rig.start("audience", &["stage", "audience"]).await;
    let template = rig.transactional_template().await;
    let body = json!({"template_id": template, "email": "ann@example.com"});
    rig.client.post("/v1/transactional", body).await.expect(202);
    eventually("the announcement to rendering", Duration::from_secs(60), || async {
        let announced: bool = sqlx::query_scalar("select exists (select from batches where announcement = 1)")
            .fetch_one(&rig.pool)
            .await
            .unwrap();
        announced.then_some(())
    })
    .await;
    rig.servers().nats().stop().await.unwrap();
    rig.servers().nats().start().await.unwrap();
    rig.start("rest", &["stage", "rendering", "delivery", "compliance"]).await;
    // The batches of campaigns are announced again after a minute.
    assert_eq!(rig.sink.wait(1, 45_000).await, 1);
    assert_eq!(rig.sink.counts(&["ann@example.com".to_owned()]).await, vec![1]);
}
