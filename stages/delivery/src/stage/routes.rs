//! Provider routes: a tenant's mail goes through its own default connection, else through the platform's relay. While the circuit of
//! the default connection is open, new attempts go through the next of its fallbacks whose circuit is closed. Each route has its own
//! connections and its own circuit breaker. A tenant's route may also use only a share of the workers, and so may the routes of all
//! tenants together, so that tenants' broken providers do not delay other tenants' mail.

use std::{
    borrow::Cow,
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::{Duration, Instant},
};

use moka::future::Cache;
use runner::StageError;
use runtime::{
    Vault,
    db::{ANSWER_TIMEOUT, within},
};
use schemas::{Environment, Lane, Rendered};
use secrecy::SecretString;
use sqlx::PgPool;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use uuid::Uuid;

use super::{
    attachments::memory_of_connection,
    circuit_breaker::{CircuitBreaker, CircuitReport},
    on_bus::{self, WaitingOnBus},
    prepare,
};
use crate::provider::{
    self, BrokenConnection, ClientSettings, Connection, ConnectionFault, ConnectionSettings, HostPolicy,
    PROVIDER_PURPOSE, PingFault, Provider, ProviderKind, SlotLimiter,
};
use smtp::Pool;

/// How long a tenant's route is cached. A disabled connection takes no more mail after this time.
const CHOICE_LIFE: Duration = Duration::from_secs(5);
/// Tenants whose route is cached.
const CHOICES: u64 = 50_000;
/// Tenant connections kept open, and for how long after their last mail.
const CONNECTIONS: u64 = 1_000;
const CONNECTION_IDLE: Duration = Duration::from_secs(600);
/// How long a circuit breaker is kept after it was last asked: longer than an open connection, and than any pause.
const BREAKER_IDLE: Duration = Duration::from_secs(3600);
/// When a batch is tried again whose connection already uses all the workers it may use, or all connections do.
pub(super) const WORKER_WAIT: Duration = Duration::from_secs(3);
/// Wait before a send is tried again that another route of its tenant can take.
const FALLBACK_WAIT: Duration = Duration::from_secs(1);

/// A provider in one lane, with its circuit breaker and its worker limit.
#[derive(Clone)]
pub(crate) struct ProviderRoute {
    pub provider: Arc<dyn Provider>,
    pub breaker: Arc<CircuitBreaker>,
    /// The version of a tenant's connection, so that mail in doubt is seen to have another route; `None`: the platform's.
    pub id: Option<Uuid>,
    /// A tenant's connection; `None` for the platform's.
    pub connection: Option<Uuid>,
    /// The tenant of a connection, and the connections it was chosen from.
    chosen_from: Option<(Uuid, Connections)>,
    /// The rate limit of the account, over both lanes, if it has one.
    pub limiter: Option<Arc<SlotLimiter>>,
    /// Limits the workers that use the route at once; `None`: no limit.
    worker_limits: Option<WorkerLimits>,
    /// Limits the mails of its lane that are in memory as a whole, over all workers: from splicing until they are transmitted.
    pub in_memory: Option<Arc<Semaphore>>,
    /// Limits the memory of its messages with attachments, over both lanes; `None`: the platform's.
    pub attachment_memory: Option<Arc<Semaphore>>,
    /// The circuit breakers of the tenant's other routes.
    others: Arc<[Arc<CircuitBreaker>]>,
}

/// The workers of a lane that tenants' routes may use at once.
#[derive(Debug, Clone)]
struct WorkerLimits {
    /// One tenant's connection.
    own: Arc<Semaphore>,
    /// All of them.
    all: Arc<Semaphore>,
}

/// A connection's permit to use a worker, until its last send there is done: other connections' sends may keep the worker for longer.
#[derive(Debug)]
pub(crate) struct WorkerPermit {
    _own: OwnedSemaphorePermit,
    /// That of all connections together: the worker is one, whatever the number of connections it uses.
    _all: Arc<OwnedSemaphorePermit>,
}

/// The permits of one worker, while messages are admitted.
#[derive(Debug, Default)]
struct WorkerPermits {
    of_connections: HashMap<Uuid, Arc<WorkerPermit>>,
    all: Option<Arc<OwnedSemaphorePermit>>,
}

/// Its batch.
fn key_of(input: &&Rendered) -> (Uuid, Uuid) {
    (input.tenant_id, input.batch_id)
}

/// Why a message may not go now.
#[derive(Debug, Clone, Copy)]
enum NotAdmitted {
    /// The circuit of its route is open for this long.
    CircuitOpen(Duration),
    /// Its connection, or all of them, use all the workers they may use.
    NoWorker,
}

/// The routes of both lanes. They share no connections, so a campaign cannot delay a password reset.
#[derive(Clone)]
struct LaneRoutes {
    bulk: ProviderRoute,
    priority: ProviderRoute,
}

impl LaneRoutes {
    /// One route, with its concurrency limits, for both lanes.
    fn new(bulk: ProviderRoute, priority: ProviderRoute, in_memory: usize) -> Self {
        // A chunk of mails waits until all of it may be there. Prompt mail waits for none: a group of it is small, and the limit is made
        // for the connections of the bulk lane.
        let limit = Semaphore::new(in_memory.max(prepare::CHUNK));
        Self { bulk: ProviderRoute { in_memory: Some(Arc::new(limit)), ..bulk }, priority }
    }

    fn of(&self, lane: Lane) -> &ProviderRoute {
        match lane {
            Lane::Bulk => &self.bulk,
            Lane::Priority => &self.priority,
        }
    }
}

/// Where a tenant's mail goes.
#[derive(Debug, Clone, PartialEq, Eq)]
enum RouteChoice {
    /// The sandbox captures it.
    Sandbox,
    /// Through the platform's relay.
    Platform,
    /// Through the first of the tenant's own connections that serves.
    Own(Connections),
}

/// A tenant's connections in their order, each with its version.
type Connections = Arc<[(Uuid, Uuid)]>;

/// Settings of tenants' routes.
#[derive(Debug, Clone)]
pub(crate) struct RouteSettings {
    pub client: ClientSettings,
    pub host_policy: HostPolicy,
    /// Workers of the bulk and the priority lane that one tenant's connection may use at once.
    pub workers: [usize; 2],
    /// Workers of the bulk and the priority lane that the connections of all tenants may use at once.
    pub workers_of_all: [usize; 2],
    /// Campaign mails of one route in memory at once.
    pub in_memory: usize,
}

/// A tenant's connection with these settings and this secret: tenant, connection, `provider_connections.version`.
pub(super) type ConnectionVersion = (Uuid, Uuid, Uuid);

/// Finds the route of each message.
pub(crate) struct ProviderRoutes {
    pool: PgPool,
    vault: Arc<Vault>,
    route_settings: RouteSettings,
    /// Limits the workers of the bulk and the priority lane that use tenants' connections at once.
    all_connections: [Arc<Semaphore>; 2],
    on_bus: WaitingOnBus,
    platform: LaneRoutes,
    sandbox: LaneRoutes,
    choices: Cache<Uuid, RouteChoice>,
    connections: Cache<ConnectionVersion, Arc<LaneRoutes>>,
    breakers: Cache<ConnectionVersion, Arc<CircuitBreaker>>,
}

/// The messages that may go now, and their routes.
pub(crate) struct AdmittedMessages<'a> {
    pub inputs: Cow<'a, [Rendered]>,
    /// One route for each input.
    pub routes: Vec<ProviderRoute>,
    /// The permit of each input's route, if it needs one: its sends keep it.
    pub workers: Vec<Option<Arc<WorkerPermit>>>,
}

impl ProviderRoutes {
    pub fn new(pool: PgPool, vault: Arc<Vault>, platform: [Pool; 2], route_settings: RouteSettings) -> Self {
        let breaker = Arc::new(CircuitBreaker::default());
        let [bulk, priority] = platform.map(|relay| ProviderRoute::new(Arc::new(relay), breaker.clone()));
        // A sandbox tenant's mail never reaches a provider. This one refuses everything, in case it does.
        let nowhere = ProviderRoute::new(Arc::new(BrokenConnection(ProviderKind::Smtp)), Arc::default());
        Self {
            platform: LaneRoutes::new(bulk, priority, route_settings.in_memory),
            sandbox: LaneRoutes::new(nowhere.clone(), nowhere, route_settings.in_memory),
            pool,
            vault,
            all_connections: route_settings.workers_of_all.map(|workers| Arc::new(Semaphore::new(workers))),
            on_bus: WaitingOnBus::default(),
            route_settings,
            choices: Cache::builder().max_capacity(CHOICES).time_to_live(CHOICE_LIFE).build(),
            connections: Cache::builder().max_capacity(CONNECTIONS).time_to_idle(CONNECTION_IDLE).build(),
            breakers: Cache::builder().time_to_idle(BREAKER_IDLE).build(),
        }
    }

    /// Takes out the messages whose route is unavailable, and postpones their batches until it may be tried again.
    ///
    /// # Errors
    /// [`StageError::Busy`] if all of them only wait for a worker: they are rendered and stay on the bus.
    pub async fn admit<'a>(&self, inputs: &'a [Rendered]) -> Result<AdmittedMessages<'a>, StageError> {
        let (mut routes, mut going) = (Vec::with_capacity(inputs.len()), Vec::new());
        let (mut workers, mut permits) = (Vec::with_capacity(inputs.len()), WorkerPermits::default());
        let mut waiting: BTreeMap<Duration, Vec<&Rendered>> = BTreeMap::new();
        let mut busy = Vec::new();
        for input in inputs {
            let route = self.find_route(input.tenant_id, input.lane).await?;
            match route.take_worker(&mut permits) {
                Ok(worker) => {
                    routes.push(route);
                    workers.push(worker);
                    going.push(input);
                }
                Err(NotAdmitted::CircuitOpen(wait)) => waiting.entry(wait).or_default().push(input),
                Err(NotAdmitted::NoWorker) => busy.push(input),
            }
        }
        if !busy.is_empty() {
            if busy.len() == inputs.len()
                && let Some(new) = self.on_bus.enter(&busy, Instant::now())
            {
                if !new.is_empty() {
                    // They are not announced and rendered again meanwhile.
                    let put_off =
                        ledger::owed::postpone(&self.pool, new.iter().map(key_of), on_bus::ANNOUNCED_AGAIN * 2).await;
                    put_off.inspect_err(|_| self.on_bus.leave(new.iter().copied()))?;
                }
                return Err(StageError::Busy { reason: "connection_busy", wait: WORKER_WAIT });
            }
            waiting.entry(WORKER_WAIT).or_default().extend(busy);
        }
        self.on_bus.leave(inputs);
        for (wait, inputs) in &waiting {
            ledger::owed::postpone(&self.pool, inputs.iter().map(key_of), *wait).await?;
        }
        let inputs = match waiting.is_empty() {
            true => Cow::Borrowed(inputs),
            false => Cow::Owned(going.into_iter().cloned().collect()),
        };
        Ok(AdmittedMessages { inputs, routes, workers })
    }

    async fn find_route(&self, tenant: Uuid, lane: Lane) -> Result<ProviderRoute, StageError> {
        let route = match self.choose_route(tenant).await? {
            RouteChoice::Sandbox => self.sandbox.of(lane).clone(),
            RouteChoice::Platform => self.platform.of(lane).clone(),
            RouteChoice::Own(connections) => {
                let mut breakers = Vec::with_capacity(connections.len());
                for (id, version) in connections.iter() {
                    breakers.push(self.breaker((tenant, *id, *version)).await);
                }
                let waits: Vec<Option<Duration>> = breakers.iter().map(|breaker| breaker.remaining()).collect();
                let chosen = choose_route(&waits).ok_or_else(|| StageError::rejected("unknown_tenant", tenant))?;
                // Only this one is opened.
                let (id, version) = connections[chosen];
                let breaker = breakers.remove(chosen);
                let lanes = self.tenant_lanes((tenant, id, version), &breaker).await?;
                let chosen_from = Some((tenant, connections));
                ProviderRoute { others: breakers.into(), chosen_from, ..lanes.of(lane).clone() }
            }
        };
        Ok(route)
    }

    /// True if mail may still take a route that was found a while ago. The tenant may have disabled, changed or ordered its connections
    /// since. False also if Postgres does not say.
    pub async fn is_current(&self, route: &ProviderRoute) -> bool {
        let Some((tenant, connections)) = &route.chosen_from else { return true };
        // Boxed, because mail of the platform's relay has no use for it. One mail asks Postgres for all that wait for the answer.
        let read = within(ANSWER_TIMEOUT, self.read_choice(*tenant));
        let asked = Box::pin(self.choices.try_get_with(*tenant, read));
        matches!(asked.await, Ok(RouteChoice::Own(now)) if now == *connections)
    }

    async fn choose_route(&self, tenant: Uuid) -> Result<RouteChoice, StageError> {
        if let Some(choice) = self.choices.get(&tenant).await {
            return Ok(choice);
        }
        let choice = self.read_choice(tenant).await?;
        self.choices.insert(tenant, choice.clone()).await;
        Ok(choice)
    }

    async fn read_choice(&self, tenant: Uuid) -> Result<RouteChoice, StageError> {
        let row = sqlx::query!(
            r#"select t.environment as "environment: Environment", c.ids as "connections?", c.versions as "versions?"
               from tenants t
               left join lateral (
                   select array_agg(p.id order by p.fallback_rank nulls first) as ids,
                          array_agg(p.version order by p.fallback_rank nulls first) as versions
                   from own_routes p where p.tenant_id = t.id
               ) c on true
               where t.id = $1"#,
            tenant
        )
        .fetch_optional(&self.pool)
        .await?
        .ok_or_else(|| StageError::rejected("unknown_tenant", tenant))?;
        let own = row.connections.unwrap_or_default().into_iter().zip(row.versions.unwrap_or_default());
        let own: Connections = own.collect();
        Ok(match row.environment {
            Environment::Sandbox => RouteChoice::Sandbox,
            Environment::Production if !own.is_empty() => RouteChoice::Own(own),
            Environment::Production => RouteChoice::Platform,
        })
    }

    /// The circuit breaker of a version of a tenant's connection. It outlives the open connection: a provider that fails is left alone also
    /// when many other connections are in use.
    async fn breaker(&self, key: ConnectionVersion) -> Arc<CircuitBreaker> {
        self.breakers.get_with(key, async { Arc::new(CircuitBreaker::of_connection(key.1)) }).await
    }

    /// The routes of a tenant's connection. They are opened once for each version of the connection.
    async fn tenant_lanes(
        &self,
        key: ConnectionVersion,
        breaker: &Arc<CircuitBreaker>,
    ) -> Result<Arc<LaneRoutes>, StageError> {
        let (tenant, id, version) = key;
        if let Some(lanes) = self.connections.get(&key).await {
            return Ok(lanes);
        }
        let row = sqlx::query!(
            "select provider, settings, secret from provider_connections where tenant_id = $1 and id = $2 and version = $3",
            tenant,
            id,
            version
        )
        .fetch_optional(&self.pool)
        .await?;
        let Some(row) = row else {
            // Removed or changed since the tenant's routes were read.
            self.choices.invalidate(&tenant).await;
            return Err(StageError::Unavailable { reason: "connection_changed" });
        };
        // Several workers may have read it. One of them opens it, so that the account has one rate limit and one share of everything.
        let open = async { Arc::new(self.open(key, breaker, &row.provider, row.settings, &row.secret)) };
        Ok(self.connections.get_with(key, open).await)
    }

    /// Opens a connection in both lanes.
    fn open(
        &self,
        (tenant, id, version): ConnectionVersion,
        breaker: &Arc<CircuitBreaker>,
        provider: &str,
        settings: serde_json::Value,
        secret: &[u8],
    ) -> LaneRoutes {
        let kind = ProviderKind::parse(provider).unwrap_or(ProviderKind::Smtp);
        let connection = self.connection(tenant, kind, settings, secret);
        if connection.is_none() {
            tracing::error!(stage = "delivery", connection = %id, "the connection's settings or secret cannot be read");
        }
        let open = || {
            let RouteSettings { client, host_policy, .. } = &self.route_settings;
            Some(provider::open(connection.as_ref()?, client, host_policy))
        };
        // Both have the same settings, so neither can be opened if one cannot.
        let [bulk, priority] = [open(), open()];
        if let Some(Err(fault)) = &bulk {
            tracing::error!(stage = "delivery", connection = %id, error = %fault, "the connection cannot be opened");
        }
        let max_per_second = connection.as_ref().and_then(|connection| connection.settings.max_per_second);
        let limiter = max_per_second.map(|rate| Arc::new(SlotLimiter::new(rate)));
        let attachment_memory = memory_of_connection();
        let route = |lane: usize, opened: Option<Result<Box<dyn Provider>, ConnectionFault>>| {
            let opened = opened.and_then(Result::ok);
            // One that cannot be opened refuses at once.
            let limiter = limiter.clone().filter(|_| opened.is_some());
            let provider = opened.unwrap_or_else(|| Box::new(BrokenConnection(kind)));
            let own = Arc::new(Semaphore::new(self.route_settings.workers[lane].max(1)));
            ProviderRoute {
                id: Some(version),
                connection: Some(id),
                limiter,
                worker_limits: Some(WorkerLimits { own, all: self.all_connections[lane].clone() }),
                attachment_memory: Some(attachment_memory.clone()),
                ..ProviderRoute::new(Arc::from(provider), breaker.clone())
            }
        };
        LaneRoutes::new(route(0, bulk), route(1, priority), self.route_settings.in_memory)
    }

    /// Connects to the provider of a tenant's connection and authenticates, also while its circuit is open.
    ///
    /// # Errors
    /// If Postgres is unavailable. What the provider says is the answer.
    pub async fn ping(&self, key: ConnectionVersion) -> Result<Result<(), PingFault>, StageError> {
        let breaker = self.breaker(key).await;
        Ok(self.tenant_lanes(key, &breaker).await?.priority.provider.ping().await)
    }

    /// What is new of the circuits of tenants' connections, each with the circuit breaker that is to know when it is stored.
    pub fn new_reports(&self) -> Vec<(ConnectionVersion, Arc<CircuitBreaker>, CircuitReport)> {
        let new = self.breakers.iter().filter_map(|(key, breaker)| {
            let report = breaker.new_report()?;
            Some((*key, breaker, report))
        });
        new.collect()
    }

    /// The circuit breaker of the platform's relay.
    #[cfg(test)]
    pub fn platform_breaker(&self) -> &CircuitBreaker {
        &self.platform.bulk.breaker
    }

    /// Drops what is known of tenants' connections, as time would.
    #[cfg(test)]
    pub fn drop_choices(&self) {
        self.choices.invalidate_all();
    }

    /// Drops the open connections, as when others take their places; answers how many there were.
    #[cfg(test)]
    pub async fn drop_connections(&self) -> u64 {
        self.connections.run_pending_tasks().await;
        let open = self.connections.entry_count();
        self.connections.invalidate_all();
        open
    }

    fn connection(
        &self,
        tenant: Uuid,
        kind: ProviderKind,
        settings: serde_json::Value,
        sealed: &[u8],
    ) -> Option<Connection> {
        let settings: ConnectionSettings = serde_json::from_value(settings).ok()?;
        let secret = self.vault.open(tenant, PROVIDER_PURPOSE, sealed).ok()?;
        Some(Connection { kind, settings, secret: SecretString::from(String::from_utf8(secret).ok()?) })
    }
}

/// Which of a tenant's routes takes new attempts: the first whose circuit is closed (`None`). While all are open, the one that is tried
/// again first.
fn choose_route(waits: &[Option<Duration>]) -> Option<usize> {
    let soonest = || (0..waits.len()).min_by_key(|place| waits[*place]);
    waits.iter().position(Option::is_none).or_else(soonest)
}

impl ProviderRoute {
    /// A route without an id or limits, as the platform's.
    fn new(provider: Arc<dyn Provider>, breaker: Arc<CircuitBreaker>) -> Self {
        Self {
            provider,
            breaker,
            id: None,
            connection: None,
            chosen_from: None,
            limiter: None,
            worker_limits: None,
            in_memory: None,
            attachment_memory: None,
            others: Arc::default(),
        }
    }

    /// True for the platform's relay.
    pub fn is_platform(&self) -> bool {
        self.connection.is_none()
    }

    /// When a send is tried again that this route cannot take for this long: soon, if another route of the tenant can.
    pub fn wait_or_fall_back(&self, wait: Duration) -> Duration {
        let other_serves = self.others.iter().any(|other| other.remaining().is_none());
        if other_serves { wait.min(FALLBACK_WAIT) } else { wait }
    }

    /// Lets a message go through this route now, with its permit to use a worker if it needs one.
    fn take_worker(&self, permits: &mut WorkerPermits) -> Result<Option<Arc<WorkerPermit>>, NotAdmitted> {
        if let Some(wait) = self.breaker.remaining() {
            return Err(NotAdmitted::CircuitOpen(wait));
        }
        let (Some(id), Some(limits)) = (self.connection, &self.worker_limits) else { return Ok(None) };
        if let Some(permit) = permits.of_connections.get(&id) {
            return Ok(Some(permit.clone()));
        }
        let take = |limit: &Arc<Semaphore>| limit.clone().try_acquire_owned().map_err(|_| NotAdmitted::NoWorker);
        let own = take(&limits.own)?;
        let all = match &permits.all {
            Some(all) => all.clone(),
            None => permits.all.insert(Arc::new(take(&limits.all)?)).clone(),
        };
        let permit = Arc::new(WorkerPermit { _own: own, _all: all });
        permits.of_connections.insert(id, permit.clone());
        Ok(Some(permit))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::none(&[], None)]
    #[case::closed(&[None], Some(0))]
    #[case::the_only_one_is_open(&[Some(9)], Some(0))]
    #[case::the_first_serves(&[None, None, None], Some(0))]
    #[case::the_first_is_open(&[Some(9), None, None], Some(1))]
    #[case::two_are_open(&[Some(9), Some(1), None], Some(2))]
    #[case::back_to_the_first(&[None, Some(9), None], Some(0))]
    #[case::all_are_open(&[Some(9), Some(2), Some(5)], Some(1))]
    #[case::all_are_open_as_long(&[Some(2), Some(2)], Some(0))]
    fn the_first_route_with_a_closed_circuit_takes_new_attempts(
        #[case] waits: &[Option<u64>],
        #[case] expected: Option<usize>,
    ) {
        let waits: Vec<Option<Duration>> = waits.iter().map(|wait| wait.map(Duration::from_secs)).collect();
        assert_eq!(choose_route(&waits), expected);
    }
}
