//! Processes of the one binary, as an operator would start them.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::OnceLock,
    time::Duration,
};

use serde_json::Value;

use crate::eventually;

/// The binary under test: what `POSTRIDER_TEST_BINARY` names, else the workspace's, brought up to date once per process.
pub fn binary() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| {
        if let Some(given) = std::env::var_os("POSTRIDER_TEST_BINARY") {
            return given.into();
        }
        let exe = std::env::current_exe().unwrap();
        let profile_dir = exe
            .ancestors()
            .find(|dir| dir.file_name().is_some_and(|name| name == "debug" || name == "release"))
            .expect("tests run from a target directory")
            .to_owned();
        let mut build = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        // The whole workspace's features, so that nothing is compiled a second time.
        build
            .args(["build", "--quiet", "--workspace", "--bins"])
            .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
        if profile_dir.ends_with("release") {
            build.arg("--release");
        }
        assert!(build.status().unwrap().success(), "the binary does not build");
        profile_dir.join("postrider")
    })
}

/// A running process; killed when dropped.
pub struct Process {
    name: String,
    child: std::process::Child,
    log: PathBuf,
    addresses: PathBuf,
}

impl Process {
    /// Starts `postrider <args>` with these settings. Its log goes to a file in `dir`.
    pub fn start(name: &str, args: &[&str], env: &BTreeMap<String, String>, dir: &Path) -> Self {
        let nonce: u32 = rand::random();
        let log = dir.join(format!("{name}-{nonce:08x}.log"));
        let addresses = dir.join(format!("{name}-{nonce:08x}.json"));
        let output = std::fs::File::create(&log).unwrap();
        let child = Command::new(binary())
            .args(args)
            .envs(env)
            .env("POSTRIDER_ADDRESSES_FILE", &addresses)
            .stdin(Stdio::null())
            .stdout(output.try_clone().unwrap())
            .stderr(output)
            .spawn()
            .unwrap();
        Self { name: name.to_owned(), child, log, addresses }
    }

    /// Waits until it says where it listens.
    pub async fn addresses(&mut self) -> Value {
        let path = self.addresses.clone();
        let what = format!("{} to start; its log is {}", self.name, self.log.display());
        eventually(&what, Duration::from_secs(60), || {
            if let Ok(Some(status)) = self.child.try_wait() {
                panic!("{} ended with {status}:\n{}", self.name, self.log_end());
            }
            let found = std::fs::read_to_string(&path).ok().and_then(|text| serde_json::from_str(&text).ok());
            async move { found }
        })
        .await
    }

    /// What its log says of trouble, and its last lines.
    pub fn log_end(&self) -> String {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        let (mut trouble, quiet): (Vec<&str>, Vec<&str>) =
            text.lines().partition(|line| !line.contains(r#""level":"INFO""#));
        trouble.truncate(40);
        trouble.extend(&quiet[quiet.len().saturating_sub(5)..]);
        trouble.join("\n")
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// `kill -9`, and waits until it is gone.
    pub fn kill9(mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// SIGTERM, then waits for it to drain. Answers whether it ended well by itself.
    pub async fn terminate(mut self) -> bool {
        devtools::servers::ask_to_stop(&self.child);
        let status = eventually(&format!("{} to drain", self.name), Duration::from_secs(40), || {
            let status = self.child.try_wait().unwrap();
            async move { status }
        })
        .await;
        status.success()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("--- last log lines of {} ---\n{}", self.name, self.log_end());
        }
    }
}

/// Runs `postrider <args>` to its end and answers what it printed.
pub fn run(args: &[&str], env: &BTreeMap<String, String>) -> String {
    let output = Command::new(binary()).args(args).envs(env).stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "postrider {args:?} failed: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The JSON lines a command printed.
pub fn lines(output: &str) -> Vec<Value> {
    output.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}
