//! A/B tests, windows, pace, tripwire and second tries, from HTTP to the mail sink.

use std::{collections::BTreeMap, time::Duration};

use chrono::{DateTime, TimeDelta, Utc};
use pipeline::{Rig, eventually, ledger};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::webhooks::receiver::Receiver;

/// A draft to a list, with changes.
async fn draft(rig: &Rig, list: Uuid, change: Value) -> Uuid {
    let mut body = json!({
        "name": "test", "sender_profile_id": rig.sender_id, "audience_mode": "list", "list_id": list, "subject": "Control",
        "body_html": "<p>Hello {{ first_name }}, <a href=\"https://shop.example/offer\">the offer</a></p>",
    });
    body.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
    let answer = rig.client.post("/v1/campaigns", body).await.expect(201);
    answer["campaign_id"].as_str().unwrap().parse().unwrap()
}

async fn record(rig: &Rig, campaign: Uuid) -> Value {
    rig.client.get(&format!("/v1/campaigns/{campaign}"), &[]).await.expect(200)
}

/// The subject each address got, once.
async fn subjects(rig: &Rig, addresses: &[String]) -> BTreeMap<String, Vec<String>> {
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for address in addresses {
        for message in rig.sink.messages_to(address).await {
            found.entry(message["subject"].as_str().unwrap_or_default().to_owned()).or_default().push(address.clone());
        }
    }
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn the_variant_that_is_clicked_more_goes_to_the_rest_and_everybody_gets_one_mail() {
    let mut rig = Rig::shared().await;
    rig.start_all().await;
    let (list, addresses) = rig.list_of(300, "ab", "example.com").await;
    let campaign = draft(
        &rig,
        list,
        json!({
            "variants": [{"name": "Control", "weight": 1}, {"name": "Better", "weight": 1, "subject": "Better"}],
            "ab_test": {"test_percent": 40, "winner_metric": "click_rate", "decide_after_minutes": 5},
        }),
    )
    .await;
    let launched = rig.launch(campaign).await;
    let count = |at: usize| launched["ab_variants"][at]["count"].as_u64().unwrap();
    let test = count(0) + count(1);
    assert_eq!(rig.sink.wait(test, 60_000).await, test, "the test goes out, the rest waits: {launched}");
    eventually("the test's mail to be out", Duration::from_secs(60), || async {
        record(&rig, campaign).await["campaign"]["ab_test"]["tested_at"].is_string().then_some(())
    })
    .await;
    assert_eq!(rig.sink.accepted().await, test);

    let got = subjects(&rig, &addresses).await;
    assert_eq!((got["Control"].len() as u64, got["Better"].len() as u64), (count(0), count(1)));
    // Half a minute ago, as far as the rules about scanners go: nobody reads that fast.
    sqlx::query("update sends set fenced_at = fenced_at - interval '1 minute', decided_at = decided_at - interval '1 minute' where campaign_id = $1")
        .bind(campaign)
        .execute(&rig.pool)
        .await
        .unwrap();
    for address in got["Better"].iter().take(12).chain(got["Control"].iter().take(2)) {
        rig.click(address).await;
    }
    eventually("the clicks to be counted as people's", Duration::from_secs(60), || async {
        let clicks: i64 =
            sqlx::query_scalar("select coalesce(sum(clicked_human), 0)::bigint from batches where campaign_id = $1")
                .bind(campaign)
                .fetch_one(&rig.pool)
                .await
                .unwrap();
        (clicks == 14).then_some(())
    })
    .await;
    // Five minutes pass.
    sqlx::query("update campaigns set tested_at = tested_at - interval '5 minutes' where id = $1")
        .bind(campaign)
        .execute(&rig.pool)
        .await
        .unwrap();
    rig.status(campaign, "sent", Duration::from_secs(60)).await;
    let test = record(&rig, campaign).await["campaign"]["ab_test"].clone();
    assert_eq!((&test["winner"], &test["winner_reason"]), (&json!("B"), &json!("highest_rate")), "{test}");
    assert_eq!(rig.sink.counts(&addresses).await, vec![1; 300]);
    let got = subjects(&rig, &addresses).await;
    assert_eq!(got["Control"].len() as u64, count(0), "the rest got the winner");
    let listed = rig
        .client
        .get(&format!("/v1/campaigns/{campaign}/sends"), &[("variant", "A"), ("limit", "200")])
        .await
        .expect(200);
    assert_eq!(listed["sends"].as_array().unwrap().len() as u64, count(0));
    rig.books_balance().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_second_sees_more_than_its_share_of_a_paced_campaign() {
    let mut rig = Rig::shared().await;
    rig.start_all().await;
    let (list, addresses) = rig.list_of(60, "paced", "example.com").await;
    let campaign = draft(&rig, list, json!({"max_per_minute": 600})).await;
    let launched = Utc::now();
    rig.launch(campaign).await;
    rig.status(campaign, "sent", Duration::from_secs(60)).await;
    assert_eq!(rig.sink.counts(&addresses).await, vec![1; 60]);
    let fenced: Vec<DateTime<Utc>> =
        sqlx::query_scalar("select fenced_at from sends where campaign_id = $1 order by fenced_at")
            .bind(campaign)
            .fetch_all(&rig.pool)
            .await
            .unwrap();
    // Not from the first mail: on a busy machine that one is late, and the others are not.
    let whole = fenced[59] - launched;
    assert!(whole >= TimeDelta::milliseconds(3_500), "sixty at ten a second took {whole}");
    // A second's mail leaves together; one second that was missed may be made up for.
    let most = fenced
        .iter()
        .map(|at| fenced.iter().filter(|other| *other >= at && **other - *at < TimeDelta::seconds(1)).count())
        .max();
    assert!(most <= Some(30), "{most:?} in one second");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_closed_window_leaves_nobody_without_an_answer() {
    let mut rig = Rig::shared().await;
    rig.start_all().await;
    let (list, addresses) = rig.list_of(40, "late", "example.com").await;
    // Ten every ten seconds.
    let not_after = (Utc::now() + TimeDelta::hours(1)).to_rfc3339();
    let campaign = draft(&rig, list, json!({"max_per_minute": 60, "not_after": not_after})).await;
    rig.launch(campaign).await;
    assert!(rig.sink.wait(1, 120_000).await >= 1);
    // The hour is nearly over. This must be committed before it is.
    let closes_at: DateTime<Utc> = sqlx::query_scalar(
        "update campaigns set not_after = now() + interval '8 s', closes_at = now() + interval '8 s' where id = $1
         returning closes_at",
    )
    .bind(campaign)
    .fetch_one(&rig.pool)
    .await
    .unwrap();
    rig.status(campaign, "sent", Duration::from_secs(120)).await;
    let states = ledger::states(&rig.pool, campaign).await;
    let (sent, skipped) = (states.get("sent").copied().unwrap_or(0), states.get("skipped").copied().unwrap_or(0));
    assert!(sent >= 1 && skipped >= 20 && sent + skipped == 40, "{states:?}");
    assert_eq!(rig.sink.counts(&addresses).await.iter().sum::<u64>(), u64::try_from(sent).unwrap());
    // The gate knows when its transaction began; the stamp is of a moment later.
    let late: i64 =
        sqlx::query_scalar("select count(*) from sends where campaign_id = $1 and fenced_at > $2 + interval '5 s'")
            .bind(campaign)
            .bind(closes_at)
            .fetch_one(&rig.pool)
            .await
            .unwrap();
    assert_eq!(late, 0, "nothing leaves after the window is closed");
    let reasons: Vec<String> =
        sqlx::query_scalar("select distinct reason from sends where campaign_id = $1 and state = 'skipped'")
            .bind(campaign)
            .fetch_all(&rig.pool)
            .await
            .unwrap();
    assert_eq!(reasons, ["window_missed"]);
    rig.books_balance().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_addresses_trip_the_wire_and_resuming_mails_the_rest() {
    let mut rig = Rig::shared().await.with("WEBHOOK_ALLOW_NETWORKS", "127.0.0.0/8");
    rig.start_all().await;
    let receiver = Receiver::start().await;
    rig.client.post("/v1/webhooks", json!({"url": receiver.url(), "events": ["campaign.paused"]})).await.expect(201);
    let (dead, _) = rig.list_of(700, "reject-550-5.1.1", "example.com").await;
    // At a hundred a second: whoever looks every second must find something left to stop.
    let campaign = draft(&rig, dead, json!({"max_per_minute": 6_000})).await;
    rig.launch(campaign).await;
    let paused = eventually("the campaign to be paused", Duration::from_secs(60), || async {
        let campaign = record(&rig, campaign).await["campaign"].clone();
        (campaign["paused"] == true).then_some(campaign)
    })
    .await;
    assert_eq!(
        (&paused["pause_reason"], &paused["tripwire"]["state"]),
        (&json!("tripwire_bounces"), &json!("tripped"))
    );
    let told = receiver.wait_for("campaign.paused", Duration::from_secs(60)).await;
    assert_eq!((&told["data"]["campaign_id"], &told["data"]["reason"]), (&json!(campaign), &json!("tripwire_bounces")));
    rig.client.patch(&format!("/v1/campaigns/{campaign}"), json!({"paused": false})).await.expect(200);
    rig.status(campaign, "sent", Duration::from_secs(60)).await;
    let finished = record(&rig, campaign).await;
    assert_eq!(finished["campaign"]["tripwire"]["state"], "disarmed");
    assert_eq!(finished["send_counts"]["bounced"], 700, "{finished}");
    rig.books_balance().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_refused_is_mailed_when_it_is_tried_again_and_nobody_twice() {
    let mut rig = Rig::shared().await;
    rig.start_all().await;
    let (list, addresses) = rig.list_of(50, "retried", "example.com").await;
    rig.sink
        .set_rules(json!([{"match": {"glob": "retried-1*@example.com"}, "stage": "dot", "reply": "554 5.7.1 Refused for policy"}]))
        .await;
    let campaign = draft(&rig, list, json!({})).await;
    rig.launch(campaign).await;
    rig.status(campaign, "sent", Duration::from_secs(60)).await;
    let path = format!("/v1/campaigns/{campaign}/retry_failed");
    let failed = ledger::states(&rig.pool, campaign).await["failed"];
    assert_eq!(failed, 11, "1 and 10 to 19");
    rig.sink.set_rules(json!([])).await;
    let (first, second) = tokio::join!(rig.client.post(&path, json!({})), rig.client.post(&path, json!({})));
    let queued = first.expect(200)["queued"].as_i64().unwrap() + second.expect(200)["queued"].as_i64().unwrap();
    assert_eq!(queued, failed);
    rig.status(campaign, "sent", Duration::from_secs(60)).await;
    eventually("all to be mailed", Duration::from_secs(60), || async {
        (ledger::states(&rig.pool, campaign).await.get("sent") == Some(&50)).then_some(())
    })
    .await;
    assert_eq!(rig.sink.counts(&addresses).await, vec![1; 50]);
    rig.books_balance().await;
}
