//! What the tests of a stage stand on: a database and a stream prefix of their own, rows to work on, and the books checked.
#![allow(clippy::unwrap_used, missing_docs)]

pub mod dns;
mod plan;
pub mod receiver;
pub mod recount;
mod seed;
mod wait;

use std::sync::Arc;

use async_nats::jetstream::{context::CreateStreamErrorKind, message::StreamMessage, stream::Config};
use clap::{Args, Command};
use devtools::servers::TestDatabase;
use runner::{Deps, Runner};
use runtime::{
    Bus, CommitNotifier, Database, MasterKeys, Outbound, OutboundSettings, Publication, Reader, Role, Vault,
    plans::PreparedPool,
    streams::{STREAMS, StreamSpec},
};
use schemas::{
    messages::Message,
    subjects::{header, stream},
};
use sqlx::PgPool;
use tokio_util::sync::CancellationToken;

pub use plan::{rows_in_vain, scans};
pub use seed::{Person, Tenant};
pub use wait::until;

/// Runs a statement with these parameters.
#[macro_export]
macro_rules! run {
    ($db:expr, $sql:expr, [$($value:expr),* $(,)?] $(,)?) => {
        sqlx::query($sql)$(.bind($value))*.execute($db).await.unwrap()
    };
}

const STREAM_BYTES: i64 = 16 * 1024 * 1024;

/// A database and streams for one test.
pub struct Rig {
    /// In the stages' role.
    pub pool: PgPool,
    pub bus: Bus,
    pub database: TestDatabase,
    shutdown: CancellationToken,
}

/// A message set aside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dead {
    pub reason: String,
    pub subject: String,
}

/// Makes a stream of the table, of this size. The server may take its time when many tests begin at once; what it did meanwhile stands.
pub async fn make_stream(bus: &Bus, spec: &StreamSpec, max_bytes: i64) {
    let config = Config { max_bytes, ..spec.config(bus.prefix(), 1) };
    until("the stream to be made", async || match bus.jetstream().create_stream(config.clone()).await {
        Ok(_) => true,
        Err(error) if error.kind() == CreateStreamErrorKind::TimedOut => false,
        Err(error) => panic!("{}: {error}", spec.name),
    })
    .await;
}

impl Rig {
    pub async fn new() -> Self {
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let database = TestDatabase::migrated(&runtime::db::MIGRATIONS).await.unwrap();
        let pool = Database::pool(&database.url().into(), Role::Stages, 8).unwrap();
        let prefix = format!("{}_", database.name());
        let bus = Bus::connect(&database.nats_url().to_owned().into(), None, &prefix, 1, "test").await.unwrap();
        // The stream table, each stream small: JetStream sets the bytes aside, and many tests share one server.
        for spec in STREAMS {
            make_stream(&bus, spec, STREAM_BYTES).await;
        }
        Self { pool, bus, database, shutdown: CancellationToken::new() }
    }

    /// What a process gives its stages. Each call is another process: a runner and a pool of its own.
    pub fn process(&self) -> Deps {
        let keys = MasterKeys::parse(&"07".repeat(32)).unwrap();
        let pool = Database::pool(&self.database.url().into(), Role::Stages, 8).unwrap();
        let by_key = PreparedPool::new(&pool, 8);
        let facts = CommitNotifier::start("test", self.bus.clone(), &by_key, self.shutdown.clone());
        Deps {
            runner: Runner::new(self.bus.clone(), facts.clone(), self.shutdown.clone())
                .on_ledger(pool.clone(), &by_key),
            bus: self.bus.clone(),
            by_key,
            pool,
            facts,
            tokens: Arc::new(keys.tokens()),
            vault: Arc::new(Vault::new(&keys).unwrap()),
            outbound: self.outbound(),
            reader: Reader::in_process(),
            shutdown: self.shutdown.clone(),
        }
    }

    /// A client that reaches the receivers of tests: this machine, by plain http.
    #[allow(clippy::unused_self, reason = "a rig's process has a client of its own")]
    pub fn outbound(&self) -> Outbound {
        let here = ["127.0.0.0/8", "::1/128"].map(|network| network.parse().unwrap());
        Outbound::new(&OutboundSettings { webhook_allow_networks: here.to_vec(), ..OutboundSettings::default() })
            .unwrap()
    }

    pub fn ingress_pool(&self) -> PgPool {
        Database::pool(&self.database.url().into(), Role::Ingress, 4).unwrap()
    }

    pub async fn publish(&self, publications: Vec<Publication>) {
        self.bus.publish_all(publications).await.unwrap();
    }

    /// The messages a stream holds, in order.
    pub async fn messages<M: Message>(&self, stream: &str) -> Vec<M> {
        let raw = self.raw(stream).await;
        raw.iter().map(|message| serde_json::from_slice(&message.payload).unwrap()).collect()
    }

    /// How many messages a stream holds; none while it does not exist.
    pub async fn held(&self, stream: &str) -> u64 {
        match self.bus.jetstream().get_stream(self.bus.prefixed(stream)).await {
            Ok(stream) => stream.get_info().await.unwrap().state.messages,
            Err(_) => 0,
        }
    }

    /// The dead letters, in order.
    pub async fn dead(&self) -> Vec<Dead> {
        let dead = |message: &StreamMessage| {
            let text =
                |name: &str| message.headers.get(name).map(|value| value.as_str().to_owned()).unwrap_or_default();
            Dead { reason: text(header::DEAD_REASON), subject: text(header::DEAD_SUBJECT) }
        };
        self.raw(stream::DEAD).await.iter().map(dead).collect()
    }

    async fn raw(&self, name: &str) -> Vec<StreamMessage> {
        let stream = self.bus.jetstream().get_stream(self.bus.prefixed(name)).await.unwrap();
        let state = stream.get_info().await.unwrap().state;
        let mut found = Vec::new();
        for sequence in state.first_sequence..=state.last_sequence {
            // Gone between the two questions: it was acknowledged.
            if let Ok(message) = stream.get_raw_message(sequence).await {
                found.push(message);
            }
        }
        found
    }

    /// Loses the whole stream store, as a failed disk would.
    pub async fn lose_the_streams(&self) {
        for spec in STREAMS {
            self.bus.jetstream().delete_stream(self.bus.prefixed(spec.name)).await.unwrap();
        }
    }

    /// One number from the ledger.
    pub async fn number(&self, query: &'static str) -> i64 {
        sqlx::query_scalar(query).fetch_one(&self.pool).await.unwrap()
    }

    /// How many statements wait for a lock, of whatever role.
    pub async fn statements_waiting(&self) -> i64 {
        // Not the wait events of `pg_stat_activity`, which only a session's own role sees.
        self.number(
            "select count(*) from pg_locks l join pg_stat_activity a using (pid)
             where not l.granted and a.datname = current_database()",
        )
        .await
    }

    /// Every batch's counters equal a recount of its sends.
    pub async fn assert_books(&self) {
        let faults = recount::faults(&self.pool).await.unwrap();
        assert!(faults.is_empty(), "batches off the books: {faults:?}");
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

/// A stage's settings from arguments, as the command line would parse them.
pub fn settings<S: Args>(arguments: &[&str]) -> S {
    let command = S::augment_args(Command::new("test"));
    let matches = command.get_matches_from(["test"].iter().chain(arguments));
    S::from_arg_matches(&matches).unwrap()
}
