//! The audience stage: requests in, batches of recipients out.

mod count;
mod selector;

pub use count::{AudienceCount, count};
pub use selector::AudienceSelector;
