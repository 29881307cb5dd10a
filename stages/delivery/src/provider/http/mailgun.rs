//! Mailgun: the message as it is, in a form.
//!
//! Mailgun has no idempotency key, and is known to answer 5xx for messages it sends all the same: those are in doubt. The send's
//! id travels as a variable, which its events carry back. Its own tracking is switched off: links and pixel are ours.

use base64::{Engine, engine::general_purpose::STANDARD};
use reqwest::Method;
use secrecy::{ExposeSecret, SecretString};

use super::{
    Api, ApiCall, HttpRequest, UnsupportedMessage,
    exchange::HttpReply,
    reply_meaning::{self, ACCOUNT, ADDRESS, RATE, SENDER, UNKNOWN, refusal},
};
use crate::provider::{ConnectionFault, ConnectionSettings, OutgoingMessage, Refused};

/// An account and the domain it sends for.
pub(crate) struct Mailgun {
    domain: String,
    key: SecretString,
}

impl Mailgun {
    pub fn new(settings: &ConnectionSettings, key: SecretString) -> Result<Self, ConnectionFault> {
        let domain = settings.domain.as_deref().ok_or(ConnectionFault::Missing("domain"))?;
        // It becomes part of a path.
        let domain = schemas::address::canonical_domain(domain).ok_or(ConnectionFault::Invalid("domain"))?;
        Ok(Self { domain, key })
    }

    fn authorization(&self) -> (&'static str, String) {
        ("authorization", format!("Basic {}", STANDARD.encode(format!("api:{}", self.key.expose_secret()))))
    }
}

impl Api for Mailgun {
    fn request(&self, call: &ApiCall<'_>, outgoing: &OutgoingMessage<'_>) -> Result<HttpRequest, UnsupportedMessage> {
        let send_id = outgoing.send_id.to_string();
        let fields = [
            ("to", outgoing.envelope.to.as_str()),
            ("o:tracking", "no"),
            ("o:tracking-clicks", "no"),
            ("o:tracking-opens", "no"),
            ("v:postrider-send", &send_id),
        ];
        // A fresh random text: a message cannot contain it but by chance.
        let boundary = format!("form-{}", uuid::Uuid::new_v4().simple());
        let mut body = Vec::with_capacity(outgoing.message.as_bytes().len() + outgoing.signature.len() + 1024);
        for (name, value) in fields {
            let part = format!("--{boundary}\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n");
            body.extend_from_slice(part.as_bytes());
        }
        let head = format!(
            "--{boundary}\r\nContent-Disposition: form-data; name=\"message\"; filename=\"message.eml\"\r\n\
             Content-Type: message/rfc822\r\n\r\n"
        );
        body.extend_from_slice(head.as_bytes());
        body.extend_from_slice(outgoing.signature.as_bytes());
        body.extend_from_slice(outgoing.message.as_bytes());
        body.extend_from_slice(format!("\r\n--{boundary}--\r\n").as_bytes());
        let headers = vec![self.authorization(), ("content-type", format!("multipart/form-data; boundary={boundary}"))];
        let url = call.url(&format!("/v3/{}/messages.mime", self.domain));
        Ok(HttpRequest { method: Method::POST, url, headers, body })
    }

    fn interpret_reply(&self, reply: &HttpReply) -> Result<Option<String>, Refused> {
        let words = reply.text("/message").unwrap_or_default();
        let decision = match reply.status {
            200 => return reply_meaning::accepted(reply, "/id"),
            429 => RATE,
            402 => ACCOUNT,
            // "Free accounts are for test purposes only", "Domain … is not allowed to send: …"
            403 => ACCOUNT,
            400 if words.contains("'from' parameter") => SENDER,
            400 if words.contains("'to' parameter") || words.contains("not a valid address") => ADDRESS,
            500..=599 => UNKNOWN,
            _ => return Err(reply_meaning::by_status(reply, words, false)),
        };
        Err(refusal(reply, decision, words))
    }

    fn ping(&self, call: &ApiCall<'_>) -> HttpRequest {
        call.get(&format!("/v3/domains/{}", self.domain), vec![self.authorization()])
    }
}
