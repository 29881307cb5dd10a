//! Postmark: the message from its parts.
//!
//! Postmark has no idempotency key. The send's id travels as metadata, which its webhooks carry back. Its own tracking is
//! switched off. `X-PM-KeepID` keeps our Message-ID.

use secrecy::{ExposeSecret, SecretString};
use serde_json::{Value, json};

use super::{
    Api, ApiCall, HttpRequest, UnsupportedMessage,
    exchange::HttpReply,
    list,
    mime::{File, Mail, Mailbox},
    reply_meaning::{self, ACCOUNT, ADDRESS, CONTENT, RATE, RECIPIENT, SENDER, refusal},
};
use crate::provider::{OutgoingMessage, Refused};

/// A server of a Postmark account.
pub(crate) struct Postmark {
    pub token: SecretString,
    pub stream: Option<String>,
}

impl Postmark {
    fn headers(&self) -> Vec<(&'static str, String)> {
        vec![
            ("x-postmark-server-token", self.token.expose_secret().to_owned()),
            ("accept", "application/json".to_owned()),
        ]
    }
}

fn attachment(file: &File) -> Value {
    json!({
        "Name": file.name,
        "Content": file.content,
        "ContentType": file.content_type(),
        "ContentID": file.content_id.as_ref().map(|id| format!("cid:{id}")),
    })
}

impl Api for Postmark {
    fn request(&self, call: &ApiCall<'_>, outgoing: &OutgoingMessage<'_>) -> Result<HttpRequest, UnsupportedMessage> {
        let mail = Mail::of(outgoing)?;
        let mut headers: Vec<Value> =
            mail.headers.iter().map(|(name, value)| json!({"Name": name, "Value": value})).collect();
        headers.push(json!({"Name": "X-PM-KeepID", "Value": "true"}));
        let reply_to = mail.reply_to.iter().map(Mailbox::formatted).collect::<Vec<_>>().join(", ");
        let body = json!({
            "From": mail.from.formatted(),
            "To": mail.to.formatted(),
            "ReplyTo": (!reply_to.is_empty()).then_some(reply_to),
            "Subject": mail.subject,
            "TextBody": mail.text,
            "HtmlBody": mail.html,
            "MessageStream": self.stream,
            "Attachments": list(&mail.files, attachment),
            "Headers": headers,
            "Metadata": {"postrider-send": outgoing.send_id},
            "TrackOpens": false,
            "TrackLinks": "None",
        });
        Ok(call.post("/email", self.headers(), body))
    }

    fn interpret_reply(&self, reply: &HttpReply) -> Result<Option<String>, Refused> {
        let code = reply.body["ErrorCode"].as_i64();
        let message = reply.text("/Message").unwrap_or_default();
        let words = code.map_or_else(String::new, |code| format!("{code} {message}"));
        let decision = match (reply.status, code) {
            (200, Some(0)) => return reply_meaning::accepted(reply, "/MessageID"),
            // Postmark stopped sending there after a hard bounce or a complaint, or by hand.
            (_, Some(406)) => RECIPIENT,
            // 300: something in the request; about an address it names the field.
            (_, Some(300)) if message.contains("'To'") => ADDRESS,
            (_, Some(300)) => CONTENT,
            // 400 no such sender signature, 401 not confirmed, 411 not allowed, 412 only to own domain while the account is reviewed.
            (_, Some(400 | 401 | 411 | 412)) => SENDER,
            // 10 bad token, 100 maintenance, 405 no credits left, 413 server not allowed; 1235 no such stream.
            (_, Some(10 | 405 | 413 | 1235)) => ACCOUNT,
            (_, Some(100)) | (429, _) => RATE,
            (status @ (200..=299), _) if status != 200 || code.is_none() => {
                return Err(refusal(reply, reply_meaning::UNKNOWN, "an answer that cannot be read"));
            }
            _ => return Err(reply_meaning::by_status(reply, &words, code.is_some())),
        };
        Err(refusal(reply, decision, &words))
    }

    fn ping(&self, call: &ApiCall<'_>) -> HttpRequest {
        call.get("/server", self.headers())
    }
}
