//! The send quota at launch: a caller cannot queue what cannot be sent. The fence enforces it.

use http::StatusCode;
use ledger::quota::{QuotaRemaining, remaining_quota};

use crate::pipeline::{RequestContext, error::ApiError};

/// How many mails the tenant may still send.
pub(crate) async fn remaining(ctx: &mut RequestContext) -> Result<QuotaRemaining, ApiError> {
    let (tenant, defaults) = (ctx.tenant, ctx.ingress.settings.quota);
    Ok(remaining_quota(ctx.db(), tenant, &defaults).await?)
}

/// 429 `send_quota_exceeded` with the time of the next reset, unless so many mails fit.
pub(crate) fn check(left: &QuotaRemaining, sends: i64) -> Result<(), ApiError> {
    if left.fits(sends) {
        return Ok(());
    }
    let mails = left.remaining.unwrap_or(0);
    Err(ApiError::new(StatusCode::TOO_MANY_REQUESTS, "send_quota_exceeded")
        .detail(format!("{sends} mails are to be sent, and the quota has room for {mails}"))
        .retry_at(left.resets_at))
}
