//! Providers' events at the door: what is proven is stored once, what is not is refused and stored nowhere.
#![allow(clippy::unwrap_used)]

#[path = "../common/mod.rs"]
mod common;

mod accounts;
mod amazon;
mod proofs;
mod table;
