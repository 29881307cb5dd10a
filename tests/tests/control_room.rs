//! What people read and watch, held against the program: rules, dashboards, runbooks, the checks that come with them, and documents.
//! `pipeline/metrics.rs` shows that what they ask for is told.
#![allow(clippy::unwrap_used)]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::PathBuf,
    process::Command,
};

use pipeline::files::{root, text, words_with_prefix, yaml};
use runtime::{
    metric::{self, Metric},
    streams::STREAMS,
};
use serde_json::Value;

/// What Prometheus adds to every series, and its name for a bucket's bound.
const OF_EVERY_SERIES: &[&str] = &["job", "instance", "service", "le"];

/// The files of a directory, in the order of their names.
fn files(directory: &str) -> Vec<String> {
    let entries = fs::read_dir(root().join(directory)).unwrap_or_else(|error| panic!("{directory}: {error}"));
    let mut names: Vec<String> =
        entries.map(|entry| format!("{directory}/{}", entry.unwrap().file_name().to_string_lossy())).collect();
    names.sort();
    names
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

/// Every document in the repository's own folders.
fn documents() -> Vec<String> {
    fn collect(folder: &str, found: &mut Vec<String>) {
        const OTHERS: [&str; 3] = ["target", "node_modules", ".venv"];
        for entry in fs::read_dir(root().join(folder)).unwrap().map(Result::unwrap) {
            let name = entry.file_name().into_string().unwrap();
            let path = if folder.is_empty() { name.clone() } else { format!("{folder}/{name}") };
            if entry.file_type().unwrap().is_dir() {
                if !name.starts_with('.') && !OTHERS.contains(&name.as_str()) {
                    collect(&path, found);
                }
            } else if name.ends_with(".md") {
                found.push(path);
            }
        }
    }
    let mut found = Vec::new();
    collect("", &mut found);
    found.sort();
    found
}

/// The anchor that readers of Markdown give to a heading.
fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.collect::<String>().to_lowercase().replace(' ', "-")
}

#[test]
fn every_link_of_a_document_leads_somewhere() {
    for document in documents() {
        let folder = root().join(&document).parent().unwrap().to_owned();
        for link in text(&document).split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if link.starts_with("http") {
                continue;
            }
            let (path, heading) = link.split_once('#').unwrap_or((link, ""));
            let target = if path.is_empty() { root().join(&document) } else { folder.join(path) };
            assert!(target.exists(), "{document}: {link}");
            if !heading.is_empty() {
                let headings = fs::read_to_string(&target).unwrap();
                let mut headings = headings.lines().filter_map(|line| Some(anchor(line.split_once("# ")?.1)));
                assert!(headings.any(|found| found == heading), "{document}: {link}");
            }
        }
    }
}

#[test]
fn every_path_that_a_document_names_is_there() {
    const FOLDERS: [&str; 6] = ["schemas/", "migrations/", "ingress/", "stages/", "ops/", "tests/"];
    for document in documents() {
        let (text, folder) = (text(&document), root().join(&document).parent().unwrap().to_owned());
        let named = text.split(|c: char| !c.is_ascii_alphanumeric() && !"/._-<>*{}".contains(c));
        for path in named.filter(|word| FOLDERS.iter().any(|folder| word.starts_with(folder))) {
            let path = path.trim_end_matches(['.', '/']);
            let is_pattern = path.contains(['<', '*', '{']);
            // The target of a link stands beside the document.
            let is_there = root().join(path).exists() || folder.join(path).exists();
            assert!(is_pattern || is_there, "{document}: {path}");
        }
    }
}

#[test]
fn every_invariant_names_a_test_that_is_there() {
    let text = text("stages/README.md");
    let rows = text.lines().filter_map(|line| {
        let cells: Vec<&str> = line.split('`').collect();
        (line.starts_with("| ") && line.ends_with(".rs` |")).then(|| (cells[cells.len() - 4], cells[cells.len() - 2]))
    });
    let rows: Vec<_> = rows.collect();
    assert!(rows.len() >= 20, "{rows:?}");
    for (test, file) in rows {
        let source = fs::read_to_string(root().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
        assert!(source.contains(&format!("fn {test}(")), "{file} has no test {test}");
    }
}

#[test]
fn the_architecture_lists_every_stream_and_no_other() {
    let text = text("stages/README.md");
    let listed: BTreeSet<&str> =
        text.lines().filter_map(|line| line.strip_prefix("| `MAIL_")?.split('`').next()).collect();
    let known: BTreeSet<&str> = STREAMS.iter().map(|stream| stream.name.trim_start_matches("MAIL_")).collect();
    assert_eq!(listed, known);
}

#[test]
fn every_path_of_the_api_is_in_its_document() {
    let text = text("ingress/README.md");
    let api: Value = serde_json::from_str(&self::text("schemas/openapi.json")).unwrap();
    for path in api["paths"].as_object().unwrap().keys() {
        let short = path.strip_prefix("/v1").unwrap_or(path);
        assert!(text.contains(&format!("`{short}`")), "{path}");
    }
}

/// The stages: what is in `stages` but for what they share.
fn stages() -> Vec<String> {
    let names = files("stages").into_iter().filter_map(|path| path.strip_prefix("stages/").map(str::to_owned));
    names.filter(|name| root().join(format!("stages/{name}/Cargo.toml")).is_file()).collect()
}

/// The crate that owns the ledger's tables.
const LEDGER: &str = "stages/shared/ledger";

/// Every source file below a directory with one of these endings, but for those of the ledger and for tests.
fn sources(directory: &str, endings: &[&str]) -> Vec<String> {
    let mut found = Vec::new();
    for path in files(directory) {
        let name = path.rsplit('/').next().unwrap_or_default();
        if root().join(&path).is_dir() {
            if !["tests", "target"].contains(&name) && path != LEDGER {
                found.extend(sources(&path, endings));
            }
        } else if endings.iter().any(|ending| name.ends_with(ending)) && name != "tests.rs" {
            found.push(path);
        }
    }
    found
}

/// The image has no certificates of the system: a client that asks for them cannot be built there.
#[test]
fn every_http_client_brings_its_own_authorities() {
    let builds = |path: &String| {
        let text = text(path);
        let code = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
        let code = code.lines().filter(|line| !line.trim_start().starts_with("//"));
        let code: String = code.flat_map(str::split_whitespace).collect();
        let builders: Vec<String> = code.split("reqwest::Client::builder()").skip(1).map(str::to_owned).collect();
        assert!(!code.contains("reqwest::Client::new()"), "{path}");
        for builder in &builders {
            assert!(builder.starts_with(".tls_backend_preconfigured("), "{path}");
        }
        builders.len()
    };
    let paths = ["ingress", "ops/cli", "ops/otlp", "ops/runtime", "schemas", "stages"];
    let found: usize = paths.iter().flat_map(|dir| sources(dir, &[".rs"])).map(|path| builds(&path)).sum();
    assert!(found >= 4, "{found}");
}

#[test]
fn only_the_ledger_writes_its_tables() {
    const TABLES: &[&str] = &["sends", "batches", "events", "rollups", "suppressions", "outbox"];
    for path in
        ["ingress", "ops/cli", "ops/runtime", "schemas", "stages"].iter().flat_map(|dir| sources(dir, &[".rs", ".sql"]))
    {
        let text = text(&path);
        // Tests make what they need.
        let code = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
        let words: Vec<String> = code.to_lowercase().split_whitespace().map(str::to_owned).collect();
        for three in words.windows(3) {
            let table = match [three[0].as_str(), three[1].as_str(), three[2].as_str()] {
                [.., "into" | "from", table] if three[0].ends_with("insert") || three[0].ends_with("delete") => table,
                [verb, table, _] if verb.trim_matches(['"', '(', '`']) == "update" => table,
                _ => continue,
            };
            let table = table.trim_matches(|c: char| !c.is_alphanumeric() && c != '_');
            assert!(!TABLES.contains(&table), "{path} writes {table}: only stages/shared/ledger does");
        }
    }
}

/// The order is: state, pipeline, endpoints, table of routes, bus and server. Documents are made from operations they are handed.
#[test]
fn imports_of_the_ingress_run_one_way() {
    let above: [(&str, &[&str]); 4] = [
        ("pipeline", &["api", "public", "routes", "documents", "bus", "server"]),
        ("api", &["routes", "documents", "bus", "server"]),
        ("public", &["routes", "documents", "bus", "server"]),
        ("documents", &["api", "public", "server"]),
    ];
    for (folder, above) in above {
        for path in sources(&format!("ingress/src/{folder}"), &[".rs"]) {
            let source = text(&path);
            // A unit test may ask for a real operation.
            let code = source.split("#[cfg(test)]").next().unwrap();
            let code: String = code.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
            let imports = code.split("crate::").skip(1).filter_map(|rest| rest.split(';').next());
            let modules = imports.flat_map(|import| import.trim_start_matches('{').split(',').map(str::trim));
            let is_above = |module: &&str| above.iter().any(|above| module.split("::").next() == Some(above));
            assert_eq!(modules.clone().find(is_above), None, "{path} imports what stands above {folder}");
        }
    }
}

#[test]
fn no_stage_is_imported_but_by_the_program() {
    let mut crates = files("stages/shared");
    crates.extend(["ingress", "ingress/mcp", "ops/runtime"].map(str::to_owned));
    crates.extend(stages().iter().map(|name| format!("stages/{name}")));
    for path in crates {
        let manifest = text(&format!("{path}/Cargo.toml"));
        let dependencies = manifest.split("[dependencies]").nth(1).unwrap().split("\n[").next().unwrap();
        for stage in stages() {
            assert!(!dependencies.contains(&format!("\n{stage}.workspace")), "{path} imports the stage {stage}");
        }
    }
}
