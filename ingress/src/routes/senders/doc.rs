//! How `/v1/senders` is documented.

use schemas::DomainStatus;
use serde_json::{Value, json};

use super::STATUSES;
use crate::{
    openapi::{
        AT, Doc, ID,
        schema::{
            Schema, boolean, email, id, name, nullable, object, one_of, only, page_of, postal_address, required,
            success, text, time,
        },
    },
    routes::input::{NAME_MAX, POSTAL_ADDRESS_MAX},
};

fn sender() -> Schema {
    object([
        required("sender_id", id()),
        required("email", text()),
        required("name", text()),
        required("reply_to", text().or_null()),
        required("physical_address", text().or_null()),
        required(
            "status",
            one_of(["active", "pending_domain", "disabled"])
                .about("`pending_domain`: its domain may not send now. `disabled`: switched off."),
        ),
        required("is_default", boolean()),
        required("domain_status", one_of(DomainStatus::ALL.iter().map(|status| status.as_str()))),
        required("created_at", time()),
    ])
    .named("Sender")
}

fn example() -> Value {
    json!({
        "sender_id": ID, "email": "news@acme.example", "name": "Acme", "reply_to": null, "physical_address": "1 Main Street",
        "status": "active", "is_default": true, "domain_status": "verified", "created_at": AT,
    })
}

fn address() -> Schema {
    postal_address(POSTAL_ADDRESS_MAX).about("Stamped on marketing mail. Without one: the tenant's own.")
}

pub(super) fn list() -> Doc {
    Doc::new("listSenders", "List sender identities", "Newest first.").paged().answer(
        200,
        "A page of senders",
        page_of("senders", sender()),
        json!({"ok": true, "senders": [example()], "next_cursor": null}),
    )
}

fn one(doc: Doc) -> Doc {
    let body = success([required("sender", sender())]);
    doc.answer(200, "The sender", body, json!({"ok": true, "sender": example()})).refuses(404, &["sender_not_found"])
}

pub(super) fn show() -> Doc {
    one(Doc::new("getSender", "Read a sender identity", ""))
}

pub(super) fn change() -> Doc {
    one(Doc::new(
        "updateSender",
        "Change a sender identity",
        "What is left out stays; null clears. A disabled sender sends nothing from the next mail on. `is_default: true` makes it the \
         tenant's default in place of the one before; the default cannot be put away while another sender could take its place.",
    ))
    .body(
        object([
            nullable("name", name(NAME_MAX)),
            nullable("reply_to", email()),
            nullable("physical_address", address()),
            nullable("status", one_of(STATUSES)),
            nullable("is_default", boolean()),
        ]),
        json!({"name": "Acme News"}),
    )
    .refuses(409, &["sender_is_default", "sender_disabled"])
    .refuses(422, &["physical_address_required"])
}

pub(super) fn remove() -> Doc {
    Doc::new(
        "deleteSender",
        "Remove a sender identity",
        "One that no campaign, sequence or mail refers to. Any other can only be disabled.",
    )
    .body(object([]), json!({}))
    .answer(
        200,
        "Removed",
        success([required("sender_id", id()), required("status", only("deleted"))]),
        json!({"ok": true, "sender_id": ID, "status": "deleted"}),
    )
    .refuses(404, &["sender_not_found"])
    .refuses(409, &["sender_in_use", "sender_is_default"])
}

pub(super) fn create() -> Doc {
    Doc::new(
        "createSender",
        "Create a sender identity",
        "On a verified domain of the tenant. Idempotent on the address: one that is there is brought up to date with what is given; \
         what is left out stays. The first is the tenant's default.",
    )
    .body(
        object([
            required("email", email()),
            required("name", name(NAME_MAX)),
            nullable("reply_to", email()),
            nullable("physical_address", address()),
        ]),
        json!({"email": "news@acme.example", "name": "Acme", "physical_address": "1 Main Street"}),
    )
    .answer(
        200,
        "It is there",
        success([required("sender_id", id()), required("already_existed", boolean())]),
        json!({"ok": true, "sender_id": ID, "already_existed": false}),
    )
    .leads_to("sender_id", &["getSender", "updateSender", "deleteSender"])
    .refuses(422, &["domain_not_found_for_tenant", "domain_not_verified", "physical_address_required"])
}
