//! The sequences of a group with their steps, each loaded once.

use std::collections::{BTreeSet, HashMap};

use chrono::{DateTime, NaiveDate, Utc};
use ledger::gate::QuietRule;
use schemas::{Classification, DelayUnit, Environment, MessageKind, SequenceStatus, StepType};
use serde::Deserialize;
use serde_json::{Value, json};
use sqlx::{PgConnection, types::Json};
use uuid::Uuid;

use crate::{decide::ExitRules, due::Due};
use schemas::action::{Action, Plainly};
use schemas::delay;

/// One step.
#[derive(Debug, Clone)]
pub(crate) struct Step {
    pub(crate) id: Uuid,
    version: i32,
    pub(crate) order: i16,
    pub(crate) kind: StepType,
    pub(crate) template_id: Option<Uuid>,
    delay_amount: u32,
    delay_unit: DelayUnit,
    /// `None`: what is stored cannot be read. The API checks it, so it never is.
    pub(crate) action: Option<Action>,
}

/// A sequence, and what its tenant says.
#[derive(Debug, Clone)]
pub(crate) struct Sequence {
    pub(crate) status: SequenceStatus,
    pub(crate) name: String,
    pub(crate) sender_profile_id: Option<Uuid>,
    /// The tenant's default sender: that of mails to its owner where the sequence has none.
    pub(crate) default_sender_id: Option<Uuid>,
    pub(crate) rules: ExitRules,
    pub(crate) exit_event: Option<ExitEvent>,
    pub(crate) tenant_active: bool,
    timezone: String,
    /// The tenant's quiet hours, if they hold for its mail.
    pub(crate) quiet: Option<QuietRule>,
    pub(crate) owner_email: String,
    pub(crate) environment: Environment,
    steps: Vec<Step>,
}

/// The event of a product that ends enrollments: its name, and properties it has among its own.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct ExitEvent {
    pub(crate) event: String,
    #[serde(default = "no_properties")]
    pub(crate) properties: Value,
}

fn no_properties() -> Value {
    json!({})
}

/// A tenant's sequence.
pub(crate) type SequenceKey = (Uuid, Uuid);

pub(crate) type Sequences = HashMap<SequenceKey, Sequence>;

impl Sequence {
    /// The step of a version at this place, from 1.
    pub(crate) fn step(&self, version: i32, order: i16) -> Option<&Step> {
        self.steps.iter().find(|step| (step.version, step.order) == (version, order))
    }

    /// When the step of a version at this place is due, if the one before it was taken `at`. `None`: there is none.
    pub(crate) fn due(
        &self,
        (version, order): (i32, i16),
        at: DateTime<Utc>,
        contact_zone: Option<&str>,
    ) -> Option<DateTime<Utc>> {
        let step = self.step(version, order)?;
        Some(delay::after(at, step.delay_amount, step.delay_unit, delay::zone(contact_zone, &self.timezone)))
    }

    /// The day that it is where the contact is.
    pub(crate) fn day(&self, now: DateTime<Utc>, contact_zone: Option<&str>) -> NaiveDate {
        now.with_timezone(&delay::zone(contact_zone, &self.timezone)).date_naive()
    }
}

/// Loads sequences, without their steps.
pub(crate) async fn load_without_steps(db: &mut PgConnection, keys: BTreeSet<SequenceKey>) -> sqlx::Result<Sequences> {
    let (tenants, ids): (Vec<Uuid>, Vec<Uuid>) = keys.into_iter().unzip();
    let rows = sqlx::query_file!("queries/sequences.sql", &tenants, &ids).fetch_all(db).await?;
    let mut sequences = HashMap::with_capacity(rows.len());
    for row in rows {
        let rules = ExitRules {
            on_unsubscribe: row.exit_on_unsubscribe,
            on_bounce: row.exit_on_bounce,
            on_complaint: row.exit_on_complaint,
        };
        let mail = (MessageKind::Sequence, Classification::Marketing);
        let quiet = QuietRule::of((row.quiet_from, row.quiet_to), row.quiet_for.as_deref(), &row.timezone, mail);
        let sequence = Sequence {
            status: row.status,
            name: row.name,
            sender_profile_id: row.sender_profile_id,
            default_sender_id: row.default_sender_id,
            rules,
            exit_event: row.exit_event.map(|exit| exit.0),
            tenant_active: row.tenant_active,
            timezone: row.timezone,
            quiet,
            owner_email: row.owner_email,
            environment: row.environment,
            steps: Vec::new(),
        };
        sequences.insert((row.tenant_id, row.id), sequence);
    }
    Ok(sequences)
}

/// Loads the sequences of these enrollments, with the steps of their versions.
pub(crate) async fn load(db: &mut PgConnection, due: &[Due]) -> sqlx::Result<Sequences> {
    let keys = due.iter().map(|due| (due.tenant_id, due.sequence_id)).collect();
    let mut sequences = load_without_steps(&mut *db, keys).await?;
    let versions: BTreeSet<(SequenceKey, i32)> =
        due.iter().map(|due| ((due.tenant_id, due.sequence_id), due.version)).collect();
    let (keys, versions): (Vec<SequenceKey>, Vec<i32>) = versions.into_iter().unzip();
    let (tenants, ids): (Vec<Uuid>, Vec<Uuid>) = keys.into_iter().unzip();
    let rows = sqlx::query!(
        r#"select p.tenant_id, p.sequence_id, p.id, p.version, p.step_order, p.step_type as "step_type: StepType", p.template_id,
                  p.delay_amount, p.delay_unit as "delay_unit: DelayUnit", p.action_config as "action_config: Json<Value>"
           from unnest($1::uuid[], $2::uuid[], $3::integer[]) as w (tenant_id, id, version)
           join sequence_steps p on p.tenant_id = w.tenant_id and p.sequence_id = w.id and p.version = w.version
           order by p.step_order"#,
        &tenants,
        &ids,
        &versions,
    )
    .fetch_all(db)
    .await?;
    for row in rows {
        let action = match row.action_config.0 {
            Value::Object(config) => Action::read(row.step_type, config, &Plainly).ok(),
            _ => None,
        };
        let step = Step {
            id: row.id,
            version: row.version,
            order: row.step_order,
            kind: row.step_type,
            template_id: row.template_id,
            delay_amount: u32::try_from(row.delay_amount).unwrap_or(0),
            delay_unit: row.delay_unit,
            action,
        };
        if let Some(sequence) = sequences.get_mut(&(row.tenant_id, row.sequence_id)) {
            sequence.steps.push(step);
        }
    }
    Ok(sequences)
}
