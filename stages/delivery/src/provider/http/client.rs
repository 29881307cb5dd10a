//! An API behind a client of its own: places, time limits, repeats.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use async_trait::async_trait;
use chrono::Utc;
use reqwest::redirect;
use runtime::outbound::tls;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use url::Url;

use super::{
    Api, HttpRequest,
    exchange::{NoReply, exchange},
    verdict::{self, UNKNOWN, Verdict},
};
use crate::provider::{
    Answer, ConnectionFault, OutgoingMessage, PingFault, PreparedSend, Provider, ProviderKind, Reach, Refused,
    SendResult, Signing,
};
use smtp::classify::{Class, Decision, Outcome, Scope};

/// How often an idempotent request is repeated when its outcome is unclear.
const REPEATS: u32 = 2;
/// The pause before that, times the number of the repeat.
const REPEAT_PAUSE: Duration = Duration::from_millis(500);

/// A provider's API and the way there.
pub(crate) struct HttpProvider {
    shared: Arc<Shared>,
}

struct Shared {
    api: Box<dyn Api>,
    base: Url,
    client: reqwest::Client,
    places: Arc<Semaphore>,
}

impl HttpProvider {
    /// Makes the client. No redirects: mail and credentials go where they were sent to, or nowhere.
    ///
    /// # Errors
    /// [`ConnectionFault::Setup`].
    pub fn new(api: Box<dyn Api>, base: Url, reach: &Reach) -> Result<Self, ConnectionFault> {
        let client = reqwest::Client::builder()
            .tls_backend_preconfigured(tls::config(None).map_err(|_| ConnectionFault::Setup)?)
            .redirect(redirect::Policy::none())
            .no_proxy()
            .connect_timeout(reach.connect_timeout)
            .timeout(reach.timeout)
            .pool_max_idle_per_host(reach.connections)
            .user_agent(concat!("postrider/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(|_| ConnectionFault::Setup)?;
        let places = Arc::new(Semaphore::new(reach.connections.max(1)));
        Ok(Self { shared: Arc::new(Shared { api, base, client, places }) })
    }
}

#[async_trait]
impl Provider for HttpProvider {
    fn kind(&self) -> ProviderKind {
        self.shared.api.kind()
    }

    fn signing(&self) -> Signing {
        self.shared.api.signing()
    }

    async fn open(&self, parcel: &OutgoingMessage<'_>) -> Result<Box<dyn PreparedSend>, Refused> {
        // The semaphore is never closed.
        let place = self.shared.places.clone().acquire_owned().await;
        let Ok(place) = place else {
            return Err(Refused::of(Decision::defer(Class::Temporary, Scope::Connection)));
        };
        match self.shared.api.request(&self.shared.base, parcel, Utc::now()) {
            Ok(request) => Ok(Box::new(Placed { shared: self.shared.clone(), request, _place: place })),
            Err(unfit) => {
                Err(Refused { answer: Answer::text(&unfit.to_string()), ..Refused::of(Decision::fail(Class::Content)) })
            }
        }
    }

    async fn ping(&self) -> Result<(), PingFault> {
        let request = self.shared.api.ping(&self.shared.base, Utc::now());
        match exchange(&self.shared.client, request).await {
            Ok(reply) => self.shared.api.judge_ping(&reply),
            Err(why) => Err(verdict::no_ping(why)),
        }
    }
}

/// A request with its place.
struct Placed {
    shared: Arc<Shared>,
    request: HttpRequest,
    _place: OwnedSemaphorePermit,
}

#[async_trait]
impl PreparedSend for Placed {
    async fn send(self: Box<Self>, _: &OutgoingMessage<'_>, begin_by: Instant) -> Result<SendResult, Refused> {
        if Instant::now() > begin_by {
            return Ok(SendResult::NotBegun);
        }
        let repeats = if self.shared.api.is_idempotent() { REPEATS } else { 0 };
        // What is in doubt stays in doubt: a repeat that cannot connect says nothing about the request before it.
        let mut doubt = None;
        for repeat in 0..=repeats {
            tokio::time::sleep(REPEAT_PAUSE * repeat).await;
            match self.shared.exchange(&self.request).await {
                Ok(handover) => return Ok(handover),
                Err(refused) if refused.decision.outcome == Outcome::Unknown => doubt = Some(refused),
                Err(refused) => return Err(doubt.filter(|_| !is_final(&refused)).unwrap_or(refused)),
            }
        }
        Err(doubt.unwrap_or_else(|| Refused::of(UNKNOWN)))
    }
}

/// Whether a refusal after a doubt settles it: the provider refused the mail itself, so the request before was refused, too.
fn is_final(refused: &Refused) -> bool {
    matches!(refused.decision.outcome, Outcome::Fail { .. })
}

impl Shared {
    async fn exchange(&self, request: &HttpRequest) -> Result<SendResult, Refused> {
        let reply = match exchange(&self.client, request.clone()).await {
            Ok(reply) => reply,
            Err(why) => return Err(verdict::no_reply(why)),
        };
        match self.api.judge(&reply) {
            Verdict::Taken { id } => Ok(SendResult::Taken {
                provider_message_id: id,
                answer: Answer::text(&format!("{} accepted by {}", reply.status, self.api.kind().as_str())),
            }),
            Verdict::Refused(refused) => Err(refused),
            Verdict::InProgress => Err(verdict::no_reply(NoReply::Timeout)),
        }
    }
}
