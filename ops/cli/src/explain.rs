//! `postrider explain <send>`, `postrider explain <campaign|message|sequence> <email>`: what the API explains, to be read.

use anyhow::Context;
use ingress::{
    api::explain::{ExplainSubject, Explainer},
    pipeline::time,
};
use ledger::{
    gate::{load_eligibility, may_all_be_mailed},
    quota::QuotaDefaults,
};
use runtime::StageName;
use schemas::{Address, Classification, MessageKind, SendId};
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

/// The stages that mail passes, in order.
const MAIL_STAGES: [StageName; 4] =
    [StageName::Audience, StageName::Compliance, StageName::Rendering, StageName::Delivery];

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
    let mut explanation = match &args.email {
        None => of_send(&mut db, args.id, args.defaults).await?,
        Some(email) => {
            let address = Address::parse(email).context("email")?;
            let (tenant, about) = find(&mut db, args.id).await?;
            let mut explainer = Explainer { db: &mut db, tenant, quota: args.defaults };
            with_tenant(explain(&mut explainer, about, &address).await?, tenant)
        }
    };
    add_platform_pauses(&mut db, &mut explanation["explanation"]).await?;
    if invocation::wants_json() {
        println!("{explanation}");
        return Ok(());
    }
    print(&explanation["explanation"]);
    Ok(())
}

/// A send by itself: what became of it, and what its gates say now.
async fn of_send(db: &mut PgConnection, id: Uuid, quota: QuotaDefaults) -> anyhow::Result<Value> {
    let tenant = find_tenant::of_send(db, id).await?;
    let tenant = tenant.context("no such send; with an address, name a campaign, message or sequence")?;
    let mut explainer = Explainer { db, tenant, quota };
    let send = explainer.send(id).await.map_err(operator::refused)?;
    let named = |name: &str| send[name].as_str().and_then(|id| id.parse::<Uuid>().ok());
    let about = named("campaign_id")
        .map(ExplainSubject::Campaign)
        .or_else(|| named("sequence_id").map(ExplainSubject::Sequence))
        .or_else(|| named("message_id").map(ExplainSubject::Message))
        .unwrap_or(ExplainSubject::Transactional(id));
    let address = send["email"].as_str().and_then(|email| Address::parse(email).ok());
    let mut explanation = match address {
        Some(address) => explain(&mut explainer, about, &address).await?,
        // The recipient is erased: no gate decides any more.
        None => {
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

/// The stages that the mail has still to pass. Prompt mail is written by the ingress, which announces it to rendering if all its recipients
/// may be mailed (`ledger::resolve`): it comes by the first two stages only when it is announced again.
async fn stages_ahead(db: &mut PgConnection, explanation: &Value) -> sqlx::Result<Vec<StageName>> {
    let id_in = |value: &Value| value.as_str().and_then(|id| id.parse::<Uuid>().ok());
    let about = &explanation["about"];
    let may_be_prompt = match about["kind"].as_str() {
        Some("sequence") => return Ok(MAIL_STAGES.into_iter().chain([StageName::Sequencing]).collect()),
        kind => matches!(kind, Some("message" | "send")),
    };
    // A one-off message has the id of its batch.
    let id = id_in(&explanation["send"]["send_id"]).or_else(|| id_in(&about["id"]).filter(|_| may_be_prompt));
    let (Some(tenant), Some(id)) = (id_in(&explanation["tenant"]), id) else { return Ok(MAIL_STAGES.to_vec()) };
    let batch = sqlx::query!(
        r#"select b.kind as "kind!: MessageKind", b.classification as "classification!: Classification", b.state = 'done' as "is_done!",
                  b.state <> 'announced' or b.queued + b.fenced = 0 or is_set_aside(b.announce_after, b.quiet_at) as "is_announced_later!",
                  b.lane = 'priority' and b.announcement = 1 as "is_first!",
                  array(select s.contact_id from sends s
                        where s.tenant_id = b.tenant_id and s.month = b.month and s.id between b.id and last_id_of(b.id)) as "contacts!"
           from batches b where b.tenant_id = $1 and b.id = $2"#,
        tenant,
        SendId(id).batch(),
    )
    .fetch_optional(&mut *db)
    .await?;
    let Some(batch) = batch else {
        return Ok(vec![StageName::Audience, StageName::Rendering, StageName::Delivery]);
    };
    if batch.is_done {
        return Ok(Vec::new());
    }
    if batch.is_announced_later {
        return Ok(MAIL_STAGES.to_vec());
    }
    let tenants = vec![tenant; batch.contacts.len()];
    let known = load_eligibility(db, &tenants, &batch.contacts).await?;
    let may_be_mailed = may_all_be_mailed(&known, tenant, &batch.contacts, (batch.kind, batch.classification));
    let passed = if may_be_prompt && batch.is_first && may_be_mailed { 2 } else { 1 };
    Ok(MAIL_STAGES[passed..].to_vec())
}

/// Adds the pauses of the platform to the gates: paused stages that the mail has still to pass, and a held ledger. They are for operators:
/// the API does not name them.
async fn add_platform_pauses(db: &mut PgConnection, explanation: &mut Value) -> sqlx::Result<()> {
    let stages: Vec<&str> = stages_ahead(db, explanation).await?.into_iter().map(StageName::as_str).collect();
    let rows = sqlx::query!(
        r#"select 'ledger' as "gate!", 'held' as "detail!", l.held_reason as "reason?", l.held_at as "at!"
           from ledger l where l.held_at is not null
           union all
           select 'stage', p.stage || ' paused', p.reason, p.paused_at from stage_pauses p where p.stage = any ($1)
           order by 1, 4"#,
        stages.as_slice() as _,
    )
    .fetch_all(db)
    .await?;
    for row in rows {
        let detail = match row.reason {
            Some(reason) => format!("{}: {reason}", row.detail),
            None => row.detail,
        };
        let gate = json!({"gate": row.gate, "verdict": "wait", "detail": detail, "row": null, "at": time(row.at)});
        if explanation["verdict"] == "pass" {
            explanation["verdict"] = json!("wait");
            explanation["decided_by"] = json!(row.gate);
        }
        if let Some(gates) = explanation["gates"].as_array_mut() {
            gates.push(gate);
        }
    }
    Ok(())
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
    for (label, name) in [("scheduled for", "scheduled_at"), ("next attempt at", "next_attempt_at")] {
        if let Some(at) = send[name].as_str() {
            println!("{label} {at}");
        }
    }
    let steps: Vec<Value> = send["timeline"].as_array().into_iter().flatten().map(step).collect();
    print!("{}", table::render(&steps, &["at", "type", "detail"], table::width()));
}

fn step(step: &Value) -> Value {
    let detail = step["detail"].as_object().map(|detail| {
        detail.iter().map(|(name, value)| format!("{name} {}", text_of(value))).collect::<Vec<_>>().join(", ")
    });
    json!({"at": step["at"], "type": step["type"], "detail": detail})
}
