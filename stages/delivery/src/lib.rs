//! The delivery stage: sends rendered messages through a provider and records the outcome of each.

pub mod pace;
pub mod provider;
mod stage;

pub use stage::{Delivery, Settings, return_path, start};
