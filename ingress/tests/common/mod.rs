//! A private ingress on a database of its own, and a client that signs.
#![allow(dead_code, clippy::unwrap_used)]

pub mod contract;

use std::{sync::Arc, time::Duration};

use axum::body::Body;
use chrono::{SecondsFormat, Utc};
use clap::Parser;
use devtools::servers::TestDatabase;
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::BodyExt;
use ingress::{Ingress, IngressDeps, Settings, pipeline::auth::signature::SignedParts};
use runner::Runner;
use runtime::{Bus, CommitNotifier, Database, MasterKeys, Reader, Role, plans::PreparedPool};
use schemas::Environment;
use secrecy::SecretString;
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Connection, PgConnection, PgPool};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;
use uuid::Uuid;

/// The product, tenant and environment of [`Edge::client`].
pub const PRODUCT: &str = "crm";
pub const TENANT: &str = "tenant-1";
/// Connections of an ingress for writes, unless a test says otherwise.
const CONNECTIONS: u32 = 8;

#[derive(Parser)]
struct Command {
    #[command(flatten)]
    settings: Settings,
}

/// The default settings, with a free port, no rate limit and no real DNS.
pub fn settings() -> Settings {
    let arguments = [
        "test",
        "--http-addr",
        "127.0.0.1:0",
        "--rate-limit-per-minute",
        "0",
        "--dns-servers",
        "127.0.0.1:9",
        "--domain-check-fresh",
        "0s",
    ];
    Command::parse_from(arguments).settings
}

/// An ingress and its database.
pub struct Edge {
    pub database: TestDatabase,
    /// As the superuser: sees everything, bypasses the road.
    pub pool: PgPool,
    pub ingress: Arc<Ingress>,
    pub settings: Settings,
}

impl Edge {
    pub async fn start() -> Self {
        Self::with(settings()).await
    }

    pub async fn with(settings: Settings) -> Self {
        Self::with_connections(settings, CONNECTIONS).await
    }

    /// An ingress with so many connections for writes.
    pub async fn with_connections(settings: Settings, connections: u32) -> Self {
        let database = TestDatabase::migrated(&runtime::db::MIGRATIONS).await.unwrap();
        let pool = sqlx::postgres::PgPoolOptions::new().max_connections(4).connect(&database.url()).await.unwrap();
        let ingress = another(&database, settings.clone(), connections).await;
        Self { database, pool, ingress, settings }
    }

    /// From now on there is no database for any connection. Blocks, so that a test's clock which is paused stands still.
    pub fn lose_the_database(&self) {
        let url = self.database.url();
        let (server, name) = url.rsplit_once('/').unwrap();
        let drop = format!(r#"drop database "{name}" with (force)"#);
        let dropped = async {
            let mut maintenance = PgConnection::connect(&format!("{server}/postgres")).await.unwrap();
            sqlx::raw_sql(AssertSqlSafe(drop)).execute(&mut maintenance).await.unwrap();
        };
        let run = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(dropped);
        std::thread::scope(|threads| threads.spawn(run).join().unwrap());
    }

    /// A second process on the same database.
    pub async fn another(&self) -> Arc<Ingress> {
        another(&self.database, self.settings.clone(), CONNECTIONS).await
    }

    /// A client of [`PRODUCT`] in production with every scope, for [`TENANT`], which is linked now if it was not.
    pub async fn client(&self) -> Client {
        self.client_for(PRODUCT, Environment::Production, TENANT).await
    }

    /// A client with every scope; links the tenant.
    pub async fn client_for(&self, product: &str, environment: Environment, product_tenant_id: &str) -> Client {
        let scopes: Vec<&str> = schemas::scope::ALL.to_vec();
        let key = self.key(product, environment, &scopes).await;
        let tenant = self.link(product, environment, product_tenant_id).await;
        Client {
            router: ingress::router(Arc::clone(&self.ingress)),
            product: product.to_owned(),
            environment,
            key,
            product_tenant_id: product_tenant_id.to_owned(),
            tenant,
        }
    }

    pub async fn waiting(&self) -> i64 {
        self.count(
            "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'",
        )
        .await
    }

    /// Waits until so many requests wait for a lock.
    pub async fn until_waiting(&self, requests: i64) {
        stage_rig::until("requests wait for a lock", async || self.waiting().await >= requests).await;
    }

    pub async fn key(&self, product: &str, environment: Environment, scopes: &[&str]) -> String {
        let key = schemas::key::generate(product, environment);
        let (id, hash) = (schemas::new_id(), schemas::key::hash(&key));
        let sql = "insert into api_keys (id, hash, prefix, product, environment, scopes, lineage, rate_lineage)
             values ($1, $2, $3, $4, $5, $6, $1, $1)";
        stage_rig::run!(&self.pool, sql, [id, hash.as_slice(), &key[..12], product, environment.as_str(), scopes]);
        key
    }

    /// Links a tenant, making it if need be.
    pub async fn link(&self, product: &str, environment: Environment, product_tenant_id: &str) -> Uuid {
        let linked: Option<Uuid> = sqlx::query_scalar(
            "select tenant_id from tenant_links where product = $1 and environment = $2 and product_tenant_id = $3",
        )
        .bind(product)
        .bind(environment.as_str())
        .bind(product_tenant_id)
        .fetch_optional(&self.pool)
        .await
        .unwrap();
        if let Some(tenant) = linked {
            return tenant;
        }
        let tenant = schemas::new_id();
        let sql = "insert into tenants (id, environment, owner_email) values ($1, $2, 'owner@example.com')";
        stage_rig::run!(&self.pool, sql, [tenant, environment.as_str()]);
        self.share(tenant, product, environment, product_tenant_id).await;
        tenant
    }

    /// Links a tenant that there is, by this name.
    pub async fn share(&self, tenant: Uuid, product: &str, environment: Environment, product_tenant_id: &str) {
        let sql = "insert into tenant_links (product, environment, product_tenant_id, tenant_id, owner_email)
             values ($1, $2, $3, $4, 'owner@example.com')";
        stage_rig::run!(&self.pool, sql, [product, environment.as_str(), product_tenant_id, tenant]);
    }

    /// Has the audience stage's sweep finish what erasures have left, as far as it is due. Answers how many slices that took.
    pub async fn finish_erasures(&self) -> u64 {
        let pool = Database::pool(&SecretString::from(self.database.url()), Role::Stages, 1).unwrap();
        let sweep = ledger::erasure::Erasures(PreparedPool::new(&pool, 1));
        let mut slices = 0;
        while runner::Sweep::sweep(&sweep).await.unwrap() > 0 {
            slices += 1;
        }
        slices
    }

    /// Has the audience stage's sweep take out the values of removed fields, as far as they wait for no writer.
    pub async fn take_out_removed_fields(&self) {
        let pool = Database::pool(&SecretString::from(self.database.url()), Role::Stages, 1).unwrap();
        let sweep = audience::RemoveFields { pool, slice: 2 };
        while runner::Sweep::sweep(&sweep).await.unwrap() > 0 {}
    }

    /// Waits until the request log of all tenants has so many calls.
    pub async fn wait_for_calls(&self, calls: i64) {
        let written = "select count(*) from request_log";
        stage_rig::until("the calls are in the log", async || self.count(written).await >= calls).await;
        assert_eq!(self.count(written).await, calls, "calls in the log");
    }

    /// How many rows this statement of the ingress looks at in vain for a tenant, with these parameters in their order, each as SQL. What it
    /// writes is rolled back.
    pub async fn rows_in_vain(&self, tenant: Uuid, statement: &str, parameters: &[&str]) -> f64 {
        let mut statement = statement.to_owned();
        for (at, parameter) in parameters.iter().enumerate().rev() {
            statement = statement.replace(&format!("${}", at + 1), parameter);
        }
        let explain = AssertSqlSafe(format!("explain (analyze, format json)\n{statement}"));
        // In its role: row security keeps conditions out of an index.
        let mut tx = runtime::db::begin_for_tenant(&self.ingress.pool, tenant).await.unwrap();
        let plan: Value = sqlx::query_scalar(explain).fetch_one(&mut *tx).await.unwrap();
        stage_rig::rows_in_vain(&plan)
    }

    /// One number from the database.
    pub async fn count(&self, sql: &'static str) -> i64 {
        sqlx::query_scalar(sql).fetch_one(&self.pool).await.unwrap()
    }
}

async fn another(database: &TestDatabase, settings: Settings, connections: u32) -> Arc<Ingress> {
    let pool = Database::pool(&SecretString::from(database.url()), Role::Ingress, connections).unwrap();
    // The product gives up after three seconds without a connection. A disk that stands still for longer is no finding here.
    let like = (*pool.connect_options()).clone();
    let pool = pool.options().clone().acquire_timeout(Duration::from_secs(60)).connect_lazy_with(like);
    // A prefix per database keeps the streams of tests apart.
    let prefix = format!("{}_", database.name());
    let bus = Bus::connect(&SecretString::from(database.nats_url()), None, &prefix, 1, "test").await.unwrap();
    let master_keys = MasterKeys::parse(&"5a".repeat(32)).unwrap();
    let runner = Runner::new(bus.clone(), CommitNotifier::default(), CancellationToken::new());
    Ingress::new(
        IngressDeps { pool, bus, facts: CommitNotifier::default(), master_keys, runner, reader: Reader::in_process() },
        settings,
    )
    .unwrap()
}

#[derive(Debug)]
pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub bytes: Vec<u8>,
    /// Null for a body that is no JSON.
    pub body: Value,
}

impl Answer {
    /// The status and the error code.
    pub fn refusal(&self) -> (u16, &str) {
        (self.status.as_u16(), self.body["error"].as_str().unwrap_or(""))
    }

    /// The path and code of each field fault.
    pub fn faults(&self) -> Vec<(String, String)> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let fields = self.body["fields"].as_array().cloned().unwrap_or_default();
        fields.iter().map(|fault| (text(&fault["path"]), text(&fault["code"]))).collect()
    }

    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or("")
    }

    /// A string of the body.
    pub fn text(&self, field: &str) -> String {
        self.body[field].as_str().unwrap_or_else(|| panic!("no {field} in {}", self.body)).to_owned()
    }
}

/// A caller in signed mode.
#[derive(Clone)]
pub struct Client {
    pub router: axum::Router,
    pub product: String,
    pub environment: Environment,
    pub key: String,
    pub product_tenant_id: String,
    /// The engine's tenant.
    pub tenant: Uuid,
}

impl Client {
    /// GET with `product_tenant_id` added to the query.
    pub async fn get(&self, path: &str) -> Answer {
        let joint = if path.contains('?') { '&' } else { '?' };
        self.send(self.signed(Method::GET, &format!("{path}{joint}product_tenant_id={}", self.product_tenant_id), b""))
            .await
    }

    /// POST with `product_tenant_id` added to the body.
    pub async fn post(&self, path: &str, body: Value) -> Answer {
        self.write(Method::POST, path, body, &[]).await
    }

    /// As [`Client::post`], with an `Idempotency-Key`.
    pub async fn post_once(&self, key: &str, path: &str, body: Value) -> Answer {
        self.write(Method::POST, path, body, &[("idempotency-key", key)]).await
    }

    /// PATCH with `product_tenant_id` added to the body.
    pub async fn patch(&self, path: &str, body: Value) -> Answer {
        self.write(Method::PATCH, path, body, &[]).await
    }

    /// DELETE with `product_tenant_id` added to the body.
    pub async fn delete(&self, path: &str, body: Value) -> Answer {
        self.write(Method::DELETE, path, body, &[]).await
    }

    pub async fn write(&self, method: Method, path: &str, mut body: Value, headers: &[(&'static str, &str)]) -> Answer {
        if body.get("product_tenant_id").is_none() {
            body["product_tenant_id"] = json!(self.product_tenant_id);
        }
        let mut request = self.signed(method, path, body.to_string().as_bytes());
        for (name, value) in headers {
            request.headers_mut().insert(*name, value.parse().unwrap());
        }
        self.send(request).await
    }

    /// A signed request; `target` may have a query.
    pub fn signed(&self, method: Method, target: &str, body: &[u8]) -> Request<Body> {
        self.signed_with(
            method,
            target,
            body,
            &Utc::now().to_rfc3339_opts(SecondsFormat::Millis, true),
            &Uuid::new_v4().to_string(),
        )
    }

    pub fn signed_with(
        &self,
        method: Method,
        target: &str,
        body: &[u8],
        timestamp: &str,
        nonce: &str,
    ) -> Request<Body> {
        let path = target.split('?').next().unwrap();
        let signature = SignedParts { method: method.as_str(), path, timestamp, nonce, body }.sign(&self.key);
        Request::builder()
            .method(method)
            .uri(target)
            .header("content-type", "application/json")
            .header("x-service-product", &self.product)
            .header("x-service-environment", self.environment.as_str())
            .header("x-service-api-key", &self.key)
            .header("x-service-timestamp", timestamp)
            .header("x-service-nonce", nonce)
            .header("x-service-signature", signature)
            .body(Body::from(body.to_vec()))
            .unwrap()
    }

    /// A request without credentials, as from a browser that follows a link or submits a form.
    pub async fn ask(&self, method: Method, path: &str, form: &str) -> Answer {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("user-agent", "Test/1.0")
            .header("content-type", "application/x-www-form-urlencoded")
            .body(Body::from(form.to_owned()))
            .unwrap();
        self.send(request).await
    }

    pub async fn send(&self, request: Request<Body>) -> Answer {
        send(&self.router, request).await
    }

    /// A copy of this caller, at another process.
    pub fn at(&self, ingress: Arc<Ingress>) -> Self {
        Self { router: ingress::router(ingress), ..self.clone() }
    }
}

/// Sends any request, and holds what comes back against the OpenAPI document.
pub async fn send(router: &axum::Router, request: Request<Body>) -> Answer {
    let (method, uri) = (request.method().clone(), request.uri().clone());
    let (parts, body) = request.into_parts();
    let sent = body.collect().await.unwrap().to_bytes();
    let response = router.clone().oneshot(Request::from_parts(parts, Body::from(sent.clone()))).await.unwrap();
    let (parts, body) = response.into_parts();
    let bytes = body.collect().await.unwrap().to_bytes().to_vec();
    let body = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
    let answer = Answer { status: parts.status, headers: parts.headers, bytes, body };
    contract::hold(&method, &uri, &sent, &answer);
    answer
}
