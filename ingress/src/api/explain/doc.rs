//! How `/v1/explain` is documented.

use serde_json::json;

use super::{ExplainAnswer, ExplainQuery};
use crate::pipeline::{
    Doc,
    doc::{AT, ID},
};

pub(super) fn explain() -> Doc {
    let pass =
        |gate: &str, detail: &str| json!({"gate": gate, "verdict": "pass", "detail": detail, "row": null, "at": null});
    Doc::new(
        "explain",
        "Explain why a contact is mailed or not",
        "Every gate in order with its current decision, the deciding row and its time; then the send, if there is one. For a \
         campaign that is not launched yet: what would happen. For a sequence: the newest enrollment, and its newest mail.",
    )
    .query::<ExplainQuery>()
    .answer::<ExplainAnswer>(
        200,
        "The explanation",
        json!({"explanation": {
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
