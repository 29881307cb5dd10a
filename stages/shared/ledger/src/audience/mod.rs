//! The contacts of an audience: selected, counted, looked up, pinned for a launch, split for an A/B test.

mod count;
mod lookup;
mod pin;
mod selector;
mod split;

pub use count::{AudienceCount, AudienceMembers, CountedCampaign, WaitFacts, count, count_for};
pub use lookup::{includes, some};
pub use pin::{pin, pin_list, pinned_includes, unpin};
pub use selector::AudienceSelector;
pub use split::{Split, VARIANT_NAMES};
