//! The admin port: `/metrics`, `/livez` (the process runs), `/readyz` (it can do its work). No authentication: bind it inside.

use std::{net::SocketAddr, time::Duration};

use axum::{Json, Router, extract::State, http::StatusCode, response::IntoResponse, routing::get};
use metrics_exporter_prometheus::PrometheusHandle;
use serde::Serialize;
use sqlx::PgPool;
use tokio_util::sync::CancellationToken;

use crate::Bus;

/// Timeout of a probe of a dependency.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);

/// The admin port's state.
#[derive(Clone, Debug)]
pub struct Admin {
    metrics: PrometheusHandle,
    pool: PgPool,
    bus: Bus,
}

/// Whether the dependencies of a process answer.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Dependencies {
    /// Postgres answers.
    pub database: bool,
    /// JetStream itself answers (a full disk switches it off while the server stays up).
    pub bus: bool,
}

/// Probes Postgres and JetStream.
pub async fn probe(pool: &PgPool, bus: &Bus) -> Dependencies {
    let database =
        async { matches!(tokio::time::timeout(PROBE_TIMEOUT, sqlx::query("select 1").execute(pool)).await, Ok(Ok(_))) };
    let bus = async { matches!(tokio::time::timeout(PROBE_TIMEOUT, bus.is_healthy()).await, Ok(true)) };
    let (database, bus) = tokio::join!(database, bus);
    Dependencies { database, bus }
}

impl Admin {
    /// The admin port of a process.
    #[must_use]
    pub fn new(metrics: PrometheusHandle, pool: PgPool, bus: Bus) -> Self {
        Self { metrics, pool, bus }
    }

    /// Binds and serves until shutdown; returns its address.
    ///
    /// # Errors
    /// If the address is in use.
    pub async fn serve(self, address: SocketAddr, shutdown: CancellationToken) -> std::io::Result<SocketAddr> {
        let listener = tokio::net::TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        let routes = Router::new()
            .route("/metrics", get(metrics))
            .route("/livez", get(|| async { "ok\n" }))
            .route("/readyz", get(ready))
            .with_state(self);
        tokio::spawn(async move {
            let served = axum::serve(listener, routes).with_graceful_shutdown(shutdown.cancelled_owned()).await;
            if let Err(error) = served {
                tracing::error!(%error, "admin port stopped");
            }
        });
        Ok(address)
    }
}

async fn metrics(State(admin): State<Admin>) -> String {
    metrics_process::Collector::default().collect();
    admin.metrics.render()
}

async fn ready(State(admin): State<Admin>) -> impl IntoResponse {
    let found = probe(&admin.pool, &admin.bus).await;
    let status = if found.database && found.bus { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(found))
}
