//! How `/v1/analytics` is documented.

use schemas::{BounceClass, MessageKind, OutcomeType};
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
        number(
            "delivered",
            "Confirmed by the provider where it can, otherwise accepted by the receiving server; not bounced since. As \
             `email.delivered` events.",
        ),
        number("delivered_confirmed", "Of these, those that a provider has confirmed."),
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
        number("replied", "Unique, answered by a person."),
    ]
}

fn totals() -> Schema {
    object(numbers()).named("MessageTotals")
}

fn rates() -> Schema {
    let rate = |name, about: &str| required(name, number().with("minimum", 0).or_null().about(about));
    object([
        rate("delivery_rate", "Delivered, of sent and failed."),
        rate("bounce_rate", "Of sent and failed."),
        rate("complaint_rate", "Of delivered, as all that follow."),
        rate("open_rate", ""),
        rate("open_rate_human", ""),
        rate("click_rate", ""),
        rate("click_rate_human", ""),
        rate("unsubscribe_rate", ""),
        rate("reply_rate", ""),
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

/// What `delivered` rests on.
fn delivered_basis() -> Schema {
    one_of(["confirmed", "accepted", "mixed"])
        .or_null()
        .about("Whether providers have confirmed what counts as delivered, or receiving servers have accepted it; null while nothing was.")
}

fn outcome_type() -> Schema {
    one_of(OutcomeType::ALL.iter().map(|outcome_type| outcome_type.as_str()))
}

fn kind() -> Schema {
    one_of(MessageKind::ALL.iter().map(|kind| kind.as_str()))
}

/// Dollars, or parts of a whole.
fn amount() -> Schema {
    number().with("minimum", 0)
}

fn credited() -> Schema {
    object([
        required("outcome_type", outcome_type()),
        required("outcomes", count().about("Credited to the campaign, in whole or in part.")),
        required("credited", amount().about("The parts added up.")),
        required("premium_amount", amount().about("The credited part, in dollars, exactly.")),
        required("value_cents", count()),
    ])
}

fn example_credited() -> Value {
    json!([{"outcome_type": "premium", "outcomes": 2, "credited": 1.5, "premium_amount": 1875.75, "value_cents": 0}])
}

fn report() -> Schema {
    let top = object([
        required("kind", one_of(["campaign", "sequence", "template"])),
        required("campaign_id", id().or_null()),
        required("template_id", id().or_null()),
        required("sequence_id", id().or_null().about("Whose mail the template was.")),
        required("name", text()),
        required("launched_at", time().or_null()),
        required("totals", totals()),
        required("rates", rates()),
    ]);
    let bounces = object([
        required("class", one_of(BounceClass::ALL.iter().map(|class| class.as_str()))),
        required("count", count()),
    ]);
    let outcomes = object([
        required("outcome_type", outcome_type()),
        required("recorded", count()),
        required("recorded_premium_amount", amount()),
        required("recorded_value_cents", count()),
        required("credited", amount().about("How many of them are credited to mails, parts added up.")),
        required("credited_premium_amount", amount()),
        required("credited_value_cents", count()),
    ]);
    let of_trigger = object([required("trigger", kind()), required("amount", amount())]);
    let revenue = object([
        required("recorded_amount", amount().about("The premium of outcomes of type `premium`.")),
        required("credited_amount", amount().about("What of it is credited to mails.")),
        required("by_trigger", array(of_trigger)),
    ]);
    let suppressions = object([
        required("reason", text()),
        required("total", count().about("How many there are now.")),
        required("added", count().about("How many came within the window.")),
    ]);
    object([
        required("totals", with([required("opened_total", count()), required("clicked_total", count())])),
        optional("delivered_basis", delivered_basis()),
        required("rates", rates()),
        required("daily", array(with([required("date", date())])).about("Every day of the window, in the tenant's time zone.")),
        required("day_of_week", array(with([required("day", one_of(WEEKDAYS))])).about("Monday first.")),
        required("triggers", array(with([required("trigger", kind())]))),
        required(
            "top_messages",
            array_max(top, TOP).about(
                "By human clicks: campaigns launched within the window (of the newest 200), with all that became of them, and \
                 templates of sequences and of transactional mail.",
            ),
        ),
        required("suppressions", array(suppressions)),
        required(
            "sequence_triggers",
            array(with([required("trigger_type", text())])).about("Of sequences, by what enrolls contacts in them."),
        ),
        required("bounces", array(bounces).about("Refusals, at once and later.")),
        required("outcomes", array(outcomes)),
        required("revenue", revenue),
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
    .query_fields([optional("from", moment()), optional("to", moment())])
    .answer_schema(
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
    .answer_schema(
        200,
        "The report",
        success([
            required("campaign_id", id()),
            required("totals", totals()),
            optional("delivered_basis", delivered_basis()),
            required("rates", rates()),
            required("outcomes", array(credited())),
            required(
                "revenue_amount",
                amount().about("The premium of outcomes of type `premium`, as far as it is the campaign's."),
            ),
            optional("variants", array(variant)),
            optional(
                "winner",
                winner.or_null().about("Null while undecided, or when no variant was better; `notes` says why."),
            ),
            required("notes", array(text())),
        ]),
        json!({
            "ok": true, "campaign_id": ID, "totals": example_totals(), "delivered_basis": "accepted", "rates": example_rates(),
            "outcomes": example_credited(), "revenue_amount": 1875.75,
            "notes": ["Clicks are the reliable signal."],
        }),
    )
    .refuses(404, &["campaign_not_found"])
}
