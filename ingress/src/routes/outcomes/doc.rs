//! How `/v1/outcomes` is documented.

use ledger::outcomes::EVENT_ID_MAX;
use ledger::outcomes::PREMIUM_MAX;
use ledger::outcomes::PREMIUM_UNITS;
use ledger::outcomes::VALUE_CENTS_MAX;
use schemas::{AttributionModel, MessageKind, OutcomeType};
use serde_json::{Value, json};

use super::store::RESTATEMENTS_MAX;
use crate::openapi::{
    AT, Doc, ID,
    schema::{
        Field, Schema, any_object, array, array_max, boolean, email, id, integer, name, nullable, number, object,
        one_of, optional, page_of, required, success, text, time,
    },
};

fn outcome_type() -> Schema {
    one_of(OutcomeType::ALL.iter().map(|outcome_type| outcome_type.as_str()))
}

fn amount() -> Schema {
    number().with("minimum", 0).with("maximum", PREMIUM_MAX.0 / PREMIUM_UNITS)
}

fn cents() -> Schema {
    integer(0, VALUE_CENTS_MAX)
}

fn dot_number() -> Schema {
    integer(1, i64::MAX)
}

fn rule() -> Schema {
    one_of(["human_click", "delivered"]).or_null()
}

fn policy() -> Vec<Field> {
    let model = || one_of(AttributionModel::ALL.iter().map(|model| model.as_str()));
    let days = |name| required(name, integer(0, 365).or_null());
    vec![
        required("rule", rule().about("By what the mails were chosen; null while there is none.")),
        required("model", model().or_null()),
        days("click_window_days"),
        days("delivery_window_days"),
    ]
}

fn fields() -> Vec<Field> {
    let attribution = object(policy().into_iter().chain([
        required("status", one_of(["pending", "credited", "uncredited"])),
        required("revision", integer(0, i32::MAX.into()).about("How often the credit was set.")),
        required("credited_at", time().or_null().about("When it was set last.")),
    ]));
    vec![
        required("outcome_id", id()),
        required("source_system", text().about("The product that told it.")),
        required("source_event_id", text().or_null()),
        required("outcome_type", outcome_type()),
        required("contact_email", email().or_null()),
        required("dot_number", dot_number().or_null()),
        required("contact_id", id().or_null()),
        required("contact_matched", boolean()),
        required("matched_by", one_of(["email", "dot_number"]).or_null()),
        required("premium_amount", amount().or_null().about("In dollars, exactly as told.")),
        required("premium_cents", cents().or_null().about("Null as well where it is no whole number of cents.")),
        required("value_cents", cents().or_null()),
        required("occurred_at", time()),
        required("attribution", attribution),
        required("created_at", time()),
        required("updated_at", time()),
    ]
}

/// A mail's part.
fn part() -> Vec<Field> {
    vec![
        required("send_id", id()),
        required("campaign_id", id().or_null()),
        required("share", number().with("minimum", 0).with("maximum", 1).about("Those of one outcome add up to 1.")),
        required("premium_amount", amount().or_null().about("Those of one outcome add up to its own.")),
        required("value_cents", cents().or_null()),
    ]
}

fn detail() -> Schema {
    let credit = object(part().into_iter().chain([
        required("message_kind", one_of(MessageKind::ALL.iter().map(|kind| kind.as_str()))),
        required("sequence_id", id().or_null()),
        required(
            "contact_id",
            id().about("Its recipient: of several with the same `dot_number`, the one who was mailed."),
        ),
        required("rule", rule()),
        required("touched_at", time().about("When it was clicked, or delivered.")),
        required("evidence", any_object().about("Of a click its `event_id`, `url` and `link_id`.")),
    ]));
    let restatement = object(policy().into_iter().chain([
        required("revision", integer(1, i32::MAX.into())),
        required("restated_at", time()),
        required("reason", one_of(["first", "changed", "late_fact", "contact", "model", "rescored"])),
        required("credits", array(object(part()))),
    ]));
    object(
        fields().into_iter().chain([
            required("credits", array(credit).about("The mails it is credited to, the latest touch first.")),
            required(
                "restatements",
                array_max(restatement, usize::try_from(RESTATEMENTS_MAX).unwrap_or(usize::MAX))
                    .about("Every credit it had, the present one first."),
            ),
        ]),
    )
    .named("OutcomeDetail")
}

fn outcome() -> Schema {
    object(fields()).named("Outcome")
}

fn example() -> Value {
    json!({
        "outcome_id": ID, "source_system": "crm", "source_event_id": "policy-81", "outcome_type": "bind",
        "contact_email": "ann@example.com", "dot_number": null, "contact_id": ID, "contact_matched": true, "matched_by": "email",
        "premium_amount": 1250.5, "premium_cents": 125_050, "value_cents": null, "occurred_at": AT,
        "attribution": {
            "status": "credited", "rule": "human_click", "model": "last_touch", "click_window_days": 30,
            "delivery_window_days": 7, "revision": 1, "credited_at": AT,
        },
        "created_at": AT, "updated_at": AT,
    })
}

fn example_detail() -> Value {
    let mut example = example();
    example["credits"] = json!([{
        "send_id": ID, "campaign_id": ID, "share": 1.0, "premium_amount": 1250.5, "value_cents": null,
        "message_kind": "campaign", "sequence_id": null, "contact_id": ID, "rule": "human_click", "touched_at": AT,
        "evidence": {"event_id": ID, "url": "https://example.com/quote", "link_id": 0},
    }]);
    example["restatements"] = json!([{
        "revision": 1, "restated_at": AT, "reason": "first", "rule": "human_click", "model": "last_touch",
        "click_window_days": 30, "delivery_window_days": 7,
        "credits": [{"send_id": ID, "campaign_id": ID, "share": 1.0, "premium_amount": 1250.5, "value_cents": null}],
    }]);
    example
}

pub(super) fn record() -> Doc {
    let optional_event = name(EVENT_ID_MAX).about(
        "Your own id of the event: telling it again is telling the same outcome, with what it says now. Without it every call \
         is another outcome, except repeats with the same `Idempotency-Key`.",
    );
    Doc::new(
        "recordOutcome",
        "Tell what a mail may be credited for",
        "The contact is found by `contact_email` or `dot_number`, one of which is required; when it is made later, the outcome finds \
         it then. Credit follows within moments: the last mail a person clicked in the 30 days before, else the last that was \
         delivered in the 7 days before (model and windows are the tenant's). Clicks that become known later restate it.",
    )
  .body_schema(
        object([
            nullable("contact_email", email()),
            nullable("dot_number", dot_number()),
            required("outcome_type", outcome_type()),
            nullable("premium_cents", cents()),
            nullable(
                "premium_amount",
                amount().about("In dollars, with at most four decimals, kept exactly. Goes before `premium_cents`."),
            ),
            nullable("value_cents", cents()),
            nullable("occurred_at", time().about("Default: now; told again, as it was.")),
            nullable("source_event_id", optional_event),
        ]),
        json!({
            "contact_email": "ann@example.com", "outcome_type": "bind", "premium_amount": 1250.5,
            "source_event_id": "policy-81",
        }),
    )
    .answer_schema(
        200,
        "Recorded",
        success([required("outcome_id", id()), required("contact_matched", boolean())]),
        json!({"ok": true, "outcome_id": ID, "contact_matched": true}),
    )
    .leads_to("outcome_id", &["getOutcome"])
    .refuses(422, &["contact_conflict"])
}

pub(super) fn list() -> Doc {
    Doc::new("listOutcomes", "List outcomes", "Newest first.")
        .query_fields([
            optional("contact_id", id()),
            optional("campaign_id", id().about("Those credited to it, in whole or in part.")),
            optional("type", outcome_type()),
            optional("since", time().about("Those that happened since.")),
        ])
        .paged()
        .answer_schema(
            200,
            "A page",
            page_of("outcomes", outcome()),
            json!({"ok": true, "outcomes": [example()], "next_cursor": null}),
        )
}

pub(super) fn show() -> Doc {
    Doc::new("getOutcome", "Show an outcome", "With the mails it is credited to, why, and every credit it had before.")
        .answer_schema(
            200,
            "The outcome",
            success([required("outcome", detail())]),
            json!({"ok": true, "outcome": example_detail()}),
        )
        .refuses(404, &["outcome_not_found"])
}
