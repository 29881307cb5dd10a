//! The pipeline of a request: admit, find the tenant, replay or run the handler, commit, announce.

use std::{sync::Arc, time::Duration};

use axum::{
    extract::{MatchedPath, Request},
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use http::{HeaderName, HeaderValue, header};
use runtime::{Publication, db::within, plans::AccessPattern, trace};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};
use uuid::Uuid;

use super::{
    auth::{self, AdmittedRequest, keys::Caller},
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
    route::KeyAccess,
    shares::Share,
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

#[derive(Debug, Clone, Copy)]
pub(super) struct Write {
    /// The callers that may make it, and its longest body.
    pub access: KeyAccess,
    /// For a write that answers after its commit: waits for the outcome.
    pub later: Option<OutcomeWaiter>,
    /// The access pattern of its statements.
    pub pattern: AccessPattern,
    /// True if the handler may ask for work outside the transaction.
    pub has_work: bool,
    /// True if it may wait for rows that another transaction of its tenant holds for long, as an import.
    pub takes_turns: bool,
}

impl Write {
    /// A write that is answered at once.
    pub fn new(access: KeyAccess) -> Self {
        Self { access, later: None, pattern: AccessPattern::Scan, has_work: false, takes_turns: true }
    }

    /// A frequent write that finds all its rows by key, and waits for no rows that another write may hold for long.
    pub fn by_key(access: KeyAccess) -> Self {
        Self { pattern: AccessPattern::ByKey, takes_turns: false, ..Self::new(access) }
    }
}

/// Answers a GET. `in_pages`: the query asks for a page of a list.
pub(super) async fn read(
    ingress: Arc<Ingress>,
    path_id: Option<String>,
    request: Request,
    access: KeyAccess,
    in_pages: bool,
    reader: QueryReader,
) -> Response {
    let mut observed = Observed::default();
    let limit = ingress.settings.http_request_timeout;
    let work = run_read(&ingress, path_id, request, access, in_pages, reader, &mut observed);
    let result = match tokio::time::timeout(limit, work).await {
        Ok(result) => result.map(IntoResponse::into_response),
        Err(_) => Err(too_slow()),
    };
    observed.finish(result)
}

fn too_slow() -> ApiError {
    ApiError::unavailable().detail("the answer took too long")
}

async fn run_read(
    ingress: &Arc<Ingress>,
    path_id: Option<String>,
    request: Request,
    access: KeyAccess,
    in_pages: bool,
    reader: QueryReader,
    observed: &mut Observed,
) -> Result<ApiReply, ApiError> {
    let (parts, unread) = request.into_parts();
    // Parsed first, so that the tenant is looked up along with nonce and rate. A fault in it is answered after authentication.
    let asked = if access.in_tenant {
        split_query(parts.uri.query()).map(|(claim, query)| (Some(claim), query))
    } else {
        Ok((None, parts.uri.query().unwrap_or_default().to_owned()))
    };
    if let Ok((Some(claim), _)) = &asked {
        observed.trace.tenant.set_name(&claim.product_tenant_id);
    }
    let by_key = parts.extensions.get::<MatchedPath>().is_some_and(|path| path.as_str().ends_with("/{id}"));
    let AdmittedRequest { caller, tenant, .. } = auth::admit(ingress, &parts, unread, access, observed).await?;
    let (claim, query) = asked?;
    let tenant = claim.map_or(Ok(Uuid::nil()), |claim| tenant::check(tenant, &caller, &claim))?;
    if access.in_tenant {
        observed.trace.tenant.set_id(tenant);
    }
    let pattern = if by_key { AccessPattern::ByKey } else { AccessPattern::Scan };
    let (page, query) = if in_pages { split_page(&query) } else { (String::new(), query) };
    let PageQuery { limit, cursor } = decode_query(&page)?;
    let page = ListPage::new(limit, cursor.as_deref())?;
    let prepared = reader(query);
    let tx = transaction::begin_read(ingress, pattern, tenant).await?;
    let request = PreparationContext { ingress: Arc::clone(ingress), caller, tenant };
    let mut ctx = RequestContext { page, ..RequestContext::new(tx, request, path_id) };
    let reply = prepared(&mut ctx).await;
    drop(ctx);
    reply
}

/// Answers a POST, PATCH or DELETE.
pub(super) async fn write(
    ingress: Arc<Ingress>,
    path_id: Option<String>,
    request: Request,
    spec: Write,
    preparer: Preparer,
) -> Response {
    let mut observed = Observed::default();
    let result = run_write(&ingress, path_id, request, spec, preparer, &mut observed).await;
    observed.finish(result)
}

async fn run_write(
    ingress: &Arc<Ingress>,
    path_id: Option<String>,
    request: Request,
    spec: Write,
    preparer: Preparer,
    observed: &mut Observed,
) -> Result<Response, ApiError> {
    let (parts, unread) = request.into_parts();
    let limit = ingress.settings.http_request_timeout;
    // Its key is looked up: when the host of Postgres vanishes, an answer to that is waited for for ever. The body has its own time.
    let admission_max = limit + ingress.settings.http_body_timeout * 3 / 2;
    let admission = auth::admit(ingress, &parts, unread, spec.access, observed);
    let admitted = tokio::time::timeout(admission_max, admission).await;
    let AdmittedRequest { caller, body, tenant } = admitted.map_err(|_| too_slow())??;
    body::require_json(&parts.headers)?;
    let key = IdempotencyKey::from_headers(&parts.headers, parts.method.as_str(), parts.uri.path(), &body)?;
    let trusted = parts.extensions.get::<auth::TrustedCaller>();
    let work = WriteRequest {
        ingress: Arc::clone(ingress),
        caller,
        path_id,
        key,
        linked: tenant,
        seen: Arc::clone(&observed.trace.tenant),
        spec,
        dry_run: trusted.is_some_and(|trusted| trusted.dry_run),
        skips_outcome: trusted.is_some_and(|trusted| trusted.skips_outcome),
    };
    // In a task of its own: axum drops a handler whose client disconnects, and a write must not stop halfway.
    let work = within(WRITE_MAX, Box::pin(work.run_handler(body, preparer)));
    let task = ingress.tasks.spawn(trace::inherit(work));
    match tokio::time::timeout(limit, task).await {
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

struct WriteRequest {
    ingress: Arc<Ingress>,
    caller: Arc<Caller>,
    path_id: Option<String>,
    key: Option<IdempotencyKey>,
    /// The tenant that is linked under the name that `seen` has, if the admission looked it up.
    linked: Option<Uuid>,
    /// Filled in with the tenant.
    seen: Arc<SeenTenant>,
    spec: Write,
    /// Roll back and only answer whether the request would be accepted.
    dry_run: bool,
    /// Answer at the commit.
    skips_outcome: bool,
}

impl WriteRequest {
    async fn run_handler(self, body: Bytes, preparer: Preparer) -> Result<Response, ApiError> {
        let Self { ingress, caller, spec, .. } = &self;
        let capacity: &ParseCapacity = match spec.access.body_max_bytes {
            _ if spec.has_work => &WORK_ON_BODIES,
            ..=body::MESSAGE_BODY_MAX_BYTES => &READ_MESSAGES,
            _ => &READ_IMPORTS,
        };
        let weight = json::weight(&body);
        let mut permit = capacity.acquire(weight, &caller.product).await;
        let mut object = parse(body).await?;
        let tenant = if spec.access.in_tenant { self.take_tenant(&mut object).await? } else { Uuid::nil() };
        let before = PreparationContext { ingress: Arc::clone(ingress), caller: Arc::clone(caller), tenant };
        let mut deferred = DeferredWork::default();
        loop {
            // Prepared again from the same object after work outside the transaction.
            let given = if spec.has_work { object.clone() } else { std::mem::take(&mut object) };
            let prepared = preparer(before.clone(), given).await;
            if spec.later.is_some() {
                // From here on this request only waits for Postgres, and the next may be parsed.
                drop(permit.take());
                permit = STORE_MESSAGES.acquire(weight, &caller.product).await;
            }
            let turns = self.take_turns(tenant).await?;
            let mut tx = transaction::begin_write(ingress, spec.pattern, tenant).await?;
            if let Some(key) = &self.key {
                let named = spec.access.in_tenant.then_some(tenant);
                match key.claim(tx.db(), caller.lineage, named, self.lease()).await {
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
                        drop((turns, permit.take()));
                        return Ok(replayed(self.answer_later(tenant, reference, false).await.into_response()));
                    }
                }
                sqlx::raw_sql("savepoint handler").execute(tx.db()).await?;
            }
            let mut ctx = RequestContext { deferred, ..RequestContext::new(tx, before.clone(), self.path_id.clone()) };
            let result = prepared(&mut ctx).await;
            let RequestContext { tx, announcements, commits_facts, deferred: after, .. } = ctx;
            deferred = after;
            if spec.has_work && deferred.is_queued() {
                tx.rollback().await?;
                drop(turns);
                deferred.run_queued().await?;
                continue;
            }
            if self.dry_run {
                tx.rollback().await?;
                // The status that the write would have. Its ids are rolled back.
                let would_answer = result?.status.as_u16();
                return Ok(ApiReply::ok(&WouldAnswer { would_answer })?.into_response());
            }
            let reply = self.commit_or_undo(tx, tenant, result).await?;
            if commits_facts {
                ingress.facts.notify();
            }
            announce(ingress, announcements);
            // After the commit, which may wait for the disk: until then the connection holds what it sent.
            drop((turns, permit.take()));
            return match reply.later {
                Some(reference) => self.answer_later(tenant, reference, true).await.map(IntoResponse::into_response),
                None => Ok(reply.into_response()),
            };
        }
    }

    /// Takes the tenant's names out of the body, and finds it.
    async fn take_tenant(&self, object: &mut Map<String, Value>) -> Result<Uuid, ApiError> {
        let claim = TenantClaim::take_from(object)?;
        let found = if self.seen.name() == Some(&claim.product_tenant_id) {
            self.linked
        } else {
            // A long body is not searched for its tenant before it is parsed.
            self.seen.set_name(&claim.product_tenant_id);
            self.ingress.admissions.find_tenant(&self.caller, &claim).await?
        };
        tenant::check(found, &self.caller, &claim).inspect(|tenant| self.seen.set_id(*tenant))
    }

    /// Waits until less than the tenant's share of the connections are its writes'; above tenants, the product's. An import waits for the
    /// imports' part of that first.
    async fn take_turns(&self, tenant: Uuid) -> Result<Vec<Share>, ApiError> {
        let (ingress, spec) = (&self.ingress, &self.spec);
        let owner = if tenant.is_nil() { self.caller.product.clone() } else { tenant.to_string() };
        let mut turns = Vec::new();
        if spec.access.body_max_bytes == body::IMPORT_BODY_MAX_BYTES {
            turns.push(ingress.import_turns.take_turn(&owner).await?);
        }
        if spec.takes_turns {
            turns.push(ingress.write_turns.take_turn(&owner).await?);
        }
        Ok(turns)
    }

    /// For an answer after the commit: the lease of this request. One that does not wait takes none: a repeat may wait at once.
    fn lease(&self) -> Duration {
        if self.skips_outcome { Duration::ZERO } else { later::LEASE }
    }

    /// Commits the effect with its stored answer. After an error, rolls the effect back and stores the refusal if it is final.
    async fn commit_or_undo(
        &self,
        mut tx: Tx,
        tenant: Uuid,
        result: Result<ApiReply, ApiError>,
    ) -> Result<ApiReply, ApiError> {
        let key_id = self.caller.lineage;
        match (result, &self.key) {
            (Ok(reply), key) => {
                match (key, reply.later) {
                    (Some(key), Some(reference)) => {
                        key.store_pending(tx.db(), key_id, reference, self.lease()).await?;
                    }
                    (Some(key), None) if reply.has_secret => {
                        let sealed = idempotency::seal_body(&self.ingress.vault, tenant, &reply.body)?;
                        key.store_answer(tx.db(), key_id, reply.status, &sealed).await?;
                    }
                    (Some(key), None) => key.store_answer(tx.db(), key_id, reply.status, &reply.body).await?,
                    (None, _) => {}
                }
                tx.commit().await?;
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

    /// Answers after the commit: with the outcome, or that the write is committed if the caller does not wait. `fresh`: this request
    /// made the commit.
    async fn answer_later(&self, tenant: Uuid, reference: Uuid, fresh: bool) -> Result<ApiReply, ApiError> {
        if self.skips_outcome {
            return ApiReply::accepted(&CommittedMessage { message_id: reference });
        }
        let waiter = self.spec.later.ok_or_else(|| {
            tracing::error!("a route answers later and does not say how");
            ApiError::internal()
        })?;
        let key = self.key.as_ref().map(|key| (key, self.caller.lineage));
        later::wait_for_outcome(&self.ingress, waiter, Awaited { tenant, reference, fresh }, key).await
    }
}

/// The answer to a dry run.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct WouldAnswer {
    #[schemars(range(min = 200, max = 299))]
    would_answer: u16,
}

/// The answer to a write whose caller does not wait for the outcome.
#[derive(Serialize)]
struct CommittedMessage {
    message_id: Uuid,
}

/// Parses a body and frees it; a large one on a blocking thread, since it would hold up the reactor.
async fn parse(body: Bytes) -> Result<Map<String, Value>, ApiError> {
    if body.len() <= BODY_MAX_BYTES {
        return json::parse(&body);
    }
    tokio::task::spawn_blocking(move || json::parse(&body)).await?
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
    let content_type = [(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))];
    let refusal =
        (!stored.status.is_success()).then(|| RefusalReason::of(&ApiError::read(stored.status, &stored.body)));
    let mut response = (stored.status, content_type, stored.body).into_response();
    if let Some(refusal) = refusal {
        response.extensions_mut().insert(refusal);
    }
    replayed(response)
}

/// Marks the answer to a repeat, which had no effect of its own.
fn replayed(mut response: Response) -> Response {
    response.headers_mut().insert(REPLAYED, HeaderValue::from_static("true"));
    response
}
