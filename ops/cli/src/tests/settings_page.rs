//! `ops/settings.md`: every setting of the processes, made from the definitions of the commands.
//! `UPDATE=1 cargo test -p postrider settings_page` writes it.

use std::{collections::BTreeSet, fmt::Write, fs, path::Path};

use clap::{Arg, Command, CommandFactory};

use crate::Cli;

const PREFIX: &str = "POSTRIDER_";
/// The commands whose settings the page lists. `all` reads what `ingress` and `stage` read; operators' commands read some of it.
const PROCESSES: [&str; 4] = ["ingress", "stage", "sink", "api"];

const HEAD: &str = "\
# Settings

Each setting is a flag `--some-name` and an environment variable `POSTRIDER_SOME_NAME`. An unknown `POSTRIDER_…` variable stops the
process at start: a mistyped name must not leave a default in force. Durations are written `90s`, `5m`, `2h`, `30d`.
`postrider <command> --help` says the same; `postrider all` reads what `postrider ingress` and `postrider stage` read.

This page is made from the program. `UPDATE=1 cargo test -p postrider settings_page` writes it, and a test compares.
";

/// Settings under one heading of `--help` that the same processes read.
struct Section {
    heading: String,
    readers: Vec<&'static str>,
    rows: Vec<String>,
}

fn render(command: &Command) -> String {
    let mut page = HEAD.to_owned();
    for section in sections(command) {
        let readers = section.readers.iter().map(|name| format!("`postrider {name}`")).collect::<Vec<_>>().join(", ");
        // Writing to a string cannot fail.
        let _ = write!(page, "\n## {}\n\nRead by {readers}.\n\n", section.heading);
        let _ = writeln!(page, "| setting | default | meaning |\n|---|---|---|\n{}", section.rows.join("\n"));
    }
    page
}

fn sections(command: &Command) -> Vec<Section> {
    let mut sections: Vec<Section> = Vec::new();
    let mut listed = BTreeSet::new();
    for arg in PROCESSES.iter().flat_map(|process| settings_of(command, process)) {
        let Some(variable) = variable(arg) else { continue };
        if !listed.insert(variable) {
            continue;
        }
        let reads = |process: &&str| settings_of(command, process).any(|other| self::variable(other) == Some(variable));
        let readers: Vec<_> = PROCESSES.into_iter().filter(reads).collect();
        let heading = arg.get_help_heading().unwrap_or("Mail sink");
        let row = row(arg, variable);
        match sections.iter_mut().find(|section| section.heading == heading && section.readers == readers) {
            Some(section) => section.rows.push(row),
            None => sections.push(Section { heading: heading.to_owned(), readers, rows: vec![row] }),
        }
    }
    sections
}

fn settings_of<'a>(command: &'a Command, process: &str) -> impl Iterator<Item = &'a Arg> {
    let process = command.find_subcommand(process);
    process.into_iter().flat_map(Command::get_arguments).filter(|arg| variable(arg).is_some())
}

/// The environment variable of a setting. Those that only tests change are hidden.
fn variable(arg: &Arg) -> Option<&str> {
    arg.get_env()?.to_str().filter(|name| name.starts_with(PREFIX) && !arg.is_hide_set())
}

fn row(arg: &Arg, variable: &str) -> String {
    let name = variable.trim_start_matches(PREFIX).to_lowercase().replace('_', "-");
    let flag =
        arg.get_long().filter(|flag| *flag != name).map(|flag| format!(" (flag `--{flag}`)")).unwrap_or_default();
    let meaning = arg.get_long_help().or_else(|| arg.get_help()).map(ToString::to_string).unwrap_or_default();
    let meaning = meaning.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|");
    format!("| `{name}`{flag} | {} | {}. |", default(arg), meaning.trim_end_matches('.'))
}

fn default(arg: &Arg) -> String {
    let values = arg.get_default_values().iter().map(|value| value.to_string_lossy()).collect::<Vec<_>>().join(",");
    match values.as_str() {
        "" if arg.is_required_set() => "required".to_owned(),
        "" => "none".to_owned(),
        values => format!("`{values}`"),
    }
}

#[test]
fn the_settings_page_says_what_the_program_reads() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../settings.md");
    let made = render(&Cli::command());
    if std::env::var_os("UPDATE").is_some() {
        assert!(fs::write(&path, &made).is_ok(), "ops/settings.md cannot be written");
    }
    let written = fs::read_to_string(&path).unwrap_or_default();
    let differs = written.lines().zip(made.lines()).find(|(old, new)| old != new);
    assert!(written == made, "ops/settings.md is stale, first at {differs:?}: run this test with UPDATE=1");
}

#[test]
fn every_variable_that_a_command_reads_is_on_the_page() {
    fn variables<'a>(command: &'a Command, found: &mut BTreeSet<&'a str>) {
        found.extend(command.get_arguments().filter_map(variable));
        command.get_subcommands().for_each(|command| variables(command, found));
    }
    let command = Cli::command();
    let listed: BTreeSet<&str> =
        PROCESSES.iter().flat_map(|process| settings_of(&command, process)).filter_map(variable).collect();
    let mut read = BTreeSet::new();
    variables(&command, &mut read);
    assert_eq!(read, listed, "a setting of another command has no place on the page");
}
