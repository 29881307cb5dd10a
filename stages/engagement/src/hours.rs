//! Totals of days: what signals add to them.

use std::collections::BTreeMap;

use chrono::{DateTime, NaiveDate, Utc};
use sqlx::PgConnection;
use uuid::Uuid;

/// A batch: tenant and id.
pub(crate) type BatchKey = (Uuid, Uuid);

/// What is to be added to the totals of days.
#[derive(Debug, Default)]
pub(crate) struct Days(BTreeMap<(BatchKey, &'static str, NaiveDate), i64>);

impl Days {
    /// Adds to a day's total of an event, for mail of the batch's kind.
    pub(crate) fn add(&mut self, batch: BatchKey, event: &'static str, day: NaiveDate, by: i64) {
        *self.0.entry((batch, event, day)).or_default() += by;
    }

    /// Adds it in the ledger.
    pub(crate) async fn write(&self, db: &mut PgConnection, shard: i16) -> sqlx::Result<()> {
        let tenants: Vec<Uuid> = self.0.keys().map(|((tenant, _), ..)| *tenant).collect();
        let batches: Vec<Uuid> = self.0.keys().map(|((_, batch), ..)| *batch).collect();
        let events: Vec<String> = self.0.keys().map(|(_, event, _)| (*event).to_owned()).collect();
        let days: Vec<NaiveDate> = self.0.keys().map(|(.., day)| *day).collect();
        let counts: Vec<i64> = self.0.values().copied().collect();
        sqlx::query_file!("queries/rollups.sql", &tenants, &batches, &events, &days, &counts, shard)
            .execute(db)
            .await
            .map(drop)
    }
}

/// How the totals of days change when a fact that was known since `before` is told to have happened at `told`. A unique fact
/// belongs to the UTC day it first happened on, in whatever order that is told.
pub(crate) fn moves(before: Option<DateTime<Utc>>, told: DateTime<Utc>) -> [Option<(NaiveDate, i64)>; 2] {
    let day = told.date_naive();
    match before.map(|before| before.date_naive()) {
        None => [Some((day, 1)), None],
        Some(before) if day < before => [Some((day, 1)), Some((before, -1))],
        Some(_) => [None, None],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn in_whatever_order_it_is_told_a_unique_fact_counts_on_the_day_it_first_happened(
            hours in proptest::collection::vec(0_i64..24 * 10, 1..8),
        ) {
            let at = |hour: i64| DateTime::<Utc>::UNIX_EPOCH + chrono::TimeDelta::hours(hour);
            let mut days: BTreeMap<NaiveDate, i64> = BTreeMap::new();
            let mut known: Option<DateTime<Utc>> = None;
            for told in hours.iter().map(|hour| at(*hour)) {
                for (day, by) in moves(known, told).into_iter().flatten() {
                    *days.entry(day).or_default() += by;
                }
                known = Some(known.map_or(told, |known| known.min(told)));
            }
            days.retain(|_, count| *count != 0);
            let first = hours.iter().min().map(|hour| (at(*hour).date_naive(), 1));
            prop_assert_eq!(days.into_iter().next(), first);
        }
    }
}
