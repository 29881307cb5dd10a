//! The audience stage: requests in, batches of recipients out.
//!
//! A transactional request becomes one send in a batch of its own, a one-off message a send for each of its recipients. A campaign's launch becomes its whole audience in
//! `sends`, in one set-based insert, cut into batches that wait in Postgres; the `hand_on` sweep announces them, tenants in
//! turn, so that the bus holds a few seconds of work and a pause or cancel bites at once. Further sweeps ring again for what
//! has not moved, cancel what a cancelled campaign still owes, and complete campaigns.
//!
//! [`count()`] is its pure part: the HTTP API answers a launch with it.

mod campaign;
pub mod retention;
mod settings;
mod stage;
mod sweeps;

pub use settings::Settings;
pub use stage::start;
