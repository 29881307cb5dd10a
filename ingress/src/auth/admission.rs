//! Nonces, the rate limit and the name of the tenant: one statement for all.

use sqlx::PgConnection;
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

/// A tenant as a request names it.
#[derive(Debug, Clone, Copy)]
pub struct Named<'a> {
    /// The product of the key.
    pub product: &'a str,
    /// The environment of the key.
    pub environment: &'a str,
    /// The product's own id of the tenant.
    pub product_tenant_id: &'a str,
}

/// What became of a nonce, a count and a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Admission {
    /// The nonce was not seen before (or none was asked about).
    pub nonce_is_fresh: bool,
    /// `None` when the limit is off, or the nonce was seen before (a replay costs the key's owner nothing).
    pub rate: Option<RateState>,
    /// The tenant that was named, if it is linked.
    pub tenant: Option<Uuid>,
}

/// Burns the nonce, if one is given, counts the request, if there is a limit, and finds the tenant, if one is named. All of it
/// holds over all ingress processes and is committed when this returns.
///
/// Nothing waits for the disk here: the nonce outlives our restarts, but a crash of Postgres itself can forget those of the last
/// fraction of a second, and with them only requests that were signed within it.
///
/// # Errors
/// When Postgres is away.
pub async fn admit(
    db: &mut PgConnection,
    key_id: Uuid,
    nonce: Option<&str>,
    limit: u32,
    named: Option<Named<'_>>,
) -> sqlx::Result<Admission> {
    if nonce.is_none() && limit == 0 && named.is_none() {
        return Ok(Admission { nonce_is_fresh: true, rate: None, tenant: None });
    }
    let row = sqlx::query!(
        r#"select nonce_is_fresh as "nonce_is_fresh!", used_now, resets_in, linked_tenant
           from admit($1, $2, $3, $4, $5, $6)"#,
        key_id,
        nonce,
        limit > 0,
        named.map(|named| named.product),
        named.map(|named| named.environment),
        named.map(|named| named.product_tenant_id),
    )
    .fetch_one(db)
    .await?;
    let rate = row.used_now.map(|used| RateState {
        limit,
        used: u32::try_from(used).unwrap_or(u32::MAX),
        resets_in: row
            .resets_in
            .and_then(|seconds| u32::try_from(seconds).ok())
            .unwrap_or(WINDOW_SECONDS)
            .clamp(1, WINDOW_SECONDS),
    });
    Ok(Admission { nonce_is_fresh: row.nonce_is_fresh, rate, tenant: row.linked_tenant })
}
