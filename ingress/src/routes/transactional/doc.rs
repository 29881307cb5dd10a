//! How `/v1/transactional` is documented.

use serde_json::json;

use super::FIELD_MAX;
use crate::openapi::{
    Doc, ID,
    schema::{any_object, email, id, line, nullable, object, one_of, required, success},
};

pub(super) fn send() -> Doc {
    Doc::new(
        "sendTransactional",
        "Send one template to one person",
        "202 means that it is stored; `GET /v1/sends/{send_id}` follows it. The contact is found or created by address. A template of type \
         marketing or sequence makes the mail marketing: it carries the footer, and who unsubscribed is not mailed.",
    )
  .body_schema(
        object([
            required("template_id", id()),
            required("email", email()),
            nullable("sender_profile_id", id().about("Default: the tenant's default sender.")),
            nullable("first_name", line(FIELD_MAX)),
            nullable("last_name", line(FIELD_MAX)),
            nullable("title", line(FIELD_MAX)),
            nullable("phone", line(FIELD_MAX)),
            nullable("data", any_object().about("What the template reads as `data.…`. At most 256 KB, 10,000 values and 16 levels.")),
        ]),
        json!({"template_id": ID, "email": "ann@example.com", "data": {"total": "12.50"}}),
    )
    .answer_schema(
        202,
        "Accepted",
        success([required("send_id", id()), required("status", one_of(["scheduled"]))]),
        json!({"ok": true, "send_id": ID, "status": "scheduled"}),
    )
    .leads_to("send_id", &["getSend"])
    .refuses(404, &["template_not_found", "sender_profile_not_found"])
    .refuses(422, &["sender_required", "sender_missing_verified_domain"])
}
