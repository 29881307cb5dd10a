//! How `/v1/imports` is documented.

use serde_json::{Value, json};

use super::{CreateImport, ImportAnswer, ImportSummary};
use crate::pipeline::{
    Doc,
    doc::{AT, ID},
};

fn example() -> Value {
    json!({
        "import_id": ID, "name": "first", "operation": "upsert", "status": "completed", "source_slug": "api_import",
        "counts": {
            "total_rows": 3, "valid": 2, "created": 2, "updated": 0, "unchanged": 0, "skipped": 0, "duplicates": 1, "invalid": 0,
            "suppressed": 0,
        },
        "ignored_columns": [], "errors": [], "duration_ms": 12,
    })
}

pub(super) fn import() -> Doc {
    Doc::new(
        "createImport",
        "Import contacts from CSV",
        "Staged, validated and committed before the answer, in one transaction. Bad rows are reported and skipped; the last \
         duplicate wins; an empty cell leaves the value; no suppression or opt-out is ever lifted. A file that cannot be read (no \
         header, an unclosed quote, a column twice, more than 500 columns, a cell over 8 KB, a row over 1 MB) is a 400 that names the \
         line. A reported value is cut short, and left empty when an address is in it. A `create` applies the opt-outs of \
         contacts that are known.",
    )
    .body::<CreateImport>(json!({"name": "first", "csv": "email,first_name\nann@example.com,Ann\n"}))
    .answer::<ImportSummary>(200, "Imported", example())
    .leads_to("import_id", &["getImport"])
    .refuses(413, &["too_many_rows"])
}

pub(super) fn show() -> Doc {
    let mut import = example();
    import["created_at"] = json!(AT);
    Doc::new("getImport", "Read an import's summary", "")
        .answer::<ImportAnswer>(200, "The import", json!({"import": import}))
        .refuses(404, &["import_not_found"])
}
