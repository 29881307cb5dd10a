//! How `/v1/explain` is documented.

use serde_json::json;

use super::gates::VERDICTS;
use crate::{
    openapi::{
        AT, Doc, ID,
        schema::{array, email, id, object, one_of, optional, required, success, text, time},
    },
    routes::sends,
};

/// The gates, in the order the engine passes them.
const GATES: [&str; 13] = [
    "audience",
    "contact",
    "suppression",
    "consent",
    "tenant",
    "sender",
    "domain",
    "quota",
    "warmup",
    "pace",
    "window",
    "campaign",
    "sequence",
];

pub(super) fn explain() -> Doc {
    let row = object([required("kind", text()), required("id", id())]);
    let gate = object([
        required("gate", one_of(GATES)),
        required("verdict", one_of(VERDICTS)),
        required("detail", text().about("A state, a reason, a number.")),
        required("row", row.or_null().about("What decides.")),
        required("at", time().or_null().about("Since when; for the quota, until when.")),
    ]);
    let explanation = object([
        required(
            "about",
            object([required("kind", one_of(["campaign", "message", "sequence"])), required("id", id())]),
        ),
        required("email", text()),
        required("contact_id", id().or_null()),
        required("verdict", one_of(VERDICTS).about("What would happen now: the first gate that stops, or else waits.")),
        required("decided_by", one_of(GATES).or_null()),
        required(
            "variant",
            one_of(ledger::audience::VARIANT_NAMES).or_null().about("Of an A/B test; null in the remainder."),
        ),
        required("gates", array(gate)),
        required(
            "send",
            sends::doc::send().or_null().about("What became of it. What it says happened before, comes first."),
        ),
    ]);
    let pass =
        |gate: &str, detail: &str| json!({"gate": gate, "verdict": "pass", "detail": detail, "row": null, "at": null});
    Doc::new(
        "explain",
        "Explain why somebody is mailed or not",
        "Every gate in order with its verdict now, the row that decides and since when; then the send, where there is one. For a \
         campaign that is not launched yet: what would happen. For a sequence: the newest enrollment, and its newest mail.",
    )
    .query_fields([
        optional("campaign_id", id().about("One of campaign_id, message_id and sequence_id.")),
        optional("message_id", id()),
        optional("sequence_id", id()),
        required("email", email()),
    ])
    .answer_schema(
        200,
        "The explanation",
        success([required("explanation", explanation)]),
        json!({"ok": true, "explanation": {
            "about": {"kind": "campaign", "id": ID}, "email": "ann@example.com", "contact_id": ID, "verdict": "stop",
            "decided_by": "suppression", "variant": null,
            "gates": [
                pass("audience", "is_in_the_audience"),
                {"gate": "suppression", "verdict": "stop", "detail": "complaint", "row": {"kind": "suppression", "id": ID}, "at": AT},
                pass("quota", "unlimited"),
            ],
            "send": null,
        }}),
    )
    .refuses(404, &["campaign_not_found", "message_not_found", "sequence_not_found", "send_not_found"])
}
