//! The winner of an A/B test, as one pure decision.

use sqlx::PgConnection;
use uuid::Uuid;

use schemas::{WinnerMetric, WinnerReason};

/// Mails that each variant must have sent before its rate says anything.
pub const SENT_MIN: i64 = 20;
/// Responses that all variants together must have.
pub const RESPONSES_MIN: i64 = 5;

/// The results of one variant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct VariantResult {
    /// Mails that a server accepted.
    pub sent: i64,
    /// Recipients with a human open.
    pub opened_human: i64,
    /// Recipients with a human click.
    pub clicked_human: i64,
}

impl VariantResult {
    fn responses(&self, metric: WinnerMetric) -> i64 {
        match metric {
            WinnerMetric::ClickRate => self.clicked_human,
            WinnerMetric::OpenRate => self.opened_human,
        }
    }
}

/// The position of the winner among the variants, and why. With too little data it is the first, the control.
#[must_use]
pub fn decide(results: &[VariantResult], metric: WinnerMetric) -> (usize, WinnerReason) {
    let responses: i64 = results.iter().map(|result| result.responses(metric)).sum();
    if responses < RESPONSES_MIN || results.iter().any(|result| result.sent < SENT_MIN) {
        return (0, WinnerReason::TooLittleData);
    }
    // Rates compared crosswise: fractions are not equal by rounding.
    let product = |a: &VariantResult, b: &VariantResult| i128::from(a.responses(metric)) * i128::from(b.sent);
    let mut best = 0;
    let mut tied = false;
    for (position, result) in results.iter().enumerate().skip(1) {
        match product(result, &results[best]).cmp(&product(&results[best], result)) {
            std::cmp::Ordering::Greater => (best, tied) = (position, false),
            std::cmp::Ordering::Equal => tied = true,
            std::cmp::Ordering::Less => {}
        }
    }
    (best, if tied { WinnerReason::Tie } else { WinnerReason::HighestRate })
}

/// Releases the remainder of a decided test with the winner's content. Answers the number of batches.
pub async fn release_remainder(db: &mut PgConnection, tenant: Uuid, campaign: Uuid, winner: &str) -> sqlx::Result<u64> {
    let released =
        sqlx::query_file!("queries/launch/release_remainder.sql", tenant, campaign, winner).execute(db).await?;
    Ok(released.rows_affected())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    /// Sent, opened, clicked of each.
    fn results(numbers: &[(i64, i64, i64)]) -> Vec<VariantResult> {
        let result = |&(sent, opened_human, clicked_human)| VariantResult { sent, opened_human, clicked_human };
        numbers.iter().map(result).collect()
    }

    #[rstest]
    #[case::second(&[(100, 50, 5), (100, 20, 9)], WinnerMetric::ClickRate, 1, WinnerReason::HighestRate)]
    #[case::by_opens(&[(100, 50, 5), (100, 20, 9)], WinnerMetric::OpenRate, 0, WinnerReason::HighestRate)]
    #[case::rate_not_number(&[(1_000, 0, 20), (100, 0, 10)], WinnerMetric::ClickRate, 1, WinnerReason::HighestRate)]
    #[case::tie(&[(100, 0, 7), (200, 0, 14)], WinnerMetric::ClickRate, 0, WinnerReason::Tie)]
    #[case::tie_of_the_best(&[(100, 0, 1), (100, 0, 7), (200, 0, 14)], WinnerMetric::ClickRate, 1, WinnerReason::Tie)]
    #[case::tie_below_the_best(&[(100, 0, 3), (100, 0, 3), (100, 0, 9)], WinnerMetric::ClickRate, 2, WinnerReason::HighestRate)]
    #[case::few_responses(&[(100, 90, 0), (100, 0, 4)], WinnerMetric::ClickRate, 0, WinnerReason::TooLittleData)]
    #[case::few_mails(&[(100, 0, 5), (19, 0, 19)], WinnerMetric::ClickRate, 0, WinnerReason::TooLittleData)]
    #[case::nothing_sent(&[(0, 0, 0), (0, 0, 0)], WinnerMetric::OpenRate, 0, WinnerReason::TooLittleData)]
    fn the_higher_rate_wins_when_there_is_enough_to_tell(
        #[case] numbers: &[(i64, i64, i64)],
        #[case] metric: WinnerMetric,
        #[case] winner: usize,
        #[case] reason: WinnerReason,
    ) {
        assert_eq!(decide(&results(numbers), metric), (winner, reason));
    }
}
