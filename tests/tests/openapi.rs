//! What others make of the OpenAPI and the AsyncAPI document.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::{path::Path, process::Command};

/// What the script ends with when it cannot do its work here.
const SKIPPED: i32 = 77;

#[test]
fn a_typescript_client_compiles_against_the_document() {
    succeeds("openapi/typescript.sh");
}

#[test]
fn the_official_parser_takes_the_asyncapi_document() {
    succeeds("asyncapi/check.sh");
}

/// Runs a script that needs node; says so where it cannot do its work.
fn succeeds(script: &str) {
    let there = |tool: &str| Command::new(tool).arg("--version").output().is_ok_and(|output| output.status.success());
    if !there("node") || !there("npm") {
        println!("SKIPPED: node and npm are not installed; {script} was not run");
        return;
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join(script);
    let output = Command::new(script).output().unwrap();
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if output.status.code() == Some(SKIPPED) {
        println!("SKIPPED: {said}");
        return;
    }
    assert!(output.status.success(), "{said}");
}
