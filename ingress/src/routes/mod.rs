//! The endpoints, a module per resource.

pub mod health;

use std::sync::Arc;

use axum::Router;

use crate::Ingress;

/// Every route there is.
pub(crate) fn all() -> Router<Arc<Ingress>> {
    Router::new().merge(health::routes())
}
