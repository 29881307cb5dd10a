//! The table of routes.

use std::{
    collections::HashMap,
    sync::{Arc, LazyLock},
};

use axum::{Router, middleware};
use tower_http::catch_panic::CatchPanicLayer;

use crate::{
    api,
    documents::{
        Contracts,
        served::{self, ServedContracts},
    },
    pipeline::{Operation, Routes, observe},
    public,
    state::Ingress,
};

/// Every route there is.
fn all() -> Routes {
    Routes::new()
        .merge(public::health::routes())
        .merge(api::tenants::routes())
        .merge(api::keys::routes())
        .merge(api::connections::routes())
        .merge(api::exports::routes())
        .merge(api::requests::routes())
        .merge(api::audit::routes())
        .merge(api::contacts::routes())
        .merge(api::audiences::routes())
        .merge(api::segments::routes())
        .merge(api::fields::routes())
        .merge(api::suppressions::routes())
        .merge(api::imports::routes())
        .merge(api::templates::routes())
        .merge(api::snippets::routes())
        .merge(api::domains::routes())
        .merge(api::senders::routes())
        .merge(api::campaigns::routes())
        .merge(api::transactional::routes())
        .merge(api::messages::routes())
        .merge(api::sequences::routes())
        .merge(api::enrollments::routes())
        .merge(api::sends::routes())
        .merge(api::explain::routes())
        .merge(api::outcomes::routes())
        .merge(api::events::routes())
        .merge(api::analytics::routes())
        .merge(api::platform::routes())
        .merge(api::webhooks::routes())
        .merge(public::tracking::routes())
        .merge(public::hooks::routes())
        .merge(public::unsubscribe::routes())
        .merge(api::assistant::routes())
        .merge(served::routes(served_contracts))
}

/// All routes, with what wraps every answer.
pub fn router(ingress: Arc<Ingress>) -> Router {
    let state = (Arc::clone(&ingress), operation_at as observe::FindOperation);
    all()
        .router
        .fallback(observe::no_such_path)
        .method_not_allowed_fallback(observe::no_such_method)
        .layer(CatchPanicLayer::custom(observe::panicked))
        .layer(middleware::from_fn_with_state(state, observe::observe))
        .with_state(ingress)
}

static OPERATIONS: LazyLock<Vec<Operation>> = LazyLock::new(|| all().operations);
static BY_NAME: LazyLock<HashMap<&str, &Operation>> =
    LazyLock::new(|| OPERATIONS.iter().map(|operation| (operation.doc.id, operation)).collect());

static BY_ROUTE: LazyLock<HashMap<(&str, &str), &Operation>> = LazyLock::new(|| {
    OPERATIONS.iter().map(|operation| ((operation.method.as_str(), operation.path), operation)).collect()
});

/// Every operation there is.
#[must_use]
pub fn operations() -> &'static [Operation] {
    &OPERATIONS
}

/// The operation with this name, which is the one in the OpenAPI document.
pub(crate) fn operation(name: &str) -> Option<&'static Operation> {
    BY_NAME.get(name).copied()
}

/// The operation of a method of a route. A HEAD without a route of its own is the GET.
fn operation_at(method: &str, route: &str) -> Option<&'static Operation> {
    let of = |method| BY_ROUTE.get(&(method, route)).copied();
    of(method).or_else(|| of("GET").filter(|_| method == "HEAD"))
}

/// The contracts of all routes, made anew: they take tens of megabytes while they are used.
#[must_use]
pub fn contracts() -> Contracts {
    Contracts::new(operations())
}

/// The contracts as they are served, made at the first use.
pub(crate) fn served_contracts() -> &'static ServedContracts {
    static SERVED: LazyLock<ServedContracts> = LazyLock::new(|| ServedContracts::new(contracts()));
    &SERVED
}
