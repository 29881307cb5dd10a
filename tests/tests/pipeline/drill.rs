//! The drill of an SRE in its short form: two faults against a whole installation, with a real Prometheus, the shipped rules,
//! dashboards and runbooks. `tests/drill/drill.py` plays all of them.

use std::process::Command;

use pipeline::process;

#[test]
fn alerts_fire_dashboards_show_and_runbooks_mend_what_the_short_drill_breaks() {
    let drill = concat!(env!("CARGO_MANIFEST_DIR"), "/drill/drill.py");
    let output = Command::new("python3")
        .args([drill, "--short"])
        .env("POSTRIDER_TEST_BINARY", process::binary())
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .output()
        .expect("the drill needs python3");
    let (said, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{said}{errors}");
}
