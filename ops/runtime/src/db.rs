//! Postgres: pools that take their role, and never hand on an open transaction.

use std::{io, str::FromStr, time::Duration};

use secrecy::{ExposeSecret, SecretString};
use sqlx::{
    Connection, Executor, PgConnection, PgPool, Postgres, Row, Transaction,
    error::DatabaseError,
    migrate::Migrator,
    postgres::{PgConnectOptions, PgDatabaseError, PgPoolOptions, PgSeverity},
};
use tokio::time::timeout;
use uuid::Uuid;

/// The migrations, embedded.
pub static MIGRATIONS: Migrator = sqlx::migrate!("../../migrations");

/// Longest wait for a connection before a caller is answered "unavailable".
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(3);
/// How long a connection is used before another one takes its place.
const MAX_LIFETIME: Duration = Duration::from_secs(30 * 60);
/// Postgres ends a transaction that a vanished task left open after this long: the last resort behind hook and spawn.
const IDLE_IN_TRANSACTION: &str = "30s";

/// Longest wait for what a worker asks of Postgres, where it takes milliseconds. See [`within`].
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// Longest wait for the rollback of what was given up: longer than a read of the API may take. Then the connection is closed.
const ROLLBACK_TIMEOUT: Duration = Duration::from_secs(20);

/// Begins a transaction with an asynchronous commit. Use it only for work that nothing outside has seen yet, and that is redone after a crash
/// of Postgres. A mail or an answer leaves after a synchronous commit, later in the same log, which also brings this one to the disk.
pub const BEGIN_ASYNC_COMMIT: &str = "begin; set local synchronous_commit = off";

/// For a transaction that holds locks others need and waits for locks others hold: it gives up after a second (55P03) and releases its
/// own.
pub const WAIT_BRIEFLY: &str = "set local lock_timeout = '1s'";

/// For mail that is due now: waits for locks as long as it takes those who do the same beside it. An import holds contacts of its tenant for
/// a minute.
pub const WAIT_FOR_PEERS: &str = "set local lock_timeout = '100ms'";

/// Begins a transaction that waits for locks as [`WAIT_BRIEFLY`] has it.
pub const BEGIN_BRIEFLY: &str = "begin; set local lock_timeout = '1s'";

/// A connection that was idle for longer is tried before it is used.
const PING_AFTER: Duration = Duration::from_secs(1);

schemas::named_enum! {
    /// The database role a process works as: `postrider_ingress` or `postrider_stages`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Role {
        /// Serves callers; row security confines it to one tenant at a time.
        Ingress = "ingress",
        /// Stages and command line; all tenants.
        Stages = "stages",
    }
}

/// One column of rows, as the array that an `unnest` statement takes for it.
pub fn column<I: IntoIterator, T>(rows: I, value: impl FnMut(I::Item) -> T) -> Vec<T> {
    rows.into_iter().map(value).collect()
}

/// Opens pools. A thin name space, so that callers read `Database::pool(…)`.
#[derive(Debug)]
pub struct Database;

impl Database {
    /// A pool of connections in `role`. Connects lazily: a process starts, and says so in its health, while Postgres is away.
    pub fn pool(url: &SecretString, role: Role, connections: u32) -> sqlx::Result<PgPool> {
        let role = role.as_str();
        let options = PgConnectOptions::from_str(url.expose_secret())?
            .application_name(&format!("postrider {role}"))
            .options([("role", format!("postrider_{role}"))])
            .options([
                ("idle_in_transaction_session_timeout", IDLE_IN_TRANSACTION),
                ("synchronous_commit", "on"),
                ("jit", "off"),
                // A generic plan is made once and kept: one made while a table was small reads all of it for every group of sends
                // when a campaign has filled it (measured: 700 ms instead of 5). Planning each time costs microseconds a mail.
                ("plan_cache_mode", "force_custom_plan"),
                ("client_min_messages", "error"),
            ]);
        Ok(PgPoolOptions::new()
            .max_connections(connections)
            .acquire_timeout(ACQUIRE_TIMEOUT)
            .max_lifetime(MAX_LIFETIME)
            // A connection that was used a moment ago was there a moment ago: a ping before every use would cost as much as many
            // a statement. One that broke since is an error to its user, as one that breaks a moment later is.
            .test_before_acquire(false)
            .before_acquire(|connection, usage| {
                Box::pin(async move { Ok(usage.idle_for <= PING_AFTER || is_writable(connection).await?) })
            })
            .after_release(|connection, _| Box::pin(end_transaction(connection)))
            .connect_lazy_with(options))
    }

    /// Applies the migrations, as the login itself (the owner), not as one of the roles.
    /// A failed migration leaves nothing half done.
    pub async fn migrate(url: &SecretString) -> Result<(), sqlx::migrate::MigrateError> {
        let pool = PgPoolOptions::new().max_connections(1).connect(url.expose_secret()).await?;
        // An older program, to which an upgrade is rolled back, leaves the newer schema as it is: each migration allows for that.
        let mut migrations = Migrator::with_migrations(MIGRATIONS.migrations.to_vec());
        migrations.set_ignore_missing(true).run(&pool).await?;
        pool.close().await;
        Ok(())
    }
}

/// Does this work with Postgres within this time, or fails as when Postgres is away. A connection that is dropped on the way is rolled back
/// or closed.
///
/// sqlx asks for no TCP keepalive: when the host of Postgres vanishes without a word, the answer to a statement is waited for for ever.
pub async fn within<T, E: From<sqlx::Error>>(
    limit: Duration,
    work: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    timeout(limit, work).await.unwrap_or_else(|_| Err(sqlx::Error::Io(io::ErrorKind::TimedOut.into()).into()))
}

/// A cancelled `begin()` can return its connection inside an open transaction (sqlx 0.9.0): the next user's writes would look
/// fine and never be committed, and its tenant would be the previous one's. So every released connection is rolled back.
///
/// And it gives back the room it made for what it carried: else each would in time hold the largest attachment it ever saw.
pub(crate) async fn end_transaction(connection: &mut PgConnection) -> sqlx::Result<bool> {
    within(ROLLBACK_TIMEOUT, connection.execute("rollback")).await?;
    connection.shrink_buffers();
    Ok(true)
}

/// Whether a connection, which must still live, takes writes. One that was opened to a server that is a standby now, or while the database
/// was read-only, does not, and would not when all is well again.
pub(crate) async fn is_writable(connection: &mut PgConnection) -> sqlx::Result<bool> {
    let is_read_only: String = connection.fetch_one("show transaction_read_only").await?.try_get(0)?;
    Ok(is_read_only == "off")
}

/// Begins a transaction confined to a tenant: row security answers only its rows.
pub async fn begin_for_tenant(pool: &PgPool, tenant: Uuid) -> sqlx::Result<Transaction<'static, Postgres>> {
    let mut tx = pool.begin().await?;
    confine(&mut tx, tenant).await?;
    Ok(tx)
}

/// Begins a read confined to a tenant; nil for what stands above tenants: one round trip.
#[must_use]
pub fn begin_read_only(tenant: Uuid) -> String {
    format!("begin read only; {}", confined(tenant))
}

/// What confines a transaction to a tenant; nil for none.
#[must_use]
pub fn confined(tenant: Uuid) -> String {
    // An id: nothing in it is a caller's text.
    let setting = if tenant.is_nil() { String::new() } else { tenant.to_string() };
    format!("set local app.tenant = '{setting}'")
}

/// Confines an open transaction to a tenant.
pub async fn confine(tx: &mut PgConnection, tenant: Uuid) -> sqlx::Result<()> {
    sqlx::query("select set_config('app.tenant', $1, true)").bind(tenant.to_string()).execute(tx).await.map(drop)
}

/// Whether the SQLSTATE of an error begins with one of these.
fn is_of(error: &dyn DatabaseError, classes: &[&str]) -> bool {
    error.code().is_some_and(|code| classes.iter().any(|class| code.starts_with(class)))
}

/// Whether Postgres refuses us, whatever the statement: what ends the connection, as a login that no longer works, or a transaction that
/// was left open; and a server that takes no writes, as a standby or one with a full disk.
fn is_refused_as_a_whole(error: &(dyn DatabaseError + 'static)) -> bool {
    const READ_ONLY: &str = "25006";
    let severity = error.try_downcast_ref::<PgDatabaseError>().map(PgDatabaseError::severity);
    matches!(severity, Some(PgSeverity::Fatal | PgSeverity::Panic)) || error.code().as_deref() == Some(READ_ONLY)
}

/// Whether an error from Postgres may go away by itself, or is mended without the caller: connection trouble, serialization, deadlock,
/// shutdown, full disk, a refused login.
#[must_use]
pub fn is_transient(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Database(error) => {
            // Classes: 08 connection, 40 rollback, 53 resources, 55 object state, 57 operator, 58 system.
            let classes = ["08", "40", "53", "55", "57", "58", "XX"];
            is_refused_as_a_whole(&**error) || error.code().is_none() || is_of(&**error, &classes)
        }
        sqlx::Error::RowNotFound
        | sqlx::Error::ColumnNotFound(_)
        | sqlx::Error::ColumnDecode { .. }
        | sqlx::Error::Decode(_)
        | sqlx::Error::Encode(_)
        | sqlx::Error::TypeNotFound { .. } => false,
        _ => true,
    }
}

/// Classes of SQLSTATE about the data of a statement, whose messages may quote it: data exception, integrity constraint, check option, raised.
const QUOTING_CLASSES: [&str; 4] = ["22", "23", "44", "P0"];

/// Whether an error is about the data of its statement: the same input fails again. Otherwise the error is transient, or statement and
/// schema do not fit, as while a program is newer than the migrations that were applied: the input is not at fault.
#[must_use]
pub fn is_about_data(error: &sqlx::Error) -> bool {
    match error {
        _ if is_transient(error) => false,
        // Class 21 is cardinality, 54 a limit of the program.
        sqlx::Error::Database(error) => is_of(&**error, &QUOTING_CLASSES) || is_of(&**error, &["21", "54"]),
        sqlx::Error::ColumnNotFound(_) | sqlx::Error::TypeNotFound { .. } => false,
        _ => true,
    }
}

/// Whether a statement ran into its time limit.
#[must_use]
pub fn is_timeout(error: &sqlx::Error) -> bool {
    const QUERY_CANCELED: &str = "57014";
    error.as_database_error().and_then(|error| error.code()).is_some_and(|code| code == QUERY_CANCELED)
}

/// Whether a lock was waited for in vain, as [`WAIT_BRIEFLY`] has it.
#[must_use]
pub fn is_lock_timeout(error: &sqlx::Error) -> bool {
    const LOCK_NOT_AVAILABLE: &str = "55P03";
    error.as_database_error().and_then(DatabaseError::code).as_deref() == Some(LOCK_NOT_AVAILABLE)
}

/// A database error in words, without the values in it: Postgres quotes the offending row or text, a decoder the value, and that may
/// be an address. Of what is about data (classes 22, 23, 44, P0) the SQLSTATE is left, and what was refused; else Postgres' own words.
#[must_use]
pub fn describe(error: &sqlx::Error) -> String {
    match error {
        sqlx::Error::Database(error) => {
            let code = error.code().unwrap_or_default();
            if is_of(&**error, &QUOTING_CLASSES) {
                let (table, constraint) = (error.table().unwrap_or("-"), error.constraint().unwrap_or("-"));
                return format!("sqlstate {code} table {table} constraint {constraint}");
            }
            format!("sqlstate {code}: {}", error.message())
        }
        sqlx::Error::ColumnDecode { index, .. } => format!("column {index} does not decode"),
        sqlx::Error::Decode(_) => "a value does not decode".to_owned(),
        sqlx::Error::Encode(_) => "a value does not encode".to_owned(),
        error => error.to_string(),
    }
}

/// Whether Postgres itself is away or overloaded, as opposed to refusing this statement.
#[must_use]
pub fn is_unavailable(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Io(_) | sqlx::Error::PoolTimedOut | sqlx::Error::PoolClosed | sqlx::Error::Tls(_) => true,
        sqlx::Error::Database(error) => is_refused_as_a_whole(&**error) || is_of(&**error, &["08", "53", "57P", "58"]),
        sqlx::Error::Protocol(_) => true,
        _ => false,
    }
}
