//! Announcements continue the trace that the work was requested in (W3C Trace Context).
//!
//! Each batch of a campaign has a trace of its own, linked to the launch: one trace with thousands of steps could not be read. The ledger
//! keeps the trace of a batch, so its next announcement joins the same trace.

use std::collections::{BTreeMap, HashMap};

use runtime::trace::{self, Span, SpanKind, TraceContext, TracedWork};
use sqlx::PgPool;
use uuid::Uuid;

use super::announce::{AnnouncedBatch, AnnouncedRequest};

/// The spans of announcements, for work that is traced. A span ends when it is dropped.
pub(super) type Spans = HashMap<TracedWork, Span>;

/// Spans for announcements of batches. Tracing stops no mail: if the look-up fails, the batches are not traced.
pub(super) async fn spans_of_batches(pool: &PgPool, announced: &[AnnouncedBatch]) -> Spans {
    if announced.is_empty() {
        return Spans::new();
    }
    let spans = find_batch_spans(pool, announced).await.unwrap_or_else(|error| {
        tracing::debug!(transient = runtime::db::is_transient(&error), "traces of batches are not known");
        Spans::new()
    });
    for batch in announced {
        if let Some(span) = spans.get(&batch.work()) {
            describe(span, batch.work(), "mail.batch_id", batch.announcement);
            span.set("mail.lane", batch.lane.as_str());
        }
    }
    spans
}

/// Spans for announcements of requests.
pub(super) async fn spans_of_requests(pool: &PgPool, announced: &[AnnouncedRequest]) -> Spans {
    if announced.is_empty() {
        return Spans::new();
    }
    let works: BTreeMap<TracedWork, i32> =
        announced.iter().map(|request| (request.work(), request.announcements)).collect();
    let keys: Vec<TracedWork> = works.keys().copied().collect();
    let kept = trace::kept(pool, &keys).await.unwrap_or_default();
    let span = |(work, context): (TracedWork, TraceContext)| {
        let span = Span::of(SpanKind::Producer, "audience announce", &context);
        describe(&span, work, "mail.request_id", works.get(&work).copied().unwrap_or_default());
        (work, span)
    };
    kept.into_iter().map(span).collect()
}

async fn find_batch_spans(pool: &PgPool, announced: &[AnnouncedBatch]) -> sqlx::Result<Spans> {
    let (tenants, ids): (Vec<Uuid>, Vec<Uuid>) = announced.iter().map(AnnouncedBatch::work).unzip();
    let rows = sqlx::query_file!("queries/dispatch/traced_batches.sql", &tenants, &ids).fetch_all(pool).await?;
    let (mut spans, mut begun) = (Spans::new(), Vec::new());
    for row in rows {
        let Some(context) = TraceContext::parse(&row.traceparent, row.tracestate.as_deref()) else { continue };
        let work = (row.tenant_id, row.id);
        let span = if row.is_own {
            Span::of(SpanKind::Producer, "audience announce", &context)
        } else {
            let span = Span::because_of(SpanKind::Producer, "audience dispatch", &context);
            begun.extend(span.context().map(|context| (work, context)));
            span
        };
        spans.insert(work, span);
    }
    if !begun.is_empty() {
        trace::keep_all(&mut *pool.acquire().await?, &begun).await?;
    }
    Ok(spans)
}

fn describe(span: &Span, (tenant, work): TracedWork, key: &'static str, announcement: i32) {
    span.set("messaging.system", "nats");
    span.set("messaging.operation.type", "send");
    span.set_id("mail.tenant_id", tenant);
    span.set_id(key, work);
    span.set("mail.announcement", i64::from(announcement));
}
