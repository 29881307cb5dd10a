//! How `/v1/analytics` is documented.

use serde_json::{Value, json};

use super::{
    campaign::CampaignAnalytics,
    overview::{AnalyticsOverview, GetOverview},
};
use crate::pipeline::{
    Doc,
    doc::{AT, ID},
};

fn example_totals() -> Value {
    json!({
        "total": 1000, "sent": 950, "delivered": 950, "delivered_confirmed": 0, "failed": 10, "unknown": 0, "skipped": 40,
        "bounced": 8, "complained": 1, "opened": 600, "opened_human": 210, "clicked": 120, "clicked_human": 95, "unsubscribed": 4,
        "replied": 3,
    })
}

fn example_rates() -> Value {
    json!({
        "delivery_rate": 0.9896, "bounce_rate": 0.0083, "complaint_rate": 0.0011, "open_rate": 0.6316, "open_rate_human": 0.2211,
        "click_rate": 0.1263, "click_rate_human": 0.1, "unsubscribe_rate": 0.0042,
        "reply_rate": 0.0032,
    })
}

fn example_with(name: &str, value: &str) -> Value {
    let mut example = example_totals();
    example[name] = json!(value);
    example
}

fn example_credited() -> Value {
    json!([{"outcome_type": "premium", "outcomes": 2, "credited": 1.5, "premium_amount": 1875.75, "value_cents": 0}])
}

pub(super) fn overview() -> Doc {
    Doc::new(
        "getAnalyticsOverview",
        "Report the tenant's statistics",
        "The trailing 30 days, or the time from `from` to `to` (at most 366 days). Totals stand by the hour: `from` is taken back \
         and `to` forward to a full one, and `window` says what the report is about.",
    )
    .query::<GetOverview>()
    .answer::<AnalyticsOverview>(
        200,
        "The report",
        json!({
            "window": {"from": AT, "to": AT, "timezone": "UTC"},
            "report": {
                "totals": {
                    "total": 1000, "sent": 950, "delivered": 950, "delivered_confirmed": 0, "failed": 10, "unknown": 0,
                    "skipped": 40, "bounced": 8, "complained": 1, "opened": 600, "opened_human": 210, "clicked": 120,
                    "clicked_human": 95, "unsubscribed": 4, "replied": 3, "opened_total": 911, "clicked_total": 140,
                },
                "delivered_basis": "accepted",
                "rates": example_rates(),
                "daily": [example_with("date", "2026-03-01")],
                "day_of_week": [example_with("day", "monday")],
                "triggers": [example_with("trigger", "campaign")],
                "top_messages": [{
                    "kind": "campaign", "campaign_id": ID, "template_id": null, "sequence_id": null, "name": "Spring", "launched_at": AT,
                    "totals": example_totals(), "rates": example_rates(),
                }],
                "suppressions": [{"reason": "unsubscribe", "total": 120, "added": 4}],
                "sequence_triggers": [example_with("trigger_type", "manual_enrollment")],
                "bounces": [{"class": "hard", "count": 8}],
                "outcomes": [{
                    "outcome_type": "premium", "recorded": 3, "recorded_premium_amount": 2500.75, "recorded_value_cents": 0,
                    "credited": 1.5, "credited_premium_amount": 1875.75, "credited_value_cents": 0,
                }],
                "revenue": {
                    "recorded_amount": 2500.75, "credited_amount": 1875.75,
                    "by_trigger": [{"trigger": "campaign", "amount": 1875.75}],
                },
            },
            "notes": ["Clicks are the reliable signal."],
        }),
    )
}

pub(super) fn campaign() -> Doc {
    Doc::new(
        "getCampaignAnalytics",
        "Report a campaign's statistics",
        "`variants` and `winner` are there when an A/B test ran.",
    )
    .answer::<CampaignAnalytics>(
        200,
        "The report",
        json!({
            "campaign_id": ID, "totals": example_totals(), "delivered_basis": "accepted", "rates": example_rates(),
            "outcomes": example_credited(), "revenue_amount": 1875.75,
            "notes": ["Clicks are the reliable signal."],
        }),
    )
    .refuses(404, &["campaign_not_found"])
}
