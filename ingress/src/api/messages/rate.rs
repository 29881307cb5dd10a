//! The hourly limit on one-off mail: exact over any number of processes, over a sliding hour.
//!
//! What counts is messages, however many people they are for. What the engine sends to a tenant's own people does not count.

use chrono::{DateTime, TimeDelta, Utc};
use http::StatusCode;
use schemas::MessageKind;
use sqlx::PgConnection;
use uuid::Uuid;

use crate::pipeline::error::ApiError;

const WINDOW: TimeDelta = TimeDelta::hours(1);

/// Takes the tenant's lock to the end of the transaction, so that of two messages at once one counts the other.
pub(super) async fn lock(db: &mut PgConnection, tenant: Uuid) -> sqlx::Result<()> {
    sqlx::query!(
        "select pg_advisory_xact_lock(hashtextextended('postrider messages ' || $1::uuid::text, 0)) as locked",
        tenant
    )
    .fetch_one(db)
    .await
    .map(drop)
}

/// When the tenant's messages of a kind of the last hour were accepted, oldest first, but for this one. Served by `messages_by_time`.
pub(super) async fn recent(
    db: &mut PgConnection,
    tenant: Uuid,
    kind: MessageKind,
    but: Option<Uuid>,
) -> sqlx::Result<Vec<DateTime<Utc>>> {
    sqlx::query_scalar!(
        "select created_at from messages
         where tenant_id = $1 and created_at between statement_timestamp() - interval '1 hour' and statement_timestamp() and is_metered
           and id is distinct from $2 and is_test = $3
         order by created_at",
        tenant,
        but,
        kind == MessageKind::Test,
    )
    .fetch_all(db)
    .await
}

/// Whether one more may be sent.
///
/// # Errors
/// 429 `message_rate_exceeded` or `test_rate_exceeded` with the time at which there is room for it.
pub(super) fn check(recent: &[DateTime<Utc>], kind: MessageKind, limit: u32) -> Result<(), ApiError> {
    let (code, what) = match kind {
        MessageKind::Test => ("test_rate_exceeded", "tests of campaigns"),
        _ => ("message_rate_exceeded", "one-off messages"),
    };
    match next_at(recent, limit) {
        None => Ok(()),
        Some(at) => Err(ApiError::new(StatusCode::TOO_MANY_REQUESTS, code)
            .detail(format!("a tenant may send {limit} {what} in an hour"))
            .retry_at(at)),
    }
}

/// When one more may be sent; `None`: now.
fn next_at(recent: &[DateTime<Utc>], limit: u32) -> Option<DateTime<Utc>> {
    let too_many = (recent.len() + 1).checked_sub(usize::try_from(limit).unwrap_or(usize::MAX))?;
    // As soon as so many of the oldest have left the hour.
    let last = recent.get(too_many.checked_sub(1)?)?;
    Some(*last + WINDOW)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::room(&[50, 20], None)]
    #[case::full(&[50, 20, 10], Some(10))]
    #[case::the_oldest_is_not_enough(&[50, 40, 20, 10], Some(20))]
    #[case::nothing_sent(&[], None)]
    fn the_wait_is_until_enough_of_the_hour_has_passed(#[case] sent: &[i64], #[case] minutes: Option<i64>) {
        let now = Utc::now();
        let recent: Vec<DateTime<Utc>> = sent.iter().map(|ago| now - TimeDelta::minutes(*ago)).collect();
        assert_eq!(next_at(&recent, 3).map(|at| (at - now).num_minutes()), minutes);
    }
}
