//! The road every endpoint takes, and the endpoints of people: against a real Postgres, one database per test.
#![allow(clippy::unwrap_used)]

#[path = "../common/mod.rs"]
mod common;

mod audiences;
mod authentication;
mod bus;
mod contacts;
mod feed;
mod fields;
mod idempotency;
mod imports;
mod requests;
mod segments;
mod suppressions;
mod tenancy;
mod webhooks;
