//! Money, exactly: whole ten-thousandths of a dollar, never a binary fraction.

use serde_json::Number;

/// Ten-thousandths in a dollar: premiums have at most four decimals.
pub const PREMIUM_UNITS: i64 = 10_000;
/// The highest premium: ten billion dollars. With four decimals these are fourteen digits, and a decimal number of up to fifteen is
/// read from JSON and written back unchanged, although it is a binary fraction in between.
pub const PREMIUM_MAX: Premium = Premium(10_000_000_000 * PREMIUM_UNITS);
/// The highest value and premium in cents.
pub const VALUE_CENTS_MAX: i64 = 1_000_000_000_000;

const DECIMALS: usize = 4;
const UNITS_IN_A_CENT: i64 = PREMIUM_UNITS / 100;

/// An amount of dollars, in ten-thousandths.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Premium(pub i64);

impl Premium {
    /// From a JSON number of dollars. `None`: more than four decimals, negative or above [`PREMIUM_MAX`].
    #[must_use]
    pub fn of_dollars(number: &Number) -> Option<Self> {
        // Written out in full, without an exponent: the shortest digits that are this number.
        let text = match (number.as_i64(), number.as_f64()) {
            (Some(whole), _) => whole.to_string(),
            (None, Some(fraction)) => fraction.to_string(),
            (None, None) => return None,
        };
        let (whole, decimals) = text.split_once('.').unwrap_or((&text, ""));
        if decimals.len() > DECIMALS {
            return None;
        }
        let units: i64 = format!("{whole}{decimals:0<DECIMALS$}").parse().ok()?;
        (0..=PREMIUM_MAX.0).contains(&units).then_some(Self(units))
    }

    /// From whole cents. `None`: negative or above [`VALUE_CENTS_MAX`].
    #[must_use]
    pub fn of_cents(cents: i64) -> Option<Self> {
        (0..=VALUE_CENTS_MAX).contains(&cents).then_some(Self(cents * UNITS_IN_A_CENT))
    }

    /// The JSON number of dollars that reads back to the same amount. Sums beyond a trillion dollars show their whole dollars.
    #[must_use]
    pub fn dollars(self) -> Number {
        let (whole, rest) = (self.0 / PREMIUM_UNITS, self.0 % PREMIUM_UNITS);
        if rest == 0 {
            return whole.into();
        }
        // Dividing two whole numbers below 2^53 gives the binary fraction nearest to the decimal number.
        Number::from_f64(self.0 as f64 / PREMIUM_UNITS as f64).unwrap_or_else(|| whole.into())
    }

    /// In cents, if it is whole cents.
    #[must_use]
    pub fn cents(self) -> Option<i64> {
        (self.0 % UNITS_IN_A_CENT == 0).then_some(self.0 / UNITS_IN_A_CENT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rstest::rstest;

    fn read(text: &str) -> Option<Premium> {
        Premium::of_dollars(&serde_json::from_str(text).unwrap())
    }

    #[rstest]
    #[case("0", Some(0))]
    #[case("1250", Some(12_500_000))]
    #[case("1250.0", Some(12_500_000))]
    #[case("0.1", Some(1_000))]
    #[case("1234.5678", Some(12_345_678))]
    #[case("1e3", Some(10_000_000))]
    #[case("10000000000", Some(PREMIUM_MAX.0))]
    #[case("9999999999.9999", Some(PREMIUM_MAX.0 - 1))]
    #[case("10000000000.0001", None)]
    #[case("0.00001", None)]
    #[case("0.30000000000000004", None)]
    #[case("1e-7", None)]
    #[case("-0.01", None)]
    #[case("-1", None)]
    #[case("1e300", None)]
    #[case("18446744073709551615", None)]
    fn dollars_have_four_decimals_and_bounds(#[case] text: &str, #[case] units: Option<i64>) {
        assert_eq!(read(text), units.map(Premium));
    }

    proptest! {
        #[test]
        fn every_amount_is_read_and_written_without_loss(units in 0..=PREMIUM_MAX.0) {
            let text = format!("{}.{:04}", units / PREMIUM_UNITS, units % PREMIUM_UNITS);
            prop_assert_eq!(read(&text), Some(Premium(units)));
            let written = Premium(units).dollars().to_string();
            prop_assert_eq!(read(&written), Some(Premium(units)), "{}", written);
        }
    }

    #[test]
    fn cents_are_cents_where_there_are_no_smaller_parts() {
        assert_eq!(Premium::of_cents(123_456).unwrap().dollars().to_string(), "1234.56");
        assert_eq!((Premium(100).cents(), Premium(101).cents()), (Some(1), None));
        assert_eq!(Premium::of_cents(-1), None);
    }
}
