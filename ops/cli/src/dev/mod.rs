//! `postrider dev`: the whole system on this machine, with a mail sink instead of the world.
//!
//! Servers, mail sink and engine are processes of their own, tied to this one: they end with it, however it ends. The engine
//! is the same binary with the same settings as in production; only the values are ours.

mod child;
mod guide;
mod seed;

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use anyhow::{Context, bail};
use runtime::{Bus, Database};
use secrecy::SecretString;
use serde_json::json;
use servers::{Data, ServerOptions, Servers};

use child::Child;

/// Time the engine and the sink have to come up.
const READY_WITHIN: Duration = Duration::from_secs(60);
/// Time they have to drain.
const STOP_WITHIN: Duration = Duration::from_secs(30);

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

/// `postrider seed`
#[derive(Debug, clap::Args)]
pub struct SeedArgs {
    #[command(flatten)]
    database: crate::operator::DatabaseArgs,
    /// Keeps the demo's keys here, so that a second run finds the same.
    #[arg(long, value_name = "DIR")]
    data_dir: PathBuf,
}

/// Makes the demo tenant and prints it.
pub async fn print_seed(args: &SeedArgs) -> anyhow::Result<()> {
    let seeded = seed::seed(args.database.url()?, &args.data_dir).await?;
    println!(
        "{}",
        json!({
            "engine_tenant_id": seeded.engine_tenant_id, "sender_id": seeded.sender_id, "live_key": seeded.live_key,
            "test_key": seeded.test_key, "master_key": seeded.master_key,
        })
    );
    Ok(())
}

/// Where everything is.
pub struct Facts {
    pub base_url: String,
    pub admin_url: String,
    pub nats_url: String,
    pub database_url: String,
    pub inbox_url: String,
    pub smtp_url: String,
    pub seeded: seed::Seeded,
    /// The settings further processes are started with.
    pub env: BTreeMap<String, String>,
}

pub async fn run(options: Options) -> anyhow::Result<()> {
    // First, so that an impatient Ctrl-C during start still stops everything in order.
    let mut stop = std::pin::pin!(crate::process::stop_signal());
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
    println!("\nstopping …");
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
        let data = match (&options.data_dir, options.ephemeral) {
            (_, true) => Data::Ephemeral,
            (Some(dir), _) => Data::Kept(dir.clone()),
            (None, _) => Data::Kept(PathBuf::from(".dev")),
        };
        println!("starting NATS and Postgres …");
        let servers = Servers::start(&ServerOptions { data, cache_dir: None }).await?;
        let data_dir = servers.data_dir().to_owned();
        servers.create_database("postrider").await?;
        let database_url = servers.database_url("postrider");
        let database_secret = SecretString::from(database_url.clone());
        Database::migrate(&database_secret).await.context("migrations")?;
        let nats_url = servers.nats_url();
        let bus = Bus::connect(&SecretString::from(nats_url.clone()), None, "", 1, "dev").await?;
        make_streams(&bus).await?;
        let seeded = seed::seed(&database_secret, &data_dir).await.context("the demo tenant")?;

        let mut sink = None;
        let (smtp_url, inbox_url) = match &options.smtp_url {
            Some(url) => (url.clone(), String::new()),
            None => {
                let child = Child::sink(&data_dir, options.sink_rules.as_deref())?;
                let addresses = child.addresses(READY_WITHIN).await?;
                sink = Some(child);
                (format!("smtp://{}", addresses.get("smtp_addr")?), format!("http://{}", addresses.get("http_addr")?))
            }
        };

        let http_port = servers::free_port();
        let base_url = format!("http://127.0.0.1:{http_port}");
        let setting = |name: &str, value: &str| (format!("POSTRIDER_{name}"), value.to_owned());
        let env = BTreeMap::from([
            setting("DATABASE_URL", &servers.local_database_url("postrider")),
            setting("NATS_URL", &nats_url),
            setting("MASTER_KEY", &seeded.master_key),
            setting("HTTP_ADDR", &format!("127.0.0.1:{http_port}")),
            setting("PUBLIC_URL", &base_url),
            setting("SMTP_URL", &smtp_url),
            setting("WEBHOOK_ALLOW_NETWORKS", "127.0.0.0/8,::1/128"),
            setting("RATE_LIMIT_PER_MINUTE", &options.rate_limit_per_minute.to_string()),
        ]);
        let mut facts =
            Facts { base_url, admin_url: String::new(), nats_url, database_url, inbox_url, smtp_url, seeded, env };
        let mut engine = None;
        if !options.only_servers {
            println!("starting the ingress and all stages …");
            let child = Child::engine(&data_dir, &facts.env)?;
            facts.admin_url = format!("http://{}", child.addresses(READY_WITHIN).await?.get("admin_addr")?);
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
            if !child.stop(STOP_WITHIN).await {
                eprintln!("{name} did not drain in time and was ended");
            }
        }
        if let Err(error) = self.servers.stop_all().await {
            eprintln!("servers: {error}");
        }
    }
}

async fn make_streams(bus: &Bus) -> anyhow::Result<()> {
    let deadline = tokio::time::Instant::now() + READY_WITHIN;
    loop {
        match bus.apply_streams().await {
            Ok(()) => return Ok(()),
            Err(error) if tokio::time::Instant::now() >= deadline => return Err(error.into()),
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

fn write_ready_file(path: &std::path::Path, facts: &Facts) -> anyhow::Result<()> {
    let seeded = &facts.seeded;
    let text = serde_json::to_string_pretty(&json!({
        "base_url": facts.base_url, "admin_url": facts.admin_url, "nats_url": facts.nats_url,
        "database_url": facts.database_url, "inbox_url": facts.inbox_url, "smtp_url": facts.smtp_url,
        "product": seed::PRODUCT, "environment": "production", "product_tenant_id": seed::PRODUCT_TENANT_ID,
        "engine_tenant_id": seeded.engine_tenant_id, "sender_id": seeded.sender_id, "domain": seed::DOMAIN,
        "live_key": seeded.live_key, "test_key": seeded.test_key, "env": facts.env,
    }))?;
    let partial = path.with_extension("partial");
    std::fs::write(&partial, text).and_then(|()| std::fs::rename(&partial, path)).context("ready-file")
}
