//! How `/v1/fields` is documented.

use serde_json::{Value, json};

use super::{FALLBACK_MAX_CHARS, LABEL_MAX_CHARS};
use crate::openapi::{
    AT, Doc, ID,
    schema::{Schema, id, nullable, object, one_of, page_of, required, success, text, text_max, time, words},
};

const TYPES: [&str; 6] = ["string", "number", "boolean", "date", "datetime", "string_list"];
const KEY: &str = "^[a-z][a-z0-9_]{0,49}$";

fn field() -> Schema {
    object([
        required("field_id", id()),
        required("key", text()),
        required("label", text()),
        required("type", one_of(TYPES)),
        required("fallback", text().or_null()),
        required("created_at", time()),
        required("updated_at", time()),
    ])
    .named("Field")
}

fn example() -> Value {
    json!({
        "field_id": ID, "key": "plan", "label": "Plan", "type": "string", "fallback": "free", "created_at": AT,
        "updated_at": AT,
    })
}

pub(super) fn list() -> Doc {
    Doc::new("listFields", "List contact fields", "The tenant's own ones, newest first.").paged().answer(
        200,
        "A page of fields",
        page_of("fields", field()),
        json!({"ok": true, "fields": [example()], "next_cursor": null}),
    )
}

pub(super) fn create() -> Doc {
    Doc::new(
        "createField",
        "Define a contact field",
        "Key and type are for good. Templates use it as `contact.fields.<key>`, imports as a column.",
    )
    .body(
        object([
            required("key", text().with("pattern", KEY).about("Not a name that contacts have already.")),
            required("label", words(LABEL_MAX_CHARS)),
            required("type", one_of(TYPES)),
            nullable(
                "fallback",
                text_max(FALLBACK_MAX_CHARS).about("What templates show where a contact has no value."),
            ),
        ]),
        json!({"key": "plan", "label": "Plan", "type": "string", "fallback": "free"}),
    )
    .answer(
        201,
        "Defined",
        success([required("field_id", id()), required("key", text()), required("created_at", time())]),
        json!({"ok": true, "field_id": ID, "key": "plan", "created_at": AT}),
    )
    .leads_to("field_id", &["getField", "updateField"])
    .refuses(409, &["field_already_exists", "field_limit_reached"])
}

fn one(doc: Doc) -> Doc {
    let body = success([required("field", field())]);
    doc.answer(200, "The field", body, json!({"ok": true, "field": example()})).refuses(404, &["field_not_found"])
}

pub(super) fn show() -> Doc {
    one(Doc::new("getField", "Read a contact field", ""))
}

pub(super) fn change() -> Doc {
    one(Doc::new("updateField", "Change a contact field", "Label and fallback only.")).body(
        object([nullable("label", words(LABEL_MAX_CHARS)), nullable("fallback", text_max(FALLBACK_MAX_CHARS))]),
        json!({"label": "Plan"}),
    )
}
