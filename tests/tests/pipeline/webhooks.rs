//! Webhooks as their receivers see them: signatures that others verify, and each event of the specification.

pub(crate) mod receiver;

use std::time::Duration;

use pipeline::{Client, Rig, eventually, process};
use receiver::{Receiver, Signed};
use rstest::rstest;
use serde_json::{Value, json};

const WITHIN: Duration = Duration::from_secs(60);

async fn rig() -> Rig {
    let mut rig = Rig::shared().await.with("WEBHOOK_ALLOW_NETWORKS", "127.0.0.0/8");
    rig.start_all().await;
    rig
}

/// Receivers in Python and Node verify with the published library and with ten lines of their own, also while
/// the secret is being replaced and they still have the old one.
#[rstest]
#[case::python("python")]
#[case::node("node")]
#[tokio::test(flavor = "multi_thread")]
async fn others_verify_our_signatures(#[case] language: &str) {
    let Some(mut receiver) = Signed::start(language).await else { return };
    let rig = rig().await;
    let made = rig
        .client
        .post("/v1/webhooks", json!({"url": receiver.url(), "events": ["contact.created"], "description": language}))
        .await
        .expect(201);
    receiver.trust(made["signing_secret"].as_str().unwrap());
    let path = format!("/v1/webhooks/{}", made["subscription_id"].as_str().unwrap());

    let asked = rig.client.post(&format!("{path}/test"), json!({})).await.expect(202);
    let seen = receiver.next(WITHIN).await;
    assert_eq!(
        (&seen["event"], &seen["id"], &seen["body_id"]),
        (&json!("webhook.test"), &asked["event_id"], &asked["event_id"])
    );
    let verified = |seen: &Value, signatures: u64| {
        assert_eq!(
            (&seen["library"], &seen["ten_lines"], &seen["forged"], &seen["signatures"]),
            (&json!(true), &json!(true), &json!(false), &json!(signatures)),
            "{seen}"
        );
    };
    verified(&seen, 1);

    rig.client.post(&format!("{path}/rotate_secret"), json!({})).await.expect(200);
    // The stage looks at its subscriptions about every second: until then deliveries carry the old signature, which still holds.
    let mut number = 0;
    loop {
        number += 1;
        assert!(number < 600, "deliveries never carry both signatures");
        let contact = json!({"email": format!("dora-{number}@example.com"), "first_name": "Dörte \u{1f4ee}"});
        rig.client.post("/v1/contacts", contact).await.expect(201);
        let seen = receiver.next(WITHIN).await;
        assert_eq!(seen["event"], "contact.created");
        let signatures = seen["signatures"].as_u64().unwrap();
        verified(&seen, signatures);
        if signatures == 2 {
            break;
        }
    }

    let delivery = format!("/v1/webhooks/deliveries/{}", asked["delivery_id"].as_str().unwrap());
    let delivered = eventually("the delivery to be on record", WITHIN, || async {
        let found = rig.client.get(&delivery, &[]).await.expect(200)["delivery"].clone();
        (found["status"] == "delivered").then_some(found)
    })
    .await;
    assert_eq!((&delivered["attempts"], &delivered["status_code"]), (&json!(1), &json!(204)));
}

/// A sandbox tenant of its own: its magic recipients make every fact.
async fn sandbox(rig: &Rig) -> Client {
    let env = rig.operator_env();
    let link = ["tenant", "link", "--product", "demo", "--environment", "sandbox"];
    process::run(&[&link[..], &["--product-tenant-id", "try-out", "--email", "owner@try.example"]].concat(), &env);
    let issue = ["key", "--json", "issue", "--product", "demo", "--environment", "sandbox", "--scopes", "all"];
    let issued: Value = serde_json::from_str(process::run(&issue, &env).lines().next().unwrap()).unwrap();
    Client::new(&rig.base_url, "demo", "sandbox", issued["key"].as_str().unwrap(), "try-out")
}

/// Every event of the contract.
#[tokio::test(flavor = "multi_thread")]
async fn each_event_of_the_contract_reaches_its_receiver() {
    let rig = rig().await;
    let client = sandbox(&rig).await;
    let receiver = Receiver::start().await;
    let supported = client.get("/v1/webhooks", &[]).await.expect(200)["supported_events"].clone();
    let body = json!({"url": receiver.url(), "events": supported});
    client.post("/v1/webhooks", body).await.expect(201);

    // domain.status_changed
    let domain = client.post("/v1/domains", json!({"domain": "try.example"})).await.expect(200);
    let path = format!("/v1/domains/{}/verify", domain["domain_id"].as_str().unwrap());
    client.post(&path, json!({})).await.expect(200);
    let sender = json!({"email": "hello@try.example", "name": "Try", "physical_address": "1 Main St"});
    let sender = client.post("/v1/senders", sender).await.expect(200)["sender_id"].clone();
    let template = json!({"name": "T", "template_type": "transactional", "subject": "Hello",
                          "body_html": "<p>Hello <a href=\"https://shop.example/offer\">you</a></p>"});
    let template = client.post("/v1/templates", template).await.expect(201)["template_id"].clone();
    // contact.created, email.sent, .delivered, .opened, .clicked, .bounced, .failed, .complained, .suppressed
    for name in ["delivered", "opened", "clicked", "bounced", "complained", "suppressed"] {
        let body = json!({"template_id": template, "email": format!("{name}@sandbox.test")});
        client.post("/v1/transactional", body).await.expect(202);
    }
    // campaign.sent, and email.unsubscribed by a recipient of it.
    let list = client.post("/v1/audiences", json!({"kind": "list", "name": "News"})).await.expect(201);
    let members = format!("/v1/audiences/{}/members", list["audience_id"].as_str().unwrap());
    client.post("/v1/contacts", json!({"email": "reader@example.com"})).await.expect(201);
    client.post(&members, json!({"add": ["reader@example.com"]})).await.expect(200);
    let campaign = json!({"name": "News", "sender_profile_id": sender, "audience_mode": "list", "list_id": list["audience_id"],
                          "subject": "News", "body_html": "<p>News</p>"});
    let campaign = client.post("/v1/campaigns", campaign).await.expect(201)["campaign_id"].clone();
    client.post(&format!("/v1/campaigns/{}/launch", campaign.as_str().unwrap()), json!({})).await.expect(202);
    let sent = receiver.wait_for("campaign.sent", WITHIN).await;
    assert_eq!(sent["data"]["campaign_id"], campaign);
    let send = client.get(&format!("/v1/campaigns/{}/sends", campaign.as_str().unwrap()), &[]).await.expect(200);
    let send = send["sends"][0]["send_id"].as_str().unwrap().to_owned();
    let source = client.get(&format!("/v1/sends/{send}/source"), &[]).await.expect(200)["source"].clone();
    unsubscribe(&rig, &client, source.as_str().unwrap()).await;
    // sequence.completed
    let steps = json!([{"step_type": "create_task", "delay_amount": 0, "delay_unit": "minutes", "action_config": {"title": "Call"}},
                       {"step_type": "create_opportunity", "delay_amount": 0, "delay_unit": "minutes",
                        "action_config": {"name": "Deal"}}]);
    let sequence = json!({"name": "S", "activate": true, "steps": steps});
    let sequence = client.post("/v1/sequences", sequence).await.expect(201)["sequence_id"].clone();
    // Not the reader: who left marketing leaves his sequences, too.
    let enrolled = json!({"sequence_id": sequence, "email": "walker@example.com"});
    client.post("/v1/enrollments", enrolled).await.expect(201);

    // import.finished, suppression.added and suppression.lifted of an address that is no contact's
    let import = json!({"csv": "email\nimported@example.com\n", "operation": "upsert", "compliance": {"marketing_allowed": true}});
    client.post("/v1/imports", import).await.expect(200);
    let manual = json!({"email": "nobody@example.com", "reason": "manual", "scope": "all"});
    client.post("/v1/suppressions", manual).await.expect(201);
    let lifted = json!({"email": "nobody@example.com"});
    client.delete("/v1/suppressions", lifted).await.expect(200);

    let wanted = [
        "import.finished",
        "suppression.added",
        "suppression.lifted",
        "contact.created",
        "domain.status_changed",
        "email.sent",
        "email.delivered",
        "email.opened",
        "email.clicked",
        "email.bounced",
        "email.failed",
        "email.complained",
        "email.suppressed",
        "email.unsubscribed",
        "campaign.sent",
        "task.created",
        "opportunity.created",
        "sequence.completed",
    ];
    for event in wanted {
        let body = receiver.wait_for(event, WITHIN).await;
        assert_eq!((&body["version"], &body["environment"]), (&json!("1.0.0"), &json!("sandbox")), "{body}");
        assert_eq!(body["product_tenant_id"], "try-out");
    }
    // Whatever came twice came with one id, and each id with one body.
    receiver.assert_ids_are_stable();
}

/// RFC 8058: what a mail client does.
async fn unsubscribe(rig: &Rig, client: &Client, source: &str) {
    let unfolded = source.replace("\r\n ", "").replace("\r\n\t", "");
    let link = unfolded
        .lines()
        .find_map(|line| line.strip_prefix("List-Unsubscribe:"))
        .and_then(|line| line.split(['<', '>']).find(|part| part.starts_with("http")))
        .unwrap_or_else(|| panic!("no List-Unsubscribe in {source}"))
        .to_owned();
    let path = link.split("/u/").nth(1).unwrap();
    let link = format!("{}/u/{path}", rig.base_url);
    let answer = client.http().post(link).header("content-type", "application/x-www-form-urlencoded");
    assert!(answer.body("List-Unsubscribe=One-Click").send().await.unwrap().status().is_success());
}
