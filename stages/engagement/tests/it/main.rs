//! The engagement stage on its own database and streams.
#![allow(clippy::unwrap_used, clippy::print_stdout, missing_docs)]

mod inbound;
mod inbound_smtp;
mod mailboxes;
mod orders;
mod rescore;
mod stage;
