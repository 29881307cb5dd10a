//! The API over NATS: request and reply, for internal systems (DESIGN §5).
//!
//! A message on `mail.v1.api.<product>.<environment>.<operation>` is the HTTP request of that operation and takes the same road:
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
    call::{Manner, Publisher},
    calls::{ALIASES, TenantResolved, is_offered},
};
use crate::{
    documents::{asyncapi, openapi},
    pipeline::{Operation, Reply, TenantClaim, error::ApiError, find_tenant, json},
    routes,
    state::Ingress,
};

/// The service's name, for `nats micro info postrider`.
const NAME: &str = "postrider";
const DESCRIPTION: &str = "The Postrider API: every operation of the HTTP API, by request and reply";
/// Where calls come in: product, environment and operation follow.
const SUBJECT: &str = "mail.v1.api";
/// The status HTTP would answer with.
const STATUS: &str = "Mail-Status";
const ERROR: &str = "Nats-Service-Error";
const ERROR_CODE: &str = "Nats-Service-Error-Code";
/// Longest answer: what one message of the bus may carry.
const ANSWER_MAX_BYTES: usize = 8 * 1024 * 1024;
/// Pause before the service is announced again when NATS was away.
const RETRY: std::time::Duration = std::time::Duration::from_secs(1);

/// What a call is answered with.
struct Answer {
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
    let door = Arc::new(Door {
        router: routes::router(Arc::clone(ingress)),
        ingress: Arc::clone(ingress),
        places: Arc::new(Semaphore::new(ingress.settings.bus_calls.clamp(1, Semaphore::MAX_PERMITS))),
        products: PerProduct::new(ingress.settings.bus_calls_per_product),
        prefix: ingress.bus.prefixed(SUBJECT),
    });
    let mut heard = futures::stream::FuturesUnordered::new();
    for (name, call) in calls() {
        let endpoint = service
            .endpoint_builder()
            .name(name.replace('.', "-"))
            .metadata(metadata(name, &call))
            .add(format!("{}.*.*.{name}", door.prefix))
            .await?;
        heard.push(listen(Arc::clone(&door), endpoint, call));
    }
    // Each ends when its subscription does: with the connection's end or the service's.
    heard.next().await;
    Ok(())
}

/// What a name calls.
#[derive(Debug, Clone, Copy)]
enum Call {
    /// An operation of the HTTP API.
    Operation(Operation),
    /// A write that is carried out and undone: whether it would be taken.
    Validate,
    /// Our id of a tenant.
    ResolveTenant,
    /// A durable consumer of the product's events.
    Consume,
    /// The contract of all this.
    Contract,
}

/// Everything that can be called, by name: the operations of products under their own names, and the aliases.
fn calls() -> Vec<(&'static str, Call)> {
    let operations: Vec<Operation> = routes::operations().iter().copied().filter(is_offered).collect();
    let mut calls: Vec<(&'static str, Call)> =
        operations.iter().map(|operation| ((operation.doc)().id(), Call::Operation(*operation))).collect();
    for (alias, id) in ALIASES {
        if alias != id
            && let Some(operation) = routes::operation(id)
        {
            calls.push((alias, Call::Operation(*operation)));
        }
    }
    calls.push(("validate", Call::Validate));
    calls.push(("tenant.resolve", Call::ResolveTenant));
    calls.push(("events.consumer", Call::Consume));
    calls.push(("asyncapi", Call::Contract));
    calls
}

/// What `$SRV.INFO` says of an endpoint: what it takes, and where the contract says what it answers.
fn metadata(name: &str, call: &Call) -> HashMap<String, String> {
    let mut metadata = HashMap::new();
    let mut say = |key: &str, text: String| metadata.insert(key.to_owned(), text);
    let operation = match call {
        Call::Operation(operation) => {
            say("http", format!("{} {}", operation.verb.as_str(), operation.path));
            (operation.doc)().id()
        }
        Call::Validate | Call::ResolveTenant | Call::Consume | Call::Contract => name,
    };
    if let Some(described) = routes::contracts().asyncapi.call(operation) {
        let component = |name: &str| format!("asyncapi.json#/components/schemas/{name}");
        say("summary", described.summary.clone());
        say("request_schema", component(&described.request.name));
        say("answer_schema", component(&described.answer.name));
        say("request", asyncapi::standing(&described.request).to_string());
    }
    metadata
}

struct Door {
    ingress: Arc<Ingress>,
    router: Router,
    places: Arc<Semaphore>,
    products: PerProduct,
    prefix: String,
}

/// Calls in hand of each product and environment: one that calls without end leaves capacity for the others.
#[derive(Debug, Clone)]
struct PerProduct {
    most: usize,
    in_hand: Arc<Mutex<HashMap<String, usize>>>,
}

/// One call in hand, until dropped.
#[derive(Debug)]
struct OwnCall {
    product: String,
    of: PerProduct,
}

impl PerProduct {
    fn new(most: usize) -> Self {
        Self { most: most.max(1), in_hand: Arc::default() }
    }

    /// None: the product has as many in hand as it may.
    fn admit(&self, product: &str) -> Option<OwnCall> {
        let mut in_hand = self.in_hand.lock().unwrap_or_else(PoisonError::into_inner);
        let count = in_hand.entry(product.to_owned()).or_default();
        if *count >= self.most {
            return None;
        }
        *count += 1;
        Some(OwnCall { product: product.to_owned(), of: self.clone() })
    }
}

impl Drop for OwnCall {
    fn drop(&mut self) {
        let mut in_hand = self.of.in_hand.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = in_hand.get_mut(&self.product) {
            *count -= 1;
            // Only products with a call in hand are remembered.
            if *count == 0 {
                in_hand.remove(&self.product);
            }
        }
    }
}

async fn listen(door: Arc<Door>, mut endpoint: Endpoint, call: Call) {
    while let Some(request) = endpoint.next().await {
        let own = door.products.admit(door.product_of(&request.message.subject));
        let place = Arc::clone(&door.places).try_acquire_owned().ok();
        let Some(place) = own.zip(place) else {
            answer(&request, refusal(&ApiError::unavailable().detail("too many calls at once"))).await;
            continue;
        };
        let door = Arc::clone(&door);
        let traced = TraceContext::of_message(request.message.headers.as_ref()).map(|context| context.ambient());
        tokio::spawn(trace::within(traced, async move {
            let answered = door.carry_out(&request.message, &call).await.unwrap_or_else(|error| refusal(&error));
            answer(&request, answered).await;
            drop(place);
        }));
    }
}

async fn answer(request: &async_nats::service::Request, answer: Answer) {
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

impl Door {
    /// The product and environment of a call, as its subject says.
    fn product_of<'a>(&self, subject: &'a str) -> &'a str {
        let tokens = subject.strip_prefix(self.prefix.as_str()).unwrap_or_default().trim_start_matches('.');
        let end = tokens.match_indices('.').nth(1).map_or(tokens.len(), |(end, _)| end);
        &tokens[..end]
    }

    async fn carry_out(&self, message: &async_nats::Message, call: &Call) -> Result<Answer, ApiError> {
        let tokens = message.subject.strip_prefix(self.prefix.as_str()).and_then(|rest| rest.strip_prefix('.'));
        let (publisher, _) = tokens.and_then(Publisher::of_tokens).ok_or_else(unknown_subject)?;
        match call {
            Call::Operation(operation) => {
                let headers = message.headers.as_ref();
                let named = call::KEY_HEADERS.iter().find_map(|name| headers?.get(*name));
                let message_id = named.map(async_nats::HeaderValue::as_str);
                self.ctx(call::request(operation, &publisher, &message.payload, message_id, Manner::Answered)?).await
            }
            Call::Validate => {
                let (operation, body) = call::to_validate(&message.payload)?;
                let operation = routes::operation(&operation)
                    .filter(|known| known.verb.is_write() && is_offered(known))
                    .ok_or_else(|| ApiError::invalid("operation", "unknown", "is no operation that writes"))?;
                self.ctx(call::request(operation, &publisher, &body, None, Manner::Dry)?).await
            }
            Call::ResolveTenant => self.resolve(&publisher, &message.payload).await,
            Call::Consume => done(&feed::find_consumer(&self.ingress.bus, &publisher, &message.payload).await?),
            Call::Contract => Ok(Answer {
                status: StatusCode::OK,
                body: routes::contracts().asyncapi.document.to_string().into(),
                error: None,
            }),
        }
    }

    /// Takes the same road as HTTP.
    async fn ctx(&self, request: http::Request<body::Body>) -> Result<Answer, ApiError> {
        let response = match self.router.clone().oneshot(request).await {
            Ok(response) => response,
            Err(never) => match never {},
        };
        let (parts, content) = response.into_parts();
        let body = body::to_bytes(content, ANSWER_MAX_BYTES).await.map_err(|error| ApiError::unexpected(&error))?;
        let error = (!parts.status.is_success()).then(|| code_of(&body));
        Ok(Answer { status: parts.status, body, error })
    }

    async fn resolve(&self, publisher: &Publisher, payload: &[u8]) -> Result<Answer, ApiError> {
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

fn done(answer: &impl Serialize) -> Result<Answer, ApiError> {
    Ok(Answer { status: StatusCode::OK, body: Reply::ok(answer)?.into_body().into(), error: None })
}

fn unknown_subject() -> ApiError {
    ApiError::new(StatusCode::NOT_FOUND, "not_found")
        .detail("the subject is mail.v1.api.<product>.<environment>.<operation>, the environment production or sandbox")
}

fn refusal(error: &ApiError) -> Answer {
    Answer { status: error.status, error: Some(error.code.to_string()), body: error.body().into() }
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
    fn one_product_that_calls_without_end_leaves_capacity_for_the_others() {
        let products = PerProduct::new(2);
        let first = [products.admit("shop.production"), products.admit("shop.production")];
        assert!(first.iter().all(Option::is_some));
        assert!(products.admit("shop.production").is_none());
        assert!(products.admit("shop.sandbox").is_some() && products.admit("rival.production").is_some());
        drop(first);
        assert!(products.admit("shop.production").is_some());
        assert!(products.in_hand.lock().unwrap_or_else(PoisonError::into_inner).is_empty());
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
