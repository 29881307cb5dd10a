//! The gate: one decision about a recipient, one about a batch, and the facts for both.

mod batch;
mod facts;
mod quiet;
mod recipient;

pub use batch::{BatchEligibility, GateDecision, Hold, SendFacts, WARMUP, decide_hold, decide_send};
pub(crate) use batch::{batch_eligibility, decide_confirmation};
pub(crate) use facts::{AskedSend, SendLookups};
pub use facts::{BatchFacts, OwedSend, find_opted_out, left_topic, load_batches, load_eligibility, load_owed_sends};
pub use quiet::{QuietRule, load_rule, zone_named};
pub use recipient::{RecipientEligibility, decide_recipient, decide_sender, is_capped};
pub use schemas::MarketingStatus;
