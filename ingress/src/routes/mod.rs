//! The endpoints, a module per resource.

mod analytics;
mod assistant;
pub mod audiences;
pub mod campaigns;
pub mod contacts;
pub mod domains;
mod enrollments;
pub mod explain;
pub mod fields;
pub mod health;
pub mod hooks;
pub mod imports;
pub(crate) mod input;
pub(crate) mod messages;
mod outcomes;
pub mod platform;
mod segments;
mod senders;
mod sends;
mod sequences;
pub mod suppressions;
mod templates;
pub mod tenants;
pub mod tracking;
pub(crate) mod transactional;
mod unsubscribe;
mod webhooks;

use crate::{act::Routes, openapi};

/// Every route there is.
pub(crate) fn all() -> Routes {
    Routes::new()
        .merge(health::routes())
        .merge(tenants::routes())
        .merge(contacts::routes())
        .merge(audiences::routes())
        .merge(segments::routes())
        .merge(fields::routes())
        .merge(suppressions::routes())
        .merge(imports::routes())
        .merge(templates::routes())
        .merge(domains::routes())
        .merge(senders::routes())
        .merge(campaigns::routes())
        .merge(transactional::routes())
        .merge(messages::routes())
        .merge(sequences::routes())
        .merge(enrollments::routes())
        .merge(sends::routes())
        .merge(explain::routes())
        .merge(outcomes::routes())
        .merge(analytics::routes())
        .merge(platform::routes())
        .merge(webhooks::routes())
        .merge(tracking::routes())
        .merge(hooks::routes())
        .merge(unsubscribe::routes())
        .merge(assistant::routes())
        .merge(openapi::routes())
}
