//! What others make of the OpenAPI document.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::{path::Path, process::Command};

/// What the script ends with when it cannot do its work here.
const SKIPPED: i32 = 77;

#[test]
fn a_typescript_client_compiles_against_the_document() {
    let there = |tool: &str| Command::new(tool).arg("--version").output().is_ok_and(|output| output.status.success());
    if !there("node") || !there("npm") {
        println!("SKIPPED: node and npm are not installed; no TypeScript was compiled");
        return;
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("openapi/typescript.sh");
    let output = Command::new(script).output().unwrap();
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if output.status.code() == Some(SKIPPED) {
        println!("SKIPPED: {said}");
        return;
    }
    assert!(output.status.success(), "{said}");
}
