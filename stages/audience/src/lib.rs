//! The audience stage: requests in, batches of recipients out.
//!
//! A transactional request becomes one send in a batch of its own, a one-off message a send for each of its recipients. A launch writes its
//! whole audience to `sends` in one set-based insert, cut into batches that wait in Postgres. The sweep `dispatch` announces them, tenants
//! in turn, so the bus holds a few seconds of work and a pause or cancel takes effect at once. Further sweeps announce work again that has
//! not moved, end the sends of cancelled campaigns, complete campaigns, and take the values of removed fields out of contacts.
//!
//! [`count()`] is its pure part: the HTTP API answers a launch with it.

mod campaign;
pub mod retention;
mod settings;
mod stage;
mod sweeps;

pub use settings::Settings;
pub use stage::start;
pub use sweeps::{remove_fields, warn_quotas};
