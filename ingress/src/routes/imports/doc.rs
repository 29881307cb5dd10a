//! How `/v1/imports` is documented.

use serde_json::{Value, json};

use super::{NAME_MAX_CHARS, TEXT_MAX_CHARS, reader::ERRORS_SHOWN};
use crate::openapi::{
    AT, Doc, ID,
    schema::{
        Field, array, array_max, boolean, count, id, nullable, object, one_of, optional, required, success, text,
        text_max, time,
    },
};

const OPERATIONS: [&str; 6] =
    ["create", "update", "upsert", "suppression_import", "audience_only", "verification_only"];

/// What is known of an import, in either answer.
fn summary() -> Vec<Field> {
    let counts =
        ["total_rows", "valid", "created", "updated", "unchanged", "skipped", "duplicates", "invalid", "suppressed"];
    let error = object([
        required("row", count().about("As a spreadsheet counts.")),
        required("column", text()),
        required("code", text()),
        required("value", text()),
    ]);
    vec![
        required("import_id", id()),
        required("name", text().or_null()),
        required("operation", one_of(OPERATIONS)),
        required("status", one_of(["completed", "completed_with_errors", "failed"])),
        required("source_slug", text()),
        required("counts", object(counts.map(|name| required(name, count()))).named("ImportCounts")),
        required("ignored_columns", array(text())),
        required("errors", array_max(error.named("ImportError"), ERRORS_SHOWN)),
        required("duration_ms", count()),
    ]
}

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
    let compliance = object([
        nullable("consent_basis", text_max(TEXT_MAX_CHARS)),
        nullable("marketing_allowed", boolean()),
        nullable("require_verification", boolean()),
        nullable("source_description", text_max(TEXT_MAX_CHARS)),
    ]);
    let mut answered = example();
    answered["ok"] = json!(true);
    Doc::new(
        "createImport",
        "Import contacts from CSV",
        "Staged, validated and committed before the answer, in one transaction. Bad rows are reported and skipped; the last \
         duplicate wins; an empty cell leaves the value; no suppression or opt-out is ever lifted. A file that cannot be read (no \
         header, an unclosed quote, a column twice, more than 500 columns, a cell over 8 KB, a row over 1 MB) is a 400 that names the \
         line. A reported value is cut short, and left empty when an address is in it. A `create` applies the opt-outs of \
         contacts that are known.",
    )
  .body_schema(
        object([
            required("csv", text().about("CSV text with a header row; `email` is required.")),
            nullable("name", text_max(NAME_MAX_CHARS)),
            optional("operation", one_of(OPERATIONS).default("upsert")),
            nullable("source_slug", text().with("pattern", "^[a-z0-9_-]{1,50}$").about("Default: api_import.")),
            optional("compliance", compliance),
        ]),
        json!({"name": "first", "csv": "email,first_name\nann@example.com,Ann\n"}),
    )
    .answer_schema(200, "Imported", success(summary()), answered)
    .leads_to("import_id", &["getImport"])
    .refuses(413, &["too_many_rows"])
}

pub(super) fn show() -> Doc {
    let mut fields = summary();
    fields.push(required("created_at", time()));
    let mut import = example();
    import["created_at"] = json!(AT);
    Doc::new("getImport", "Read an import's summary", "")
        .answer_schema(
            200,
            "The import",
            success([required("import", object(fields).named("Import"))]),
            json!({"ok": true, "import": import}),
        )
        .refuses(404, &["import_not_found"])
}
