//! What is counted and shown: analytics, the platform's health, and the pages recipients choose on.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod analytics;
mod chromium;
#[path = "../common/mod.rs"]
mod common;
#[path = "../mail/fixtures.rs"]
#[allow(dead_code)]
mod fixtures;
mod health;
mod outcomes;
mod preferences;
mod reader;
