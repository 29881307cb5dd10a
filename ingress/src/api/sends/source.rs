//! `GET /v1/sends/{id}/source`: what the capture provider took instead of sending it.

use schemars::JsonSchema;
use serde::Serialize;
use uuid::Uuid;

use super::store;
use crate::pipeline::{ApiReply, NoParameters, RequestContext, error::ApiError, page::Time};

/// A mail that the sandbox kept.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct CapturedSource {
    send_id: Uuid,
    /// RFC 5322, without our DKIM signature.
    source: String,
    truncated: bool,
    captured_at: Time,
}

pub(super) async fn read(ctx: &mut RequestContext, _: NoParameters) -> Result<ApiReply, ApiError> {
    let (tenant, id) = (ctx.tenant, ctx.id("send")?);
    let captured = sqlx::query!(
        "select source, is_cut, captured_at from captured_mails where tenant_id = $1 and send_id = $2",
        tenant,
        id
    )
    .fetch_optional(ctx.db())
    .await?;
    let Some(captured) = captured else {
        let object = if store::get(ctx.db(), tenant, id).await?.is_some() { "source" } else { "send" };
        return Err(ApiError::not_found(object));
    };
    ApiReply::ok(&CapturedSource {
        send_id: id,
        // What we render is ASCII; a one-off message may hold what it likes.
        source: String::from_utf8_lossy(&captured.source).into_owned(),
        truncated: captured.is_cut,
        captured_at: captured.captured_at.into(),
    })
}
