//! One-off messages: how long a caller waits for the outcome, by HTTP and by request and reply on the bus. The mail is at the sink by
//! then.

use std::time::{Duration, Instant};

use async_nats::HeaderMap;
use pipeline::Rig;
use serde_json::{Value, json};

use super::common::{Watch, newsletter, spread};

/// How a message is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Via {
    Http,
    Bus,
}

pub(super) async fn run(count: usize, attachment: usize, via: Via) {
    let mut rig = Rig::measured().await.with("LOG", "warn").with("MESSAGE_RATE_PER_HOUR", "0");
    rig.start_all().await;
    let client = async_nats::connect(rig.env["POSTRIDER_NATS_URL"].as_str()).await.unwrap();
    // Four letters of base64 for three of content: a text of one letter.
    let content = format!("{}QQ==", "QUFB".repeat(attachment / 3));
    let attachments =
        if attachment == 0 { json!([]) } else { json!([{"filename": "a.txt", "content_base64": content}]) };
    let body = |n: usize| {
        json!({
            "sender_id": rig.sender_id, "to": [{"email": format!("message-{n}@example.com")}], "subject": "Your certificate",
            "html": newsletter(), "message_class": "business", "attachments": attachments,
        })
    };
    if via == Via::Bus {
        offered(&rig, &client).await;
    }
    // Some first, so that caches and connections are as in a running system.
    for n in 0..5 {
        ask(&rig, &client, via, count + n, body(count + n)).await;
    }
    let watch = Watch::start(&rig);
    let mut latencies = Vec::with_capacity(count);
    for n in 0..count {
        let body = body(n);
        let begun = Instant::now();
        ask(&rig, &client, via, n, body).await;
        latencies.push(begun.elapsed().as_secs_f64() * 1_000.0);
    }
    println!(
        "messages {count} via {via:?}, attachment {attachment} bytes: {}  {}",
        spread(&mut latencies),
        watch.report(count)
    );
}

/// Waits until the service answers: it is offered a moment after the start.
async fn offered(rig: &Rig, client: &async_nats::Client) {
    let subject = format!("mail.v1.api.{}.production.tenant.resolve", rig.client.product());
    let body = json!({"product_tenant_id": rig.client.tenant()}).to_string();
    pipeline::eventually("the API to be offered on the bus", Duration::from_secs(60), || async {
        client.request(subject.clone(), body.clone().into()).await.ok()
    })
    .await;
}

async fn ask(rig: &Rig, client: &async_nats::Client, via: Via, n: usize, mut body: Value) {
    if via == Via::Http {
        rig.client.post("/v1/messages", body).await.expect(200);
        return;
    }
    body["product_tenant_id"] = json!(rig.client.tenant());
    let subject = format!("mail.v1.api.{}.production.message", rig.client.product());
    let mut headers = HeaderMap::new();
    headers.insert("Nats-Msg-Id", format!("message-{n}"));
    let answer = client.request_with_headers(subject, headers, body.to_string().into()).await.unwrap();
    let status = answer.headers.as_ref().and_then(|headers| headers.get("Mail-Status")).map(|status| status.as_str());
    assert_eq!(status, Some("200"), "{}", String::from_utf8_lossy(&answer.payload));
}
