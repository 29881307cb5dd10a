//! The HTTP client of one provider connection: its concurrency limit, its time limits, and repeats of idempotent requests.

use std::time::{Duration, Instant};

use async_trait::async_trait;
use chrono::Utc;
use reqwest::redirect;
use runtime::outbound::tls;
use tokio::sync::{Semaphore, SemaphorePermit};
use url::Url;

use super::{
    Api, ApiCall, HttpRequest,
    exchange::exchange,
    reply_meaning::{self, UNKNOWN},
};
use crate::provider::{
    Answer, ClientSettings, ConnectionFault, OutgoingMessage, PingFault, PreparedSend, Provider, ProviderKind, Refused,
    SendResult, Signing,
};
use smtp::classify::{Class, ReplyDecision, ReplyOutcome, Scope};

/// How often an idempotent request is repeated when its outcome is unclear.
const REPEATS: u32 = 2;
/// The pause before that, times the number of the repeat.
const REPEAT_PAUSE: Duration = Duration::from_millis(500);

/// A provider behind an HTTP API.
pub(crate) struct HttpProvider {
    kind: ProviderKind,
    api: Box<dyn Api>,
    base: Url,
    client: reqwest::Client,
    permits: Semaphore,
}

impl HttpProvider {
    /// Makes the client. It follows no redirects: mail and credentials go to the configured host only.
    ///
    /// # Errors
    /// [`ConnectionFault::Setup`].
    pub fn new(
        kind: ProviderKind,
        api: Box<dyn Api>,
        base: Url,
        settings: &ClientSettings,
    ) -> Result<Self, ConnectionFault> {
        let client = reqwest::Client::builder()
            .tls_backend_preconfigured(tls::config(None).map_err(|_| ConnectionFault::Setup)?)
            .redirect(redirect::Policy::none())
            .no_proxy()
            .connect_timeout(settings.connect_timeout)
            .timeout(settings.timeout)
            .pool_max_idle_per_host(settings.connections)
            .user_agent(concat!("postrider/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(|_| ConnectionFault::Setup)?;
        let permits = Semaphore::new(settings.connections.max(1));
        Ok(Self { kind, api, base, client, permits })
    }

    fn call(&self) -> ApiCall<'_> {
        ApiCall { base: &self.base, now: Utc::now() }
    }

    async fn exchange(&self, request: HttpRequest) -> Result<SendResult, Refused> {
        let reply = exchange(&self.client, request).await.map_err(reply_meaning::no_reply)?;
        let provider_message_id = self.api.interpret_reply(&reply)?;
        let answer = Answer::text(&format!("{} accepted by {}", reply.status, self.kind.as_str()));
        Ok(SendResult::Accepted { provider_message_id, answer })
    }
}

#[async_trait]
impl Provider for HttpProvider {
    fn kind(&self) -> ProviderKind {
        self.kind
    }

    fn signing(&self) -> Signing {
        match self.kind {
            ProviderKind::Smtp | ProviderKind::Mailgun => Signing::Whole,
            ProviderKind::Ses => Signing::Stamped,
            ProviderKind::Postmark | ProviderKind::Sendgrid | ProviderKind::Resend => Signing::None,
        }
    }

    async fn prepare<'a>(&'a self, outgoing: &OutgoingMessage<'_>) -> Result<Box<dyn PreparedSend + 'a>, Refused> {
        // The semaphore is never closed.
        let Ok(permit) = self.permits.acquire().await else {
            return Err(Refused::of(ReplyDecision::defer(Class::Temporary, Scope::Connection)));
        };
        match self.api.request(&self.call(), outgoing) {
            Ok(request) => Ok(Box::new(PreparedRequest { provider: self, request: Some(request), _permit: permit })),
            Err(unfit) => Err(Refused {
                answer: Answer::text(&unfit.to_string()),
                ..Refused::of(ReplyDecision::fail(Class::Content))
            }),
        }
    }

    async fn ping(&self) -> Result<(), PingFault> {
        let request = self.api.ping(&self.call());
        let reply = exchange(&self.client, request).await.map_err(reply_meaning::no_ping)?;
        self.api.interpret_ping(&reply)
    }
}

/// A request that is ready to be sent, with its permit of the concurrency limit.
struct PreparedRequest<'a> {
    provider: &'a HttpProvider,
    /// Until it has been sent for the last time.
    request: Option<HttpRequest>,
    _permit: SemaphorePermit<'a>,
}

#[async_trait]
impl PreparedSend for PreparedRequest<'_> {
    async fn send(&mut self, _: &OutgoingMessage<'_>, begin_by: Instant) -> Result<SendResult, Refused> {
        if Instant::now() > begin_by {
            return Ok(SendResult::NotBegun);
        }
        let repeats = if self.provider.api.is_idempotent() { REPEATS } else { 0 };
        // An unknown outcome stays unknown: a repeat that cannot connect says nothing about the request before it.
        let mut unknown = None;
        for repeat in 0..=repeats {
            tokio::time::sleep(REPEAT_PAUSE * repeat).await;
            // It may be many megabytes: copied only if it may be needed again.
            let request = if repeat < repeats { self.request.clone() } else { self.request.take() };
            let Some(request) = request else { break };
            match self.provider.exchange(request).await {
                Ok(result) => return Ok(result),
                Err(refused) if refused.decision.outcome == ReplyOutcome::Unknown => unknown = Some(refused),
                Err(refused) => return Err(unknown.filter(|_| !is_final(&refused)).unwrap_or(refused)),
            }
        }
        Err(unknown.unwrap_or_else(|| Refused::of(UNKNOWN)))
    }
}

/// True if a refusal decides an earlier unknown outcome: the provider refused the mail itself, so it also refused the request before.
fn is_final(refused: &Refused) -> bool {
    matches!(refused.decision.outcome, ReplyOutcome::Fail { .. })
}
