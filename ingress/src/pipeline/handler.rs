//! Handlers, and parsed requests that wait for their transaction.

use std::{future::Future, pin::Pin, sync::Arc};

use runtime::plans::PreparedTransaction;
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use uuid::Uuid;

use super::{auth::keys::Caller, context::RequestContext, error::ApiError, reply::ApiReply};
use crate::state::Ingress;

/// An `async fn(&mut RequestContext, Input) -> Result<ApiReply, ApiError>`.
pub trait Handler<'a, Input>: Send + Sync {
    type Future: Future<Output = Result<ApiReply, ApiError>> + Send + 'a;
    fn call(&self, ctx: &'a mut RequestContext, input: Input) -> Self::Future;
}

impl<'a, Input, F, Fut> Handler<'a, Input> for F
where
    F: Fn(&'a mut RequestContext, Input) -> Fut + Send + Sync,
    Fut: Future<Output = Result<ApiReply, ApiError>> + Send + 'a,
{
    type Future = Fut;

    fn call(&self, ctx: &'a mut RequestContext, input: Input) -> Fut {
        self(ctx, input)
    }
}

/// A [`Handler`] of a route, whatever the lifetime of its request.
pub trait HandlerOf<Input>: for<'a> Handler<'a, Input> + 'static {}

impl<Input, H: for<'a> Handler<'a, Input> + 'static> HandlerOf<Input> for H {}

/// What a route reads: the parameters of a query, or a body.
pub trait RequestInput: DeserializeOwned + JsonSchema + Send + 'static {}

impl<T: DeserializeOwned + JsonSchema + Send + 'static> RequestInput for T {}

/// The body of a GET handler without further query parameters.
#[derive(Debug, Clone, Copy, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "NoFields")]
pub struct NoParameters {}

/// The body of a write that needs nothing but the tenant.
pub type NoFields = NoParameters;

pub(super) type HandlerFuture<'a> = Pin<Box<dyn Future<Output = Result<ApiReply, ApiError>> + Send + 'a>>;
/// A parsed request, which waits for its transaction.
pub(super) type PreparedHandler = Box<dyn for<'a> FnOnce(&'a mut RequestContext) -> HandlerFuture<'a> + Send>;
/// Parses the query of a GET. Untyped, so that the pipeline is compiled once and not per route.
pub(super) type QueryReader = Arc<dyn Fn(String) -> PreparedHandler + Send + Sync>;

/// The context of a write before its transaction.
#[derive(Clone)]
pub struct PreparationContext {
    pub ingress: Arc<Ingress>,
    pub caller: Arc<Caller>,
    /// The tenant. Nil for requests without one.
    pub tenant: Uuid,
}

impl PreparationContext {
    /// A short read of what the preparation needs, confined to the tenant: to be dropped before long work begins. Its statements find
    /// their rows by key.
    pub async fn read(&self) -> sqlx::Result<PreparedTransaction> {
        self.ingress.by_key.read(self.tenant).await
    }
}

/// Work on a body before its transaction: see [`super::write_and_wait`] and [`super::write_large`].
pub type Preparation<Input> = Pin<Box<dyn Future<Output = Input> + Send>>;

/// Parses the body of a write. Untyped, so that the pipeline is compiled once and not per route.
pub(super) type Preparer =
    Arc<dyn Fn(PreparationContext, Map<String, Value>) -> Preparation<PreparedHandler> + Send + Sync>;

/// Calls the handler with the input, once there is a transaction.
pub(super) fn prepared<Input: Send + 'static>(handler: Arc<impl HandlerOf<Input>>, input: Input) -> PreparedHandler {
    Box::new(move |ctx| Box::pin(handler.call(ctx, input)))
}

/// Answers an error of body or query, after the checks of tenant and idempotency key.
pub(super) fn refused(error: ApiError) -> PreparedHandler {
    Box::new(move |_| Box::pin(std::future::ready(Err(error))))
}
