//! How `/v1/fields` is documented.

use serde_json::{Value, json};

use super::{ChangeField, CreateField, FieldAnswer, FieldCreated, FieldPage};
use crate::pipeline::{
    Doc,
    doc::{AT, ID},
    page::PageQuery,
};

fn example() -> Value {
    json!({
        "field_id": ID, "key": "plan", "label": "Plan", "type": "string", "fallback": "free", "created_at": AT,
        "updated_at": AT,
    })
}

pub(super) fn list() -> Doc {
    Doc::new("listFields", "List contact fields", "The tenant's own ones, newest first.")
        .query::<PageQuery>()
        .answer::<FieldPage>(200, "A page of fields", json!({"fields": [example()], "next_cursor": null}))
}

pub(super) fn create() -> Doc {
    Doc::new(
        "createField",
        "Define a contact field",
        "Key and type are for good. Templates use it as `contact.fields.<key>`, imports as a column.",
    )
    .body::<CreateField>(json!({"key": "plan", "label": "Plan", "type": "string", "fallback": "free"}))
    .answer::<FieldCreated>(201, "Defined", json!({"field_id": ID, "key": "plan", "created_at": AT}))
    .leads_to("field_id", &["getField", "updateField"])
    .refuses(409, &["field_already_exists", "field_limit_reached"])
}

fn one(doc: Doc) -> Doc {
    doc.answer::<FieldAnswer>(200, "The field", json!({"field": example()})).refuses(404, &["field_not_found"])
}

pub(super) fn show() -> Doc {
    one(Doc::new("getField", "Read a contact field", ""))
}

pub(super) fn change() -> Doc {
    one(Doc::new("updateField", "Change a contact field", "Label and fallback only."))
        .body::<ChangeField>(json!({"label": "Plan"}))
}
