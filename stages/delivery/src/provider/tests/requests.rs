//! What each provider is asked: method, path, credentials, and the mail with nothing lost.

use base64::{Engine, engine::general_purpose::STANDARD};
use chrono::NaiveDateTime;
use serde_json::{Value, json};

use super::{
    HTTP, LONG, RECIPIENT, SEND, SIGNATURE, message, provider, send_message, send_to,
    stand_in::{Seen, StandIn},
};
use crate::provider::{
    ProviderKind, SendResult,
    http::sigv4::{Canonical, Signer},
};
use smtp::SmtpMessage;

const TAKEN: [(ProviderKind, u16, &str, &str); 5] = [
    (ProviderKind::Ses, 200, "", r#"{"MessageId":"id-1"}"#),
    (
        ProviderKind::Postmark,
        200,
        "",
        r#"{"To":"x","SubmittedAt":"2026","MessageID":"id-1","ErrorCode":0,"Message":"OK"}"#,
    ),
    (ProviderKind::Sendgrid, 202, "x-message-id: id-1\r\n", ""),
    (ProviderKind::Mailgun, 200, "", r#"{"id":"id-1","message":"Queued. Thank you."}"#),
    (ProviderKind::Resend, 200, "", r#"{"id":"id-1"}"#),
];

/// The invite of the mail: one file, which says its method.
const INVITE: &str = "QkVHSU46VkNBTEVOREFS";
const INVITE_TYPE: &str = "text/calendar; method=REQUEST; charset=utf-8";

/// Sends one mail, which is taken, and answers the request it became.
async fn asked(kind: ProviderKind) -> Seen {
    asked_for(kind, &message()).await
}

async fn asked_for(kind: ProviderKind, message: &SmtpMessage) -> Seen {
    let (_, status, headers, body) = TAKEN.into_iter().find(|(taken, ..)| *taken == kind).unwrap();
    let stand_in = StandIn::answering(status, headers, body).await;
    let provider = provider(kind, &stand_in);
    assert_eq!(provider.kind(), kind);
    let handover = send_message(provider.as_ref(), message, RECIPIENT, LONG).await.unwrap();
    assert!(
        matches!(&handover, SendResult::Accepted { provider_message_id: Some(id), .. } if id == "id-1"),
        "{kind:?}: {handover:?}"
    );
    stand_in.only()
}

fn header(list: &Value, name: &str) -> Option<String> {
    let entries = list.as_array().unwrap();
    entries.iter().find(|entry| entry["Name"] == name).map(|entry| entry["Value"].as_str().unwrap().to_owned())
}

#[tokio::test]
async fn an_accepted_mail_has_the_providers_id() {
    for kind in HTTP {
        asked(kind).await;
    }
}

#[tokio::test]
async fn ses_gets_the_signed_message_as_it_is() {
    let seen = asked(ProviderKind::Ses).await;
    assert_eq!((seen.method.as_str(), seen.path.as_str()), ("POST", "/v2/email/outbound-emails"));
    let body = seen.json();
    let raw = STANDARD.decode(body["Content"]["Raw"]["Data"].as_str().unwrap()).unwrap();
    assert_eq!(raw, [SIGNATURE.as_bytes(), message().as_bytes()].concat());
    assert_eq!(body["Destination"], json!({"ToAddresses": ["jurgen@example.com"]}));
    assert_eq!(body["EmailTags"], json!([{"Name": "postrider-send", "Value": SEND}]));
    assert_eq!(body["ConfigurationSetName"], "events");
    // The signature is over what was sent: recomputed from the request alone.
    let signer = Signer {
        access_key_id: "AKIDEXAMPLE".to_owned(),
        secret_access_key: "secret-key".into(),
        session_token: None,
        region: "eu-central-1".to_owned(),
        service: "ses",
    };
    let date = seen.header("x-amz-date");
    let headers = [("content-type", "application/json"), ("host", seen.header("host")), ("x-amz-date", date)];
    let request = Canonical { method: "POST", path: &seen.path, query: "", headers: &headers, body: &seen.body };
    let at = NaiveDateTime::parse_from_str(date, "%Y%m%dT%H%M%SZ").unwrap().and_utc();
    assert_eq!(seen.header("authorization"), signer.authorization(&request, at));
}

#[tokio::test]
async fn mailgun_gets_the_signed_message_as_it_is_in_a_form() {
    let seen = asked(ProviderKind::Mailgun).await;
    assert_eq!((seen.method.as_str(), seen.path.as_str()), ("POST", "/v3/mg.acme.example/messages.mime"));
    assert_eq!(seen.header("authorization"), format!("Basic {}", STANDARD.encode("api:the-key")));
    let boundary = seen.header("content-type").strip_prefix("multipart/form-data; boundary=").unwrap().to_owned();
    let body = String::from_utf8(seen.body).unwrap();
    let parts: Vec<&str> = body.split(&format!("--{boundary}")).collect();
    assert_eq!(parts.last(), Some(&"--\r\n"));
    let field = |name: &str| {
        let part = parts.iter().find(|part| part.contains(&format!("name=\"{name}\""))).unwrap();
        part.split_once("\r\n\r\n").unwrap().1.strip_suffix("\r\n").unwrap().to_owned()
    };
    assert_eq!(field("to"), "jurgen@example.com");
    assert_eq!(field("o:tracking"), "no");
    assert_eq!(field("v:postrider-send"), SEND.to_string());
    assert_eq!(field("message"), format!("{SIGNATURE}{}", String::from_utf8_lossy(message().as_bytes())));
}

#[tokio::test]
async fn postmark_gets_the_parts_and_every_header() {
    let seen = asked(ProviderKind::Postmark).await;
    assert_eq!((seen.method.as_str(), seen.path.as_str()), ("POST", "/email"));
    assert_eq!(seen.header("x-postmark-server-token"), "the-key");
    let body = seen.json();
    assert_eq!(body["From"], "\"Acme, Inc.\" <news@acme.example>");
    assert_eq!(body["To"], "\"Jürgen\" <jurgen@example.com>");
    assert_eq!(body["ReplyTo"], "answers@acme.example");
    assert_eq!(body["Subject"], "Grüße");
    assert_eq!(body["TextBody"].as_str().unwrap().trim_end(), "Hallo Jürgen");
    assert_eq!(body["HtmlBody"].as_str().unwrap().trim_end(), "<p>Hallo Jürgen</p>");
    assert_eq!(body["MessageStream"], "broadcast");
    assert_eq!(body["Metadata"], json!({"postrider-send": SEND}));
    assert_eq!((&body["TrackOpens"], &body["TrackLinks"]), (&json!(false), &json!("None")));
    let files = json!([
        {"Name": "invite.ics", "Content": INVITE, "ContentType": INVITE_TYPE},
        {"Name": "offer.pdf", "Content": "JVBERi0xLjQK", "ContentType": "application/pdf"},
    ]);
    assert_eq!(body["Attachments"], files);
    let headers = &body["Headers"];
    assert_eq!(header(headers, "List-Unsubscribe").unwrap(), "<https://link.acme.example/u/token>");
    assert_eq!(header(headers, "List-Unsubscribe-Post").unwrap(), "List-Unsubscribe=One-Click");
    assert_eq!(header(headers, "List-Id").unwrap(), "<tenant.acme.example>");
    assert_eq!(header(headers, "Feedback-ID").unwrap(), "c:t:marketing:postrider");
    assert_eq!(header(headers, "Message-ID").unwrap(), "<0198c0de-0000-7000-8000-000000000001@acme.example>");
    assert_eq!(header(headers, "X-PM-KeepID").unwrap(), "true");
    assert_eq!(header(headers, "Subject"), None);
}

#[tokio::test]
async fn sendgrid_gets_the_parts_and_every_header() {
    let seen = asked(ProviderKind::Sendgrid).await;
    assert_eq!((seen.method.as_str(), seen.path.as_str()), ("POST", "/v3/mail/send"));
    assert_eq!(seen.header("authorization"), "Bearer the-key");
    let body = seen.json();
    assert_eq!(
        body["personalizations"],
        json!([{"to": [{"email": "jurgen@example.com", "name": "Jürgen"}], "custom_args": {"postrider-send": SEND}}])
    );
    assert_eq!(body["from"], json!({"email": "news@acme.example", "name": "Acme, Inc."}));
    assert_eq!(body["reply_to"], json!({"email": "answers@acme.example"}));
    let kinds: Vec<&str> =
        body["content"].as_array().unwrap().iter().map(|part| part["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["text/plain", "text/html"]);
    assert_eq!(body["headers"]["List-Unsubscribe"], "<https://link.acme.example/u/token>");
    assert_eq!(body["headers"]["List-Unsubscribe-Post"], "List-Unsubscribe=One-Click");
    // A charset beside the method is refused.
    let kind = "text/calendar;method=REQUEST";
    let invite = json!({"filename": "invite.ics", "content": INVITE, "type": kind, "disposition": "attachment"});
    assert_eq!((&body["attachments"][0], &body["attachments"][1]["filename"]), (&invite, &json!("offer.pdf")));
    assert_eq!(body["tracking_settings"]["click_tracking"]["enable"], false);
}

#[tokio::test]
async fn resend_gets_the_parts_every_header_and_an_idempotency_key() {
    let seen = asked(ProviderKind::Resend).await;
    assert_eq!((seen.method.as_str(), seen.path.as_str()), ("POST", "/emails"));
    assert_eq!(seen.header("authorization"), "Bearer the-key");
    assert_eq!(seen.header("idempotency-key"), format!("{SEND}-1"));
    let body = seen.json();
    assert_eq!(body["to"], json!(["\"Jürgen\" <jurgen@example.com>"]));
    assert_eq!(body["reply_to"], json!(["answers@acme.example"]));
    assert_eq!(body["tags"], json!([{"name": "postrider-send", "value": SEND}]));
    assert_eq!(body["headers"]["List-Unsubscribe-Post"], "List-Unsubscribe=One-Click");
    let invite = json!({"filename": "invite.ics", "content": INVITE, "content_type": INVITE_TYPE});
    assert_eq!((&body["attachments"][0], &body["attachments"][1]["content"]), (&invite, &json!("JVBERi0xLjQK")));
}

/// A mail with this text, an HTML part, and this file as a CSV of another charset than ours.
fn mail_of(text: &str, file: &[u8]) -> SmtpMessage {
    let encoded = STANDARD.encode(file);
    let lines: Vec<&str> = encoded.as_bytes().chunks(76).map(|line| std::str::from_utf8(line).unwrap()).collect();
    let file = lines.join("\r\n");
    let source = format!(
        "From: <news@acme.example>\r\nTo: <{RECIPIENT}>\r\nSubject: x\r\nMIME-Version: 1.0\r\n\
         Content-Type: multipart/mixed; boundary=outer\r\n\r\n\
         --outer\r\nContent-Type: multipart/alternative; boundary=inner\r\n\r\n\
         --inner\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Transfer-Encoding: quoted-printable\r\n\r\n\
         {text}\r\n\
         --inner\r\nContent-Type: text/html; charset=utf-8\r\nContent-Transfer-Encoding: quoted-printable\r\n\r\n\
         <p>x</p>\r\n--inner--\r\n\
         --outer\r\nContent-Type: text/csv; charset=windows-1252\r\nContent-Transfer-Encoding: base64\r\n\
         Content-Disposition: attachment; filename=\"list.csv\"\r\n\r\n{file}\r\n--outer--\r\n"
    );
    SmtpMessage::new(source.into_bytes()).unwrap()
}

#[tokio::test]
async fn an_empty_text_is_left_out() {
    let body = asked_for(ProviderKind::Sendgrid, &mail_of("", b"a;b")).await.json();
    let kinds: Vec<&str> =
        body["content"].as_array().unwrap().iter().map(|part| part["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["text/html"]);
    let body = asked_for(ProviderKind::Postmark, &mail_of("", b"a;b")).await.json();
    assert_eq!(body.get("TextBody"), None);
}

#[tokio::test]
async fn a_text_file_arrives_octet_by_octet_with_its_charset() {
    let file = b"Gr\xfc\xdfe;1\r\n".repeat(20);
    for (kind, list, content, media_type, expected) in [
        (ProviderKind::Postmark, "Attachments", "Content", "ContentType", "text/csv; charset=windows-1252"),
        (ProviderKind::Resend, "attachments", "content", "content_type", "text/csv; charset=windows-1252"),
        // It refuses parameters.
        (ProviderKind::Sendgrid, "attachments", "content", "type", "text/csv"),
    ] {
        let body = asked_for(kind, &mail_of("x", &file)).await.json();
        let attached = &body[list][0];
        assert_eq!(STANDARD.decode(attached[content].as_str().unwrap()).unwrap(), file, "{kind:?}");
        assert_eq!(attached[media_type], expected, "{kind:?}");
    }
}

#[tokio::test]
async fn a_copy_goes_to_its_own_recipient_without_the_others_name() {
    let (kind, status, headers, body) = TAKEN[1];
    let stand_in = StandIn::answering(status, headers, body).await;
    send_to(provider(kind, &stand_in).as_ref(), "copy@example.net", LONG).await.unwrap();
    assert_eq!(stand_in.only().json()["To"], "copy@example.net");
}

#[tokio::test]
async fn a_ping_asks_for_something_cheap_with_credentials() {
    let paths = ["/v2/email/account", "/server", "/v3/scopes", "/v3/domains/mg.acme.example", "/domains"];
    for (kind, path) in HTTP.into_iter().zip(paths) {
        let stand_in = StandIn::answering(200, "", "{}").await;
        provider(kind, &stand_in).ping().await.unwrap();
        let seen = stand_in.only();
        assert_eq!((seen.method.as_str(), seen.path.as_str()), ("GET", path), "{kind:?}");
        let has_credentials =
            ["authorization", "x-postmark-server-token"].iter().any(|name| !seen.header(name).is_empty());
        assert!(has_credentials && seen.body.is_empty(), "{kind:?}");
    }
}
