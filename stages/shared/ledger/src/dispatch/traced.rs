//! Announcements from the ledger go on in the trace that the work was asked for in (W3C Trace Context).
//!
//! Of a campaign each batch has a trace of its own, linked to the launch: thousands of steps in one could not be read. It is kept with
//! the batch, so that its next announcement is found beside the first.

use std::collections::{BTreeMap, HashMap};

use runtime::trace::{self, Ambient, Span, SpanKind, TraceContext};
use schemas::{RequestKind, SendId};
use sqlx::PgPool;
use uuid::Uuid;

use crate::dispatch::announce::{AnnouncedBatch, AnnouncedRequest};

/// A tenant's piece of work.
type Key = (Uuid, Uuid);

/// The steps that announce what is traced; they end when dropped.
#[derive(Debug, Default)]
pub struct Announced(HashMap<Key, Span>);

impl Announced {
    /// What to make a batch's announcement in.
    pub fn of_batch(&self, batch: &AnnouncedBatch) -> Option<Ambient> {
        self.0.get(&(batch.tenant_id, batch.batch_id)).map(Span::ambient)
    }

    /// What to make a request's announcement in.
    pub fn of_request(&self, request: &AnnouncedRequest) -> Option<Ambient> {
        self.0.get(&key_of(request)).map(Span::ambient)
    }

    /// Those of batches. Tracing stops no mail: what cannot be looked up is not traced.
    pub async fn batches(pool: &PgPool, rung: &[AnnouncedBatch]) -> Self {
        if rung.is_empty() {
            return Self::default();
        }
        let found = look_up(pool, rung).await.unwrap_or_else(|error| {
            tracing::debug!(transient = runtime::db::is_transient(&error), "traces of batches are not known");
            Announced::default()
        });
        for batch in rung {
            if let Some(span) = found.0.get(&(batch.tenant_id, batch.batch_id)) {
                describe(span, batch.tenant_id, "mail.batch_id", batch.batch_id, batch.announcement);
                span.set("mail.lane", batch.lane.as_str());
            }
        }
        found
    }

    /// Those of requests.
    pub async fn requests(pool: &PgPool, rung: &[AnnouncedRequest]) -> Self {
        if rung.is_empty() {
            return Self::default();
        }
        let works: BTreeMap<Key, i32> = rung.iter().map(|request| (key_of(request), request.announcements)).collect();
        let keys: Vec<Key> = works.keys().copied().collect();
        let kept = trace::kept(pool, &keys).await.unwrap_or_default();
        let span = |(key, context): (Key, TraceContext)| {
            let span = Span::of(SpanKind::Producer, "audience announce", &context);
            describe(&span, key.0, "mail.request_id", key.1, works.get(&key).copied().unwrap_or_default());
            (key, span)
        };
        Self(kept.into_iter().map(span).collect())
    }
}

/// Transactional requests that were asked for at once are one work: the batch they will be.
fn key_of(request: &AnnouncedRequest) -> Key {
    let work = match request.kind {
        RequestKind::Transactional => SendId(request.request_id).batch(),
        _ => request.request_id,
    };
    (request.tenant_id, work)
}

async fn look_up(pool: &PgPool, rung: &[AnnouncedBatch]) -> sqlx::Result<Announced> {
    let (tenants, ids): (Vec<Uuid>, Vec<Uuid>) = rung.iter().map(|batch| (batch.tenant_id, batch.batch_id)).unzip();
    let rows = sqlx::query_file!("queries/dispatch/traced_batches.sql", &tenants, &ids).fetch_all(pool).await?;
    let (mut spans, mut begun) = (HashMap::new(), Vec::new());
    for row in rows {
        let Some(context) = TraceContext::parse(&row.traceparent, row.tracestate.as_deref()) else { continue };
        let key = (row.tenant_id, row.id);
        let span = if row.is_own {
            Span::of(SpanKind::Producer, "audience announce", &context)
        } else {
            let span = Span::because_of(SpanKind::Producer, "audience hand on", &context);
            begun.extend(span.context().map(|context| (key, context)));
            span
        };
        spans.insert(key, span);
    }
    if !begun.is_empty() {
        trace::keep_all(&mut *pool.acquire().await?, &begun).await?;
    }
    Ok(Announced(spans))
}

fn describe(span: &Span, tenant: Uuid, key: &'static str, work: Uuid, announcement: i32) {
    span.set("messaging.system", "nats");
    span.set("messaging.operation.type", "send");
    span.set_id("mail.tenant_id", tenant);
    span.set_id(key, work);
    span.set("mail.announcement", i64::from(announcement));
}
