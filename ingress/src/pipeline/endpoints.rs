//! Makes endpoints from handlers: reads and writes, with or without a tenant.

use std::{future::Future, pin::Pin, sync::Arc};

use axum::{
    extract::{RawPathParams, Request, State},
    response::Response,
};
use runtime::plans::AccessPattern;

use super::{
    body,
    doc::RouteInput,
    handler::{HandlerOf, Preparation, PreparationContext, Preparer, QueryReader, RequestInput, prepared, refused},
    json,
    later::OutcomeWaiter,
    perform,
    query::decode_query,
    route::{KeyAccess, RouteEndpoint},
    types,
};
use crate::state::Ingress;

/// What axum calls for a route.
type ResponseFuture = Pin<Box<dyn Future<Output = Response> + Send>>;

/// A GET: `product_tenant_id` is a query parameter, the others are `Query`'s fields (which should `deny_unknown_fields`).
pub fn read<Query: RequestInput>(scope: &'static str, handler: impl HandlerOf<Query>) -> RouteEndpoint {
    reading(KeyAccess::new(scope), false, handler)
}

/// A [`read`] of a list: `limit` and `cursor` are taken out of the query, and [`RequestContext::page`](super::RequestContext::page) has
/// them.
pub fn read_page<Query: RequestInput>(scope: &'static str, handler: impl HandlerOf<Query>) -> RouteEndpoint {
    reading(KeyAccess::new(scope), true, handler).reads(RouteInput::page_query::<Query>())
}

/// A GET without a tenant: no `product_tenant_id`, and the transaction sees no tenant's rows. For the operations integration.
pub fn platform_read<Query: RequestInput>(scope: &'static str, handler: impl HandlerOf<Query>) -> RouteEndpoint {
    reading(KeyAccess { in_tenant: false, ..KeyAccess::new(scope) }, false, handler)
}

fn reading<Query: RequestInput>(access: KeyAccess, in_pages: bool, handler: impl HandlerOf<Query>) -> RouteEndpoint {
    let handler = Arc::new(handler);
    let reader: QueryReader = Arc::new(move |query| match decode_query::<Query>(&query) {
        Ok(query) => prepared(Arc::clone(&handler), query),
        Err(error) => refused(error),
    });
    RouteEndpoint::new(
        Some(access),
        move |State(ingress): State<Arc<Ingress>>, path: RawPathParams, request: Request| -> ResponseFuture {
            let reader = Arc::clone(&reader);
            Box::pin(perform::read(ingress, id_in(&path), request, access, in_pages, reader))
        },
    )
    .reads(RouteInput::Query(types::query::<Query>))
}

/// A POST, PATCH or DELETE within a tenant: `product_tenant_id` is a body field and taken out before `Body` is read (which should
/// `deny_unknown_fields`). It runs in a task of its own, with idempotency, in one transaction.
pub fn write<Body: RequestInput>(scope: &'static str, handler: impl HandlerOf<Body>) -> RouteEndpoint {
    writing(perform::Write::new(KeyAccess::new(scope)), handler)
}

/// A [`write`] that is frequent and finds all its rows by key: its statements keep their plans. It waits for no rows that another write may
/// hold for long.
pub fn write_by_key<Body: RequestInput>(scope: &'static str, handler: impl HandlerOf<Body>) -> RouteEndpoint {
    writing(perform::Write::by_key(KeyAccess::new(scope)), handler)
}

/// A [`write`] with the body limit of imports. `prepare` makes the handler's input from the body, as in [`write_and_wait`].
pub fn write_large<Body: RequestInput, Input: Send + 'static>(
    scope: &'static str,
    prepare: fn(PreparationContext, Body) -> Preparation<Input>,
    handler: impl HandlerOf<Input>,
) -> RouteEndpoint {
    let access = KeyAccess { body_max_bytes: body::IMPORT_BODY_MAX_BYTES, ..KeyAccess::new(scope) };
    preparing(perform::Write::new(access), prepare, handler)
}

/// A [`write_by_key`] with the body limit of one-off messages. `prepare` makes the handler's input from the body, as in [`write_and_wait`].
pub fn write_with_files<Body: RequestInput, Input: Send + 'static>(
    scope: &'static str,
    prepare: fn(PreparationContext, Body) -> Preparation<Input>,
    handler: impl HandlerOf<Input>,
) -> RouteEndpoint {
    let access = KeyAccess { body_max_bytes: body::MESSAGE_BODY_MAX_BYTES, ..KeyAccess::new(scope) };
    preparing(perform::Write::by_key(access), prepare, handler)
}

/// A [`write`] whose handler parses or renders templates, or makes network requests: see
/// [`RequestContext::run_blocking`](super::RequestContext::run_blocking) and
/// [`RequestContext::wait_without_connection`](super::RequestContext::wait_without_connection).
pub fn write_with_work<Body: RequestInput>(scope: &'static str, handler: impl HandlerOf<Body>) -> RouteEndpoint {
    writing(perform::Write { has_work: true, ..perform::Write::new(KeyAccess::new(scope)) }, handler)
}

/// A [`write`] with a body limit of its own, whose statements keep their plans, that answers after the outcome: the handler returns
/// [`ApiReply::later`](super::ApiReply::later), and `later` waits for the outcome of the committed work, also for a repeat after a crash.
///
/// `prepare` makes the handler's input from the body while no connection to Postgres is held, such as the inspection of attachments. Its
/// errors are part of the input, so that they are answered and stored for a repeat like errors of the handler.
pub fn write_and_wait<Body: RequestInput, Input: Send + 'static>(
    scope: &'static str,
    body_max_bytes: usize,
    prepare: fn(PreparationContext, Body) -> Preparation<Input>,
    handler: impl HandlerOf<Input>,
    later: OutcomeWaiter,
) -> RouteEndpoint {
    let (access, pattern) = (KeyAccess { body_max_bytes, ..KeyAccess::new(scope) }, AccessPattern::ByKey);
    preparing(perform::Write { later: Some(later), pattern, ..perform::Write::new(access) }, prepare, handler)
}

/// A [`write`] without a tenant: the body keeps its `product_tenant_id`, and the transaction sees no tenant's rows.
pub fn provision<Body: RequestInput>(scope: &'static str, handler: impl HandlerOf<Body>) -> RouteEndpoint {
    writing(perform::Write::new(KeyAccess { in_tenant: false, ..KeyAccess::new(scope) }), handler)
}

fn writing<Body: RequestInput>(spec: perform::Write, handler: impl HandlerOf<Body>) -> RouteEndpoint {
    preparing::<Body, Body>(spec, |_, body| Box::pin(std::future::ready(body)), handler)
}

fn preparing<Body: RequestInput, Input: Send + 'static>(
    spec: perform::Write,
    prepare: fn(PreparationContext, Body) -> Preparation<Input>,
    handler: impl HandlerOf<Input>,
) -> RouteEndpoint {
    let handler = Arc::new(handler);
    let preparer: Preparer = Arc::new(move |before, object| {
        let handler = Arc::clone(&handler);
        Box::pin(async move {
            match json::decode::<Body>(object) {
                Ok(body) => prepared(handler, prepare(before, body).await),
                Err(error) => refused(error),
            }
        })
    });
    prepared_writing(spec, preparer).reads(RouteInput::Body(types::body::<Body>))
}

fn prepared_writing(spec: perform::Write, preparer: Preparer) -> RouteEndpoint {
    RouteEndpoint::new(
        Some(spec.access),
        move |State(ingress): State<Arc<Ingress>>, path: RawPathParams, request: Request| -> ResponseFuture {
            let preparer = Arc::clone(&preparer);
            Box::pin(perform::write(ingress, id_in(&path), request, spec, preparer))
        },
    )
}

/// The `{id}` of a path.
fn id_in(path: &RawPathParams) -> Option<String> {
    path.iter().find(|(name, _)| *name == "id").map(|(_, id)| id.to_owned())
}
