//! The long-running processes: ingress, stages, or all in one. Start, serve, drain.

#[cfg(feature = "dev")]
use std::io::IsTerminal;
use std::{net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use anyhow::Context;
use clap::CommandFactory;
use ledger::{confirmations::ConfirmationSettings, quota::QuotaDefaults};
use runtime::{
    Bus, CommitNotifier, CoreSettings, Database, Outbound, OutboundSettings, PauseSwitches, Reader, Role, StageName,
    Vault,
    admin::{self, HealthProbe},
    plans::PreparedPool,
    pools::{self, Watched},
};
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::traces;

/// How long begun work may take after SIGTERM.
const DRAIN_GRACE: Duration = Duration::from_secs(25);
/// Longest wait at the end for each of Postgres, NATS and the collector of traces. With [`DRAIN_GRACE`] well within the 45 s that
/// Kubernetes gives (`ops/deploy/check.py`).
const FLUSH_GRACE: Duration = Duration::from_secs(3);
/// Pause between two tries to make the streams while NATS is away.
const STREAMS_RETRY: Duration = Duration::from_secs(1);

/// The settings of all stages. Each stage reads its own.
#[derive(Debug, Clone, clap::Args)]
pub struct StageSettings {
    #[command(flatten, next_help_heading = "Audience")]
    pub audience: audience::Settings,
    #[command(flatten, next_help_heading = "Rendering")]
    pub rendering: rendering::Settings,
    #[command(flatten, next_help_heading = "Delivery")]
    pub delivery: delivery::Settings,
    #[command(flatten, next_help_heading = "Engagement")]
    pub engagement: engagement::Settings,
    #[command(flatten, next_help_heading = "Webhooks")]
    pub webhooks: webhooks::Settings,
    #[command(flatten, next_help_heading = "Sequencing")]
    pub sequencing: sequencing::Settings,
}

/// The file to which a process writes its addresses (with real ports instead of 0). For test rigs that start processes.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Rigs")]
pub struct AddressesFile {
    /// The process writes the addresses it listens on to this file, as JSON.
    #[arg(long, env = "POSTRIDER_ADDRESSES_FILE")]
    pub addresses_file: Option<PathBuf>,
}

impl AddressesFile {
    /// Writes the file, if one is asked for.
    pub fn write(&self, addresses: &serde_json::Value) -> anyhow::Result<()> {
        let Some(path) = &self.addresses_file else { return Ok(()) };
        // Renamed into place, so that no reader sees half of it.
        let partial = path.with_extension("partial");
        std::fs::write(&partial, addresses.to_string()).context("addresses-file")?;
        std::fs::rename(&partial, path).context("addresses-file")
    }
}

/// What ingress and stages have in common beside the core.
#[derive(Debug, clap::Args)]
struct CommonSettings {
    #[command(flatten)]
    quota: QuotaDefaults,
    #[command(flatten)]
    confirmations: ConfirmationSettings,
    #[command(flatten)]
    addresses: AddressesFile,
}

impl CommonSettings {
    fn apply_to_ingress(&self, ingress: &mut ingress::Settings) {
        ingress.quota = self.quota;
        ingress.confirmations = self.confirmations;
    }

    fn apply_to_stages(&self, stages: &mut StageSettings) {
        stages.delivery.quota = self.quota;
        stages.audience.quota = self.quota;
        stages.audience.confirmations = self.confirmations;
    }
}

/// `postrider all`
#[derive(Debug, clap::Args)]
pub struct AllSettings {
    #[command(flatten)]
    core: CoreSettings,
    #[command(flatten, next_help_heading = "Ingress")]
    ingress: ingress::Settings,
    #[command(flatten)]
    stages: StageSettings,
    #[command(flatten)]
    common: CommonSettings,
}

/// `postrider ingress`
#[derive(Debug, clap::Args)]
pub struct IngressProcess {
    #[command(flatten)]
    core: CoreSettings,
    #[command(flatten, next_help_heading = "Ingress")]
    ingress: ingress::Settings,
    #[command(flatten)]
    common: CommonSettings,
}

/// `postrider stage <name>…`
#[derive(Debug, clap::Args)]
pub struct StageProcess {
    /// Which stages.
    #[arg(required = true)]
    names: Vec<StageName>,
    #[command(flatten)]
    core: CoreSettings,
    #[command(flatten)]
    stages: StageSettings,
    #[command(flatten)]
    outbound: OutboundSettings,
    #[command(flatten)]
    common: CommonSettings,
}

struct Process {
    deps: runner::Deps,
    admin_addr: SocketAddr,
    traces: Option<traces::Exporting>,
    name: String,
}

pub async fn run_all(mut settings: AllSettings) -> anyhow::Result<()> {
    settings.common.apply_to_stages(&mut settings.stages);
    settings.common.apply_to_ingress(&mut settings.ingress);
    let process = Process::start(&settings.core, &settings.ingress.outbound, "all", "all").await?;
    let serving = start_ingress(&settings.core, settings.ingress, &process).await?;
    start_stages(&process.deps, &settings.stages, StageName::ALL).await?;
    process.beat(StageName::ALL, true);
    process.serve(&settings.common.addresses, Some(serving)).await
}

pub async fn run_ingress(mut settings: IngressProcess) -> anyhow::Result<()> {
    settings.common.apply_to_ingress(&mut settings.ingress);
    let process = Process::start(&settings.core, &settings.ingress.outbound, "ingress", "ingress").await?;
    process.beat(&[], true);
    let serving = start_ingress(&settings.core, settings.ingress, &process).await?;
    process.serve(&settings.common.addresses, Some(serving)).await
}

pub async fn run_stages(mut settings: StageProcess) -> anyhow::Result<()> {
    settings.common.apply_to_stages(&mut settings.stages);
    let name = settings.names.iter().map(|name| name.as_str()).collect::<Vec<_>>().join("+");
    let emitter = settings.names.first().map_or("stage", |name| name.as_str());
    let process = Process::start(&settings.core, &settings.outbound, &name, emitter).await?;
    start_stages(&process.deps, &settings.stages, &settings.names).await?;
    process.beat(&settings.names, false);
    process.serve(&settings.common.addresses, None).await
}

impl Process {
    async fn start(
        core: &CoreSettings,
        outbound: &OutboundSettings,
        name: &str,
        emitter: &'static str,
    ) -> anyhow::Result<Self> {
        runtime::telemetry::init_logs(&core.log)?;
        let metrics = runtime::metric::start(name, core.metrics)?;
        let traces = traces::start(&core.traces, name)?;
        let master = core.master.keys()?;
        let half = core.database_pool / 2;
        let pool = Database::pool(&core.database_url, Role::Stages, half).context("database-url")?;
        let by_key = PreparedPool::new(&pool, half as usize);
        let bus = core.bus.connect(&core.nats_url, name).await?;
        let shutdown = CancellationToken::new();
        tokio::spawn(make_streams(bus.clone(), shutdown.clone()));
        tokio::spawn(pools::watch(Watched::Pool(pool.clone()), Role::Stages.as_str(), shutdown.clone()));
        tokio::spawn(pools::watch(Watched::Kept(by_key.bulk("watch")), "stages_by_key", shutdown.clone()));
        let probe = HealthProbe::new(pool.clone(), bus.clone());
        let admin_addr = admin::serve(metrics, probe, core.admin_addr, shutdown.clone())
            .await
            .with_context(|| format!("admin-addr {}", core.admin_addr))?;
        outbound.own_listeners.add(admin_addr);
        let process_name = runtime::control::ProcessName { process: name.to_owned(), log: core.log.clone() };
        let changes = runtime::control::listen(process_name, bus.clone(), shutdown.clone());
        let sends_mail = runtime::runs(name, StageName::Delivery.as_str());
        let switches = PauseSwitches::follow(&by_key, bus.clone(), changes, sends_mail, shutdown.clone());
        let facts = CommitNotifier::start(emitter, bus.clone(), &by_key, shutdown.clone());
        let deps = runner::Deps {
            runner: runner::Runner::new(bus.clone(), facts.clone(), shutdown.clone())
                .with_switches(switches)
                .on_ledger(pool.clone(), &by_key),
            bus,
            pool,
            by_key,
            facts,
            tokens: Arc::new(master.tokens()),
            vault: Arc::new(Vault::new(&master)?),
            outbound: Outbound::new(outbound)?,
            reader: Reader::new(core.reader.clone()),
            shutdown,
        };
        Ok(Self { deps, admin_addr, traces, name: name.to_owned() })
    }

    /// Starts the heartbeats of the process.
    fn beat(&self, stages: &[StageName], ingress: bool) {
        let stages = stages.iter().map(|stage| stage.as_str()).chain(ingress.then_some("ingress")).collect();
        let settings = runtime::settings::given(&crate::Cli::command());
        self.deps.runner.beat((self.deps.pool.clone(), &self.deps.by_key), &self.name, stages, settings);
    }

    /// Runs until SIGTERM or Ctrl-C, then drains. Writes its addresses to the file first.
    async fn serve(self, file: &AddressesFile, ingress: Option<ingress::Serving>) -> anyhow::Result<()> {
        let http_addr = ingress.as_ref().map(|serving| serving.address);
        tracing::info!(admin_addr = %self.admin_addr, http_addr = http_addr.map(|addr| addr.to_string()), "ready");
        file.write(&json!({"admin_addr": self.admin_addr, "http_addr": http_addr, "pid": std::process::id()}))?;
        stop_signal().await;
        tracing::info!("stopping: no new work, finishing begun work");
        self.deps.shutdown.cancel();
        // Accepted requests are answered; a client that never ends does not delay the shutdown.
        let answered = async {
            if let Some(ingress) = ingress {
                let _ = tokio::time::timeout(DRAIN_GRACE, ingress.finished()).await;
            }
        };
        let ((), is_drained) = tokio::join!(answered, self.deps.runner.drained(DRAIN_GRACE));
        if !is_drained {
            tracing::warn!("some work was not finished in time; it is redelivered");
        }
        // Work that is not finished may hold a connection.
        let _ = tokio::time::timeout(FLUSH_GRACE, self.deps.pool.close()).await;
        // Answers to calls over the bus may be on their way.
        let _ = tokio::time::timeout(FLUSH_GRACE, self.deps.bus.client().flush()).await;
        if let Some(traces) = self.traces {
            traces.flush(FLUSH_GRACE).await;
        }
        tracing::info!("stopped");
        Ok(())
    }
}

/// SIGTERM or SIGINT.
pub async fn stop_signal() {
    tokio::select! {
        () = received(SignalKind::terminate()) => {}
        () = received(SignalKind::interrupt()) => {}
    }
}

/// SIGTERM or SIGINT, or that the terminal is closed.
#[cfg(feature = "dev")]
pub async fn stop_signal_on_terminal() {
    tokio::select! {
        () = stop_signal() => {}
        // Without one, as under `nohup`, it runs on.
        () = received(SignalKind::hangup()), if std::io::stdout().is_terminal() => {}
    }
}

async fn received(kind: SignalKind) {
    match signal(kind) {
        Ok(mut signals) => drop(signals.recv().await),
        Err(_) => std::future::pending().await,
    }
}

/// Creates the streams as soon as NATS is available. A process starts and serves what it can without NATS.
async fn make_streams(bus: Bus, shutdown: CancellationToken) {
    while let Err(error) = bus.ensure_streams().await {
        tracing::warn!(%error, "streams are not created yet");
        if shutdown.run_until_cancelled(tokio::time::sleep(STREAMS_RETRY)).await.is_none() {
            return;
        }
    }
}

async fn start_stages(deps: &runner::Deps, settings: &StageSettings, names: &[StageName]) -> anyhow::Result<()> {
    // Delivery last: a process that cannot start must not end between a fence and the answer.
    let (delivery, others): (Vec<_>, Vec<_>) = names.iter().partition(|name| **name == StageName::Delivery);
    for name in others.into_iter().chain(delivery) {
        match name {
            StageName::Audience => audience::start(deps, &settings.audience),
            StageName::Compliance => compliance::start(deps),
            StageName::Rendering => rendering::start(deps, &settings.rendering).await?,
            StageName::Delivery => delivery::start(deps, &settings.delivery).await?,
            StageName::Engagement => engagement::start(deps, &settings.engagement).await?,
            StageName::Attribution => attribution::start(deps),
            StageName::Webhooks => webhooks::start(deps, &settings.webhooks),
            StageName::Sequencing => sequencing::start(deps, &settings.sequencing),
        }
    }
    Ok(())
}

async fn start_ingress(
    core: &CoreSettings,
    settings: ingress::Settings,
    process: &Process,
) -> anyhow::Result<ingress::Serving> {
    let address = settings.http_addr;
    let own_listeners = settings.outbound.own_listeners.clone();
    let pool = Database::pool(&core.database_url, Role::Ingress, core.database_pool / 2).context("database-url")?;
    let deps = ingress::IngressDeps {
        pool,
        bus: process.deps.bus.clone(),
        facts: process.deps.facts.clone(),
        master_keys: core.master.keys()?,
        runner: process.deps.runner.clone(),
        reader: process.deps.reader.clone(),
    };
    let ingress = ingress::Ingress::new(deps, settings)?;
    for (name, pool) in ingress.pools() {
        tokio::spawn(pools::watch(pool, name, process.deps.shutdown.clone()));
    }
    let serving =
        ingress::serve(ingress, process.deps.shutdown.clone()).await.with_context(|| format!("http-addr {address}"))?;
    own_listeners.add(serving.address);
    Ok(serving)
}
