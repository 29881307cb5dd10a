//! The admin port: `/metrics`, `/livez` (the process runs), `/readyz` (it can do its work). No authentication: bind it inside.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use axum::{Json, Router, extract::State, http::StatusCode, response::IntoResponse, routing::get};
use metrics_exporter_prometheus::PrometheusHandle;
use serde::Serialize;
use sqlx::PgPool;
use tokio::{sync::Mutex, time::Instant};
use tokio_util::sync::CancellationToken;

use crate::Bus;

const PROBE_TIMEOUT: Duration = Duration::from_secs(2);
/// How long the result of a probe is answered again: health is asked about without credentials.
const PROBE_KEPT: Duration = Duration::from_secs(1);

/// Whether the dependencies of a process answer.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Dependencies {
    /// Postgres answers.
    pub database: bool,
    /// JetStream itself answers (a full disk switches it off while the server stays up).
    pub bus: bool,
}

/// Probes Postgres and JetStream, about once a second however often it is asked.
#[derive(Debug)]
pub struct HealthProbe {
    pool: PgPool,
    bus: Bus,
    last: Mutex<Option<(Instant, Dependencies)>>,
}

impl HealthProbe {
    /// A probe of these; it has not run yet.
    #[must_use]
    pub fn new(pool: PgPool, bus: Bus) -> Self {
        Self { pool, bus, last: Mutex::new(None) }
    }

    /// Whether the dependencies answered in the last second, or answer now. Callers meanwhile wait for the same probe.
    pub async fn dependencies(&self) -> Dependencies {
        let mut last = self.last.lock().await;
        if let Some((at, found)) = *last
            && at.elapsed() < PROBE_KEPT
        {
            return found;
        }
        let found = self.probe().await;
        *last = Some((Instant::now(), found));
        found
    }

    async fn probe(&self) -> Dependencies {
        let select = sqlx::query("select 1").execute(&self.pool);
        let database = async { matches!(tokio::time::timeout(PROBE_TIMEOUT, select).await, Ok(Ok(_))) };
        let bus = async { matches!(tokio::time::timeout(PROBE_TIMEOUT, self.bus.is_healthy()).await, Ok(true)) };
        let (database, bus) = tokio::join!(database, bus);
        Dependencies { database, bus }
    }
}

/// Binds the admin port of a process and serves it until shutdown; returns its address.
pub async fn serve(
    metrics: PrometheusHandle,
    probe: HealthProbe,
    address: SocketAddr,
    shutdown: CancellationToken,
) -> std::io::Result<SocketAddr> {
    let listener = tokio::net::TcpListener::bind(address).await?;
    let address = listener.local_addr()?;
    let routes = Router::new()
        .route("/metrics", get(render).with_state(metrics))
        .route("/livez", get(|| async { "ok\n" }))
        .route("/readyz", get(ready).with_state(Arc::new(probe)));
    tokio::spawn(async move {
        let served = axum::serve(listener, routes).with_graceful_shutdown(shutdown.cancelled_owned()).await;
        if let Err(error) = served {
            tracing::error!(%error, "admin port stopped");
        }
    });
    Ok(address)
}

async fn render(State(metrics): State<PrometheusHandle>) -> String {
    metrics_process::Collector::default().collect();
    metrics.render()
}

async fn ready(State(probe): State<Arc<HealthProbe>>) -> impl IntoResponse {
    let found = probe.dependencies().await;
    let status = if found.database && found.bus { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(found))
}
