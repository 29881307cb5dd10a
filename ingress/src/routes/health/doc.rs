//! How `/health` is documented.

use serde_json::json;

use crate::openapi::{
    Doc,
    schema::{boolean, object, one_of, optional, required, text},
};

pub(super) fn health() -> Doc {
    let body = || {
        object([
            required("ok", boolean()),
            optional("error", one_of(["unavailable"])),
            required("status", one_of(["healthy", "degraded", "unavailable"])),
            required("version", text()),
            required("checks", object([required("database", boolean()), required("bus", boolean())])),
        ])
        .named("Health")
    };
    let example = |ok: bool, status: &str| {
        let mut example =
            json!({"ok": ok, "status": status, "version": "0.1.0", "checks": {"database": ok, "bus": true}});
        if !ok {
            example["error"] = json!("unavailable");
        }
        example
    };
    Doc::new(
        "getHealth",
        "Whether the service works",
        "Needs no credentials. `degraded` without the bus: requests are accepted and announced later.",
    )
    .answer_schema(200, "Process and database are healthy", body(), example(true, "healthy"))
    .answer_schema(503, "The database is unreachable", body(), example(false, "unavailable"))
}
