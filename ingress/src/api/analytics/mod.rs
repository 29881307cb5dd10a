//! `/v1/analytics`: reports from totals and batches. None of them looks at sends: they cost the same for a thousand messages and
//! for a million.

mod campaign;
mod outcomes;
mod overview;
mod store;
mod totals;
mod window;

use crate::pipeline::{Doc, Routes, read};

const SCOPE: &str = "analytics:read";

/// The routes.
pub(crate) fn routes() -> Routes {
    Routes::new()
        .get(
            "/v1/analytics/overview",
            read(SCOPE, overview::overview),
            Doc::new(
                "getAnalyticsOverview",
                "Report the tenant's statistics",
                "The trailing 30 days, or the time from `from` to `to` (at most 366 days). Totals stand by the hour: \
                 `from` is taken back and `to` forward to a full one, and `window` says what the report is about.",
            )
            .answer::<overview::AnalyticsOverview>(200, "The report"),
        )
        .get(
            "/v1/analytics/campaigns/{id}",
            read(SCOPE, campaign::campaign),
            Doc::new(
                "getCampaignAnalytics",
                "Report a campaign's statistics",
                "`variants` and `winner` are there when an A/B test ran.",
            )
            .answer::<campaign::CampaignAnalytics>(200, "The report")
            .refuses(404, &["campaign_not_found"]),
        )
}
