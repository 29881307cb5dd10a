//! `/v1/analytics`: reports from totals and batches. They read no sends, and cost the same for a thousand messages and for a million;
//! but that by tags, which nothing counts ahead, reads the requests of its window and their sends.

mod campaign;
mod outcomes;
mod overview;
mod store;
mod tags;
mod totals;
mod window;

use crate::pipeline::{Doc, Routes, read};

const SCOPE: &str = "analytics:read";

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
            "/v1/analytics/tags",
            read(SCOPE, tags::tags),
            Doc::new(
                "getTagAnalytics",
                "Report mail by its tags",
                "Of transactional and one-off mail that was due in the trailing 30 days, or from `from` to `to` (at most 366 days, \
                 full hours as in the overview): what has become of it until now, by the `tags` that its request gave it. The 100 \
                 tags with most mail, the most used first; `tag_count` says how many there are, and `tag` asks for one. A mail with \
                 two tags counts for both, and each recipient of a copy counts. Mail is in the report while its request is kept \
                 (30 days, unless the installation or `retention` of the tenant says otherwise).",
            )
            .answer::<tags::TagAnalytics>(200, "The report"),
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
