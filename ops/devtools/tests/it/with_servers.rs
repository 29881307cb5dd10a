//! The helper that `./ops/test` runs the suite under.

use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

fn with_servers(script: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_with-servers"));
    command.args(["sh", "-c", script]);
    command
}

#[test]
fn the_exit_status_of_the_command_is_passed_on() {
    let status = with_servers("exit 7").status().unwrap();
    assert_eq!(status.code(), Some(7));
}

#[test]
#[cfg(target_os = "linux")]
fn the_servers_end_with_a_parent_that_is_killed() {
    // `cat` ends when its input is closed, so that the test leaves nothing behind either.
    let mut parent =
        with_servers(r#"echo "${POSTRIDER_TEST_NATS_URL##*/}"; echo "${POSTRIDER_TEST_DATABASE_URL##*@}"; exec cat"#)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
    let mut lines = BufReader::new(parent.stdout.take().unwrap()).lines();
    let mut address = || {
        let line = lines.next().unwrap().unwrap();
        line.split('/').next().unwrap().to_owned()
    };
    let addresses = [address(), address()];
    assert!(addresses.iter().all(|address| answers(address)));

    parent.kill().unwrap();
    parent.wait().unwrap();

    let deadline = Instant::now() + Duration::from_secs(20);
    while addresses.iter().any(|address| answers(address)) {
        assert!(Instant::now() < deadline, "a server is still there");
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
#[cfg(target_os = "linux")]
fn a_server_that_ended_meanwhile_is_a_failure_with_its_log() {
    let kill_nats = r#"for child in $(cat /proc/$PPID/task/*/children); do
        case $(readlink /proc/$child/exe) in *nats-server)
            kill -9 $child
            while readlink /proc/$child/exe >/dev/null; do :; done ;;
        esac
    done"#;
    let output = with_servers(kill_nats).output().unwrap();
    let printed = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(printed.contains("nats-server ended by itself") && printed.contains("Server is ready"), "{printed}");
}

fn answers(address: &str) -> bool {
    TcpStream::connect(address).is_ok()
}
