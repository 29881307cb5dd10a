//! SendGrid, v3: the message from its parts.
//!
//! SendGrid has no idempotency key. The send's id travels as a custom argument, which its events carry back. Its own tracking is
//! switched off. An accepted message is answered 202 without a body; its id is in a header.

use secrecy::SecretString;
use serde_json::{Value, json};

use super::{
    Api, ApiCall, HttpRequest, UnsupportedMessage, bearer,
    exchange::HttpReply,
    list,
    mime::{File, Mail, Mailbox},
    reply_meaning::{self, ACCOUNT, ADDRESS, CONTENT, SENDER, UNKNOWN, refusal, until},
};
use crate::provider::{OutgoingMessage, Refused};

/// An account.
pub(crate) struct Sendgrid {
    pub key: SecretString,
}

fn person(mailbox: &Mailbox) -> Value {
    json!({"email": mailbox.email, "name": mailbox.name})
}

fn attachment(file: &File) -> Value {
    let disposition = if file.is_inline { "inline" } else { "attachment" };
    // SendGrid refuses a type with a charset ("cannot contain ';'"); the method of an invite it takes.
    let method = file.method.as_ref().map(|method| format!(";method={method}")).unwrap_or_default();
    json!({
        "content": file.content,
        "type": format!("{}{method}", file.media_type),
        "filename": file.name,
        "disposition": disposition,
        "content_id": file.content_id,
    })
}

impl Api for Sendgrid {
    fn request(&self, call: &ApiCall<'_>, outgoing: &OutgoingMessage<'_>) -> Result<HttpRequest, UnsupportedMessage> {
        let mail = Mail::of(outgoing)?;
        // Plain text must come first.
        let content: Vec<Value> = [("text/plain", &mail.text), ("text/html", &mail.html)]
            .into_iter()
            .filter_map(|(kind, body)| body.as_ref().map(|body| json!({"type": kind, "value": body})))
            .collect();
        let mut body = json!({
            "personalizations": [{"to": [person(&mail.to)], "custom_args": {"postrider-send": outgoing.send_id}}],
            "from": person(&mail.from),
            "subject": mail.subject,
            "content": content,
            "attachments": list(&mail.files, attachment),
            "headers": mail.headers.into_iter().collect::<Value>(),
            "tracking_settings": {
                "click_tracking": {"enable": false, "enable_text": false},
                "open_tracking": {"enable": false},
                "subscription_tracking": {"enable": false},
            },
        });
        match mail.reply_to.as_slice() {
            [] => {}
            [one] => body["reply_to"] = person(one),
            several => body["reply_to_list"] = several.iter().map(person).collect(),
        }
        Ok(call.post("/v3/mail/send", vec![bearer(&self.key)], body))
    }

    fn interpret_reply(&self, reply: &HttpReply) -> Result<Option<String>, Refused> {
        let (message, field) = (reply.text("/errors/0/message"), reply.text("/errors/0/field").unwrap_or_default());
        let words = message.unwrap_or_default();
        let decision = match reply.status {
            // Only SendGrid answers 202 here, so it counts without an id, too.
            202 => return Ok(reply.header("x-message-id").map(str::to_owned)),
            200..=299 => UNKNOWN,
            // "Maximum credits exceeded" is a 401.
            401 => ACCOUNT,
            403 if words.contains("verified Sender Identity") || field == "from" => SENDER,
            400 if field.starts_with("personalizations") => ADDRESS,
            400 if field.starts_with("from") => SENDER,
            400 | 413 => CONTENT,
            429 => return Err(reply_meaning::rate_limited(reply, words, until(reply, "x-ratelimit-reset"))),
            _ => return Err(reply_meaning::by_status(reply, words, message.is_some())),
        };
        Err(refusal(reply, decision, words))
    }

    fn ping(&self, call: &ApiCall<'_>) -> HttpRequest {
        call.get("/v3/scopes", vec![bearer(&self.key)])
    }
}
