//! A recipient leaves while NATS is away: nothing of it is lost, and it is told once.

use std::{collections::BTreeMap, time::Duration};

use pipeline::{Rig, eventually};
use runtime::MasterKeys;
use schemas::token::Purpose;
use serde_json::json;
use uuid::Uuid;

use crate::webhooks::receiver::Receiver;

const WITHIN: Duration = Duration::from_secs(60);

/// The paths a recipient leaves by, and what is posted there.
const PATHS: [(&str, Purpose, &str, &str); 3] = [
    ("/u/", Purpose::Unsubscribe, "confirm=yes", "page"),
    ("/u/", Purpose::Unsubscribe, "List-Unsubscribe=One-Click", "one_click"),
    ("/p/", Purpose::Preferences, "action=leave", "preferences"),
];

#[tokio::test(flavor = "multi_thread")]
async fn an_unsubscribe_while_nats_is_away_is_told_once_and_known_everywhere() {
    let mut rig = Rig::private().await.with("WEBHOOK_ALLOW_NETWORKS", "127.0.0.0/8");
    rig.start_all().await;
    let receiver = Receiver::start().await;
    let subscription = json!({"url": receiver.url(), "events": ["email.unsubscribed"]});
    rig.client.post("/v1/webhooks", subscription).await.expect(201);
    let (list, _) = rig.list_of(PATHS.len(), "leaver", "example.com").await;
    let campaign = rig.campaign(list, "News", "<p>Hello {{ first_name }}</p>").await;
    rig.launch(campaign).await;
    rig.status(campaign, "sent", WITHIN).await;
    let sends: Vec<Uuid> = sqlx::query_scalar("select id from sends where campaign_id = $1 order by id")
        .bind(campaign)
        .fetch_all(&rig.pool)
        .await
        .unwrap();
    let tokens = MasterKeys::parse(&rig.env["POSTRIDER_MASTER_KEY"]).unwrap().tokens();

    rig.servers().nats().stop().await.unwrap();
    for (send, (path, purpose, body, _)) in sends.iter().zip(PATHS) {
        let link = format!("{}{path}{}", rig.base_url, tokens.seal(purpose, rig.engine_tenant_id, *send, b""));
        for _ in 0..2 {
            let post = rig.client.http().post(&link).header("content-type", "application/x-www-form-urlencoded");
            assert_eq!(post.body(body).send().await.unwrap().status().as_u16(), 200, "{path}");
        }
    }
    rig.servers().nats().start().await.unwrap();

    let wanted = BTreeMap::from([("email.unsubscribed", ("send_id", sends.len()))]);
    let told = eventually("each opt-out to be told", WITHIN, || async {
        let told = receiver.told(&wanted);
        told.get("email.unsubscribed").filter(|told| told.len() == sends.len()).cloned()
    })
    .await;
    assert!(told.values().all(|ids| ids.len() == 1), "each once: {told:?}");

    for (send, (.., method)) in sends.iter().zip(PATHS) {
        let record = rig.client.get(&format!("/v1/sends/{send}"), &[]).await.expect(200)["send"].clone();
        let facts: Vec<_> =
            record["timeline"].as_array().unwrap().iter().filter(|e| e["type"] == "unsubscribed").collect();
        assert_eq!(facts.len(), 1, "{record}");
        assert!(facts[0].to_string().contains(method), "{record}");
    }
    let report = rig.client.get(&format!("/v1/campaigns/{campaign}"), &[]).await.expect(200);
    assert_eq!(report["send_counts"]["unsubscribed"], sends.len(), "{report}");
    let segment = json!({"name": "Left", "rule": {"event": "email.unsubscribed"}});
    let segment = rig.client.post("/v1/segments", segment).await.expect(201)["segment_id"].clone();
    let matching = rig.client.get("/v1/contacts", &[("segment_id", segment.as_str().unwrap())]).await.expect(200);
    assert_eq!(matching["contacts"].as_array().unwrap().len(), sends.len(), "{matching}");
    rig.books_balance().await;
}
