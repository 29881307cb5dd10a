//! The changes that signals make to the totals of hours.

use std::collections::BTreeMap;

use chrono::{DateTime, DurationRound, TimeDelta, Utc};
use runtime::column;
use schemas::SendId;
use sqlx::PgConnection;
use uuid::Uuid;

/// Rows an hour's total is spread over.
const SHARDS: u128 = 16;

/// A shard for this process, so that two processes seldom wait for each other's totals.
#[must_use]
pub fn random_shard() -> i16 {
    i16::try_from(schemas::new_id().as_u128() % SHARDS).unwrap_or(0)
}

/// Batches that follow each other write to different rows of the hour's totals, so their workers do not wait for each other.
pub(crate) fn shard_of(batch: Uuid) -> i16 {
    i16::try_from((batch.as_u128() >> 9) % SHARDS).unwrap_or(0)
}

/// Tenant and batch. Batches are locked in this order.
pub type BatchKey = (Uuid, Uuid);

/// The batch of a send, which is given as tenant and id.
pub(crate) fn batch_of((tenant, send): (Uuid, Uuid)) -> BatchKey {
    (tenant, SendId(send).batch())
}

/// Changes of the totals of hours, to be written.
#[derive(Debug, Default)]
pub(crate) struct Hours(BTreeMap<(BatchKey, &'static str, DateTime<Utc>), i64>);

impl Hours {
    /// Adds to an hour's total of an event, for mail of the batch's kind.
    pub(crate) fn add(&mut self, batch: BatchKey, event: &'static str, hour: DateTime<Utc>, by: i64) {
        *self.0.entry((batch, event, hour)).or_default() += by;
    }

    /// Writes the changes.
    pub(crate) async fn write(&self, db: &mut PgConnection, shard: i16) -> sqlx::Result<()> {
        if self.0.is_empty() {
            return Ok(());
        }
        sqlx::query_file!(
            "queries/facts/rollups.sql",
            &column(self.0.keys(), |((tenant, _), ..)| *tenant),
            &column(self.0.keys(), |((_, batch), ..)| *batch),
            &column(self.0.keys(), |(_, event, _)| *event) as &[&str],
            &column(self.0.keys(), |(.., hour)| *hour),
            &column(self.0.values(), |count| *count),
            shard
        )
        .execute(db)
        .await
        .map(drop)
    }
}

/// The hour a moment belongs to.
#[must_use]
pub fn hour_of(at: DateTime<Utc>) -> DateTime<Utc> {
    at.duration_trunc(TimeDelta::hours(1)).unwrap_or(at)
}

/// How the totals of hours change when the first time of a fact was `before` and now is `after`. A unique fact counts in the
/// hour it first happened in, in any order of arrival, and in none if it turns out not to have happened.
pub(crate) fn moves(before: Option<DateTime<Utc>>, after: Option<DateTime<Utc>>) -> [Option<(DateTime<Utc>, i64)>; 2] {
    let (before, after) = (before.map(hour_of), after.map(hour_of));
    if before == after {
        return [None, None];
    }
    [before.map(|hour| (hour, -1)), after.map(|hour| (hour, 1))]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn in_whatever_order_it_is_told_a_unique_fact_counts_in_the_hour_it_first_happened(
            minutes in proptest::collection::vec(0_i64..60 * 30, 1..8),
        ) {
            let at = |minute: i64| DateTime::<Utc>::UNIX_EPOCH + TimeDelta::minutes(minute);
            let mut hours: BTreeMap<DateTime<Utc>, i64> = BTreeMap::new();
            let mut known: Option<DateTime<Utc>> = None;
            for told in minutes.iter().map(|minute| at(*minute)) {
                let after = Some(known.map_or(told, |known| known.min(told)));
                for (hour, by) in moves(known, after).into_iter().flatten() {
                    *hours.entry(hour).or_default() += by;
                }
                known = after;
            }
            hours.retain(|_, count| *count != 0);
            let first = minutes.iter().min().map(|minute| (hour_of(at(*minute)), 1));
            prop_assert_eq!(hours.into_iter().next(), first);
        }
    }
}
