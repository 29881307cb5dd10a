//! How `/v1/sends` is documented.

use serde_json::{Value, json};

use super::{SendAnswer, source::CapturedSource};
use crate::pipeline::{
    Doc,
    doc::{AT, ID},
};

/// An example of a send in a list.
pub(crate) fn summary_example() -> Value {
    json!({
        "send_id": ID, "message_kind": "campaign", "campaign_id": ID, "message_id": null, "sequence_id": null,
        "enrollment_id": null, "step_id": null, "variant": null,
        "template_id": ID, "template_version": 3, "contact_id": ID, "email": "ann@example.com",
        "state": "sent", "skip_reason": null, "failure_reason": null, "attempt_count": 1, "smtp_code": 250,
        "enhanced_code": "2.0.0", "response": "queued", "provider": "smtp", "provider_message_id": null,
        "next_attempt_at": null, "decided_at": AT,
        "facts": {
            "delivered_at": AT, "bounced_at": null, "complained_at": null, "opened_at": null, "human_opened_at": null,
            "clicked_at": null, "human_clicked_at": null, "unsubscribed_at": null, "replied_at": null,
        },
        "created_at": AT,
    })
}

pub(super) fn show() -> Doc {
    let mut example = summary_example();
    example["email_type"] = json!("marketing");
    example["lane"] = json!("bulk");
    example["content_id"] = json!(ID);
    example["sender_id"] = json!(ID);
    example["attempts"] = json!([{"outcome": "sent", "at": AT, "attempt": 1, "smtp_code": 250}]);
    example["timeline"] = json!([{"type": "queued", "at": AT, "detail": {}}]);
    Doc::new("getSend", "Read a send and its outcome", "State, attempts with the server's answers, facts, timeline.")
        .answer::<SendAnswer>(200, "The send", json!({"send": example}))
        .refuses(404, &["send_not_found"])
}

pub(super) fn source() -> Doc {
    Doc::new(
        "getSendSource",
        "Read the mail that the sandbox captured",
        "The message as it would have left, headers first, in the sandbox environment only. Kept for seven days, the newest 500 of a \
         tenant; of a longer message the first 256 KB.",
    )
    .answer::<CapturedSource>(
        200,
        "The message",
        json!({"send_id": ID, "source": "From: …\r\n\r\nHello\r\n", "truncated": false, "captured_at": AT}),
    )
    .refuses(404, &["send_not_found", "source_not_found"])
}
