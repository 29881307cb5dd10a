//! From an admitted request to its answer: the one road all endpoints take.
//!
//! A route is `read(scope, handler)` or `write(scope, handler)` with `async fn handler(act: &mut Act, input: Input) ->
//! Result<Reply, ApiError>`, registered through [`Routes`] with its documentation (how: see [`crate::documents::openapi`]). The order of
//! checks is that of API.md §1; what a handler sees is a known caller, a transaction confined to its tenant, and a typed input.

pub mod auth;
pub mod body;
pub(crate) mod connection;
pub mod doc;
pub mod error;
pub mod idempotency;
pub mod json;
mod later;
pub(crate) mod outside;
pub mod page;
mod perform;
mod plain;
pub mod route;
pub mod schema;
pub(crate) mod tenant;
pub(crate) mod types;
pub mod validate;

use std::{future::Future, pin::Pin, sync::Arc};

use axum::{
    extract::{RawPathParams, Request, State},
    response::{IntoResponse, Response},
};
use http::{HeaderValue, StatusCode, header};
use runtime::{
    Publication,
    plans::{AccessPattern, PreparedTransaction},
};
use schemas::parse_id;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Map, Value};
use sqlx::{PgConnection, Postgres, Transaction};
use uuid::Uuid;

pub use idempotency::{Claim, IdempotencyKey};
pub use json::{Id, Patch};
pub use later::{Awaited, Later};
pub use page::{Page, time};
pub(crate) use perform::{WRITE_STATEMENT_MAX, WouldAnswer, announce};
pub use route::{Access, Endpoint, Operation, Routes, Verb, open};
pub use tenant::is_product_tenant_id;
pub(crate) use tenant::{READ_STATEMENT_MAX, TenantClaim, check as check_tenant, find as find_tenant};
pub use validate::Faults;

use crate::{
    Ingress,
    pipeline::{auth::Caller, error::ApiError},
};

/// The transaction of an act. One that is dropped is rolled back, behind the answer's back.
enum Tx {
    Scan(Transaction<'static, Postgres>),
    ByKey(PreparedTransaction),
}

impl Tx {
    fn db(&mut self) -> &mut PgConnection {
        match self {
            Self::Scan(tx) => tx,
            Self::ByKey(tx) => tx,
        }
    }

    async fn commit(self) -> sqlx::Result<()> {
        match self {
            Self::Scan(tx) => tx.commit().await,
            Self::ByKey(tx) => tx.commit().await,
        }
    }

    async fn rollback(self) -> sqlx::Result<()> {
        match self {
            Self::Scan(tx) => tx.rollback().await,
            Self::ByKey(tx) => tx.rollback().await,
        }
    }
}

/// One request being carried out.
pub struct Act {
    /// The transaction. Confined to the tenant by row security; committed by the framework when the handler succeeds.
    tx: Tx,
    /// The tenant. Nil for acts that stand above tenants (see [`provision`]).
    pub tenant: Uuid,
    /// Who calls.
    pub caller: Arc<Caller>,
    /// The shared state.
    pub ingress: Arc<Ingress>,
    announcements: Vec<Publication>,
    path: Vec<(String, String)>,
    outside: outside::Outside,
}

impl std::fmt::Debug for Act {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Act").field("tenant", &self.tenant).field("key_id", &self.caller.key_id).finish_non_exhaustive()
    }
}

impl Act {
    /// The connection, for queries.
    pub fn db(&mut self) -> &mut PgConnection {
        self.tx.db()
    }

    /// The `{id}` of the path.
    ///
    /// # Errors
    /// 404 `<object>_not_found` for anything but a canonical id: there is no such object.
    pub fn id(&self, object: &str) -> Result<Uuid, ApiError> {
        self.path
            .iter()
            .find(|(name, _)| name == "id")
            .and_then(|(_, text)| parse_id(text).ok())
            .ok_or_else(|| ApiError::not_found(object))
    }

    /// Publishes after the commit, in the background. Only a doorbell: what it announces must stand in the database, where a sweep
    /// finds it if this is lost.
    pub fn announce(&mut self, publication: Publication) {
        self.announcements.push(publication);
    }

    /// Does long work, on a thread for it, while no connection is held. Call it before the transaction has written anything that is
    /// not undone and done again: the request is rolled back, the work is done, and the handler is called anew; then this answers what
    /// the work made. `label` tells the pieces of work of one request apart and must be the same each time. Only for routes made
    /// with [`write_with_work`].
    ///
    /// # Errors
    /// Until the work is done: pass it on.
    pub(crate) fn outside<T: Clone + Send + Sync + 'static>(
        &mut self,
        label: String,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ApiError> {
        self.outside.answer(label, work)
    }

    /// Waits for somebody outside while no connection is held: as [`Act::outside`], for what is asked over the network. The future
    /// bounds itself in time and number.
    ///
    /// # Errors
    /// Until the answer is there: pass it on.
    pub(crate) fn outside_wait<T: Clone + Send + Sync + 'static>(
        &mut self,
        label: String,
        answer: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, ApiError> {
        self.outside.wait(label, answer)
    }

    /// Writes into the audit log, in the transaction of the act. `subject` and `detail` carry ids and codes only.
    ///
    /// # Errors
    /// When Postgres is away.
    pub async fn audit(&mut self, action: &str, subject: &str, detail: Value) -> sqlx::Result<()> {
        let tenant = (!self.tenant.is_nil()).then_some(self.tenant);
        sqlx::query!(
            "insert into audit_log (id, tenant_id, actor, action, subject, detail) values ($1, $2, $3, $4, $5, $6)",
            schemas::new_id(),
            tenant,
            self.caller.actor(),
            action,
            subject,
            detail,
        )
        .execute(self.db())
        .await
        .map(drop)
    }
}

/// A success.
#[derive(Debug, Clone)]
pub struct Reply {
    status: StatusCode,
    body: Vec<u8>,
    /// Set: the answer waits for this, after the commit.
    later: Option<Uuid>,
    /// Its body is kept sealed for repeats.
    has_secret: bool,
}

impl Reply {
    /// With this status and this answer, to which `ok: true` is added.
    ///
    /// # Errors
    /// 500 for an answer that does not serialise: never for our types.
    pub fn new(status: StatusCode, answer: &impl Serialize) -> Result<Self, ApiError> {
        Self::untyped(status, &Success { ok: true, answer })
    }

    /// 200
    ///
    /// # Errors
    /// As [`Reply::new`].
    pub fn ok(answer: &impl Serialize) -> Result<Self, ApiError> {
        Self::new(StatusCode::OK, answer)
    }

    /// With this status and body; the body's `ok: true` is the handler's to write.
    ///
    /// # Errors
    /// 500 for a body that does not serialise: never for our types.
    pub fn untyped(status: StatusCode, body: &impl Serialize) -> Result<Self, ApiError> {
        let body = serde_json::to_vec(body).map_err(|error| ApiError::unexpected(&error))?;
        Ok(Self { status, body, later: None, has_secret: false })
    }

    /// "Committed; now wait": what is answered is the outcome of `reference`. For routes made with [`write_and_wait`].
    #[must_use]
    pub fn later(reference: Uuid) -> Self {
        Self { status: StatusCode::ACCEPTED, body: Vec::new(), later: Some(reference), has_secret: false }
    }

    /// Its body, as it is sent.
    pub(crate) fn into_body(self) -> Vec<u8> {
        self.body
    }

    /// The same, with a secret in it: what is kept of it for an idempotent repeat is encrypted.
    #[must_use]
    pub fn with_secret(self) -> Self {
        Self { has_secret: true, ..self }
    }

    /// 201
    ///
    /// # Errors
    /// As [`Reply::new`].
    pub fn created(answer: &impl Serialize) -> Result<Self, ApiError> {
        Self::new(StatusCode::CREATED, answer)
    }

    /// 202
    ///
    /// # Errors
    /// As [`Reply::new`].
    pub fn accepted(answer: &impl Serialize) -> Result<Self, ApiError> {
        Self::new(StatusCode::ACCEPTED, answer)
    }
}

/// What every success says, and the answer.
#[derive(Serialize)]
struct Success<'a, T> {
    ok: bool,
    #[serde(flatten)]
    answer: &'a T,
}

impl IntoResponse for Reply {
    fn into_response(self) -> Response {
        (self.status, [(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))], self.body).into_response()
    }
}

/// An `async fn(&mut Act, Input) -> Result<Reply, ApiError>`.
pub trait Handler<'a, Input>: Send + Sync {
    /// What it returns.
    type Future: Future<Output = Result<Reply, ApiError>> + Send + 'a;
    /// Carries the act out.
    fn call(&self, act: &'a mut Act, input: Input) -> Self::Future;
}

impl<'a, Input, F, Fut> Handler<'a, Input> for F
where
    F: Fn(&'a mut Act, Input) -> Fut + Send + Sync,
    Fut: Future<Output = Result<Reply, ApiError>> + Send + 'a,
{
    type Future = Fut;

    fn call(&self, act: &'a mut Act, input: Input) -> Fut {
        self(act, input)
    }
}

/// The body of a GET handler without further query parameters.
#[derive(Debug, Clone, Copy, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "NoFields")]
pub struct NoParameters {}

/// The body of a write that needs nothing but the tenant.
pub type NoFields = NoParameters;

type Outcome<'a> = Pin<Box<dyn Future<Output = Result<Reply, ApiError>> + Send + 'a>>;
/// A request that was read: it waits for its transaction.
type Prepared = Box<dyn for<'a> FnOnce(&'a mut Act) -> Outcome<'a> + Send>;
/// Reads the query of a GET, still untyped, so that the road is compiled once and not per route.
type QueryReader = Arc<dyn Fn(String) -> Prepared + Send + Sync>;

/// What is known of a write before it has a transaction.
#[derive(Clone)]
pub struct Before {
    /// The shared state.
    pub ingress: Arc<Ingress>,
    /// Who calls.
    pub caller: Arc<Caller>,
    claim: Option<TenantClaim>,
}

impl Before {
    /// The tenant, found without a connection being held.
    ///
    /// # Errors
    /// 404 `tenant_not_found`, 403 `tenant_mismatch`, 503 when Postgres is away.
    pub async fn tenant(&self) -> Result<Uuid, ApiError> {
        let Some(claim) = &self.claim else { return Ok(Uuid::nil()) };
        check_tenant(self.ingress.admissions.find(&self.caller, claim).await?, &self.caller, claim)
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

/// What is done with a body before there is a transaction: see [`write_and_wait`] and [`write_large`].
pub type Preparation<Input> = Pin<Box<dyn Future<Output = Input> + Send>>;

/// Reads the body of a write, still untyped, so that the road is compiled once and not per route.
type Preparer = Arc<dyn Fn(Before, Map<String, Value>) -> Preparation<Prepared> + Send + Sync>;

/// Hands the input to the handler, as soon as there is a transaction.
fn prepared<Input, H>(handler: Arc<H>, input: Input) -> Prepared
where
    Input: Send + 'static,
    H: for<'a> Handler<'a, Input> + 'static,
{
    Box::new(move |act| Box::pin(handler.call(act, input)))
}

/// A refusal of body or query is told after those of tenant and idempotency key.
fn refused(error: ApiError) -> Prepared {
    Box::new(move |_| Box::pin(std::future::ready(Err(error))))
}

/// What axum calls for a route.
type Served = Pin<Box<dyn Future<Output = Response> + Send>>;

/// A GET: `product_tenant_id` is a query parameter, the others are `Query`'s fields (which should `deny_unknown_fields`).
pub fn read<Query, H>(scope: &'static str, handler: H) -> Endpoint
where
    Query: DeserializeOwned + Send + 'static,
    H: for<'a> Handler<'a, Query> + 'static,
{
    reading(perform::Read { scope, in_tenant: true }, handler)
}

/// As [`read`], but above tenants: no `product_tenant_id`, and the transaction sees no tenant's rows. For the operations
/// integration.
pub fn platform_read<Query, H>(scope: &'static str, handler: H) -> Endpoint
where
    Query: DeserializeOwned + Send + 'static,
    H: for<'a> Handler<'a, Query> + 'static,
{
    reading(perform::Read { scope, in_tenant: false }, handler)
}

fn reading<Query, H>(spec: perform::Read, handler: H) -> Endpoint
where
    Query: DeserializeOwned + Send + 'static,
    H: for<'a> Handler<'a, Query> + 'static,
{
    let handler = Arc::new(handler);
    let reader: QueryReader = Arc::new(move |query| match perform::decode_query::<Query>(&query) {
        Ok(query) => prepared(Arc::clone(&handler), query),
        Err(error) => refused(error),
    });
    let access = Access::Key { scope: spec.scope, in_tenant: spec.in_tenant, body_max_bytes: body::BODY_MAX_BYTES };
    Endpoint::new(access, move |State(ingress): State<Arc<Ingress>>, path: RawPathParams, request: Request| -> Served {
        let reader = Arc::clone(&reader);
        Box::pin(async move { perform::read(ingress, owned(&path), request, spec, reader).await })
    })
}

/// A POST, PATCH or DELETE within a tenant: `product_tenant_id` is a body field and taken out before `Body` is read (which should
/// `deny_unknown_fields`). Carried out in a task of its own, with idempotency, in one transaction.
pub fn write<Body, H>(scope: &'static str, handler: H) -> Endpoint
where
    Body: DeserializeOwned + Send + 'static,
    H: for<'a> Handler<'a, Body> + 'static,
{
    writing(perform::Write { scope, ..perform::Write::default() }, handler)
}

/// As [`write`], for what is done often and finds all its rows by key, whatever the size of the tables: its statements are not
/// planned anew each time.
pub fn write_by_key<Body, H>(scope: &'static str, handler: H) -> Endpoint
where
    Body: DeserializeOwned + Send + 'static,
    H: for<'a> Handler<'a, Body> + 'static,
{
    writing(perform::Write { scope, access: AccessPattern::ByKey, ..perform::Write::default() }, handler)
}

/// As [`write`], with the body limit of imports. `prepare` makes the handler's input of the body, as in [`write_and_wait`].
pub fn write_large<Body, Input, H>(
    scope: &'static str,
    prepare: fn(Before, Body) -> Preparation<Input>,
    handler: H,
) -> Endpoint
where
    Body: DeserializeOwned + Send + 'static,
    Input: Send + 'static,
    H: for<'a> Handler<'a, Input> + 'static,
{
    let body_max_bytes = body::IMPORT_BODY_MAX_BYTES;
    let spec = perform::Write { scope, body_max_bytes, ..perform::Write::default() };
    prepared_writing(spec, preparer(prepare, handler))
}

/// As [`write`], for handlers that read or render templates, or ask somebody outside: see [`Act::outside`] and [`Act::outside_wait`].
pub fn write_with_work<Body, H>(scope: &'static str, handler: H) -> Endpoint
where
    Body: DeserializeOwned + Send + 'static,
    H: for<'a> Handler<'a, Body> + 'static,
{
    writing(perform::Write { scope, has_work: true, ..perform::Write::default() }, handler)
}

/// As [`write_by_key`], with a body limit of its own and an answer that waits, after the commit, for what was committed: the handler
/// answers [`Reply::later`], and `later` finds the outcome, also for a repeat after a crash.
///
/// `prepare` makes the handler's input of the body while no connection to Postgres is held: what looks into a stranger's files. Its
/// refusals are part of the input, so that they are told, and kept for a repeat, in their turn.
pub fn write_and_wait<Body, Input, H>(
    scope: &'static str,
    body_max_bytes: usize,
    prepare: fn(Before, Body) -> Preparation<Input>,
    handler: H,
    later: Later,
) -> Endpoint
where
    Body: DeserializeOwned + Send + 'static,
    Input: Send + 'static,
    H: for<'a> Handler<'a, Input> + 'static,
{
    let later = Some(later);
    prepared_writing(
        perform::Write {
            scope,
            body_max_bytes,
            later,
            access: AccessPattern::ByKey,
            reads_ahead: true,
            ..perform::Write::default()
        },
        preparer(prepare, handler),
    )
}

fn preparer<Body, Input, H>(prepare: fn(Before, Body) -> Preparation<Input>, handler: H) -> Preparer
where
    Body: DeserializeOwned + Send + 'static,
    Input: Send + 'static,
    H: for<'a> Handler<'a, Input> + 'static,
{
    let handler = Arc::new(handler);
    Arc::new(move |before, object| {
        let handler = Arc::clone(&handler);
        Box::pin(async move {
            match json::decode::<Body>(object) {
                Ok(body) => prepared(handler, prepare(before, body).await),
                Err(error) => refused(error),
            }
        })
    })
}

/// As [`write`], but above tenants: the body keeps its `product_tenant_id`, the transaction sees no tenant's rows.
pub fn provision<Body, H>(scope: &'static str, handler: H) -> Endpoint
where
    Body: DeserializeOwned + Send + 'static,
    H: for<'a> Handler<'a, Body> + 'static,
{
    writing(perform::Write { scope, in_tenant: false, ..perform::Write::default() }, handler)
}

fn writing<Body, H>(spec: perform::Write, handler: H) -> Endpoint
where
    Body: DeserializeOwned + Send + 'static,
    H: for<'a> Handler<'a, Body> + 'static,
{
    let handler = Arc::new(handler);
    let preparer: Preparer = Arc::new(move |_, object| {
        let prepared = match json::decode::<Body>(object) {
            Ok(body) => prepared(Arc::clone(&handler), body),
            Err(error) => refused(error),
        };
        Box::pin(std::future::ready(prepared))
    });
    prepared_writing(spec, preparer)
}

fn prepared_writing(spec: perform::Write, preparer: Preparer) -> Endpoint {
    let access = Access::Key { scope: spec.scope, in_tenant: spec.in_tenant, body_max_bytes: spec.body_max_bytes };
    Endpoint::new(access, move |State(ingress): State<Arc<Ingress>>, path: RawPathParams, request: Request| -> Served {
        let preparer = Arc::clone(&preparer);
        Box::pin(async move { perform::write(ingress, owned(&path), request, spec, preparer).await })
    })
}

fn owned(path: &RawPathParams) -> Vec<(String, String)> {
    path.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}
