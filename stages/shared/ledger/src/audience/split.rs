//! The split of an A/B test: which contact gets which variant, by a number drawn from the ids of campaign and contact.
//!
//! The SQL function `ab_draw` makes the number, this module the thresholds, and `width_bucket` finds the part. So the split is the same in
//! a dry run, at the launch and in an explanation, and no contact is in two parts.

use std::collections::HashMap;

use sqlx::PgConnection;
use uuid::Uuid;

/// The names of the variants, in the caller's order.
pub const VARIANT_NAMES: [&str; 8] = ["A", "B", "C", "D", "E", "F", "G", "H"];

/// One more than the largest draw.
const DRAWS: u128 = 1 << 32;

/// How an audience is divided: a part for each variant by its weight, and the remainder, which waits for the winner.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Split {
    thresholds: Vec<i64>,
}

impl Split {
    /// The split of a test that takes `test_percent` of the audience. No weights: no split.
    #[must_use]
    pub fn new(test_percent: u8, weights: &[u32]) -> Self {
        let total: u128 = weights.iter().map(|weight| u128::from(*weight)).sum();
        let mut up_to = 0_u128;
        let threshold = |weight: &u32| {
            up_to += u128::from(*weight);
            i64::try_from(DRAWS * u128::from(test_percent) * up_to / (100 * total.max(1))).unwrap_or(i64::MAX)
        };
        Self { thresholds: weights.iter().map(threshold).collect() }
    }

    /// How many variants there are.
    #[must_use]
    pub fn variants(&self) -> usize {
        self.thresholds.len()
    }

    /// Where each variant's part ends: what `width_bucket` takes.
    #[must_use]
    pub fn thresholds(&self) -> &[i64] {
        &self.thresholds
    }

    /// The part that each of the contacts falls into in a campaign; the first for all without variants.
    pub async fn parts(
        &self,
        db: &mut PgConnection,
        campaign: Uuid,
        contacts: &[Uuid],
    ) -> sqlx::Result<HashMap<Uuid, i32>> {
        if self.thresholds.is_empty() {
            return Ok(contacts.iter().map(|contact| (*contact, 0)).collect());
        }
        let rows = sqlx::query!(
            r#"select id as "id!", width_bucket(ab_draw($1, id), $3::bigint[]) as "part!" from unnest($2::uuid[]) id"#,
            campaign,
            contacts,
            &self.thresholds,
        )
        .fetch_all(db)
        .await?;
        Ok(rows.into_iter().map(|row| (row.id, row.part)).collect())
    }

    /// The variant of a part; none for the remainder.
    #[must_use]
    pub fn variant_name(&self, part: i32) -> Option<&'static str> {
        usize::try_from(part)
            .ok()
            .filter(|part| *part < self.variants())
            .and_then(|part| VARIANT_NAMES.get(part).copied())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// What `width_bucket` does.
    fn part(split: &Split, draw: i64) -> i32 {
        i32::try_from(split.thresholds().iter().filter(|threshold| **threshold <= draw).count()).unwrap_or(i32::MAX)
    }

    #[test]
    fn a_test_of_a_tenth_leaves_nine_tenths_for_the_winner() {
        let split = Split::new(10, &[1, 1]);
        assert_eq!(split.thresholds(), [214_748_364, 429_496_729]);
        assert_eq!((split.variant_name(0), split.variant_name(1), split.variant_name(2)), (Some("A"), Some("B"), None));
    }

    #[test]
    fn a_test_of_all_leaves_no_remainder() {
        let split = Split::new(100, &[3, 1, 1]);
        assert_eq!(part(&split, (1 << 32) - 1), 2);
    }

    #[test]
    fn without_variants_all_are_one_part() {
        assert_eq!(part(&Split::new(100, &[]), 77), 0);
        assert_eq!(Split::new(100, &[]).variant_name(0), None);
    }

    proptest! {
        #[test]
        fn each_part_is_as_wide_as_its_weight(percent in 1..=100_u8, weights in proptest::collection::vec(1..=1_000_u32, 2..=8)) {
            let split = Split::new(percent, &weights);
            let total: f64 = weights.iter().copied().map(f64::from).sum();
            let mut from = 0_i64;
            for (weight, to) in weights.iter().zip(split.thresholds()) {
                let share = (*to - from) as f64 / DRAWS as f64;
                let expected = f64::from(percent) / 100.0 * f64::from(*weight) / total;
                prop_assert!((share - expected).abs() < 1e-8, "{share} {expected}");
                from = *to;
            }
        }

        #[test]
        fn every_draw_falls_into_one_part(draw in 0..(1_i64 << 32), percent in 1..=100_u8, weights in proptest::collection::vec(1..=1_000_u32, 2..=8)) {
            let split = Split::new(percent, &weights);
            let part = part(&split, draw);
            prop_assert!(usize::try_from(part).is_ok_and(|part| part <= weights.len()));
            prop_assert!(percent < 100 || split.variant_name(part).is_some());
        }
    }
}
