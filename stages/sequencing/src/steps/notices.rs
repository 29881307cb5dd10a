//! `create_task`, `create_opportunity`: the engine has no CRM, so the product that enrolled the contact gets an event.

use chrono::{TimeDelta, Utc};
use runtime::column;
use schemas::EventType;
use serde_json::{Value, json};
use sqlx::PgConnection;
use uuid::Uuid;

use super::{DueStep, Effect, MALFORMED, StepOutcome, StepResult};
use schemas::action::Action;

/// The event for the product: its type and data.
fn notice_of(item: &DueStep<'_>) -> Option<(EventType, Value)> {
    let (event, mut data) = match &item.step.action {
        Some(Action::CreateTask(task)) => {
            let due = task.due_in_days.map(|days| (Utc::now() + TimeDelta::days(i64::from(days))).date_naive());
            (EventType::TaskCreated, json!({"title": task.title, "due_on": due, "notes": task.notes}))
        }
        Some(Action::CreateOpportunity(opportunity)) => (
            EventType::OpportunityCreated,
            json!({"name": opportunity.name, "stage": opportunity.stage, "value_cents": opportunity.value_cents}),
        ),
        _ => return None,
    };
    data["sequence_id"] = json!(item.due.sequence_id);
    data["enrollment_id"] = json!(item.due.id);
    data["step_id"] = json!(item.step.id);
    Some((event, data))
}

pub(super) async fn add_notices(db: &mut PgConnection, items: &[DueStep<'_>]) -> sqlx::Result<Vec<StepResult>> {
    let ready: Vec<&DueStep<'_>> = items.iter().filter(|item| notice_of(item).is_some()).collect();
    // The id comes from what it is about: a repeat would be the same event.
    let (types, data): (Vec<&str>, Vec<Value>) =
        ready.iter().filter_map(|item| notice_of(item)).map(|(event, data)| (event.as_str(), data)).unzip();
    sqlx::query!(
        "insert into notices (tenant_id, id, type, product, contact_id, subject_id, data)
         select * from unnest($1::uuid[], $2::uuid[], $3::text[], $4::text[], $5::uuid[], $6::uuid[], $7::jsonb[])",
        &column(&ready, |item| item.due.tenant_id),
        &column(&ready, |item| Uuid::new_v5(&item.due.id, item.step.id.as_bytes())),
        &types as &[&str],
        &column(&ready, |item| item.due.product.clone()),
        &column(&ready, |item| item.due.contact_id),
        &column(&ready, |item| item.due.id),
        &data,
    )
    .execute(db)
    .await?;
    let taken = |item: &DueStep<'_>| match notice_of(item) {
        None => MALFORMED,
        Some(_) => {
            let event = Uuid::new_v5(&item.due.id, item.step.id.as_bytes());
            StepResult::Took(Effect::of(StepOutcome::Done, json!({ "event_id": event })))
        }
    };
    Ok(items.iter().map(taken).collect())
}
