//! HTTP requests to URLs that customers set, protected against SSRF.
//!
//! A URL is checked twice: as text when it is stored and before each request ([`TargetRules`]), and in the connector, after
//! resolution, for the exact address to dial. Nothing is resolved again between that check and the dial, so a name server cannot
//! change its answer in between. Redirects are not followed; proxies of the environment are not used. An open connection was
//! checked when it was opened.

mod address;
mod connect;
pub mod dns;
mod error;
mod settings;
mod target;
pub mod tls;

use std::{num::IntErrorKind, path::PathBuf, sync::Arc, time::Duration};

use bytes::{Bytes, BytesMut};
use chrono::{DateTime, Utc};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::{
    client::legacy::Client,
    rt::{TokioExecutor, TokioTimer},
};
use thiserror::Error;
use tokio::time::Instant;
use tokio_rustls::TlsConnector;
use url::Url;

pub use error::OutboundError;
pub use settings::{OutboundSettings, OwnListeners};
pub use target::{TargetFault, TargetRules, URL_MAX_BYTES};

use crate::trace::TraceContext;
use connect::{Connector, ConnectorSettings, Proven};

/// Idle connections kept per host, and for how long.
const IDLE_PER_HOST: usize = 8;
const IDLE_MAX: Duration = Duration::from_secs(60);
/// Timeout for DNS, TCP and TLS together.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The most repeats on closed connections: every idle connection may have been closed.
const REPEATS_MAX: usize = IDLE_PER_HOST;
/// The longest head of a response.
const HEAD_MAX_BYTES: usize = 32 * 1024;
const HEADERS_MAX: usize = 100;

/// Why the client cannot be set up. Shown at start.
#[derive(Debug, Error)]
pub enum SetupError {
    /// No DNS servers are given and the system's cannot be read.
    #[error("the DNS resolver cannot be set up")]
    Resolver,
    /// The cipher library refuses.
    #[error("TLS cannot be set up")]
    Tls,
    /// The file with additional certificate authorities cannot be read.
    #[error("cannot read certificates from {0}")]
    CaFile(PathBuf),
}

/// Limits of one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutboundLimits {
    /// Timeout from the DNS lookup to the last byte of the body.
    pub timeout: Duration,
    /// The most bytes of the body that are read.
    pub body_max_bytes: usize,
}

impl Default for OutboundLimits {
    /// The limits of webhooks.
    fn default() -> Self {
        Self { timeout: Duration::from_secs(15), body_max_bytes: 64 * 1024 }
    }
}

/// The response of a host.
#[derive(Debug, Clone)]
pub struct OutboundAnswer {
    /// The status. A redirect is not followed.
    pub status: StatusCode,
    /// Its headers.
    pub headers: HeaderMap,
    /// The body, or its beginning if it is longer or did not arrive in time.
    pub body: Bytes,
}

/// The wait that `Retry-After` asks for, in seconds or as a date; zero if the date is past.
#[must_use]
pub fn retry_after(headers: &HeaderMap, now: DateTime<Utc>) -> Option<Duration> {
    let text = headers.get(header::RETRY_AFTER)?.to_str().ok()?.trim();
    match text.parse::<u32>() {
        Ok(seconds) => return Some(Duration::from_secs(seconds.into())),
        // Longer than anything is waited for, and not the same as no wait.
        Err(error) if *error.kind() == IntErrorKind::PosOverflow => return Some(Duration::from_secs(u32::MAX.into())),
        Err(_) => {}
    }
    let until = DateTime::parse_from_rfc2822(text).ok()?;
    Some(until.signed_duration_since(now).to_std().unwrap_or_default())
}

/// The HTTP client for customers' URLs. Cheap to clone; clones share their connections.
#[derive(Clone)]
pub struct Outbound {
    client: Client<Connector, Full<Bytes>>,
    connector: Arc<ConnectorSettings>,
}

impl std::fmt::Debug for Outbound {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Outbound").field("rules", &self.connector.rules).finish_non_exhaustive()
    }
}

impl Outbound {
    /// A client with these settings. Must be called inside a Tokio runtime.
    pub fn new(settings: &OutboundSettings) -> Result<Self, SetupError> {
        let connector = Arc::new(ConnectorSettings {
            rules: settings.rules(),
            own_listeners: settings.own_listeners.clone(),
            resolver: dns::host_resolver(&settings.dns_servers).map_err(|_| SetupError::Resolver)?,
            tls: TlsConnector::from(Arc::new(tls::config(settings.webhook_ca_file.as_deref())?)),
            connect_timeout: CONNECT_TIMEOUT,
        });
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_MAX)
            .pool_max_idle_per_host(IDLE_PER_HOST)
            .http1_max_buf_size(HEAD_MAX_BYTES)
            .http1_max_headers(HEADERS_MAX)
            .build(Connector(Arc::clone(&connector)));
        Ok(Self { client, connector })
    }

    /// The rules for URLs.
    #[must_use]
    pub fn rules(&self) -> &TargetRules {
        &self.connector.rules
    }

    /// Posts a body. Sets host, length, trace context and, unless given, user agent. A receiver may get a request twice: if an open
    /// connection closes when it is reused, the request is repeated on another one.
    /// Every status is an answer.
    pub async fn post(
        &self,
        url: &Url,
        headers: HeaderMap,
        body: Bytes,
        limits: OutboundLimits,
    ) -> Result<OutboundAnswer, OutboundError> {
        self.exchange(Method::POST, url, headers, body, limits).await
    }

    /// Sends a GET request.
    /// Every status is an answer.
    pub async fn get(
        &self,
        url: &Url,
        headers: HeaderMap,
        limits: OutboundLimits,
    ) -> Result<OutboundAnswer, OutboundError> {
        self.exchange(Method::GET, url, headers, Bytes::new(), limits).await
    }

    async fn exchange(
        &self,
        method: Method,
        url: &Url,
        mut headers: HeaderMap,
        body: Bytes,
        limits: OutboundLimits,
    ) -> Result<OutboundAnswer, OutboundError> {
        self.connector.rules.check(url)?;
        headers
            .entry(header::USER_AGENT)
            .or_insert(HeaderValue::from_static(concat!("postrider/", env!("CARGO_PKG_VERSION"))));
        for (name, value) in TraceContext::current().iter().flat_map(TraceContext::headers) {
            // The values are plain ASCII.
            if let Ok(value) = HeaderValue::try_from(value) {
                headers.insert(name, value);
            }
        }
        let request = Request::builder().method(method).uri(url.as_str()).body(Full::new(body));
        let mut request = request.map_err(|_| TargetFault::Malformed)?;
        *request.headers_mut() = headers;
        let deadline = Instant::now() + limits.timeout;
        let response = tokio::time::timeout_at(deadline, self.request(request));
        let response = response.await.unwrap_or(Err(OutboundError::TimedOut))?;
        Ok(read(response, deadline, limits.body_max_bytes).await)
    }

    async fn request(&self, request: Request<Full<Bytes>>) -> Result<Response<Incoming>, OutboundError> {
        let mut repeats = 0;
        loop {
            match self.client.request(request.clone()).await {
                Ok(response) => {
                    if let Some(proven) = response.extensions().get::<Proven>() {
                        proven.prove();
                    }
                    return Ok(response);
                }
                // Receivers close idle connections at any time (Node's after 5 s): that is not a failed attempt.
                Err(error)
                    if repeats < REPEATS_MAX
                        && classify_error(&error) == OutboundError::ConnectionLost
                        && was_on_proven_connection(&error) =>
                {
                    repeats += 1;
                }
                Err(error) => return Err(classify_error(&error)),
            }
        }
    }
}

/// True if the error happened on a connection that had carried a response before.
fn was_on_proven_connection(error: &hyper_util::client::legacy::Error) -> bool {
    let mut extensions = http::Extensions::new();
    if let Some(connected) = error.connect_info() {
        connected.get_extras(&mut extensions);
    }
    extensions.get::<Proven>().is_some_and(Proven::is_proven)
}

/// Reads the body up to the limit. The status alone decides the result: a body that breaks off or never ends changes nothing, and
/// its connection is closed.
async fn read(response: Response<Incoming>, deadline: Instant, most: usize) -> OutboundAnswer {
    let (head, mut body) = response.into_parts();
    let mut read = BytesMut::new();
    while let Ok(Some(Ok(frame))) = tokio::time::timeout_at(deadline, body.frame()).await {
        let Ok(data) = frame.into_data() else { continue };
        let room = most - read.len();
        read.extend_from_slice(&data[..data.len().min(room)]);
        if data.len() > room {
            break;
        }
    }
    OutboundAnswer { status: head.status, headers: head.headers, body: read.freeze() }
}

/// What the client's error says: ours from the connector, or hyper's.
fn classify_error(error: &(dyn std::error::Error + 'static)) -> OutboundError {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(ours) = error.downcast_ref::<OutboundError>() {
            return *ours;
        }
        match error.downcast_ref::<hyper::Error>() {
            Some(error) if error.is_parse_too_large() => return OutboundError::AnswerTooLarge,
            Some(error) if error.is_parse() => return OutboundError::AnswerMalformed,
            _ => cause = error.source(),
        }
    }
    OutboundError::ConnectionLost
}
