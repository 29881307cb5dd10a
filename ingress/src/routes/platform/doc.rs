//! How `/v1/platform/health` is documented.

use serde_json::{Value, json};

use crate::openapi::{
    AT, Doc,
    schema::{Schema, array, boolean, object, one_of, optional, required, text, time},
};

fn check() -> Schema {
    object([
        required("id", text().about("Stable, as `heartbeat.delivery`.")),
        required("area", text()),
        required("name", text()),
        required("status", one_of(["ok", "warn", "crit"])),
        required("observation", text().about("What was seen.")),
        optional("cause", text().about("Why it is not as it should be.")),
        optional("fix", array(text()).about("What to do, step by step.")),
        optional("link", text().about("The runbook.")),
    ])
    .named("HealthCheck")
}

fn report() -> Schema {
    object([
        required("ok", boolean().about("Whether mail goes out.")),
        optional(
            "error",
            one_of([super::IMPAIRED, super::UNAVAILABLE]).about("With a 503 only; `unavailable`: Postgres is away."),
        ),
        required("overall", one_of(["ok", "warn", "crit"]).about("The worst of the checks.")),
        required("generated_at", time()),
        required("checks", array(check())),
    ])
    .named("PlatformHealth")
}

fn example(ok: bool, overall: &str, check: &Value) -> Value {
    let mut example = json!({"ok": ok, "overall": overall, "generated_at": AT, "checks": [check]});
    if !ok {
        example["error"] = json!(super::IMPAIRED);
    }
    example
}

pub(super) fn health() -> Doc {
    let fine = json!({
        "id": "heartbeat.delivery", "area": "workers", "name": "Stage delivery", "status": "ok",
        "observation": "2 process(es) heard of",
    });
    let bad = json!({
        "id": "heartbeat.delivery", "area": "workers", "name": "Stage delivery", "status": "crit",
        "observation": "0 process(es) heard of", "cause": "no process runs the stage delivery",
        "fix": ["start it: `postrider stage <name>`"], "link": "ops/runbooks/process-down.md",
    });
    Doc::new(
        "getPlatformHealth",
        "Whether mail goes out",
        "For the operations integration: above tenants, without `product_tenant_id`. Everything is looked at anew, for two seconds \
         at most. Without Postgres no key can be looked up: then the report says just that, with `error: unavailable`.",
    )
    .answer_schema(200, "Mail goes out; `warn` where somebody should look", report(), example(true, "ok", &fine))
    .answer_schema(503, "Sending is impaired", report(), example(false, "crit", &bad))
}
