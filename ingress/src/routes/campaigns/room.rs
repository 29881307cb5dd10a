//! The send quota at the gate: nobody queues what cannot be sent. What holds is the fence.

use chrono::Utc;
use http::StatusCode;
use ledger::quota::{self, Room};

use crate::{act::Act, error::ApiError};

/// How much the tenant may still hand over.
pub(crate) async fn room(act: &mut Act) -> Result<Room, ApiError> {
    let (tenant, defaults) = (act.tenant, act.ingress.settings.quota);
    Ok(quota::room(act.db(), tenant, &defaults).await?)
}

/// Whether so many fit.
pub(super) fn fits(room: &Room, sends: i64) -> bool {
    room.remaining.is_none_or(|remaining| sends <= remaining)
}

/// 429 `send_quota_exceeded` with the time at which there is room again, unless so many fit.
pub(crate) fn check(room: &Room, sends: i64) -> Result<(), ApiError> {
    if fits(room, sends) {
        return Ok(());
    }
    let wait = (room.resets_at - Utc::now()).num_seconds().max(1);
    let left = room.remaining.unwrap_or(0);
    Err(ApiError::new(StatusCode::TOO_MANY_REQUESTS, "send_quota_exceeded")
        .detail(format!("{sends} mails are to be sent, and the quota has room for {left}"))
        .retry_after(u64::try_from(wait).unwrap_or(1)))
}
