//! The ledger: who may be mailed, what is owed, and what happened. The only writer of its tables.
//!
//! A stage is input, calls of this crate, outputs. Each module owns one rule, with its SQL in `queries/`.
//!
//! What takes a pool or a connection fails when Postgres is away; `# Errors` names what else.

pub mod attribution;
pub mod audience;
pub mod compact;
pub mod confirmations;
mod counters;
pub mod decide;
pub mod dispatch;
pub mod end_stopped;
mod endings;
pub mod erasure;
pub mod facts;
pub mod fence;
pub mod frequency;
pub mod gate;
pub mod hours;
pub mod launch;
pub mod leases;
pub mod local_time;
pub mod machine;
pub mod merged_mail;
mod opt_out;
pub mod outbox;
pub mod outcomes;
pub mod owed;
mod past_mail;
mod people;
pub mod preferences;
pub mod quota;
pub mod render_failures;
pub mod requests;
pub mod requeue;
pub mod resolve;
pub mod retry;
pub mod schedule;
pub mod sequence_sends;
pub mod soft_bounces;
pub mod suppressions;
pub mod tripwire;
pub mod variants;
pub mod warmup;
pub mod withhold;

pub use opt_out::{OptOut, opt_out};
pub use past_mail::{PastRecipient, apply_to_past_recipient, dropped_months, suppresses};
