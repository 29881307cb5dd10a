//! The HTTP edge under hostile and clumsy clients: raw sockets against a real listener.
#![allow(clippy::unwrap_used)]

#[path = "../common/mod.rs"]
mod common;

mod bytes;
mod cuts;
mod slow;
mod wire;
