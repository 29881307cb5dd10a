//! Accepted requests become sends.

pub mod message;
pub mod transactional;
