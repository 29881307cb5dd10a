//! How `/v1/messages` is documented.

use serde_json::json;

use super::{dispatch::MessageSent, draft::SendMessage};
use crate::pipeline::{Doc, doc::ID};

pub(super) fn send() -> Doc {
    Doc::new(
        "sendMessage",
        "Send one message now",
        "Each recipient gets a mail of its own; the answer waits, at most 30 seconds, until all are decided. Subject, HTML and text \
         are sent as they stand: nothing in them is Liquid. Class `business` is operational mail: no footer, no unsubscribe headers, no \
         tracking; marketing opt-outs do not block it, hard suppressions do, and a blocked recipient is listed in `skipped`. Counts \
         by recipient against the send quota and the hourly limit. Send an `Idempotency-Key`: after a 504, or when no answer came, a \
         repeat sends nothing twice and answers the outcome. A 502 says the codes of the provider in `detail`. `GET /v1/sends/{send_id}` follows each mail.",
    )
    .body::<SendMessage>(
        json!({
            "sender_id": ID, "to": [{"email": "ann@example.com", "name": "Ann Lee"}], "subject": "Your certificate",
            "html": "<p>Please find it attached.</p>", "message_class": "business",
            "attachments": [{"filename": "note.txt", "content_base64": "SGVsbG8=", "content_type": "text/plain"}],
        }),
    )
    .answer::<MessageSent>(
        200,
        "Dispatched: at least one recipient was accepted",
        json!({
            "message_id": ID, "provider_message_id": format!("<{ID}@example.com>"), "skipped": [],
            "recipients": [{"email": "ann@example.com", "send_id": ID, "state": "sent"}],
        }),
    )
    .refuses(403, &["domain_not_verified"])
    .refuses(413, &["attachments_too_large"])
    .refuses(422, &["use_campaigns_for_marketing", "all_recipients_suppressed"])
    .refuses(429, &["message_rate_exceeded", "send_quota_exceeded"])
    .refuses(502, &["provider_rejected"])
    .refuses(504, &["dispatch_pending"])
}
