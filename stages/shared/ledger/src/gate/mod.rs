//! Who may be mailed: one decision about a recipient, one about a batch, and the facts both rest on.

mod batch;
mod facts;
mod recipient;

pub use batch::{BatchStanding, Verdict, verdict};
pub use facts::{BatchFacts, OwedSend, Road, batches, owed_sends};
pub use recipient::{MarketingStatus, Standing, judge, judge_sender};
