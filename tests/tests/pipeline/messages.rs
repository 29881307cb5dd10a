//! One-off messages, dispatched while the caller waits.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use mail_parser::{MessageParser, MimeHeaders};
use pipeline::{Rig, eventually};
use serde_json::{Value, json};

use crate::webhooks::receiver::Receiver;

const PATH: &str = "/v1/messages";

fn body(rig: &Rig, to: &[&str]) -> Value {
    let to: Vec<Value> = to.iter().map(|email| json!({"email": email})).collect();
    json!({"sender_id": rig.sender_id, "to": to, "subject": "Your certificate", "html": "<p>{{ first_name }}</p>", "message_class": "business"})
}

/// A small PDF that nothing is wrong with.
fn pdf() -> Vec<u8> {
    let mut pdf = b"%PDF-1.4\n1 0 obj\n<< /Type /Catalog >>\nendobj\n".to_vec();
    pdf.extend((0..200_000_u32).map(|n| b"0123456789abcdef\n"[n as usize % 17]));
    pdf.extend_from_slice(b"\nstartxref\n0\n%%EOF\n");
    pdf
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_is_answered_when_it_is_sent_and_its_attachments_arrive_intact() {
    let mut rig = Rig::shared().await;
    rig.start_all().await;
    rig.client
        .post("/v1/suppressions", json!({"email": "bounced@example.com", "reason": "hard_bounce", "scope": "all"}))
        .await
        .expect(201);
    let mut message = body(&rig, &["dora@example.com", "bounced@example.com"]);
    message["to"][0]["name"] = json!("Dora Doe");
    message["reply_to"] = json!("desk@example.com");
    let csv = "name;town\r\nZoë;Köln\r\n".as_bytes();
    message["attachments"] = json!([
        {"filename": "certificate.pdf", "content_base64": STANDARD.encode(pdf()), "content_type": "application/pdf"},
        {"filename": "Übersicht 2026.csv", "content_base64": STANDARD.encode(csv), "content_type": "text/csv"},
    ]);
    let answer = rig.client.post(PATH, message).await.expect(200);
    assert_eq!(answer["skipped"][0]["email"], "bounced@example.com");
    assert_eq!(answer["skipped"][0]["reason"], "hard_bounced");
    assert_eq!(answer["recipients"][0]["state"], "sent");
    assert_eq!(rig.sink.accepted().await, 1, "the answer came after the mail");

    let received = rig.sink.messages_to("dora@example.com").await;
    let source = rig.sink.source(received[0]["id"].as_u64().unwrap()).await;
    let parsed = MessageParser::default().parse(&source).unwrap();
    assert_eq!(parsed.body_html(0).unwrap(), "<p>{{ first_name }}</p>");
    assert_eq!(parsed.to().unwrap().first().unwrap().name(), Some("Dora Doe"));
    assert_eq!(format!("<{}>", parsed.message_id().unwrap()), answer["provider_message_id"].as_str().unwrap());
    let found: Vec<(&str, &[u8])> =
        parsed.attachments().map(|part| (part.attachment_name().unwrap(), part.contents())).collect();
    let pdf = pdf();
    assert_eq!(found, [("certificate.pdf", pdf.as_slice()), ("Übersicht 2026.csv", csv)]);
    for absent in ["List-Unsubscribe", "List-Unsubscribe-Post"] {
        assert!(parsed.header(absent).is_none(), "{absent}");
    }
    let send = answer["recipients"][0]["send_id"].as_str().unwrap();
    let followed = rig.client.get(&format!("/v1/sends/{send}"), &[]).await.expect(200);
    assert_eq!((&followed["send"]["state"], &followed["send"]["message_kind"]), (&json!("sent"), &json!("one_off")));
    rig.books_balance().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_the_provider_refuses_is_a_502_and_one_it_defers_is_pending() {
    let mut rig = Rig::shared().await;
    rig.start_all().await;
    let refused = rig.client.post(PATH, body(&rig, &["reject-550@example.com"])).await;
    assert_eq!((refused.status.as_u16(), refused.error()), (502, "provider_rejected"));
    assert!(!refused.body["detail"].as_str().unwrap().contains('@'), "{}", refused.body);
    let begun = Instant::now();
    let deferred = rig.client.post(PATH, body(&rig, &["greylist@example.com"])).await;
    assert_eq!((deferred.status.as_u16(), deferred.error()), (504, "dispatch_pending"));
    assert!(begun.elapsed() < Duration::from_secs(20), "it rests for longer than its caller would wait");
    rig.books_balance().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_calls_with_one_key_are_one_mail_for_each_recipient() {
    let mut rig = Rig::shared().await;
    rig.start_all().await;
    let recipients: Vec<String> = (0..50).map(|n| format!("many-{n}@example.com")).collect();
    let to: Vec<&str> = recipients.iter().map(String::as_str).collect();
    let message = body(&rig, &to);
    let calls = futures::future::join_all((0..50).map(|_| rig.client.post_once("once", PATH, message.clone()))).await;
    let mut ids: Vec<Value> = Vec::new();
    for call in calls {
        let answer = call.unwrap();
        match answer.status.as_u16() {
            200 => ids.push(answer.body["message_id"].clone()),
            _ => assert_eq!(answer.error(), "idempotency_in_progress"),
        }
    }
    let replayed = rig.client.post_once("once", PATH, message).await.unwrap().expect(200);
    ids.push(replayed["message_id"].clone());
    ids.dedup();
    assert_eq!((ids.len(), replayed["recipients"].as_array().unwrap().len()), (1, 50));
    assert_eq!(rig.sink.counts(&recipients).await, vec![1; 50]);
    rig.books_balance().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_kill_between_commit_and_answer_a_repeat_answers_for_the_same_message() {
    let mut rig = Rig::shared().await;
    rig.start("ingress", &["ingress"]).await;
    let message = body(&rig, &["killed@example.com"]);
    let call = tokio::spawn({
        let (client, message) = (rig.client.clone(), message.clone());
        async move { client.post_once("killed", PATH, message).await }
    });
    let accepted: uuid::Uuid = eventually("the message to be accepted", Duration::from_secs(60), || async {
        sqlx::query_scalar("select id from messages").fetch_optional(&rig.pool).await.unwrap()
    })
    .await;
    rig.kill9("ingress");
    assert!(call.await.unwrap().is_err(), "nobody answered");
    rig.start_all().await;
    let answer = eventually("the repeat to be answered", Duration::from_secs(60), || async {
        let answer = rig.client.post_once("killed", PATH, message.clone()).await.ok()?;
        (answer.status.as_u16() == 200).then_some(answer.body)
    })
    .await;
    assert_eq!(answer["message_id"], accepted.to_string());
    assert_eq!(rig.sink.counts(&["killed@example.com".to_owned()]).await, [1]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_test_of_a_campaign_arrives_marked_and_counts_nowhere() {
    let mut rig = Rig::shared().await.with("WEBHOOK_ALLOW_NETWORKS", "127.0.0.0/8");
    rig.start_all().await;
    rig.client
        .post("/v1/suppressions", json!({"email": "left@example.com", "reason": "unsubscribe"}))
        .await
        .expect(201);
    let (list, _) = rig.list_of(1, "reader", "example.com").await;
    let receiver = Receiver::start().await;
    rig.client.post("/v1/webhooks", json!({"url": receiver.url(), "events": ["contact.created"]})).await.expect(201);
    let steps = json!([{"step_type": "wait", "delay_amount": 9, "delay_unit": "days"}]);
    let welcome = json!({
        "name": "Welcome", "activate": true, "trigger_type": "contact_created", "trigger_config": {}, "steps": steps,
    });
    rig.client.post("/v1/sequences", welcome).await.expect(201);
    let html = "<p>Hello {{ first_name }} <a href=\"https://acme.test/offer\">go</a></p>";
    let campaign = rig.campaign(list, "News for {{ first_name }}", html).await;
    let path = format!("/v1/campaigns/{campaign}/test");
    let to = ["tester@example.com", "reject-550@example.com", "left@example.com"];
    let test = json!({"to": to, "sample": {"first_name": "Ann"}});
    let answer = rig.client.post(&path, test).await.expect(202);
    assert_eq!(answer["recipients"][2]["skipped"], "unsubscribed", "{answer}");
    let state = |at: usize| {
        let send = answer["recipients"][at]["send_id"].as_str().unwrap().to_owned();
        let client = rig.client.clone();
        async move { client.get(&format!("/v1/sends/{send}"), &[]).await.expect(200)["send"]["state"].clone() }
    };
    for (at, expected) in ["sent", "failed", "skipped"].into_iter().enumerate() {
        eventually(&format!("a test that is {expected}"), Duration::from_secs(30), || async {
            (state(at).await == expected).then_some(())
        })
        .await;
    }

    let received = rig.sink.messages_to("tester@example.com").await;
    let source = rig.sink.source(received[0]["id"].as_u64().unwrap()).await;
    let parsed = MessageParser::default().parse(&source).unwrap();
    assert_eq!(parsed.subject(), Some("[Test] News for Ann"));
    assert!(parsed.header("X-Postrider-Test").is_some());
    assert!(parsed.header("List-Unsubscribe").is_none(), "its recipient leaves nothing by it");
    let body = parsed.body_html(0).unwrap();
    assert!(body.contains("href=\"https://acme.test/offer\""), "links are the author's own: {body}");
    assert!(!body.contains(&rig.base_url), "nothing of it is tracked: {body}");

    let suppressed = rig.client.get("/v1/suppressions", &[]).await.expect(200);
    assert_eq!(suppressed["suppressions"].as_array().unwrap().len(), 1, "a bounce suppresses nobody: {suppressed}");
    let report = rig.client.get(&format!("/v1/campaigns/{campaign}"), &[]).await.expect(200);
    assert_eq!((&report["campaign"]["status"], &report["send_counts"]["total"]), (&json!("draft"), &json!(0)));
    let counted: i64 = sqlx::query_scalar(
        "select (select count(*) from rollups where kind <> 'suppression') + (select count(*) from contact_facts)
              + (select count(*) from content_changes) + (select count(*) from soft_bounces)",
    )
    .fetch_one(&rig.pool)
    .await
    .unwrap();
    assert_eq!(counted, 0);

    // Its recipients are no new contacts to subscribers and sequences, as the one is that comes after them.
    rig.client.post("/v1/contacts", json!({"email": "later@example.com"})).await.expect(201);
    receiver.wait_for_about("contact.created", "email", "later@example.com", Duration::from_secs(60)).await;
    let created = receiver.told(&BTreeMap::from([("contact.created", ("email", 1))]));
    let heard_of = |contact: &str| created["contact.created"].contains_key(contact);
    assert_eq!(to.map(heard_of), [false; 3]);
    let started: Vec<String> = sqlx::query_scalar(
        "select c.address from trigger_occurrences o join contacts c on c.tenant_id = o.tenant_id and c.id = o.contact_id",
    )
    .fetch_all(&rig.pool)
    .await
    .unwrap();
    assert!(started.iter().any(|contact| contact == "later@example.com"), "{started:?}");
    assert!(!started.iter().any(|contact| to.contains(&contact.as_str())), "{started:?}");
    rig.books_balance().await;
}
