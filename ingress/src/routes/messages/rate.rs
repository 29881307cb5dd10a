//! The hourly limit on one-off mail (specification, Limits): exact over any number of processes, over a sliding hour.
//!
//! What counts is mails: a message to three people counts as three, and blocked recipients do not count.

use chrono::{DateTime, TimeDelta, Utc};
use http::StatusCode;
use sqlx::PgConnection;
use uuid::Uuid;

use crate::error::ApiError;

const WINDOW: TimeDelta = TimeDelta::hours(1);

/// One accepted message of the last hour.
#[derive(Debug, Clone, Copy)]
pub(super) struct Recent {
    created_at: DateTime<Utc>,
    metered: i32,
}

/// The tenant's other messages of the last hour, oldest first. Holds the tenant's lock to the end of the transaction, so that
/// of two messages at once one counts the other. Served by `messages_by_time`.
pub(super) async fn recent(db: &mut PgConnection, tenant: Uuid, message: Uuid) -> sqlx::Result<Vec<Recent>> {
    sqlx::query!(
        "select pg_advisory_xact_lock(hashtextextended('postrider messages ' || $1::uuid::text, 0)) as locked",
        tenant
    )
    .fetch_one(&mut *db)
    .await?;
    // In a statement of its own, whose snapshot is taken under the lock.
    sqlx::query_as!(
        Recent,
        "select created_at, metered from messages
         where tenant_id = $1 and created_at > statement_timestamp() - interval '1 hour' and id <> $2
         order by created_at",
        tenant,
        message,
    )
    .fetch_all(db)
    .await
}

/// Whether so many more may be sent.
///
/// # Errors
/// 429 `message_rate_exceeded` with the time at which there is room for them.
pub(super) fn check(recent: &[Recent], wanted: usize, limit: u32) -> Result<(), ApiError> {
    match wait(recent, i64::try_from(wanted).unwrap_or(i64::MAX), i64::from(limit), Utc::now()) {
        None => Ok(()),
        Some(wait) => Err(ApiError::new(StatusCode::TOO_MANY_REQUESTS, "message_rate_exceeded")
            .detail(format!("a tenant may send {limit} one-off mails in an hour, counted by recipient"))
            .retry_after(u64::try_from(wait.num_seconds()).unwrap_or(0).saturating_add(1))),
    }
}

/// How long until there is room. More than the limit itself never fits: then a whole hour, which says as much.
fn wait(recent: &[Recent], wanted: i64, limit: i64, now: DateTime<Utc>) -> Option<TimeDelta> {
    let mut used: i64 = recent.iter().map(|message| i64::from(message.metered)).sum();
    if used + wanted <= limit {
        return None;
    }
    for message in recent {
        used -= i64::from(message.metered);
        if used + wanted <= limit {
            return Some((message.created_at + WINDOW - now).max(TimeDelta::zero()));
        }
    }
    Some(WINDOW)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::room(&[(50, 3)], 7, None)]
    #[case::full(&[(50, 3), (20, 7)], 1, Some(10))]
    #[case::the_oldest_is_not_enough(&[(50, 3), (20, 7)], 4, Some(40))]
    #[case::nothing_sent(&[], 10, None)]
    #[case::never_fits(&[(50, 1)], 11, Some(60))]
    fn the_wait_is_until_enough_of_the_hour_has_passed(
        #[case] sent: &[(i64, i32)],
        #[case] wanted: i64,
        #[case] minutes: Option<i64>,
    ) {
        let now = Utc::now();
        let recent: Vec<Recent> = sent
            .iter()
            .map(|(ago, metered)| Recent { created_at: now - TimeDelta::minutes(*ago), metered: *metered })
            .collect();
        assert_eq!(wait(&recent, wanted, 10, now).map(|wait| wait.num_minutes()), minutes);
    }
}
