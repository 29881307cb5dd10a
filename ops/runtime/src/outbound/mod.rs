//! HTTP to addresses that customers name, such that nobody can be reached through us who should not be.
//!
//! An address is judged twice: as text when it is stored and before each request ([`Rules`]), and in the connector, after
//! resolution, on the very address that is dialled. Between that check and the dial nothing is resolved again, so a name server
//! that changes its answer gains nothing. Redirects are answers like any other; proxies of the environment are not used.
//! A connection that is kept open was checked when it was made.

mod address;
mod connect;
mod error;
mod resolve;
mod settings;
mod target;
pub mod tls;

use std::{path::PathBuf, sync::Arc, time::Duration};

use bytes::{Bytes, BytesMut};
use chrono::{DateTime, Utc};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri, header};
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
pub use target::{Rules, TargetFault, URL_MAX_BYTES};

use crate::trace::TraceContext;
use connect::{Connector, Proven, Way};
use resolve::Resolver;

/// Open connections that are kept per host, and for how long.
const IDLE_PER_HOST: usize = 8;
const IDLE_MAX: Duration = Duration::from_secs(60);
/// For name, connection and TLS together.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Connections found closed before a new one is a failure, too: every one that is kept may be.
const REPEATS_MAX: usize = IDLE_PER_HOST;
/// The longest head of an answer.
const HEAD_MAX_BYTES: usize = 32 * 1024;
const HEADERS_MAX: usize = 100;

/// The client cannot be set up. Shown at start.
#[derive(Debug, Error)]
pub enum SetupError {
    /// No DNS servers are given and the system's cannot be read.
    #[error("the DNS resolver cannot be set up")]
    Resolver,
    /// The cipher library refuses.
    #[error("TLS cannot be set up")]
    Tls,
    /// The file with more authorities.
    #[error("webhook-ca-file: cannot read certificates from {0}")]
    CaFile(PathBuf),
}

/// How much of an answer is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// From the first step to the last byte.
    pub timeout: Duration,
    /// What is read of the body; the rest is left.
    pub body_max_bytes: usize,
}

impl Default for Limits {
    /// As API.md §7 has it for webhooks.
    fn default() -> Self {
        Self { timeout: Duration::from_secs(15), body_max_bytes: 64 * 1024 }
    }
}

/// What was answered.
#[derive(Debug, Clone)]
pub struct Answer {
    /// The status, whatever it is: also a redirect, which is not followed.
    pub status: StatusCode,
    /// Its headers.
    pub headers: HeaderMap,
    /// The body, or its beginning.
    pub body: Bytes,
    /// Whether there was more of it, or it did not come in time.
    pub is_cut: bool,
}

impl Answer {
    /// How long `Retry-After` asks to wait, given in seconds or as a date.
    #[must_use]
    pub fn retry_after(&self, now: DateTime<Utc>) -> Option<Duration> {
        retry_after(&self.headers, now)
    }
}

/// How long `Retry-After` asks to wait, given in seconds or as a date. Not at all, if the date is past.
#[must_use]
pub fn retry_after(headers: &HeaderMap, now: DateTime<Utc>) -> Option<Duration> {
    let text = headers.get(header::RETRY_AFTER)?.to_str().ok()?.trim();
    if let Ok(seconds) = text.parse::<u32>() {
        return Some(Duration::from_secs(seconds.into()));
    }
    let until = DateTime::parse_from_rfc2822(text).ok()?;
    Some(until.signed_duration_since(now).to_std().unwrap_or_default())
}

/// The client. Cheap to clone; clones share their connections.
#[derive(Clone)]
pub struct Outbound {
    client: Client<Connector, Full<Bytes>>,
    way: Arc<Way>,
}

impl std::fmt::Debug for Outbound {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Outbound").field("rules", &self.way.rules).finish_non_exhaustive()
    }
}

impl Outbound {
    /// A client under these settings. Must be called within a runtime.
    ///
    /// # Errors
    /// [`SetupError`]
    pub fn new(settings: &OutboundSettings) -> Result<Self, SetupError> {
        let way = Arc::new(Way {
            rules: settings.rules(),
            own_listeners: settings.own_listeners.clone(),
            resolver: Resolver::new(&settings.dns_servers)?,
            tls: TlsConnector::from(Arc::new(tls::config(settings.webhook_ca_file.as_deref())?)),
            connect_timeout: CONNECT_TIMEOUT,
        });
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_MAX)
            .pool_max_idle_per_host(IDLE_PER_HOST)
            .http1_max_buf_size(HEAD_MAX_BYTES)
            .http1_max_headers(HEADERS_MAX)
            .build(Connector(Arc::clone(&way)));
        Ok(Self { client, way })
    }

    /// The rules it holds addresses against.
    #[must_use]
    pub fn rules(&self) -> &Rules {
        &self.way.rules
    }

    /// Posts a body. Host, length, the trace in hand and, unless given, user agent are set here. A receiver may see a request twice: when an open
    /// connection ends as it is used again, nobody can tell whether the request was heard, and it is repeated on another one.
    ///
    /// # Errors
    /// [`OutboundError`]; every status is an answer.
    pub async fn post(
        &self,
        url: &Url,
        headers: HeaderMap,
        body: Bytes,
        limits: Limits,
    ) -> Result<Answer, OutboundError> {
        self.exchange(Method::POST, url, headers, body, limits).await
    }

    /// Gets what is there.
    ///
    /// # Errors
    /// [`OutboundError`]; every status is an answer.
    pub async fn get(&self, url: &Url, headers: HeaderMap, limits: Limits) -> Result<Answer, OutboundError> {
        self.exchange(Method::GET, url, headers, Bytes::new(), limits).await
    }

    async fn exchange(
        &self,
        method: Method,
        url: &Url,
        mut headers: HeaderMap,
        body: Bytes,
        limits: Limits,
    ) -> Result<Answer, OutboundError> {
        self.way.rules.check(url)?;
        let uri: Uri = url.as_str().parse().map_err(|_| TargetFault::Malformed)?;
        headers
            .entry(header::USER_AGENT)
            .or_insert(HeaderValue::from_static(concat!("postrider/", env!("CARGO_PKG_VERSION"))));
        for (name, value) in TraceContext::current().iter().flat_map(TraceContext::headers) {
            // Read as such, or made here: plain ASCII.
            if let Ok(value) = HeaderValue::try_from(value) {
                headers.insert(name, value);
            }
        }
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = method;
        *request.uri_mut() = uri;
        *request.headers_mut() = headers;
        let deadline = Instant::now() + limits.timeout;
        let response = tokio::time::timeout_at(deadline, self.request(request))
            .await
            .map_err(|_| OutboundError::TimedOut)
            .flatten()?;
        Ok(read(response, deadline, limits.body_max_bytes).await)
    }

    async fn request(&self, request: Request<Full<Bytes>>) -> Result<Response<Incoming>, OutboundError> {
        let mut repeats = 0;
        loop {
            let error = match self.client.request(request.clone()).await {
                Ok(response) => {
                    if let Some(proven) = response.extensions().get::<Proven>() {
                        proven.prove();
                    }
                    return Ok(response);
                }
                Err(error) => error,
            };
            let why = why(&error);
            // Receivers close idle connections whenever they like, Node's after 5 s: that is no failed attempt.
            if why != OutboundError::ConnectionLost || repeats == REPEATS_MAX || !was_proven(&error) {
                return Err(why);
            }
            repeats += 1;
        }
    }
}

/// Whether it was on a connection that had served before.
fn was_proven(error: &hyper_util::client::legacy::Error) -> bool {
    let mut extensions = http::Extensions::new();
    if let Some(connected) = error.connect_info() {
        connected.get_extras(&mut extensions);
    }
    extensions.get::<Proven>().is_some_and(Proven::is_proven)
}

/// Reads the body as far as it is wanted. The status has decided: a body that breaks off or never ends changes nothing, and what
/// is left of it is closed with its connection.
async fn read(response: Response<Incoming>, deadline: Instant, most: usize) -> Answer {
    let (head, mut body) = response.into_parts();
    let mut read = BytesMut::new();
    let mut is_cut = false;
    loop {
        match tokio::time::timeout_at(deadline, body.frame()).await {
            Ok(None) => break,
            Ok(Some(Ok(frame))) => {
                let Ok(data) = frame.into_data() else { continue };
                let room = most - read.len();
                read.extend_from_slice(&data[..data.len().min(room)]);
                if data.len() > room {
                    is_cut = true;
                    break;
                }
            }
            Ok(Some(Err(_))) | Err(_) => {
                is_cut = true;
                break;
            }
        }
    }
    Answer { status: head.status, headers: head.headers, body: read.freeze(), is_cut }
}

/// What the client's error says: ours from the connector, or hyper's.
fn why(error: &(dyn std::error::Error + 'static)) -> OutboundError {
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
