//! A product's durable consumer of its own events, and what the service says of itself.

use std::time::Duration;

use async_nats::jetstream::{self, consumer::PullConsumer};
use futures::StreamExt;
use ingress::Serving;
use schemas::Environment;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::common::{Edge, PRODUCT, TENANT};

const WITHIN: Duration = Duration::from_secs(60);

/// An ingress that serves, and an internal system's connection.
struct System {
    edge: Edge,
    client: async_nats::Client,
    shutdown: CancellationToken,
    _serving: Serving,
}

impl System {
    async fn new() -> Self {
        let edge = Edge::start().await;
        edge.link(PRODUCT, Environment::Production, TENANT).await;
        edge.ingress.bus.apply_streams().await.unwrap();
        let shutdown = CancellationToken::new();
        let serving = ingress::serve(edge.ingress.clone(), shutdown.clone()).await.unwrap();
        let client = async_nats::connect(edge.database.nats_url()).await.unwrap();
        let system = Self { edge, client, shutdown, _serving: serving };
        let deadline = tokio::time::Instant::now() + WITHIN;
        while system.ask("tenant.resolve", &json!({"product_tenant_id": TENANT})).await.is_none() {
            assert!(tokio::time::Instant::now() < deadline, "the service is offered");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        system
    }

    fn subject(&self, rest: &str) -> String {
        self.edge.ingress.bus.prefixed(&format!("mail.v1.{rest}"))
    }

    async fn ask(&self, operation: &str, body: &Value) -> Option<(String, Value)> {
        let subject = self.subject(&format!("api.{PRODUCT}.production.{operation}"));
        let answer = self.client.request(subject, body.to_string().into()).await.ok()?;
        let status = answer.headers.as_ref()?.get("Mail-Status")?.as_str().to_owned();
        Some((status, serde_json::from_slice(&answer.payload).unwrap()))
    }

    /// Tells an event, as the webhooks stage would.
    async fn tell(&self, product: &str, body: &str) {
        let jetstream = jetstream::new(self.client.clone());
        let subject = self.subject(&format!("event.{product}.production.email.sent"));
        jetstream.publish(subject, body.to_owned().into()).await.unwrap().await.unwrap();
    }

    /// Pulls what waits in a consumer, as a product's program would.
    async fn pull(&self, made: &Value, count: usize) -> Vec<String> {
        let jetstream = jetstream::new(self.client.clone());
        let stream = jetstream.get_stream_no_info(made["stream"].as_str().unwrap()).await.unwrap();
        let consumer: PullConsumer = stream.get_consumer(made["consumer"].as_str().unwrap()).await.unwrap();
        let mut messages = consumer.messages().await.unwrap();
        let mut bodies = Vec::new();
        while bodies.len() < count {
            let message = tokio::time::timeout(WITHIN, messages.next()).await.unwrap().unwrap().unwrap();
            message.ack().await.unwrap();
            bodies.push(String::from_utf8(message.payload.to_vec()).unwrap());
        }
        bodies
    }
}

impl Drop for System {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

#[tokio::test]
async fn a_durable_consumer_holds_what_was_missed_and_reads_it_again_when_asked() {
    let system = System::new().await;
    system.tell(PRODUCT, "first").await;
    system.tell("rival", "not ours").await;
    let (status, made) = system.ask("events.consumer", &json!({})).await.unwrap();
    assert_eq!((status.as_str(), &made["pending"]), ("200", &json!(1)), "{made}");
    assert_eq!(made["consumer"], format!("{PRODUCT}_production_events"));
    assert_eq!(system.pull(&made, 1).await, ["first"]);
    system.tell(PRODUCT, "second").await;
    // The same again goes on where it was.
    let (_, again) = system.ask("events.consumer", &json!({"consumer": "events"})).await.unwrap();
    assert_eq!(system.pull(&again, 1).await, ["second"]);
    let since = json!({"since": chrono::Utc::now() - chrono::TimeDelta::days(7)});
    let (status, replay) = system.ask("events.consumer", &since).await.unwrap();
    assert_eq!((status.as_str(), &replay["pending"]), ("200", &json!(2)));
    assert_eq!(system.pull(&replay, 2).await, ["first", "second"]);
}

#[tokio::test]
async fn a_consumer_has_a_plain_name_and_a_product_has_few() {
    let system = System::new().await;
    for bad in ["a.b", "*", "acme_production", ""] {
        let (status, answer) = system.ask("events.consumer", &json!({"consumer": bad})).await.unwrap();
        assert_eq!((status.as_str(), &answer["error"]), ("400", &json!("validation_failed")), "{bad}");
    }
    for number in 0..10 {
        let (status, _) = system.ask("events.consumer", &json!({"consumer": format!("c{number}")})).await.unwrap();
        assert_eq!(status, "200");
    }
    let (status, answer) = system.ask("events.consumer", &json!({"consumer": "one-more"})).await.unwrap();
    assert_eq!((status.as_str(), &answer["error"]), ("409", &json!("consumer_limit_reached")));
}

#[tokio::test]
async fn the_service_says_what_each_call_takes_and_hands_out_its_contract() {
    let system = System::new().await;
    let (_, document) = system.ask("asyncapi", &json!({})).await.unwrap();
    assert_eq!(document["asyncapi"], "3.0.0");
    let prefix = system.subject("api.");
    let inbox = system.client.new_inbox();
    let mut answers = system.client.subscribe(inbox.clone()).await.unwrap();
    system.client.publish_with_reply("$SRV.INFO.postrider", inbox, "".into()).await.unwrap();
    let info = tokio::time::timeout(WITHIN, async {
        loop {
            let message = answers.next().await.unwrap();
            let info: Value = serde_json::from_slice(&message.payload).unwrap();
            // Services of other tests answer, too: those of this one have its prefix.
            if info["endpoints"][0]["subject"].as_str().is_some_and(|subject| subject.starts_with(&prefix)) {
                assert!(
                    message.payload.len() < 1 << 18,
                    "far below what servers usually carry: {}",
                    message.payload.len()
                );
                return info;
            }
        }
    })
    .await
    .unwrap();
    for endpoint in info["endpoints"].as_array().unwrap() {
        let metadata = &endpoint["metadata"];
        for which in ["request_schema", "answer_schema"] {
            let path = metadata[which].as_str().unwrap_or_else(|| panic!("{} has no {which}", endpoint["name"]));
            let target = path.strip_prefix("asyncapi.json#").and_then(|path| document.pointer(path));
            assert!(target.is_some(), "{path} leads nowhere");
        }
        assert!(metadata["summary"].as_str().is_some_and(|summary| !summary.is_empty()), "{metadata}");
    }
}
