//! Which way out a tenant's mail takes: its own default connection, else the platform's relay. Each way has its own
//! connections, its own outage, and, where it is a tenant's, a bounded share of the workers: whatever becomes of one tenant's
//! provider, the others' mail goes on.

use std::{
    borrow::Cow,
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use chrono::{DateTime, Utc};
use moka::future::Cache;
use runner::StageError;
use runtime::Vault;
use schemas::{Environment, Lane, Rendered};
use secrecy::SecretString;
use sqlx::PgPool;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use uuid::Uuid;

use super::outage::Outage;
use crate::provider::{
    Broken, Connection, ConnectionSettings, Guard, PROVIDER_PURPOSE, Provider, ProviderKind, Reach, SmtpProvider,
};

/// How long a choice is kept: a connection that is disabled takes no more mail after this time.
const CHOICE_LIFE: Duration = Duration::from_secs(5);
/// Choices kept.
const CHOICES: u64 = 50_000;
/// Connections kept open, and for how long after their last mail.
const CONNECTIONS: u64 = 1_000;
const CONNECTION_IDLE: Duration = Duration::from_secs(600);
/// When a batch comes again whose connection has all the workers it may have.
const DESK_WAIT: Duration = Duration::from_secs(3);

/// A way out, in one lane.
#[derive(Clone)]
pub(crate) struct Way {
    pub provider: Arc<dyn Provider>,
    pub outage: Arc<Outage>,
    /// A tenant's connection; `None` for the platform's.
    connection: Option<Uuid>,
    /// Workers that may be busy with it at once; `None`: all.
    desks: Option<Arc<Semaphore>>,
}

/// The ways of both lanes: a campaign cannot take the connections of a password reset.
#[derive(Clone)]
struct Lanes {
    bulk: Way,
    priority: Way,
}

impl Lanes {
    fn of(&self, lane: Lane) -> &Way {
        match lane {
            Lane::Bulk => &self.bulk,
            Lane::Priority => &self.priority,
        }
    }
}

/// What a tenant's mail goes through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Choice {
    /// Nothing: it is captured.
    Sandbox,
    /// The platform's relay.
    Platform,
    /// Its own connection, as it was last changed.
    Own(Uuid, DateTime<Utc>),
}

/// What the ways of tenants are made with.
#[derive(Debug, Clone)]
pub(crate) struct Means {
    pub reach: Reach,
    pub guard: Guard,
    /// Workers of each lane that one tenant's connection may keep busy.
    pub desks: [usize; 2],
}

/// Finds the way for each message.
pub(crate) struct Ways {
    pool: PgPool,
    vault: Arc<Vault>,
    means: Means,
    platform: Lanes,
    sandbox: Lanes,
    choices: Cache<Uuid, Choice>,
    connections: Cache<(Uuid, Uuid, DateTime<Utc>), Arc<Lanes>>,
}

/// Messages that may go now.
pub(crate) struct Admitted<'a> {
    pub inputs: Cow<'a, [Rendered]>,
    /// One for each input.
    pub ways: Vec<Way>,
    _desks: HashMap<Uuid, OwnedSemaphorePermit>,
}

impl Ways {
    pub fn new(pool: PgPool, vault: Arc<Vault>, platform: [Arc<SmtpProvider>; 2], means: Means) -> Self {
        let outage = Arc::new(Outage::default());
        let way = |provider: Arc<dyn Provider>, outage: &Arc<Outage>| Way {
            provider,
            outage: outage.clone(),
            connection: None,
            desks: None,
        };
        let [bulk, priority] = platform;
        // Nothing of a sandbox tenant ever gets here; if it did, it would go nowhere.
        let nowhere = way(Arc::new(Broken(ProviderKind::Smtp)), &Arc::new(Outage::default()));
        Self {
            pool,
            vault,
            means,
            platform: Lanes { bulk: way(bulk, &outage), priority: way(priority, &outage) },
            sandbox: Lanes { bulk: nowhere.clone(), priority: nowhere },
            choices: Cache::builder().max_capacity(CHOICES).time_to_live(CHOICE_LIFE).build(),
            connections: Cache::builder().max_capacity(CONNECTIONS).time_to_idle(CONNECTION_IDLE).build(),
        }
    }

    /// Sorts out the messages whose way rests: their batches are announced again when it may serve.
    ///
    /// # Errors
    /// When Postgres is away.
    pub async fn admit<'a>(&self, inputs: &'a [Rendered]) -> Result<Admitted<'a>, StageError> {
        let (mut ways, mut going, mut desks) = (Vec::with_capacity(inputs.len()), Vec::new(), HashMap::new());
        let mut resting: BTreeMap<Duration, Vec<&Rendered>> = BTreeMap::new();
        for input in inputs {
            let way = self.way(input.tenant_id, input.lane).await?;
            match way.rest(&mut desks) {
                Some(wait) => resting.entry(wait).or_default().push(input),
                None => {
                    ways.push(way);
                    going.push(input);
                }
            }
        }
        for (wait, inputs) in &resting {
            ledger::claim::postpone(&self.pool, inputs, *wait).await?;
        }
        let inputs = match resting.is_empty() {
            true => Cow::Borrowed(inputs),
            false => Cow::Owned(going.into_iter().cloned().collect()),
        };
        Ok(Admitted { inputs, ways, _desks: desks })
    }

    async fn way(&self, tenant: Uuid, lane: Lane) -> Result<Way, StageError> {
        let way = match self.choice(tenant).await? {
            Choice::Sandbox => self.sandbox.of(lane).clone(),
            Choice::Platform => self.platform.of(lane).clone(),
            Choice::Own(id, changed_at) => self.own(tenant, id, changed_at).await?.of(lane).clone(),
        };
        Ok(way)
    }

    async fn choice(&self, tenant: Uuid) -> Result<Choice, StageError> {
        if let Some(choice) = self.choices.get(&tenant).await {
            return Ok(choice);
        }
        let row = sqlx::query!(
            r#"select t.environment as "environment: Environment", c.id as "connection?", c.updated_at as "updated_at?"
               from tenants t
               left join provider_connections c on c.tenant_id = t.id and c.is_default and c.status = 'active'
               where t.id = $1"#,
            tenant
        )
        .fetch_optional(&self.pool)
        .await?
        .ok_or_else(|| StageError::rejected("unknown_tenant", tenant))?;
        let choice = match (row.environment, row.connection, row.updated_at) {
            (Environment::Sandbox, ..) => Choice::Sandbox,
            (Environment::Production, Some(id), Some(changed_at)) => Choice::Own(id, changed_at),
            _ => Choice::Platform,
        };
        self.choices.insert(tenant, choice).await;
        Ok(choice)
    }

    /// A tenant's connection, opened once for as long as it is not changed.
    async fn own(&self, tenant: Uuid, id: Uuid, changed_at: DateTime<Utc>) -> Result<Arc<Lanes>, StageError> {
        let key = (tenant, id, changed_at);
        if let Some(lanes) = self.connections.get(&key).await {
            return Ok(lanes);
        }
        let row = sqlx::query!(
            "select provider, settings, secret from provider_connections where tenant_id = $1 and id = $2",
            tenant,
            id
        )
        .fetch_one(&self.pool)
        .await?;
        let kind = ProviderKind::parse(&row.provider).unwrap_or(ProviderKind::Smtp);
        let outage = Arc::new(Outage::of(id));
        let lanes = match self.connection(tenant, kind, row.settings, &row.secret) {
            Some(connection) => self.open(&connection, id, &outage),
            None => {
                tracing::error!(stage = "delivery", connection = %id, "the connection's settings or secret cannot be read");
                let way = way_of(Arc::new(Broken(kind)), id, &outage, 1);
                Lanes { bulk: way.clone(), priority: way }
            }
        };
        let lanes = Arc::new(lanes);
        self.connections.insert(key, lanes.clone()).await;
        Ok(lanes)
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

    fn open(&self, connection: &Connection, id: Uuid, outage: &Arc<Outage>) -> Lanes {
        let [bulk, priority] = connection.open(&self.means.reach, &self.means.guard).unwrap_or_else(|fault| {
            tracing::error!(stage = "delivery", connection = %id, error = %fault, "the connection cannot be opened");
            [Box::new(Broken(connection.kind)), Box::new(Broken(connection.kind))]
        });
        let way = |provider: Box<dyn Provider>, desks| way_of(Arc::from(provider), id, outage, desks);
        Lanes { bulk: way(bulk, self.means.desks[0]), priority: way(priority, self.means.desks[1]) }
    }
}

fn way_of(provider: Arc<dyn Provider>, id: Uuid, outage: &Arc<Outage>, desks: usize) -> Way {
    let desks = Some(Arc::new(Semaphore::new(desks.max(1))));
    Way { provider, outage: outage.clone(), connection: Some(id), desks }
}

impl Way {
    /// Whether it is the platform's own.
    pub fn is_platform(&self) -> bool {
        self.connection.is_none()
    }

    /// Why a message must wait; `None`: it may go, and has its place among the workers until `desks` is dropped.
    fn rest(&self, desks: &mut HashMap<Uuid, OwnedSemaphorePermit>) -> Option<Duration> {
        if let Some(wait) = self.outage.remaining() {
            return Some(wait);
        }
        let (Some(id), Some(limit)) = (self.connection, &self.desks) else { return None };
        if desks.contains_key(&id) {
            return None;
        }
        match limit.clone().try_acquire_owned() {
            Ok(permit) => {
                desks.insert(id, permit);
                None
            }
            Err(_) => Some(DESK_WAIT),
        }
    }
}
