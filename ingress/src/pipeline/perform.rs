//! The road itself: admit, find the tenant, replay or act, commit, announce.

use std::{sync::Arc, time::Duration};

use axum::{
    extract::{MatchedPath, Request},
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use http::{HeaderName, HeaderValue, header, request::Parts};
use runtime::{Publication, plans::AccessPattern, trace};
use schemars::JsonSchema;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Map, Value};
use tokio::sync::{Semaphore, SemaphorePermit};
use uuid::Uuid;

use super::{
    auth::{self, Admitted, RateState, Terms, keys::Caller},
    body::{self, BODY_MAX_BYTES},
    context::RequestContext,
    error::ApiError,
    handler::{Before, Preparer, QueryReader},
    idempotency::{self, Claim, IdempotencyKey, Stored},
    json,
    later::{self, Awaited, Later},
    observe::Trace,
    outside::Outside,
    reply::Reply,
    tenant::{self, TenantClaim},
    transaction::{self, Tx},
};
use crate::state::Ingress;

/// Longest statement of a write. Postgres ends it; the caller hears "unavailable".
pub(crate) const WRITE_STATEMENT_MAX: Duration = Duration::from_secs(50);
/// How long the doorbell is tried after a commit; then the sweep rings.
const ANNOUNCE_MAX: Duration = Duration::from_secs(5);

/// How much may be read from heavy bodies at a time, beside the bodies themselves: one of the heaviest, or more of lighter ones. The
/// others wait with their bodies. Each kind has its own, so that no import stands before a message; messages that are stored have
/// one, so that a wait for Postgres keeps nobody from reading; and so has work on a body (a template rendered over it), which takes
/// longest and holds the body more than once.
static READ_IMPORTS: Capacity = Capacity::new(body::IMPORT_BODY_MAX_BYTES);
static READ_MESSAGES: Capacity = Capacity::new(body::MESSAGE_BODY_MAX_BYTES);
static STORE_MESSAGES: Capacity = Capacity::new(body::MESSAGE_BODY_MAX_BYTES);
static WORK_ON_BODIES: Capacity = Capacity::new(16 * BODY_MAX_BYTES);

const REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");

/// How a read is done.
#[derive(Debug, Clone, Copy)]
pub struct Read {
    /// The scope the key must have.
    pub scope: &'static str,
    /// Whether the act is one tenant's.
    pub in_tenant: bool,
}

/// How a write is done.
#[derive(Debug, Clone, Copy)]
pub struct Write {
    /// The scope the key must have.
    pub scope: &'static str,
    /// The longest body, in bytes.
    pub body_max_bytes: usize,
    /// Whether the act is one tenant's.
    pub in_tenant: bool,
    /// How the outcome is found of what was committed and is answered later.
    pub later: Option<Later>,
    /// How its statements find their rows.
    pub access: AccessPattern,
    /// Whether the next long body is read while what was read of this one waits for Postgres.
    pub reads_ahead: bool,
    /// Whether the handler asks for work that is done without a connection.
    pub has_work: bool,
}

impl Default for Write {
    /// A short body of one tenant, answered at once.
    fn default() -> Self {
        Self {
            scope: "",
            body_max_bytes: BODY_MAX_BYTES,
            in_tenant: true,
            later: None,
            access: AccessPattern::Scan,
            reads_ahead: false,
            has_work: false,
        }
    }
}

/// Reads the query parameters into a type.
pub(super) fn decode_query<T: DeserializeOwned>(query: &str) -> Result<T, ApiError> {
    let pairs = serde_urlencoded::Deserializer::new(url::form_urlencoded::parse(query.as_bytes()));
    serde_path_to_error::deserialize(pairs).map_err(|error| {
        let path = error.path().to_string();
        json::fault(if path == "." { "" } else { &path }, &error.inner().to_string())
    })
}

/// Splits the tenant from the other query parameters.
fn split_query(query: Option<&str>) -> Result<(TenantClaim, String), ApiError> {
    let (mut product, mut engine) = (None, None);
    let mut rest = url::form_urlencoded::Serializer::new(String::new());
    for (name, value) in url::form_urlencoded::parse(query.unwrap_or_default().as_bytes()) {
        if value.contains('\0') {
            return Err(ApiError::invalid(name, "invalid", "contains a NUL character"));
        }
        let slot = match name.as_ref() {
            "product_tenant_id" => &mut product,
            "engine_tenant_id" => &mut engine,
            _ => {
                rest.append_pair(&name, &value);
                continue;
            }
        };
        if slot.replace(value.into_owned()).is_some() {
            return Err(ApiError::invalid(name, "duplicate", "is given twice"));
        }
    }
    Ok((TenantClaim::new(product, engine.as_deref())?, rest.finish()))
}

/// Answers a GET.
pub(super) async fn read(
    ingress: Arc<Ingress>,
    path: Vec<(String, String)>,
    request: Request,
    spec: Read,
    reader: QueryReader,
) -> Response {
    let mut seen = Seen::default();
    let limit = ingress.settings.http_request_timeout;
    let work = read_steps(&ingress, path, request, spec, reader, &mut seen);
    let result = match tokio::time::timeout(limit, work).await {
        Ok(result) => result.map(IntoResponse::into_response),
        Err(_) => Err(ApiError::unavailable().detail("the answer took too long")),
    };
    seen.finish(result)
}

async fn read_steps(
    ingress: &Arc<Ingress>,
    path: Vec<(String, String)>,
    request: Request,
    spec: Read,
    reader: QueryReader,
    seen: &mut Seen,
) -> Result<Reply, ApiError> {
    let (parts, unread) = request.into_parts();
    // Read first, so that the tenant is looked up along with nonce and rate; a fault in it is told in its turn.
    let asked = if spec.in_tenant {
        split_query(parts.uri.query()).map(|(claim, query)| (Some(claim), query))
    } else {
        Ok((None, parts.uri.query().unwrap_or_default().to_owned()))
    };
    let named = asked.as_ref().ok().and_then(|(claim, _)| claim.as_ref()).map(|claim| claim.product_tenant_id.as_str());
    let by_key = parts.extensions.get::<MatchedPath>().is_some_and(|path| path.as_str().ends_with("/{id}"));
    let terms = Terms { scope: spec.scope, body_max_bytes: BODY_MAX_BYTES, tenant: named };
    let Admitted { caller, tenant, .. } = auth::admit(ingress, &parts, unread, terms, &mut seen.rate).await?;
    seen.trace.key_id = Some(caller.key_id);
    let (claim, query) = asked?;
    let tenant = claim.map_or(Ok(Uuid::nil()), |claim| tenant::check(tenant, &caller, &claim))?;
    seen.trace.tenant_id = spec.in_tenant.then_some(tenant);
    let access = if by_key { AccessPattern::ByKey } else { AccessPattern::Scan };
    let prepared = reader(query);
    let tx = transaction::begin_read(ingress, access, tenant).await?;
    let mut ctx = RequestContext {
        tx,
        tenant,
        caller,
        ingress: Arc::clone(ingress),
        announcements: Vec::new(),
        path,
        outside: Outside::default(),
    };
    let reply = prepared(&mut ctx).await;
    drop(ctx);
    reply
}

/// Answers a POST, PATCH or DELETE.
pub(super) async fn write(
    ingress: Arc<Ingress>,
    path: Vec<(String, String)>,
    request: Request,
    spec: Write,
    preparer: Preparer,
) -> Response {
    let mut seen = Seen::default();
    let (parts, unread) = request.into_parts();
    let result = write_steps(&ingress, path, parts, unread, spec, preparer, &mut seen).await;
    seen.finish(result)
}

async fn write_steps(
    ingress: &Arc<Ingress>,
    path: Vec<(String, String)>,
    parts: Parts,
    unread: axum::body::Body,
    spec: Write,
    preparer: Preparer,
    seen: &mut Seen,
) -> Result<Response, ApiError> {
    let terms = Terms { scope: spec.scope, body_max_bytes: spec.body_max_bytes, tenant: None };
    let Admitted { caller, body, .. } = auth::admit(ingress, &parts, unread, terms, &mut seen.rate).await?;
    seen.trace.key_id = Some(caller.key_id);
    body::require_json(&parts.headers)?;
    let trusted = parts.extensions.get::<auth::Trusted>();
    let work = Work {
        ingress: Arc::clone(ingress),
        caller,
        path,
        key: IdempotencyKey::read(&parts.headers, parts.method.as_str(), parts.uri.path(), &body)?,
        body,
        capacity: match spec.body_max_bytes {
            _ if spec.has_work => &WORK_ON_BODIES,
            ..=body::MESSAGE_BODY_MAX_BYTES => &READ_MESSAGES,
            _ => &READ_IMPORTS,
        },
        in_tenant: spec.in_tenant,
        later: spec.later,
        access: spec.access,
        reads_ahead: spec.reads_ahead,
        has_work: spec.has_work,
        dry: trusted.is_some_and(|trusted| trusted.dry),
        unwaited: trusted.is_some_and(|trusted| trusted.unwaited),
    };
    // In a task of its own: axum drops a handler whose client hangs up, and half an act is worse than an unheard answer.
    let task = ingress.tasks.spawn(trace::inherit(async move { work.carry_out(preparer).await }));
    match tokio::time::timeout(ingress.settings.http_request_timeout, task).await {
        Ok(Ok((tenant, result))) => {
            seen.trace.tenant_id = tenant;
            result
        }
        Ok(Err(_)) => {
            // Its message may quote the caller's data; the panic hook has said where.
            tracing::error!("a handler panicked");
            Err(ApiError::internal())
        }
        Err(_) => Err(ApiError::unavailable()
            .detail("the request is still being carried out: repeat it with its Idempotency-Key to hear the outcome")),
    }
}

/// One write.
struct Work {
    ingress: Arc<Ingress>,
    caller: Arc<Caller>,
    path: Vec<(String, String)>,
    key: Option<IdempotencyKey>,
    body: Bytes,
    capacity: &'static Capacity,
    in_tenant: bool,
    later: Option<Later>,
    access: AccessPattern,
    reads_ahead: bool,
    has_work: bool,
    /// Undo what was done and only say that it would be taken.
    dry: bool,
    /// Answer as soon as it is committed.
    unwaited: bool,
}

impl Work {
    async fn carry_out(self, preparer: Preparer) -> (Option<Uuid>, Result<Response, ApiError>) {
        let mut tenant = None;
        let result = self.steps(preparer, &mut tenant).await;
        (tenant, result)
    }

    async fn steps(self, preparer: Preparer, found: &mut Option<Uuid>) -> Result<Response, ApiError> {
        let Self {
            ingress,
            caller,
            path,
            key,
            body,
            capacity,
            in_tenant,
            later,
            access,
            reads_ahead,
            has_work,
            dry,
            unwaited,
        } = self;
        // Whoever does not wait holds nothing: a repeat may wait, or not, at once.
        let lease = if unwaited { Duration::ZERO } else { later::LEASE };
        let weight = json::weight(&body);
        let mut permit = capacity.acquire(weight).await?;
        let mut object = parse(&body).await?;
        // A large one need not be kept beside what was read from it.
        drop(body);
        let claim = if in_tenant { Some(TenantClaim::take_from(&mut object)?) } else { None };
        let before = Before { ingress: Arc::clone(&ingress), caller: Arc::clone(&caller), claim: claim.clone() };
        let mut outside = Outside::default();
        loop {
            // Prepared again from the same when its handler asked for work.
            let given = if has_work { object.clone() } else { std::mem::take(&mut object) };
            let prepared = preparer(before.clone(), given).await;
            if reads_ahead {
                // From here on it waits for Postgres only, and the next may be read.
                drop(permit.take());
                permit = STORE_MESSAGES.acquire(weight).await?;
            }
            let mut tx = transaction::begin_write(&ingress, access).await?;
            let tenant = match &claim {
                Some(claim) => tenant::confine(tx.db(), &caller, claim, WRITE_STATEMENT_MAX).await?,
                None => Uuid::nil(),
            };
            *found = in_tenant.then_some(tenant);
            let key_id = caller.key_id;
            let waiting = Waiting { ingress: &ingress, later, tenant, key_id, key: key.as_ref() };
            if let Some(key) = &key {
                match key.claim(tx.db(), key_id, lease).await? {
                    Claim::Taken => {}
                    Claim::Answered(stored) => {
                        tx.rollback().await?;
                        return Ok(replay(stored.open(&ingress.vault, tenant)?));
                    }
                    Claim::Waiting(reference) => {
                        tx.commit().await?;
                        if unwaited {
                            return Ok(replayed(committed(reference)));
                        }
                        return Ok(replayed(waiting.conclude(reference, false).await));
                    }
                }
                sqlx::raw_sql("savepoint act").execute(tx.db()).await?;
            }
            let mut ctx = RequestContext {
                tx,
                tenant,
                caller: Arc::clone(&caller),
                ingress: Arc::clone(&ingress),
                announcements: Vec::new(),
                path: path.clone(),
                outside,
            };
            let result = prepared(&mut ctx).await;
            let RequestContext { tx, announcements, outside: after, .. } = ctx;
            outside = after;
            if has_work && outside.is_asked() {
                tx.rollback().await?;
                outside.work().await?;
                continue;
            }
            if dry {
                tx.rollback().await?;
                return Ok(would_be(&result?)?.into_response());
            }
            let scoped = Scoped { tenant, key_id, key: key.as_ref(), lease };
            let reply = settle(&ingress, tx, scoped, result, announcements).await?;
            // Not before the commit, which may wait for the disk: until then the connection keeps what it sent.
            drop(permit.take());
            return match reply.later {
                Some(reference) if unwaited => committed(reference).map(IntoResponse::into_response),
                Some(reference) => waiting.conclude(reference, true).await.map(IntoResponse::into_response),
                None => Ok(reply.into_response()),
            };
        }
    }
}

/// The answer to a dry run.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct WouldAnswer {
    #[schemars(range(min = 200, max = 299))]
    would_answer: u16,
}

/// Answers which status the write would have. Its ids are gone with it.
fn would_be(reply: &Reply) -> Result<Reply, ApiError> {
    Reply::ok(&WouldAnswer { would_answer: reply.status.as_u16() })
}

/// The answer to a write whose outcome nobody waits for.
#[derive(Serialize)]
struct Committed {
    message_id: Uuid,
}

/// Answers that a write is committed. Its outcome is not waited for.
fn committed(reference: Uuid) -> Result<Reply, ApiError> {
    Reply::accepted(&Committed { message_id: reference })
}

/// A write whose answer may come later.
struct Waiting<'a> {
    ingress: &'a Arc<Ingress>,
    later: Option<Later>,
    tenant: Uuid,
    key_id: Uuid,
    key: Option<&'a IdempotencyKey>,
}

impl Waiting<'_> {
    async fn conclude(&self, reference: Uuid, fresh: bool) -> Result<Reply, ApiError> {
        let later = self.later.ok_or_else(|| {
            tracing::error!("a route answers later and does not say how");
            ApiError::internal()
        })?;
        let scoped = self.key.map(|key| later::Scoped { key, key_id: self.key_id });
        let awaited = Awaited { tenant: self.tenant, reference, fresh };
        later::conclude(self.ingress, later, awaited, scoped).await
    }
}

/// Memory for what is read from bodies.
struct Capacity {
    kib: usize,
    permits: Semaphore,
}

impl Capacity {
    const fn new(bytes: usize) -> Self {
        Self { kib: bytes / 1024, permits: Semaphore::const_new(bytes / 1024) }
    }

    /// Waits until a body of this [`json::weight`] may be read. A light one needs no permit; one that is heavier than all there is
    /// takes all of it.
    async fn acquire(&'static self, weight: usize) -> Result<Option<SemaphorePermit<'static>>, ApiError> {
        if weight <= BODY_MAX_BYTES {
            return Ok(None);
        }
        let kib = u32::try_from((weight / 1024).min(self.kib)).unwrap_or(u32::MAX);
        self.permits.acquire_many(kib).await.map(Some).map_err(|error| ApiError::unexpected(&error))
    }
}

/// Parses a body; a large one off the reactor, where it would hold up everybody else.
async fn parse(body: &Bytes) -> Result<Map<String, Value>, ApiError> {
    if body.len() <= BODY_MAX_BYTES {
        return json::parse(body);
    }
    let body = body.clone();
    tokio::task::spawn_blocking(move || json::parse(&body)).await?
}

/// Whose act it was, and what a repeat is recognised by.
struct Scoped<'a> {
    tenant: Uuid,
    key_id: Uuid,
    key: Option<&'a IdempotencyKey>,
    /// For an answer that comes later: how long this request may wait for it.
    lease: Duration,
}

/// Commits the effect with its stored answer; or undoes the effect and keeps the refusal, where it is one to keep.
async fn settle(
    ingress: &Ingress,
    mut tx: Tx,
    scoped: Scoped<'_>,
    result: Result<Reply, ApiError>,
    announcements: Vec<Publication>,
) -> Result<Reply, ApiError> {
    let Scoped { tenant, key_id, key, lease } = scoped;
    match (result, key) {
        (Ok(reply), key) => {
            match (key, reply.later) {
                (Some(key), Some(reference)) => key.park(tx.db(), key_id, reference, lease).await?,
                (Some(key), None) if reply.has_secret => {
                    let sealed = idempotency::seal(&ingress.vault, tenant, &reply.body)?;
                    key.complete(tx.db(), key_id, reply.status, &sealed).await?;
                }
                (Some(key), None) => key.complete(tx.db(), key_id, reply.status, &reply.body).await?,
                (None, _) => {}
            }
            tx.commit().await?;
            ingress.facts.notify();
            announce(ingress, announcements);
            Ok(reply)
        }
        (Err(error), Some(key)) if error.is_deterministic() => {
            sqlx::raw_sql("rollback to savepoint act").execute(tx.db()).await?;
            key.complete(tx.db(), key_id, error.status, &error.body()).await?;
            tx.commit().await?;
            Err(error)
        }
        (Err(error), _) => {
            // The refusal is the answer, whatever becomes of the rollback: a connection that cannot roll back is closed.
            if tx.rollback().await.is_err() {
                tracing::debug!("rollback failed; the connection is dropped");
            }
            Err(error)
        }
    }
}

/// Rings the doorbell behind the answer's back: what is announced is committed, and the sweep rings again if this fails.
pub(crate) fn announce(ingress: &Ingress, announcements: Vec<Publication>) {
    if announcements.is_empty() {
        return;
    }
    let bus = ingress.bus.clone();
    ingress.tasks.spawn(trace::inherit(async move {
        match tokio::time::timeout(ANNOUNCE_MAX, bus.publish_all(announcements)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%error, "not announced; the sweep will"),
            Err(_) => tracing::warn!("not announced in time; the sweep will"),
        }
    }));
}

fn replay(stored: Stored) -> Response {
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("application/json")),
        (REPLAYED, HeaderValue::from_static("true")),
    ];
    (stored.status, headers, stored.body).into_response()
}

/// An outcome that a repeat found: nothing was done again.
fn replayed(result: Result<Reply, ApiError>) -> Response {
    let mut response = result.map_or_else(IntoResponse::into_response, IntoResponse::into_response);
    response.headers_mut().insert(REPLAYED, HeaderValue::from_static("true"));
    response
}

/// What was learnt on the way, for the answer's headers and the access log.
#[derive(Debug, Default)]
struct Seen {
    rate: Option<RateState>,
    trace: Trace,
}

impl Seen {
    fn finish(self, result: Result<Response, ApiError>) -> Response {
        let mut response = result.unwrap_or_else(IntoResponse::into_response);
        if let Some(rate) = self.rate {
            add_rate_headers(response.headers_mut(), rate);
        }
        response.extensions_mut().insert(self.trace);
        response
    }
}

fn add_rate_headers(headers: &mut http::HeaderMap, rate: RateState) {
    let now = u64::try_from(chrono::Utc::now().timestamp()).unwrap_or(0);
    let combined = format!("\"key\";r={};t={}", rate.remaining(), rate.resets_in);
    if let Ok(value) = HeaderValue::try_from(combined) {
        headers.insert("ratelimit", value);
    }
    headers.insert("x-ratelimit-limit", HeaderValue::from(rate.limit));
    headers.insert("x-ratelimit-remaining", HeaderValue::from(rate.remaining()));
    headers.insert("x-ratelimit-reset", HeaderValue::from(now + u64::from(rate.resets_in)));
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[derive(Debug, serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Query {
        limit: Option<i64>,
        email: Option<String>,
    }

    #[test]
    fn the_tenant_is_split_from_the_other_parameters() {
        let (claim, rest) = split_query(Some("limit=5&product_tenant_id=a%20b&email=x%2By%40example.com")).unwrap();
        assert_eq!(claim.product_tenant_id, "a b");
        let query = decode_query::<Query>(&rest).unwrap();
        assert_eq!((query.limit, query.email.as_deref()), (Some(5), Some("x+y@example.com")));
    }

    #[rstest]
    #[case("", "product_tenant_id", "required")]
    #[case("product_tenant_id=", "product_tenant_id", "invalid")]
    #[case("product_tenant_id=a&product_tenant_id=a", "product_tenant_id", "duplicate")]
    #[case("product_tenant_id=a&engine_tenant_id=x", "engine_tenant_id", "invalid")]
    #[case("product_tenant_id=a&email=%00", "email", "invalid")]
    #[case("product_tenant_id=a&limit=many", "limit", "invalid")]
    #[case("product_tenant_id=a&colour=red", "colour", "unknown_field")]
    fn a_bad_query_is_refused_with_its_parameter(#[case] query: &str, #[case] path: &str, #[case] code: &str) {
        let error = split_query(Some(query)).and_then(|(_, rest)| decode_query::<Query>(&rest).map(drop)).unwrap_err();
        assert_eq!((error.fields[0].path.as_str(), error.fields[0].code.as_ref()), (path, code), "{error:?}");
    }
}
