//! The delivery stage: sends rendered messages through a provider and records the outcome of each.

mod pace;
pub mod provider;
mod stage;

pub use stage::{Settings, start};
