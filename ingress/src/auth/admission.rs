//! Nonces and the rate limit: one statement for both.

use sqlx::PgPool;
use uuid::Uuid;

/// The seconds of a rate window.
pub const WINDOW_SECONDS: u32 = 60;

/// Where a key stands in its minute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RateState {
    /// Requests allowed in a minute.
    pub limit: u32,
    /// Requests made in this minute, this one included.
    pub used: u32,
    /// Seconds until the minute is over.
    pub resets_in: u32,
}

impl RateState {
    /// Requests left in this minute.
    #[must_use]
    pub fn remaining(self) -> u32 {
        self.limit.saturating_sub(self.used)
    }

    /// Whether this request is one too many.
    #[must_use]
    pub fn is_exceeded(self) -> bool {
        self.used > self.limit
    }
}

/// What became of a nonce and a count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Admission {
    /// The nonce was not seen before (or none was asked about).
    pub nonce_is_fresh: bool,
    /// `None` when the limit is off, or the nonce was seen before (a replay costs the key's owner nothing).
    pub rate: Option<RateState>,
}

/// Burns the nonce, if one is given, and counts the request, if there is a limit. Both hold over all ingress processes.
///
/// Nothing waits for the disk here: the nonce outlives our restarts, but a crash of Postgres itself can forget those of the last
/// fraction of a second, and with them only requests that were signed within it.
///
/// # Errors
/// When Postgres is away.
pub async fn admit(pool: &PgPool, key_id: Uuid, nonce: Option<&str>, limit: u32) -> sqlx::Result<Admission> {
    if nonce.is_none() && limit == 0 {
        return Ok(Admission { nonce_is_fresh: true, rate: None });
    }
    let row = sqlx::query!(
        r#"with quick as materialized (select set_config('synchronous_commit', 'off', true)),
           burnt as (
               insert into nonces (key_id, nonce)
               select $1, $2::text from quick where $2::text is not null
               on conflict do nothing
               returning true
           ),
           counted as (
               insert into rate_windows as w (key_id, window_start, used)
               select $1, date_trunc('minute', now()), 1
               where $3 and ($2::text is null or exists (select from burnt))
               on conflict (key_id, window_start) do update set used = w.used + 1
               returning used
           )
           select ($2::text is null or exists (select from burnt)) as "nonce_is_fresh!",
                  (select used from counted) as used,
                  ceil(extract(epoch from date_trunc('minute', now()) + interval '1 minute' - now()))::integer as "resets_in!""#,
        key_id,
        nonce,
        limit > 0,
    )
    .fetch_one(pool)
    .await?;
    let rate = row.used.map(|used| RateState {
        limit,
        used: u32::try_from(used).unwrap_or(u32::MAX),
        resets_in: u32::try_from(row.resets_in).unwrap_or(WINDOW_SECONDS).clamp(1, WINDOW_SECONDS),
    });
    Ok(Admission { nonce_is_fresh: row.nonce_is_fresh, rate })
}
