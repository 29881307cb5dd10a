//! How `/v1/contacts` is documented.

use serde_json::{Value, json};

use super::{
    ContactAnswer, ContactCreated, ContactPage, ContactRemoved, ListContacts, RemoveContact,
    input::{ChangeContact, CreateContact},
};
use crate::pipeline::{
    Doc,
    doc::{AT, ID},
};

fn example() -> Value {
    json!({
        "contact_id": ID, "email": "ann@example.com", "first_name": "Ann", "last_name": null, "title": null, "phone": null,
        "company": "Acme", "dot_number": null, "fields": {"plan": "pro"}, "tags": [{"tag_id": ID, "name": "vip"}], "lists": [],
        "timezone": "Europe/Paris", "locale": "fr", "lifecycle_stage": "customer", "status": "active",
        "marketing_status": "subscribed", "suppression": null, "source": "signup",
        "consent": {"basis": "opt_in", "at": AT, "source": "website", "description": null}, "created_at": AT, "updated_at": AT,
    })
}

pub(super) fn list() -> Doc {
    Doc::new("listContacts", "List contacts", "Newest first.")
        .query::<ListContacts>()
        .answer::<ContactPage>(200, "A page of contacts", json!({"contacts": [example()], "next_cursor": null}))
        .refuses(404, &["list_not_found", "tag_not_found", "segment_not_found"])
}

pub(super) fn create() -> Doc {
    Doc::new(
        "createContact",
        "Find or create a contact",
        "By address, in its canonical form. A contact that exists keeps its values; an archived one is active again. One whose consent is \
         pending becomes subscribed when `marketing_status` says `subscribed`; one that unsubscribed stays unsubscribed.",
    )
    .body::<CreateContact>(json!({"email": "ann@example.com", "first_name": "Ann", "tags": ["vip"]}))
    .answer::<ContactCreated>(201, "Created", json!({"contact_id": ID, "already_existed": false}))
    .leads_to("contact_id", &["getContact", "updateContact", "deleteContact"])
    .answer::<ContactCreated>(200, "It existed", json!({"contact_id": ID, "already_existed": true}))
    .refuses(404, &["list_not_found", "tag_not_found"])
}

fn one(doc: Doc) -> Doc {
    doc.answer::<ContactAnswer>(200, "The contact", json!({"contact": example()})).refuses(404, &["contact_not_found"])
}

pub(super) fn show() -> Doc {
    one(Doc::new("getContact", "Read a contact", ""))
}

pub(super) fn change() -> Doc {
    one(Doc::new(
        "updateContact",
        "Change a contact",
        "What is left out stays; null clears; `fields` are merged. The address does not change.",
    ))
    .body::<ChangeContact>(json!({"company": "Acme", "fields": {"plan": "pro"}}))
    .refuses(409, &["unsubscribed_by_recipient"])
}

pub(super) fn remove() -> Doc {
    Doc::new(
        "deleteContact",
        "Archive or erase a contact",
        "Archives. With `erase: true` the contact's own data is erased at once and what else names the person within minutes; \
         suppressions of the address stay. Asked again, the answer says whether the erasure is complete.",
    )
    .body::<RemoveContact>(json!({}))
    .answer::<ContactRemoved>(200, "Done", json!({"contact_id": ID, "status": "archived"}))
    .refuses(404, &["contact_not_found"])
}
