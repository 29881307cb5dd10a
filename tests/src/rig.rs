//! A whole installation of one test: servers, a database, the sink, the seeded demo tenant, processes started at will.

use std::{collections::BTreeMap, path::Path, time::Duration};

use devtools::servers::{ServerOptions, Servers, TestDatabase};
use runtime::StageName;
use secrecy::SecretString;
use serde_json::{Value, json};
use sqlx::PgPool;
use tempfile::TempDir;
use uuid::Uuid;

use crate::{
    Client, eventually, ledger,
    process::{self, Process},
    sink::SinkClient,
};

/// Every stage, as `postrider stage` names it.
pub const STAGES: [&str; StageName::NAMES.len()] = *StageName::NAMES.first_chunk().unwrap();

/// Clicks that come within seconds of the mail, and without a person's browser, are a scanner's.
pub const BROWSER: &str = "Mozilla/5.0 (Windows NT 10.0; Win64; x64; rv:128.0) Gecko/20100101 Firefox/128.0";

pub struct Rig {
    /// Processes by name; dropped (killed) first.
    pub processes: BTreeMap<String, Process>,
    /// The sink's questions.
    pub sink: SinkClient,
    pub sink_process: Process,
    /// A superuser's pool: row security does not bind it.
    pub pool: PgPool,
    /// A caller with every scope.
    pub client: Client,
    pub sender_id: Uuid,
    pub engine_tenant_id: Uuid,
    /// The settings processes are started with.
    pub env: BTreeMap<String, String>,
    /// Where the ingress is, or will be.
    pub base_url: String,
    servers: Option<Servers>,
    /// On shared servers. After the processes, which are connected to it.
    _database: Option<TestDatabase>,
    dir: TempDir,
}

impl Rig {
    /// On the servers the test run shares, with a database and a stream prefix of its own.
    pub async fn shared() -> Self {
        let database = TestDatabase::migrated(&runtime::db::MIGRATIONS).await.unwrap();
        let prefix = format!("{}_", database.name());
        let rig = Self::build(None, database.nats_url().to_owned(), database.url(), prefix).await;
        Self { _database: Some(database), ..rig }
    }

    /// On servers of its own, for tests that break them. They outlive a killed server and no power cut.
    pub async fn private() -> Self {
        Self::on(&ServerOptions::unsynced()).await
    }

    /// On servers of its own that wait for the disk as in production, for benchmarks.
    pub async fn measured() -> Self {
        Self::on(&ServerOptions::ephemeral()).await
    }

    async fn on(options: &ServerOptions) -> Self {
        let servers = Servers::start(options).await.unwrap();
        servers.postgres().create_database("postrider").await.unwrap();
        let (nats_url, database_url) = (servers.nats_url(), servers.postgres().local_database_url("postrider"));
        runtime::Database::migrate(&SecretString::from(database_url.clone())).await.unwrap();
        Self::build(Some(servers), nats_url, database_url, String::new()).await
    }

    async fn build(servers: Option<Servers>, nats_url: String, database_url: String, prefix: String) -> Self {
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let dir = TempDir::new().unwrap();
        let port = devtools::servers::free_port();
        let base_url = format!("http://127.0.0.1:{port}");
        let mut env: BTreeMap<String, String> = BTreeMap::new();
        let mut set = |name: &str, value: &str| {
            env.insert(format!("POSTRIDER_{name}"), value.to_owned());
        };
        set("DATABASE_URL", &database_url);
        let seeded: Value = serde_json::from_str(&process::run(
            &["seed", "--data-dir", dir.path().to_str().unwrap(), "--database-url", &database_url],
            &BTreeMap::new(),
        ))
        .unwrap();
        set("NATS_URL", &nats_url);
        set("STREAM_PREFIX", &prefix);
        set("MASTER_KEY", seeded["master_key"].as_str().unwrap());
        set("HTTP_ADDR", &format!("127.0.0.1:{port}"));
        set("PUBLIC_URL", &base_url);
        set("RETURN_PATH_TARGET", "return.postrider.test");
        set("SPF_INCLUDE", "spf.postrider.test");
        set("TRACKING_TARGET", "link.postrider.test");
        set("RATE_LIMIT_PER_MINUTE", "0");
        let mut sink_process = Process::start("sink", &["sink"], &BTreeMap::new(), dir.path());
        let addresses = sink_process.addresses().await;
        set("SMTP_URL", &format!("smtp://{}", addresses["smtp_addr"].as_str().unwrap()));
        let client = Client::new(&base_url, "demo", "production", seeded["live_key"].as_str().unwrap(), "demo-tenant");
        let pool = PgPool::connect(&database_url).await.unwrap();
        let id = |name: &str| seeded[name].as_str().unwrap().parse().unwrap();
        Self {
            processes: BTreeMap::new(),
            sink: SinkClient::new(addresses["http_addr"].as_str().unwrap()),
            sink_process,
            pool,
            client,
            sender_id: id("sender_id"),
            engine_tenant_id: id("engine_tenant_id"),
            env,
            base_url,
            servers,
            _database: None,
            dir,
        }
    }

    pub fn servers(&self) -> &Servers {
        self.servers.as_ref().expect("this rig is on shared servers")
    }

    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// The settings an operator's commands need.
    pub fn operator_env(&self) -> BTreeMap<String, String> {
        ["DATABASE_URL", "NATS_URL", "STREAM_PREFIX"]
            .iter()
            .map(|name| format!("POSTRIDER_{name}"))
            .map(|name| (name.clone(), self.env[&name].clone()))
            .collect()
    }

    /// Changes a setting of processes started from now on.
    #[must_use]
    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.env.insert(format!("POSTRIDER_{name}"), value.to_owned());
        self
    }

    /// Starts ingress and all stages in one process.
    pub async fn start_all(&mut self) {
        self.start("all", &["all"]).await;
    }

    /// Starts the ingress and each stage in a process of its own.
    pub async fn start_separate(&mut self) {
        self.start("ingress", &["ingress"]).await;
        for stage in STAGES {
            self.start(stage, &["stage", stage]).await;
        }
    }

    /// Starts one process and waits until it is ready.
    pub async fn start(&mut self, name: &str, args: &[&str]) -> Value {
        let mut process = Process::start(name, args, &self.env, self.dir.path());
        let addresses = process.addresses().await;
        self.processes.insert(name.to_owned(), process);
        addresses
    }

    /// `kill -9` of one process.
    pub fn kill9(&mut self, name: &str) {
        self.processes.remove(name).expect("no such process").kill9();
    }

    /// Makes `count` contacts `<prefix>-<n>@<domain>` on a new list through imports; answers the list and the addresses.
    pub async fn list_of(&self, count: usize, prefix: &str, domain: &str) -> (Uuid, Vec<String>) {
        let name = format!("{prefix}-{:08x}", rand::random::<u32>());
        let addresses: Vec<String> = (0..count).map(|n| format!("{prefix}-{n}@{domain}")).collect();
        for part in addresses.chunks(50_000) {
            let mut csv = String::from("email,first_name,last_name,company,list\n");
            for (n, address) in part.iter().enumerate() {
                csv.push_str(&format!("{address},First{n},Last{n},Company {n},{name}\n"));
            }
            let answer = self.client.post("/v1/imports", json!({"csv": csv})).await.expect(200);
            assert_eq!(answer["counts"]["invalid"], 0, "{answer}");
        }
        (self.list_id(&name).await, addresses)
    }

    pub async fn number(&self, sql: &'static str) -> i64 {
        sqlx::query_scalar(sql).fetch_one(&self.pool).await.unwrap()
    }

    /// Makes something by a call that answers 201; answers its id, which is in this field.
    pub async fn made(&self, path: &str, body: Value, id: &str) -> String {
        self.client.post(path, body).await.expect(201)[id].as_str().unwrap().to_owned()
    }

    pub async fn transactional_template(&self) -> String {
        let body = json!({"name": "T", "template_type": "transactional", "subject": "T", "body_html": "<p>T</p>"});
        self.made("/v1/templates", body, "template_id").await
    }

    /// Follows the link in the mail to an address, as a browser would.
    pub async fn click(&self, address: &str) {
        let messages = self.sink.messages_to(address).await;
        let html = messages[0]["html"].as_str().unwrap();
        let at = html.find("/t/c/").unwrap();
        let start = html[..at].rfind("http").unwrap();
        let end = html[at..].find('"').map(|end| at + end).unwrap();
        let answer = self.client.http().get(&html[start..end]).header("user-agent", BROWSER).send().await.unwrap();
        assert_eq!(answer.status().as_u16(), 302);
    }

    pub async fn list_id(&self, name: &str) -> Uuid {
        let query = sqlx::query_scalar("select id from audiences where kind = 'list' and name = $1");
        query.bind(name).fetch_one(&self.pool).await.unwrap()
    }

    /// A draft campaign to a list.
    pub async fn campaign(&self, list: Uuid, subject: &str, html: &str) -> Uuid {
        let body = json!({
            "name": "test", "sender_profile_id": self.sender_id, "audience_mode": "list", "list_id": list,
            "subject": subject, "body_html": html,
        });
        self.made("/v1/campaigns", body, "campaign_id").await.parse().unwrap()
    }

    /// Launches now; answers the launch's answer.
    pub async fn launch(&self, campaign: Uuid) -> Value {
        self.client.post(&format!("/v1/campaigns/{campaign}/launch"), json!({})).await.expect(202)
    }

    pub async fn status(&self, campaign: Uuid, status: &str, within: Duration) {
        let what = format!("campaign {campaign} to be {status}");
        eventually(&what, within, || async {
            let query = sqlx::query_scalar("select status from campaigns where id = $1");
            let now: String = query.bind(campaign).fetch_one(&self.pool).await.ok()?;
            (now == status).then_some(())
        })
        .await;
    }

    /// Checks the books: every batch's counters equal a recount.
    pub async fn books_balance(&self) {
        let off = ledger::batches_off_the_books(&self.pool).await;
        assert!(off.is_empty(), "batch counters differ from a recount: {off:?}");
    }
}
