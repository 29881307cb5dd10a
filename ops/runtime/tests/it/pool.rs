//! A pool never hands on an open transaction.

use std::{
    pin::pin,
    time::{Duration, Instant},
};

use devtools::servers::TestDatabase;
use runtime::{
    Database, Role, db,
    plans::{PreparedConnection, PreparedPool},
};
use secrecy::SecretString;
use sqlx::{Acquire, AssertSqlSafe, Connection, PgConnection, PgPool};

const CANCELLED: usize = 2_000;
const CONNECTIONS: u32 = 4;
/// Well below the time after which Postgres itself ends a forgotten transaction.
const RELEASED_WITHIN: Duration = Duration::from_secs(10);

/// Begins and gives up on the way: what axum does to a handler whose client hangs up. `pool.begin()` is these two steps; taken
/// one by one, the second can be given up after a number of polls, when BEGIN is written and its answer is not there yet.
async fn begin_and_give_up(pool: &PgPool, polls: usize) {
    let mut connection = pool.acquire().await.unwrap();
    let mut begin = pin!(connection.begin());
    for _ in 0..polls {
        if futures::poll!(begin.as_mut()).is_ready() {
            return;
        }
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancelled_begin_leaves_no_transaction_open() {
    let database = TestDatabase::migrated(&runtime::db::MIGRATIONS).await.unwrap();
    let url = SecretString::from(database.url());
    let pool = Database::pool(&url, Role::Ingress, CONNECTIONS).unwrap();
    let watcher = sqlx::postgres::PgPoolOptions::new().max_connections(1).connect(&database.url()).await.unwrap();
    let inside = || async {
        sqlx::query_scalar::<_, i64>(
            "select count(*) from pg_stat_activity
             where datname = current_database() and application_name = 'postrider ingress' and state like 'idle in transaction%'",
        )
        .fetch_one(&watcher)
        .await
        .unwrap()
    };
    for round in 0..CANCELLED {
        begin_and_give_up(&pool, round % 4).await;
        if round % 8 == 7 {
            // What the storm left behind goes back to the pool in tasks of its own, and the pool's count of idle connections is
            // not exact while it does. A transaction that nobody ends stays: nothing uses these connections meanwhile.
            let deadline = Instant::now() + RELEASED_WITHIN;
            while inside().await > 0 {
                assert!(Instant::now() < deadline, "after {round} cancelled begins");
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
    }

    // And so what is written through the pool is there for everybody.
    for number in 0..i64::from(CONNECTIONS) * 5 {
        sqlx::query("insert into nonces (key_id, nonce) values (gen_random_uuid(), $1)")
            .bind(number.to_string())
            .execute(&pool)
            .await
            .unwrap();
    }
    let seen: i64 = sqlx::query_scalar("select count(*) from nonces").fetch_one(&watcher).await.unwrap();
    assert_eq!(seen, i64::from(CONNECTIONS) * 5);
}

#[tokio::test]
async fn a_tenant_does_not_leak_to_the_next_user_of_a_connection() {
    let database = TestDatabase::migrated(&runtime::db::MIGRATIONS).await.unwrap();
    let pool = Database::pool(&SecretString::from(database.url()), Role::Ingress, 1).unwrap();
    let tenant = schemas::new_id();
    let tx = runtime::db::begin_for_tenant(&pool, tenant).await.unwrap();
    drop(tx);
    let (left, role): (Option<uuid::Uuid>, String) =
        sqlx::query_as("select app_tenant(), current_user::text").fetch_one(&pool).await.unwrap();
    assert_eq!((left, role.as_str()), (None, "postrider_ingress"));
}

#[tokio::test]
async fn no_plan_made_for_a_small_table_is_kept() {
    let database = TestDatabase::migrated(&runtime::db::MIGRATIONS).await.unwrap();
    let url = SecretString::from(database.url());
    for role in [Role::Ingress, Role::Stages] {
        let pool = Database::pool(&url, role, 1).unwrap();
        for _ in 0..10 {
            sqlx::query("select 1 from nonces where key_id = $1").bind(uuid::Uuid::nil()).execute(&pool).await.unwrap();
        }
        let generic: i64 = sqlx::query_scalar(
            "select generic_plans from pg_prepared_statements where statement like '%from nonces where key_id%'",
        )
        .fetch_one(&pool)
        .await
        .unwrap();
        assert_eq!(generic, 0, "{role:?}");
    }
}

#[tokio::test]
async fn idle_connections_that_bulk_work_may_not_take_are_none_to_it() {
    let database = TestDatabase::migrated(&runtime::db::MIGRATIONS).await.unwrap();
    let pool = Database::pool(&SecretString::from(database.url()), Role::Stages, 1).unwrap();
    let plans = PreparedPool::new(&pool, 4);
    let (priority, bulk) = (plans.priority("priority"), plans.bulk("bulk"));
    let mut taken = Vec::new();
    for _ in 0..4 {
        taken.push(priority.take().await.unwrap());
    }
    taken.into_iter().for_each(PreparedConnection::put_back);
    let (first, second) = (bulk.take().await.unwrap(), bulk.take().await.unwrap());
    assert_eq!(plans.counts(), (4, 4, 2));
    assert_eq!((priority.has_idle(), bulk.has_idle()), (true, false));
    first.put_back();
    assert!(bulk.has_idle());
    second.put_back();
}

#[tokio::test]
async fn an_older_program_leaves_a_newer_schema_as_it_is() {
    let database = TestDatabase::migrated(&runtime::db::MIGRATIONS).await.unwrap();
    let owner = sqlx::postgres::PgPoolOptions::new().max_connections(1).connect(&database.url()).await.unwrap();
    let of_later = "insert into _sqlx_migrations (version, description, success, checksum, execution_time)
                    values (9999, 'of a later version', true, '', 0)";
    sqlx::query(of_later).execute(&owner).await.unwrap();
    Database::migrate(&SecretString::from(database.url())).await.unwrap();
}

#[tokio::test]
async fn a_login_that_postgres_refuses_is_no_fault_of_a_statement() {
    let database = TestDatabase::migrated(&runtime::db::MIGRATIONS).await.unwrap();
    let mut owner = PgConnection::connect(&database.url()).await.unwrap();
    let login = format!("login_of_{}", database.name());
    let mut url = url::Url::parse(&database.url()).unwrap();
    url.set_username(&login).unwrap();
    url.set_password(Some("first")).unwrap();
    let url = SecretString::from(String::from(url));
    let steps = [
        ("create role LOGIN login password 'first' in role postrider_stages", None),
        ("alter role LOGIN password 'second'", Some("28P01")),
        ("alter role LOGIN password 'first'; revoke postrider_stages from LOGIN", Some("42501")),
        ("drop role LOGIN", Some("28P01")),
    ];
    for (step, refused) in steps {
        sqlx::raw_sql(AssertSqlSafe(step.replace("LOGIN", &login))).execute(&mut owner).await.unwrap();
        let pool = Database::pool(&url, Role::Stages, 1).unwrap();
        let error = sqlx::query("select 1").execute(&pool).await.err();
        let code = error.as_ref().and_then(|error| error.as_database_error()?.code());
        assert_eq!(code.as_deref(), refused, "{step}: {error:?}");
        assert!(error.is_none_or(|error| db::is_transient(&error) && db::is_unavailable(&error)), "{step}");
        pool.close().await;
    }
}

#[tokio::test]
async fn a_server_that_takes_no_writes_is_no_fault_of_a_statement_and_its_connections_are_not_kept() {
    /// After this long a connection is tried before it is used.
    const OLD: Duration = Duration::from_millis(1_100);
    let write = "insert into nonces (key_id, nonce) values (gen_random_uuid(), 'n')";
    let database = TestDatabase::migrated(&runtime::db::MIGRATIONS).await.unwrap();
    let mut owner = PgConnection::connect(&database.url()).await.unwrap();
    let mut set = async |setting: &str| {
        let statement = format!("alter database {} {setting}", database.name());
        sqlx::raw_sql(AssertSqlSafe(statement)).execute(&mut owner).await.unwrap();
    };
    set("set default_transaction_read_only = on").await;
    let pool = Database::pool(&SecretString::from(database.url()), Role::Ingress, 1).unwrap();
    let plans = PreparedPool::new(&pool, 1);
    let mut kept = plans.take().await.unwrap();
    let refused = [
        sqlx::query(write).execute(&pool).await.unwrap_err(),
        sqlx::query(write).execute(&mut *kept).await.unwrap_err(),
    ];
    for error in refused {
        assert_eq!(error.as_database_error().and_then(|error| error.code()).as_deref(), Some("25006"));
        assert!(db::is_transient(&error) && db::is_unavailable(&error));
    }
    kept.put_back();
    set("reset default_transaction_read_only").await;
    tokio::time::sleep(OLD).await;
    sqlx::query(write).execute(&pool).await.unwrap();
    sqlx::query(write).execute(&mut *plans.take().await.unwrap()).await.unwrap();
}

#[tokio::test]
async fn a_refused_statement_is_its_own_fault() {
    let database = TestDatabase::migrated(&runtime::db::MIGRATIONS).await.unwrap();
    let pool = Database::pool(&SecretString::from(database.url()), Role::Ingress, 1).unwrap();
    for statement in ["select 1 / 0", "select * from nowhere", "select 'x'::int"] {
        let error = sqlx::query(statement).execute(&pool).await.unwrap_err();
        assert!(!db::is_transient(&error) && !db::is_unavailable(&error), "{error}");
    }
}

#[tokio::test]
async fn a_statement_that_does_not_fit_the_schema_is_not_about_its_data() {
    let database = TestDatabase::migrated(&runtime::db::MIGRATIONS).await.unwrap();
    let pool = Database::pool(&SecretString::from(database.url()), Role::Ingress, 1).unwrap();
    for (statement, is_about_data) in [
        ("select 1 / 0", true),
        ("select 'x'::int", true),
        ("select * from nowhere", false),
        ("select nothing from tenants", false),
        ("select no_function()", false),
    ] {
        let error = sqlx::query(statement).execute(&pool).await.unwrap_err();
        assert_eq!(db::is_about_data(&error), is_about_data, "{error}");
    }
}
