//! How `/v1/senders` is documented.

use serde_json::{Value, json};

use super::{
    CreateSender, SenderAnswer, SenderCreated, SenderPage,
    change::{ChangeSender, SenderRemoved},
};
use crate::pipeline::{
    Doc, NoFields,
    doc::{AT, ID},
    page::PageQuery,
};

fn example() -> Value {
    json!({
        "sender_id": ID, "email": "news@acme.example", "name": "Acme", "reply_to": null, "physical_address": "1 Main Street",
        "status": "active", "is_default": true, "domain_status": "verified", "created_at": AT,
    })
}

pub(super) fn list() -> Doc {
    Doc::new("listSenders", "List sender identities", "Newest first.").query::<PageQuery>().answer::<SenderPage>(
        200,
        "A page of senders",
        json!({"senders": [example()], "next_cursor": null}),
    )
}

fn one(doc: Doc) -> Doc {
    doc.answer::<SenderAnswer>(200, "The sender", json!({"sender": example()})).refuses(404, &["sender_not_found"])
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
    .body::<ChangeSender>(json!({"name": "Acme News"}))
    .refuses(409, &["sender_is_default", "sender_disabled"])
    .refuses(422, &["physical_address_required"])
}

pub(super) fn remove() -> Doc {
    Doc::new(
        "deleteSender",
        "Remove a sender identity",
        "One that no campaign, sequence or mail refers to. Any other can only be disabled.",
    )
    .body::<NoFields>(json!({}))
    .answer::<SenderRemoved>(200, "Removed", json!({"sender_id": ID, "status": "deleted"}))
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
    .body::<CreateSender>(json!({"email": "news@acme.example", "name": "Acme", "physical_address": "1 Main Street"}))
    .answer::<SenderCreated>(200, "It is there", json!({"sender_id": ID, "already_existed": false}))
    .leads_to("sender_id", &["getSender", "updateSender", "deleteSender"])
    .refuses(422, &["domain_not_found_for_tenant", "domain_not_verified", "physical_address_required"])
}
