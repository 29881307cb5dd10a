//! A process of this binary, tied to `dev`: its log goes to a file, its addresses come back in another.

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context, bail};
use serde_json::Value;
use tokio::time::Instant;

use crate::servers;

/// Time a child has to come up.
const READY_WITHIN: Duration = Duration::from_secs(60);
/// Time it has to drain.
const STOP_WITHIN: Duration = Duration::from_secs(30);
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

impl Child {
    /// Starts a command of this binary. Must be called on a thread that lives as long as the process: children end with the thread that
    /// made them.
    pub fn start(
        name: &'static str,
        arguments: &[&OsStr],
        env: &BTreeMap<String, String>,
        data_dir: &Path,
    ) -> anyhow::Result<Self> {
        let addresses = data_dir.join(format!("{name}.addresses.json"));
        let log = data_dir.join(format!("{name}.log"));
        let _ = std::fs::remove_file(&addresses);
        let output = std::fs::File::create(&log).with_context(|| format!("{}", log.display()))?;
        let mut command = Command::new(std::env::current_exe()?);
        command
            .args(arguments)
            .envs(env)
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

    /// Waits until it says where it listens; answers the address of this name.
    pub async fn address(&mut self, name: &str) -> anyhow::Result<String> {
        let deadline = Instant::now() + READY_WITHIN;
        loop {
            if let Ok(text) = std::fs::read_to_string(&self.addresses) {
                let addresses: Value = serde_json::from_str(&text)?;
                let address = addresses[name].as_str();
                return address.map(str::to_owned).with_context(|| format!("the process did not say its {name}"));
            }
            if self.has_ended() || Instant::now() >= deadline {
                let log = std::fs::read_to_string(&self.log).unwrap_or_default();
                bail!("the {} did not start; its log ends:\n{}", self.name, servers::last_lines(&log, LOG_LINES));
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Asks it to drain and waits. Answers whether it drained; one that did not is killed when it is dropped here.
    pub async fn stop(mut self) -> bool {
        servers::ask_to_stop(&self.process);
        let deadline = Instant::now() + STOP_WITHIN;
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
