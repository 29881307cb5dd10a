//! How `/v1/messages` is documented.

use serde_json::json;

use super::{
    attachment::{ATTACHMENTS_MAX, EXTENSIONS},
    draft::{BODY_MAX_BYTES, CLASSES, RECIPIENTS_MAX},
};
use crate::{
    openapi::{
        Doc, ID,
        schema::{
            Schema, array, array_max, email, id, integer, line, name, nullable, object, one_of, only, optional,
            required, success, text, words,
        },
    },
    routes::input::{LINE_MAX, NAME_MAX},
};
use schemas::SendState;

pub(super) fn send() -> Doc {
    Doc::new(
        "sendMessage",
        "Send one message now",
        "Each recipient gets a mail of its own; the answer waits, at most 30 seconds, until all are decided. Subject, HTML and text \
         are sent as they stand: nothing in them is Liquid. Class `business` is operational mail: no footer, no unsubscribe headers, no \
         tracking; marketing opt-outs do not block it, hard suppressions do, and a blocked recipient is listed in `skipped`. Counts \
         by recipient against the send quota and the hourly limit. Send an `Idempotency-Key`: after a 504, or when no answer came, a \
         repeat sends nothing twice and answers the outcome. `GET /v1/sends/{send_id}` follows each mail.",
    )
  .body_schema(
        object([
            required("sender_id", id()),
            required("to", array_max(recipient(), RECIPIENTS_MAX).with("minItems", 1).about("An address that is given twice gets one mail.")),
            required("subject", name(LINE_MAX)),
            required("html", words(BODY_MAX_BYTES)),
            nullable("text", text().with("maxLength", BODY_MAX_BYTES).about("Derived from the HTML when there is none.")),
            nullable("reply_to", email().about("Default: the sender's.")),
            nullable("dot_number", integer(1, i64::MAX).about("Filled into the contacts that have none.")),
            required("message_class", one_of(CLASSES)),
            nullable("attachments", array_max(attachment(), ATTACHMENTS_MAX).about("At most 15 MB together, decoded.")),
        ]),
        json!({
            "sender_id": ID, "to": [{"email": "ann@example.com", "name": "Ann Lee"}], "subject": "Your certificate",
            "html": "<p>Please find it attached.</p>", "message_class": "business",
            "attachments": [{"filename": "note.txt", "content_base64": "SGVsbG8=", "content_type": "text/plain"}],
        }),
    )
    .answer_schema(
        200,
        "Dispatched: at least one recipient was accepted",
        success([
            required("message_id", id()),
            required("provider_message_id", text().about("Of the first accepted mail.")),
            required("skipped", array(object([
                required("email", email().or_null()),
                required("send_id", id()),
                required("reason", text()),
            ])).about("Recipients that may not be mailed, and why.")),
            required("recipients", array(object([
                required("email", email().or_null()),
                required("send_id", id()),
                required("state", one_of(SendState::ALL.iter().map(|state| state.as_str()))),
            ]))),
        ]),
        json!({
            "ok": true, "message_id": ID, "provider_message_id": format!("<{ID}@example.com>"), "skipped": [],
            "recipients": [{"email": "ann@example.com", "send_id": ID, "state": "sent"}],
        }),
    )
    .answer_schema(
        502,
        "The provider refused every recipient; `detail` has its codes",
        refusal("provider_rejected"),
        json!({"ok": false, "error": "provider_rejected", "detail": "550 5.1.1", "message_id": ID}),
    )
    .answer_schema(
        504,
        "Not decided in time; the dispatch goes on",
        refusal("dispatch_pending"),
        json!({"ok": false, "error": "dispatch_pending", "detail": "the message is on its way", "message_id": ID}),
    )
    .refuses(403, &["domain_not_verified"])
    .refuses(413, &["attachments_too_large"])
    .refuses(422, &["use_campaigns_for_marketing", "all_recipients_suppressed"])
    .refuses(429, &["message_rate_exceeded", "send_quota_exceeded"])
}

fn recipient() -> Schema {
    object([required("email", email()), nullable("name", line(NAME_MAX).about("For the To header."))])
}

fn attachment() -> Schema {
    let extensions = EXTENSIONS.join(", ");
    object([
        required("filename", name(attachment_name_max()).about(&format!("With one of the extensions {extensions}."))),
        required("content_base64", text().with("minLength", 1).with("contentEncoding", "base64")),
        nullable("content_type", text().about("Must agree with extension and content. Default: by the extension.")),
    ])
}

fn attachment_name_max() -> usize {
    super::attachment::NAME_MAX_CHARS
}

fn refusal(code: &str) -> Schema {
    object([
        required("ok", only(false)),
        required("error", only(code)),
        optional("detail", text()),
        required("message_id", id()),
    ])
}
