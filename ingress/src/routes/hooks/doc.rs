//! How providers' webhooks are documented.

use serde_json::json;

use super::PROVIDERS;
use crate::openapi::{
    Doc,
    schema::{any_object, any_of, array, id, one_of, required, success},
};

pub(super) fn take() -> Doc {
    Doc::new(
        "takeProviderEvent",
        "What a mail provider tells",
        "Called by providers of tenants' own accounts: Amazon SES through SNS, Postmark, SendGrid, Mailgun, Resend, with their bodies, up to \
         1 MB; mail that Postmark, SendGrid or Mailgun took in for the tenant, up to 40 MB. Each event must carry its provider's proof (SNS signature and topic; Postmark's user and password; the signatures of \
         SendGrid, Mailgun, Resend) and be fresh; SNS subscriptions are confirmed. Mail is an \
         answer where `In-Reply-To` or `References` names one of ours; other mail is taken and ignored, and so is all that Resend took in: it \
         does not say what is answered. 200 means that the event is stored. What is not \
         proven is refused and stored nowhere.",
    )
    .path(required("provider", one_of(PROVIDERS)))
    .path(required("connection", id().about("The provider connection, as `postrider provider` names it.")))
  .body_schema(any_of([any_object(), array(any_object())]).about("As the provider sends it; SendGrid sends an array."), json!({"RecordType": "Delivery"}))
    .answer_schema(200, "Stored, or known already", success([]), json!({"ok": true}))
    .refuses(400, &["incomplete_body"])
    .refuses(401, &["invalid_signature", "stale_timestamp", "replayed_event"])
    .refuses(404, &["not_found"])
    .refuses(408, &["request_timeout"])
    .refuses(413, &["body_too_large"])
    .refuses(429, &["rate_limit_exceeded"])
    .refuses(503, &["unavailable"])
}
