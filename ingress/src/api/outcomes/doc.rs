//! How `/v1/outcomes` is documented.

use ledger::outcomes::OutcomeRequest;
use serde_json::{Value, json};

use super::{ListOutcomes, OutcomeAnswer, OutcomePage, OutcomeRecorded};
use crate::pipeline::{
    Doc,
    doc::{AT, ID},
};

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
    Doc::new(
        "recordOutcome",
        "Record an outcome for attribution",
        "The contact is found by `contact_email` or `dot_number`, one of which is required; when it is made later, the outcome finds \
         it then. Credit follows within moments: the last mail a person clicked in the 30 days before, else the last that was \
         delivered in the 7 days before (model and windows are the tenant's). Clicks that become known later restate it.",
    )
    .body::<OutcomeRequest>(
        json!({
            "contact_email": "ann@example.com", "outcome_type": "bind", "premium_amount": 1250.5,
            "source_event_id": "policy-81",
        }),
    )
    .answer::<OutcomeRecorded>(200, "Recorded", json!({"outcome_id": ID, "contact_matched": true}))
    .leads_to("outcome_id", &["getOutcome"])
    .refuses(422, &["contact_conflict"])
}

pub(super) fn list() -> Doc {
    Doc::new("listOutcomes", "List outcomes", "Newest first.").query::<ListOutcomes>().answer::<OutcomePage>(
        200,
        "A page",
        json!({"outcomes": [example()], "next_cursor": null}),
    )
}

pub(super) fn show() -> Doc {
    Doc::new("getOutcome", "Read an outcome", "With the mails it is credited to, why, and every credit it had before.")
        .answer::<OutcomeAnswer>(200, "The outcome", json!({"outcome": example_detail()}))
        .refuses(404, &["outcome_not_found"])
}
