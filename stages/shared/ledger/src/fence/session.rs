//! The session of a delivery process: shows other processes that its fences are still alive.
//!
//! Every fence's token is in the session's range, and the session renews its row in `delivery_sessions` every few seconds. When a session is
//! silent, its fenced sends become unknown without waiting for a lease. A process that was only cut off from Postgres does no harm: its
//! late results count as evidence, and mail that was certainly not taken has failed and can be tried again by its owner. So a session never
//! has to be ended: the sweep deletes it when no sends of it are left.

use std::time::Duration;

use runtime::{db, plans::PreparedPool};
use sqlx::PgConnection;
use uuid::Uuid;

/// How often a session renews its row.
const RENEW_EVERY: Duration = Duration::from_secs(3);
/// Time limit of one renewal; the next one follows anyway.
const RENEW_MAX: Duration = Duration::from_secs(3);
/// A session that has been silent for this long is gone: no more results are expected of it.
const GONE_AFTER: Duration = Duration::from_secs(60);

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

    /// A token for the fences of one call of a handler.
    pub fn token(self) -> Uuid {
        Uuid::from_u64_pair(self.number, rand::random())
    }

    /// Renews the session until the future is dropped: it lives as long as the writers.
    pub async fn keep_alive(self, connections: PreparedPool) {
        let mut ticks = tokio::time::interval(RENEW_EVERY);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            if let Err(error) = db::within(RENEW_MAX, self.renew(&connections)).await {
                tracing::debug!(stage = "delivery", error = db::describe(&error), "the session was not stored");
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
}

impl GoneSessions {
    /// The sessions that are gone.
    pub async fn find(db: &mut PgConnection) -> sqlx::Result<Self> {
        let rows = sqlx::query!(
            "select first_token, last_token from delivery_sessions where seen_at < now() - make_interval(secs => $1)",
            GONE_AFTER.as_secs_f64()
        )
        .fetch_all(db)
        .await?;
        let (first, last) = rows.into_iter().map(|row| (row.first_token, row.last_token)).unzip();
        Ok(Self { first, last })
    }

    /// Deletes the sessions. One that is alive after all renews its row.
    pub async fn delete(&self, db: &mut PgConnection) -> sqlx::Result<()> {
        sqlx::query!(
            "delete from delivery_sessions where first_token = any($1) and seen_at < now() - make_interval(secs => $2)",
            &self.first,
            GONE_AFTER.as_secs_f64()
        )
        .execute(db)
        .await
        .map(drop)
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
