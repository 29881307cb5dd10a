//! The vocabulary of the glossary in `stages/README.md`, held against the names of the program: definitions in Rust, identifiers in SQL,
//! metrics and sweeps. A name that needs a banned word has a reason below.
#![allow(clippy::unwrap_used)]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
};

use pipeline::files::root;

/// Words of a private language, each with the word of the field.
const BANNED: &[(&str, &str)] = &[
    ("bell", "notify"),
    ("ring", "notify, announce"),
    ("rung", "announced"),
    ("hearer", "subscriber"),
    ("heard", "subscribed, received"),
    ("hears", "subscribes"),
    ("told", "event, reported"),
    ("tell", "publish, notify, export"),
    ("teller", "emitter, source"),
    ("road", "route, pipeline"),
    ("way", "route"),
    ("ways", "routes"),
    ("desk", "capacity"),
    ("room", "capacity, remaining"),
    ("standing", "eligibility, state, usage"),
    ("standings", "eligibility"),
    ("verdict", "decision"),
    ("verdicts", "decisions"),
    ("judge", "decide"),
    ("judged", "decided"),
    ("judgement", "decision"),
    ("looks", "reads, attempts"),
    ("unhurried", "asynchronous commit"),
    ("outage", "circuit breaker"),
    ("rests", "paused, resting"),
    ("strikes", "failures"),
    ("doubts", "unknown outcomes"),
    ("patience", "retry deadline, timeout"),
    ("lever", "pause switch"),
    ("levers", "pause switches"),
    ("nudge", "change signal"),
    ("keeper", "restore detector, lease"),
    ("vouched", "verified"),
    ("booking", "counter delta"),
    ("bookings", "counter deltas"),
    ("letter", "inbound mail, message"),
    ("letters", "messages"),
    ("postbox", "inbound SMTP server"),
    ("strays", "unroutable requests"),
    ("fate", "outcome"),
    ("fates", "outcomes"),
    ("park", "pending, pause"),
    ("parked", "pending, paused"),
    ("bury", "purge, expire"),
    ("forget", "purge, delete"),
    ("forgotten", "purged"),
    ("tidy", "clean up"),
    ("wake", "resume"),
    ("wakes", "resuming"),
    ("settle", "resolve, finish, apply"),
    ("wall", "row-level security"),
    ("who", "operator, contacts, …"),
    ("seek", "find"),
    ("handed", "dispatched, sent"),
    ("apart", "isolated"),
    ("parcel", "outgoing message"),
    ("handover", "send result"),
];

/// Names that contain such a word and mean something else.
const ALLOWED: &[(&str, &str)] =
    &[("spamVerdict", "a field of Amazon's notification"), ("looks_like_an_address", "a guess, not a poll")];

/// Type names that every crate of a kind has, and that are read with the crate's name before them.
const NAMES_OF_EVERY_CRATE: &[(&str, &str)] = &[
    ("Settings", "what an operator can set: `delivery::Settings`"),
    ("StartError", "why it did not start: `mcp::StartError`"),
];

/// The production sources below a directory, by path. Tests have names of their own.
fn sources(directory: &str, found: &mut BTreeMap<String, String>) {
    for entry in fs::read_dir(root().join(directory)).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = format!("{directory}/{name}");
        if entry.file_type().unwrap().is_dir() {
            if !matches!(name.as_str(), "tests" | "target" | "benches") {
                sources(&path, found);
            }
        } else if name.ends_with(".rs") && name != "tests.rs" || name.ends_with(".sql") {
            found.insert(path, fs::read_to_string(entry.path()).unwrap());
        }
    }
}

fn all_sources() -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    ["schemas", "ingress", "stages", "ops", "migrations"].iter().for_each(|directory| sources(directory, &mut found));
    found
}

/// `release_expired` and `ReleaseExpired` both have the parts `release` and `expired`.
fn parts(identifier: &str) -> Vec<String> {
    let mut parts: Vec<String> = Vec::new();
    let mut was_lower = false;
    for character in identifier.chars() {
        let starts = character.is_ascii_uppercase() && was_lower;
        if character == '_' || starts || parts.is_empty() {
            parts.push(String::new());
        }
        if let Some(last) = parts.last_mut().filter(|_| character != '_') {
            last.push(character.to_ascii_lowercase());
        }
        was_lower = character.is_ascii_lowercase() || character.is_ascii_digit();
    }
    parts
}

fn identifiers(line: &str) -> impl Iterator<Item = &str> {
    line.split(|character: char| !character.is_ascii_alphanumeric() && character != '_')
        .filter(|word| word.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_'))
}

/// The name that a line of Rust defines: an item, a field or a variant.
fn definition(line: &str) -> Option<&str> {
    let mut words = line.split_whitespace().map(|word| word.trim_end_matches(','));
    while let Some(word) = words.next() {
        match word {
            "struct" | "enum" | "trait" | "fn" | "const" | "mod" | "type" | "static" => {
                return words
                    .next()
                    .filter(|next| *next != "fn")
                    .or_else(|| words.next())
                    .and_then(|name| identifiers(name).next());
            }
            "pub" | "async" | "unsafe" | "default" => {}
            visibility if visibility.starts_with("pub(") => {}
            field if field.ends_with(':') && !field.ends_with("::") => return identifiers(field).next(),
            variant if variant.starts_with(|first: char| first.is_ascii_uppercase()) => {
                let is_alone = words.next().is_none_or(|next| next == "{" || next == "=" || next.starts_with("//"));
                let name = identifiers(variant).next()?;
                let ends = &variant[name.len()..];
                return (is_alone && (ends.is_empty() || ends.starts_with('('))).then_some(name);
            }
            _ => return None,
        }
    }
    None
}

/// The names a source defines: of Rust the definitions, of SQL every identifier.
fn names(path: &str, text: &str) -> BTreeSet<String> {
    if path.ends_with(".sql") {
        let code = text.lines().map(|line| line.split("--").next().unwrap_or(""));
        return code.flat_map(identifiers).map(str::to_owned).collect();
    }
    let production = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or("");
    production
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"))
        .filter_map(definition)
        .map(str::to_owned)
        .collect()
}

/// The banned word in a name, unless the name is allowed. A dead letter is a term of the field.
fn banned_in(name: &str) -> Option<&'static (&'static str, &'static str)> {
    if ALLOWED.iter().any(|(allowed, _)| *allowed == name) {
        return None;
    }
    let parts = parts(name);
    let is_dead_letter = |at: usize| at > 0 && parts[at - 1] == "dead" && parts[at].starts_with("letter");
    let uses = |word: &str| parts.iter().enumerate().any(|(at, part)| part == word && !is_dead_letter(at));
    BANNED.iter().find(|(word, _)| uses(word))
}

fn report(path: &str, name: &str, (word, instead): &(&str, &str)) -> String {
    format!("{path}: `{name}` says `{word}`; the glossary says {instead}")
}

#[test]
fn names_use_the_words_of_the_glossary() {
    let mut faults = Vec::new();
    for (path, text) in all_sources() {
        for name in names(&path, &text) {
            faults.extend(banned_in(&name).map(|word| report(&path, &name, word)));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn metrics_and_sweeps_use_the_words_of_the_glossary() {
    let mut faults = Vec::new();
    for metric in runtime::metric::all() {
        faults.extend(banned_in(metric.name).map(|word| report("metric", metric.name, word)));
    }
    let mut sweeps = 0;
    for (path, text) in &all_sources() {
        for sweep in text.split("SweepSchedule::every(").skip(1).filter_map(|after| after.split('"').nth(1)) {
            sweeps += 1;
            let is_vague = matches!(sweep, "close" | "watch" | "hand_on");
            let word = banned_in(sweep).or(is_vague.then_some(&("", "what it does")));
            faults.extend(word.map(|word| report(path, sweep, word)));
        }
    }
    assert!(sweeps > 30, "the sweeps are not found");
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// The types and traits that a source defines for more than its own file. A private one is read beside its definition.
fn shared_types(text: &str) -> impl Iterator<Item = &str> {
    let production = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or("");
    // Those that the macro makes stand one level deeper.
    let indent = if text.contains("named_enum! {") { "    " } else { "" };
    production.lines().filter_map(move |line| {
        let rest = line.strip_prefix(indent).unwrap_or(line).strip_prefix("pub")?;
        let rest = if rest.starts_with('(') { rest.split_once(") ")?.1 } else { rest.strip_prefix(' ')? };
        let (kind, name) = rest.split_once(' ')?;
        matches!(kind, "struct" | "enum" | "trait" | "type").then(|| identifiers(name).next())?
    })
}

/// The files that define each name of a type.
fn files_of_types() -> BTreeMap<String, Vec<String>> {
    let mut files: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (path, text) in all_sources().into_iter().filter(|(path, _)| path.ends_with(".rs")) {
        for name in shared_types(&text) {
            files.entry(name.to_owned()).or_default().push(path.clone());
        }
    }
    files
}

#[test]
fn a_type_name_stands_for_one_type() {
    let is_of_every_crate = |name: &String| NAMES_OF_EVERY_CRATE.iter().any(|(allowed, _)| allowed == name);
    let shared = files_of_types().into_iter().filter(|(name, files)| files.len() > 1 && !is_of_every_crate(name));
    let faults: Vec<String> = shared.map(|(name, files)| format!("{name}: {}", files.join(", "))).collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
