//! What is reached without an API key: links in mail, events of providers, probes.

pub mod health;
pub mod hooks;
pub(crate) mod link;
pub(crate) mod rate;
pub mod tracking;
pub(crate) mod unsubscribe;
