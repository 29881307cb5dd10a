//! The road every endpoint takes, and the endpoints of people: against a real Postgres, one database per test.
#![allow(clippy::unwrap_used)]

#[path = "../common/mod.rs"]
mod common;

mod audiences;
mod authentication;
mod bus;
mod connections;
mod contacts;
mod events;
mod exports;
mod feed;
mod fields;
mod idempotency;
mod imports;
mod keys;
mod merges;
mod reimports;
mod request_log;
mod requests;
mod segments;
mod suppressions;
mod tenancy;
mod upserts;
mod webhooks;
