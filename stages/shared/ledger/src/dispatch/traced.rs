//! Announcements continue the trace that the work was requested in (W3C Trace Context).
//!
//! Each batch of a campaign has a trace of its own, linked to the launch: one trace with thousands of steps could not be read. The ledger
//! keeps the trace of a batch, so its next announcement joins the same trace.

use std::collections::{BTreeMap, HashMap};

use runtime::trace::{self, Ambient, Span, SpanKind, TraceContext};
use schemas::{RequestKind, SendId};
use sqlx::PgPool;
use uuid::Uuid;

use crate::dispatch::announced::{AnnouncedBatch, AnnouncedRequest};

/// A tenant and a piece of its work: a batch or a request.
type Key = (Uuid, Uuid);

/// The spans of announcements, for work that is traced. A span ends when it is dropped.
#[derive(Debug, Default)]
pub struct AnnouncementSpans(HashMap<Key, Span>);

impl AnnouncementSpans {
    /// The span of a batch's announcement.
    pub fn of_batch(&self, batch: &AnnouncedBatch) -> Option<Ambient> {
        self.0.get(&(batch.tenant_id, batch.batch_id)).map(Span::ambient)
    }

    /// The span of a request's announcement.
    pub fn of_request(&self, request: &AnnouncedRequest) -> Option<Ambient> {
        self.0.get(&key_of(request)).map(Span::ambient)
    }

    /// Spans for announcements of batches. Tracing stops no mail: if the look-up fails, the batches are not traced.
    pub async fn batches(pool: &PgPool, announced: &[AnnouncedBatch]) -> Self {
        if announced.is_empty() {
            return Self::default();
        }
        let found = find_batch_spans(pool, announced).await.unwrap_or_else(|error| {
            tracing::debug!(transient = runtime::db::is_transient(&error), "traces of batches are not known");
            AnnouncementSpans::default()
        });
        for batch in announced {
            if let Some(span) = found.0.get(&(batch.tenant_id, batch.batch_id)) {
                describe(span, batch.tenant_id, "mail.batch_id", batch.batch_id, batch.announcement);
                span.set("mail.lane", batch.lane.as_str());
            }
        }
        found
    }

    /// Spans for announcements of requests.
    pub async fn requests(pool: &PgPool, announced: &[AnnouncedRequest]) -> Self {
        if announced.is_empty() {
            return Self::default();
        }
        let works: BTreeMap<Key, i32> =
            announced.iter().map(|request| (key_of(request), request.announcements)).collect();
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

/// Transactional requests of one call are one piece of work: the batch they will be.
fn key_of(request: &AnnouncedRequest) -> Key {
    let work = match request.kind {
        RequestKind::Transactional => SendId(request.request_id).batch(),
        _ => request.request_id,
    };
    (request.tenant_id, work)
}

async fn find_batch_spans(pool: &PgPool, announced: &[AnnouncedBatch]) -> sqlx::Result<AnnouncementSpans> {
    let (tenants, ids): (Vec<Uuid>, Vec<Uuid>) =
        announced.iter().map(|batch| (batch.tenant_id, batch.batch_id)).unzip();
    let rows = sqlx::query_file!("queries/dispatch/traced_batches.sql", &tenants, &ids).fetch_all(pool).await?;
    let (mut spans, mut begun) = (HashMap::new(), Vec::new());
    for row in rows {
        let Some(context) = TraceContext::parse(&row.traceparent, row.tracestate.as_deref()) else { continue };
        let key = (row.tenant_id, row.id);
        let span = if row.is_own {
            Span::of(SpanKind::Producer, "audience announce", &context)
        } else {
            let span = Span::because_of(SpanKind::Producer, "audience dispatch", &context);
            begun.extend(span.context().map(|context| (key, context)));
            span
        };
        spans.insert(key, span);
    }
    if !begun.is_empty() {
        trace::keep_all(&mut *pool.acquire().await?, &begun).await?;
    }
    Ok(AnnouncementSpans(spans))
}

fn describe(span: &Span, tenant: Uuid, key: &'static str, work: Uuid, announcement: i32) {
    span.set("messaging.system", "nats");
    span.set("messaging.operation.type", "send");
    span.set_id("mail.tenant_id", tenant);
    span.set_id(key, work);
    span.set("mail.announcement", i64::from(announcement));
}
