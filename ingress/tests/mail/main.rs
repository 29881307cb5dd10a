//! What mail needs: templates, domains, senders, campaigns, transactional mail, and what recipients reach.
#![allow(clippy::unwrap_used)]

#[path = "../common/mod.rs"]
mod common;

mod bodies;
mod campaigns;
mod confirmations;
mod direct;
mod domains;
mod drafts;
mod explain;
mod fixtures;
mod foreign;
mod launches;
mod limits;
mod merges;
mod messages;
mod names;
mod recipients;
mod references;
mod renders;
mod retries;
mod rules;
mod segments;
mod senders;
mod sends;
mod sequences;
mod snippets;
mod templates;
mod tenant;
mod transactional;
