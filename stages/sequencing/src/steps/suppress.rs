//! `add_suppression`

use std::collections::HashMap;

use serde_json::json;
use sqlx::PgConnection;
use uuid::Uuid;

use super::{
    Effect, Item, MALFORMED, Taken, column,
    contacts::{is_held, lock},
};
use crate::action::{Action, AddSuppression};

fn asked<'a>(item: &Item<'a>) -> Option<&'a AddSuppression> {
    match &item.step.action {
        Some(Action::AddSuppression(add)) => Some(add),
        _ => None,
    }
}

/// Suppresses the contacts' addresses. The contacts are locked first, as every writer of suppressions does: the fence of delivery
/// locks the same rows.
pub(super) async fn add(db: &mut PgConnection, items: &[Item<'_>]) -> sqlx::Result<Vec<Taken>> {
    let held = lock(db, items).await?;
    let ready: Vec<&Item<'_>> = items.iter().filter(|item| is_held(item, &held) && asked(item).is_some()).collect();
    let ids: Vec<Uuid> = ready.iter().map(|_| schemas::new_id()).collect();
    let scopes: Vec<&str> = ready.iter().filter_map(|item| asked(item)).map(|add| add.scope.as_str()).collect();
    let notes: Vec<Option<String>> = ready.iter().filter_map(|item| asked(item)).map(|add| add.note.clone()).collect();
    let rows = sqlx::query_file!(
        "queries/suppress.sql",
        &column(&ready, |item| item.due.tenant_id),
        &ids,
        &column(&ready, |item| item.person.address.clone()),
        &scopes as &[&str],
        &notes as &[Option<String>],
    )
    .fetch_all(db)
    .await?;
    let written: HashMap<(Uuid, String), Uuid> =
        rows.into_iter().map(|row| ((row.tenant_id, row.address), row.id)).collect();
    let taken = |item: &Item<'_>| {
        if asked(item).is_none() {
            return MALFORMED;
        }
        let key = (item.due.tenant_id, item.person.address.clone());
        let Some(id) = written.get(&key).filter(|_| is_held(item, &held)) else { return Taken::Later };
        let effect = Effect::changed(ids.contains(id), json!({ "suppression_id": id }));
        Taken::Took(Effect { opted_out: true, ..effect })
    };
    Ok(items.iter().map(taken).collect())
}
