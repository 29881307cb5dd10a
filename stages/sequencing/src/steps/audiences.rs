//! `apply_tag`, `remove_tag`, and lists for `update_subscription`.

use std::collections::HashSet;

use runtime::column;
use serde_json::json;
use sqlx::PgConnection;
use uuid::Uuid;

use super::{
    DueStep, Effect, MALFORMED, StepResult,
    contacts::{is_locked, lock},
};
use schemas::action::Action;

/// A contact and an audience of its tenant.
pub(super) type AudienceMembership = (Uuid, Uuid, Uuid);

pub(super) async fn join(db: &mut PgConnection, items: &[DueStep<'_>]) -> sqlx::Result<Vec<StepResult>> {
    let locked = lock(&mut *db, items).await?;
    let added = add(db, &memberships(items, &locked)).await?;
    Ok(items.iter().map(|item| taken(item, &locked, &added)).collect())
}

pub(super) async fn leave(db: &mut PgConnection, items: &[DueStep<'_>]) -> sqlx::Result<Vec<StepResult>> {
    let locked = lock(&mut *db, items).await?;
    let removed = remove(db, &memberships(items, &locked)).await?;
    Ok(items.iter().map(|item| taken(item, &locked, &removed)).collect())
}

/// Those of the contacts that could be locked: an import that keeps a contact for seconds may be adding it to the audience.
fn memberships(items: &[DueStep<'_>], locked: &HashSet<(Uuid, Uuid)>) -> Vec<AudienceMembership> {
    let ready = items.iter().filter(|item| is_locked(item, locked));
    ready.filter_map(|item| Some((item.due.tenant_id, tag(item)?, item.due.contact_id))).collect()
}

fn tag(item: &DueStep<'_>) -> Option<Uuid> {
    match &item.step.action {
        Some(Action::ApplyTag(tag) | Action::RemoveTag(tag)) => Some(tag.tag_id),
        _ => None,
    }
}

fn taken(item: &DueStep<'_>, locked: &HashSet<(Uuid, Uuid)>, changed: &HashSet<AudienceMembership>) -> StepResult {
    let Some(tag) = tag(item) else { return MALFORMED };
    if !is_locked(item, locked) {
        return StepResult::Later;
    }
    let is_changed = changed.contains(&(item.due.tenant_id, tag, item.due.contact_id));
    StepResult::Took(Effect::changed(is_changed, json!({ "tag_id": tag })))
}

/// Adds members; answers those that were none before. In key order, as all transactions add them.
pub(super) async fn add(
    db: &mut PgConnection,
    memberships: &[AudienceMembership],
) -> sqlx::Result<HashSet<AudienceMembership>> {
    let rows = sqlx::query!(
        "insert into audience_members (tenant_id, audience_id, contact_id)
         select w.tenant_id, w.audience_id, w.contact_id
         from unnest($1::uuid[], $2::uuid[], $3::uuid[]) as w (tenant_id, audience_id, contact_id)
         order by w.tenant_id, w.audience_id, w.contact_id
         on conflict do nothing
         returning tenant_id, audience_id, contact_id",
        &column(memberships, |of| of.0),
        &column(memberships, |of| of.1),
        &column(memberships, |of| of.2),
    )
    .fetch_all(db)
    .await?;
    Ok(rows.into_iter().map(|row| (row.tenant_id, row.audience_id, row.contact_id)).collect())
}

/// Removes members; answers those that were some.
pub(super) async fn remove(
    db: &mut PgConnection,
    memberships: &[AudienceMembership],
) -> sqlx::Result<HashSet<AudienceMembership>> {
    let rows = sqlx::query!(
        "delete from audience_members m
         using unnest($1::uuid[], $2::uuid[], $3::uuid[]) as w (tenant_id, audience_id, contact_id)
         where m.tenant_id = w.tenant_id and m.audience_id = w.audience_id and m.contact_id = w.contact_id
         returning m.tenant_id, m.audience_id, m.contact_id",
        &column(memberships, |of| of.0),
        &column(memberships, |of| of.1),
        &column(memberships, |of| of.2),
    )
    .fetch_all(db)
    .await?;
    Ok(rows.into_iter().map(|row| (row.tenant_id, row.audience_id, row.contact_id)).collect())
}
