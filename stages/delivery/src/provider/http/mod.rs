//! Providers behind an HTTP API: the part they share. Each provider implements [`Api`]: it builds the request for a mail and
//! interprets the reply, both without I/O.

mod client;
mod exchange;
mod mailgun;
mod mime;
mod postmark;
mod reply_meaning;
mod resend;
mod sendgrid;
mod ses;
pub(super) mod sigv4;

use chrono::{DateTime, Utc};
use reqwest::Method;
use secrecy::{ExposeSecret, SecretString};
use serde_json::Value;
use url::Url;

use self::exchange::HttpReply;
pub(super) use self::{
    client::HttpProvider, mailgun::Mailgun, postmark::Postmark, resend::Resend, sendgrid::Sendgrid, ses::Ses,
};
use super::{OutgoingMessage, PingFault, Refused};

/// A request, complete and signed.
#[derive(Clone)]
pub(crate) struct HttpRequest {
    pub method: Method,
    pub url: Url,
    pub headers: Vec<(&'static str, String)>,
    pub body: Vec<u8>,
}

/// Prints method, URL and size only: headers contain credentials.
impl std::fmt::Debug for HttpRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {} ({} octets)", self.method, self.url, self.body.len())
    }
}

/// Where a provider's API is, and when it is called.
pub(crate) struct ApiCall<'a> {
    base: &'a Url,
    now: DateTime<Utc>,
}

impl ApiCall<'_> {
    /// The URL with this path.
    fn url(&self, path: &str) -> Url {
        let mut url = self.base.clone();
        url.set_path(path);
        url
    }

    fn get(&self, path: &str, headers: Vec<(&'static str, String)>) -> HttpRequest {
        HttpRequest { method: Method::GET, url: self.url(path), headers, body: Vec::new() }
    }

    fn post(&self, path: &str, mut headers: Vec<(&'static str, String)>, body: Value) -> HttpRequest {
        headers.push(("content-type", "application/json".to_owned()));
        let body = without_nulls(body).to_string().into_bytes();
        HttpRequest { method: Method::POST, url: self.url(path), headers, body }
    }
}

/// The header with an account's key.
fn bearer(key: &SecretString) -> (&'static str, String) {
    ("authorization", format!("Bearer {}", key.expose_secret()))
}

/// A field without a value is left out, and not sent as null.
fn without_nulls(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let set = fields.into_iter().filter(|(_, value)| !value.is_null());
            set.map(|(name, value)| (name, without_nulls(value))).collect()
        }
        Value::Array(items) => items.into_iter().map(without_nulls).collect(),
        other => other,
    }
}

/// A list, or null if it is empty.
fn list<T, V: Into<Value>>(items: &[T], value: impl Fn(&T) -> V) -> Value {
    if items.is_empty() { Value::Null } else { items.iter().map(value).collect() }
}

/// The message cannot be expressed in this provider's request. Every further attempt would fail the same way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the message does not fit the provider's request")]
pub(crate) struct UnsupportedMessage;

/// One provider's API.
pub(crate) trait Api: Send + Sync + 'static {
    /// True if the provider answers a repeated request as the first one and sends nothing twice. An unknown outcome is then
    /// resolved by repeating the request at once; otherwise it stays unknown.
    fn is_idempotent(&self) -> bool {
        false
    }

    /// The request that sends a mail.
    ///
    /// # Errors
    /// [`UnsupportedMessage`].
    fn request(&self, call: &ApiCall<'_>, outgoing: &OutgoingMessage<'_>) -> Result<HttpRequest, UnsupportedMessage>;

    /// The provider's id of the mail, from a reply to [`Self::request`] that accepts it.
    ///
    /// # Errors
    /// [`Refused`]: the provider refused the mail, or the outcome is unknown.
    fn interpret_reply(&self, reply: &HttpReply) -> Result<Option<String>, Refused>;

    /// A cheap request that the provider answers to authenticated callers only.
    fn ping(&self, call: &ApiCall<'_>) -> HttpRequest;

    /// What a reply to [`Self::ping`] means. The default reads the status alone.
    fn interpret_ping(&self, reply: &HttpReply) -> Result<(), PingFault> {
        reply_meaning::ping(reply)
    }
}
