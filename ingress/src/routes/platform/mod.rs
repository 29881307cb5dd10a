//! `GET /v1/platform/health`: whether mail goes out, and if not, why and what to do. For the operations integration; the same
//! report is printed by `postrider health`.

mod doc;
pub mod facts;
pub mod judge;

use axum::response::{IntoResponse, Response};
use chrono::{DateTime, SecondsFormat, Utc};
use http::{StatusCode, header};
use runtime::Bus;
use serde::{Serialize, Serializer};
use sqlx::PgPool;

pub use self::facts::Facts;
use crate::{
    act::{Act, NoParameters, Reply, Routes, platform_read},
    error::ApiError,
};

/// The routes.
pub(crate) fn routes() -> Routes {
    let endpoint = platform_read(schemas::scope::PLATFORM_HEALTH_READ, health).map_response(without_a_ledger);
    Routes::new().get("/v1/platform/health", endpoint, doc::health)
}

/// How a check, or all of it, stands. In order: the worst of several is their maximum.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// As it should be.
    Ok,
    /// Somebody should look; mail goes out.
    Warn,
    /// Sending is impaired.
    Crit,
}

/// One thing looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Check {
    /// Its name for programs, stable.
    pub id: String,
    /// What it belongs to.
    pub area: &'static str,
    /// Its name for people.
    pub name: String,
    /// How it stands.
    pub status: Status,
    /// What was seen.
    pub observation: String,
    /// Why it is not as it should be.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
    /// What to do, step by step.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub fix: Vec<String>,
    /// Where to read more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub link: Option<String>,
}

/// The error code while sending is impaired.
const IMPAIRED: &str = "sending_impaired";
/// The error code while the caller cannot be looked up.
const UNAVAILABLE: &str = "unavailable";

/// All of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Whether mail goes out.
    pub ok: bool,
    /// The code of a report that answers 503.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<&'static str>,
    /// The worst of the checks.
    pub overall: Status,
    /// When it was looked at.
    #[serde(serialize_with = "in_utc")]
    pub generated_at: DateTime<Utc>,
    /// What was looked at.
    pub checks: Vec<Check>,
}

impl Report {
    /// Looks at everything, side by side, each for two seconds at most.
    pub async fn of(pool: &PgPool, bus: &Bus) -> Self {
        Self::from_facts(&Facts::gather(pool, bus).await, Utc::now())
    }

    /// What follows from the facts.
    #[must_use]
    pub fn from_facts(facts: &Facts, generated_at: DateTime<Utc>) -> Self {
        let checks = judge::checks(facts);
        let overall = checks.iter().map(|check| check.status).max().unwrap_or(Status::Ok);
        let ok = overall != Status::Crit;
        Self { ok, error: (!ok).then_some(IMPAIRED), overall, generated_at, checks }
    }
}

fn in_utc<S: Serializer>(at: &DateTime<Utc>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&at.to_rfc3339_opts(SecondsFormat::Millis, true))
}

async fn health(act: &mut Act, _: NoParameters) -> Result<Reply, ApiError> {
    let report = Report::of(&act.ingress.pool, &act.ingress.bus).await;
    // "Responds 503 with the same body shape and overall: crit when sending is impaired" (specification, System)
    let status = if report.ok { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    Reply::untyped(status, &report)
}

/// Without Postgres no caller can be looked up, and its trouble is what the caller would be told: the report says so in its own shape,
/// and nothing that is not known to everybody who asks `/health`.
fn without_a_ledger(mut response: Response) -> Response {
    // A report has no `Retry-After`; a refusal for want of the database has one.
    let is_refusal = response.headers().contains_key(header::RETRY_AFTER);
    if response.status() != StatusCode::SERVICE_UNAVAILABLE || !is_refusal {
        return response;
    }
    let report = Report { error: Some(UNAVAILABLE), ..Report::from_facts(&Facts::default(), Utc::now()) };
    match Reply::untyped(StatusCode::SERVICE_UNAVAILABLE, &report) {
        Ok(reply) => {
            let (parts, body) = reply.into_response().into_parts();
            response.headers_mut().extend(parts.headers);
            *response.body_mut() = body;
            response.headers_mut().remove(header::CONTENT_LENGTH);
            response
        }
        Err(error) => error.into_response(),
    }
}
