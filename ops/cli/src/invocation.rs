//! The operator, the reason and the output format of a command, set once per process. Commands that change something are audited.

use std::{fmt::Display, sync::OnceLock};

use runtime::{AuditRecord, audit};
use serde_json::Value;
use sqlx::{PgConnection, PgExecutor};
use uuid::Uuid;

/// Options of every command.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct InvocationArgs {
    /// Prints JSON, one object a line.
    #[arg(long, global = true)]
    pub json: bool,
    /// The operator's name for the audit log. Default: user@host.
    #[arg(long = "as", global = true, value_name = "WHO")]
    pub actor: Option<String>,
    /// The reason, for the audit log and the list of paused things.
    #[arg(long, global = true, value_name = "WHY")]
    pub reason: Option<String>,
}

static INVOCATION: OnceLock<InvocationArgs> = OnceLock::new();

pub fn set_invocation(args: InvocationArgs) {
    // Set once, at start.
    let _ = INVOCATION.set(args);
}

fn current() -> &'static InvocationArgs {
    INVOCATION.get_or_init(InvocationArgs::default)
}

pub fn wants_json() -> bool {
    current().json
}

pub fn reason() -> Option<&'static str> {
    current().reason.as_deref()
}

/// The operator, as in the audit log.
pub fn actor() -> String {
    match &current().actor {
        Some(actor) => format!("cli:{actor}"),
        None => format!("cli:{}@{}", user(), runtime::control::host()),
    }
}

/// The user of the operating system; the user id if it has no name, as in a container.
fn user() -> String {
    let named = ["USER", "LOGNAME"].iter().find_map(|name| std::env::var(name).ok().filter(|user| !user.is_empty()));
    named.or_else(user_id).unwrap_or_else(|| "unknown".to_owned())
}

fn user_id() -> Option<String> {
    use std::os::unix::fs::MetadataExt as _;
    std::fs::metadata("/proc/self").ok().map(|metadata| metadata.uid().to_string())
}

/// Writes an entry of the audit log, with the operator and the reason of this process; in the transaction of the action if it has one.
pub async fn audit_record(
    db: impl PgExecutor<'_>,
    tenant: Option<Uuid>,
    action: &str,
    subject: impl Display,
    outcome: Option<&str>,
    detail: Value,
) -> sqlx::Result<()> {
    let (subject, reason) = (subject.to_string(), reason());
    audit::write(db, &[AuditRecord { tenant, actor: &actor(), action, subject, detail, reason, outcome }]).await
}

/// Writes the audit entry of a command that commits in steps, before the first one: killed or failed half-way, it has left one. Another at its
/// end says what it did.
pub async fn audit_begun(
    db: impl PgExecutor<'_>,
    tenant: Option<Uuid>,
    action: &str,
    subject: impl Display,
    asked: Value,
) -> sqlx::Result<()> {
    audit_record(db, tenant, action, subject, Some("begun"), asked).await
}

/// Writes an audit entry without outcome and details.
pub async fn audit(
    db: &mut PgConnection,
    tenant: Option<Uuid>,
    action: &str,
    subject: impl Display,
) -> sqlx::Result<()> {
    audit_record(db, tenant, action, subject, None, Value::Null).await
}
