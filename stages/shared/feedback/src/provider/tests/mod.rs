//! Events as the providers' public documentation shows them, and the facts they are.

mod bounds;
mod inbound_mail;

use rstest::rstest;
use schemas::{BounceClass, SignalKind, token::TokenKeys};
use serde_json::{Value, json};
use uuid::Uuid;

use super::{EventMeaning, LIMITS, Malformed, ProviderEvent};

fn tokens() -> TokenKeys {
    TokenKeys::derive(&[[7; 32]])
}

fn read(provider: &str, raw: &[u8]) -> Result<Vec<ProviderEvent>, Malformed> {
    super::read(provider, raw, &tokens(), &runtime::Budget::new(LIMITS))
}

const SEND_ID: &str = "0197a1c2-7b1e-7c44-9d3f-2a6b8c0d1e2f";

fn read_event(provider: &str, event: &Value) -> ProviderEvent {
    let mut provider_event = read(provider, event.to_string().as_bytes()).unwrap();
    assert_eq!(provider_event.len(), 1);
    provider_event.remove(0)
}

/// The label of an event, with the class of a bounce.
fn word(meaning: &EventMeaning) -> String {
    match meaning {
        EventMeaning::Fact(SignalKind::Bounced { class, .. }) => format!("bounced {class}"),
        EventMeaning::Fact(SignalKind::Complained { feedback_type }) => format!("complained {feedback_type}"),
        EventMeaning::Fact(kind) => kind.label().to_owned(),
        EventMeaning::Accepted => "taken".to_owned(),
        EventMeaning::Ignored => "nothing".to_owned(),
    }
}

/// What SES publishes, in the envelope of SNS.
fn ses(event: Value) -> Value {
    json!({
        "Type": "Notification", "MessageId": "22b80b92-fdea-4c2c-8f9d-bdfb0c7bf324",
        "TopicArn": "arn:aws:sns:us-west-2:123456789012:ses-events", "Subject": "Amazon SES Email Event Notification",
        "Message": event.to_string(), "Timestamp": "2026-05-02T00:54:06.655Z", "SignatureVersion": "1", "Signature": "…",
        "SigningCertURL": "https://sns.us-west-2.amazonaws.com/SimpleNotificationService-f3ecfb7224c7233fe7bb5f59f96de52f.pem",
    })
}

fn ses_event(kind: &str, part: &str, detail: Value) -> Value {
    let mut event = json!({
        "eventType": kind,
        "mail": {
            "timestamp": "2026-05-02T00:40:02.012Z", "source": "Sender Name <sender@example.com>",
            "sourceArn": "arn:aws:ses:us-east-1:123456789012:identity/example.com", "sendingAccountId": "123456789012",
            "messageId": "EXAMPLE7c191be45-e9aedb9a-02f9-4d12-a87d-dd0099a07f8a-000000",
            "destination": ["recipient@example.com"], "headersTruncated": false,
            "headers": [{"name": "From", "value": "Sender Name <sender@example.com>"}],
            "commonHeaders": {"from": ["Sender Name <sender@example.com>"], "subject": "Message sent from Amazon SES"},
            "tags": {"ses:configuration-set": ["ConfigSet"], "ses:source-ip": ["192.0.2.0"], "postrider-send": [SEND_ID]},
        },
    });
    event[part] = detail;
    event
}

fn ses_bounce(kind: &str, sub: &str, status: &str, reason_text: &str) -> Value {
    ses_event(
        "Bounce",
        "bounce",
        json!({
            "bounceType": kind, "bounceSubType": sub, "timestamp": "2026-05-02T00:41:02.669Z",
            "bouncedRecipients": [{"emailAddress": "recipient@example.com", "action": "failed", "status": status, "diagnosticCode": reason_text}],
            "feedbackId": "01000157c44f053b-61b59c11-9236-11e6-8f96-7be8aexample-000000",
            "reportingMTA": "dsn; mta.example.com",
        }),
    )
}

fn ses_complaint(feedback_type: &str) -> Value {
    ses_event(
        "Complaint",
        "complaint",
        json!({"timestamp": "2026-05-02T01:00:00.000Z", "feedbackId": "1", "complaintFeedbackType": feedback_type}),
    )
}

#[rstest]
#[case::delivery(
    ses_event("Delivery", "delivery", json!({
        "timestamp": "2026-05-02T00:41:03.202Z", "processingTimeMillis": 46412, "recipients": ["recipient@example.com"],
        "smtpResponse": "250 2.6.0 Message received", "reportingMTA": "mta.example.com"})),
    "delivered"
)]
#[case::no_such_user(ses_bounce("Permanent", "General", "5.1.1", "smtp; 550 5.1.1 user unknown"), "bounced hard")]
#[case::policy_is_about_us(
    ses_bounce("Permanent", "General", "5.7.1", "smtp; 550 5.7.1 Message rejected due to policy"),
    "bounced block"
)]
#[case::full(
    ses_bounce("Transient", "MailboxFull", "4.2.2", "smtp; 452 4.2.2 The email account is over quota"),
    "bounced soft"
)]
#[case::no_words(ses_bounce("Permanent", "NoEmail", "", ""), "bounced hard")]
#[case::never_tried(
    ses_bounce(
        "Permanent",
        "OnAccountSuppressionList",
        "5.1.1",
        "Amazon SES did not send the message to this address"
    ),
    "bounced block"
)]
#[case::content(ses_bounce("Transient", "ContentRejected", "", "rejected"), "bounced block")]
#[case::an_absence_note(
    ses_event("Bounce", "bounce", json!({
        "bounceType": "Transient", "bounceSubType": "General", "timestamp": "2026-05-02T00:41:02.669Z",
        "bouncedRecipients": [{"emailAddress": "recipient@example.com"}], "feedbackId": "01000157c44f053b-61b59c11"})),
    "taken"
)]
#[case::complaint(
    ses_event("Complaint", "complaint", json!({
        "complainedRecipients": [{"emailAddress": "recipient@example.com"}], "timestamp": "2026-05-02T01:00:00.000Z",
        "feedbackId": "01000157c44f053b-61b59c11", "userAgent": "Mozilla/5.0", "complaintFeedbackType": "abuse",
        "arrivalDate": "2026-05-02T00:45:00.000Z"})),
    "complained abuse"
)]
#[case::not_spam(ses_complaint("not-spam"), "complained not-spam")]
#[case::not_spam_in_other_case(ses_complaint("Not-Spam"), "complained not-spam")]
#[case::authentication_failure(ses_complaint("auth-failure"), "nothing")]
#[case::dmarc_report(ses_complaint("dmarc"), "nothing")]
#[case::opt_out(ses_complaint("opt-out"), "unsubscribed")]
#[case::send(ses_event("Send", "send", json!({})), "taken")]
#[case::reject(ses_event("Reject", "reject", json!({"reason": "Bad content"})), "bounced block")]
#[case::delay(
    ses_event("DeliveryDelay", "deliveryDelay", json!({
        "timestamp": "2026-05-02T00:50:00.000Z", "delayType": "TransientCommunicationFailure",
        "expirationTime": "2026-05-02T12:50:00.000Z", "delayedRecipients": [{"emailAddress": "recipient@example.com", "status": "4.4.1"}]})),
    "taken"
)]
#[case::open(
    ses_event("Open", "open", json!({"ipAddress": "192.0.2.1", "timestamp": "2026-05-02T02:00:00.000Z", "userAgent": "Mozilla/5.0"})),
    "opened"
)]
#[case::click(
    ses_event("Click", "click", json!({
        "ipAddress": "192.0.2.1", "link": "https://example.com/a", "linkTags": null, "timestamp": "2026-05-02T02:00:05.000Z",
        "userAgent": "Mozilla/5.0"})),
    "clicked"
)]
fn ses_events_are_parsed(#[case] event: Value, #[case] expected: &str) {
    let provider_event = read_event("ses", &ses(event));
    assert_eq!(word(&provider_event.meaning), expected);
    assert_eq!(provider_event.send_id, Uuid::try_parse(SEND_ID).ok());
    assert_eq!(
        provider_event.message_id.as_deref(),
        Some("EXAMPLE7c191be45-e9aedb9a-02f9-4d12-a87d-dd0099a07f8a-000000")
    );
    assert!(provider_event.at.is_some());
}

#[test]
fn ses_notifications_and_events_are_the_same_facts() {
    let event = ses_bounce("Permanent", "General", "5.1.1", "smtp; 550 5.1.1 user unknown");
    let mut notification = event.clone();
    notification["notificationType"] = notification["eventType"].take();
    notification["mail"]["tags"] = Value::Null;
    let (published, notified) = (read_event("ses", &ses(event)), read_event("ses", &ses(notification)));
    assert_eq!(published.event, notified.event);
    assert_eq!(notified.send_id, None, "no tags: the mail's id finds the send");
    assert_eq!(published.meaning, notified.meaning);
}

#[test]
fn each_unsubscribe_by_one_ses_mail_is_an_event_of_its_own() {
    let event = |timestamp: &str| {
        let detail = json!({"timestamp": timestamp, "newTopicPreferences": {"unsubscribeAll": true}});
        read_event("ses", &ses(ses_event("Subscription", "subscription", detail))).event
    };
    let first = event("2026-05-02T02:00:00.000Z");
    assert_eq!(event("2026-05-02T02:00:00.000Z"), first, "a repeat");
    assert_ne!(event("2026-05-09T02:00:00.000Z"), first);
}

#[test]
fn prose_from_ses_is_nothing() {
    let envelope =
        json!({"Type": "Notification", "Message": "Successfully validated SNS topic for Amazon SES event publishing."});
    assert_eq!(read_event("ses", &envelope).meaning, EventMeaning::Ignored);
}

fn postmark(kind: &str, detail: Value) -> Value {
    let mut record = json!({
        "RecordType": kind, "MessageID": "883953f4-6105-42a2-a16a-77a8eac79483", "MessageStream": "broadcast", "ServerID": 23,
        "Recipient": "john@example.com", "Tag": "welcome-email", "Metadata": {"postrider-send": SEND_ID},
    });
    record.as_object_mut().unwrap().extend(detail.as_object().unwrap().clone());
    record
}

fn postmark_bounce(kind: &str, details: &str) -> Value {
    postmark(
        "Bounce",
        json!({
            "ID": 42, "Type": kind, "TypeCode": 1, "Name": kind, "Description": "The server was unable to deliver your message",
            "Details": details, "Email": "john@example.com", "From": "sender@example.com", "BouncedAt": "2026-05-02T16:33:54.9070259Z",
            "DumpAvailable": true, "Inactive": true, "CanActivate": true, "Subject": "Test subject", "Content": "",
        }),
    )
}

#[rstest]
#[case::delivery(postmark("Delivery", json!({"DeliveredAt": "2026-05-02T16:33:54.9070259Z", "Details": "Test delivery webhook details"})), "delivered")]
#[case::hard(
    postmark_bounce("HardBounce", "smtp;550 5.1.1 The email account that you tried to reach does not exist."),
    "bounced hard"
)]
#[case::hard_by_policy(
    postmark_bounce("HardBounce", "smtp;550 5.7.1 Service unavailable; client host blocked"),
    "bounced block"
)]
#[case::soft(postmark_bounce("SoftBounce", "smtp;452 4.2.2 mailbox full"), "bounced soft")]
#[case::blocked(postmark_bounce("Blocked", "blocked by the provider"), "bounced block")]
#[case::switched_off(postmark_bounce("ManuallyDeactivated", "smtp; 5.1.1"), "bounced block")]
#[case::an_absence_note(postmark_bounce("AutoResponder", "I am away"), "nothing")]
#[case::complaint(postmark("SpamComplaint", json!({"ID": 43, "Type": "SpamComplaint", "BouncedAt": "2026-05-02T16:33:54Z"})), "complained abuse")]
#[case::open(
    postmark("Open", json!({
        "FirstOpen": true, "ReceivedAt": "2026-05-02T16:33:54.9070259Z", "UserAgent": "Mozilla/5.0", "Platform": "WebMail",
        "Geo": {"IP": "188.2.95.4", "City": "Novi Sad"}, "Client": {"Name": "Chrome"}, "OS": {"Name": "OS X"}})),
    "opened"
)]
#[case::click(
    postmark("Click", json!({
        "ClickLocation": "HTML", "OriginalLink": "https://example.com/a", "ReceivedAt": "2026-05-02T16:33:54.9070259Z",
        "UserAgent": "Mozilla/5.0", "Geo": {"IP": "188.2.95.4"}})),
    "clicked"
)]
#[case::left(
    postmark("SubscriptionChange", json!({"ChangedAt": "2026-05-02T10:53:34.416071Z", "Origin": "Recipient", "SuppressSending": true, "SuppressionReason": "ManualSuppression"})),
    "unsubscribed"
)]
#[case::not_his_own_act(
    postmark("SubscriptionChange", json!({"ChangedAt": "2026-05-02T10:53:34Z", "Origin": "Customer", "SuppressSending": true, "SuppressionReason": "ManualSuppression"})),
    "nothing"
)]
fn postmark_events_are_parsed(#[case] record: Value, #[case] expected: &str) {
    let provider_event = read_event("postmark", &record);
    assert_eq!(word(&provider_event.meaning), expected);
    assert_eq!(provider_event.send_id, Uuid::try_parse(SEND_ID).ok());
    assert_eq!(provider_event.message_id.as_deref(), Some("883953f4-6105-42a2-a16a-77a8eac79483"));
    assert!(provider_event.at.is_some());
}

fn sendgrid(kind: &str, detail: Value) -> Value {
    let mut event = json!({
        "email": "example@test.com", "timestamp": 1_777_680_000, "smtp-id": "<14c5d75ce93.dfd.64b469@ismtpd-555>", "event": kind,
        "category": ["cat facts"], "sg_event_id": format!("sg-{kind}"), "sg_message_id": "14c5d75ce93.dfd.64b469.filter0001.16648.5515E0B88.0",
        "postrider-send": SEND_ID,
    });
    event.as_object_mut().unwrap().extend(detail.as_object().unwrap().clone());
    event
}

#[test]
fn sendgrid_events_are_parsed_in_arrays() {
    let events = [
        (sendgrid("processed", json!({})), "taken"),
        (sendgrid("deferred", json!({"response": "400 try again later", "attempt": "5"})), "taken"),
        (sendgrid("delivered", json!({"response": "250 OK"})), "delivered"),
        (
            sendgrid(
                "bounce",
                json!({"reason": "550 5.1.1 The email account that you tried to reach does not exist", "status": "5.1.1", "type": "bounce", "bounce_classification": "Invalid Address"}),
            ),
            "bounced hard",
        ),
        (
            sendgrid(
                "bounce",
                json!({"reason": "550 5.7.1 [192.0.2.1] Our system has detected that this message is likely unsolicited", "status": "5.7.1", "type": "blocked"}),
            ),
            "bounced block",
        ),
        (
            sendgrid(
                "bounce",
                json!({"reason": "552 5.2.2 The mailbox is full", "status": "5.2.2", "type": "bounce", "bounce_classification": "Mailbox Unavailable"}),
            ),
            "bounced soft",
        ),
        (sendgrid("dropped", json!({"reason": "Bounced Address", "status": "5.0.0"})), "bounced block"),
        (sendgrid("open", json!({"useragent": "Mozilla/4.0", "ip": "255.255.255.255"})), "opened"),
        (
            sendgrid(
                "click",
                json!({"useragent": "Mozilla/4.0", "ip": "255.255.255.255", "url": "http://www.example.com/", "url_offset": {"index": 0, "type": "html"}}),
            ),
            "clicked",
        ),
        (sendgrid("spamreport", json!({})), "complained abuse"),
        (sendgrid("unsubscribe", json!({})), "unsubscribed"),
        (sendgrid("group_unsubscribe", json!({"asm_group_id": 10})), "unsubscribed"),
        (sendgrid("group_resubscribe", json!({"asm_group_id": 10})), "nothing"),
    ];
    let raw = Value::from(events.iter().map(|(event, _)| event.clone()).collect::<Vec<_>>());
    let provider_event = read("sendgrid", raw.to_string().as_bytes()).unwrap();
    let reason_text: Vec<String> = provider_event.iter().map(|provider_event| word(&provider_event.meaning)).collect();
    assert_eq!(reason_text, events.iter().map(|(_, expected)| (*expected).to_owned()).collect::<Vec<_>>());
    for provider_event in &provider_event {
        assert_eq!(provider_event.send_id, Uuid::try_parse(SEND_ID).ok());
        assert_eq!(
            provider_event.message_id.as_deref(),
            Some("14c5d75ce93.dfd.64b469"),
            "as the handover was answered"
        );
        assert_eq!(provider_event.at.unwrap().timestamp(), 1_777_680_000);
    }
}

#[test]
fn a_late_bounce_of_sendgrid_is_about_its_address() {
    let late = |status: &str, reason: &str| {
        let mut event = sendgrid("bounce", json!({"status": status, "reason": reason, "type": "bounce"}));
        for id in ["sg_message_id", "postrider-send"] {
            event.as_object_mut().unwrap().remove(id);
        }
        read_event("sendgrid", &json!([event]))
    };
    let hard = late("5.1.1", "550 5.1.1 user unknown");
    assert_eq!(word(&hard.meaning), "bounced hard");
    assert_eq!((hard.send_id, hard.message_id), (None, None));
    assert_eq!(hard.recipients[0].as_str(), "example@test.com");
    assert_eq!(word(&late("5.2.2", "552 5.2.2 The mailbox is full").meaning), "nothing");
}

#[test]
fn an_odd_event_costs_no_other_of_its_request() {
    let events = json!([{"event": 7}, sendgrid("delivered", json!({})), "x", {"email": "a@b.c"}]);
    let read = read("sendgrid", events.to_string().as_bytes()).unwrap();
    let meanings: Vec<_> = read.iter().map(|event| word(&event.meaning)).collect();
    assert_eq!(meanings, ["nothing", "delivered", "nothing", "nothing"]);
}

fn mailgun(kind: &str, detail: Value) -> Value {
    let mut event = json!({
        "event": kind, "id": format!("Ase7i2zsRYeDXztHGENqRA-{kind}"), "timestamp": 1_777_680_000.873_481, "log-level": "info",
        "recipient": "alice@example.com", "recipient-domain": "example.com", "tags": [], "campaigns": [],
        "message": {"headers": {"to": "Alice <alice@example.com>", "message-id": "20260502112233.1.ABC@mg.example.com", "subject": "Test"}, "size": 111},
        "user-variables": {"postrider-send": SEND_ID},
        "envelope": {"transport": "smtp", "sender": "bob@mg.example.com", "sending-ip": "192.0.2.7", "targets": "alice@example.com"},
    });
    event.as_object_mut().unwrap().extend(detail.as_object().unwrap().clone());
    json!({"signature": {"timestamp": "1777680000", "token": "t", "signature": "s"}, "event-data": event})
}

#[rstest]
#[case::accepted(mailgun("accepted", json!({})), "taken")]
#[case::delivered(mailgun("delivered", json!({"delivery-status": {"code": 250, "message": "OK", "tls": true}})), "delivered")]
#[case::permanent(
    mailgun("failed", json!({"severity": "permanent", "reason": "bounce", "delivery-status": {"attempt-no": 1, "code": 550, "enhanced-code": "5.1.1", "message": "5.1.1 The email account that you tried to reach does not exist"}})),
    "bounced hard"
)]
#[case::temporary(mailgun("failed", json!({"severity": "temporary", "reason": "generic", "delivery-status": {"code": 452, "message": "4.2.2 over quota"}})), "taken")]
#[case::listed(
    mailgun("failed", json!({"severity": "permanent", "reason": "suppress-bounce", "delivery-status": {"code": 605, "message": "Not delivering to previously bounced address"}})),
    "bounced block"
)]
#[case::too_old(mailgun("failed", json!({"severity": "permanent", "reason": "old", "delivery-status": {"code": 602, "message": "Too old"}})), "bounced soft")]
#[case::rejected(mailgun("rejected", json!({"reject": {"reason": "Sandbox subdomains are for test purposes only.", "description": ""}})), "bounced block")]
#[case::opened(mailgun("opened", json!({"ip": "50.56.129.169", "client-info": {"user-agent": "Mozilla/5.0", "client-type": "browser"}})), "opened")]
#[case::clicked(mailgun("clicked", json!({"ip": "50.56.129.169", "url": "http://example.com/", "client-info": {"user-agent": "Mozilla/5.0"}})), "clicked")]
#[case::unsubscribed(mailgun("unsubscribed", json!({})), "unsubscribed")]
#[case::complained(mailgun("complained", json!({})), "complained abuse")]
#[case::stored(mailgun("stored", json!({})), "nothing")]
fn mailgun_events_are_parsed(#[case] request: Value, #[case] expected: &str) {
    let provider_event = read_event("mailgun", &request);
    assert_eq!(word(&provider_event.meaning), expected);
    assert_eq!(provider_event.send_id, Uuid::try_parse(SEND_ID).ok());
    assert_eq!(provider_event.message_id.as_deref(), Some("20260502112233.1.ABC@mg.example.com"));
    assert_eq!(provider_event.at.unwrap().timestamp_millis(), 1_777_680_000_873);
}

fn resend(kind: &str, detail: Value) -> Value {
    let mut data = json!({
        "broadcast_id": null, "created_at": "2026-05-02T23:41:11.894719+00:00", "email_id": "56761188-7520-42d8-8898-ff6fc54ce618",
        "from": "Acme <onboarding@example.com>", "to": ["delivered@example.com"], "subject": "Sending this example",
        "tags": {"postrider-send": SEND_ID},
    });
    data.as_object_mut().unwrap().extend(detail.as_object().unwrap().clone());
    json!({"type": kind, "created_at": "2026-05-02T23:41:12.126Z", "data": data})
}

#[rstest]
#[case::sent(resend("email.sent", json!({})), "taken")]
#[case::delivered(resend("email.delivered", json!({})), "delivered")]
#[case::delayed(resend("email.delivery_delayed", json!({})), "taken")]
#[case::server_bounce(
    resend("email.bounced", json!({"bounce": {"message": "smtp; 550 5.1.1 <x@example.com>: Recipient address rejected: User unknown", "subType": "General", "type": "Permanent"}})),
    "bounced hard"
)]
#[case::listed(
    resend("email.bounced", json!({"bounce": {"message": "The recipient's email address is on the suppression list because it has a recent history of producing hard bounces.", "subType": "Suppressed", "type": "Permanent"}})),
    "bounced block"
)]
#[case::full(resend("email.bounced", json!({"bounce": {"message": "mailbox full", "subType": "MailboxFull", "type": "Transient"}})), "bounced soft")]
#[case::complained(resend("email.complained", json!({})), "complained abuse")]
#[case::opened(resend("email.opened", json!({})), "opened")]
#[case::clicked(
    resend("email.clicked", json!({"click": {"ipAddress": "122.115.53.11", "link": "https://example.com", "timestamp": "2026-05-02T05:00:57.163Z", "userAgent": "Mozilla/5.0"}})),
    "clicked"
)]
#[case::failed(resend("email.failed", json!({"failed": {"reason": "reached_daily_quota"}})), "bounced block")]
#[case::tags_as_they_were_sent(resend("email.delivered", json!({"tags": [{"name": "postrider-send", "value": SEND_ID}]})), "delivered")]
fn resend_events_are_parsed(#[case] event: Value, #[case] expected: &str) {
    let provider_event = read_event("resend", &event);
    assert_eq!(word(&provider_event.meaning), expected);
    assert_eq!(provider_event.send_id, Uuid::try_parse(SEND_ID).ok());
    assert_eq!(provider_event.message_id.as_deref(), Some("56761188-7520-42d8-8898-ff6fc54ce618"));
    assert!(provider_event.at.is_some());
}

#[rstest]
#[case::ses_bounce("ses", ses(ses_bounce("Permanent", "General", "5.1.1", "")), "recipient@example.com")]
#[case::ses_complaint(
    "ses",
    ses(ses_event("Complaint", "complaint", json!({"complainedRecipients": [{"emailAddress": "Left@Example.com"}]}))),
    "left@example.com"
)]
#[case::ses_unsubscribe(
    "ses",
    ses(ses_event("Subscription", "subscription", json!({"newTopicPreferences": {"unsubscribeAll": true}}))),
    "recipient@example.com"
)]
#[case::postmark("postmark", postmark_bounce("HardBounce", "gone"), "john@example.com")]
#[case::postmark_subscription("postmark", postmark("SubscriptionChange", json!({})), "john@example.com")]
#[case::sendgrid("sendgrid", json!([sendgrid("spamreport", json!({}))]), "example@test.com")]
#[case::mailgun("mailgun", mailgun("unsubscribed", json!({})), "alice@example.com")]
#[case::resend("resend", resend("email.complained", json!({})), "delivered@example.com")]
fn an_event_names_its_recipient_for_every_provider(
    #[case] provider: &str,
    #[case] event: Value,
    #[case] expected: &str,
) {
    let recipients = read_event(provider, &event).recipients;
    assert!(!recipients.is_empty() && recipients.iter().all(|recipient| recipient.as_str() == expected));
}

#[test]
fn the_hint_is_the_last_word_and_the_servers_the_first() {
    let class = |event: &Value| match read_event("ses", &ses(event.clone())).meaning {
        EventMeaning::Fact(SignalKind::Bounced { class, rule, .. }) => (class, rule),
        other => panic!("{other:?}"),
    };
    assert_eq!(class(&ses_bounce("Transient", "General", "", "")).0, BounceClass::Soft);
    assert_eq!(class(&ses_bounce("Undetermined", "Undetermined", "5.1.1", "")).0, BounceClass::Hard);
}

#[test]
fn what_is_no_event_is_malformed_and_what_is_nobodys_is_nothing() {
    for (provider, raw) in [
        ("ses", "{}"),
        ("ses", r#"{"Message":"{}"}"#),
        ("postmark", "[]"),
        ("postmark", r#"{"RecordType":"Delivery"}"#),
        ("sendgrid", "{}"),
        ("sendgrid", "[7]"),
        ("mailgun", r#"{"event-data":{"event":"delivered"}}"#),
        ("resend", "7"),
        ("resend", "{"),
        ("fax", "{}"),
    ] {
        assert!(read(provider, raw.as_bytes()).is_err(), "{provider} {raw}");
    }
    let foreign = r#"[{"email":"a@b.c","event":"open","timestamp":1777680000}]"#;
    assert_eq!(read("sendgrid", foreign.as_bytes()).unwrap()[0].meaning, EventMeaning::Ignored);
}

#[test]
fn codes_in_the_text_of_a_bounce_are_read() {
    for (provider, event) in [
        ("ses", ses(ses_bounce("Permanent", "General", "5.1.1", "smtp; 550 5.1.1 user unknown"))),
        ("postmark", postmark_bounce("HardBounce", "smtp;550 5.1.1 no such account")),
        (
            "resend",
            resend(
                "email.bounced",
                json!({"bounce": {"message": "550 5.1.1 unknown", "subType": "General", "type": "Permanent"}}),
            ),
        ),
    ] {
        let EventMeaning::Fact(SignalKind::Bounced { smtp_code, enhanced_code, .. }) =
            read_event(provider, &event).meaning
        else {
            panic!("{provider}")
        };
        assert_eq!((smtp_code, enhanced_code.as_deref()), (Some(550), Some("5.1.1")), "{provider}");
    }
}

#[test]
fn hostile_values_are_cut_and_never_believed() {
    let mut event = ses_bounce("Permanent", "General", "5.1.1", &format!("550\u{0} {}", "x".repeat(9_000)));
    event["bounce"]["timestamp"] = json!("9999-01-01T00:00:00Z");
    event["mail"]["tags"]["postrider-send"] = json!(["urn:uuid:0197a1c2-7b1e-7c44-9d3f-2a6b8c0d1e2f"]);
    event["mail"]["messageId"] = json!("y".repeat(9_000));
    let provider_event = read_event("ses", &ses(event));
    let EventMeaning::Fact(SignalKind::Bounced { diagnostic: Some(reason_text), .. }) = &provider_event.meaning else {
        panic!("{provider_event:?}")
    };
    assert!(reason_text.len() == 500 && !reason_text.contains('\0'));
    assert_eq!(
        (provider_event.at, provider_event.send_id, provider_event.message_id.map(|id| id.len())),
        (None, None, Some(255))
    );
    let open = postmark(
        "Open",
        json!({"ReceivedAt": "yesterday", "Geo": {"IP": "not an address"}, "UserAgent": "z".repeat(9_000)}),
    );
    let provider_event = read_event("postmark", &open);
    assert_eq!(
        (provider_event.at, provider_event.ip, provider_event.user_agent.map(|agent| agent.len())),
        (None, None, Some(512))
    );
}
