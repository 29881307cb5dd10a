//! Every provider, with what is good and with everything that is not.

use std::sync::atomic::Ordering;

use chrono::{TimeDelta, Utc};
use serde_json::json;

use crate::{
    accounts::{Door, Sent},
    amazon::{Amazon, TOPIC},
    proofs::{Sendgrid, mailgun, postmark, resend},
};

const STALE: (u16, &str) = (401, "stale_timestamp");
const FORGED: (u16, &str) = (401, "invalid_signature");
const REPLAYED: (u16, &str) = (401, "replayed_event");

/// What is refused, with how; nothing of it is stored.
async fn assert_refused(door: &Door, provider: &str, connection: uuid::Uuid, cases: Vec<(&str, Sent, (u16, &str))>) {
    let before = door.stored().await;
    for (case, sent, expected) in cases {
        let answer = door.tell(provider, connection, &sent).await;
        assert_eq!(answer.refusal(), expected, "{provider}: {case}");
        assert_eq!(door.stored().await, before, "{provider}: {case}");
    }
}

/// What is taken, and how many events are stored then.
async fn assert_taken(door: &Door, provider: &str, connection: uuid::Uuid, sent: &Sent, stored: i64) {
    let answer = door.tell(provider, connection, sent).await;
    assert_eq!((answer.status.as_u16(), &answer.body), (200, &json!({"ok": true})), "{provider}");
    assert_eq!(door.stored().await, stored, "{provider}");
}

#[tokio::test]
async fn postmark_proves_itself_by_user_and_password() {
    let door = Door::open(1_000, Vec::new()).await;
    let connection = door.connection("postmark", "hook:old-secret\nhook:correct horse", &[]).await;
    let other = door.connection("postmark", "hook:another", &[]).await;
    let record = json!({"RecordType": "Delivery", "MessageID": "883953f4", "DeliveredAt": "2026-05-02T16:33:54Z"});
    let good = postmark("hook:correct horse", &record);
    assert_taken(&door, "postmark", connection, &good, 1).await;
    // It cannot be told from a repetition, which it may well be.
    assert_taken(&door, "postmark", connection, &good, 1).await;
    let other_record = json!({"RecordType": "Delivery", "MessageID": "other"});
    assert_taken(&door, "postmark", connection, &postmark("hook:old-secret", &other_record), 2).await;
    let cases = vec![
        ("unsigned", good.clone().without("authorization"), FORGED),
        ("a wrong password", postmark("hook:wrong", &record), FORGED),
        ("another scheme", good.clone().with("authorization", "Bearer hook:correct horse"), FORGED),
        ("no base64", good.clone().with("authorization", "Basic §"), FORGED),
        ("nothing", postmark("", &record), FORGED),
    ];
    assert_refused(&door, "postmark", connection, cases).await;
    assert_refused(&door, "postmark", other, vec![("another account", good.clone(), FORGED)]).await;
    assert_refused(&door, "postmark", schemas::new_id(), vec![("no such connection", good.clone(), FORGED)]).await;
    assert_refused(&door, "resend", connection, vec![("another provider", good.clone(), FORGED)]).await;
    let unset = door.connection("postmark", "", &[]).await;
    let cases = vec![("no secret is set", postmark("", &record), FORGED), ("nor any", good.clone(), FORGED)];
    assert_refused(&door, "postmark", unset, cases).await;
    let raw: Vec<u8> = sqlx::query_scalar("select raw from inbound_events order by id limit 1")
        .fetch_one(&door.edge.pool)
        .await
        .unwrap();
    assert_eq!(raw, good.body.as_bytes(), "to the byte");
}

#[tokio::test]
async fn sendgrid_proves_itself_by_its_signature() {
    let door = Door::open(1_000, Vec::new()).await;
    let (key, strange) = (Sendgrid::new(), Sendgrid::new());
    let connection = door.connection("sendgrid", &key.public_key(), &[]).await;
    let other = door.connection("sendgrid", &strange.public_key(), &[]).await;
    let (now, events) = (Utc::now(), json!([{"event": "delivered", "sg_event_id": "a"}]));
    let good = key.sign(&events, now);
    assert_taken(&door, "sendgrid", connection, &good, 1).await;
    // Told again some minutes later, signed anew.
    assert_taken(&door, "sendgrid", connection, &key.sign(&events, now + TimeDelta::minutes(2)), 1).await;
    // Within the day in which SendGrid tries.
    let late = key.sign(&json!([{"event": "open", "sg_event_id": "b"}]), now - TimeDelta::hours(20));
    assert_taken(&door, "sendgrid", connection, &late, 2).await;
    let signature = "x-twilio-email-event-webhook-signature";
    let timestamp = "x-twilio-email-event-webhook-timestamp";
    let fresh = json!([{"event": "open", "sg_event_id": "c"}]);
    let cases = vec![
        ("replayed", good.clone(), REPLAYED),
        ("unsigned", key.sign(&fresh, now).without(signature), FORGED),
        ("without a time", key.sign(&fresh, now).without(timestamp), FORGED),
        ("another time", key.sign(&fresh, now).with(timestamp, &(now.timestamp() + 1).to_string()), FORGED),
        ("changed", key.sign(&fresh, now).changed("open", "spamreport"), FORGED),
        ("a stranger's", strange.sign(&fresh, now), FORGED),
        ("no base64", key.sign(&fresh, now).with(signature, "§"), FORGED),
        ("stale", key.sign(&fresh, now - TimeDelta::hours(26)), STALE),
        ("ahead", key.sign(&fresh, now + TimeDelta::minutes(10)), STALE),
    ];
    assert_refused(&door, "sendgrid", connection, cases).await;
    assert_refused(&door, "sendgrid", other, vec![("another account", key.sign(&fresh, now), FORGED)]).await;
}

#[tokio::test]
async fn mailgun_proves_itself_by_a_token_that_counts_once() {
    let door = Door::open(1_000, Vec::new()).await;
    let connection = door.connection("mailgun", "signing-key", &[]).await;
    let other = door.connection("mailgun", "another-key", &[]).await;
    let (now, event) = (Utc::now(), json!({"event": "delivered", "id": "a"}));
    let good = mailgun("signing-key", "token-1", &event, now);
    assert_taken(&door, "mailgun", connection, &good, 1).await;
    // Mailgun repeats for hours, with the first signature: this one was not heard before.
    assert_taken(
        &door,
        "mailgun",
        connection,
        &mailgun("signing-key", "token-2", &event, now - TimeDelta::hours(7)),
        2,
    )
    .await;
    let fresh = |at| mailgun("signing-key", "token-3", &event, at);
    let cases = vec![
        ("replayed", good.clone(), REPLAYED),
        // The signature covers nothing but the token.
        ("another body under an old token", good.clone().changed("delivered", "complained"), REPLAYED),
        ("another key", mailgun("wrong", "token-3", &event, now), FORGED),
        ("another token", fresh(now).changed("token-3", "token-4"), FORGED),
        ("another time", fresh(now).changed(&now.timestamp().to_string(), &(now.timestamp() + 1).to_string()), FORGED),
        ("unsigned", Sent { headers: Vec::new(), body: json!({"event-data": event}).to_string() }, FORGED),
        ("no JSON", Sent { headers: Vec::new(), body: "token=1".to_owned() }, FORGED),
        ("a token that is none", mailgun("signing-key", "", &event, now), FORGED),
        ("stale", fresh(now - TimeDelta::hours(10)), STALE),
        ("ahead", fresh(now + TimeDelta::minutes(10)), STALE),
    ];
    assert_refused(&door, "mailgun", connection, cases).await;
    assert_refused(&door, "mailgun", other, vec![("another account", fresh(now), FORGED)]).await;
}

#[tokio::test]
async fn resend_proves_itself_by_the_signature_of_svix() {
    let door = Door::open(1_000, Vec::new()).await;
    let (secret, strange) = ("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD");
    let connection = door.connection("resend", secret, &[]).await;
    let other = door.connection("resend", strange, &[]).await;
    let (now, event) = (Utc::now(), json!({"type": "email.delivered", "data": {"email_id": "x"}}));
    let good = resend(secret, "msg_1", &event, now);
    assert_taken(&door, "resend", connection, &good, 1).await;
    // The second attempt, signed anew.
    assert_taken(&door, "resend", connection, &resend(secret, "msg_1", &event, now + TimeDelta::seconds(5)), 1).await;
    let fresh = |at| resend(secret, "msg_2", &event, at);
    let cases = vec![
        ("replayed", good.clone(), REPLAYED),
        ("unsigned", fresh(now).without("svix-signature"), FORGED),
        ("without an id", fresh(now).without("svix-id"), FORGED),
        ("without a time", fresh(now).without("svix-timestamp"), FORGED),
        ("another id", fresh(now).with("svix-id", "msg_3"), FORGED),
        ("another time", fresh(now).with("svix-timestamp", &(now.timestamp() + 1).to_string()), FORGED),
        ("changed", fresh(now).changed("delivered", "bounced"), FORGED),
        ("a stranger's", resend(strange, "msg_2", &event, now), FORGED),
        ("another version", fresh(now).with("svix-signature", "v2,AAAA"), FORGED),
        ("stale", fresh(now - TimeDelta::minutes(6)), STALE),
        ("ahead", fresh(now + TimeDelta::minutes(6)), STALE),
    ];
    assert_refused(&door, "resend", connection, cases).await;
    assert_refused(&door, "resend", other, vec![("another account", fresh(now), FORGED)]).await;
}

#[tokio::test]
async fn ses_proves_itself_by_the_signature_of_sns_over_its_own_topic() {
    let (amazon, strange) = (Amazon::start().await, Amazon::start().await);
    let door = Door::open(1_000, vec![amazon.host.clone()]).await;
    let connection = door.connection("ses", "", &[TOPIC]).await;
    let other = door.connection("ses", "", &["arn:aws:sns:eu-central-1:123456789012:another"]).await;
    let now = Utc::now();
    let good = amazon.notification("m-1", now);
    assert_taken(&door, "ses", connection, &good, 1).await;
    assert_taken(&door, "ses", connection, &amazon.notification("m-2", now - TimeDelta::minutes(50)), 2).await;
    assert_eq!(amazon.served.load(Ordering::SeqCst), 1, "the certificate is fetched once");
    let fresh = |at| amazon.notification("m-3", at);
    let certificate = amazon.certificate_url();
    let named = |url: &str| fresh(now).changed(&certificate, url);
    let cases = vec![
        ("replayed", good.clone(), REPLAYED),
        ("changed", fresh(now).changed("Delivery", "Bounce"), FORGED),
        ("another id", fresh(now).changed("m-3", "m-4"), FORGED),
        ("another version", fresh(now).changed(r#""SignatureVersion":"2""#, r#""SignatureVersion":"1""#), FORGED),
        ("no version", fresh(now).changed(r#""SignatureVersion":"2""#, r#""SignatureVersion":"3""#), FORGED),
        ("another kind", fresh(now).changed(r#""Type":"Notification""#, r#""Type":"Other""#), FORGED),
        (
            "a stranger's, under our certificate",
            strange.notification("m-3", now).changed(&strange.certificate_url(), &certificate),
            FORGED,
        ),
        ("a stranger's certificate", strange.notification("m-3", now), FORGED),
        (
            "a host that looks like Amazon's",
            named("https://sns.eu-central-1.amazonaws.com.evil.example/SimpleNotificationService-a.pem"),
            FORGED,
        ),
        (
            "another service of Amazon's",
            named("https://s3.eu-central-1.amazonaws.com/SimpleNotificationService-a.pem"),
            FORGED,
        ),
        ("another region", named("https://sns.us-east-1.amazonaws.com/SimpleNotificationService-a.pem"), FORGED),
        ("plain http", named("http://sns.eu-central-1.amazonaws.com/SimpleNotificationService-a.pem"), FORGED),
        ("another port", named("https://sns.eu-central-1.amazonaws.com:8443/SimpleNotificationService-a.pem"), FORGED),
        (
            "a user before the host",
            named("https://sns.eu-central-1.amazonaws.com@evil.example/SimpleNotificationService-a.pem"),
            FORGED,
        ),
        ("another place", named(&format!("http://{}/evil.pem", amazon.host)), FORGED),
        ("no certificate there", named(&format!("http://{}/SimpleNotificationService-none.pem", amazon.host)), FORGED),
        ("no message", Sent { headers: Vec::new(), body: "{}".to_owned() }, FORGED),
        ("stale", fresh(now - TimeDelta::minutes(80)), STALE),
        ("ahead", fresh(now + TimeDelta::minutes(10)), STALE),
    ];
    assert_refused(&door, "ses", connection, cases).await;
    assert_refused(&door, "ses", other, vec![("another account's topic", fresh(now), FORGED)]).await;
}

#[tokio::test]
async fn a_subscription_is_confirmed_for_our_topic_at_amazons_own_address_only() {
    let amazon = Amazon::start().await;
    let door = Door::open(1_000, vec![amazon.host.clone()]).await;
    let connection = door.connection("ses", "", &[TOPIC]).await;
    let now = Utc::now();
    let at = |host: &str, topic: &str| {
        format!("http://{host}/?Action=ConfirmSubscription&TopicArn={topic}&Token=2336412f37")
    };
    let cases = vec![
        ("elsewhere", amazon.confirmation(TOPIC, &at("evil.example", TOPIC), now), FORGED),
        (
            "another topic's link",
            amazon.confirmation(TOPIC, &at(&amazon.host, "arn:aws:sns:eu-central-1:1:x"), now),
            FORGED,
        ),
        ("another act", amazon.confirmation(TOPIC, &at(&amazon.host, TOPIC).replace("Confirm", "Un"), now), FORGED),
        ("another topic", amazon.confirmation("arn:aws:sns:eu-central-1:1:x", &at(&amazon.host, TOPIC), now), FORGED),
        ("stale", amazon.confirmation(TOPIC, &at(&amazon.host, TOPIC), now - TimeDelta::hours(2)), STALE),
        ("forged", amazon.confirmation(TOPIC, &at(&amazon.host, TOPIC), now).changed("You have", "We have"), FORGED),
    ];
    assert_refused(&door, "ses", connection, cases).await;
    assert_eq!(amazon.confirmed.load(Ordering::SeqCst), 0, "nobody was called");
    assert_taken(&door, "ses", connection, &amazon.confirmation(TOPIC, &at(&amazon.host, TOPIC), now), 0).await;
    assert_eq!(amazon.confirmed.load(Ordering::SeqCst), 1);
    assert_eq!(door.edge.count("select count(*) from audit_log where action = 'provider.hook_confirmed'").await, 1);
}

#[tokio::test]
async fn limits_hold_before_anything_is_looked_up() {
    let door = Door::open(3, Vec::new()).await;
    let connection = door.connection("postmark", "hook:secret", &[]).await;
    let record = |n: usize| json!({"RecordType": "Delivery", "MessageID": n});
    let mut taken = 0;
    let mut throttled = 0;
    for n in 0..60 {
        let answer = door.tell("postmark", connection, &postmark("hook:secret", &record(n))).await;
        match answer.status.as_u16() {
            200 => taken += 1,
            429 => {
                assert_eq!(answer.refusal().1, "rate_limit_exceeded");
                assert!(!answer.header("retry-after").is_empty());
                throttled += 1;
            }
            other => panic!("{other}: {}", answer.body),
        }
    }
    assert!(throttled > 0 && taken >= 3);
    assert_eq!(door.stored().await, taken);
    // Another connection has its own.
    let other = door.connection("postmark", "hook:secret", &[]).await;
    assert_eq!(door.tell("postmark", other, &postmark("hook:secret", &record(0))).await.status, 200);
    let large = Sent {
        headers: vec![("authorization", "Basic aG9vazpzZWNyZXQ=".to_owned())],
        body: "x".repeat(1024 * 1024 + 1),
    };
    let third = door.connection("postmark", "hook:secret", &[]).await;
    assert_eq!(door.tell("postmark", third, &large).await.refusal(), (413, "body_too_large"));
    assert_eq!(door.tell("pigeon", third, &postmark("hook:secret", &record(0))).await.refusal(), (404, "not_found"));
}

#[tokio::test]
async fn the_ingress_can_read_neither_secrets_nor_what_was_told() {
    let door = Door::open(1_000, Vec::new()).await;
    let connection = door.connection("postmark", "hook:secret", &[]).await;
    assert_taken(&door, "postmark", connection, &postmark("hook:secret", &json!({"RecordType": "Open"})), 1).await;
    let pool = &door.edge.ingress.pool;
    for forbidden in [
        "select secret from provider_connections",
        "select hook_secret from provider_connections",
        "select raw from inbound_events",
        "update inbound_events set state = 'handled'",
        "delete from inbound_events",
        "select signal from pending_facts",
        "select send_id from provider_messages",
    ] {
        let mut tx = runtime::db::begin_for_tenant(pool, door.tenant).await.unwrap();
        let refused = sqlx::query(sqlx::AssertSqlSafe(forbidden)).fetch_all(&mut *tx).await.unwrap_err();
        let code = refused.as_database_error().and_then(|error| error.code()).unwrap_or_default().into_owned();
        assert_eq!(code, "42501", "{forbidden}");
    }
}

/// A mail with an attachment, as long as it takes.
fn letter(length: usize) -> String {
    let headers = json!([{"Name": "In-Reply-To", "Value": "<x@y.example>"}]).to_string();
    format!(r#"{{"From":"a@b.example","Headers":{headers},"Attachments":[{{"Content":"{}"}}]}}"#, "A".repeat(length))
}

#[tokio::test]
async fn mail_that_was_taken_in_is_kept_without_what_it_carries() {
    let door = Door::open(1_000, Vec::new()).await;
    let connection = door.connection("postmark", "hook:secret", &[]).await;
    let sent = |body: String| Sent { headers: vec![("authorization", "Basic aG9vazpzZWNyZXQ=".to_owned())], body };
    let long = sent(letter(3 * 1024 * 1024));
    assert_taken(&door, "postmark", connection, &long, 1).await;
    assert_taken(&door, "postmark", connection, &long, 1).await;
    // One that differs in what is not kept is another mail.
    assert_taken(&door, "postmark", connection, &sent(letter(3 * 1024 * 1024 + 1)), 2).await;
    assert_eq!(door.edge.count("select max(octet_length(raw))::bigint from inbound_events").await, 1024 * 1024);
    let none = sent(letter(3 * 1024 * 1024).replace("Headers", "Heads"));
    assert_refused(&door, "postmark", connection, vec![("no mail", none, (413, "body_too_large"))]).await;
    let too_long = sent(letter(41 * 1024 * 1024));
    assert_refused(&door, "postmark", connection, vec![("too long", too_long, (413, "body_too_large"))]).await;
    let resend = door.connection("resend", &format!("whsec_{}", "A".repeat(32)), &[]).await;
    assert_refused(&door, "resend", resend, vec![("never sends that", long, (413, "body_too_large"))]).await;
}

#[tokio::test]
async fn mail_proves_itself_as_its_providers_events_do() {
    let door = Door::open(1_000, Vec::new()).await;
    let now = Utc::now();
    let key = Sendgrid::new();
    let sendgrid = door.connection("sendgrid", &key.public_key(), &[]).await;
    let form = "--xYz\r\nContent-Disposition: form-data; name=\"headers\"\r\n\r\nIn-Reply-To: <x@y>\r\n--xYz\r\n\
                Content-Disposition: form-data; name=\"attachment1\"; filename=\"a\"\r\n\r\n";
    let form = format!("{form}{}\r\n--xYz--\r\n", "A".repeat(2 * 1024 * 1024));
    let good = key.sign_text(form, now);
    assert_taken(&door, "sendgrid", sendgrid, &good, 1).await;
    let cases = vec![
        ("changed where it is not kept", good.clone().changed("AAAA\r\n--xYz--", "AAAB\r\n--xYz--"), FORGED),
        ("unsigned", good.without("x-twilio-email-event-webhook-signature"), FORGED),
    ];
    assert_refused(&door, "sendgrid", sendgrid, cases).await;
    let mailgun_key = "key-0123456789abcdef";
    let connection = door.connection("mailgun", mailgun_key, &[]).await;
    let signed = mailgun(mailgun_key, "token-of-a-mail", &json!({}), now);
    let proof: serde_json::Value = serde_json::from_str(&signed.body).unwrap();
    let field = |name: &str| proof["signature"][name].as_str().unwrap().to_owned();
    let body = format!(
        "recipient=a%40b.example&timestamp={}&token={}&signature={}&message-headers=%5B%5D",
        field("timestamp"),
        field("token"),
        field("signature")
    );
    let good = Sent { headers: vec![("content-type", "application/x-www-form-urlencoded".to_owned())], body };
    assert_taken(&door, "mailgun", connection, &good, 2).await;
    let cases = vec![
        ("again", good.clone(), REPLAYED),
        ("with another token", good.clone().changed("token-of", "tokem-of"), FORGED),
        ("without a proof", good.changed("&token=", "&broken="), FORGED),
    ];
    assert_refused(&door, "mailgun", connection, cases).await;
}

#[tokio::test]
async fn what_one_connection_may_have_stored_in_a_second_is_bounded() {
    let door = Door::open(1_000, Vec::new()).await;
    let connection = door.connection("postmark", "hook:secret", &[]).await;
    let other = door.connection("postmark", "hook:secret", &[]).await;
    let sent = |n: usize| Sent {
        headers: vec![("authorization", "Basic aG9vazpzZWNyZXQ=".to_owned())],
        body: letter(1_000_000 + n),
    };
    let mut stored = 0;
    let refused = loop {
        let answer = door.tell("postmark", connection, &sent(stored)).await;
        if answer.status != 200 || stored == 60 {
            break answer;
        }
        stored += 1;
    };
    assert!(stored >= 4, "{stored}");
    assert_eq!(refused.refusal(), (429, "rate_limit_exceeded"));
    assert_eq!(door.tell("postmark", other, &sent(0)).await.status, 200);
}
