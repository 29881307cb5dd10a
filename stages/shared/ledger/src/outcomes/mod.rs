//! Outcomes: business results that a product reports, recorded once for each event of its source. The attribution stage credits them to mail.

mod amount;
pub mod contacts;
mod record;

pub use amount::{PREMIUM_MAX, PREMIUM_UNITS, Premium, VALUE_CENTS_MAX};
pub use record::{NewOutcome, OutcomeRefusal, RecordedOutcome, record};

/// A whole outcome, in millionths: what its credits' shares add up to.
pub const SHARE_WHOLE: i64 = 1_000_000;
