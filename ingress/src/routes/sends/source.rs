//! `GET /v1/sends/{id}/source`: what the capture provider took instead of sending it.

use serde_json::json;

use super::store;
use crate::{
    act::{Act, NoParameters, Reply, time},
    error::ApiError,
};

pub(super) async fn read(act: &mut Act, _: NoParameters) -> Result<Reply, ApiError> {
    let (tenant, id) = (act.tenant, act.id("send")?);
    let captured = sqlx::query!(
        "select source, is_cut, captured_at from captured_mails where tenant_id = $1 and send_id = $2",
        tenant,
        id
    )
    .fetch_optional(act.db())
    .await?;
    let Some(captured) = captured else {
        let object = if store::get(act.db(), tenant, id).await?.is_some() { "source" } else { "send" };
        return Err(ApiError::not_found(object));
    };
    Reply::untyped_ok(&json!({
        "ok": true,
        "send_id": id,
        // What we render is ASCII; a one-off message may hold what it likes.
        "source": String::from_utf8_lossy(&captured.source),
        "truncated": captured.is_cut,
        "captured_at": time(captured.captured_at),
    }))
}
