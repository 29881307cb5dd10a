//! What a statement's plan costs, from `explain (analyze, format json)`.

use serde_json::Value;

/// How many rows the plan's nodes looked at in vain, loops included: many, where a join reads what a key would have found.
pub fn rows_in_vain(explained: &Value) -> f64 {
    below(&explained[0]["Plan"])
}

/// How often the plan looked into a table.
pub fn scans(explained: &Value, table: &str) -> u64 {
    scans_below(&explained[0]["Plan"], table)
}

fn scans_below(node: &Value, table: &str) -> u64 {
    let own = if node["Relation Name"] == table { node["Actual Loops"].as_u64().unwrap_or(0) } else { 0 };
    own + children(node).iter().map(|child| scans_below(child, table)).sum::<u64>()
}

fn children(node: &Value) -> &[Value] {
    node.get("Plans").and_then(Value::as_array).map_or(&[][..], Vec::as_slice)
}

fn below(node: &Value) -> f64 {
    let children = children(node);
    let removed = in_all_loops(node, "Rows Removed by Join Filter") + in_all_loops(node, "Rows Removed by Filter");
    // A hash or merge join reads both sides whole, and does not say what of it found nobody.
    let is_whole = matches!(node["Node Type"].as_str(), Some("Hash Join" | "Merge Join"));
    let rows = |node: &Value| in_all_loops(node, "Actual Rows");
    let largest = children.iter().map(rows).fold(0.0, f64::max);
    let unmatched = if is_whole { (largest - rows(node)).max(0.0) } else { 0.0 };
    removed + unmatched + children.iter().map(below).sum::<f64>()
}

fn in_all_loops(node: &Value, count: &str) -> f64 {
    let number = |name: &str| node.get(name).and_then(Value::as_f64).unwrap_or(0.0);
    number(count) * number("Actual Loops").max(1.0)
}
