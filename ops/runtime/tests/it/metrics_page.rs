//! `ops/metrics.md` is made from the list: `UPDATE=1 cargo test -p runtime --test it metrics_page` writes it.

use std::{fmt::Write, fs, path::Path};

use runtime::{
    Counter, Gauge, Histogram,
    metric::{Emitter, Metric, Values},
};

const HEAD: &str = "\
# Metrics

Every process answers `GET /metrics` on its admin port. These are all the metrics there are, made from the one list in
`ops/runtime/src/metric/list.rs`; a test compares. Units are base units: seconds, bytes, or a number of things. Labels are bounded
sets, never a tenant, an address or an id. What is counted begins at zero when the process starts. Levels that are taken from
Postgres or JetStream are exported by several processes, each for the whole installation: take their `max`, not their `sum`.

Beside them each process has the usual `process_*` (CPU, memory, file descriptors, start time).
";

fn render() -> String {
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
            let _ = writeln!(page, "- `{}`: {}", label.name, described(label.values));
        }
        if !metric.buckets.is_empty() {
            let bounds: Vec<String> = metric.buckets.iter().map(f64::to_string).collect();
            let _ = writeln!(page, "- buckets: {}", bounds.join(", "));
        }
        let _ = writeln!(page, "- exported by: {}", exported_by(metric.emitter));
    }
}

/// The set of a label's values.
fn described(values: Values) -> String {
    match values {
        Values::OneOf(one_of) => one_of().join(", "),
        Values::Codes([]) => "a code of the program's own".to_owned(),
        Values::Codes(codes) => format!("{}, or another code of the program's own", codes.join(", ")),
        Values::Route => "a route of the API, as OpenAPI writes it; none for any other path".to_owned(),
        Values::Status => "an HTTP status".to_owned(),
        Values::Build => "what the process was started as".to_owned(),
    }
}

fn exported_by(emitter: Emitter) -> String {
    match emitter {
        Emitter::Every => "every process".to_owned(),
        Emitter::Parts(parts) => parts.join(", "),
        Emitter::Runner => "each stage".to_owned(),
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

#[test]
fn the_page_says_what_the_list_says() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../metrics.md");
    let made = render();
    if std::env::var_os("UPDATE").is_some() {
        fs::write(&path, &made).unwrap();
    }
    let written = fs::read_to_string(&path).unwrap_or_default();
    let differs = written.lines().zip(made.lines()).find(|(old, new)| old != new);
    assert!(written == made, "ops/metrics.md is not what the list says, first at {differs:?}: run this with UPDATE=1");
}
