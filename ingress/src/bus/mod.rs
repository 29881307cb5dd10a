//! The API over NATS: request and reply, for internal systems.
//!
//! A message on `mail.v1.api.<product>.<environment>.<operation>` is the HTTP request of that operation and goes through the same router:
//! the same code validates, acts and answers. Who publishes is what the subject says, which the server's permissions hold every
//! user to; `Idempotency-Key` is what HTTP's is (or else `Nats-Msg-Id`). The service is found with `$SRV.INFO` under the name `postrider`.

mod call;
pub(crate) mod calls;
pub(crate) mod feed;
pub(crate) mod intake;

use std::{collections::HashMap, sync::Arc, time::Duration};

use async_nats::service::{Service, ServiceExt, endpoint::Endpoint};
use axum::Router;
use bytes::Bytes;
use futures::{StreamExt, stream::FuturesUnordered};
use http::StatusCode;
use runtime::trace::{self, TraceContext};
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use self::{
    call::{CallMode, Publisher},
    calls::{ALIASES, OwnCall, TenantResolved, is_offered, operation_of_name},
};
use crate::{
    documents::{asyncapi, openapi},
    pipeline::{
        ApiReply, Operation, TenantClaim,
        body::{self, BODY_MAX_BYTES, CALL_MAX_BYTES},
        check_tenant,
        error::ApiError,
        json,
        shares::{Share, Shares},
    },
    routes,
    state::Ingress,
};

/// The service's name, for `nats micro info postrider`.
const NAME: &str = "postrider";
const DESCRIPTION: &str = "The Postrider API: every operation of the HTTP API, by request and reply";
/// The first tokens of a call's subject: product, environment and operation follow.
const SUBJECT: &str = "mail.v1.api";
/// The status HTTP would answer with.
const STATUS: &str = "Mail-Status";
/// The headers of HTTP's answer that a reply has, too.
const RETRY_AFTER: &str = "Retry-After";
const HTTP_HEADERS: [&str; 2] = [RETRY_AFTER, "Idempotency-Replayed"];
const ERROR: &str = "Nats-Service-Error";
const ERROR_CODE: &str = "Nats-Service-Error-Code";
/// Calls each ingress process carries out at once, and those of one product and environment among them. More are answered 503
/// `unavailable`.
const CALLS_MAX: usize = 256;
const CALLS_PER_PRODUCT_MAX: usize = 64;
/// Pause before the service is announced again when NATS was away.
const RETRY: Duration = Duration::from_secs(1);
/// Longest wait at shutdown for the calls that have arrived. Without NATS the end of the subscriptions is never seen.
const STOP_MAX: Duration = Duration::from_secs(1);

struct CallAnswer {
    status: StatusCode,
    /// Those of [`HTTP_HEADERS`] that it has.
    headers: async_nats::HeaderMap,
    body: Bytes,
    /// The code of a refusal.
    error: Option<String>,
}

/// Offers the API on the bus until shut down; calls that have arrived until then are carried out among the ingress's tasks. NATS may come
/// later, or go and come back.
pub(crate) async fn serve(ingress: Arc<Ingress>, shutdown: CancellationToken) {
    while let Some(offered) = shutdown.run_until_cancelled(offer(&ingress)).await {
        match offered {
            // Each listener ends when its subscription does: with the connection's end or the service's.
            Ok((service, mut listeners)) => {
                if shutdown.run_until_cancelled(listeners.next()).await.is_none() {
                    let stopped = async {
                        let _ = service.stop().await;
                        while listeners.next().await.is_some() {}
                    };
                    let _ = tokio::time::timeout(STOP_MAX, stopped).await;
                    return;
                }
                tracing::info!("the bus closed the service; it is offered again");
            }
            Err(error) => tracing::warn!(%error, "the API is not offered on the bus yet"),
        }
        shutdown.run_until_cancelled(tokio::time::sleep(RETRY)).await;
    }
}

/// Announces the service. Each of the listeners answers one kind of call.
async fn offer(
    ingress: &Arc<Ingress>,
) -> Result<(Service, FuturesUnordered<impl Future<Output = ()>>), async_nats::Error> {
    let service = ingress.bus.client().service_builder().description(DESCRIPTION).start(NAME, openapi::VERSION).await?;
    let api = Arc::new(BusApi {
        router: routes::router(Arc::clone(ingress)),
        ingress: Arc::clone(ingress),
        calls: Shares::new(CALLS_MAX, CALLS_PER_PRODUCT_MAX),
        prefix: ingress.bus.prefixed(SUBJECT),
    });
    let listeners = FuturesUnordered::new();
    for (name, call) in calls() {
        let builder = service.endpoint_builder().name(name.replace('.', "-")).metadata(metadata(&call));
        let endpoint = builder.add(format!("{}.*.*.{name}", api.prefix)).await?;
        listeners.push(listen(Arc::clone(&api), endpoint, call));
    }
    Ok((service, listeners))
}

#[derive(Debug, Clone, Copy)]
enum BusCall {
    /// An operation of the HTTP API.
    Operation(&'static Operation),
    /// A call that HTTP does not have.
    Own(OwnCall),
}

impl BusCall {
    /// The longest call, in bytes. The server takes none that is longer than [`CALL_MAX_BYTES`].
    fn max_bytes(&self) -> usize {
        match self {
            Self::Operation(operation) => operation.access.map_or(BODY_MAX_BYTES, |access| access.body_max_bytes),
            Self::Own(OwnCall::Validate) => CALL_MAX_BYTES,
            Self::Own(_) => BODY_MAX_BYTES,
        }
    }
}

/// Everything that can be called, by name: the operations of products under their own names, and the aliases.
fn calls() -> Vec<(&'static str, BusCall)> {
    let offered = routes::operations().iter().filter(|operation| is_offered(operation));
    let mut calls: Vec<(&'static str, BusCall)> =
        offered.map(|operation| (operation.doc.id, BusCall::Operation(operation))).collect();
    let named = ALIASES.iter().filter_map(|(alias, id)| Some((*alias, BusCall::Operation(routes::operation(id)?))));
    calls.extend(named);
    calls.extend(OwnCall::ALL.iter().map(|own| (own.as_str(), BusCall::Own(*own))));
    calls
}

/// The metadata of an endpoint in `$SRV.INFO`: what the call does, and where the contract has its schemas.
fn metadata(call: &BusCall) -> HashMap<String, String> {
    let mut metadata = HashMap::new();
    let mut say = |key: &str, text: String| metadata.insert(key.to_owned(), text);
    let (name, summary) = match call {
        BusCall::Operation(operation) => {
            say("http", format!("{} {}", operation.method.as_str(), operation.path));
            (operation.doc.id, operation.doc.summary)
        }
        BusCall::Own(own) => (own.as_str(), own.summary()),
    };
    let component = |name: &str| format!("asyncapi.json#/components/schemas/{name}");
    say("summary", summary.to_owned());
    say("request_schema", component(&asyncapi::request_name(name)));
    say("answer_schema", component(&asyncapi::answer_name(name)));
    metadata
}

struct BusApi {
    ingress: Arc<Ingress>,
    router: Router,
    /// Calls in progress, by product and environment.
    calls: Shares,
    prefix: String,
}

async fn listen(api: Arc<BusApi>, mut endpoint: Endpoint, call: BusCall) {
    while let Some(mut request) = endpoint.next().await {
        let payload = std::mem::take(&mut request.message.payload);
        let (permit, payload) = match api.admit(&call, &request.message.subject, payload) {
            Ok(admitted) => admitted,
            Err(error) => {
                answer(&request, refusal(&error)).await;
                continue;
            }
        };
        let called = Arc::clone(&api);
        let traced = TraceContext::of_message(request.message.headers.as_ref()).map(|context| context.ambient());
        api.ingress.tasks.spawn(trace::within(traced, async move {
            let answered =
                called.handle_call(&request.message, payload, &call).await.unwrap_or_else(|error| refusal(&error));
            answer(&request, answered).await;
            drop(permit);
        }));
    }
}

async fn answer(request: &async_nats::service::Request, answer: CallAnswer) {
    let mut headers = answer.headers;
    headers.insert(STATUS, answer.status.as_str());
    if let Some(error) = answer.error {
        headers.insert(ERROR_CODE, answer.status.as_str());
        headers.insert(ERROR, error.as_str());
    }
    if let Err(error) = request.respond_with_headers(Ok(answer.body), headers).await {
        tracing::debug!(%error, "a caller on the bus could not be answered");
    }
}

impl BusApi {
    /// Counts a call and its bytes on receipt, before anything of it is parsed.
    fn admit(&self, call: &BusCall, subject: &str, payload: Bytes) -> Result<(Share, Bytes), ApiError> {
        if payload.len() > call.max_bytes() {
            return Err(body::too_large(call.max_bytes()));
        }
        let product = call::publisher_in(subject, &self.prefix);
        let too_many = || ApiError::unavailable().detail("too many calls at once");
        let permit = self.calls.try_take(product, 1).ok_or_else(too_many)?;
        Ok((permit, body::hold_call(payload, product)?))
    }

    async fn handle_call(
        &self,
        message: &async_nats::Message,
        payload: Bytes,
        call: &BusCall,
    ) -> Result<CallAnswer, ApiError> {
        let publisher = Publisher::of_subject(&message.subject, &self.prefix);
        let publisher = publisher.ok_or_else(|| call::unknown_subject(SUBJECT, "operation"))?;
        match call {
            BusCall::Operation(operation) => {
                let message_id = call::message_id(message.headers.as_ref());
                let log = &self.ingress.request_log;
                let mode = CallMode::Answered;
                let message_id = message_id.as_deref();
                let request = call::request_or_log(log, operation, &publisher, payload, message_id, mode).await?;
                self.call_router(request).await
            }
            BusCall::Own(OwnCall::Validate) => {
                let (operation, body) = call::to_validate(&publisher, payload.clone()).await?;
                let operation = routes::operation(operation_of_name(&operation))
                    .filter(|known| known.is_write() && is_offered(known))
                    .ok_or_else(|| ApiError::invalid("operation", "unknown", "is no operation that writes"))?;
                let request = call::request(operation, &publisher, body, None, CallMode::DryRun).await?;
                let answer = self.call_router(request).await;
                // Its memory counts for the body that was made of it.
                drop(payload);
                answer
            }
            BusCall::Own(OwnCall::ResolveTenant) => self.resolve(&publisher, &payload).await,
            BusCall::Own(OwnCall::FindConsumer) => {
                done(&feed::find_consumer(&self.ingress.bus, &publisher, &payload).await?)
            }
            BusCall::Own(OwnCall::Contract) => Ok(succeeded(routes::served_contracts().asyncapi())),
        }
    }

    async fn call_router(&self, request: http::Request<axum::body::Body>) -> Result<CallAnswer, ApiError> {
        let (parts, content) = call::route(&self.router, request).await;
        let body = call::read_answer(content).await?;
        let error = (!parts.status.is_success()).then(|| ApiError::read(parts.status, &body).code.into_owned());
        let mut headers = async_nats::HeaderMap::new();
        for name in HTTP_HEADERS {
            if let Some(value) = parts.headers.get(name).and_then(|value| value.to_str().ok()) {
                headers.insert(name, value);
            }
        }
        Ok(CallAnswer { status: parts.status, headers, body, error })
    }

    async fn resolve(&self, publisher: &Publisher, payload: &[u8]) -> Result<CallAnswer, ApiError> {
        let mut fields = json::parse(payload)?;
        let claim = TenantClaim::take_from(&mut fields)?;
        if let Some(name) = fields.keys().next() {
            return Err(ApiError::invalid(name.clone(), "unknown_field", "is no field of this call"));
        }
        let caller = publisher.caller();
        let found = self.ingress.admissions.find_tenant(&caller, &claim).await?;
        done(&TenantResolved { engine_tenant_id: check_tenant(found, &caller, &claim)? })
    }
}

fn done(answer: &impl Serialize) -> Result<CallAnswer, ApiError> {
    Ok(succeeded(ApiReply::ok(answer)?.body.into()))
}

fn succeeded(body: Bytes) -> CallAnswer {
    CallAnswer { status: StatusCode::OK, headers: async_nats::HeaderMap::new(), body, error: None }
}

fn refusal(error: &ApiError) -> CallAnswer {
    let mut headers = async_nats::HeaderMap::new();
    if let Some(seconds) = error.retry_after {
        headers.insert(RETRY_AFTER, seconds.to_string());
    }
    CallAnswer { status: error.status, headers, error: Some(error.code.to_string()), body: error.body().into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_says_when_to_come_again() {
        let busy = refusal(&ApiError::busy("campaign_busy")).headers;
        assert_eq!(busy.get(RETRY_AFTER).map(async_nats::HeaderValue::as_str), Some("1"));
        assert!(refusal(&ApiError::conflict("campaign_already_sent")).headers.is_empty());
    }

    #[test]
    fn every_short_name_calls_an_operation_that_is_offered() {
        for (alias, id) in ALIASES {
            assert!(routes::operation(id).is_some_and(is_offered), "{alias} calls {id}");
        }
    }

    #[test]
    fn every_operation_of_a_product_is_offered_under_a_name_of_its_own() {
        let mut names: Vec<&str> = calls().iter().map(|(name, _)| *name).collect();
        let offered = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), offered);
        assert!(names.contains(&"recordOutcome") && !names.contains(&"getPlatformHealth"));
    }
}
