//! Resend: the message from its parts.
//!
//! Resend keeps idempotency keys for 24 hours: ours is the send's id and the attempt, so that an unclear outcome is asked for again and never
//! becomes a second mail. The id travels as a tag, too, which its webhooks carry back.

use secrecy::SecretString;
use serde_json::{Value, json};

use super::{
    Api, ApiCall, HttpRequest, UnsupportedMessage, bearer,
    exchange::{HttpReply, NoReply},
    list,
    mime::{File, Mail, Mailbox},
    reply_meaning::{self, ACCOUNT, ADDRESS, CONTENT, SENDER, UNKNOWN, refusal, seconds},
};
use crate::provider::{OutgoingMessage, PingFault, Refused};

/// An account.
pub(crate) struct Resend {
    pub key: SecretString,
}

fn attachment(file: &File) -> Value {
    json!({
        "filename": file.name,
        "content": file.content,
        "content_type": file.content_type(),
        "content_id": file.content_id,
    })
}

impl Api for Resend {
    fn is_idempotent(&self) -> bool {
        true
    }

    fn request(&self, call: &ApiCall<'_>, outgoing: &OutgoingMessage<'_>) -> Result<HttpRequest, UnsupportedMessage> {
        let mail = Mail::of(outgoing)?;
        let body = json!({
            "from": mail.from.formatted(),
            "to": [mail.to.formatted()],
            "reply_to": list(&mail.reply_to, Mailbox::formatted),
            "subject": mail.subject,
            "text": mail.text,
            "html": mail.html,
            "attachments": list(&mail.files, attachment),
            "headers": mail.headers.into_iter().collect::<Value>(),
            "tags": [{"name": "postrider-send", "value": outgoing.send_id}],
        });
        let idempotency_key = format!("{}-{}", outgoing.send_id, outgoing.serial);
        Ok(call.post("/emails", vec![bearer(&self.key), ("idempotency-key", idempotency_key)], body))
    }

    fn interpret_reply(&self, reply: &HttpReply) -> Result<Option<String>, Refused> {
        let (name, message) = (reply.text("/name").unwrap_or_default(), reply.text("/message").unwrap_or_default());
        let words = format!("{name} {message}");
        let decision = match (reply.status, name) {
            (200..=299, _) => return reply_meaning::accepted(reply, "/id"),
            // An earlier request with the same key is still in progress: its outcome is asked for again.
            (_, "concurrent_idempotent_requests") => return Err(reply_meaning::no_reply(NoReply::Timeout)),
            // The key belongs to another body: an attempt of this send whose mail was rendered anew. It may have been taken.
            (_, "invalid_idempotent_request") => UNKNOWN,
            (_, "daily_quota_exceeded" | "monthly_quota_exceeded") => ACCOUNT,
            (429, _) => return Err(reply_meaning::rate_limited(reply, &words, seconds(reply, "ratelimit-reset"))),
            (_, "missing_api_key" | "invalid_api_key" | "restricted_api_key" | "invalid_access") => ACCOUNT,
            (_, "invalid_from_address") => SENDER,
            (403, "validation_error") => SENDER,
            (_, "validation_error") if message.contains("`to`") => ADDRESS,
            (_, "validation_error" | "invalid_attachment" | "missing_required_field" | "invalid_parameter") => CONTENT,
            _ => return Err(reply_meaning::by_status(reply, &words, !name.is_empty())),
        };
        Err(refusal(reply, decision, &words))
    }

    fn ping(&self, call: &ApiCall<'_>) -> HttpRequest {
        call.get("/domains", vec![bearer(&self.key)])
    }

    /// A key that may only send is known all the same.
    fn interpret_ping(&self, reply: &HttpReply) -> Result<(), PingFault> {
        match reply.text("/name") {
            Some("restricted_api_key") => Ok(()),
            _ => reply_meaning::ping(reply),
        }
    }
}
