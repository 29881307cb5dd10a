//! The delivery stage: rendered messages out to a relay, and what became of each of them.

pub mod pace;
pub mod provider;
mod stage;

pub use stage::{Delivery, Settings, return_path, start};
