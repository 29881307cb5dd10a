//! Accepted requests become sends.

pub mod message;
mod prompt;
pub mod transactional;
