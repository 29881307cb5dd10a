//! The assistant endpoint: real tokens of a local issuer, real messages over the road every request takes.
#![allow(clippy::unwrap_used)]

#[path = "../common/mod.rs"]
mod common;

mod issuer;
mod pilot;
mod refusals;
mod tools;
