//! Two versions in turn: what a figure of one machine means is told by the other version's on the same machine in the same minutes.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    path::Path,
    process::{Command, Stdio},
};

/// Runs the benchmark that `arguments` name `rounds` times in turn: this version's, and that of the folder, which holds `bench` and
/// `postrider` of another. Prints every line of figures, and the median of each figure with its ratio.
pub(super) fn run(other: &Path, rounds: usize, arguments: &[OsString]) {
    let own = std::env::current_exe().unwrap();
    let versions = [("this", own.parent().unwrap().to_owned()), ("other", other.to_owned())];
    let mut figures: BTreeMap<String, [Vec<f64>; 2]> = BTreeMap::new();
    for round in 0..rounds {
        for (version, (name, folder)) in versions.iter().enumerate() {
            let line = measure(folder, arguments);
            println!("{} {name}: {line}", round + 1);
            for (figure, value) in figures_of(&line) {
                figures.entry(figure).or_default()[version].push(value);
            }
        }
    }
    for (figure, [this, other]) in &mut figures {
        if let (Some(this), Some(other)) = (median(this), median(other)) {
            println!("{figure:>24}  this {this:>10.3}  other {other:>10.3}  ratio {:.3}", this / other);
        }
    }
}

fn measure(folder: &Path, arguments: &[OsString]) -> String {
    let output = Command::new(folder.join("bench"))
        .args(arguments)
        .env("POSTRIDER_TEST_BINARY", folder.join("postrider"))
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .unwrap();
    assert!(output.status.success(), "{} failed", folder.display());
    String::from_utf8(output.stdout).unwrap().trim().replace('\n', "  ")
}

/// The numbers of a line by what they are called: the words since the last one, and the unit behind. `cpu_us/mail: all 95 nats 16`
/// has `cpu_us/mail all` and `cpu_us/mail nats`.
fn figures_of(line: &str) -> Vec<(String, f64)> {
    let mut found: Vec<(String, f64)> = Vec::new();
    let (mut section, mut words) = ("", Vec::new());
    for word in line.split_whitespace() {
        let bare = word.trim_matches(|c: char| !c.is_ascii_alphanumeric());
        if let Ok(value) = bare.parse() {
            let name: Vec<&str> =
                [section].into_iter().chain(words.drain(..)).filter(|word| !word.is_empty()).collect();
            found.push((name.join(" "), value));
        } else if word.ends_with(':') {
            section = bare;
            words.clear();
        } else if words.is_empty() && is_unit(bare) {
            if let Some((name, _)) = found.last_mut() {
                name.push_str(&format!(" {bare}"));
            }
        } else {
            words.push(bare);
        }
    }
    found
}

fn is_unit(word: &str) -> bool {
    matches!(word, "s" | "ms") || word.ends_with("/s")
}

fn median(values: &mut [f64]) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::figures_of;

    #[test]
    fn a_figure_is_named_by_the_words_before_it_and_its_unit() {
        let found = figures_of("x no-feed: 7198 mails/s (1.5 s; first mail after 0.2 s)  cpu_us/mail: all 95 nats 16");
        let named = |name: &str, value: f64| (name.to_owned(), value);
        let expected = [
            named("no-feed mails/s", 7198.0),
            named("no-feed s", 1.5),
            named("no-feed first mail after s", 0.2),
            named("cpu_us/mail all", 95.0),
            named("cpu_us/mail nats", 16.0),
        ];
        assert_eq!(found, expected);
    }
}
