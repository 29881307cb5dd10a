//! `postrider dev`: the whole system on this machine, with a mail sink instead of the world.
//!
//! Servers, mail sink and engine are processes of their own, tied to this one: they end with it, however it ends. The engine
//! is the same program with the same settings as in production, and what an operator does by command is done by command here.

#![allow(clippy::print_stdout, reason = "a command line talks on standard output")]

mod child;
mod guide;

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    future::Future,
    io::Write,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context, bail, ensure};
use serde::{Deserialize, Serialize};
use tokio::process::Command;

use crate::servers::{self, ServerOptions, Servers};
use child::Child;

/// Everything on this machine for development.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Writes addresses, keys and settings to this file, as JSON, when everything is ready.
    #[arg(long, value_name = "FILE")]
    ready_file: Option<PathBuf>,
    /// Keeps data here, to be found again by the next start. Default: `.dev` in the current directory.
    #[arg(long, value_name = "DIR", conflicts_with = "ephemeral")]
    data_dir: Option<PathBuf>,
    /// Keeps nothing: data lives in a new directory that is deleted at the end.
    #[arg(long)]
    ephemeral: bool,
    /// Hands mail to this relay instead of the built-in sink.
    #[arg(long, value_name = "URL", env = "POSTRIDER_SMTP_URL")]
    smtp_url: Option<String>,
    /// Requests per minute and API key; 0 switches the limit off.
    #[arg(long, default_value_t = 120)]
    rate_limit_per_minute: u32,
    /// Starts servers and sink, migrates, makes streams and seeds, but starts no ingress and no stage.
    #[arg(long)]
    only_servers: bool,
    /// A file with scripted answers for the sink.
    #[arg(long, value_name = "FILE")]
    sink_rules: Option<PathBuf>,
}

/// The demo tenant, as `postrider seed` prints it.
#[derive(Deserialize, Serialize)]
struct Seeded {
    product: String,
    environment: String,
    product_tenant_id: String,
    engine_tenant_id: String,
    sender_id: String,
    domain: String,
    live_key: String,
    test_key: String,
    #[serde(skip_serializing)]
    master_key: String,
}

/// Where everything is, as the ready file has it.
#[derive(Serialize)]
struct Facts {
    base_url: String,
    admin_url: String,
    nats_url: String,
    database_url: String,
    inbox_url: String,
    smtp_url: String,
    #[serde(flatten)]
    seeded: Seeded,
    /// The settings further processes are started with.
    env: BTreeMap<String, String>,
}

/// Starts everything, prints where it is, and stops everything when `stop` is ready or a process has ended.
pub async fn run(options: Options, stop: impl Future<Output = ()>) -> anyhow::Result<()> {
    // An impatient Ctrl-C during start still stops everything in order.
    let mut stop = std::pin::pin!(stop);
    let mut running = tokio::select! {
        started = Running::start(&options) => started?,
        () = &mut stop => bail!("stopped while starting"),
    };
    if let Some(path) = &options.ready_file {
        write_ready_file(path, &running.facts)?;
    }
    guide::print(&running.facts, &running.data_dir, options.only_servers);
    let ended = tokio::select! {
        () = stop => None,
        name = running.first_to_end() => Some(name),
    };
    // The terminal may be closed.
    let _ = writeln!(std::io::stdout(), "\nstopping …");
    running.stop().await;
    match ended {
        Some(name) => bail!("{name} ended by itself; see its log in {}", running.data_dir.display()),
        None => Ok(()),
    }
}

struct Running {
    // Dropped in this order: clients before servers.
    engine: Option<Child>,
    sink: Option<Child>,
    servers: Servers,
    facts: Facts,
    data_dir: PathBuf,
}

impl Running {
    async fn start(options: &Options) -> anyhow::Result<Self> {
        let server_options = match options.ephemeral {
            true => ServerOptions::ephemeral(),
            false => ServerOptions::kept(options.data_dir.as_deref().unwrap_or(Path::new(".dev"))),
        };
        println!("starting NATS and Postgres …");
        let servers = Servers::start(&server_options).await?;
        let data_dir = servers.data_dir().to_owned();
        servers.postgres().create_database("postrider").await?;
        let database_url = servers.database_url("postrider");
        let nats_url = servers.nats_url();
        let database = [("POSTRIDER_DATABASE_URL", database_url.as_str())];
        command(&["migrate"], &database).await?;
        command(&["streams", "apply"], &[("POSTRIDER_NATS_URL", nats_url.as_str())]).await?;
        let kept_in = data_dir.to_str().context("the data directory's name is not UTF-8")?;
        let seeded: Seeded = serde_json::from_slice(&command(&["seed", "--data-dir", kept_in], &database).await?)?;

        let mut sink = None;
        let (smtp_url, inbox_url) = match &options.smtp_url {
            Some(url) => (url.clone(), String::new()),
            None => {
                let mut arguments = vec![OsStr::new("sink")];
                if let Some(rules) = &options.sink_rules {
                    arguments.extend([OsStr::new("--rules"), rules.as_os_str()]);
                }
                let mut child = Child::start("sink", &arguments, &BTreeMap::new(), &data_dir)?;
                let (smtp, http) = (child.address("smtp_addr").await?, child.address("http_addr").await?);
                sink = Some(child);
                (format!("smtp://{smtp}"), format!("http://{http}"))
            }
        };

        let http_port = servers::free_port();
        let base_url = format!("http://127.0.0.1:{http_port}");
        let setting = |name: &str, value: &str| (format!("POSTRIDER_{name}"), value.to_owned());
        let env = BTreeMap::from([
            setting("DATABASE_URL", &servers.postgres().local_database_url("postrider")),
            setting("NATS_URL", &nats_url),
            setting("MASTER_KEY", &seeded.master_key),
            setting("HTTP_ADDR", &format!("127.0.0.1:{http_port}")),
            setting("PUBLIC_URL", &base_url),
            setting("RETURN_PATH_TARGET", "return.localhost"),
            setting("SPF_INCLUDE", "spf.localhost"),
            setting("TRACKING_TARGET", "link.localhost"),
            setting("SMTP_URL", &smtp_url),
            setting("WEBHOOK_ALLOW_NETWORKS", "127.0.0.0/8,::1/128"),
            setting("RATE_LIMIT_PER_MINUTE", &options.rate_limit_per_minute.to_string()),
        ]);
        let mut facts =
            Facts { base_url, admin_url: String::new(), nats_url, database_url, inbox_url, smtp_url, seeded, env };
        let mut engine = None;
        if !options.only_servers {
            println!("starting the ingress and all stages …");
            let mut child = Child::start("engine", &[OsStr::new("all")], &facts.env, &data_dir)?;
            facts.admin_url = format!("http://{}", child.address("admin_addr").await?);
            engine = Some(child);
        }
        Ok(Self { engine, sink, servers, facts, data_dir })
    }

    /// The name of a child that ended without being asked to.
    async fn first_to_end(&mut self) -> &'static str {
        loop {
            for child in [&mut self.engine, &mut self.sink].into_iter().flatten() {
                if child.has_ended() {
                    return child.name();
                }
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    async fn stop(&mut self) {
        for child in [self.engine.take(), self.sink.take()].into_iter().flatten() {
            let name = child.name();
            if !child.stop().await {
                eprintln!("{name} did not drain in time and was ended");
            }
        }
        if let Err(error) = self.servers.stop_all().await {
            eprintln!("servers: {error:#}");
        }
    }
}

/// Runs one of the binary's own commands to its end; answers what it printed.
async fn command(arguments: &[&str], settings: &[(&str, &str)]) -> anyhow::Result<Vec<u8>> {
    let output = Command::new(std::env::current_exe()?)
        .args(arguments)
        .envs(settings.iter().copied())
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .kill_on_drop(true)
        .output()
        .await?;
    ensure!(output.status.success(), "postrider {} failed", arguments.join(" "));
    Ok(output.stdout)
}

fn write_ready_file(path: &Path, facts: &Facts) -> anyhow::Result<()> {
    let text = serde_json::to_string_pretty(facts)?;
    let partial = path.with_extension("partial");
    std::fs::write(&partial, text).and_then(|()| std::fs::rename(&partial, path)).context("ready-file")
}
