//! What a caller sets for one mail: it is in this mail, in its events, and in no other mail.

use std::time::Duration;

use mail_parser::{MessageParser, MimeHeaders};
use pipeline::{Rig, eventually};
use serde_json::{Value, json};

use crate::webhooks::receiver::Receiver;

const WITHIN: Duration = Duration::from_secs(60);

async fn template(rig: &Rig) -> Value {
    let template = json!({
        "name": "Receipt", "template_type": "transactional", "subject": "Receipt {{ data.number }}",
        "body_html": "<body><p>Thank you, {{ first_name }}</p><a href=\"https://shop.test/order\">Your order</a></body>",
    });
    rig.client.post("/v1/templates", template).await.expect(201)["template_id"].clone()
}

/// The one mail to this address, as it left.
async fn source_to(rig: &Rig, address: &str) -> String {
    let received =
        eventually("the mail to arrive", WITHIN, || async { rig.sink.messages_to(address).await.into_iter().next() })
            .await;
    rig.sink.source(received["id"].as_u64().unwrap()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn options_hold_for_their_mail_and_come_back_in_its_events() {
    let receiver = Receiver::start().await;
    let mut rig = Rig::shared().await.with("WEBHOOK_ALLOW_NETWORKS", "127.0.0.0/8");
    rig.start_all().await;
    rig.client
        .post("/v1/webhooks", json!({"url": receiver.url(), "events": ["email.sent"], "description": "options"}))
        .await
        .expect(201);
    let template = template(&rig).await;
    let plain = json!({"template_id": template, "email": "plain@example.com", "first_name": "Bob"});
    let mut own = json!({"template_id": template, "email": "own@example.com", "first_name": "Ann"});
    own.as_object_mut().unwrap().extend(
        json!({
            "from_name": "Jürgen, Billing", "reply_to": "billing@example.com", "tags": ["receipt"],
            "metadata": {"order": "1042"}, "tracking": {"opens": false, "clicks": false},
            "headers": {"X-Order": "Größe 42", "References": "<first@shop.test> <second@shop.test>"},
        })
        .as_object()
        .unwrap()
        .clone(),
    );
    let send = rig.client.post("/v1/transactional", own).await.expect(202)["send_id"].clone();
    rig.client.post("/v1/transactional", plain).await.expect(202);

    let source = source_to(&rig, "own@example.com").await;
    let mail = MessageParser::new()
        .with_minimal_headers()
        .with_mime_headers()
        .with_address_headers()
        .with_message_ids()
        .header_text("X-Order")
        .parse(&source)
        .unwrap();
    assert_eq!(mail.from().unwrap().first().unwrap().name(), Some("Jürgen, Billing"));
    assert_eq!(mail.reply_to().unwrap().first().unwrap().address(), Some("billing@example.com"));
    assert_eq!(mail.header("X-Order").unwrap().as_text(), Some("Größe 42"));
    assert_eq!(mail.references().as_text_list().unwrap(), ["first@shop.test", "second@shop.test"]);
    let html = mail.body_html(0).unwrap();
    assert!(html.contains("https://shop.test/order") && !html.contains("/t/"), "{html}");

    let source = source_to(&rig, "plain@example.com").await;
    let other = MessageParser::default().parse(&source).unwrap();
    assert_ne!(other.from().unwrap().first().unwrap().name(), Some("Jürgen, Billing"));
    assert!(other.header("X-Order").is_none());
    let html = other.body_html(0).unwrap();
    assert!(html.contains("/t/c/") && html.contains("/t/o/"), "{html}");

    let event = receiver.wait_for_about("email.sent", "send_id", send.as_str().unwrap(), WITHIN).await;
    assert_eq!((&event["data"]["tags"], &event["data"]["metadata"]), (&json!(["receipt"]), &json!({"order": "1042"})));
    let read = rig.client.get(&format!("/v1/sends/{}", send.as_str().unwrap()), &[]).await.expect(200);
    assert_eq!((&read["send"]["tags"], &read["send"]["metadata"]), (&json!(["receipt"]), &json!({"order": "1042"})));
    rig.books_balance().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn copies_get_the_same_mail_once_untracked_and_a_suppressed_one_is_left_out() {
    let mut rig = Rig::shared().await;
    rig.start_all().await;
    let gone = json!({"email": "gone@example.com", "reason": "hard_bounce", "scope": "all"});
    rig.client.post("/v1/suppressions", gone).await.expect(201);
    let message = json!({
        "template_id": template(&rig).await, "email": "ann@example.com", "first_name": "Ann",
        "cc": [{"email": "chris@example.com", "name": "Chris, Sales"}, {"email": "gone@example.com"}],
        "bcc": [{"email": "eve@example.com"}, {"email": "ANN@example.com"}],
    });
    let answer = rig.client.post("/v1/transactional/batch", json!({"messages": [message]})).await.expect(202);
    let path = format!("/v1/sends/{}", answer["results"][0]["send_id"].as_str().unwrap());
    let copies = eventually("all copies to be decided", WITHIN, || async {
        let send = rig.client.get(&path, &[]).await.expect(200)["send"].clone();
        let copies = send["copies"].as_array().unwrap().clone();
        let is_open = |copy: &Value| !["sent", "skipped"].contains(&copy["state"].as_str().unwrap());
        (copies.len() == 4 && !copies.iter().any(is_open)).then_some(copies)
    })
    .await;
    let told: Vec<[&str; 4]> = copies
        .iter()
        .map(|copy| ["email", "role", "state", "skip_reason"].map(|name| copy[name].as_str().unwrap_or_default()))
        .collect();
    let expected = [
        ["ann@example.com", "to", "sent", ""],
        ["chris@example.com", "cc", "sent", ""],
        ["gone@example.com", "cc", "skipped", "hard_bounced"],
        ["eve@example.com", "bcc", "sent", ""],
    ];
    assert_eq!(told, expected);
    assert_eq!(rig.sink.accepted().await, 3, "nobody got it twice");
    for (address, tracked) in [("ann@example.com", true), ("chris@example.com", false), ("eve@example.com", false)] {
        let source = source_to(&rig, address).await;
        assert!(!source.contains("eve@example.com"), "a bcc is seen by nobody");
        let mail = MessageParser::default().parse(&source).unwrap();
        assert_eq!(mail.to().unwrap().first().unwrap().address(), Some("ann@example.com"), "{address}");
        assert_eq!(mail.cc().unwrap().first().unwrap().name(), Some("Chris, Sales"), "{address}");
        let html = mail.body_html(0).unwrap();
        assert!(html.contains("Thank you, Ann"), "{html}");
        assert_eq!((html.contains("/t/o/"), html.contains("/t/c/")), (tracked, tracked), "{address}");
    }
    rig.books_balance().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_with_copies_and_an_inline_image_arrives_at_each() {
    let mut rig = Rig::shared().await;
    rig.start_all().await;
    let pixel = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";
    let message = json!({
        "sender_id": rig.sender_id, "to": [{"email": "ann@example.com", "name": "Ann Lee"}], "subject": "Hi",
        "html": "<img src=\"cid:logo\" alt=\"Logo\">", "message_class": "business",
        "cc": [{"email": "chris@example.com"}],
        "attachments": [{"filename": "logo.png", "content_base64": pixel, "content_id": "logo"}],
    });
    let answer = rig.client.post("/v1/messages", message).await.expect(200);
    let states: Vec<&Value> = answer["recipients"].as_array().unwrap().iter().map(|one| &one["state"]).collect();
    assert_eq!(states, [&json!("sent"), &json!("sent")]);
    for address in ["ann@example.com", "chris@example.com"] {
        let source = source_to(&rig, address).await;
        let mail = MessageParser::default().parse(&source).unwrap();
        let to = mail.to().unwrap().first().unwrap();
        assert_eq!((to.name(), to.address()), (Some("Ann Lee"), Some("ann@example.com")), "{address}");
        assert_eq!(mail.cc().unwrap().first().unwrap().address(), Some("chris@example.com"), "{address}");
        assert!(mail.parts.iter().any(|part| part.content_id() == Some("logo")), "{address}");
    }
    rig.books_balance().await;
}

/// Cancels race the moment at which mails are due. Each is answered, and what the answer says is what happens.
#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_that_is_answered_wins_and_all_others_are_sent() {
    let mut rig = Rig::shared().await;
    rig.start_all().await;
    let template = template(&rig).await;
    let due = chrono::Utc::now() + chrono::TimeDelta::seconds(3);
    let messages: Vec<Value> = (0..40)
        .map(|n| json!({"template_id": template, "email": format!("r{n}@example.com"), "scheduled_at": due.to_rfc3339()}))
        .collect();
    let answer = rig.client.post("/v1/transactional/batch", json!({"messages": messages})).await.expect(202);
    assert_eq!(answer["accepted"], 40);
    let sends: Vec<String> = answer["results"]
        .as_array()
        .unwrap()
        .iter()
        .map(|result| result["send_id"].as_str().unwrap().to_owned())
        .collect();
    let mut cancelled = 0;
    for send in &sends {
        let path = format!("/v1/sends/{send}");
        let answer = rig.client.delete(&path, json!({})).await;
        let expected = match answer.status.as_u16() {
            200 => "cancelled",
            409 => "sent",
            other => panic!("{other}: {}", answer.body),
        };
        cancelled += usize::from(expected == "cancelled");
        eventually(&format!("{send} to be {expected}"), WITHIN, || async {
            let send = rig.client.get(&path, &[]).await.expect(200)["send"].clone();
            (send["state"] == expected).then_some(())
        })
        .await;
        if expected == "cancelled" && cancelled == sends.len() / 2 {
            eventually("the time to pass", WITHIN, || async { (chrono::Utc::now() > due).then_some(()) }).await;
        }
        // The sweep may take a second to find what is due.
        if expected == "cancelled" && cancelled == sends.len() * 3 / 4 {
            let has_left = || async { (rig.sink.accepted().await > 0).then_some(()) };
            eventually("the first to leave", WITHIN, has_left).await;
        }
    }
    assert!(cancelled >= 1 && cancelled < sends.len(), "{cancelled} of {} were cancelled", sends.len());
    assert_eq!(rig.sink.accepted().await, (sends.len() - cancelled) as u64);
    rig.books_balance().await;
}

const INVITE: &str = "BEGIN:VCALENDAR\nVERSION:2.0\nPRODID:-//Acme//Meet//EN\nMETHOD:REQUEST\nBEGIN:VEVENT\nUID:1@acme.test\n\
    DTSTAMP:20260301T090000Z\nDTSTART:20260302T090000Z\nSUMMARY:Review\nORGANIZER:mailto:ann@acme.test\n\
    ATTENDEE;RSVP=TRUE:mailto:ann@example.com\nEND:VEVENT\nEND:VCALENDAR\n";

/// The types of the parts of a mail, in order.
fn kinds(source: &str) -> Vec<String> {
    let mail = MessageParser::default().parse(source).unwrap();
    let kind =
        |part: &mail_parser::MessagePart<'_>| part.content_type().unwrap().subtype().unwrap_or_default().to_owned();
    mail.parts.iter().map(kind).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transactional_mail_carries_its_files_and_its_invite() {
    let mut rig = Rig::shared().await;
    rig.start_all().await;
    let files = json!([{"filename": "invoice.txt", "content_base64": "SGVsbG8="}]);
    let message = json!({
        "template_id": template(&rig).await, "email": "ann@example.com", "first_name": "Ann", "attachments": files,
        "calendar": {"method": "REQUEST", "content": INVITE}, "cc": [{"email": "chris@example.com"}],
    });
    let plain = json!({"template_id": message["template_id"], "email": "bob@example.com"});
    rig.client.post("/v1/transactional", message).await.expect(202);
    rig.client.post("/v1/transactional", plain).await.expect(202);
    for (address, is_tracked) in [("ann@example.com", true), ("chris@example.com", false)] {
        let source = source_to(&rig, address).await;
        assert_eq!(kinds(&source), ["mixed", "alternative", "plain", "html", "calendar", "plain", "ics"], "{address}");
        let mail = MessageParser::default().parse(&source).unwrap();
        let html = mail.body_html(0).unwrap();
        assert!(html.contains("Thank you, Ann") && html.contains("/t/o/") == is_tracked, "{html}");
        let (invite, file) = (&mail.parts[4], &mail.parts[5]);
        assert_eq!(invite.content_type().unwrap().attribute("method"), Some("REQUEST"));
        assert_eq!(std::str::from_utf8(invite.contents()).unwrap(), INVITE.replace('\n', "\r\n"));
        assert_eq!((file.attachment_name(), file.contents()), (Some("invoice.txt"), &b"Hello"[..]));
    }
    assert_eq!(
        kinds(&source_to(&rig, "bob@example.com").await),
        ["alternative", "plain", "html"],
        "no other mail has them"
    );
    rig.books_balance().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_message_of_a_batch_arrives_with_its_own_file() {
    let mut rig = Rig::shared().await;
    rig.start_all().await;
    let template = template(&rig).await;
    let message = |email: &str, files: Value| json!({"template_id": template, "email": email, "first_name": "Ann", "attachments": files});
    let messages = json!([
        message("ann@example.com", json!([{"filename": "ann.txt", "content_base64": "SGVsbG8="}])),
        message("bob@example.com", json!([{"filename": "bob.txt", "content_base64": "V29ybGQ="}])),
        message("cid@example.com", json!([])),
    ]);
    let answer = rig.client.post("/v1/transactional/batch", json!({"messages": messages})).await.expect(202);
    assert_eq!(answer["accepted"], 3, "{answer}");
    for (address, name, content) in [("ann@example.com", "ann.txt", "Hello"), ("bob@example.com", "bob.txt", "World")] {
        let source = source_to(&rig, address).await;
        assert_eq!(kinds(&source), ["mixed", "alternative", "plain", "html", "plain"], "{address}");
        let mail = MessageParser::default().parse(&source).unwrap();
        let file = &mail.parts[4];
        assert_eq!((file.attachment_name(), file.contents()), (Some(name), content.as_bytes()), "{address}");
    }
    assert_eq!(kinds(&source_to(&rig, "cid@example.com").await), ["alternative", "plain", "html"]);
    rig.books_balance().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scheduled_message_leaves_when_it_is_due_with_its_files() {
    let mut rig = Rig::shared().await;
    rig.start_all().await;
    let message = |due: chrono::DateTime<chrono::Utc>| {
        json!({
            "sender_id": rig.sender_id, "to": [{"email": "ann@example.com"}, {"email": "bob@example.com"}], "subject": "Hi",
            "html": "<p>Hi</p>", "message_class": "business", "scheduled_at": due.to_rfc3339(),
            "attachments": [{"filename": "note.txt", "content_base64": "SGVsbG8="}],
            "calendar": {"method": "REQUEST", "content": INVITE},
        })
    };
    let soon = chrono::Utc::now() + chrono::TimeDelta::seconds(10);
    let later = rig.client.post("/v1/messages", message(soon + chrono::TimeDelta::hours(1))).await.expect(202);
    let answer = rig.client.post("/v1/messages", message(soon)).await.expect(202);
    let path = |answer: &Value| format!("/v1/sends/{}", answer["recipients"][1]["send_id"].as_str().unwrap());
    assert_eq!(rig.client.get(&path(&answer), &[]).await.expect(200)["send"]["state"], "queued");
    rig.client.delete(&path(&later), json!({})).await.expect(200);
    for address in ["ann@example.com", "bob@example.com"] {
        let source = source_to(&rig, address).await;
        assert!(chrono::Utc::now() >= soon, "not before it is due");
        assert_eq!(kinds(&source), ["mixed", "alternative", "plain", "html", "calendar", "plain", "ics"], "{address}");
    }
    assert_eq!(rig.sink.accepted().await, 2);
    rig.books_balance().await;
}
