//! How providers' webhooks are documented.

use serde_json::json;

use super::{EventTaken, HookPath, ProviderEventBody};
use crate::pipeline::Doc;

pub(super) fn take() -> Doc {
    Doc::new(
        "takeProviderEvent",
        "Receive a provider's event",
        "Called by the providers of tenants' own accounts: Amazon SES through SNS, Postmark, SendGrid, Mailgun, Resend, with their \
         bodies, up to 1 MB; inbound mail of Postmark, SendGrid or Mailgun for the tenant, up to 40 MB. Each event must carry its \
         provider's proof (SNS signature and topic; Postmark's user and password; the signatures of SendGrid, Mailgun, Resend) and \
         be fresh; SNS subscriptions are confirmed. Inbound mail is a reply if `In-Reply-To` or `References` names one of our \
         messages. Other inbound mail is ignored, and all that of Resend, which does not name the message it answers. 200 means that \
         the event is stored. An event without proof is refused and not stored.",
    )
    .path_parameters::<HookPath>()
    .body::<ProviderEventBody>(json!({"RecordType": "Delivery"}))
    .answer::<EventTaken>(200, "Stored, or known already", json!({}))
    .refuses(400, &["incomplete_body"])
    .refuses(401, &["invalid_signature", "stale_timestamp", "replayed_event"])
    .refuses(404, &["not_found"])
    .refuses(408, &["request_timeout"])
    .refuses(413, &["body_too_large"])
    .refuses(429, &["rate_limit_exceeded"])
    .refuses(503, &["unavailable"])
}
