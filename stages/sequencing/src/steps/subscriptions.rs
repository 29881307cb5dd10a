//! `update_subscription`: in or out of a list, or of all marketing. What the recipient chose by an act of his own stays.

use std::collections::HashSet;

use runtime::column;
use serde_json::{Value, json};
use sqlx::PgConnection;
use uuid::Uuid;

use super::{
    DueStep, Effect, MALFORMED, StepOutcome, StepResult,
    audiences::{self, AudienceMembership},
    contacts::{is_locked, lock},
};
use schemas::action::{Action, Subscribed, UpdateSubscription};

fn asked(item: &DueStep<'_>) -> Option<UpdateSubscription> {
    match &item.step.action {
        Some(Action::UpdateSubscription(update)) => Some(*update),
        _ => None,
    }
}

/// What is to become of contacts that could be locked.
type Ready<'a> = [(&'a DueStep<'a>, UpdateSubscription)];

pub(super) async fn update(db: &mut PgConnection, items: &[DueStep<'_>]) -> sqlx::Result<Vec<StepResult>> {
    let locked = lock(db, items).await?;
    let ready: Vec<(&DueStep<'_>, UpdateSubscription)> =
        items.iter().filter(|item| is_locked(item, &locked)).filter_map(|item| Some((item, asked(item)?))).collect();
    let (members, departed) = change_lists(db, &ready).await?;
    let (changed, left) = change_marketing(db, &ready).await?;
    let withheld = |mut detail: Value| {
        detail["reason"] = json!("left_by_recipient");
        StepResult::Took(Effect::of(StepOutcome::Withheld, detail))
    };
    let taken = |item: &DueStep<'_>| {
        let Some(UpdateSubscription { list_id, status }) = asked(item) else { return MALFORMED };
        if !is_locked(item, &locked) {
            return StepResult::Later;
        }
        if let Some(list) = list_id {
            let (key, detail) = ((item.due.tenant_id, list, item.due.contact_id), json!({ "list_id": list }));
            if departed.contains(&key) {
                return withheld(detail);
            }
            return StepResult::Took(Effect::changed(members.contains(&key), detail));
        }
        if status == Subscribed::Subscribed && is_locked(item, &left) {
            return withheld(json!({}));
        }
        let opted_out = status == Subscribed::Unsubscribed;
        StepResult::Took(Effect { opted_out, ..Effect::changed(is_locked(item, &changed), json!({})) })
    };
    Ok(items.iter().map(taken).collect())
}

/// Adds contacts to lists and removes them; answers the changed memberships, and those that the recipient has left.
async fn change_lists(
    db: &mut PgConnection,
    ready: &Ready<'_>,
) -> sqlx::Result<(HashSet<AudienceMembership>, HashSet<AudienceMembership>)> {
    let of = |status: Subscribed| -> Vec<AudienceMembership> {
        let wanted = ready.iter().filter(|(_, update)| update.status == status);
        wanted.filter_map(|(item, update)| Some((item.due.tenant_id, update.list_id?, item.due.contact_id))).collect()
    };
    let (joining, leaving) = (of(Subscribed::Subscribed), of(Subscribed::Unsubscribed));
    let departed = ledger::gate::find_opted_out(&mut *db, &joining).await?;
    let joining: Vec<AudienceMembership> = joining.into_iter().filter(|of| !departed.contains(of)).collect();
    let mut changed = audiences::add(&mut *db, &joining).await?;
    changed.extend(audiences::remove(&mut *db, &leaving).await?);
    Ok((changed, departed))
}

/// Changes whether contacts get marketing at all; answers the changed ones, and those that have left it themselves.
async fn change_marketing(
    db: &mut PgConnection,
    ready: &Ready<'_>,
) -> sqlx::Result<(HashSet<(Uuid, Uuid)>, HashSet<(Uuid, Uuid)>)> {
    let all: Vec<&(&DueStep<'_>, UpdateSubscription)> =
        ready.iter().filter(|(_, update)| update.list_id.is_none()).collect();
    let tenants = column(&all, |(item, _)| item.due.tenant_id);
    let contacts = column(&all, |(item, _)| item.due.contact_id);
    // A later statement than the lock: it sees an opt-out that the lock waited for.
    let rows = sqlx::query!(
        "select w.tenant_id as \"tenant_id!\", w.id as \"id!\"
             from unnest($1::uuid[], $2::uuid[], $3::text[]) as w (tenant_id, id, address)
             where exists (select from own_opt_outs(w.tenant_id, w.address))",
        &tenants,
        &contacts,
        &column(&all, |(item, _)| item.person.address.clone()),
    )
    .fetch_all(&mut *db)
    .await?;
    let left: HashSet<(Uuid, Uuid)> = rows.into_iter().map(|row| (row.tenant_id, row.id)).collect();
    let rows = sqlx::query!(
        "update contacts c set marketing_status = w.status, updated_at = now()
             from unnest($1::uuid[], $2::uuid[], $3::text[], $4::bool[]) as w (tenant_id, id, status, may)
             where c.tenant_id = w.tenant_id and c.id = w.id and w.may and c.marketing_status <> w.status
             returning c.tenant_id, c.id",
        &tenants,
        &contacts,
        &column(&all, |(_, update)| update.status.as_str()) as &[&str],
        &column(&all, |(item, update)| update.status == Subscribed::Unsubscribed || !is_locked(item, &left)),
    )
    .fetch_all(db)
    .await?;
    Ok((rows.into_iter().map(|row| (row.tenant_id, row.id)).collect(), left))
}
