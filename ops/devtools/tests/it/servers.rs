//! The servers as their users see them: real processes, real ports.

use std::path::{Path, PathBuf};

use async_nats::jetstream::{self, stream};
use devtools::servers::{ServerOptions, Servers, TestDatabase};
use sqlx::{Connection, PgConnection};

/// A data directory that goes when the test ends.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Self {
        let name = format!("servers-test-{:016x}", rand::random::<u64>());
        Self(std::env::temp_dir().join(name))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Ok(owned) = self.0.join("postgres").canonicalize() {
            let _ = std::fs::remove_dir_all(&owned);
            // As root, the link leads to a directory of its own.
            if !owned.starts_with(&self.0) {
                let _ = std::fs::remove_dir(&owned);
            }
        }
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

async fn bus(servers: &Servers) -> jetstream::Context {
    jetstream::new(async_nats::connect(servers.nats_url()).await.unwrap())
}

async fn publish_one(servers: &Servers) {
    let bus = bus(servers).await;
    bus.get_or_create_stream(stream::Config {
        name: "KEPT".to_owned(),
        subjects: vec!["kept".to_owned()],
        ..Default::default()
    })
    .await
    .unwrap();
    bus.publish("kept", "one".into()).await.unwrap().await.unwrap();
}

async fn write_row(servers: &Servers) {
    servers.postgres().create_database("ledger").await.unwrap();
    execute(servers, "create table kept (id int)").await;
    execute(servers, "insert into kept values (1)").await;
}

async fn execute(servers: &Servers, statement: &'static str) {
    let mut connection = PgConnection::connect(&servers.database_url("ledger")).await.unwrap();
    sqlx::query(statement).execute(&mut connection).await.unwrap();
    connection.close().await.unwrap();
}

async fn rows(servers: &Servers) -> i64 {
    let mut connection = PgConnection::connect(&servers.postgres().local_database_url("ledger")).await.unwrap();
    sqlx::query_scalar("select count(*) from kept").fetch_one(&mut connection).await.unwrap()
}

async fn messages(servers: &Servers) -> u64 {
    let bus = bus(servers).await;
    let mut stream = bus.get_stream("KEPT").await.unwrap();
    stream.info().await.unwrap().state.messages
}

fn is_running(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

#[tokio::test]
async fn a_restart_and_a_crash_keep_ports_and_data() {
    let servers = Servers::start(&ServerOptions::ephemeral()).await.unwrap();
    publish_one(&servers).await;
    write_row(&servers).await;
    let before = (servers.nats_url(), servers.database_url("ledger"));
    let pids = (servers.nats().pid(), servers.postgres().pid());

    servers.nats().stop().await.unwrap();
    servers.postgres().stop().await.unwrap();
    servers.nats().start().await.unwrap();
    servers.postgres().start().await.unwrap();
    assert_eq!((messages(&servers).await, rows(&servers).await), (1, 1));

    servers.nats().kill9().await.unwrap();
    servers.postgres().kill9().await.unwrap();
    assert_eq!((servers.nats().pid(), servers.postgres().pid()), (None, None));
    assert!(async_nats::connect(servers.nats_url()).await.is_err());
    servers.nats().start().await.unwrap();
    servers.postgres().start().await.unwrap();
    assert_eq!((messages(&servers).await, rows(&servers).await), (1, 1));

    assert_eq!(before, (servers.nats_url(), servers.database_url("ledger")));
    assert_ne!(pids, (servers.nats().pid(), servers.postgres().pid()));
}

#[tokio::test]
async fn a_wiped_store_leaves_an_empty_jetstream_on_the_same_port() {
    let servers = Servers::start(&ServerOptions::ephemeral()).await.unwrap();
    publish_one(&servers).await;
    let url = servers.nats_url();

    servers.nats().wipe_store().await.unwrap();

    assert_eq!(url, servers.nats_url());
    let account = bus(&servers).await.query_account().await.unwrap();
    assert_eq!((account.streams, account.storage), (0, 0));
}

#[tokio::test]
async fn the_local_address_is_a_unix_socket_and_the_other_is_not() {
    let servers = Servers::start(&ServerOptions::ephemeral()).await.unwrap();
    let postgres = servers.postgres();
    for (url, is_tcp) in [(postgres.local_database_url("postgres"), false), (postgres.database_url("postgres"), true)] {
        let mut connection = PgConnection::connect(&url).await.unwrap();
        let (came_by_tcp, superuser): (bool, String) =
            sqlx::query_as("select inet_client_addr() is not null, current_user::text")
                .fetch_one(&mut connection)
                .await
                .unwrap();
        assert_eq!((came_by_tcp, superuser.as_str()), (is_tcp, "postgres"));
    }
}

#[tokio::test]
async fn two_pairs_run_side_by_side() {
    let options = ServerOptions::ephemeral();
    let (one, two) = tokio::join!(Servers::start(&options), Servers::start(&options));
    let (one, two) = (one.unwrap(), two.unwrap());

    publish_one(&one).await;
    assert!(one.postgres().create_database("mine").await.unwrap());
    assert!(!one.postgres().create_database("mine").await.unwrap(), "there already");

    assert_eq!(bus(&two).await.query_account().await.unwrap().streams, 0);
    assert!(two.postgres().create_database("mine").await.unwrap(), "another cluster");
}

#[tokio::test]
async fn everything_ephemeral_is_gone_afterwards() {
    let servers = Servers::start(&ServerOptions::ephemeral()).await.unwrap();
    let pids = [servers.nats().pid().unwrap(), servers.postgres().pid().unwrap()];
    let directory = servers.data_dir().to_path_buf();
    assert!(directory.exists() && pids.into_iter().all(is_running));

    drop(servers);

    assert!(!directory.exists());
    assert!(!pids.into_iter().any(is_running));
}

#[tokio::test]
async fn a_kept_data_directory_has_one_owner_and_is_found_again() {
    let scratch = Scratch::new();
    let options = ServerOptions::kept(&scratch.0);
    let servers = Servers::start(&options).await.unwrap();
    publish_one(&servers).await;
    write_row(&servers).await;

    let second = Servers::start(&options).await.unwrap_err();
    assert!(second.to_string().contains("in use by another process"), "{second}");

    servers.stop_all().await.unwrap();
    drop(servers);
    let servers = Servers::start(&options).await.unwrap();
    assert_eq!((messages(&servers).await, rows(&servers).await), (1, 1));
}

#[tokio::test]
async fn a_server_that_cannot_start_shows_its_log() {
    let scratch = Scratch::new();
    let options = ServerOptions::kept(&scratch.0);
    drop(Servers::start(&options).await.unwrap());
    std::fs::remove_file(scratch.0.join("postgres/data/global/pg_control")).unwrap();

    let error = Servers::start(&options).await.unwrap_err();

    let error = error.to_string();
    assert!(error.contains("its last log lines") && error.contains("pg_control"), "{error}");
}

#[tokio::test]
async fn each_test_has_a_database_and_leaves_none() {
    let migrator = sqlx::migrate::Migrator::new(Path::new("tests/it/migrations")).await.unwrap();
    let (one, two) = tokio::join!(TestDatabase::migrated(&migrator), TestDatabase::migrated(&migrator));
    let (one, two) = (one.unwrap(), two.unwrap());

    let mut connection = PgConnection::connect(&one.url()).await.unwrap();
    sqlx::query("insert into notes values ('mine')").execute(&mut connection).await.unwrap();
    let mut other = PgConnection::connect(&two.url()).await.unwrap();
    let notes: i64 = sqlx::query_scalar("select count(*) from notes").fetch_one(&mut other).await.unwrap();
    assert_eq!(notes, 0);
    let templates: i64 = sqlx::query_scalar("select count(*) from pg_database where datname like 'template\\__%'")
        .fetch_one(&mut other)
        .await
        .unwrap();
    assert!(templates >= 1);

    let name = one.name().to_owned();
    drop(one);
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    let is_there = "select exists (select from pg_database where datname = $1)";
    while sqlx::query_scalar::<_, bool>(is_there).bind(&name).fetch_one(&mut other).await.unwrap() {
        assert!(std::time::Instant::now() < deadline, "it outlives its test");
        tokio::task::yield_now().await;
    }
}
