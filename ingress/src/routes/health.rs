//! `GET /health`: no authentication (specification, System).

mod doc;

use std::sync::Arc;

use axum::{Json, extract::State, response::IntoResponse};
use http::StatusCode;
use serde::Serialize;

use crate::{
    Ingress,
    act::{Routes, open},
};

/// The routes.
pub(crate) fn routes() -> Routes {
    Routes::new().get("/health", open(health), doc::health)
}

#[derive(Debug, Serialize)]
struct Health {
    ok: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'static str>,
    status: &'static str,
    version: &'static str,
    checks: Checks,
}

#[derive(Debug, Serialize)]
struct Checks {
    database: bool,
    bus: bool,
}

/// 503 without the database. Without the bus requests are still accepted and announced later: 200, "degraded".
async fn health(State(ingress): State<Arc<Ingress>>) -> impl IntoResponse {
    let found = runtime::admin::probe(&ingress.pool, &ingress.bus).await;
    let (code, status) = match (found.database, found.bus) {
        (true, true) => (StatusCode::OK, "healthy"),
        (true, false) => (StatusCode::OK, "degraded"),
        (false, _) => (StatusCode::SERVICE_UNAVAILABLE, "unavailable"),
    };
    let checks = Checks { database: found.database, bus: found.bus };
    let error = (!found.database).then_some("unavailable");
    (code, Json(Health { ok: found.database, error, status, version: env!("CARGO_PKG_VERSION"), checks }))
}
