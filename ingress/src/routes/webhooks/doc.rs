//! How `/v1/webhooks` is documented.

use schemas::{DeliveryStatus, EventType, SubscriptionStatus};
use serde_json::{Value, json};

use super::{DESCRIPTION_MAX, supported_events};
use crate::openapi::{
    AT, Doc, ID,
    schema::{
        Schema, any_object, array, count, id, line, nullable, object, one_of, optional, page_of, required, success,
        text, text_max, time,
    },
};

const SECRET: &str = "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
const HOOK: &str = "https://app.acme.example/hooks/postrider";

fn event() -> Schema {
    one_of(supported_events())
}

fn any_event() -> Schema {
    one_of(EventType::ALL.iter().map(|event| event.as_str()))
}

fn status() -> Schema {
    one_of(SubscriptionStatus::ALL.iter().map(|status| status.as_str()))
}

fn url() -> Schema {
    text_max(runtime::outbound::URL_MAX_BYTES)
        .about("https, on the public internet, port 443 or one from 1024 on, without user name and fragment.")
}

fn secret() -> Schema {
    text().with("pattern", "^whsec_[A-Za-z0-9+/]{43}=$").about(
        "Verify with it: `X-Service-Signature` is keyed by this text as it stands, the Standard Webhooks headers by the bytes it \
         encodes, as their libraries do.",
    )
}

fn subscription() -> Schema {
    object([
        required("subscription_id", id()),
        required("url", text()),
        required("events", array(event())),
        required("description", text().or_null()),
        required("status", status()),
        required(
            "disabled_reason",
            one_of(["deleted", "gone", "failing"]).or_null().about("Deleted; answered 410; failed for five days."),
        ),
        required("disabled_at", time().or_null()),
        required("failing_since", time().or_null().about("The first failure since the last success.")),
        required("previous_secret_until", time().or_null().about("Until then the replaced secret signs along.")),
        required("created_at", time()),
        required("updated_at", time()),
    ])
    .named("WebhookSubscription")
}

fn subscription_example() -> Value {
    json!({
        "subscription_id": ID, "url": HOOK, "events": ["email.delivered", "email.bounced"], "description": "CRM",
        "status": "active", "disabled_reason": null, "disabled_at": null, "failing_since": null,
        "previous_secret_until": null, "created_at": AT, "updated_at": AT,
    })
}

fn one_subscription() -> Schema {
    success([required("subscription", subscription())])
}

pub(super) fn list() -> Doc {
    Doc::new("listWebhooks", "List webhook subscriptions", "Newest first, those of the calling product.")
        .query_fields([optional("status", status())])
        .paged()
        .answer_schema(
            200,
            "A page of subscriptions, and the events there are",
            success([
                required("subscriptions", array(subscription())),
                required("supported_events", array(event())),
                required(
                    "next_cursor",
                    text().or_null().about("Give it as `cursor` for the next page; null at the end."),
                ),
            ]),
            json!({
                "ok": true, "subscriptions": [subscription_example()], "supported_events": supported_events(),
                "next_cursor": null,
            }),
        )
}

pub(super) fn create() -> Doc {
    Doc::new(
        "createWebhook",
        "Subscribe to events",
        "The answer is the only one that shows the signing secret. At most 10 active ones for each tenant and product.",
    )
    .body_schema(
        object([
            required("url", url()),
            required("events", array(event()).with("minItems", 1)),
            nullable("description", line(DESCRIPTION_MAX)),
        ]),
        json!({"url": HOOK, "events": ["email.delivered", "email.bounced"], "description": "CRM"}),
    )
    .answer_schema(
        201,
        "Subscribed",
        success([
            required("subscription_id", id()),
            required("subscription", subscription()),
            required("signing_secret", secret()),
        ]),
        json!({
            "ok": true, "subscription_id": ID, "subscription": subscription_example(), "signing_secret": SECRET,
        }),
    )
    .leads_to(
        "subscription_id",
        &["getWebhook", "updateWebhook", "deleteWebhook", "listWebhookDeliveries", "testWebhook", "replayWebhook"],
    )
    .refuses(409, &["subscription_limit_reached"])
}

pub(super) fn show() -> Doc {
    Doc::new("getWebhook", "Read a webhook subscription", "Without its secret.")
        .answer_schema(
            200,
            "The subscription",
            one_subscription(),
            json!({"ok": true, "subscription": subscription_example()}),
        )
        .refuses(404, &["subscription_not_found"])
}

pub(super) fn change() -> Doc {
    Doc::new(
        "updateWebhook",
        "Change, pause or resume a webhook subscription",
        "While it is paused, deliveries are held, not dropped. A disabled one stays disabled.",
    )
    .body_schema(
        object([
            nullable("url", url()),
            nullable("events", array(event()).with("minItems", 1)),
            nullable("status", one_of(["active", "paused"])),
            nullable("description", line(DESCRIPTION_MAX)),
        ]),
        json!({"status": "paused"}),
    )
    .answer_schema(200, "As it is now", one_subscription(), json!({"ok": true, "subscription": subscription_example()}))
    .refuses(404, &["subscription_not_found"])
    .refuses(409, &["invalid_status_transition", "subscription_limit_reached"])
}

pub(super) fn remove() -> Doc {
    Doc::new(
        "deleteWebhook",
        "Disable a webhook subscription",
        "For good: what waits is not delivered, replays into it end. What was delivered can still be read.",
    )
    .body_schema(object([]), json!({}))
    .answer_schema(
        200,
        "Disabled",
        success([required("subscription_id", id()), required("status", one_of(["disabled"]))]),
        json!({"ok": true, "subscription_id": ID, "status": "disabled"}),
    )
    .refuses(404, &["subscription_not_found"])
}

pub(super) fn rotate_secret() -> Doc {
    Doc::new(
        "rotateWebhookSecret",
        "Replace the signing secret",
        "Deliveries carry signatures of both for 24 hours. The secret before the replaced one ends at once: one that leaked is out \
         of use after two calls.",
    )
  .body_schema(object([]), json!({}))
    .answer_schema(
        200,
        "Replaced",
        success([
            required("subscription_id", id()),
            required("signing_secret", secret()),
            required("previous_secret_until", time()),
        ]),
        json!({"ok": true, "subscription_id": ID, "signing_secret": SECRET, "previous_secret_until": AT}),
    )
    .refuses(404, &["subscription_not_found"])
    .refuses(409, &["subscription_not_active"])
}

pub(super) fn call_secret() -> Doc {
    Doc::new(
        "getWebhookCallSecret",
        "Read the secret of sequences' calls",
        "What requests of `call_product_webhook` steps are signed with, in the same headers as deliveries. One for each tenant and \
         product.",
    )
    .answer_schema(
        200,
        "The secret",
        success([required("signing_secret", secret())]),
        json!({"ok": true, "signing_secret": SECRET}),
    )
}

pub(super) fn rotate_call_secret() -> Doc {
    Doc::new(
        "rotateWebhookCallSecret",
        "Replace the secret of sequences' calls",
        "Calls carry signatures of both for 24 hours. The secret before the replaced one ends at once.",
    )
    .body_schema(object([]), json!({}))
    .answer_schema(
        200,
        "Replaced",
        success([required("signing_secret", secret()), required("previous_secret_until", time())]),
        json!({"ok": true, "signing_secret": SECRET, "previous_secret_until": AT}),
    )
}

fn delivery() -> Schema {
    object([
        required("delivery_id", id().about("`X-Service-Delivery`: the same in every attempt and replay.")),
        required("subscription_id", id()),
        required("event_id", id().about("`id` of the body, and `webhook-id`.")),
        required("event", any_event()),
        required("status", one_of(DeliveryStatus::ALL.iter().map(|status| status.as_str()))),
        required("attempts", count()),
        required("next_attempt_at", time().or_null()),
        required("attempted_at", time().or_null().about("The last attempt.")),
        required("status_code", count().or_null().about("What the last attempt was answered.")),
        required("error_code", text().or_null().about("Why the last attempt failed, as `timed_out` or `dns_failed`.")),
        required("duration_ms", count().or_null()),
        required("delivered_at", time().or_null()),
        required("replayed", count().about("How often it was asked for again.")),
        required("created_at", time()),
    ])
    .named("WebhookDelivery")
}

fn delivery_example() -> Value {
    json!({
        "delivery_id": ID, "subscription_id": ID, "event_id": ID, "event": "email.delivered", "status": "pending",
        "attempts": 1, "next_attempt_at": AT, "attempted_at": AT, "status_code": 503, "error_code": null,
        "duration_ms": 120, "delivered_at": null, "replayed": 0, "created_at": AT,
    })
}

pub(super) fn list_deliveries() -> Doc {
    Doc::new("listWebhookDeliveries", "List a subscription's deliveries", "Newest first.")
        .query_fields([
            optional("status", one_of(DeliveryStatus::ALL.iter().map(|status| status.as_str()))),
            optional("event", any_event()),
        ])
        .paged()
        .answer_schema(
            200,
            "A page of deliveries",
            page_of("deliveries", delivery()),
            json!({"ok": true, "deliveries": [delivery_example()], "next_cursor": null}),
        )
        .refuses(404, &["subscription_not_found"])
}

pub(super) fn show_delivery() -> Doc {
    Doc::new("getWebhookDelivery", "Read a delivery", "With the body that is sent.")
        .answer_schema(
            200,
            "The delivery",
            success([
                required("delivery", delivery()),
                required("body", any_object().or_null().about("Null when whom it is about was erased.")),
            ]),
            json!({"ok": true, "delivery": delivery_example(), "body": {"id": ID, "type": "email.delivered"}}),
        )
        .refuses(404, &["delivery_not_found"])
}

pub(super) fn test() -> Doc {
    Doc::new(
        "testWebhook",
        "Send a test event",
        "A `webhook.test` for this subscription, by the ordinary road: signed, repeated when it fails, in the list of deliveries.",
    )
  .body_schema(object([]), json!({}))
    .answer_schema(
        202,
        "On its way",
        success([required("subscription_id", id()), required("delivery_id", id()), required("event_id", id())]),
        json!({"ok": true, "subscription_id": ID, "delivery_id": ID, "event_id": ID}),
    )
    .leads_to("delivery_id", &["getWebhookDelivery"])
    .refuses(404, &["subscription_not_found"])
    .refuses(409, &["subscription_not_active"])
}

fn replay_record() -> Schema {
    object([
        required("replay_id", id()),
        required("subscription_id", id()),
        required("since", time()),
        required("until", time()),
        required("status", one_of(["running", "completed", "cancelled"])),
        required("deliveries", count().about("How many it has asked for so far.")),
        required("created_at", time()),
        required("finished_at", time().or_null()),
    ])
    .named("WebhookReplay")
}

fn replay_example() -> Value {
    json!({
        "replay_id": ID, "subscription_id": ID, "since": AT, "until": AT, "status": "running", "deliveries": 0,
        "created_at": AT, "finished_at": null,
    })
}

pub(super) fn replay() -> Doc {
    Doc::new(
        "replayWebhook",
        "Deliver again what happened in a time",
        "Also what happened before the subscription was made. Event ids are those of the first time. One replay at a time.",
    )
  .body_schema(
        object([required("since", time()), nullable("until", time().about("Left out: now."))]),
        json!({"since": "2025-01-01T00:00:00Z"}),
    )
    .answer_schema(
        202,
        "Begun",
        success([required("replay_id", id()), required("replay", replay_record())]),
        json!({"ok": true, "replay_id": ID, "replay": replay_example()}),
    )
    .leads_to("replay_id", &["getWebhookReplay"])
    .refuses(404, &["subscription_not_found"])
    .refuses(409, &["subscription_not_active", "replay_in_progress"])
}

pub(super) fn list_replays() -> Doc {
    Doc::new("listWebhookReplays", "List a subscription's replays", "Newest first.")
        .paged()
        .answer_schema(
            200,
            "A page of replays",
            page_of("replays", replay_record()),
            json!({"ok": true, "replays": [replay_example()], "next_cursor": null}),
        )
        .refuses(404, &["subscription_not_found"])
}

pub(super) fn show_replay() -> Doc {
    Doc::new("getWebhookReplay", "Read a replay", "How far it is.")
        .answer_schema(
            200,
            "The replay",
            success([required("replay", replay_record())]),
            json!({"ok": true, "replay": replay_example()}),
        )
        .refuses(404, &["replay_not_found"])
}
