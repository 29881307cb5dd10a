//! The API over NATS: request and reply, for internal systems (DESIGN §5).
//!
//! A message on `mail.v1.api.<product>.<environment>.<operation>` is the HTTP request of that operation and goes through the same router:
//! the same code validates, acts and answers. Who publishes is what the subject says, which the server's permissions hold every
//! user to; `Idempotency-Key` is what HTTP's is (or else `Nats-Msg-Id`). The service is found with `$SRV.INFO` under the name `postrider`.

mod call;
pub(crate) mod calls;
pub(crate) mod feed;
pub(crate) mod intake;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use async_nats::service::{ServiceExt, endpoint::Endpoint};
use axum::{Router, body};
use bytes::Bytes;
use futures::StreamExt;
use http::StatusCode;
use runtime::trace::{self, TraceContext};
use serde::Serialize;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

use self::{
    call::{CallMode, Publisher},
    calls::{ALIASES, TenantResolved, is_offered},
};
use crate::{
    documents::{asyncapi, openapi},
    pipeline::{ApiReply, Operation, TenantClaim, error::ApiError, find_tenant, json},
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
const ERROR: &str = "Nats-Service-Error";
const ERROR_CODE: &str = "Nats-Service-Error-Code";
/// Longest answer: what one message of the bus may carry.
const ANSWER_MAX_BYTES: usize = 8 * 1024 * 1024;
/// Pause before the service is announced again when NATS was away.
const RETRY: std::time::Duration = std::time::Duration::from_secs(1);

/// The answer to a call.
struct CallAnswer {
    status: StatusCode,
    body: Bytes,
    /// The code of a refusal.
    error: Option<String>,
}

/// Offers the API on the bus until shut down. NATS may come later, or go and come back.
pub(crate) async fn serve(ingress: Arc<Ingress>, shutdown: CancellationToken) {
    let offered = async {
        loop {
            match offer(&ingress).await {
                Ok(()) => tracing::info!("the bus closed the service; it is offered again"),
                Err(error) => tracing::warn!(%error, "the API is not offered on the bus yet"),
            }
            tokio::time::sleep(RETRY).await;
        }
    };
    shutdown.run_until_cancelled(offered).await;
}

async fn offer(ingress: &Arc<Ingress>) -> Result<(), async_nats::Error> {
    let service = ingress.bus.client().service_builder().description(DESCRIPTION).start(NAME, openapi::VERSION).await?;
    let api = Arc::new(BusApi {
        router: routes::router(Arc::clone(ingress)),
        ingress: Arc::clone(ingress),
        permits: Arc::new(Semaphore::new(ingress.settings.bus_calls.clamp(1, Semaphore::MAX_PERMITS))),
        products: ProductCalls::new(ingress.settings.bus_calls_per_product),
        prefix: ingress.bus.prefixed(SUBJECT),
    });
    let mut listeners = futures::stream::FuturesUnordered::new();
    for (name, call) in calls() {
        let endpoint = service
            .endpoint_builder()
            .name(name.replace('.', "-"))
            .metadata(metadata(name, &call))
            .add(format!("{}.*.*.{name}", api.prefix))
            .await?;
        listeners.push(listen(Arc::clone(&api), endpoint, call));
    }
    // Each ends when its subscription does: with the connection's end or the service's.
    listeners.next().await;
    Ok(())
}

/// What a call does.
#[derive(Debug, Clone, Copy)]
enum BusCall {
    /// An operation of the HTTP API.
    Operation(Operation),
    /// A dry run of a write: says whether it would be accepted.
    Validate,
    /// Looks up the engine's id of a tenant.
    ResolveTenant,
    /// Finds or makes a durable consumer of the product's events.
    Consume,
    /// The AsyncAPI document.
    Contract,
}

/// Everything that can be called, by name: the operations of products under their own names, and the aliases.
fn calls() -> Vec<(&'static str, BusCall)> {
    let operations: Vec<Operation> = routes::operations().iter().copied().filter(is_offered).collect();
    let mut calls: Vec<(&'static str, BusCall)> =
        operations.iter().map(|operation| ((operation.doc)().id(), BusCall::Operation(*operation))).collect();
    for (alias, id) in ALIASES {
        if alias != id
            && let Some(operation) = routes::operation(id)
        {
            calls.push((alias, BusCall::Operation(*operation)));
        }
    }
    calls.push(("validate", BusCall::Validate));
    calls.push(("tenant.resolve", BusCall::ResolveTenant));
    calls.push(("events.consumer", BusCall::Consume));
    calls.push(("asyncapi", BusCall::Contract));
    calls
}

/// The metadata of an endpoint in `$SRV.INFO`: its request schema, and where the contract has its answer.
fn metadata(name: &str, call: &BusCall) -> HashMap<String, String> {
    let mut metadata = HashMap::new();
    let mut say = |key: &str, text: String| metadata.insert(key.to_owned(), text);
    let operation = match call {
        BusCall::Operation(operation) => {
            say("http", format!("{} {}", operation.verb.as_str(), operation.path));
            (operation.doc)().id()
        }
        BusCall::Validate | BusCall::ResolveTenant | BusCall::Consume | BusCall::Contract => name,
    };
    if let Some(described) = routes::contracts().asyncapi.call(operation) {
        let component = |name: &str| format!("asyncapi.json#/components/schemas/{name}");
        say("summary", described.summary.clone());
        say("request_schema", component(&described.request.name));
        say("answer_schema", component(&described.answer.name));
        say("request", asyncapi::schema_file(&described.request).to_string());
    }
    metadata
}

struct BusApi {
    ingress: Arc<Ingress>,
    router: Router,
    permits: Arc<Semaphore>,
    products: ProductCalls,
    prefix: String,
}

/// Calls in progress of each product and environment: a product with many calls leaves capacity for the others.
#[derive(Debug, Clone)]
struct ProductCalls {
    most: usize,
    in_progress: Arc<Mutex<HashMap<String, usize>>>,
}

/// One call in progress, until dropped.
#[derive(Debug)]
struct ProductPermit {
    product: String,
    of: ProductCalls,
}

impl ProductCalls {
    fn new(most: usize) -> Self {
        Self { most: most.max(1), in_progress: Arc::default() }
    }

    /// None: the product has the most calls in progress that it may.
    fn admit(&self, product: &str) -> Option<ProductPermit> {
        let mut in_progress = self.in_progress.lock().unwrap_or_else(PoisonError::into_inner);
        let count = in_progress.entry(product.to_owned()).or_default();
        if *count >= self.most {
            return None;
        }
        *count += 1;
        Some(ProductPermit { product: product.to_owned(), of: self.clone() })
    }
}

impl Drop for ProductPermit {
    fn drop(&mut self) {
        let mut in_progress = self.of.in_progress.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = in_progress.get_mut(&self.product) {
            *count -= 1;
            // Only products with a call in progress are kept.
            if *count == 0 {
                in_progress.remove(&self.product);
            }
        }
    }
}

async fn listen(api: Arc<BusApi>, mut endpoint: Endpoint, call: BusCall) {
    while let Some(request) = endpoint.next().await {
        let own = api.products.admit(api.product_of(&request.message.subject));
        let permit = Arc::clone(&api.permits).try_acquire_owned().ok();
        let Some(permits) = own.zip(permit) else {
            answer(&request, refusal(&ApiError::unavailable().detail("too many calls at once"))).await;
            continue;
        };
        let api = Arc::clone(&api);
        let traced = TraceContext::of_message(request.message.headers.as_ref()).map(|context| context.ambient());
        tokio::spawn(trace::within(traced, async move {
            let answered = api.handle_call(&request.message, &call).await.unwrap_or_else(|error| refusal(&error));
            answer(&request, answered).await;
            drop(permits);
        }));
    }
}

async fn answer(request: &async_nats::service::Request, answer: CallAnswer) {
    let mut headers = async_nats::HeaderMap::new();
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
    /// The product and environment of a call, as its subject says.
    fn product_of<'a>(&self, subject: &'a str) -> &'a str {
        let tokens = subject.strip_prefix(self.prefix.as_str()).unwrap_or_default().trim_start_matches('.');
        let end = tokens.match_indices('.').nth(1).map_or(tokens.len(), |(end, _)| end);
        &tokens[..end]
    }

    async fn handle_call(&self, message: &async_nats::Message, call: &BusCall) -> Result<CallAnswer, ApiError> {
        let tokens = message.subject.strip_prefix(self.prefix.as_str()).and_then(|rest| rest.strip_prefix('.'));
        let (publisher, _) = tokens.and_then(Publisher::of_tokens).ok_or_else(unknown_subject)?;
        match call {
            BusCall::Operation(operation) => {
                let headers = message.headers.as_ref();
                let named = call::KEY_HEADERS.iter().find_map(|name| headers?.get(*name));
                let message_id = named.map(async_nats::HeaderValue::as_str);
                self.call_router(call::request(
                    operation,
                    &publisher,
                    &message.payload,
                    message_id,
                    CallMode::Answered,
                )?)
                .await
            }
            BusCall::Validate => {
                let (operation, body) = call::to_validate(&message.payload)?;
                let operation = routes::operation(&operation)
                    .filter(|known| known.verb.is_write() && is_offered(known))
                    .ok_or_else(|| ApiError::invalid("operation", "unknown", "is no operation that writes"))?;
                self.call_router(call::request(operation, &publisher, &body, None, CallMode::DryRun)?).await
            }
            BusCall::ResolveTenant => self.resolve(&publisher, &message.payload).await,
            BusCall::Consume => done(&feed::find_consumer(&self.ingress.bus, &publisher, &message.payload).await?),
            BusCall::Contract => Ok(CallAnswer {
                status: StatusCode::OK,
                body: routes::contracts().asyncapi.document.to_string().into(),
                error: None,
            }),
        }
    }

    /// Sends the request through the same router as HTTP.
    async fn call_router(&self, request: http::Request<body::Body>) -> Result<CallAnswer, ApiError> {
        let response = match self.router.clone().oneshot(request).await {
            Ok(response) => response,
            Err(never) => match never {},
        };
        let (parts, content) = response.into_parts();
        let body = body::to_bytes(content, ANSWER_MAX_BYTES).await.map_err(|error| ApiError::unexpected(&error))?;
        let error = (!parts.status.is_success()).then(|| code_of(&body));
        Ok(CallAnswer { status: parts.status, body, error })
    }

    async fn resolve(&self, publisher: &Publisher, payload: &[u8]) -> Result<CallAnswer, ApiError> {
        let mut fields = json::parse(payload)?;
        let claim = TenantClaim::take_from(&mut fields)?;
        if let Some(name) = fields.keys().next() {
            return Err(ApiError::invalid(name.clone(), "unknown_field", "is no field of this call"));
        }
        let caller = publisher.caller();
        let mut db = self.ingress.pool.acquire().await?;
        done(&TenantResolved { engine_tenant_id: find_tenant(&mut db, &caller, &claim).await? })
    }
}

fn done(answer: &impl Serialize) -> Result<CallAnswer, ApiError> {
    Ok(CallAnswer { status: StatusCode::OK, body: ApiReply::ok(answer)?.into_body().into(), error: None })
}

fn unknown_subject() -> ApiError {
    ApiError::new(StatusCode::NOT_FOUND, "not_found")
        .detail("the subject is mail.v1.api.<product>.<environment>.<operation>, the environment production or sandbox")
}

fn refusal(error: &ApiError) -> CallAnswer {
    CallAnswer { status: error.status, error: Some(error.code.to_string()), body: error.body().into() }
}

/// The code of an error's body.
fn code_of(body: &[u8]) -> String {
    let code = serde_json::from_slice::<serde_json::Value>(body)
        .ok()
        .and_then(|body| body["error"].as_str().map(str::to_owned));
    code.unwrap_or_else(|| "internal_error".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_products_calls_leave_capacity_for_the_others() {
        let products = ProductCalls::new(2);
        let first = [products.admit("shop.production"), products.admit("shop.production")];
        assert!(first.iter().all(Option::is_some));
        assert!(products.admit("shop.production").is_none());
        assert!(products.admit("shop.sandbox").is_some() && products.admit("rival.production").is_some());
        drop(first);
        assert!(products.admit("shop.production").is_some());
        assert!(products.in_progress.lock().unwrap_or_else(PoisonError::into_inner).is_empty());
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
