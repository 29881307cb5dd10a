//! What the log of a process that serves has of a panic. In a process of its own: hook and subscriber are for all of it.

use std::process::Command;

const CHILD: &str = "POSTRIDER_TEST_PANICS";

#[test]
fn a_panic_is_logged_by_place_without_its_message() {
    if std::env::var_os(CHILD).is_some() {
        runtime::telemetry::init_logs("warn").unwrap();
        let sliced = "é, of ann@example.com".to_owned();
        let end = std::hint::black_box(1);
        assert!(std::panic::catch_unwind(|| sliced[..end].len()).is_err());
        return;
    }
    let name = "panics::a_panic_is_logged_by_place_without_its_message";
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    let log = String::from_utf8(child.stderr).unwrap();
    assert!(child.status.success(), "{log}");
    assert!(log.contains(r#""message":"panicked""#) && log.contains("tests/it/panics.rs"), "{log}");
    assert!(!log.contains('@'), "{log}");
}
