//! What a statement's plan costs, from `explain (analyze, format json)`.

use serde_json::Value;

/// How many rows the plan's nodes looked at in vain, loops included: many, where a join reads what a key would have found.
#[must_use]
pub fn rows_in_vain(explained: &Value) -> f64 {
    below(&explained[0]["Plan"])
}

fn below(node: &Value) -> f64 {
    let number = |name: &str| node.get(name).and_then(Value::as_f64).unwrap_or(0.0);
    let in_vain = number("Rows Removed by Join Filter") + number("Rows Removed by Filter");
    let own = in_vain * number("Actual Loops").max(1.0);
    own + node.get("Plans").and_then(Value::as_array).map_or(0.0, |nodes| nodes.iter().map(below).sum())
}
