//! Providers behind an HTTP API: what they share. A provider itself is an [`Api`]: how a mail becomes a request, and what its
//! answers mean, both without input or output.

mod client;
mod exchange;
mod mailgun;
mod mime;
mod postmark;
mod resend;
mod sendgrid;
mod ses;
mod sigv4;
mod verdict;

use chrono::{DateTime, Utc};
use reqwest::Method;
use url::Url;

pub(super) use self::{
    client::HttpProvider, mailgun::Mailgun, postmark::Postmark, resend::Resend, sendgrid::Sendgrid, ses::Ses,
};
use self::{exchange::Reply, verdict::Verdict};
use super::{OutgoingMessage, PingFault, ProviderKind, Signing};

/// A request, complete and signed.
#[derive(Clone)]
pub(crate) struct HttpRequest {
    pub method: Method,
    pub url: Url,
    pub headers: Vec<(&'static str, String)>,
    pub body: Vec<u8>,
}

/// Headers hold credentials: a request prints where it goes.
impl std::fmt::Debug for HttpRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {} ({} octets)", self.method, self.url, self.body.len())
    }
}

impl HttpRequest {
    fn get(base: &Url, path: &str, headers: Vec<(&'static str, String)>) -> Self {
        Self { method: Method::GET, url: at(base, path), headers, body: Vec::new() }
    }

    fn json(base: &Url, path: &str, mut headers: Vec<(&'static str, String)>, body: &serde_json::Value) -> Self {
        headers.push(("content-type", "application/json".to_owned()));
        Self { method: Method::POST, url: at(base, path), headers, body: body.to_string().into_bytes() }
    }
}

/// The base's address with this path.
fn at(base: &Url, path: &str) -> Url {
    let mut url = base.clone();
    url.set_path(path);
    url
}

/// The message cannot be put into this provider's request: it will be so for every attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the message does not fit the provider's request")]
pub(crate) struct Unfit;

/// One provider's API.
pub(crate) trait Api: Send + Sync + 'static {
    fn kind(&self) -> ProviderKind;

    fn signing(&self) -> Signing;

    /// Whether a repeated request is answered as the first was, and sends nothing twice. Then an unclear outcome is asked for
    /// again at once; without it, it stays unknown.
    fn is_idempotent(&self) -> bool {
        false
    }

    /// The request that sends a mail.
    ///
    /// # Errors
    /// [`Unfit`].
    fn request(&self, base: &Url, parcel: &OutgoingMessage<'_>, now: DateTime<Utc>) -> Result<HttpRequest, Unfit>;

    /// What the answer to it means.
    fn judge(&self, reply: &Reply) -> Verdict;

    /// A cheap request that only an authenticated caller is answered.
    fn ping(&self, base: &Url, now: DateTime<Utc>) -> HttpRequest;

    /// What the answer to a ping means, where it is not the usual.
    fn judge_ping(&self, reply: &Reply) -> Result<(), PingFault> {
        verdict::ping(reply)
    }
}

/// The signature a request to SES must carry, from what arrived: for the stand-in that checks it.
#[cfg(test)]
pub(super) fn signed_by(
    (id, key, region): (&str, &str, &str),
    path: &str,
    host: &str,
    date: &str,
    body: &[u8],
) -> String {
    let signer = sigv4::Signer {
        access_key_id: id.to_owned(),
        secret_access_key: key.into(),
        session_token: None,
        region: region.to_owned(),
        service: "ses",
    };
    let headers = [("content-type", "application/json"), ("host", host), ("x-amz-date", date)];
    let request = sigv4::Canonical { method: "POST", path, query: "", headers: &headers, body };
    let at = chrono::NaiveDateTime::parse_from_str(date, "%Y%m%dT%H%M%SZ").unwrap_or_default().and_utc();
    signer.authorization(&request, at)
}
