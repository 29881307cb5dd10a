//! The gate: one decision about a recipient, one about a batch, and the facts for both.

mod batch;
mod facts;
mod quiet;
mod recipient;

pub(crate) use batch::{BatchEligibility, WARMUP, batch_eligibility, decide_confirmation};
pub use batch::{GateDecision, Hold, SendFacts, decide_hold, decide_send};
pub(crate) use facts::{AskedSend, SendLookups};
pub use facts::{BatchFacts, OwedSend, find_opted_out, left_topic, load_batches, load_eligibility, load_owed_sends};
pub use quiet::{QuietRule, load_rule, zone_named};
pub use recipient::{RecipientEligibility, decide_recipient, decide_sender, is_capped, may_all_be_mailed};
pub use schemas::MarketingStatus;
use sqlx::PgConnection;
use uuid::Uuid;

/// Waits for the fences of a tenant that have looked, and lets none look before this transaction is committed. To be called before
/// the tenant's row is locked: a fence may wait for that.
pub async fn block_fences(db: &mut PgConnection, tenant: Uuid) -> sqlx::Result<()> {
    sqlx::query!("select close_gate($1)", tenant).execute(db).await.map(drop)
}
