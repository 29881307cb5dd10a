//! How `/v1/webhooks` is documented.

use serde_json::{Value, json};

use super::{
    ChangeWebhook, CreateWebhook, ListWebhooks, WebhookAnswer, WebhookCreated, WebhookDisabled, WebhookPage,
    deliveries::{DeliveryAnswer, DeliveryPage, ListDeliveries, WebhookTested},
    replays::{ReplayAnswer, ReplayPage, ReplayStarted, ReplayWebhook},
    secret::{CallSecret, CallSecretReplaced, SecretReplaced},
    supported_events,
};
use crate::pipeline::{
    Doc, NoFields,
    doc::{AT, ID},
    page::PageQuery,
};

const SECRET: &str = "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
const HOOK: &str = "https://app.acme.example/hooks/postrider";

fn subscription() -> Value {
    json!({
        "subscription_id": ID, "url": HOOK, "events": ["email.delivered", "email.bounced"], "description": "CRM",
        "status": "active", "disabled_reason": null, "disabled_at": null, "failing_since": null,
        "previous_secret_until": null, "created_at": AT, "updated_at": AT,
    })
}

pub(super) fn list() -> Doc {
    Doc::new("listWebhooks", "List webhook subscriptions", "Newest first, those of the calling product.")
        .query::<ListWebhooks>()
        .answer::<WebhookPage>(
            200,
            "A page of subscriptions, and the events there are",
            json!({"subscriptions": [subscription()], "supported_events": supported_events(), "next_cursor": null}),
        )
}

pub(super) fn create() -> Doc {
    Doc::new(
        "createWebhook",
        "Subscribe to events",
        "The answer is the only one that shows the signing secret. At most 10 active ones for each tenant and product.",
    )
    .body::<CreateWebhook>(json!({"url": HOOK, "events": ["email.delivered", "email.bounced"], "description": "CRM"}))
    .answer::<WebhookCreated>(
        201,
        "Subscribed",
        json!({"subscription_id": ID, "subscription": subscription(), "signing_secret": SECRET}),
    )
    .leads_to(
        "subscription_id",
        &["getWebhook", "updateWebhook", "deleteWebhook", "listWebhookDeliveries", "testWebhook", "replayWebhook"],
    )
    .refuses(409, &["subscription_limit_reached"])
}

fn one(doc: Doc) -> Doc {
    doc.answer::<WebhookAnswer>(200, "The subscription", json!({"subscription": subscription()}))
        .refuses(404, &["subscription_not_found"])
}

pub(super) fn show() -> Doc {
    one(Doc::new("getWebhook", "Read a webhook subscription", "Without its secret."))
}

pub(super) fn change() -> Doc {
    one(Doc::new(
        "updateWebhook",
        "Change, pause or resume a webhook subscription",
        "While it is paused, deliveries are held, not dropped. A disabled one stays disabled.",
    ))
    .body::<ChangeWebhook>(json!({"status": "paused"}))
    .refuses(409, &["invalid_status_transition", "subscription_limit_reached"])
}

pub(super) fn remove() -> Doc {
    Doc::new(
        "deleteWebhook",
        "Disable a webhook subscription",
        "For good: pending deliveries are dropped, replays into it end. Past deliveries can still be read.",
    )
    .body::<NoFields>(json!({}))
    .answer::<WebhookDisabled>(200, "Disabled", json!({"subscription_id": ID, "status": "disabled"}))
    .refuses(404, &["subscription_not_found"])
}

pub(super) fn rotate_secret() -> Doc {
    Doc::new(
        "rotateWebhookSecret",
        "Replace the signing secret",
        "Deliveries carry signatures of both for 24 hours. The secret before the replaced one ends at once: one that leaked is out \
         of use after two calls.",
    )
    .body::<NoFields>(json!({}))
    .answer::<SecretReplaced>(
        200,
        "Replaced",
        json!({"subscription_id": ID, "signing_secret": SECRET, "previous_secret_until": AT}),
    )
    .refuses(404, &["subscription_not_found"])
    .refuses(409, &["subscription_not_active"])
}

pub(super) fn call_secret() -> Doc {
    Doc::new(
        "getWebhookCallSecret",
        "Read the signing secret of sequence calls",
        "Signs the requests of `call_product_webhook` steps, in the same headers as deliveries. One for each tenant and product.",
    )
    .answer::<CallSecret>(200, "The secret", json!({"signing_secret": SECRET}))
}

pub(super) fn rotate_call_secret() -> Doc {
    Doc::new(
        "rotateWebhookCallSecret",
        "Replace the signing secret of sequence calls",
        "Calls carry signatures of both for 24 hours. The secret before the replaced one ends at once.",
    )
    .body::<NoFields>(json!({}))
    .answer::<CallSecretReplaced>(200, "Replaced", json!({"signing_secret": SECRET, "previous_secret_until": AT}))
}

fn delivery() -> Value {
    json!({
        "delivery_id": ID, "subscription_id": ID, "event_id": ID, "event": "email.delivered", "status": "pending",
        "attempts": 1, "next_attempt_at": AT, "attempted_at": AT, "status_code": 503, "error_code": null,
        "duration_ms": 120, "delivered_at": null, "replayed": 0, "created_at": AT,
    })
}

pub(super) fn list_deliveries() -> Doc {
    Doc::new("listWebhookDeliveries", "List a subscription's deliveries", "Newest first.")
        .query::<ListDeliveries>()
        .answer::<DeliveryPage>(200, "A page of deliveries", json!({"deliveries": [delivery()], "next_cursor": null}))
        .refuses(404, &["subscription_not_found"])
}

pub(super) fn show_delivery() -> Doc {
    Doc::new("getWebhookDelivery", "Read a delivery", "With the body that is sent.")
        .answer::<DeliveryAnswer>(
            200,
            "The delivery",
            json!({"delivery": delivery(), "body": {"id": ID, "type": "email.delivered"}}),
        )
        .refuses(404, &["delivery_not_found"])
}

pub(super) fn test() -> Doc {
    Doc::new(
        "testWebhook",
        "Send a test event",
        "A `webhook.test` for this subscription, delivered as any other event: signed, tried again when it fails, in the list of \
         deliveries.",
    )
    .body::<NoFields>(json!({}))
    .answer::<WebhookTested>(
        202,
        "On its way",
        json!({"subscription_id": ID, "delivery_id": ID, "event_id": ID}),
    )
    .leads_to("delivery_id", &["getWebhookDelivery"])
    .refuses(404, &["subscription_not_found"])
    .refuses(409, &["subscription_not_active"])
}

fn example_replay() -> Value {
    json!({
        "replay_id": ID, "subscription_id": ID, "since": AT, "until": AT, "status": "running", "deliveries": 0,
        "created_at": AT, "finished_at": null,
    })
}

pub(super) fn replay() -> Doc {
    Doc::new(
        "replayWebhook",
        "Replay the events of a period",
        "Also those from before the subscription was made. Event ids are those of the first time. One replay at a time.",
    )
    .body::<ReplayWebhook>(json!({"since": "2025-01-01T00:00:00Z"}))
    .answer::<ReplayStarted>(202, "Begun", json!({"replay_id": ID, "replay": example_replay()}))
    .leads_to("replay_id", &["getWebhookReplay"])
    .refuses(404, &["subscription_not_found"])
    .refuses(409, &["subscription_not_active", "replay_in_progress"])
}

pub(super) fn list_replays() -> Doc {
    Doc::new("listWebhookReplays", "List a subscription's replays", "Newest first.")
        .query::<PageQuery>()
        .answer::<ReplayPage>(200, "A page of replays", json!({"replays": [example_replay()], "next_cursor": null}))
        .refuses(404, &["subscription_not_found"])
}

pub(super) fn show_replay() -> Doc {
    Doc::new("getWebhookReplay", "Read a replay", "How far it is.")
        .answer::<ReplayAnswer>(200, "The replay", json!({"replay": example_replay()}))
        .refuses(404, &["replay_not_found"])
}
