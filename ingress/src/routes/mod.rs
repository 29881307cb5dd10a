//! The endpoints, a module per resource.

pub mod audiences;
mod campaigns;
pub mod contacts;
pub mod domains;
pub mod fields;
pub mod health;
pub mod imports;
mod input;
mod senders;
mod sends;
pub mod suppressions;
mod templates;
pub mod tenants;
pub mod tracking;
mod transactional;
mod unsubscribe;

use std::sync::Arc;

use axum::Router;

use crate::Ingress;

/// Every route there is.
pub(crate) fn all() -> Router<Arc<Ingress>> {
    Router::new()
        .merge(health::routes())
        .merge(tenants::routes())
        .merge(contacts::routes())
        .merge(audiences::routes())
        .merge(fields::routes())
        .merge(suppressions::routes())
        .merge(imports::routes())
        .merge(templates::routes())
        .merge(domains::routes())
        .merge(senders::routes())
        .merge(campaigns::routes())
        .merge(transactional::routes())
        .merge(sends::routes())
        .merge(tracking::routes())
        .merge(unsubscribe::routes())
}
