//! A process of this binary, tied to `dev`: its log goes to a file, its addresses come back in another.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context, bail};
use serde_json::Value;
use tokio::time::Instant;

use crate::servers;

const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Lines of its log a failed start shows.
const LOG_LINES: usize = 15;

/// A running child.
pub struct Child {
    name: &'static str,
    process: std::process::Child,
    addresses: PathBuf,
    log: PathBuf,
}

/// The addresses a child listens on.
pub struct Addresses(Value);

impl Addresses {
    /// One of them.
    pub fn get(&self, name: &str) -> anyhow::Result<&str> {
        self.0[name].as_str().with_context(|| format!("the process did not say its {name}"))
    }
}

impl Child {
    /// The engine: ingress and all stages.
    pub fn engine(data_dir: &Path, env: &BTreeMap<String, String>) -> anyhow::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("all").envs(env);
        Self::spawn("engine", command, data_dir)
    }

    /// The mail sink.
    pub fn sink(data_dir: &Path, rules: Option<&Path>) -> anyhow::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("sink");
        if let Some(rules) = rules {
            command.arg("--rules").arg(rules);
        }
        Self::spawn("sink", command, data_dir)
    }

    /// Must be called on a thread that lives as long as the process: children end with the thread that made them.
    fn spawn(name: &'static str, mut command: Command, data_dir: &Path) -> anyhow::Result<Self> {
        let addresses = data_dir.join(format!("{name}.addresses.json"));
        let log = data_dir.join(format!("{name}.log"));
        let _ = std::fs::remove_file(&addresses);
        let output = std::fs::File::create(&log).with_context(|| format!("{}", log.display()))?;
        command
            .env("POSTRIDER_ADDRESSES_FILE", &addresses)
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output);
        servers::tie_to_this_process(&mut command);
        let process = command.spawn().with_context(|| format!("cannot start the {name}"))?;
        Ok(Self { name, process, addresses, log })
    }

    /// Its name.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Whether it is gone.
    pub fn has_ended(&mut self) -> bool {
        !matches!(self.process.try_wait(), Ok(None))
    }

    /// Waits until it says where it listens.
    pub async fn addresses(&mut self, within: Duration) -> anyhow::Result<Addresses> {
        let deadline = Instant::now() + within;
        loop {
            if let Ok(text) = std::fs::read_to_string(&self.addresses) {
                return Ok(Addresses(serde_json::from_str(&text)?));
            }
            if self.has_ended() || Instant::now() >= deadline {
                let log = std::fs::read_to_string(&self.log).unwrap_or_default();
                bail!("the {} did not start; its log ends:\n{}", self.name, servers::last_lines(&log, LOG_LINES));
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Asks it to drain and waits. Answers whether it drained; one that did not is killed when it is dropped here.
    pub async fn stop(mut self, within: Duration) -> bool {
        servers::ask_to_stop(&self.process);
        let deadline = Instant::now() + within;
        while Instant::now() < deadline {
            if self.has_ended() {
                return true;
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
        false
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if !self.has_ended() {
            let _ = self.process.kill();
            let _ = self.process.wait();
        }
    }
}
