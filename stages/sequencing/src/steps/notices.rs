//! `create_task`, `create_opportunity`: the engine has no CRM, so the product that enrolled the contact gets an event.

use chrono::{DateTime, Days, Utc};
use runtime::column;
use schemas::EventType;
use serde_json::{Value, json};
use sqlx::PgConnection;
use uuid::Uuid;

use super::{DueStep, Effect, MALFORMED, StepOutcome, StepResult};
use schemas::action::Action;

/// The event for the product: its type and data. Days count where the contact is.
fn notice_of(item: &DueStep<'_>, now: DateTime<Utc>) -> Option<(EventType, Value)> {
    let (event, mut data) = match &item.step.action {
        Some(Action::CreateTask(task)) => {
            let today = item.sequence.day(now, item.person.timezone.as_deref());
            let due = task.due_in_days.and_then(|days| today.checked_add_days(Days::new(days.into())));
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

pub(super) async fn add_notices(
    db: &mut PgConnection,
    items: &[DueStep<'_>],
    now: DateTime<Utc>,
) -> sqlx::Result<Vec<StepResult>> {
    // The id comes from what it is about: a repeat would be the same event.
    let event_id = |item: &DueStep<'_>| Uuid::new_v5(&item.due.id, item.step.id.as_bytes());
    let ready: Vec<(&DueStep<'_>, (EventType, Value))> =
        items.iter().filter_map(|item| Some((item, notice_of(item, now)?))).collect();
    sqlx::query!(
        "insert into notices (tenant_id, id, type, product, contact_id, subject_id, data)
         select * from unnest($1::uuid[], $2::uuid[], $3::text[], $4::text[], $5::uuid[], $6::uuid[], $7::jsonb[])",
        &column(&ready, |(item, _)| item.due.tenant_id),
        &column(&ready, |(item, _)| event_id(item)),
        &column(&ready, |(_, (event, _))| event.as_str()) as &[&str],
        &column(&ready, |(item, _)| item.due.product.clone()),
        &column(&ready, |(item, _)| item.due.contact_id),
        &column(&ready, |(item, _)| item.due.id),
        &column(&ready, |(_, (_, data))| data.clone()),
    )
    .execute(db)
    .await?;
    let taken = |item: &DueStep<'_>| match notice_of(item, now) {
        None => MALFORMED,
        Some(_) => StepResult::Took(Effect::of(StepOutcome::Done, json!({ "event_id": event_id(item) }))),
    };
    Ok(items.iter().map(taken).collect())
}
