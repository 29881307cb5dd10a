//! What developing needs and production does not have: the servers, the mail sink and `postrider dev`.
//!
//! The production binary is built without this crate: `cargo build --package postrider --no-default-features --features otlp`.

pub mod dev;
pub mod servers;
pub mod sink;
