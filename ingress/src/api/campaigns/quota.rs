//! The send quota at launch: a caller cannot queue what cannot be sent. The fence enforces it.

use chrono::{DateTime, Utc};
use http::StatusCode;
use ledger::quota::{QuotaRemaining, quota_usage, remaining_quota};

use crate::pipeline::{RequestContext, error::ApiError};

/// How many mails the tenant may still send.
pub(crate) async fn remaining(ctx: &mut RequestContext) -> Result<QuotaRemaining, ApiError> {
    let (tenant, defaults) = (ctx.tenant, ctx.ingress.settings.quota);
    Ok(remaining_quota(ctx.db(), tenant, &defaults).await?)
}

/// How many mails the tenant may send at a time, should it send none before: mail counts on the day on which it is sent.
pub(super) async fn remaining_at(ctx: &mut RequestContext, at: DateTime<Utc>) -> Result<QuotaRemaining, ApiError> {
    let (tenant, defaults) = (ctx.tenant, ctx.ingress.settings.quota);
    Ok(quota_usage(ctx.db(), tenant, &defaults).await?.left_at(at))
}

/// 429 `send_quota_exceeded` with the time of the next reset, unless so many mails fit.
pub(crate) fn check(left: &QuotaRemaining, sends: i64) -> Result<(), ApiError> {
    if left.fits(sends) {
        return Ok(());
    }
    let mails = left.remaining.unwrap_or(0);
    let asked = if sends == 1 { String::from("1 mail is") } else { format!("{sends} mails are") };
    Err(ApiError::new(StatusCode::TOO_MANY_REQUESTS, "send_quota_exceeded")
        .detail(format!("{asked} to be sent, and the quota has room for {mails}"))
        .retry_at(left.resets_at))
}
