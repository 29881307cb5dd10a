//! How `/v1/senders` is documented.

use schemas::DomainStatus;
use serde_json::json;

use super::PHYSICAL_ADDRESS_MAX;
use crate::{
    openapi::{
        AT, Doc, ID,
        schema::{
            boolean, email, id, name, nullable, object, one_of, page_of, required, success, text, text_max, time,
        },
    },
    routes::input::NAME_MAX,
};

pub(super) fn list() -> Doc {
    let sender = object([
        required("sender_id", id()),
        required("email", text()),
        required("name", text()),
        required("reply_to", text().or_null()),
        required("physical_address", text().or_null()),
        required("status", one_of(["active", "pending_domain", "disabled"])),
        required("is_default", boolean()),
        required("domain_status", one_of(DomainStatus::ALL.iter().map(|status| status.as_str()))),
        required("created_at", time()),
    ]);
    let example = json!({
        "sender_id": ID, "email": "news@acme.example", "name": "Acme", "reply_to": null, "physical_address": "1 Main Street",
        "status": "active", "is_default": true, "domain_status": "verified", "created_at": AT,
    });
    Doc::new("listSenders", "List sender identities", "Newest first.").paged().answer(
        200,
        "A page of senders",
        page_of("senders", sender.named("Sender")),
        json!({"ok": true, "senders": [example], "next_cursor": null}),
    )
}

pub(super) fn create() -> Doc {
    let address = text_max(PHYSICAL_ADDRESS_MAX)
        .with("pattern", r"^[^\u0000-\u0009\u000b\u000c\u000e-\u001f\u007f-\u009f]*$")
        .about("Stamped on marketing mail. Left out: the tenant's own.");
    Doc::new(
        "createSender",
        "Create a sender identity",
        "On a verified domain of the tenant. Idempotent: one that is there stays as it is. The first is the tenant's default.",
    )
    .body(
        object([
            required("email", email()),
            required("name", name(NAME_MAX)),
            nullable("reply_to", email()),
            nullable("physical_address", address),
        ]),
        json!({"email": "news@acme.example", "name": "Acme", "physical_address": "1 Main Street"}),
    )
    .answer(
        200,
        "It is there",
        success([required("sender_id", id()), required("already_existed", boolean())]),
        json!({"ok": true, "sender_id": ID, "already_existed": false}),
    )
    .refuses(422, &["domain_not_found_for_tenant", "domain_not_verified", "physical_address_required"])
}
