//! How `/v1/sends` is documented.

use schemas::{Classification, Lane, MessageKind, SendState, SkipReason};
use serde_json::{Value, json};

use crate::openapi::{
    AT, Doc, ID,
    schema::{
        Field, Schema, any_object, array, boolean, count, id, integer, object, one_of, required, success, text, time,
    },
};

fn common() -> Vec<Field> {
    let facts = [
        "delivered_at",
        "bounced_at",
        "complained_at",
        "opened_at",
        "human_opened_at",
        "clicked_at",
        "human_clicked_at",
        "unsubscribed_at",
        "replied_at",
    ];
    vec![
        required("send_id", id()),
        required("message_kind", one_of(MessageKind::ALL.iter().map(|kind| kind.as_str()))),
        required("campaign_id", id().or_null()),
        required("message_id", id().or_null().about("The one-off message it belongs to.")),
        required("sequence_id", id().or_null().about("The sequence whose step it is.")),
        required("enrollment_id", id().or_null()),
        required("step_id", id().or_null()),
        required(
            "variant",
            one_of(ledger::audience::VARIANT_NAMES)
                .or_null()
                .about("Of an A/B test; null while it waits for the winner."),
        ),
        required("template_id", id().or_null()),
        required(
            "template_version",
            integer(1, i64::from(i32::MAX)).or_null().about("Null where the campaign has words of its own."),
        ),
        required("contact_id", id().or_null().about("Null until the request is resolved.")),
        required("email", text().or_null()),
        required("state", one_of(SendState::ALL.iter().map(|state| state.as_str()))),
        required("skip_reason", one_of(SkipReason::ALL.iter().map(|reason| reason.as_str())).or_null()),
        required("failure_reason", text().or_null()),
        required("attempt_count", count()),
        required("smtp_code", count().or_null()),
        required("enhanced_code", text().or_null()),
        required("response", text().or_null().about("The server's own words.")),
        required("provider", text().or_null().about("The way out that took it.")),
        required("provider_message_id", text().or_null().about("The provider's id; with SMTP the Message-ID.")),
        required("next_attempt_at", time().or_null()),
        required("decided_at", time().or_null()),
        required("facts", object(facts.map(|name| required(name, time().or_null()))).named("SendFacts")),
        required("created_at", time()),
    ]
}

/// A send in a list.
pub(crate) fn summary() -> Schema {
    object(common()).named("SendSummary")
}

/// An example of it.
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

/// A send with all there is to know of it.
pub(crate) fn send() -> Schema {
    let attempt = any_object().about("`outcome` and `at`, with the server's answer where there is one.");
    let entry = object([required("type", text()), required("at", time()), required("detail", any_object())]);
    let more = [
        required("email_type", one_of(Classification::ALL.iter().map(|class| class.as_str()))),
        required("lane", one_of(Lane::ALL.iter().map(|lane| lane.as_str()))),
        required("content_id", id().or_null()),
        required("sender_id", id().or_null()),
        required("attempts", array(attempt)),
        required("timeline", array(entry)),
    ];
    object(common().into_iter().chain(more)).named("Send")
}

pub(super) fn show() -> Doc {
    let mut example = summary_example();
    example["email_type"] = json!("marketing");
    example["lane"] = json!("bulk");
    example["content_id"] = json!(ID);
    example["sender_id"] = json!(ID);
    example["attempts"] = json!([{"outcome": "sent", "at": AT, "attempt": 1, "smtp_code": 250}]);
    example["timeline"] = json!([{"type": "queued", "at": AT, "detail": {}}]);
    Doc::new("getSend", "Read what became of a send", "State, attempts with the server's answers, facts, timeline.")
        .answer_schema(200, "The send", success([required("send", send())]), json!({"ok": true, "send": example}))
        .refuses(404, &["send_not_found"])
}

pub(super) fn source() -> Doc {
    Doc::new(
        "getSendSource",
        "Read what the sandbox captured",
        "The message as it would have left, headers first, in the sandbox environment only. Kept for seven days, the newest 500 of a \
         tenant; of a longer message the first 256 KB.",
    )
    .answer_schema(
        200,
        "The message",
        success([
            required("send_id", id()),
            required("source", text().about("RFC 5322, without our DKIM signature.")),
            required("truncated", boolean()),
            required("captured_at", time()),
        ]),
        json!({"ok": true, "send_id": ID, "source": "From: …\r\n\r\nHello\r\n", "truncated": false, "captured_at": AT}),
    )
    .refuses(404, &["send_not_found", "source_not_found"])
}
