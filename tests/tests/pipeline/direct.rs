//! Requests that internal systems publish straight to the bus.

use std::time::Duration;

use async_nats::{HeaderMap, jetstream};
use pipeline::{Rig, eventually};
use serde_json::{Value, json};

/// What `rig` takes direct requests by.
struct Door {
    jetstream: jetstream::Context,
    subject: String,
    tenant: String,
    template: Value,
}

impl Door {
    async fn new(rig: &Rig) -> Self {
        let template = rig
            .client
            .post(
                "/v1/templates",
                json!({"name": "T", "template_type": "transactional", "subject": "Code {{ data.code }}",
                       "body_html": "<p>Hello {{ first_name }}: {{ data.code }}</p>"}),
            )
            .await
            .expect(201)["template_id"]
            .clone();
        let client = async_nats::connect(rig.env["POSTRIDER_NATS_URL"].as_str()).await.unwrap();
        let prefix = &rig.env["POSTRIDER_STREAM_PREFIX"];
        let subject = format!("{prefix}mail.v1.request.{}.production.transactional", rig.client.product());
        let tenant = rig.client.tenant().to_owned();
        Self { jetstream: jetstream::new(client), subject, tenant, template }
    }

    /// Publishes one array; a repetition under the id is harmless. `false`: the bus did not take it.
    async fn publish(&self, id: &str, addresses: &[String]) -> bool {
        let request = |(n, email): (usize, &String)| {
            json!({"product_tenant_id": self.tenant, "template_id": self.template, "email": email, "first_name": "Ann",
                   "data": {"code": format!("{id}-{n}")}})
        };
        let body = json!(addresses.iter().enumerate().map(request).collect::<Vec<_>>());
        let mut headers = HeaderMap::new();
        headers.insert("Nats-Msg-Id", id);
        let published =
            self.jetstream.publish_with_headers(self.subject.clone(), headers, body.to_string().into()).await;
        match published {
            Ok(answer) => answer.await.is_ok(),
            Err(_) => false,
        }
    }
}

fn addresses(from: usize, count: usize) -> Vec<String> {
    (from..from + count).map(|n| format!("direct-{n}@example.com")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn two_thousand_in_arrays_reach_the_sink_once_each_in_few_batches() {
    let mut rig = Rig::shared().await;
    rig.start_all().await;
    let door = Door::new(&rig).await;
    let all = addresses(0, 2_000);
    for (number, part) in all.chunks(500).enumerate() {
        assert!(door.publish(&format!("array-{number}"), part).await);
    }
    rig.sink.wait(2_000, 120_000).await;
    assert_eq!(rig.sink.counts(&all).await, vec![1; 2_000]);
    let batches: i64 = sqlx::query_scalar(
        "select count(*) from batches where kind = 'transactional' and lane = 'bulk' and size = 500",
    )
    .fetch_one(&rig.pool)
    .await
    .unwrap();
    assert_eq!(batches, 4);
    let mail = rig.sink.messages_to(&all[501]).await;
    assert!(mail[0]["html"].as_str().unwrap().contains("Hello Ann: array-1-1"), "{}", mail[0]["html"]);
    eventually("all to be counted as sent", Duration::from_secs(60), || async {
        let open: i64 =
            sqlx::query_scalar("select count(*) from sends where state <> 'sent'").fetch_one(&rig.pool).await.unwrap();
        (open == 0).then_some(())
    })
    .await;
    rig.books_balance().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_published_is_sent_once_past_a_killed_ingress_and_a_restarted_nats() {
    let mut rig = Rig::private().await;
    rig.start_separate().await;
    let door = Door::new(&rig).await;
    let all = addresses(0, 600);
    let parts: Vec<&[String]> = all.chunks(60).collect();
    for (number, part) in parts[..5].iter().enumerate() {
        assert!(door.publish(&format!("array-{number}"), part).await);
    }
    rig.kill9("ingress");
    rig.start("ingress", &["ingress"]).await;
    rig.servers().nats().stop().await.unwrap();
    rig.servers().nats().start().await.unwrap();
    for (number, part) in parts.iter().enumerate() {
        // All of them once more: whoever published and heard no answer does so, too.
        eventually("the bus to take it", Duration::from_secs(60), || async {
            door.publish(&format!("array-{number}"), part).await.then_some(())
        })
        .await;
    }
    rig.sink.wait(600, 120_000).await;
    assert_eq!(rig.sink.counts(&all).await, vec![1; 600]);
    let accepted: i64 = sqlx::query_scalar("select count(*) from requests").fetch_one(&rig.pool).await.unwrap();
    assert_eq!(accepted, 600);
    rig.books_balance().await;
}
