//! How `/v1/transactional` is documented.

use serde_json::json;

use super::{SendTransactional, TransactionalAccepted};
use crate::pipeline::{Doc, doc::ID};

pub(super) fn send() -> Doc {
    Doc::new(
        "sendTransactional",
        "Send one template to one person",
        "202 means that it is stored; `GET /v1/sends/{send_id}` follows it. The contact is found or created by address. A template of type \
         marketing or sequence makes the mail marketing: it carries the footer, and unsubscribed recipients are not mailed.",
    )
    .body::<SendTransactional>(json!({"template_id": ID, "email": "ann@example.com", "data": {"total": "12.50"}}))
    .answer::<TransactionalAccepted>(202, "Accepted", json!({"send_id": ID, "status": "scheduled"}))
    .leads_to("send_id", &["getSend"])
    .refuses(404, &["template_not_found", "sender_profile_not_found"])
    .refuses(422, &["sender_required", "sender_missing_verified_domain"])
}
