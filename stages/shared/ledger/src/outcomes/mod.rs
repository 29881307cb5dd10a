//! What a product tells of a mail's success: recorded once for each event of its source. The attribution stage credits it to mail.

mod amount;
pub mod contacts;
mod record;
mod request;

pub use amount::{PREMIUM_MAX, PREMIUM_UNITS, Premium, VALUE_CENTS_MAX};
pub use record::{Recorded, Refusal, record};
pub use request::{EVENT_ID_MAX, Fault, NewOutcome, OutcomeRequest};

/// A whole outcome, in millionths: what its credits' shares add up to.
pub const SHARE_WHOLE: i64 = 1_000_000;
