//! What mail needs: templates, domains, senders, campaigns, transactional mail, and what recipients reach.
#![allow(clippy::unwrap_used)]

#[path = "../common/mod.rs"]
mod common;

mod campaigns;
mod direct;
mod dns;
mod domains;
mod explain;
mod fixtures;
mod foreign;
mod launches;
mod messages;
mod recipients;
mod renders;
mod retries;
mod rules;
mod segments;
mod senders;
mod sends;
mod sequences;
mod templates;
mod tenant;
mod transactional;
