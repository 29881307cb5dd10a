//! The OpenAPI document: complete, valid, and the one that is committed.
//!
//! `UPDATE=1 cargo test -p ingress --test contract` writes `schemas/openapi.json`.
#![allow(clippy::unwrap_used)]

#[path = "../common/mod.rs"]
mod common;

#[path = "../mail/fixtures.rs"]
#[allow(dead_code)]
mod fixtures;

mod document;
mod served;
mod specification;
mod walk;
