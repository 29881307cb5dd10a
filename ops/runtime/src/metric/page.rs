//! `ops/metrics.md`: the list for people.

use std::fmt::Write;

use super::{Counter, Gauge, Histogram, Metric};

const HEAD: &str = "\
# Metrics

Every process answers `GET /metrics` on its admin port. These are all the metrics there are, made from the one list in
`ops/runtime/src/metric/list.rs`; a test compares. Units are base units: seconds, bytes, or a number of things. Labels are bounded
sets, never a tenant, an address or an id. What is counted begins at zero when the process starts. Levels that are taken from
Postgres or JetStream are exported by several processes, each for the whole installation: take their `max`, not their `sum`.

Beside them each process has the usual `process_*` (CPU, memory, file descriptors, start time).
";

/// The page.
#[must_use]
pub fn render() -> String {
    let mut page = HEAD.to_owned();
    section(&mut page, "Counters", Counter::ALL.iter().map(|counter| counter.metric()));
    section(&mut page, "Levels", Gauge::ALL.iter().map(|gauge| gauge.metric()));
    section(&mut page, "Distributions", Histogram::ALL.iter().map(|histogram| histogram.metric()));
    page
}

fn section(page: &mut String, title: &str, metrics: impl Iterator<Item = Metric>) {
    // Writing to a string cannot fail.
    let _ = writeln!(page, "\n## {title}");
    for metric in metrics {
        let _ = writeln!(page, "\n### `{}`\n\n{}\n\n- unit: {}", metric.name, metric.help, unit(metric.name));
        for label in metric.labels {
            let _ = writeln!(page, "- `{}`: {}", label.name, label.values.describe());
        }
        if !metric.buckets.is_empty() {
            let bounds: Vec<String> = metric.buckets.iter().map(f64::to_string).collect();
            let _ = writeln!(page, "- buckets: {}", bounds.join(", "));
        }
        let _ = writeln!(page, "- exported by: {}", metric.emitter.describe());
    }
}

fn unit(name: &str) -> &'static str {
    if name.ends_with("_seconds") {
        "seconds"
    } else if name.contains("_bytes") {
        "bytes"
    } else {
        "a number"
    }
}
