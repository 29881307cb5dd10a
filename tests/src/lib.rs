//! What the whole-pipeline tests and the benchmarks stand on: real servers, real processes of the one binary, a signed client,
//! the mail sink.
#![allow(clippy::unwrap_used, missing_docs, reason = "a rig that cannot go on fails its test, and its names speak")]

pub mod client;
pub mod files;
pub mod http_load;
pub mod ledger;
pub mod measure;
pub mod process;
pub mod rig;
pub mod scrape;
pub mod sink;
pub mod wait;

pub use client::{Answer, Client};
pub use rig::Rig;
pub use wait::eventually;
