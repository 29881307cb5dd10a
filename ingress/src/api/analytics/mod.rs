//! `/v1/analytics`: reports from totals and batches. None of them looks at sends: they cost the same for a thousand messages and
//! for a million.

mod campaign;
mod doc;
mod outcomes;
mod overview;
mod store;
mod totals;
mod window;

use crate::pipeline::{Routes, read};

const SCOPE: &str = "analytics:read";

/// The routes.
pub(crate) fn routes() -> Routes {
    Routes::new().get("/v1/analytics/overview", read(SCOPE, overview::overview), doc::overview).get(
        "/v1/analytics/campaigns/{id}",
        read(SCOPE, campaign::campaign),
        doc::campaign,
    )
}
