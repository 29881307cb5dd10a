//! `update_subscription`: in or out of a list, or of all marketing. What the recipient chose by an act of his own stays.

use std::collections::HashSet;

use serde_json::json;
use sqlx::PgConnection;
use uuid::Uuid;

use super::{
    Effect, Item, MALFORMED, Outcome, Taken,
    audiences::{self, Membership},
    column,
    contacts::{is_locked, lock},
};
use schemas::action::{Action, Subscribed, UpdateSubscription};

fn asked(item: &Item<'_>) -> Option<UpdateSubscription> {
    match &item.step.action {
        Some(Action::UpdateSubscription(update)) => Some(*update),
        _ => None,
    }
}

pub(super) async fn update(db: &mut PgConnection, items: &[Item<'_>]) -> sqlx::Result<Vec<Taken>> {
    let locked = lock(db, items).await?;
    let ready: Vec<(&Item<'_>, UpdateSubscription)> =
        items.iter().filter(|item| is_locked(item, &locked)).filter_map(|item| Some((item, asked(item)?))).collect();
    let lists = Lists::change(db, &ready).await?;
    let marketing = Marketing::change(db, &ready).await?;
    let taken = |item: &Item<'_>| match asked(item) {
        None => MALFORMED,
        Some(_) if !is_locked(item, &locked) => Taken::Later,
        Some(UpdateSubscription { list_id: Some(list), .. }) => Taken::Took(lists.effect(item, list)),
        Some(update) => Taken::Took(marketing.effect(item, update.status)),
    };
    Ok(items.iter().map(taken).collect())
}

/// What became of lists.
struct Lists {
    changed: HashSet<Membership>,
    departed: HashSet<Membership>,
}

impl Lists {
    async fn change(db: &mut PgConnection, ready: &[(&Item<'_>, UpdateSubscription)]) -> sqlx::Result<Self> {
        let of = |status: Subscribed| -> Vec<Membership> {
            let wanted = ready.iter().filter(|(_, update)| update.status == status);
            wanted
                .filter_map(|(item, update)| Some((item.due.tenant_id, update.list_id?, item.due.contact_id)))
                .collect()
        };
        let (joining, leaving) = (of(Subscribed::Subscribed), of(Subscribed::Unsubscribed));
        let departed = audiences::departed(&mut *db, &joining).await?;
        let joining: Vec<Membership> = joining.into_iter().filter(|of| !departed.contains(of)).collect();
        let mut changed = audiences::add(&mut *db, &joining).await?;
        changed.extend(audiences::remove(&mut *db, &leaving).await?);
        Ok(Self { changed, departed })
    }

    fn effect(&self, item: &Item<'_>, list: Uuid) -> Effect {
        let key = (item.due.tenant_id, list, item.due.contact_id);
        if self.departed.contains(&key) {
            return Effect::of(Outcome::Withheld, json!({"list_id": list, "reason": "left_by_recipient"}));
        }
        Effect::changed(self.changed.contains(&key), json!({ "list_id": list }))
    }
}

/// What became of marketing as a whole.
struct Marketing {
    changed: HashSet<(Uuid, Uuid)>,
    left: HashSet<(Uuid, Uuid)>,
}

impl Marketing {
    async fn change(db: &mut PgConnection, ready: &[(&Item<'_>, UpdateSubscription)]) -> sqlx::Result<Self> {
        let all: Vec<&(&Item<'_>, UpdateSubscription)> =
            ready.iter().filter(|(_, update)| update.list_id.is_none()).collect();
        let items: Vec<&Item<'_>> = all.iter().map(|(item, _)| *item).collect();
        let (tenants, contacts) =
            (column(&items, |item| item.due.tenant_id), column(&items, |item| item.due.contact_id));
        // A later statement than the lock: it sees an opt-out that the lock waited for.
        let rows = sqlx::query!(
            "select w.tenant_id as \"tenant_id!\", w.id as \"id!\"
             from unnest($1::uuid[], $2::uuid[], $3::text[]) as w (tenant_id, id, address)
             where exists (
                 select from suppressions s
                 where s.tenant_id = w.tenant_id and s.address = w.address and s.reason = 'unsubscribe'
                   and s.source not in ('api', 'import', 'sequence') and (s.expires_at is null or s.expires_at > now()))",
            &tenants,
            &contacts,
            &column(&items, |item| item.person.address.clone()),
        )
        .fetch_all(&mut *db)
        .await?;
        let left: HashSet<(Uuid, Uuid)> = rows.into_iter().map(|row| (row.tenant_id, row.id)).collect();
        let wanted: Vec<&str> = all
            .iter()
            .map(|(_, update)| match update.status {
                Subscribed::Subscribed => "subscribed",
                Subscribed::Unsubscribed => "unsubscribed",
            })
            .collect();
        let may: Vec<bool> = all
            .iter()
            .map(|(item, update)| update.status == Subscribed::Unsubscribed || !is_locked(item, &left))
            .collect();
        let rows = sqlx::query!(
            "update contacts c set marketing_status = w.status, updated_at = now()
             from unnest($1::uuid[], $2::uuid[], $3::text[], $4::bool[]) as w (tenant_id, id, status, may)
             where c.tenant_id = w.tenant_id and c.id = w.id and w.may and c.marketing_status <> w.status
             returning c.tenant_id, c.id",
            &tenants,
            &contacts,
            &wanted as &[&str],
            &may,
        )
        .fetch_all(db)
        .await?;
        Ok(Self { changed: rows.into_iter().map(|row| (row.tenant_id, row.id)).collect(), left })
    }

    fn effect(&self, item: &Item<'_>, status: Subscribed) -> Effect {
        if status == Subscribed::Subscribed && is_locked(item, &self.left) {
            return Effect::of(Outcome::Withheld, json!({"reason": "left_by_recipient"}));
        }
        let opted_out = status == Subscribed::Unsubscribed;
        Effect { opted_out, ..Effect::changed(is_locked(item, &self.changed), json!({})) }
    }
}
