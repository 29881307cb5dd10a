//! The session of a delivery process: how others know that the sends it holds are still in somebody's hands.
//!
//! Every claim's token lies in the session's range, and the session says every few seconds that it lives, in a row of
//! `delivery_sessions`. What a session that fell silent has claimed goes back to the queue, and what it has fenced is in doubt, without
//! waiting for a lease. A process that was only cut off from Postgres does no harm: its tokens no longer match, so none of those
//! claims passes the fence, and what it still has to say about its fences counts as evidence. So a session never has to be ended: the
//! sweep forgets it when nothing is left of it.

use std::time::Duration;

use runtime::plans::PreparedPool;
use sqlx::{PgConnection, PgPool};
use uuid::Uuid;

/// How often a session says that it lives.
const SEEN_EVERY: Duration = Duration::from_secs(3);
/// Longest that may take; the next time comes anyway.
const SEEN_MAX: Duration = Duration::from_secs(3);
/// A session that has been silent for so long is gone: what it has claimed is owed again.
const GONE_AFTER: Duration = Duration::from_secs(15);
/// A session that has been silent for so long has nothing more to say about its fences.
const OVER_AFTER: Duration = Duration::from_secs(60);

/// The session of one ledger.
#[derive(Debug, Clone, Copy)]
pub struct Session {
    /// The upper half of its tokens.
    number: u64,
}

impl Session {
    /// A session nobody else has.
    #[allow(clippy::new_without_default, reason = "each is another one")]
    #[must_use]
    pub fn new() -> Self {
        Self { number: rand::random() }
    }

    /// A token for one claim.
    pub fn token(self) -> Uuid {
        Uuid::from_u64_pair(self.number, rand::random())
    }

    /// Says that it lives, again and again, until the future is dropped: with the writers whose claims it stands for.
    pub async fn keep_alive(self, pool: PgPool) {
        // A connection of its own: what keeps the others busy must not silence it.
        let connections = PreparedPool::new(&pool, 1);
        let mut ticks = tokio::time::interval(SEEN_EVERY);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            match tokio::time::timeout(SEEN_MAX, self.see(&connections)).await {
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

    async fn see(self, connections: &PreparedPool) -> sqlx::Result<()> {
        let mut connection = connections.take().await?;
        let (first, last) = (Uuid::from_u64_pair(self.number, 0), Uuid::from_u64_pair(self.number, u64::MAX));
        sqlx::query_file!("queries/fence/see_session.sql", first, last).execute(&mut *connection).await?;
        connections.put_back(connection);
        Ok(())
    }
}

/// Sessions that fell silent, as the columns of an `unnest`: the first and last token of each.
#[derive(Debug, Default)]
pub struct Gone {
    /// The least token of each.
    pub first: Vec<Uuid>,
    /// The greatest token of each.
    pub last: Vec<Uuid>,
    /// Whether nothing more is to be expected of it.
    pub is_over: Vec<bool>,
}

impl Gone {
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

    /// Forgets those of which nothing more is to be expected. One that lives after all says so again.
    pub async fn forget(&self, db: &mut PgConnection) -> sqlx::Result<()> {
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

    /// The ranges of those of which nothing more is to be expected.
    pub fn over(&self) -> (Vec<Uuid>, Vec<Uuid>) {
        let ranges = self.first.iter().zip(&self.last).zip(&self.is_over);
        ranges.filter(|(_, is_over)| **is_over).map(|((first, last), _)| (*first, *last)).unzip()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tokens_of_a_session_lie_in_its_range_and_differ() {
        let session = Session::new();
        let (one, other) = (session.token(), session.token());
        assert_ne!(one, other);
        for token in [one, other] {
            assert!(token >= Uuid::from_u64_pair(session.number, 0));
            assert!(token <= Uuid::from_u64_pair(session.number, u64::MAX));
        }
    }
}
