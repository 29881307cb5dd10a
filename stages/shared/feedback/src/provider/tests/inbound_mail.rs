//! Mail that providers took in, as their public documentation shows it, and which of it answers a mail of ours.

use rstest::rstest;
use schemas::SignalKind;
use serde_json::{Value, json};
use uuid::Uuid;

use super::{SEND_ID, read, tokens};
use crate::provider::{EventMeaning, LIMITS, ProviderEvent};

/// Another send of the same batch.
const NEIGHBOUR: &str = "0197a1c2-7b1e-7c44-9d3f-2a6b8c0d1eff";
const SES_ID: &str = "0100017b2c3d4e5f-61b59c11-9236-11e6-8f96-7be8aexample-000000";

/// A header as a person's mail program writes it.
fn header(in_reply_to: &str, references: &str) -> Vec<(String, String)> {
    [
        ("Message-ID", "<answer-1@mail.example.net>"),
        ("From", "Ann <ann@example.net>"),
        ("Subject", "Re: Spring"),
        ("In-Reply-To", in_reply_to),
        ("References", references),
    ]
    .into_iter()
    .filter(|(_, value)| !value.is_empty())
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .collect()
}

/// The Message-ID of a send.
fn ours(send: &str) -> String {
    format!("<{}@acme.example>", tokens().message_id_local(tokens().newest(), send.parse().unwrap()))
}

/// The header of an answer to ours.
fn answer() -> Vec<(String, String)> {
    header(&ours(SEND_ID), "")
}

fn listed(header: &[(String, String)], name: &str, value: &str) -> Value {
    header.iter().map(|(key, text)| json!({name: key, value: text})).collect()
}

fn postmark(header: &[(String, String)], recipient: &str) -> Vec<u8> {
    json!({
        "FromName": "Ann", "MessageStream": "inbound", "From": "ann@example.net", "OriginalRecipient": recipient, "Subject": "Re: Spring",
        "MessageID": "73e6d360-66eb-11e1-8e72-a8904824019b", "MailboxHash": "", "Date": "Fri, 1 Aug 2025 16:45:32 -0400",
        "TextBody": "Gladly.", "HtmlBody": "", "StrippedTextReply": "", "Tag": "", "Headers": listed(header, "Name", "Value"),
        "Attachments": [{"Name": "a.pdf", "Content": "QUJD", "ContentType": "application/pdf", "ContentLength": 3}],
    })
    .to_string()
    .into_bytes()
}

fn ses(header: &[(String, String)], recipient: &str) -> Vec<u8> {
    let message = json!({
        "notificationType": "Received",
        "receipt": {
            "timestamp": "2026-05-02T19:36:15.000Z", "processingTimeMillis": 222, "recipients": [recipient],
            "spamVerdict": {"status": "PASS"}, "action": {"type": "SNS", "topicArn": "arn:aws:sns:us-west-2:123456789012:replies"},
        },
        "mail": {
            "timestamp": "2026-05-02T19:36:15.000Z", "source": "ann@example.net", "messageId": "d6iitobk75ur44p8kdnnp7g2n800",
            "destination": [recipient], "headersTruncated": false, "headers": listed(header, "name", "value"),
        },
        "content": "Return-Path: <ann@example.net>\r\n…",
    });
    json!({"Type": "Notification", "MessageId": "1", "Message": message.to_string()}).to_string().into_bytes()
}

fn mailgun(header: &[(String, String)], recipient: &str) -> Vec<u8> {
    let list = serde_json::to_string(header).unwrap();
    let list: String = list.bytes().map(|byte| format!("%{byte:02x}")).collect();
    format!("recipient={recipient}&sender=ann%40example.net&subject=Re%3A+Spring&body-plain=Gladly.&timestamp=1777750575&token=t&signature=s&message-headers={list}")
        .into_bytes()
}

fn sendgrid(header: &[(String, String)], recipient: &str) -> Vec<u8> {
    let text: String = header.iter().map(|(name, value)| format!("{name}: {value}\n")).collect();
    let envelope = json!({"to": [recipient], "from": "ann@example.net"});
    let part = |name: &str, value: &str| {
        format!("--xYzZY\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n")
    };
    [
        part("headers", &text),
        part("text", "Gladly."),
        part("envelope", &envelope.to_string()),
        "--xYzZY--\r\n".to_owned(),
    ]
    .concat()
    .into_bytes()
}

fn sendgrid_raw(header: &[(String, String)], recipient: &str) -> Vec<u8> {
    let parsed = String::from_utf8(sendgrid(header, recipient)).unwrap();
    let body = parsed.replace("name=\"headers\"", "name=\"email\"").replace("\n\r\n--xYzZY", "\n\nGladly.\r\n--xYzZY");
    body.into_bytes()
}

fn read_event(provider: &str, raw: &[u8]) -> ProviderEvent {
    let mut provider_event = read(provider, raw).unwrap();
    assert_eq!(provider_event.len(), 1);
    provider_event.remove(0)
}

type Wrapped = fn(&[(String, String)], &str) -> Vec<u8>;
const ALL: [(&str, Wrapped); 5] =
    [("postmark", postmark), ("ses", ses), ("mailgun", mailgun), ("sendgrid", sendgrid), ("sendgrid", sendgrid_raw)];

#[rstest]
#[case::in_reply_to(&ours(SEND_ID), "", Some(SEND_ID), None)]
#[case::references_where_that_is_another("<x@y.example>", &format!("<a@b.example>\r\n {}", ours(SEND_ID)), Some(SEND_ID), None)]
#[case::references_the_last_first("", &format!("{} {}", ours(NEIGHBOUR), ours(SEND_ID)), Some(SEND_ID), None)]
#[case::references_where_that_is_forged(&format!("<{NEIGHBOUR}@acme.example>"), &ours(SEND_ID), Some(SEND_ID), None)]
#[case::no_proof(&format!("<{SEND_ID}@acme.example>"), "", None, None)]
#[case::the_proof_of_another_send(&ours(SEND_ID).replace(SEND_ID, NEIGHBOUR), "", None, None)]
#[case::an_id_that_ses_wrote(&format!("<{SES_ID}@eu-central-1.amazonses.com>"), "", None, Some(SES_ID))]
#[case::another_mail("<x@y.example>", "<z@y.example>", None, None)]
#[case::an_id_of_another_kind("<6ba7b810-9dad-11d1-80b4-00c04fd430c8@acme.example>", "", None, None)]
#[case::no_brackets(SEND_ID, "", None, None)]
fn a_reply_names_its_mail_for_every_provider(
    #[case] in_reply_to: &str,
    #[case] references: &str,
    #[case] send: Option<&str>,
    #[case] id: Option<&str>,
) {
    for (provider, wrapped) in ALL {
        let provider_event = read_event(provider, &wrapped(&header(in_reply_to, references), "sales@acme.example"));
        assert_eq!(provider_event.send_id, send.and_then(|send| Uuid::try_parse(send).ok()), "{provider}");
        assert_eq!(provider_event.message_id.as_deref(), id, "{provider}");
        let is_answer = send.is_some() || id.is_some();
        let expected =
            SignalKind::Replied { message_id: Some("answer-1@mail.example.net".to_owned()), automatic: false };
        assert_eq!(
            provider_event.meaning,
            if is_answer { EventMeaning::Fact(expected) } else { EventMeaning::Ignored },
            "{provider}"
        );
        assert!(provider_event.event.len() > "reply ".len(), "{provider}");
    }
}

#[test]
fn mail_to_a_return_path_names_its_send_by_the_address() {
    let path = format!("{}@send.acme.example", tokens().return_path_local(SEND_ID.parse().unwrap()));
    let forged = path.replace(&SEND_ID.replace('-', ""), &NEIGHBOUR.replace('-', ""));
    for (provider, wrapped) in ALL {
        let provider_event = read_event(provider, &wrapped(&header("", ""), &path));
        assert_eq!(provider_event.send_id, Uuid::try_parse(SEND_ID).ok(), "{provider}");
        let provider_event = read_event(provider, &wrapped(&header("", ""), &forged));
        assert_eq!((provider_event.send_id, provider_event.meaning), (None, EventMeaning::Ignored), "{provider}");
    }
    let event = |to: &str| {
        json!({
            "type": "email.received", "created_at": "2026-05-02T23:41:12.126Z",
            "data": {
                "email_id": "56761188-7520-42d8-8898-ff6fc54ce618", "from": "Ann <ann@example.net>", "to": [to], "bcc": [], "cc": [],
                "message_id": "<answer-1@mail.example.net>", "subject": "Re: Spring", "attachments": [],
            },
        })
        .to_string()
    };
    assert_eq!(read_event("resend", event(&path).as_bytes()).send_id, Uuid::try_parse(SEND_ID).ok());
    assert_eq!(
        read_event("resend", event("sales@acme.example").as_bytes()).meaning,
        EventMeaning::Ignored,
        "it does not say what is answered"
    );
}

#[rstest]
#[case("Auto-Submitted", "auto-replied")]
#[case("Subject", "Out of office: Spring")]
#[case("Content-Type", "multipart/report; report-type=delivery-status; boundary=b")]
#[case("From", "MAILER-DAEMON@mx.example.net")]
fn what_a_program_wrote_is_nobodys_answer(#[case] name: &str, #[case] value: &str) {
    let mut written = answer();
    written.retain(|(known, _)| known != name);
    written.push((name.to_owned(), value.to_owned()));
    for (provider, wrapped) in ALL {
        let provider_event = read_event(provider, &wrapped(&written, "sales@acme.example"));
        assert!(
            matches!(provider_event.meaning, EventMeaning::Fact(SignalKind::Replied { automatic: true, .. })),
            "{provider}: {provider_event:?}"
        );
    }
}

#[test]
fn a_mail_that_broke_off_in_its_attachments_is_read() {
    for (provider, wrapped) in [ALL[0], ALL[3]] {
        let whole = wrapped(&answer(), "sales@acme.example");
        let cut = &whole[..whole.len() - 12];
        assert_eq!(read_event(provider, cut), read_event(provider, &whole), "{provider}");
    }
}

#[test]
fn an_event_is_no_mail_and_hostile_mails_are_cut() {
    for event in [r#"{"RecordType":"Bounce","Headers":[{"Name":"a","Value":"b"}]}"#, "[]", "{", "", "--", "a=b"] {
        for provider in schemas::ProviderKind::HTTP {
            let budget = runtime::Budget::new(LIMITS);
            assert!(
                crate::provider::inbound_mail(provider, event.as_bytes(), &budget).unwrap().is_none(),
                "{provider} {event}"
            );
        }
    }
    let mut hostile = answer();
    hostile.push(("X".repeat(3_000), "\r\nIn-Reply-To: \u{0}<".repeat(1_000)));
    hostile.push(("Message-ID".to_owned(), "y".repeat(9_000)));
    for (provider, wrapped) in ALL {
        let provider_event = read_event(provider, &wrapped(&hostile, &"<b-".repeat(500)));
        assert!(provider_event.event.chars().count() <= 300 && !provider_event.event.contains('\0'), "{provider}");
    }
}
