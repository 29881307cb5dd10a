//! The session of a delivery process: shows other processes that its claims are still alive.
//!
//! Every claim token is in the session's range, and the session renews its row in `delivery_sessions` every few seconds. When a session is
//! silent, its claimed sends become queued and its fenced sends unknown, without waiting for a lease. A process that was only cut off from
//! Postgres does no harm: its tokens no longer match, so none of those claims passes the fence, and its late results count as evidence. So
//! a session never has to be ended: the sweep deletes it when no sends of it are left.

use std::time::Duration;

use runtime::plans::PreparedPool;
use sqlx::PgConnection;
use uuid::Uuid;

/// How often a session renews its row.
const RENEW_EVERY: Duration = Duration::from_secs(3);
/// Time limit of one renewal; the next one follows anyway.
const RENEW_MAX: Duration = Duration::from_secs(3);
/// A session that has been silent for this long is gone: its claimed sends are queued again.
const GONE_AFTER: Duration = Duration::from_secs(15);
/// From a session that has been silent for this long, no more results are expected.
const OVER_AFTER: Duration = Duration::from_secs(60);

/// The session of one ledger.
#[derive(Debug, Clone, Copy)]
pub struct DeliverySession {
    /// The upper half of its tokens.
    number: u64,
}

impl DeliverySession {
    /// A new session with a random number.
    #[allow(clippy::new_without_default, reason = "each is different")]
    #[must_use]
    pub fn new() -> Self {
        Self { number: rand::random() }
    }

    /// A token for one claim.
    pub fn token(self) -> Uuid {
        Uuid::from_u64_pair(self.number, rand::random())
    }

    /// Renews the session until the future is dropped: it lives as long as the writers.
    pub async fn keep_alive(self, connections: PreparedPool) {
        let mut ticks = tokio::time::interval(RENEW_EVERY);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            match tokio::time::timeout(RENEW_MAX, self.renew(&connections)).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => {
                    tracing::debug!(
                        stage = "delivery",
                        error = runtime::db::describe(&error),
                        "the session was not stored"
                    );
                }
                Err(_) => tracing::debug!(stage = "delivery", "storing the session took too long"),
            }
        }
    }

    async fn renew(self, connections: &PreparedPool) -> sqlx::Result<()> {
        let mut connection = connections.take().await?;
        let (first, last) = (Uuid::from_u64_pair(self.number, 0), Uuid::from_u64_pair(self.number, u64::MAX));
        sqlx::query_file!("queries/fence/renew_session.sql", first, last).execute(&mut *connection).await?;
        connection.put_back();
        Ok(())
    }
}

/// Silent sessions, as columns for `unnest`: the first and last token of each.
#[derive(Debug, Default)]
pub struct GoneSessions {
    /// The least token of each.
    pub first: Vec<Uuid>,
    /// The greatest token of each.
    pub last: Vec<Uuid>,
    /// True if no more results are expected of it.
    pub is_over: Vec<bool>,
}

impl GoneSessions {
    /// The sessions that are gone.
    pub async fn find(db: &mut PgConnection) -> sqlx::Result<Self> {
        let rows = sqlx::query!(
            r#"select first_token, last_token, seen_at < now() - make_interval(secs => $2) as "is_over!"
               from delivery_sessions where seen_at < now() - make_interval(secs => $1)"#,
            GONE_AFTER.as_secs_f64(),
            OVER_AFTER.as_secs_f64()
        )
        .fetch_all(db)
        .await?;
        let mut gone = Self::default();
        for row in rows {
            gone.first.push(row.first_token);
            gone.last.push(row.last_token);
            gone.is_over.push(row.is_over);
        }
        Ok(gone)
    }

    /// Deletes sessions of which no more results are expected. A session that is alive after all renews its row.
    pub async fn delete_over(&self, db: &mut PgConnection) -> sqlx::Result<()> {
        let (first, _) = self.over();
        if first.is_empty() {
            return Ok(());
        }
        sqlx::query!(
            "delete from delivery_sessions where first_token = any($1) and seen_at < now() - make_interval(secs => $2)",
            &first,
            OVER_AFTER.as_secs_f64()
        )
        .execute(db)
        .await
        .map(drop)
    }

    /// The token ranges of sessions of which no more results are expected.
    pub fn over(&self) -> (Vec<Uuid>, Vec<Uuid>) {
        let ranges = self.first.iter().zip(&self.last).zip(&self.is_over);
        ranges.filter(|(_, is_over)| **is_over).map(|((first, last), _)| (*first, *last)).unzip()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_in_the_range_of_their_session() {
        let session = DeliverySession::new();
        let (one, other) = (session.token(), session.token());
        assert_ne!(one, other);
        for token in [one, other] {
            assert!(token >= Uuid::from_u64_pair(session.number, 0));
            assert!(token <= Uuid::from_u64_pair(session.number, u64::MAX));
        }
    }
}
