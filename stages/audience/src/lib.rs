//! The audience stage: requests in, batches of recipients out.
//!
//! A transactional request becomes one send in a batch of its own, a one-off message a send for each of its recipients. A campaign's launch becomes its whole audience in
//! `sends`, in one set-based insert, cut into batches that wait in Postgres; the `hand_on` sweep announces them, tenants in
//! turn, so that the bus holds a few seconds of work and a pause or cancel bites at once. Further sweeps ring again for what
//! has not moved, cancel what a cancelled campaign still owes, and complete campaigns.
//!
//! [`count()`] is its pure part: the HTTP API answers a launch with it.

mod announce;
mod campaign;
mod count;
mod erasure;
mod lookup;
mod materialize;
mod message;
mod pin;
pub mod retention;
mod selector;
mod settings;
mod split;
mod stage;
mod sweeps;
mod traced;
mod transactional;
mod tripwire;
mod verdict;

pub use count::{AudienceCount, Members, count, count_split};
pub use erasure::{Erasures, is_erased, request_erasure};
pub use lookup::{includes, some};
pub use pin::{pin, unpin};
pub use selector::AudienceSelector;
pub use settings::Settings;
pub use split::{LETTERS, Split};
pub use stage::start;
pub use tripwire::{BOUNCES_OF, COMPLAINTS_OF};
pub use verdict::{RESPONSES_MIN, SENT_MIN, VariantResult, decide};
