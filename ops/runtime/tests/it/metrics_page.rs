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
    let _ = writeln!(page, "\n## {title}\n\n| metric | meaning | unit | labels | exported by |\n|---|---|---|---|---|");
    for metric in metrics {
        let Metric { name, help, .. } = metric;
        let labels: Vec<String> =
            metric.labels.iter().map(|label| format!("`{}`: {}", label.name, described(label.values))).collect();
        let bounds: Vec<String> = metric.buckets.iter().map(f64::to_string).collect();
        let buckets = if bounds.is_empty() { String::new() } else { format!("; buckets: {}", bounds.join(", ")) };
        let (unit, labels, emitter) = (unit(name), labels.join("; "), exported_by(metric.emitter));
        let _ = writeln!(page, "| `{name}` | {help} | {unit}{buckets} | {labels} | {emitter} |");
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
