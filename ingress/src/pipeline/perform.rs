//! The pipeline of a request: admit, find the tenant, replay or run the handler, commit, announce.

use std::{sync::Arc, time::Duration};

use axum::{
    extract::{MatchedPath, Request},
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use http::{HeaderName, HeaderValue, header, request::Parts};
use runtime::{Publication, db::within, plans::AccessPattern, trace};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};
use uuid::Uuid;

use super::{
    auth::{self, AdmissionTerms, AdmittedRequest, keys::Caller},
    body::{self, BODY_MAX_BYTES},
    capacity::{ParseCapacity, READ_IMPORTS, READ_MESSAGES, STORE_MESSAGES, WORK_ON_BODIES},
    context::RequestContext,
    deferred_work::DeferredWork,
    error::ApiError,
    handler::{PreparationContext, Preparer, QueryReader},
    idempotency::{self, IdempotencyKey, KeyClaim, StoredAnswer},
    json,
    later::{self, Awaited, OutcomeWaiter},
    observed::{Observed, SeenTenant},
    page::{ListPage, PageQuery},
    query::{decode_query, split_page, split_query},
    reply::ApiReply,
    request_log::RefusalReason,
    tenant::{self, TenantClaim},
    transaction::{self, Tx},
};
use crate::state::Ingress;

/// Longest statement of a write. Postgres cancels it; the caller is answered 503 `unavailable`.
pub(super) const WRITE_STATEMENT_MAX: Duration = Duration::from_secs(50);
/// Longest work for one write, whose caller was answered long before. A host of Postgres that vanishes would otherwise keep the write's
/// connection and its share of the capacity for ever.
const WRITE_MAX: Duration = Duration::from_secs(10 * 60);
/// How long an announcement is tried after a commit; then the sweep announces.
const ANNOUNCE_MAX: Duration = Duration::from_secs(5);

/// Stands on the answer to a repeat.
pub(super) const REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");

/// The conditions of a read.
#[derive(Debug, Clone, Copy)]
pub struct Read {
    /// The scope the key must have.
    pub scope: &'static str,
    /// True if the request belongs to one tenant.
    pub in_tenant: bool,
    /// True if the query asks for a page of a list.
    pub in_pages: bool,
}

/// The conditions of a write.
#[derive(Debug, Clone, Copy)]
pub struct Write {
    /// The scope the key must have.
    pub scope: &'static str,
    /// The longest body, in bytes.
    pub body_max_bytes: usize,
    /// True if the request belongs to one tenant.
    pub in_tenant: bool,
    /// For a write that answers after its commit: waits for the outcome.
    pub later: Option<OutcomeWaiter>,
    /// The access pattern of its statements.
    pub access: AccessPattern,
    /// True if the next long body may be parsed while this one waits for Postgres.
    pub reads_ahead: bool,
    /// True if the handler may ask for work outside the transaction.
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

/// Answers a GET.
pub(super) async fn read(
    ingress: Arc<Ingress>,
    path: Vec<(String, String)>,
    request: Request,
    spec: Read,
    reader: QueryReader,
) -> Response {
    let mut observed = Observed::default();
    let limit = ingress.settings.http_request_timeout;
    let work = run_read(&ingress, path, request, spec, reader, &mut observed);
    let result = match tokio::time::timeout(limit, work).await {
        Ok(result) => result.map(IntoResponse::into_response),
        Err(_) => Err(ApiError::unavailable().detail("the answer took too long")),
    };
    observed.finish(result)
}

async fn run_read(
    ingress: &Arc<Ingress>,
    path: Vec<(String, String)>,
    request: Request,
    spec: Read,
    reader: QueryReader,
    observed: &mut Observed,
) -> Result<ApiReply, ApiError> {
    let (parts, unread) = request.into_parts();
    // Parsed first, so that the tenant is looked up along with nonce and rate. A fault in it is answered after authentication.
    let asked = if spec.in_tenant {
        split_query(parts.uri.query()).map(|(claim, query)| (Some(claim), query))
    } else {
        Ok((None, parts.uri.query().unwrap_or_default().to_owned()))
    };
    if let Ok((Some(claim), _)) = &asked {
        observed.trace.tenant.set_name(&claim.product_tenant_id);
    }
    let by_key = parts.extensions.get::<MatchedPath>().is_some_and(|path| path.as_str().ends_with("/{id}"));
    let terms = AdmissionTerms { scope: spec.scope, body_max_bytes: BODY_MAX_BYTES, in_tenant: spec.in_tenant };
    let AdmittedRequest { caller, tenant, .. } = auth::admit(ingress, &parts, unread, terms, observed).await?;
    let (claim, query) = asked?;
    let tenant = claim.map_or(Ok(Uuid::nil()), |claim| tenant::check(tenant, &caller, &claim))?;
    if spec.in_tenant {
        observed.trace.tenant.set_id(tenant);
    }
    let access = if by_key { AccessPattern::ByKey } else { AccessPattern::Scan };
    let (page, query) = if spec.in_pages { split_page(&query) } else { (String::new(), query) };
    let page = decode_query::<PageQuery>(&page)?.page()?;
    let prepared = reader(query);
    let tx = transaction::begin_read(ingress, access, tenant).await?;
    let mut ctx = RequestContext {
        tx,
        tenant,
        caller,
        ingress: Arc::clone(ingress),
        page,
        announcements: Vec::new(),
        commits_facts: false,
        path,
        deferred: DeferredWork::default(),
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
    let mut observed = Observed::default();
    let (parts, unread) = request.into_parts();
    let result = run_write(&ingress, path, parts, unread, spec, preparer, &mut observed).await;
    observed.finish(result)
}

async fn run_write(
    ingress: &Arc<Ingress>,
    path: Vec<(String, String)>,
    parts: Parts,
    unread: axum::body::Body,
    spec: Write,
    preparer: Preparer,
    observed: &mut Observed,
) -> Result<Response, ApiError> {
    let Write { scope, body_max_bytes, in_tenant, .. } = spec;
    let terms = AdmissionTerms { scope, body_max_bytes, in_tenant };
    let AdmittedRequest { caller, body, tenant } = auth::admit(ingress, &parts, unread, terms, observed).await?;
    body::require_json(&parts.headers)?;
    let key = IdempotencyKey::from_headers(&parts.headers, parts.method.as_str(), parts.uri.path(), &body)?;
    let trusted = parts.extensions.get::<auth::TrustedCaller>();
    let work = WriteRequest {
        ingress: Arc::clone(ingress),
        caller,
        path,
        key,
        linked: tenant,
        seen: Arc::clone(&observed.trace.tenant),
        body,
        capacity: match body_max_bytes {
            _ if spec.has_work => &WORK_ON_BODIES,
            ..=body::MESSAGE_BODY_MAX_BYTES => &READ_MESSAGES,
            _ => &READ_IMPORTS,
        },
        spec,
        dry_run: trusted.is_some_and(|trusted| trusted.dry_run),
        skips_outcome: trusted.is_some_and(|trusted| trusted.skips_outcome),
    };
    // In a task of its own: axum drops a handler whose client disconnects, and a write must not stop halfway.
    let work = within(WRITE_MAX, Box::pin(work.run_handler(preparer)));
    let task = ingress.tasks.spawn(trace::inherit(work));
    match tokio::time::timeout(ingress.settings.http_request_timeout, task).await {
        Ok(Ok(result)) => result,
        Ok(Err(_)) => {
            // The panic message may quote the caller's data; the panic hook has logged the place.
            tracing::error!("a handler panicked");
            Err(ApiError::internal())
        }
        Err(_) => Err(ApiError::unavailable()
            .detail("the request is still being carried out: repeat it with its Idempotency-Key to hear the outcome")),
    }
}

/// One write.
struct WriteRequest {
    ingress: Arc<Ingress>,
    caller: Arc<Caller>,
    path: Vec<(String, String)>,
    key: Option<IdempotencyKey>,
    /// The tenant that is linked under the name that `seen` has, if the admission looked it up.
    linked: Option<Uuid>,
    /// Filled in with the tenant.
    seen: Arc<SeenTenant>,
    body: Bytes,
    capacity: &'static ParseCapacity,
    spec: Write,
    /// Roll back and only answer whether the request would be accepted.
    dry_run: bool,
    /// Answer at the commit.
    skips_outcome: bool,
}

impl WriteRequest {
    async fn run_handler(self, preparer: Preparer) -> Result<Response, ApiError> {
        let Self { ingress, caller, path, key, linked, seen, body, capacity, spec, dry_run, skips_outcome } = self;
        let Write { in_tenant, later, access, reads_ahead, has_work, .. } = spec;
        // A request that does not wait takes no lease: a repeat may wait at once.
        let lease = if skips_outcome { Duration::ZERO } else { later::LEASE };
        let weight = json::weight(&body);
        let mut permit = capacity.acquire(weight, &caller.product).await;
        let mut object = parse(&body).await?;
        // A large body is freed as soon as it is parsed.
        drop(body);
        let tenant = if in_tenant {
            let claim = TenantClaim::take_from(&mut object)?;
            let found = if seen.name() == Some(&claim.product_tenant_id) {
                linked
            } else {
                // A long body is not searched for its tenant before it is parsed.
                seen.set_name(&claim.product_tenant_id);
                ingress.admissions.find_tenant(&caller, &claim).await?
            };
            tenant::check(found, &caller, &claim).inspect(|tenant| seen.set_id(*tenant))?
        } else {
            Uuid::nil()
        };
        let before = PreparationContext { ingress: Arc::clone(&ingress), caller: Arc::clone(&caller), tenant };
        let mut deferred = DeferredWork::default();
        loop {
            // Prepared again from the same object after work outside the transaction.
            let given = if has_work { object.clone() } else { std::mem::take(&mut object) };
            let prepared = preparer(before.clone(), given).await;
            if reads_ahead {
                // From here on this request only waits for Postgres, and the next may be parsed.
                drop(permit.take());
                permit = STORE_MESSAGES.acquire(weight, &caller.product).await;
            }
            let mut tx = transaction::begin_write(&ingress, access, tenant).await?;
            let key_id = caller.lineage;
            let waiting = PendingWrite { ingress: &ingress, later, tenant, key_id, key: key.as_ref() };
            if let Some(key) = &key {
                match key.claim(tx.db(), key_id, in_tenant.then_some(tenant), lease).await {
                    Err(error) => {
                        tx.undo().await;
                        return Err(error);
                    }
                    Ok(KeyClaim::Taken) => {}
                    Ok(KeyClaim::Answered(stored)) => {
                        tx.rollback().await?;
                        return Ok(replay(stored.open(&ingress.vault, tenant)?));
                    }
                    Ok(KeyClaim::Waiting(reference)) => {
                        tx.commit().await?;
                        if skips_outcome {
                            return Ok(replayed(committed(reference)));
                        }
                        return Ok(replayed(waiting.wait_for_outcome(reference, false).await));
                    }
                }
                sqlx::raw_sql("savepoint handler").execute(tx.db()).await?;
            }
            let mut ctx = RequestContext {
                tx,
                tenant,
                caller: Arc::clone(&caller),
                ingress: Arc::clone(&ingress),
                page: ListPage::first(),
                announcements: Vec::new(),
                commits_facts: true,
                path: path.clone(),
                deferred,
            };
            let result = prepared(&mut ctx).await;
            let RequestContext { tx, announcements, commits_facts, deferred: after, .. } = ctx;
            deferred = after;
            if has_work && deferred.is_queued() {
                tx.rollback().await?;
                deferred.run_queued().await?;
                continue;
            }
            if dry_run {
                tx.rollback().await?;
                return Ok(dry_run_reply(&result?)?.into_response());
            }
            let scoped = WriteScope { tenant, key_id, key: key.as_ref(), lease, commits_facts };
            let reply = commit_or_undo(&ingress, tx, scoped, result, announcements).await?;
            // After the commit, which may wait for the disk: until then the connection holds what it sent.
            drop(permit.take());
            return match reply.later {
                Some(reference) if skips_outcome => committed(reference).map(IntoResponse::into_response),
                Some(reference) => waiting.wait_for_outcome(reference, true).await.map(IntoResponse::into_response),
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

/// The status that the write would have. Its ids are rolled back.
fn dry_run_reply(reply: &ApiReply) -> Result<ApiReply, ApiError> {
    ApiReply::ok(&WouldAnswer { would_answer: reply.status.as_u16() })
}

/// The answer to a write whose caller does not wait for the outcome.
#[derive(Serialize)]
struct CommittedMessage {
    message_id: Uuid,
}

/// Answers that a write is committed, without its outcome.
fn committed(reference: Uuid) -> Result<ApiReply, ApiError> {
    ApiReply::accepted(&CommittedMessage { message_id: reference })
}

/// A write that may answer after its commit.
struct PendingWrite<'a> {
    ingress: &'a Arc<Ingress>,
    later: Option<OutcomeWaiter>,
    tenant: Uuid,
    key_id: Uuid,
    key: Option<&'a IdempotencyKey>,
}

impl PendingWrite<'_> {
    async fn wait_for_outcome(&self, reference: Uuid, fresh: bool) -> Result<ApiReply, ApiError> {
        let later = self.later.ok_or_else(|| {
            tracing::error!("a route answers later and does not say how");
            ApiError::internal()
        })?;
        let scoped = self.key.map(|key| later::ScopedKey { key, key_id: self.key_id });
        let awaited = Awaited { tenant: self.tenant, reference, fresh };
        later::wait_for_outcome(self.ingress, later, awaited, scoped).await
    }
}

/// Parses a body; a large one on a blocking thread, since it would hold up the reactor.
async fn parse(body: &Bytes) -> Result<Map<String, Value>, ApiError> {
    if body.len() <= BODY_MAX_BYTES {
        return json::parse(body);
    }
    let body = body.clone();
    tokio::task::spawn_blocking(move || json::parse(&body)).await?
}

/// Tenant, lineage of the API key, and idempotency key of a write.
struct WriteScope<'a> {
    tenant: Uuid,
    key_id: Uuid,
    key: Option<&'a IdempotencyKey>,
    /// For an answer after the commit: the lease of this request.
    lease: Duration,
    /// True if the webhooks stage is notified after the commit.
    commits_facts: bool,
}

/// Commits the effect with its stored answer. After an error, rolls the effect back and stores the refusal if it is final.
async fn commit_or_undo(
    ingress: &Ingress,
    mut tx: Tx,
    scoped: WriteScope<'_>,
    result: Result<ApiReply, ApiError>,
    announcements: Vec<Publication>,
) -> Result<ApiReply, ApiError> {
    let WriteScope { tenant, key_id, key, lease, commits_facts } = scoped;
    match (result, key) {
        (Ok(reply), key) => {
            match (key, reply.later) {
                (Some(key), Some(reference)) => key.store_pending(tx.db(), key_id, reference, lease).await?,
                (Some(key), None) if reply.has_secret => {
                    let sealed = idempotency::seal_body(&ingress.vault, tenant, &reply.body)?;
                    key.store_answer(tx.db(), key_id, reply.status, &sealed).await?;
                }
                (Some(key), None) => key.store_answer(tx.db(), key_id, reply.status, &reply.body).await?,
                (None, _) => {}
            }
            tx.commit().await?;
            if commits_facts {
                ingress.facts.notify();
            }
            announce(ingress, announcements);
            Ok(reply)
        }
        (Err(error), Some(key)) if error.is_deterministic() => {
            sqlx::raw_sql("rollback to savepoint handler").execute(tx.db()).await?;
            key.store_answer(tx.db(), key_id, error.status, &error.body()).await?;
            tx.commit().await?;
            Err(error)
        }
        (Err(error), _) => {
            tx.undo().await;
            Err(error)
        }
    }
}

/// Publishes announcements of committed work, after the answer. If this fails, the sweep announces it.
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

fn replay(stored: StoredAnswer) -> Response {
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("application/json")),
        (REPLAYED, HeaderValue::from_static("true")),
    ];
    let refusal =
        (!stored.status.is_success()).then(|| RefusalReason::of(&ApiError::read(stored.status, &stored.body)));
    let mut response = (stored.status, headers, stored.body).into_response();
    if let Some(refusal) = refusal {
        response.extensions_mut().insert(refusal);
    }
    response
}

/// Marks the answer to a repeat, which had no effect of its own.
fn replayed(result: Result<ApiReply, ApiError>) -> Response {
    let mut response = result.map_or_else(IntoResponse::into_response, IntoResponse::into_response);
    response.headers_mut().insert(REPLAYED, HeaderValue::from_static("true"));
    response
}
