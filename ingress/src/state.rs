//! The state that all handlers share, and what it is built from.

use std::sync::Arc;

use domains::{DnsResolver, DnsSettings, ResolverError};
use runner::Runner;
use runtime::{
    Bus, CommitNotifier, MasterKeys, Reader, Role, Vault, VaultError, admin::HealthProbe, outbound::SetupError,
    plans::PreparedPool, pools::Watched,
};
use schemas::token::TokenKeys;
use sqlx::PgPool;
use tokio_util::task::TaskTracker;

use crate::{
    pipeline::{
        auth::{admission::Admissions, keys::ApiKeys},
        request_log::RequestLog,
        shares::Shares,
    },
    public::{hooks::shared::Hooks, link::LinkHosts},
    reply_inbox::ReplyInbox,
    settings::Settings,
};

/// What the ingress is built from.
#[derive(Debug, Clone)]
pub struct IngressDeps {
    /// A pool in the ingress's role.
    pub pool: PgPool,
    /// Where accepted requests are announced.
    pub bus: Bus,
    /// Notified after every write, which may have committed facts.
    pub facts: CommitNotifier,
    /// Derives tokens, sealing keys and what stands for erased addresses.
    pub master_keys: MasterKeys,
    /// Consumes direct requests from the bus. The caller drains it.
    pub runner: Runner,
    /// Reads untrusted files in processes of their own.
    pub reader: Reader,
}

/// An ingress that cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Sealing keys cannot be derived.
    #[error("the vault cannot be opened")]
    Vault(#[from] VaultError),
    /// No DNS servers to ask.
    #[error(transparent)]
    Dns(#[from] ResolverError),
    /// The client for addresses outside cannot be set up.
    #[error(transparent)]
    Outbound(#[from] SetupError),
    /// Settings of the assistant endpoint that do not work.
    #[error(transparent)]
    Assistant(#[from] mcp::StartError),
}

/// Longest statement of a read. Postgres cancels it; the caller is answered 503 `unavailable`.
pub(crate) const READ_STATEMENT_MAX: &str = "15s";

/// The state all handlers share.
pub struct Ingress {
    /// Postgres, in the ingress's role: sees a tenant's rows only inside a confined transaction.
    pub pool: PgPool,
    /// Prepared statements, for queries that find all their rows by key.
    pub(crate) by_key: PreparedPool,
    /// Checks nonces, rate limits and tenants of all requests.
    pub(crate) admissions: Arc<Admissions>,
    /// The bus.
    pub bus: Bus,
    /// Probes both for `GET /health`.
    pub(crate) health: HealthProbe,
    /// Notified after every write, which may have committed facts.
    pub facts: CommitNotifier,
    /// Seals secrets at rest.
    pub vault: Vault,
    /// Checks the tokens of links in mail.
    pub tokens: Arc<TokenKeys>,
    /// For what stands for erased addresses.
    pub master_keys: MasterKeys,
    /// Writes the calls of tenants down. Closed at shutdown, after the last answer.
    pub(crate) request_log: RequestLog,
    /// Asks the DNS about domains.
    pub resolver: DnsResolver,
    /// The settings.
    pub settings: Settings,
    /// The API keys in use.
    pub keys: ApiKeys,
    /// Writes, calls over the bus and announcements in progress: awaited at shutdown.
    pub tasks: TaskTracker,
    /// Notifies requests that wait for the outcome of their sends.
    pub reply_inbox: ReplyInbox,
    /// The reads and writes of recipients under way: one for each key, and all together half of the connections.
    pub(crate) recipient_turns: Shares,
    /// Of the requests of one mail's links, which waits for its batch.
    pub(crate) mail_turns: Shares,
    /// The writes of each tenant that have a connection: at most half of the connections, whatever rows they wait for.
    pub(crate) write_turns: Shares,
    /// Those of its writes that are imports, which may last for minutes: one turn is left to its other writes.
    pub(crate) import_turns: Shares,
    /// Whose host a link was followed on.
    pub(crate) link_hosts: LinkHosts,
    /// State of provider webhooks.
    pub hooks: Hooks,
    /// Consumes direct requests from the bus.
    pub runner: Runner,
    /// Reads untrusted files in processes of their own.
    pub reader: Reader,
    /// The assistant endpoint; none unless the settings name an issuer.
    pub assistant: Option<Arc<mcp::Assistant>>,
}

impl std::fmt::Debug for Ingress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ingress").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl Ingress {
    /// Puts the state together; touches neither network nor database.
    ///
    /// # Errors
    /// [`StartError`] for keys or DNS servers that do not work.
    pub fn new(deps: IngressDeps, settings: Settings) -> Result<Arc<Self>, StartError> {
        let resolver = DnsResolver::new(&DnsSettings {
            servers: settings.outbound.dns_servers.clone(),
            ..DnsSettings::default()
        })?;
        let connections = deps.pool.options().get_max_connections() as usize;
        let settings_by_key = [("statement_timeout", READ_STATEMENT_MAX)];
        let by_key = PreparedPool::with_settings(&deps.pool, connections, &settings_by_key);
        let tasks = TaskTracker::new();
        let admissions = Arc::new(Admissions::start(by_key.priority("admission")));
        let shared = mcp::AssistantDeps {
            pool: deps.pool.clone(),
            rate: Arc::clone(&admissions) as _,
            tasks: tasks.clone(),
            quota: settings.quota,
        };
        // A connection of its own: while all others are busy, Postgres is not away.
        let probed =
            deps.pool.options().clone().max_connections(1).connect_lazy_with((*deps.pool.connect_options()).clone());
        Ok(Arc::new(Self {
            assistant: mcp::Assistant::new(shared, &settings.assistant)?,
            recipient_turns: Shares::new(connections / 2, 1),
            mail_turns: Shares::new(usize::MAX, 1),
            write_turns: Shares::new(usize::MAX, connections / 2),
            import_turns: Shares::new(usize::MAX, (connections / 2).saturating_sub(1)),
            link_hosts: LinkHosts::new(&settings.domain_targets.tracking_target),
            hooks: Hooks::new(&settings.hooks, &settings.outbound)?,
            vault: Vault::new(&deps.master_keys)?,
            tokens: Arc::new(deps.master_keys.tokens()),
            keys: ApiKeys::new(deps.pool.clone()),
            admissions,
            request_log: RequestLog::start(by_key.bulk("request_log")),
            by_key: by_key.bulk("acts"),
            health: HealthProbe::new(probed, deps.bus.clone()),
            pool: deps.pool,
            bus: deps.bus,
            runner: deps.runner,
            reader: deps.reader,
            facts: deps.facts,
            master_keys: deps.master_keys,
            resolver,
            settings,
            tasks,
            reply_inbox: ReplyInbox::new(),
        }))
    }

    /// Its pools, and what metrics call them.
    #[must_use]
    pub fn pools(&self) -> [(&'static str, Watched); 2] {
        [
            (Role::Ingress.as_str(), Watched::Pool(self.pool.clone())),
            ("ingress_by_key", Watched::Kept(self.by_key.clone())),
        ]
    }
}
