//! The servers, the helper that runs a command beside them, and the mail sink, each as its users see it.
#![allow(clippy::unwrap_used, missing_docs)]

mod servers;
mod sink_http;
mod sink_smtp;
mod smtp_client;
mod with_servers;
