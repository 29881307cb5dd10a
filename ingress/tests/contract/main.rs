//! The OpenAPI document: complete, valid, and the one that is committed.
//!
//! Likewise the documents of the bus: the AsyncAPI document, and a JSON Schema for each message.
//!
//! `UPDATE=1 cargo test -p ingress --test contract` writes `schemas/openapi.json`, `schemas/asyncapi.json` and `schemas/json`.
#![allow(clippy::unwrap_used)]

#[path = "../common/mod.rs"]
mod common;

#[path = "../mail/fixtures.rs"]
#[allow(dead_code)]
mod fixtures;

mod asyncapi;
mod compat;
mod document;
mod served;
mod specification;
mod walk;
