//! The endpoints, a module per resource.

mod analytics;
mod assistant;
pub mod audiences;
mod campaigns;
pub mod contacts;
pub mod domains;
mod explain;
pub mod fields;
pub mod health;
pub mod imports;
mod input;
mod messages;
pub mod platform;
mod segments;
mod senders;
mod sends;
pub mod suppressions;
mod templates;
pub mod tenants;
pub mod tracking;
mod transactional;
mod unsubscribe;

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
        .merge(sends::routes())
        .merge(explain::routes())
        .merge(analytics::routes())
        .merge(platform::routes())
        .merge(tracking::routes())
        .merge(unsubscribe::routes())
        .merge(assistant::routes())
        .merge(openapi::routes())
}
