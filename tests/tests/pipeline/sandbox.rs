//! The sandbox, as an integrating product tries the service out.

use std::time::Duration;

use pipeline::{Client, Rig, eventually, process};
use serde_json::{Value, json};

/// A sandbox tenant of its own with a domain, a sender and a template.
async fn sandbox(rig: &Rig) -> (Client, Value) {
    let env = rig.operator_env();
    let link = ["tenant", "link", "--product", "demo", "--environment", "sandbox"];
    process::run(&[&link[..], &["--product-tenant-id", "try-out", "--email", "owner@try.example"]].concat(), &env);
    let issue = ["key", "--json", "issue", "--product", "demo", "--environment", "sandbox", "--scopes", "all"];
    let issued: Value = serde_json::from_str(process::run(&issue, &env).lines().next().unwrap()).unwrap();
    let client = Client::new(&rig.base_url, "demo", "sandbox", issued["key"].as_str().unwrap(), "try-out");
    let domain = client.post("/v1/domains", json!({"domain": "try.example"})).await.expect(200);
    let path = format!("/v1/domains/{}/verify", domain["domain_id"].as_str().unwrap());
    assert_eq!(client.post(&path, json!({})).await.expect(200)["status"], "verified");
    let sender = json!({"email": "hello@try.example", "name": "Try", "physical_address": "1 Main St"});
    client.post("/v1/senders", sender).await.expect(200);
    let template = json!({"name": "T", "template_type": "transactional", "subject": "Hello", "body_html": "<p>Hello <a href=\"https://shop.example/offer\">you</a></p>"});
    let template = client.post("/v1/templates", template).await.expect(201)["template_id"].clone();
    (client, template)
}

#[tokio::test(flavor = "multi_thread")]
async fn magic_recipients_make_their_facts_and_nothing_leaves() {
    let mut rig = Rig::shared().await;
    rig.start_all().await;
    let (client, template) = sandbox(&rig).await;
    let unverified = client.post("/v1/domains", json!({"domain": "unverified.try.example"})).await.expect(200);
    let path = format!("/v1/domains/{}/verify", unverified["domain_id"].as_str().unwrap());
    assert_ne!(client.post(&path, json!({})).await.expect(200)["status"], "verified");

    let cases: [(&str, &str, &[&str]); 6] = [
        ("delivered", "sent", &["delivered_at"]),
        ("opened", "sent", &["delivered_at", "opened_at"]),
        ("clicked+a", "sent", &["delivered_at", "opened_at", "clicked_at"]),
        ("complained", "sent", &["delivered_at", "complained_at"]),
        ("bounced", "failed", &["bounced_at"]),
        ("suppressed", "skipped", &[]),
    ];
    for (name, state, facts) in cases {
        let body = json!({"template_id": template, "email": format!("{name}@sandbox.test")});
        let send = client.post("/v1/transactional", body).await.expect(202)["send_id"].as_str().unwrap().to_owned();
        let path = format!("/v1/sends/{send}");
        let found = eventually(&format!("the facts of {name}"), Duration::from_secs(60), || async {
            let found = client.get(&path, &[]).await.expect(200)["send"].clone();
            let is_done = found["state"] == state && facts.iter().all(|fact| found["facts"][*fact].is_string());
            is_done.then_some(found)
        })
        .await;
        if name.starts_with("clicked") {
            let timeline = found["timeline"].as_array().unwrap();
            let click = timeline.iter().find(|entry| entry["type"] == "clicked").unwrap();
            assert_eq!(click["detail"]["url"], "https://shop.example/offer");
        }
        if state == "sent" {
            assert_eq!(found["provider"], "capture");
            let source = client.get(&format!("{path}/source"), &[]).await.expect(200)["source"].clone();
            assert!(source.as_str().unwrap().contains("Subject: Hello\r\n"));
        }
    }
    // A complaint holds for what comes later.
    let body = json!({"template_id": template, "email": "complained@sandbox.test"});
    let send = client.post("/v1/transactional", body).await.expect(202)["send_id"].as_str().unwrap().to_owned();
    eventually("the complaint to withhold the next mail", Duration::from_secs(60), || async {
        let found = client.get(&format!("/v1/sends/{send}"), &[]).await.expect(200)["send"].clone();
        (found["skip_reason"] == "complained").then_some(())
    })
    .await;
    assert_eq!(rig.sink.accepted().await, 0);
    rig.books_balance().await;
}
