//! `postrider tenant set`: a tenant's profile, by the rules of `PATCH /v1/tenant`.

use anyhow::{anyhow, bail};
use ingress::{
    ApiError,
    api::tenants::{self, ProfileChange},
    pipeline::{Id, Patch},
};
use serde_json::json;
use sqlx::PgPool;
use uuid::Uuid;

use crate::{invocation::AuditEntry, operator};

/// What is not named stays as it is. Without any option, shows what holds.
#[derive(Debug, clap::Args)]
pub(super) struct SetArgs {
    /// The engine tenant.
    id: Uuid,
    /// The IANA time zone of business days and reports, such as Europe/Paris.
    #[arg(long)]
    timezone: Option<String>,
    /// The postal address of marketing mail whose sender has none of its own. Empty: none.
    #[arg(long, value_name = "TEXT")]
    physical_address: Option<String>,
    /// The sender of mail that names none, by its id.
    #[arg(long, value_name = "SENDER")]
    default_sender: Option<Uuid>,
    /// The domain whose tracking host links and pixel use, by its id; "none": that of the sending domain.
    #[arg(long, value_name = "DOMAIN")]
    tracking_domain: Option<String>,
}

pub(super) async fn run(pool: &PgPool, args: SetArgs) -> anyhow::Result<()> {
    let id = args.id;
    let change = ProfileChange {
        timezone: args.timezone,
        physical_address: args.physical_address.map_or(Patch::Absent, Patch::Value),
        default_sender_id: args.default_sender.map(Id),
        tracking_domain_id: match args.tracking_domain.as_deref() {
            None => Patch::Absent,
            Some("none") => Patch::Null,
            Some(text) => Patch::Value(Id(text.parse()?)),
        },
    };
    let fields = change.fields();
    let mut tx = pool.begin().await?;
    let profile = match tenants::change(&mut tx, id, change).await {
        Ok(profile) => profile,
        Err(error) => bail!(said(&error)),
    };
    if !fields.is_empty() {
        let (subject, detail) = (id.to_string(), Some(json!({"fields": fields})));
        let entry = AuditEntry {
            tenant: Some(id),
            action: "tenant.changed",
            subject: &subject,
            detail,
            ..AuditEntry::default()
        };
        entry.audit(&mut tx).await?;
    }
    tx.commit().await?;
    let record = json!({
        "tenant": id, "timezone": profile.timezone, "physical_address": profile.physical_address,
        "default_sender": profile.default_sender_id, "tracking_domain": profile.tracking_domain_id,
    });
    operator::print(&[record], &["timezone", "physical_address", "default_sender", "tracking_domain"]);
    Ok(())
}

/// A refusal as text.
fn said(error: &ApiError) -> anyhow::Error {
    match &error.detail {
        Some(detail) => anyhow!("{}: {detail}", error.code),
        None => anyhow!("{}", error.code),
    }
}
