//! Links to exports: `POST /v1/exports/<kind>/links` answers a signed address under which the same export can be fetched without a key, by
//! a browser or a colleague, for an hour. The link ends early with the key that made it.

use std::sync::Arc;

use axum::{
    extract::{Path, State},
    response::{IntoResponse, Response},
};
use chrono::{DateTime, TimeDelta, Utc};
use http::{HeaderValue, header};
use runtime::plans::AccessPattern;
use schemars::JsonSchema;
use schemas::token::Purpose;
use serde::{Deserialize, Serialize};
use serde_json::json;
use uuid::Uuid;

use super::{
    ExportCursor, ExportEventsQuery, ExportQuery, ExportSlice, begin_export,
    format::ExportFormat,
    rows::{ExportRow, ExportedContact, ExportedEvent, ExportedProductEvent, ExportedSend, ExportedSuppression},
};
use crate::{
    pipeline::{ApiReply, QUIET, RequestContext, auth, begin_read, error::ApiError, page::Time},
    state::Ingress,
};

/// How long a link holds.
const LINK_LIFE: TimeDelta = TimeDelta::hours(1);

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct ExportLink {
    /// Where the export is, below the address of this API. Whoever has it can fetch the export.
    path: String,
    expires_at: Time,
}

/// What a link gives: signed, and readable by every holder of the link.
#[derive(Debug, Serialize, Deserialize)]
struct LinkTerms {
    export: String,
    format: ExportFormat,
    /// The cursor of the row that it continues after.
    #[serde(skip_serializing_if = "Option::is_none")]
    after: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    since: Option<DateTime<Utc>>,
    until: DateTime<Utc>,
}

pub(super) async fn make<R: ExportRow>(ctx: &mut RequestContext, body: ExportQuery) -> Result<ApiReply, ApiError> {
    make_link(ctx, R::NAME, ExportEventsQuery { format: body.format, cursor: body.cursor, recorded_since: None }).await
}

pub(super) async fn make_of_events(ctx: &mut RequestContext, body: ExportEventsQuery) -> Result<ApiReply, ApiError> {
    make_link(ctx, ExportedEvent::NAME, body).await
}

async fn make_link(ctx: &mut RequestContext, export: &str, body: ExportEventsQuery) -> Result<ApiReply, ApiError> {
    let ExportEventsQuery { format, cursor: after, recorded_since } = body;
    after.as_deref().map(|cursor| ExportCursor::open(export, cursor)).transpose()?;
    let (since, until) = (recorded_since.map(|at| at.0), Utc::now() + LINK_LIFE);
    let terms = serde_json::to_vec(&LinkTerms { export: export.to_owned(), format, after, since, until })
        .map_err(|error| ApiError::unexpected(&error))?;
    // In the place of a send, the key that made the link.
    let token = ctx.ingress.tokens.seal(Purpose::Export, ctx.tenant, ctx.caller.key_id, &terms);
    ctx.audit("export.link", export, json!({})).await?;
    Ok(ApiReply::created(&ExportLink { path: format!("/exports/{token}"), expires_at: until.into() })?.with_secret())
}

/// The path of an export's link.
#[derive(JsonSchema)]
#[expect(dead_code, reason = "only described")]
pub(super) struct ExportLinkPath {
    /// Issued by the engine, and valid for an hour. One that is forged, over or of a key that is gone is a 404.
    token: String,
}

pub(super) async fn fetch(State(ingress): State<Arc<Ingress>>, Path(token): Path<String>) -> Response {
    let answer = fetch_export(&ingress, &token).await;
    let mut response = answer.map_or_else(IntoResponse::into_response, |(name, reply)| {
        let mut response = reply.into_response();
        if let Ok(value) = HeaderValue::try_from(format!("attachment; filename=\"{name}\"")) {
            response.headers_mut().insert(header::CONTENT_DISPOSITION, value);
        }
        response
    });
    response.headers_mut().extend(QUIET);
    response
}

async fn fetch_export(ingress: &Arc<Ingress>, token: &str) -> Result<(String, ApiReply), ApiError> {
    let not_found = || ApiError::not_found("link");
    let claims = ingress.tokens.open(Purpose::Export, token).map_err(|_| not_found())?;
    let terms: LinkTerms = serde_json::from_slice(&claims.rest).map_err(|_| not_found())?;
    let (tenant, key) = (claims.tenant_id, claims.send_id);
    if terms.until <= Utc::now() {
        return Err(not_found());
    }
    let rate_key = match find_key(ingress, key).await? {
        Some(found) if found.has_ended => return Err(not_found()),
        Some(found) => found.rate_lineage,
        None => tenant,
    };
    auth::count_call(ingress, key, rate_key).await?;
    let actor = format!("key:{key}");
    let reply = match terms.export.as_str() {
        ExportedContact::NAME => fetch_rows::<ExportedContact>(ingress, tenant, &actor, &terms).await,
        ExportedSuppression::NAME => fetch_rows::<ExportedSuppression>(ingress, tenant, &actor, &terms).await,
        ExportedSend::NAME => fetch_rows::<ExportedSend>(ingress, tenant, &actor, &terms).await,
        ExportedEvent::NAME => fetch_rows::<ExportedEvent>(ingress, tenant, &actor, &terms).await,
        ExportedProductEvent::NAME => fetch_rows::<ExportedProductEvent>(ingress, tenant, &actor, &terms).await,
        _ => Err(not_found()),
    };
    Ok((format!("{}.{}", terms.export, terms.format.as_str()), reply?))
}

async fn fetch_rows<R: ExportRow>(
    ingress: &Arc<Ingress>,
    tenant: Uuid,
    actor: &str,
    terms: &LinkTerms,
) -> Result<ApiReply, ApiError> {
    let slice = ExportSlice::open(tenant, terms.format, terms.after.as_deref(), terms.since)?;
    let mut tx = begin_read(ingress, AccessPattern::Scan, tenant).await?;
    begin_export::<R>(ingress, actor, tx.db(), slice).await
}

/// The key that made a link.
struct LinkKey {
    rate_lineage: Uuid,
    /// It is revoked or has expired.
    has_ended: bool,
}

/// The key with this id. `None`: a product on the bus, which has no key, made the link.
async fn find_key(ingress: &Ingress, id: Uuid) -> Result<Option<LinkKey>, ApiError> {
    let mut db = ingress.by_key.take().await?;
    let key = sqlx::query_as!(
        LinkKey,
        r#"select rate_lineage, revoked_at is not null or coalesce(expires_at <= now(), false) as "has_ended!"
           from api_keys where id = $1"#,
        id,
    )
    .fetch_optional(&mut *db)
    .await?;
    db.put_back();
    Ok(key)
}
