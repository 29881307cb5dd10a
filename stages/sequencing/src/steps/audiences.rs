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

/// Adds contacts to the tags of their steps, or removes them.
pub(super) async fn change(
    db: &mut PgConnection,
    items: &[DueStep<'_>],
    is_join: bool,
) -> sqlx::Result<Vec<StepResult>> {
    let locked = lock(&mut *db, items).await?;
    let membership = |item: &DueStep<'_>| Some((item.due.tenant_id, tag(item)?, item.due.contact_id));
    // Those of the contacts that could be locked: an import that keeps a contact for seconds may be adding it to the audience.
    let ready = items.iter().filter(|item| is_locked(item, &locked));
    let ready: Vec<AudienceMembership> = ready.filter_map(membership).collect();
    let changed = if is_join { add(db, &ready).await? } else { remove(db, &ready).await? };
    let taken = |item: &DueStep<'_>| match membership(item) {
        None => MALFORMED,
        Some(_) if !is_locked(item, &locked) => StepResult::Later,
        Some(of) => StepResult::Took(Effect::changed(changed.contains(&of), json!({ "tag_id": of.1 }))),
    };
    Ok(items.iter().map(taken).collect())
}

fn tag(item: &DueStep<'_>) -> Option<Uuid> {
    match &item.step.action {
        Some(Action::ApplyTag(tag) | Action::RemoveTag(tag)) => Some(tag.tag_id),
        _ => None,
    }
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
