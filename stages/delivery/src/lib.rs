//! The delivery stage: rendered messages out to a relay, and what became of each of them.

pub mod classify;
pub mod dkim;
pub mod domain;
pub mod pace;
pub mod provider;
pub mod quota;
pub mod schedule;
pub mod smtp;
mod stage;
pub mod warmup;

pub use stage::{Delivery, Settings, return_path, start};

#[cfg(test)]
mod testing;
