//! `postrider tenant set`: a tenant's profile, by the rules of `PATCH /v1/tenant`.

use ingress::{
    api::tenants::{self, ProfileChange},
    pipeline::json,
};
use serde_json::{Value, json};
use sqlx::PgPool;
use uuid::Uuid;

use crate::{api::argument, invocation::AuditEntry, operator};

/// What is not named stays as it is. Without fields, shows the profile.
#[derive(Debug, clap::Args)]
pub(super) struct SetArgs {
    /// The engine tenant.
    id: Uuid,
    /// Fields as `PATCH /v1/tenant` takes them: `timezone=Europe/Paris`, `attribution:='{"model":"linear"}'`.
    #[arg(value_name = "NAME=VALUE", value_parser = argument)]
    fields: Vec<(String, Value)>,
}

pub(super) async fn run(pool: &PgPool, args: SetArgs) -> anyhow::Result<()> {
    let id = args.id;
    let change: ProfileChange = json::decode(args.fields.into_iter().collect()).map_err(operator::refused)?;
    let fields = change.fields();
    let mut tx = pool.begin().await?;
    let profile = tenants::change(&mut tx, id, change).await.map_err(operator::refused)?;
    if !fields.is_empty() {
        let (subject, detail) = (id.to_string(), Some(json!({"fields": fields})));
        AuditEntry { tenant: Some(id), action: "tenant.changed", subject: &subject, detail, ..AuditEntry::default() }
            .audit(&mut tx)
            .await?;
    }
    tx.commit().await?;
    operator::show(&serde_json::to_value(&profile)?)
}
