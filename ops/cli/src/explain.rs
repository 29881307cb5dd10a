//! `postrider explain <send>`, `postrider explain <campaign|message|sequence> <email>`: what the API explains, to be read.

use anyhow::Context;
use ingress::api::explain::{ExplainSubject, Explainer};
use ledger::quota::QuotaDefaults;
use schemas::Address;
use serde_json::{Value, json};
use sqlx::PgConnection;
use uuid::Uuid;

use crate::{
    api::text_of,
    find_tenant::{self, tenant_of},
    invocation,
    operator::{self, DatabaseArgs},
    table,
};

/// Explains why a contact was mailed, was not mailed, or would not be mailed.
#[derive(Debug, clap::Args)]
pub struct ExplainArgs {
    #[command(flatten)]
    database: DatabaseArgs,
    /// The limits of tenants for which none is set, as the processes have them.
    #[command(flatten)]
    defaults: QuotaDefaults,
    /// A send; or a campaign, a one-off message or a sequence, with an address.
    id: Uuid,
    /// The recipient.
    email: Option<String>,
}

pub async fn run(args: ExplainArgs) -> anyhow::Result<()> {
    let pool = args.database.pool()?;
    let mut db = pool.acquire().await?;
    let explanation = match &args.email {
        None => of_send(&mut db, args.id, args.defaults).await?,
        Some(email) => {
            let address = Address::parse(email).context("email")?;
            let (tenant, about) = find(&mut db, args.id).await?;
            let mut explainer = Explainer { db: &mut db, tenant, quota: args.defaults };
            with_tenant(explain(&mut explainer, about, &address).await?, tenant)
        }
    };
    if invocation::wants_json() {
        println!("{explanation}");
        return Ok(());
    }
    print(&explanation["explanation"]);
    Ok(())
}

/// A send by itself: what became of it, and what its gates say now.
async fn of_send(db: &mut PgConnection, id: Uuid, quota: QuotaDefaults) -> anyhow::Result<Value> {
    let tenant = find_tenant::of_send(db, id)
        .await?
        .context("no such send; with an address, name a campaign, message or sequence")?;
    let mut explainer = Explainer { db, tenant, quota };
    let send = explainer.send(id).await.map_err(operator::refused)?;
    let named = |name: &str| send[name].as_str().and_then(|id| id.parse::<Uuid>().ok());
    let about = named("campaign_id")
        .map(ExplainSubject::Campaign)
        .or_else(|| named("sequence_id").map(ExplainSubject::Sequence))
        .or_else(|| named("message_id").map(ExplainSubject::Message));
    let address = send["email"].as_str().and_then(|email| Address::parse(email).ok());
    let mut explanation = match (about, address) {
        (Some(about), Some(address)) => explain(&mut explainer, about, &address).await?,
        // A transactional mail has no audience and no campaign: what became of it is all there is.
        _ => {
            json!({"ok": true, "explanation": {"about": {"kind": "send", "id": id}, "email": send["email"], "verdict": null,
                    "decided_by": null, "gates": []}})
        }
    };
    explanation["explanation"]["send"] = send;
    Ok(with_tenant(explanation, tenant))
}

async fn explain(explainer: &mut Explainer<'_>, about: ExplainSubject, address: &Address) -> anyhow::Result<Value> {
    Ok(json!({"ok": true, "explanation": explainer.explain(about, address).await.map_err(operator::refused)?}))
}

fn with_tenant(mut explanation: Value, tenant: Uuid) -> Value {
    explanation["explanation"]["tenant"] = json!(tenant);
    explanation
}

/// What has this id.
async fn find(db: &mut PgConnection, id: Uuid) -> anyhow::Result<(Uuid, ExplainSubject)> {
    if let Some(tenant) = tenant_of!(&mut *db, "campaigns", id)? {
        return Ok((tenant, ExplainSubject::Campaign(id)));
    }
    if let Some(tenant) = tenant_of!(&mut *db, "messages", id)? {
        return Ok((tenant, ExplainSubject::Message(id)));
    }
    let tenant = tenant_of!(db, "sequences", id)?;
    Ok((tenant.context("no campaign, one-off message or sequence has this id")?, ExplainSubject::Sequence(id)))
}

fn print(explanation: &Value) {
    let text = |value: &Value| value.as_str().map_or_else(|| "-".to_owned(), str::to_owned);
    println!("{} {}", text(&explanation["about"]["kind"]), text(&explanation["about"]["id"]));
    println!("tenant {}", text(&explanation["tenant"]));
    println!("to {}", text(&explanation["email"]));
    if let Some(verdict) = explanation["verdict"].as_str() {
        let decided =
            explanation["decided_by"].as_str().map(|gate| format!(", by the gate {gate}")).unwrap_or_default();
        println!("now: {verdict}{decided}\n");
        let gates = explanation["gates"].as_array().map(Vec::as_slice).unwrap_or_default();
        operator::print(gates, &["gate", "verdict", "detail", "at"]);
    }
    let send = &explanation["send"];
    if send.is_null() {
        println!("\nthere is no send");
        return;
    }
    println!("\nsend {}: {}, attempts {}", text(&send["send_id"]), text(&send["state"]), send["attempt_count"]);
    let steps: Vec<Value> = send["timeline"].as_array().into_iter().flatten().map(step).collect();
    print!("{}", table::render(&steps, &["at", "type", "detail"], table::width()));
}

fn step(step: &Value) -> Value {
    let detail = step["detail"].as_object().map(|detail| {
        detail.iter().map(|(name, value)| format!("{name} {}", text_of(value))).collect::<Vec<_>>().join(", ")
    });
    json!({"at": step["at"], "type": step["type"], "detail": detail})
}
