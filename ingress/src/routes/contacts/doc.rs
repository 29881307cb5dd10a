//! How `/v1/contacts` is documented.

use serde_json::{Value, json};

use super::{SEARCH_MAX_CHARS, input};
use crate::{
    openapi::{
        AT, Doc, ID,
        schema::{
            Field, Schema, any_object, any_of, array, array_max, boolean, email, id, integer, nullable, object, one_of,
            optional, page_of, required, success, text, text_max, time, words,
        },
    },
    routes::audiences::NAME_MAX_CHARS as AUDIENCE_NAME_MAX,
};

const STATUSES: [&str; 2] = ["active", "archived"];
const MARKETING: [&str; 3] = ["subscribed", "unsubscribed", "pending"];

fn contact() -> Schema {
    let null_text = |name| required(name, text().or_null());
    let suppression = object([
        required("reason", one_of(["hard_bounce", "complaint", "unsubscribe", "manual", "invalid", "import"])),
        required("scope", one_of(["all", "marketing"])),
        required("since", time()),
    ]);
    let named = |name| array(object([required(name, id()), required("name", text())]));
    object([
        required("contact_id", id()),
        required("email", email()),
        null_text("first_name"),
        null_text("last_name"),
        null_text("title"),
        null_text("phone"),
        null_text("company"),
        required("dot_number", integer(1, i64::MAX).or_null()),
        required("fields", any_object().about("The tenant's own fields, by key.")),
        required("tags", named("tag_id")),
        required("lists", named("list_id")),
        null_text("timezone"),
        null_text("locale"),
        null_text("lifecycle_stage"),
        required("status", one_of(STATUSES)),
        required("marketing_status", one_of(MARKETING)),
        required("suppression", suppression.or_null().about("The gravest that holds now.")),
        null_text("source"),
        required(
            "consent",
            object([
                required("basis", text().or_null()),
                required("at", time().or_null()),
                required("source", text().or_null()),
                required("description", text().or_null()),
            ]),
        ),
        required("created_at", time()),
        required("updated_at", time()),
    ])
    .named("Contact")
}

fn example() -> Value {
    json!({
        "contact_id": ID, "email": "ann@example.com", "first_name": "Ann", "last_name": null, "title": null, "phone": null,
        "company": "Acme", "dot_number": null, "fields": {"plan": "pro"}, "tags": [{"tag_id": ID, "name": "vip"}], "lists": [],
        "timezone": "Europe/Paris", "locale": "fr", "lifecycle_stage": "customer", "status": "active",
        "marketing_status": "subscribed", "suppression": null, "source": "signup",
        "consent": {"basis": "opt_in", "at": AT, "source": "website", "description": null}, "created_at": AT, "updated_at": AT,
    })
}

/// The plain fields, which create and change share; each may be null.
fn plain() -> Vec<Field> {
    let consent = object([
        nullable("basis", text_max(input::NAME_MAX_CHARS)),
        nullable("at", time().about("Not in the future.")),
        nullable("source", text_max(input::COMPANY_MAX_CHARS)),
        nullable("description", text_max(input::DESCRIPTION_MAX_CHARS)),
    ]);
    let locale = text_max(input::WORD_MAX_CHARS).with("pattern", "^[A-Za-z]{2,3}([_-][A-Za-z0-9]{2,8})*$");
    vec![
        nullable("first_name", text_max(input::NAME_MAX_CHARS)),
        nullable("last_name", text_max(input::NAME_MAX_CHARS)),
        nullable("title", text_max(input::NAME_MAX_CHARS)),
        nullable("phone", text_max(input::PHONE_MAX_CHARS)),
        nullable("company", text_max(input::COMPANY_MAX_CHARS)),
        nullable("dot_number", integer(1, i64::MAX)),
        nullable("fields", any_object().about("Defined fields by key; null deletes one.")),
        nullable("timezone", text().about("An IANA time zone, such as Europe/Paris.")),
        nullable("locale", locale.about("A language tag, such as en or pt-BR.")),
        nullable("lifecycle_stage", text_max(input::WORD_MAX_CHARS)),
        nullable("source", text_max(input::NAME_MAX_CHARS)),
        nullable("marketing_status", one_of(MARKETING)),
        nullable("consent", consent),
    ]
}

pub(super) fn list() -> Doc {
    Doc::new("listContacts", "List contacts", "Newest first.")
        .query_fields([
            optional("email", email().about("The one with this address.")),
            optional("q", text_max(SEARCH_MAX_CHARS).about("Part of the address, the name or the company.")),
            optional("list_id", id()),
            optional("tag_id", id()),
            optional("segment_id", id().about("Who is in this segment now.")),
            optional("status", one_of(STATUSES)),
            optional("updated_since", time()),
        ])
        .paged()
        .answer_schema(
            200,
            "A page of contacts",
            page_of("contacts", contact()),
            json!({"ok": true, "contacts": [example()], "next_cursor": null}),
        )
        .refuses(404, &["list_not_found", "tag_not_found", "segment_not_found"])
}

pub(super) fn create() -> Doc {
    let audiences = || {
        let name = any_of([id(), words(AUDIENCE_NAME_MAX)]);
        array_max(name, input::AUDIENCES_MAX).about("Ids, or names; a name that is new makes one.")
    };
    let mut fields = vec![required("email", email())];
    fields.extend(plain());
    fields.extend([optional("tags", audiences()), optional("lists", audiences())]);
    let body = || success([required("contact_id", id()), required("already_existed", boolean())]);
    Doc::new(
        "createContact",
        "Find or create a contact",
        "By address, in its canonical form. One that is there keeps what it has; an archived one is active again. One whose consent is \
         pending becomes subscribed when `marketing_status` says `subscribed`; one that unsubscribed stays unsubscribed.",
    )
  .body_schema(object(fields), json!({"email": "ann@example.com", "first_name": "Ann", "tags": ["vip"]}))
    .answer_schema(201, "Created", body(), json!({"ok": true, "contact_id": ID, "already_existed": false}))
    .leads_to("contact_id", &["getContact", "updateContact", "deleteContact"])
    .answer_schema(200, "It was there", body(), json!({"ok": true, "contact_id": ID, "already_existed": true}))
    .refuses(404, &["list_not_found", "tag_not_found"])
}

fn one(doc: Doc) -> Doc {
    let body = success([required("contact", contact())]);
    doc.answer_schema(200, "The contact", body, json!({"ok": true, "contact": example()}))
        .refuses(404, &["contact_not_found"])
}

pub(super) fn show() -> Doc {
    one(Doc::new("getContact", "Read a contact", ""))
}

pub(super) fn change() -> Doc {
    let mut fields = plain();
    fields.push(nullable("status", one_of(STATUSES)));
    one(Doc::new(
        "updateContact",
        "Change a contact",
        "What is left out stays; null clears; `fields` are merged. The address does not change.",
    ))
    .body_schema(object(fields), json!({"company": "Acme", "fields": {"plan": "pro"}}))
    .refuses(409, &["unsubscribed_by_recipient"])
}

pub(super) fn remove() -> Doc {
    Doc::new(
        "deleteContact",
        "Archive or erase a contact",
        "Archives. With `erase: true` the contact's own data is erased at once and what else names the person within minutes; \
         suppressions of the address stay. Asked again, the answer says whether the erasure is complete.",
    )
  .body_schema(object([optional("erase", boolean().default(false))]), json!({}))
    .answer_schema(
        200,
        "Done",
        success([
            required("contact_id", id()),
            required("status", one_of(["archived", "erased"])),
            optional("erasure", one_of(["running", "completed"]).about("Of an erased contact: whether the rest is erased, too.")),
        ]),
        json!({"ok": true, "contact_id": ID, "status": "archived"}),
    )
    .refuses(404, &["contact_not_found"])
}
