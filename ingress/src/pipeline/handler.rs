//! Handlers, and requests that are read and wait for their transaction.

use std::{future::Future, pin::Pin, sync::Arc};

use runtime::plans::PreparedTransaction;
use serde_json::{Map, Value};
use uuid::Uuid;

use super::{
    auth::keys::Caller,
    context::RequestContext,
    error::ApiError,
    reply::Reply,
    tenant::{self, TenantClaim},
};
use crate::state::Ingress;

/// An `async fn(&mut RequestContext, Input) -> Result<Reply, ApiError>`.
pub trait Handler<'a, Input>: Send + Sync {
    /// What it returns.
    type Future: Future<Output = Result<Reply, ApiError>> + Send + 'a;
    /// Carries the act out.
    fn call(&self, ctx: &'a mut RequestContext, input: Input) -> Self::Future;
}

impl<'a, Input, F, Fut> Handler<'a, Input> for F
where
    F: Fn(&'a mut RequestContext, Input) -> Fut + Send + Sync,
    Fut: Future<Output = Result<Reply, ApiError>> + Send + 'a,
{
    type Future = Fut;

    fn call(&self, ctx: &'a mut RequestContext, input: Input) -> Fut {
        self(ctx, input)
    }
}

/// The body of a GET handler without further query parameters.
#[derive(Debug, Clone, Copy, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "NoFields")]
pub struct NoParameters {}

/// The body of a write that needs nothing but the tenant.
pub type NoFields = NoParameters;

pub(super) type Outcome<'a> = Pin<Box<dyn Future<Output = Result<Reply, ApiError>> + Send + 'a>>;
/// A request that was read: it waits for its transaction.
pub(super) type Prepared = Box<dyn for<'a> FnOnce(&'a mut RequestContext) -> Outcome<'a> + Send>;
/// Reads the query of a GET, still untyped, so that the road is compiled once and not per route.
pub(super) type QueryReader = Arc<dyn Fn(String) -> Prepared + Send + Sync>;

/// What is known of a write before it has a transaction.
#[derive(Clone)]
pub struct Before {
    /// The shared state.
    pub ingress: Arc<Ingress>,
    /// Who calls.
    pub caller: Arc<Caller>,
    pub(super) claim: Option<TenantClaim>,
}

impl Before {
    /// The tenant, found without a connection being held.
    ///
    /// # Errors
    /// 404 `tenant_not_found`, 403 `tenant_mismatch`, 503 when Postgres is away.
    pub async fn tenant(&self) -> Result<Uuid, ApiError> {
        let Some(claim) = &self.claim else { return Ok(Uuid::nil()) };
        tenant::check(self.ingress.admissions.find(&self.caller, claim).await?, &self.caller, claim)
    }

    /// A short read of what the preparation needs, confined to the tenant: to be dropped before long work begins. Its statements find
    /// their rows by key.
    ///
    /// # Errors
    /// When Postgres is away.
    pub async fn read(&self, tenant: Uuid) -> sqlx::Result<PreparedTransaction> {
        self.ingress.by_key.read(tenant).await
    }
}

/// What is done with a body before there is a transaction: see [`super::write_and_wait`] and [`super::write_large`].
pub type Preparation<Input> = Pin<Box<dyn Future<Output = Input> + Send>>;

/// Reads the body of a write, still untyped, so that the road is compiled once and not per route.
pub(super) type Preparer = Arc<dyn Fn(Before, Map<String, Value>) -> Preparation<Prepared> + Send + Sync>;

/// Hands the input to the handler, as soon as there is a transaction.
pub(super) fn prepared<Input, H>(handler: Arc<H>, input: Input) -> Prepared
where
    Input: Send + 'static,
    H: for<'a> Handler<'a, Input> + 'static,
{
    Box::new(move |ctx| Box::pin(handler.call(ctx, input)))
}

/// A refusal of body or query is told after those of tenant and idempotency key.
pub(super) fn refused(error: ApiError) -> Prepared {
    Box::new(move |_| Box::pin(std::future::ready(Err(error))))
}
