//! How `/health` is documented.

use serde_json::json;

use super::{Health, UNAVAILABLE};
use crate::pipeline::Doc;

pub(super) fn health() -> Doc {
    let healthy =
        json!({"ok": true, "status": "healthy", "version": "0.1.0", "checks": {"database": true, "bus": true}});
    let unavailable = json!({
        "ok": false, "error": UNAVAILABLE, "status": UNAVAILABLE, "version": "0.1.0",
        "checks": {"database": false, "bus": true},
    });
    Doc::new(
        "getHealth",
        "Check the health of the service",
        "Needs no credentials. `degraded` without the bus: requests are accepted and announced later.",
    )
    .answer::<Health>(200, "Process and database are healthy", healthy)
    .answer::<Health>(503, "The database is unreachable", unavailable)
}
