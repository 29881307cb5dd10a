//! `run-tests <file> [argument…]`: runs the test programs that `cargo test --no-run --message-format=json` wrote to the file.
//!
//! Cargo runs them one after another. Here several run at a time, for tests wait more than they work, and the longest begins.
//! Of a program that passes only the result is printed, of one that fails everything. Arguments go to each program.

#![allow(clippy::print_stdout, reason = "a command line talks on standard output")]

use std::{
    collections::VecDeque,
    ffi::OsString,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
    sync::{Mutex, PoisonError},
};

use anyhow::Context;
use serde::Deserialize;

/// The program that takes longest, by the end of its name.
const LONGEST: &str = "test pipeline";

/// Its tests that run at a time, unless `RUST_TEST_THREADS` says otherwise: they wait for processes of their own.
const LONGEST_THREADS: &str = "3";

/// Programs that run at a time, on two cores: for a third of their time two of them wait. More make tests wait for each other.
const AT_A_TIME: usize = 3;

/// A line of what cargo writes; of most only the reason is of interest.
#[derive(Deserialize)]
struct Message {
    reason: String,
    #[serde(default)]
    manifest_path: PathBuf,
    target: Option<Target>,
    profile: Option<Profile>,
    executable: Option<PathBuf>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
    kind: Vec<String>,
}

#[derive(Deserialize)]
struct Profile {
    test: bool,
}

struct Program {
    name: String,
    package: PathBuf,
    executable: PathBuf,
}

fn main() -> anyhow::Result<ExitCode> {
    let mut words = std::env::args_os().skip(1);
    let file = words.next().context("usage: run-tests <file> [argument…]")?;
    let arguments: Vec<OsString> = words.collect();
    let programs = Mutex::new(programs(Path::new(&file))?);
    let failed = std::thread::scope(|scope| {
        let lanes = [(); AT_A_TIME].map(|()| scope.spawn(|| run_until_empty(&programs, &arguments)));
        lanes.map(|lane| lane.join().unwrap_or_else(|_| vec!["a lane".to_owned()])).concat()
    });
    if failed.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    println!("\nfailed: {}", failed.join(", "));
    Ok(ExitCode::FAILURE)
}

/// The test programs, the longest first.
fn programs(file: &Path) -> anyhow::Result<VecDeque<Program>> {
    let text = std::fs::read_to_string(file).with_context(|| file.display().to_string())?;
    let mut programs = VecDeque::new();
    for line in text.lines().filter(|line| line.starts_with('{')) {
        let message: Message = serde_json::from_str(line)?;
        let is_test = message.reason == "compiler-artifact" && message.profile.is_some_and(|profile| profile.test);
        if let (true, Some(target), Some(executable)) = (is_test, message.target, message.executable) {
            let package = message.manifest_path.parent().context("a manifest without a folder")?.to_owned();
            let folder = package.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let name = format!("{folder} {} {}", target.kind.concat(), target.name);
            programs.push_back(Program { name, package, executable });
        }
    }
    anyhow::ensure!(!programs.is_empty(), "the file names no test programs");
    programs.make_contiguous().sort_by_key(|program: &Program| !program.name.ends_with(LONGEST));
    Ok(programs)
}

/// Takes programs and runs them until none is left; answers the names of those that failed.
fn run_until_empty(programs: &Mutex<VecDeque<Program>>, arguments: &[OsString]) -> Vec<String> {
    let mut failed = Vec::new();
    let next = || programs.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
    while let Some(Program { name, package, executable }) = next() {
        let started = std::time::Instant::now();
        // As cargo does: in the package's folder.
        let mut command = Command::new(&executable);
        command.args(arguments).current_dir(&package).env("CARGO_MANIFEST_DIR", &package);
        if name.ends_with(LONGEST) && std::env::var_os("RUST_TEST_THREADS").is_none() {
            command.env("RUST_TEST_THREADS", LONGEST_THREADS);
        }
        let output = command.output();
        let seconds = started.elapsed().as_secs();
        static PRINTING: Mutex<()> = Mutex::new(());
        let _whole = PRINTING.lock().unwrap_or_else(PoisonError::into_inner);
        match output {
            Ok(output) if output.status.success() => {
                let said = String::from_utf8_lossy(&output.stdout);
                let noted = said.lines().filter(|line| line.starts_with("test result:") || line.contains("SKIPPED"));
                println!("{name} ({seconds} s): {}", noted.collect::<Vec<_>>().join(" "));
            }
            Ok(output) => {
                let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
                println!("{name} ({seconds} s) FAILED:\n{}", said.concat());
                failed.push(name);
            }
            Err(error) => {
                println!("{name} cannot be started: {error}");
                failed.push(name);
            }
        }
    }
    failed
}
