//! Who runs a command, why, and how it is to answer. One per process, as it was started; what changes something is audited with it.

use std::sync::OnceLock;

use schemas::new_id;
use serde_json::Value;
use sqlx::PgConnection;
use uuid::Uuid;

/// What every command takes.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct WhoArgs {
    /// Answers in JSON, one object a line.
    #[arg(long, global = true)]
    pub json: bool,
    /// Who does it, for the audit log. Default: user@host.
    #[arg(long = "as", global = true, value_name = "WHO")]
    pub actor: Option<String>,
    /// Why, for the audit log.
    #[arg(long, global = true, value_name = "WHY")]
    pub because: Option<String>,
}

static WHO: OnceLock<WhoArgs> = OnceLock::new();

/// Remembers how the process was started.
pub fn is(args: WhoArgs) {
    // Only the first word counts; there is no second.
    let _ = WHO.set(args);
}

fn who() -> &'static WhoArgs {
    WHO.get_or_init(WhoArgs::default)
}

/// Whether answers are to be JSON.
pub fn wants_json() -> bool {
    who().json
}

/// Why, if it was said.
pub fn because() -> Option<&'static str> {
    who().because.as_deref()
}

/// Who, as the audit log writes it.
pub fn actor() -> String {
    match &who().actor {
        Some(actor) => format!("cli:{actor}"),
        None => format!("cli:{}@{}", user(), runtime::control::host()),
    }
}

/// The user of the operating system; his number, where he has no name, as in a container.
fn user() -> String {
    let named = ["USER", "LOGNAME"].iter().find_map(|name| std::env::var(name).ok().filter(|user| !user.is_empty()));
    named.or_else(number).unwrap_or_else(|| "somebody".to_owned())
}

fn number() -> Option<String> {
    use std::os::unix::fs::MetadataExt as _;
    std::fs::metadata("/proc/self").ok().map(|metadata| metadata.uid().to_string())
}

/// One act, for the audit log.
#[derive(Debug, Clone, Default)]
pub struct Act<'a> {
    /// Whose affair it is.
    pub tenant: Option<Uuid>,
    /// What was done, such as `stage.pause`.
    pub action: &'a str,
    /// To what.
    pub subject: &'a str,
    /// Why; else what `--because` says.
    pub reason: Option<&'a str>,
    /// What came of it.
    pub outcome: Option<&'a str>,
    /// More, in ids, codes and numbers.
    pub detail: Option<Value>,
}

impl Act<'_> {
    /// Writes it down, in the transaction that does it.
    pub async fn audit(&self, db: &mut PgConnection) -> sqlx::Result<()> {
        sqlx::query!(
            "insert into audit_log (id, tenant_id, actor, action, subject, detail, reason, outcome)
             values ($1, $2, $3, $4, $5, coalesce($6::jsonb, '{}'), $7, $8)",
            new_id(),
            self.tenant,
            actor(),
            self.action,
            self.subject,
            self.detail.clone() as Option<Value>,
            self.reason.or(because()),
            self.outcome,
        )
        .execute(db)
        .await
        .map(drop)
    }
}

/// Records what an operator did, where there is nothing more to say of it.
pub async fn audit(db: &mut PgConnection, tenant: Option<Uuid>, action: &str, subject: &str) -> anyhow::Result<()> {
    Ok(Act { tenant, action, subject, ..Act::default() }.audit(db).await?)
}
