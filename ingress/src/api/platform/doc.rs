//! How `/v1/platform/health` is documented.

use serde_json::{Value, json};

use super::{HealthReport, IMPAIRED};
use crate::pipeline::{Doc, doc::AT};

fn example(ok: bool, overall: &str, check: &Value) -> Value {
    let mut example = json!({"ok": ok, "overall": overall, "generated_at": AT, "checks": [check]});
    if !ok {
        example["error"] = json!(IMPAIRED);
    }
    example
}

pub(super) fn health() -> Doc {
    let fine = json!({
        "id": "heartbeat.delivery", "area": "workers", "name": "Stage delivery", "status": "ok",
        "observation": "2 process(es) alive",
    });
    let bad = json!({
        "id": "heartbeat.delivery", "area": "workers", "name": "Stage delivery", "status": "crit",
        "observation": "0 process(es) alive", "cause": "no process runs the stage delivery",
        "fix": ["start it: `postrider stage <name>`"], "link": "ops/runbooks/process-down.md",
    });
    Doc::new(
        "getPlatformHealth",
        "Check that mail goes out",
        "For the operations integration: above tenants, without `product_tenant_id`. Every check runs anew, for two seconds at most. \
         Without Postgres no key can be looked up; the report then only has `error: unavailable`.",
    )
    .answer::<HealthReport>(200, "Mail goes out; `warn` where a check needs attention", example(true, "ok", &fine))
    .answer::<HealthReport>(503, "Sending is impaired", example(false, "crit", &bad))
}
