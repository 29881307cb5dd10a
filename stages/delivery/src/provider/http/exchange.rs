//! One HTTP request and its reply, bounded in time and size. A failure says whether the request may have left.

use std::time::Duration;

use chrono::Utc;
use reqwest::header::HeaderMap;
use runtime::outbound::retry_after;
use runtime::trace::TraceContext;
use serde_json::Value;

use super::HttpRequest;

/// The most bytes of a reply's body that are read.
const BODY_MAX: usize = 64 * 1024;

/// The reply of a provider's API.
#[derive(Debug, Clone)]
pub(crate) struct HttpReply {
    pub status: u16,
    pub headers: HeaderMap,
    /// Its body as JSON; null when it is none, was cut off, or is too long.
    pub body: Value,
}

impl HttpReply {
    /// The text of a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// The string at a JSON pointer in the body.
    pub fn text(&self, pointer: &str) -> Option<&str> {
        self.body.pointer(pointer).and_then(Value::as_str)
    }

    /// The wait the provider asks for: `Retry-After` in seconds or as a date.
    pub fn retry_after(&self) -> Option<Duration> {
        retry_after(&self.headers, Utc::now()).filter(|wait| !wait.is_zero())
    }
}

/// Why there is no reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoReply {
    /// No connection: nothing left.
    Unreachable,
    /// No connection in time: nothing left.
    ConnectTimeout,
    /// No trusted encryption: nothing left.
    Tls,
    /// The request left, or may have, and no answer came in time.
    Timeout,
    /// The connection broke after the request left, or may have.
    BrokenConnection,
    /// The request could not be made.
    Unsendable,
}

/// Sends a request and reads its answer. The current trace context goes along in headers that no signature covers.
pub(super) async fn exchange(client: &reqwest::Client, request: HttpRequest) -> Result<HttpReply, NoReply> {
    let mut builder = client.request(request.method, request.url).body(request.body);
    for (name, value) in request.headers {
        builder = builder.header(name, value);
    }
    for (name, value) in TraceContext::current().iter().flat_map(TraceContext::headers) {
        builder = builder.header(name, value);
    }
    let mut response = builder.send().await.map_err(|error| no_reply(&error))?;
    let (status, headers) = (response.status().as_u16(), response.headers().clone());
    let mut body = Vec::new();
    let is_whole = loop {
        match response.chunk().await {
            Ok(Some(chunk)) if body.len() + chunk.len() <= BODY_MAX => body.extend_from_slice(&chunk),
            Ok(None) => break true,
            // The status is known all the same; what it means without a body is the provider's rule.
            Ok(Some(_)) | Err(_) => break false,
        }
    };
    let json = if is_whole { serde_json::from_slice(&body).unwrap_or_default() } else { Value::Null };
    Ok(HttpReply { status, headers, body: json })
}

fn no_reply(error: &reqwest::Error) -> NoReply {
    if error.is_builder() {
        NoReply::Unsendable
    } else if error.is_connect() && error.is_timeout() {
        NoReply::ConnectTimeout
    } else if error.is_connect() && mentions_tls(error) {
        NoReply::Tls
    } else if error.is_connect() {
        NoReply::Unreachable
    } else if error.is_timeout() {
        NoReply::Timeout
    } else {
        NoReply::BrokenConnection
    }
}

fn mentions_tls(error: &reqwest::Error) -> bool {
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        let wrapped = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
        if error.is::<rustls::Error>() || wrapped.is_some_and(|inner| inner.is::<rustls::Error>()) {
            return true;
        }
        cause = error.source();
    }
    false
}
