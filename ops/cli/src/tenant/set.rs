//! `postrider tenant set`: a tenant's profile, by the rules of `PATCH /v1/tenant`.

use ingress::{
    api::tenants::{self, ProfileChange},
    pipeline::json,
};
use serde_json::{Value, json};
use sqlx::PgConnection;
use uuid::Uuid;

use crate::{
    api::argument,
    invocation::AuditEntry,
    operator::{self, CommandOutput},
};

/// What is not named stays as it is. Without fields, shows the profile.
#[derive(Debug, clap::Args)]
pub struct SetArgs {
    /// The engine tenant.
    id: Uuid,
    /// Fields as `PATCH /v1/tenant` takes them: `timezone=Europe/Paris`, `attribution:='{"model":"linear"}'`.
    #[arg(value_name = "NAME=VALUE", value_parser = argument)]
    fields: Vec<(String, Value)>,
}

pub(super) async fn run(db: &mut PgConnection, args: SetArgs) -> anyhow::Result<CommandOutput> {
    let id = args.id;
    let change: ProfileChange = json::decode(args.fields.into_iter().collect()).map_err(operator::refused)?;
    let fields = change.fields();
    let profile = tenants::change(db, id, change).await.map_err(operator::refused)?;
    if !fields.is_empty() {
        let (tenant, action, subject) = (Some(id), "tenant.changed", &id.to_string());
        let detail = Some(json!({"fields": fields}));
        AuditEntry { tenant, action, subject, detail, ..AuditEntry::default() }.audit(&mut *db).await?;
    }
    Ok(CommandOutput::Record(serde_json::to_value(&profile)?))
}
