//! The API for products: a folder per resource, with its handlers, types and queries.

pub(crate) mod analytics;
pub(crate) mod assistant;
pub mod audiences;
pub mod campaigns;
pub mod contacts;
pub mod domains;
pub(crate) mod enrollments;
pub mod explain;
pub mod fields;
pub mod imports;
pub(crate) mod messages;
pub(crate) mod outcomes;
pub mod platform;
pub(crate) mod segments;
pub(crate) mod senders;
pub(crate) mod sends;
pub(crate) mod sequences;
pub mod suppressions;
pub(crate) mod templates;
pub mod tenants;
pub(crate) mod transactional;
pub(crate) mod webhooks;
