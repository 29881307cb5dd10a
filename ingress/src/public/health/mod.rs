//! `GET /health`: no authentication.

use std::sync::Arc;

use axum::{Json, extract::State, response::IntoResponse};
use http::StatusCode;
use schemars::JsonSchema;
use serde::Serialize;

use crate::{
    pipeline::{Doc, Routes, open},
    state::Ingress,
};

/// The state, and the error code, without the database.
const UNAVAILABLE: &str = "unavailable";

pub(crate) fn routes() -> Routes {
    Routes::new().get(
        "/health",
        open(health),
        Doc::new(
            "getHealth",
            "Check the health of the service",
            "Needs no credentials. `degraded` without the bus: requests are accepted and announced later.",
        )
        .answer::<Health>(200, "Process and database are healthy")
        .answer::<Health>(503, "The database is unreachable"),
    )
}

/// Whether this process can serve.
#[derive(Debug, Serialize, JsonSchema)]
struct Health {
    ok: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", extend("enum" = [UNAVAILABLE]))]
    error: Option<&'static str>,
    #[schemars(extend("enum" = ["healthy", "degraded", UNAVAILABLE]))]
    status: &'static str,
    version: &'static str,
    checks: HealthProbes,
}

/// The connections of this process.
#[derive(Debug, Serialize, JsonSchema)]
struct HealthProbes {
    database: bool,
    bus: bool,
}

/// 503 without the database. Without the bus requests are still accepted and announced later: 200, "degraded".
async fn health(State(ingress): State<Arc<Ingress>>) -> impl IntoResponse {
    let found = ingress.health.dependencies().await;
    let (code, status) = match (found.database, found.bus) {
        (true, true) => (StatusCode::OK, "healthy"),
        (true, false) => (StatusCode::OK, "degraded"),
        (false, _) => (StatusCode::SERVICE_UNAVAILABLE, UNAVAILABLE),
    };
    let checks = HealthProbes { database: found.database, bus: found.bus };
    let error = (!found.database).then_some(UNAVAILABLE);
    (code, Json(Health { ok: found.database, error, status, version: env!("CARGO_PKG_VERSION"), checks }))
}
