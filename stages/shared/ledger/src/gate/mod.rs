//! Who may be mailed: one decision about a recipient, one about a batch, and the facts both rest on.

mod batch;
mod facts;
mod recipient;

pub use batch::{BatchEligibility, GateDecision, decide_send};
pub use facts::{BatchFacts, OwedSend, batches, owed_sends};
pub use recipient::{MarketingStatus, RecipientEligibility, decide_recipient, decide_sender};
