//! The table of routes.

use crate::{api, documents::openapi, pipeline::Routes, public};

/// Every route there is.
pub(crate) fn all() -> Routes {
    Routes::new()
        .merge(public::health::routes())
        .merge(api::tenants::routes())
        .merge(api::contacts::routes())
        .merge(api::audiences::routes())
        .merge(api::segments::routes())
        .merge(api::fields::routes())
        .merge(api::suppressions::routes())
        .merge(api::imports::routes())
        .merge(api::templates::routes())
        .merge(api::domains::routes())
        .merge(api::senders::routes())
        .merge(api::campaigns::routes())
        .merge(api::transactional::routes())
        .merge(api::messages::routes())
        .merge(api::sequences::routes())
        .merge(api::enrollments::routes())
        .merge(api::sends::routes())
        .merge(api::explain::routes())
        .merge(api::outcomes::routes())
        .merge(api::analytics::routes())
        .merge(api::platform::routes())
        .merge(api::webhooks::routes())
        .merge(public::tracking::routes())
        .merge(public::hooks::routes())
        .merge(public::unsubscribe::routes())
        .merge(api::assistant::routes())
        .merge(openapi::routes())
}
