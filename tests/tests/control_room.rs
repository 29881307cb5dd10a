//! What an operator watches with, held against the program: rules, dashboards, runbooks, and the checks that come with them.
//! `pipeline/metrics.rs` shows that what they ask for is told.
#![allow(clippy::unwrap_used)]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use runtime::metric::{self, Metric};
use serde_json::Value;

/// What Prometheus adds to every series, and its name for a bucket's bound.
const OF_EVERY_SERIES: &[&str] = &["job", "instance", "service", "le"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

fn text(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn yaml(path: &str) -> Value {
    serde_saphyr::from_str(&text(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The files of a directory, in the order of their names.
fn files(directory: &str) -> Vec<String> {
    let entries = fs::read_dir(root().join(directory)).unwrap_or_else(|error| panic!("{directory}: {error}"));
    let mut names: Vec<String> =
        entries.map(|entry| format!("{directory}/{}", entry.unwrap().file_name().to_string_lossy())).collect();
    names.sort();
    names
}

/// The words of a text that begin so, each once.
fn words_with_prefix(text: &str, prefix: &str) -> BTreeSet<String> {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
        .filter(|word| word.starts_with(prefix) && word.len() > prefix.len())
        .map(str::to_owned)
        .collect()
}

/// Every metric the program has, by name.
fn metrics() -> BTreeMap<&'static str, Metric> {
    metric::all().into_iter().map(|metric| (metric.name, metric)).collect()
}

/// Metrics of exporters and of Prometheus itself, and the series our rules record.
fn metrics_of_others() -> BTreeSet<String> {
    let listed = text("ops/prometheus/exporters.txt");
    let names = listed.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split(' ').next());
    let recorded = rules().into_iter().filter_map(|rule| rule["record"].as_str().map(str::to_owned));
    names.map(str::to_owned).chain(recorded).collect()
}

/// Every rule, alerts and recordings.
fn rules() -> Vec<Value> {
    let groups =
        files("ops/prometheus/rules").into_iter().flat_map(|path| yaml(&path)["groups"].as_array().unwrap().clone());
    groups.flat_map(|group| group["rules"].as_array().unwrap().clone()).collect()
}

fn alerts() -> Vec<Value> {
    rules().into_iter().filter(|rule| rule["alert"].is_string()).collect()
}

/// Every PromQL expression a person would install, with where it stands.
fn expressions() -> Vec<(String, String)> {
    let of_rules = rules().into_iter().map(|rule| {
        let name = rule["alert"].as_str().or(rule["record"].as_str()).unwrap();
        (name.to_owned(), rule["expr"].as_str().unwrap().to_owned())
    });
    let of_panels = files("ops/grafana/dashboards").into_iter().flat_map(|path| {
        let dashboard: Value = serde_json::from_str(&text(&path)).unwrap();
        let panels = dashboard["panels"].as_array().unwrap().clone();
        panels.into_iter().flat_map(move |panel| {
            let place = format!("{path}: {}", panel["title"].as_str().unwrap());
            let targets = panel["targets"].as_array().cloned().unwrap_or_default();
            targets.into_iter().map(move |target| (place.clone(), target["expr"].as_str().unwrap().to_owned()))
        })
    });
    of_rules.chain(of_panels).collect()
}

/// The label names in the braces behind a metric's name, with the words they are compared with.
fn selectors_of(expression: &str, metric: &str) -> Vec<(String, Vec<String>)> {
    let behind = |at: usize| expression[at + metric.len()..].strip_prefix('{').and_then(|rest| rest.split('}').next());
    let selector = |pair: &str| {
        let (label, compared) = pair.split_once(['=', '!'])?;
        let words = compared.trim_start_matches(['=', '~']).trim_matches('"');
        // Of a pattern with groups the pieces are no words.
        let words = if words.contains('(') { Vec::new() } else { words.split('|').map(str::to_owned).collect() };
        Some((label.trim().to_owned(), words))
    };
    expression
        .match_indices(metric)
        .filter_map(|(at, _)| behind(at))
        .flat_map(|braces| braces.split("\",").filter_map(selector).collect::<Vec<_>>())
        .collect()
}

#[test]
fn alerts_and_panels_use_metrics_labels_and_words_the_program_has() {
    let (metrics, of_others) = (metrics(), metrics_of_others());
    for (place, expression) in expressions() {
        let names: Vec<String> = words_with_prefix(&expression, "mail_").into_iter().collect();
        let from_elsewhere = of_others.iter().any(|name| expression.contains(name));
        assert!(!names.is_empty() || from_elsewhere, "{place}: no metric in {expression}");
        for name in names {
            let part = ["_bucket", "_sum", "_count"].iter().find_map(|suffix| name.strip_suffix(suffix));
            let base = part.filter(|base| metrics.contains_key(base)).unwrap_or(&name);
            let metric = metrics.get(base).unwrap_or_else(|| panic!("{place}: there is no metric {name}"));
            assert_eq!(base != name, !metric.buckets.is_empty(), "{place}: {name} is read as what it is not");
            for (label, words) in selectors_of(&expression, &name) {
                if OF_EVERY_SERIES.contains(&label.as_str()) {
                    continue;
                }
                let known = metric.labels.iter().find(|known| known.name == label);
                let known = known.unwrap_or_else(|| panic!("{place}: {name} has no label {label}"));
                // Patterns are Prometheus's to judge.
                let is_plain =
                    |word: &&String| word.bytes().all(|byte| byte.is_ascii_lowercase() || b"_-".contains(&byte));
                for word in words.iter().filter(is_plain).filter(|word| !word.is_empty()) {
                    assert!(known.values.allow(word), "{place}: {label} of {name} is never {word}");
                }
            }
        }
    }
}

#[test]
fn every_alert_has_a_runbook_and_every_runbook_an_alert() {
    let mut named = BTreeSet::new();
    for alert in alerts() {
        let name = alert["alert"].as_str().unwrap();
        let runbook = alert["annotations"]["runbook_url"].as_str().unwrap_or_else(|| panic!("{name} has no runbook"));
        assert!(["page", "ticket"].contains(&alert["labels"]["severity"].as_str().unwrap()), "{name}");
        assert!(text(runbook).contains(name), "{runbook} does not say that it is for {name}");
        named.insert(root().join(runbook));
    }
    let written: BTreeSet<PathBuf> =
        fs::read_dir(root().join("ops/runbooks")).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(named, written);
}

#[test]
fn runbooks_name_metrics_there_are() {
    let (metrics, of_others) = (metrics(), metrics_of_others());
    for path in files("ops/runbooks") {
        for name in words_with_prefix(&text(&path), "mail_") {
            let base =
                ["_bucket", "_sum", "_count"].iter().find_map(|suffix| name.strip_suffix(suffix)).unwrap_or(&name);
            let is_known =
                metrics.contains_key(name.as_str()) || metrics.contains_key(base) || of_others.contains(&name);
            assert!(is_known, "{path}: there is no metric {name}");
        }
    }
}

/// Runs a check of `ops`. It fetches what it needs and this machine lacks; where that cannot be had it fails and says what is missing.
fn passes(check: &str) {
    let output = Command::new(root().join(check)).current_dir(root()).output();
    let output = output.unwrap_or_else(|error| panic!("{check} cannot be started: {error}"));
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{check}:\n{said}");
}

#[test]
fn every_alert_fires_when_it_should_and_is_silent_when_it_should() {
    passes("ops/prometheus/check");
}

#[test]
fn what_is_deployed_is_what_the_program_reads() {
    passes("ops/deploy/check");
}
