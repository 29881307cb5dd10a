//! `GET /v1/platform/health`: whether mail goes out; if not, the cause and what to do. `postrider health` prints the same report.

mod checks;
mod facts;

use axum::response::{IntoResponse, Response};
use chrono::{DateTime, Utc};
use http::{StatusCode, header};
use runtime::Bus;
use schemars::JsonSchema;
use serde::Serialize;
use sqlx::PgPool;

use self::facts::PlatformFacts;
use crate::pipeline::{
    ApiReply, Doc, NoParameters, RequestContext, Routes, error::ApiError, page::Time, platform_read,
};

pub(crate) fn routes() -> Routes {
    let endpoint = platform_read(schemas::scope::PLATFORM_HEALTH_READ, health).map_response(report_without_postgres);
    Routes::new().get(
        "/v1/platform/health",
        endpoint,
        Doc::new(
            "getPlatformHealth",
            "Check that mail goes out",
            "For the operations integration: above tenants, without `product_tenant_id`. Every check runs anew, \
                 for two seconds at most. Without Postgres no key can be looked up; the report then only has `error: \
                 unavailable`.",
        )
        .answer::<HealthReport>(200, "Mail goes out; `warn` where a check needs attention")
        .answer::<HealthReport>(503, "Sending is impaired"),
    )
}

/// The state of a check, or of all of them. In order: the worst of several is their maximum.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum HealthStatus {
    /// As it should be.
    Ok,
    /// Needs attention; mail goes out.
    Warn,
    /// Sending is impaired.
    Crit,
}

/// One check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct HealthCheck {
    /// Stable, as `heartbeat.delivery`.
    pub id: String,
    /// The part of the engine it belongs to.
    pub area: &'static str,
    /// Its name for people.
    pub name: String,
    /// Its state.
    pub status: HealthStatus,
    /// The facts it found.
    pub observation: String,
    /// Why it is not as it should be.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub cause: Option<String>,
    /// What to do, step by step.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub fix: Vec<String>,
    /// The runbook.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub link: Option<String>,
}

/// The error code while sending is impaired.
const IMPAIRED: &str = "sending_impaired";
/// The error code while the caller cannot be looked up.
const UNAVAILABLE: &str = "unavailable";

/// Every check, and the worst state among them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "PlatformHealth")]
pub struct HealthReport {
    /// Whether mail goes out.
    pub ok: bool,
    /// With a 503 only; `unavailable`: Postgres is away.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", extend("enum" = [IMPAIRED, UNAVAILABLE]))]
    pub error: Option<&'static str>,
    /// The worst of the checks.
    pub overall: HealthStatus,
    /// When the checks ran.
    pub generated_at: Time,
    /// In the order an operator would ask.
    pub checks: Vec<HealthCheck>,
}

impl HealthReport {
    /// Runs every check, side by side, each for two seconds at most.
    pub async fn of(pool: &PgPool, bus: &Bus) -> Self {
        Self::from_facts(&PlatformFacts::gather(pool, bus).await, Utc::now())
    }

    /// The report that follows from the facts.
    fn from_facts(facts: &PlatformFacts, generated_at: DateTime<Utc>) -> Self {
        let checks = checks::run_checks(facts);
        let overall = checks.iter().map(|check| check.status).max().unwrap_or(HealthStatus::Ok);
        let ok = overall != HealthStatus::Crit;
        Self { ok, error: (!ok).then_some(IMPAIRED), overall, generated_at: generated_at.into(), checks }
    }
}

async fn health(ctx: &mut RequestContext, _: NoParameters) -> Result<ApiReply, ApiError> {
    let report = HealthReport::of(&ctx.ingress.pool, &ctx.ingress.bus).await;
    // 503 has the same body, and `overall` is `crit` when sending is impaired.
    let status = if report.ok { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    ApiReply::untyped(status, &report)
}

/// Answers with a report if the caller cannot be authenticated because Postgres is away. It has no more than `/health` shows to any caller.
fn report_without_postgres(mut response: Response) -> Response {
    // A report has no `Retry-After`; a refusal for want of the database has one.
    let is_refusal = response.headers().contains_key(header::RETRY_AFTER);
    if response.status() != StatusCode::SERVICE_UNAVAILABLE || !is_refusal {
        return response;
    }
    let report =
        HealthReport { error: Some(UNAVAILABLE), ..HealthReport::from_facts(&PlatformFacts::default(), Utc::now()) };
    match ApiReply::untyped(StatusCode::SERVICE_UNAVAILABLE, &report) {
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
