//! Plans are kept until a table grows.

use std::time::{Duration, Instant};

use devtools::servers::TestDatabase;
use runtime::{Database, Role, plans::PreparedPool};
use secrecy::SecretString;
use sqlx::{Connection, PgConnection};
use uuid::Uuid;

const ROWS: i64 = 20_000;
const DEADLINE: Duration = Duration::from_secs(60);

/// A database of its own, and so many connections to it that keep their plans.
async fn plans_of(role: Role, connections: usize) -> (TestDatabase, PreparedPool) {
    let database = TestDatabase::migrated(&runtime::db::MIGRATIONS).await.unwrap();
    let pool = Database::pool(&SecretString::from(database.url()), role, 1).unwrap();
    let plans = PreparedPool::new(&pool, connections);
    (database, plans)
}

/// Looks ten rows up, and answers how many rows the plan fetched for it, and whether it was one made for any arguments.
async fn look_up(plans: &PreparedPool) -> (i64, bool) {
    let mut tx = plans.begin().await.unwrap();
    let ids: Vec<Uuid> = (1..=10).map(Uuid::from_u128).collect();
    sqlx::query("select p.n from unnest($1::uuid[]) u (id) join people p on p.id = u.id")
        .bind(&ids)
        .fetch_all(&mut *tx)
        .await
        .unwrap();
    let seen: (i64, bool) = sqlx::query_as(
        "select pg_stat_get_xact_tuples_fetched('people_pkey'::regclass),
                exists (select from pg_prepared_statements where statement like '%join people%' and generic_plans > 0)",
    )
    .fetch_one(&mut *tx)
    .await
    .unwrap();
    tx.commit().await.unwrap();
    seen
}

#[tokio::test]
async fn a_plan_is_made_for_any_arguments_and_one_that_was_made_for_an_empty_table_is_soon_given_up() {
    let (database, plans) = plans_of(Role::Stages, 1).await;
    let mut owner = PgConnection::connect(&database.url()).await.unwrap();
    sqlx::raw_sql(
        "create table people (id uuid primary key, n bigint not null) with (autovacuum_enabled = off);
         grant select on people to postrider_stages",
    )
    .execute(&mut owner)
    .await
    .unwrap();
    // It is known to be empty, so that reading all of it looks cheapest.
    sqlx::raw_sql("vacuum analyze people").execute(&mut owner).await.unwrap();
    assert_eq!(look_up(&plans).await, (0, true));
    sqlx::query("insert into people select lpad(to_hex(n), 32, '0')::uuid, n from generate_series(1, $1) n")
        .bind(ROWS)
        .execute(&mut owner)
        .await
        .unwrap();
    let started = Instant::now();
    loop {
        let seen = look_up(&plans).await;
        if seen == (10, true) {
            break;
        }
        assert!(started.elapsed() < DEADLINE, "the plan of the empty table is still in use: {seen:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn a_transaction_that_was_given_up_leaves_a_connection_for_the_next() {
    let (_database, plans) = plans_of(Role::Stages, 1).await;
    for _ in 0..3 {
        let mut tx = plans.begin().await.unwrap();
        sqlx::query("select 1").execute(&mut *tx).await.unwrap();
    }
    let mut tx = plans.begin().await.unwrap();
    let inside: bool =
        sqlx::query_scalar("select pg_current_xact_id_if_assigned() is null").fetch_one(&mut *tx).await.unwrap();
    assert!(inside);
}

/// The process that serves a read, and the tenant it is confined to.
async fn served_by(db: &mut PgConnection) -> (i32, String) {
    sqlx::query_as("select pg_backend_pid(), coalesce(current_setting('app.tenant', true), '')")
        .fetch_one(db)
        .await
        .unwrap()
}

#[tokio::test]
async fn reads_hand_on_their_connection_and_neither_tenant_nor_transaction() {
    let (_database, plans) = plans_of(Role::Ingress, 1).await;
    let mut servers = Vec::new();
    for tenant in [1, 2].map(Uuid::from_u128) {
        let mut read = plans.read(tenant).await.unwrap();
        let (server, confined_to) = served_by(&mut read).await;
        assert_eq!(confined_to, tenant.to_string());
        assert!(sqlx::query("create temporary table t ()").execute(&mut *read).await.is_err(), "a read writes nothing");
        servers.push(server);
        drop(read);
    }
    assert_eq!(servers[0], servers[1]);
    let mut next = plans.take().await.unwrap();
    assert_eq!(served_by(&mut next).await, (servers[0], String::new()));
}

#[tokio::test]
async fn a_read_that_was_given_up_leaves_neither_tenant_nor_transaction() {
    let (_database, plans) = plans_of(Role::Ingress, 1).await;
    for _ in 0..3 {
        let mut read = plans.read(Uuid::from_u128(1)).await.unwrap();
        served_by(&mut read).await;
        drop(read);
        // Given up while it waits for an answer.
        let mut read = plans.read(Uuid::from_u128(1)).await.unwrap();
        let slow = sqlx::query("select pg_sleep(0.2)").execute(&mut *read);
        assert!(tokio::time::timeout(Duration::from_millis(20), slow).await.is_err());
    }
    let mut next = plans.take().await.unwrap();
    assert_eq!(served_by(&mut next).await.1, "");
    let is_read_only: String =
        sqlx::query_scalar("select current_setting('transaction_read_only')").fetch_one(&mut *next).await.unwrap();
    assert_eq!(is_read_only, "off");
}

#[tokio::test]
async fn who_waits_for_a_connection_gets_the_one_that_is_put_back() {
    let (_database, plans) = plans_of(Role::Stages, 1).await;
    let held = plans.take().await.unwrap();
    // In this order: the second is polled only when the first waits.
    let (waited_for, ()) = tokio::join!(plans.take(), async { held.put_back() });
    let mut connection = waited_for.unwrap();
    let one: i32 = sqlx::query_scalar("select 1").fetch_one(&mut *connection).await.unwrap();
    assert_eq!(one, 1);
}

#[tokio::test]
async fn a_connection_that_died_while_nobody_used_it_is_nobodys_error() {
    /// After this long a connection is asked for something before it is used.
    const OLD: Duration = Duration::from_millis(1_100);
    let (database, plans) = plans_of(Role::Stages, 2).await;
    let (one, other) = (plans.take().await.unwrap(), plans.take().await.unwrap());
    one.put_back();
    other.put_back();
    let put_back = Instant::now();
    let mut owner = PgConnection::connect(&database.url()).await.unwrap();
    sqlx::query(
        "select pg_terminate_backend(pid, 60000) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()",
    )
    .execute(&mut owner)
    .await
    .unwrap();
    tokio::time::sleep_until((put_back + OLD).into()).await;
    for _ in 0..2 {
        let mut connection = plans.take().await.unwrap();
        let one: i32 = sqlx::query_scalar("select 1").fetch_one(&mut *connection).await.unwrap();
        assert_eq!(one, 1);
    }
}

#[tokio::test]
async fn bulk_work_leaves_connections_to_priority_work() {
    let (_database, pool) = plans_of(Role::Stages, 4).await;
    let (bulk, priority) = (pool.bulk("bulk"), pool.priority("priority"));
    let _held = (bulk.take().await.unwrap(), bulk.take().await.unwrap());
    assert!(matches!(bulk.take().await, Err(sqlx::Error::PoolTimedOut)));
    let _prompt = (priority.take().await.unwrap(), priority.take().await.unwrap());
    assert_eq!(pool.counts(), (4, 4, 0));
}

#[tokio::test]
async fn a_begin_that_was_given_up_leaves_no_transaction() {
    let (_database, plans) = plans_of(Role::Stages, 1).await;
    plans.begin().await.unwrap().commit().await.unwrap();
    for polls in (0..200).map(|turn| turn % 7) {
        {
            let mut begin = std::pin::pin!(plans.begin_for_tenant(Uuid::from_u128(1)));
            for _ in 0..polls {
                if futures::poll!(&mut begin).is_ready() {
                    break;
                }
                tokio::task::yield_now().await;
            }
        }
        let mut next = plans.take().await.unwrap();
        assert_eq!(served_by(&mut next).await.1, "", "it is inside the transaction that was given up");
        next.put_back();
    }
}
