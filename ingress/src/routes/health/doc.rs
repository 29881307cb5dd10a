//! How `/health` is documented.

use serde_json::json;

use crate::openapi::{
    Doc,
    schema::{boolean, object, one_of, required, text},
};

pub(super) fn health() -> Doc {
    let body = || {
        object([
            required("ok", boolean()),
            required("status", one_of(["healthy", "degraded", "unavailable"])),
            required("version", text()),
            required("checks", object([required("database", boolean()), required("bus", boolean())])),
        ])
        .named("Health")
    };
    let example =
        |ok, status| json!({"ok": ok, "status": status, "version": "0.1.0", "checks": {"database": ok, "bus": true}});
    Doc::new(
        "getHealth",
        "Whether the service works",
        "Needs no credentials. `degraded` without the bus: requests are accepted and announced later.",
    )
    .answer(200, "Process and database are healthy", body(), example(true, "healthy"))
    .answer(503, "The database is unreachable", body(), example(false, "unavailable"))
}
