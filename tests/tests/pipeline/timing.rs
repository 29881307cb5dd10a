//! When and how often people are mailed: frequency caps, quiet hours, times of the day by time zones.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use pipeline::{Rig, eventually, ledger};
use serde_json::{Value, json};
use uuid::Uuid;

const WITHIN: Duration = Duration::from_secs(60);
const HTML: &str = "<p>Hello</p>";

#[tokio::test(flavor = "multi_thread")]
async fn two_campaigns_at_once_send_no_more_than_the_cap_allows() {
    let mut rig = Rig::shared().await;
    rig.start_all().await;
    rig.start("second", &["stage", "delivery"]).await;
    rig.client.patch("/v1/tenant", json!({"frequency_cap": {"messages": 2, "days": 7}})).await.expect(200);
    let (list, addresses) = rig.list_of(120, "capped", "example.com").await;
    let mut campaigns = Vec::new();
    for number in 0..4 {
        campaigns.push(rig.campaign(list, &format!("Number {number}"), HTML).await);
    }
    futures::future::join_all(campaigns.iter().map(|campaign| rig.launch(*campaign))).await;
    let mut skipped = 0;
    for campaign in &campaigns {
        rig.status(*campaign, "sent", WITHIN).await;
        skipped += ledger::states(&rig.pool, *campaign).await.get("skipped").copied().unwrap_or_default();
        let reasons: Vec<Option<String>> =
            sqlx::query_scalar("select distinct reason from sends where campaign_id = $1 and state = 'skipped'")
                .bind(campaign)
                .fetch_all(&rig.pool)
                .await
                .unwrap();
        assert!(reasons.iter().all(|reason| reason.as_deref() == Some("frequency_cap")), "{reasons:?}");
    }
    assert_eq!(rig.sink.counts(&addresses).await, vec![2; 120]);
    assert_eq!(skipped, 240);
    // What a person waits for is not held back.
    let body = json!({"sender_id": rig.sender_id, "to": [{"email": addresses[0]}], "subject": "A note", "html": HTML, "message_class": "business"});
    rig.client.post("/v1/messages", body).await.expect(200);
    assert_eq!(rig.sink.counts(&addresses[..1]).await, [3]);
    rig.books_balance().await;
}

/// A draft campaign of this urgency, with so many mails a minute.
async fn paced(rig: &Rig, list: Uuid, urgency: &str, max_per_minute: i32) -> Uuid {
    let campaign = rig.campaign(list, urgency, HTML).await;
    let body = json!({"urgency": urgency, "max_per_minute": max_per_minute});
    rig.client.patch(&format!("/v1/campaigns/{campaign}"), body).await.expect(200);
    campaign
}

async fn count(rig: &Rig, campaign: Uuid, state: &str) -> i64 {
    ledger::states(&rig.pool, campaign).await.get(state).copied().unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_more_urgent_of_two_campaigns_has_the_room_that_is_left() {
    let mut rig = Rig::shared().await;
    rig.start_all().await;
    rig.client.patch("/v1/tenant", json!({"frequency_cap": {"messages": 1, "days": 7}})).await.expect(200);
    let (list, addresses) = rig.list_of(60, "capped", "example.com").await;
    let (low, urgent) = (paced(&rig, list, "low", 600).await, paced(&rig, list, "urgent", 300).await);
    rig.launch(low).await;
    rig.sink.wait(5, 60_000).await;
    let path = format!("/v1/campaigns/{low}");
    rig.client.patch(&path, json!({"paused": true})).await.expect(200);
    let before = eventually("what was fenced to be sent", WITHIN, || async {
        (count(&rig, low, "fenced").await == 0).then_some(count(&rig, low, "sent").await)
    })
    .await;
    rig.launch(urgent).await;
    rig.status(urgent, "sending", WITHIN).await;
    rig.client.patch(&path, json!({"paused": false})).await.expect(200);
    eventually("the less urgent one to wait", WITHIN, || async {
        let waiting: i64 = sqlx::query_scalar(
            "select sum(deferred + case when state = 'timed' then queued else 0 end)::bigint from batches where campaign_id = $1",
        )
        .bind(low)
        .fetch_one(&rig.pool)
        .await
        .unwrap();
        (waiting > 0).then_some(())
    })
    .await;
    rig.status(urgent, "sent", WITHIN).await;
    // The minutes are over for which it was put off.
    eventually("the less urgent one to be decided", WITHIN, || async {
        for due in [
            "update sends set next_attempt_at = now() where campaign_id = $1 and state = 'deferred'",
            "update batches set announce_after = now() where campaign_id = $1 and state in ('timed', 'resting')",
        ] {
            sqlx::query(due).bind(low).execute(&rig.pool).await.unwrap();
        }
        let states = ledger::states(&rig.pool, low).await;
        (states.keys().all(|state| matches!(state.as_str(), "sent" | "skipped"))).then_some(())
    })
    .await;
    assert!((5..60).contains(&before), "{before} of the less urgent one went first");
    assert_eq!((count(&rig, low, "sent").await, count(&rig, low, "skipped").await), (before, 60 - before));
    assert_eq!((count(&rig, urgent, "sent").await, count(&rig, urgent, "skipped").await), (60 - before, before));
    assert_eq!(rig.sink.counts(&addresses).await, vec![1; 60]);
    rig.books_balance().await;
}

/// From so many hours before now, for so many hours, by the tenant's clock, which is that of UTC.
fn quiet(from: i64, hours: i64) -> Value {
    let time = |at: DateTime<Utc>| at.format("%H:%M").to_string();
    let begin = Utc::now() - TimeDelta::hours(from);
    json!({"quiet_hours": {"from": time(begin), "to": time(begin + TimeDelta::hours(hours)), "time_zone": "tenant"}})
}

#[tokio::test(flavor = "multi_thread")]
async fn quiet_hours_lose_nobody_and_double_nobody_over_a_crash() {
    let mut rig = Rig::shared().await.with("AUDIENCE_REANNOUNCE", "5s");
    rig.start_all().await;
    rig.client.patch("/v1/tenant", quiet(2, 10)).await.expect(200);
    let (list, addresses) = rig.list_of(700, "asleep", "example.com").await;
    let campaign = rig.campaign(list, "In the morning", HTML).await;
    let launched = rig.launch(campaign).await;
    assert_eq!((&launched["queued"], &launched["waiting"][0]["count"]), (&json!(700), &json!(700)), "{launched}");
    eventually("the first batch to wait for the morning", WITHIN, || async {
        let timed: i64 = sqlx::query_scalar("select count(*) from batches where state = 'timed'")
            .fetch_one(&rig.pool)
            .await
            .unwrap();
        (timed > 0).then_some(())
    })
    .await;
    assert_eq!(rig.sink.accepted().await, 0);
    rig.kill9("all");
    rig.start_all().await;
    // The morning comes.
    rig.client.patch("/v1/tenant", quiet(12, 10)).await.expect(200);
    sqlx::query("update batches set announce_after = now() where state in ('timed', 'resting')")
        .execute(&rig.pool)
        .await
        .unwrap();
    sqlx::query("update sends set next_attempt_at = now() where state = 'deferred'").execute(&rig.pool).await.unwrap();
    rig.status(campaign, "sent", WITHIN).await;
    assert_eq!(rig.sink.counts(&addresses).await, vec![1; 700]);
    rig.books_balance().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_campaign_by_zones_mails_each_once_until_it_is_cancelled() {
    let mut rig = Rig::shared().await;
    rig.start_all().await;
    let (list, addresses) = rig.list_of(90, "zoned", "example.com").await;
    // The first third where the day begins first, the second where the tenant is (UTC), the last where it begins last.
    for (zone, from) in [("Pacific/Kiritimati", 0), ("Etc/GMT+12", 60)] {
        let third = addresses[from..from + 30].to_vec();
        sqlx::query("update contacts set timezone = $1 where address = any ($2)")
            .bind(zone)
            .bind(third)
            .execute(&rig.pool)
            .await
            .unwrap();
    }
    let campaign = rig.campaign(list, "Good morning", HTML).await;
    let local = (Utc::now() + TimeDelta::hours(14)).format("%Y-%m-%dT%H:%M:%S").to_string();
    let path = format!("/v1/campaigns/{campaign}");
    let body = json!({"schedule_for_local": local});
    let launched = rig.client.post(&format!("{path}/launch"), body).await.expect(202);
    let counts: Vec<&Value> = launched["waiting"].as_array().unwrap().iter().map(|waiting| &waiting["count"]).collect();
    assert_eq!(counts, [30, 30], "{launched}");
    assert_eq!(rig.sink.wait(30, 60_000).await, 30);
    let found = rig.client.get(&path, &[]).await.expect(200);
    let waiting: Vec<(&Value, &Value)> =
        found["waiting"].as_array().unwrap().iter().map(|timed| (&timed["until"], &timed["count"])).collect();
    assert_eq!(waiting.len(), 2, "{found}");
    assert!(waiting.iter().all(|(_, count)| **count == json!(30)) && waiting[0].0.as_str() < waiting[1].0.as_str());
    let explained = rig
        .client
        .get("/v1/explain", &[("campaign_id", &campaign.to_string()), ("email", &addresses[70])])
        .await
        .expect(200);
    let explanation = &explained["explanation"];
    assert_eq!(
        (&explanation["verdict"], &explanation["decided_by"]),
        (&json!("wait"), &json!("pace")),
        "{explanation}"
    );
    // The processes die, the next zone's time comes, and they are started again.
    rig.kill9("all");
    sqlx::query("update batches set announce_after = now() where state = 'timed' and announce_after < now() + interval '20 hours'")
        .execute(&rig.pool)
        .await
        .unwrap();
    rig.start_all().await;
    assert_eq!(rig.sink.wait(60, 60_000).await, 60);
    rig.client.patch(&path, json!({"status": "cancelled"})).await.expect(200);
    // The last zone's time comes, too.
    sqlx::query("update batches set announce_after = now() where state = 'timed'").execute(&rig.pool).await.unwrap();
    eventually("the cancelled campaign to be over", WITHIN, || async {
        let states = ledger::states(&rig.pool, campaign).await;
        (states.get("sent") == Some(&60) && states.get("cancelled") == Some(&30)).then_some(())
    })
    .await;
    assert_eq!(rig.sink.counts(&addresses).await, [vec![1; 60], vec![0; 30]].concat());
    rig.books_balance().await;
}
