//! How `/v1/analytics` is documented.

use schemas::MessageKind;
use serde_json::{Value, json};

use super::{overview::WEEKDAYS, store::TOP};
use crate::openapi::{
    AT, Doc, ID,
    schema::{
        Field, Schema, array, array_max, count, date, id, number, object, one_of, optional, required, success, text,
        time,
    },
};

fn numbers() -> Vec<Field> {
    let number = |name, about: &str| required(name, count().about(about));
    vec![
        number("total", "Everybody who was meant to get one."),
        number("sent", "Accepted by a receiving server or the relay."),
        number("delivered", "The same as `sent`: without further word from a provider, accepted is delivered."),
        number("delivered_confirmed", "Of these, what a provider has said is in the mailbox."),
        number("failed", "Refused for good, not renderable, or out of time."),
        number("unknown", "May have left; no answer came."),
        number("skipped", "Withheld on purpose, or cancelled."),
        number("bounced", "Refused because the mailbox is none."),
        number("complained", "Reported as spam."),
        number("opened", "Unique, by anybody or anything."),
        number("opened_human", "Unique, by a person as far as can be told."),
        number("clicked", "Unique, by anybody or anything."),
        number("clicked_human", "Unique, by a person as far as can be told."),
        number("unsubscribed", "Unique."),
    ]
}

fn totals() -> Schema {
    object(numbers()).named("MessageTotals")
}

fn rates() -> Schema {
    let rate = |name, about: &str| required(name, number().with("minimum", 0).or_null().about(about));
    object([
        rate("delivery_rate", "Of sent and failed."),
        rate("bounce_rate", "Of sent and failed."),
        rate("complaint_rate", "Of delivered, as all that follow."),
        rate("open_rate", ""),
        rate("open_rate_human", ""),
        rate("click_rate", ""),
        rate("click_rate_human", ""),
        rate("unsubscribe_rate", ""),
    ])
    .named("MessageRates")
}

fn with(first: impl IntoIterator<Item = Field>) -> Schema {
    object(first.into_iter().chain(numbers()))
}

fn example_totals() -> Value {
    json!({
        "total": 1000, "sent": 950, "delivered": 950, "delivered_confirmed": 0, "failed": 10, "unknown": 0, "skipped": 40,
        "bounced": 8, "complained": 1, "opened": 600, "opened_human": 210, "clicked": 120, "clicked_human": 95, "unsubscribed": 4,
    })
}

fn example_rates() -> Value {
    json!({
        "delivery_rate": 0.9896, "bounce_rate": 0.0083, "complaint_rate": 0.0011, "open_rate": 0.6316, "open_rate_human": 0.2211,
        "click_rate": 0.1263, "click_rate_human": 0.1, "unsubscribe_rate": 0.0042,
    })
}

fn example_with(name: &str, value: &str) -> Value {
    let mut example = example_totals();
    example[name] = json!(value);
    example
}

fn report() -> Schema {
    let top = object([
        required("kind", one_of(["campaign", "template"])),
        required("campaign_id", id().or_null()),
        required("template_id", id().or_null()),
        required("name", text()),
        required("launched_at", time().or_null()),
        required("totals", totals()),
        required("rates", rates()),
    ]);
    let suppressions = object([
        required("reason", text()),
        required("total", count().about("How many there are now.")),
        required("added", count().about("How many came within the window.")),
    ]);
    object([
        required("totals", with([required("opened_total", count()), required("clicked_total", count())])),
        required("rates", rates()),
        required("daily", array(with([required("date", date())])).about("Every day of the window, in the tenant's time zone.")),
        required("day_of_week", array(with([required("day", one_of(WEEKDAYS))])).about("Monday first.")),
        required("triggers", array(with([required("trigger", one_of(MessageKind::ALL.iter().map(|kind| kind.as_str())))]))),
        required(
            "top_messages",
            array_max(top, TOP).about(
                "By human clicks: campaigns launched within the window (of the newest 200), with all that became of them, and \
                 templates of transactional mail.",
            ),
        ),
        required("suppressions", array(suppressions)),
    ])
    .named("AnalyticsReport")
}

fn window() -> Schema {
    object([
        required("from", time()),
        required("to", time()),
        required("timezone", text().about("The tenant's; its days are those of the report.")),
    ])
}

pub(super) fn overview() -> Doc {
    let moment = || time();
    Doc::new(
        "getAnalyticsOverview",
        "What became of the tenant's mail",
        "The trailing 30 days, or the time from `from` to `to` (at most 366 days). Totals stand by the hour: `from` is taken back \
         and `to` forward to a full one, and `window` says what the report is about.",
    )
    .query([optional("from", moment()), optional("to", moment())])
    .answer(
        200,
        "The report",
        success([required("window", window()), required("report", report()), required("notes", array(text()))]),
        json!({
            "ok": true,
            "window": {"from": AT, "to": AT, "timezone": "UTC"},
            "report": {
                "totals": {
                    "total": 1000, "sent": 950, "delivered": 950, "delivered_confirmed": 0, "failed": 10, "unknown": 0,
                    "skipped": 40, "bounced": 8, "complained": 1, "opened": 600, "opened_human": 210, "clicked": 120,
                    "clicked_human": 95, "unsubscribed": 4, "opened_total": 911, "clicked_total": 140,
                },
                "rates": example_rates(),
                "daily": [example_with("date", "2026-03-01")],
                "day_of_week": [example_with("day", "monday")],
                "triggers": [example_with("trigger", "campaign")],
                "top_messages": [{
                    "kind": "campaign", "campaign_id": ID, "template_id": null, "name": "Spring", "launched_at": AT,
                    "totals": example_totals(), "rates": example_rates(),
                }],
                "suppressions": [{"reason": "unsubscribe", "total": 120, "added": 4}],
            },
            "notes": ["Clicks are the reliable signal."],
        }),
    )
}

pub(super) fn campaign() -> Doc {
    let variant = with([required("variant", text()), required("name", text()), required("rates", rates())]);
    let winner = object([
        required("variant", text()),
        required("name", text().or_null()),
        required("decided_at", time().or_null()),
    ]);
    Doc::new(
        "getCampaignAnalytics",
        "What became of a campaign",
        "`variants` and `winner` are there when an A/B test ran.",
    )
    .answer(
        200,
        "The report",
        success([
            required("campaign_id", id()),
            required("totals", totals()),
            required("rates", rates()),
            optional("variants", array(variant)),
            optional(
                "winner",
                winner.or_null().about("Null while undecided, or when no variant was better; `notes` says why."),
            ),
            required("notes", array(text())),
        ]),
        json!({
            "ok": true, "campaign_id": ID, "totals": example_totals(), "rates": example_rates(),
            "notes": ["Clicks are the reliable signal."],
        }),
    )
    .refuses(404, &["campaign_not_found"])
}
