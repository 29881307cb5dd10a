//! People: a contact, and the contact that it was merged into.

use std::collections::{HashMap, HashSet};

use chrono::{DateTime, TimeDelta, Utc};
use runtime::column;
use sqlx::PgConnection;
use uuid::Uuid;

/// How far the clock of a provider may be off, and so its time of an opt-out. In doubt, an opt-out holds.
const CLOCK_ERROR_MAX: TimeDelta = TimeDelta::minutes(5);

/// Two looks: what a contact was merged into, while the first waited for its lock, is found by the second. It is not merged again.
const LOOKUPS_MAX: usize = 2;

/// A contact whose row is locked.
#[derive(Debug, Clone)]
pub(crate) struct LockedContact {
    pub(crate) tenant_id: Uuid,
    pub(crate) id: Uuid,
    pub(crate) address: String,
    pub(crate) marketing_status: String,
    /// When the recipient last opted in.
    pub(crate) opted_in_at: Option<DateTime<Utc>>,
    merged_into: Option<Uuid>,
}

/// A contact and the one that it was merged into, both locked.
#[derive(Debug, Clone)]
pub(crate) struct Person {
    pub(crate) contact: LockedContact,
    merged_into: Option<LockedContact>,
}

impl Person {
    /// The contact that is left: the one that it was merged into, or itself.
    pub(crate) fn survivor(&self) -> &LockedContact {
        self.merged_into.as_ref().unwrap_or(&self.contact)
    }

    /// The contact, and the one that it was merged into.
    pub(crate) fn contacts(&self) -> Vec<&LockedContact> {
        [&self.contact].into_iter().chain(&self.merged_into).collect()
    }

    /// The contacts whose consent an opt-out takes back. One that is pending for another address stays so: who returns by the same link
    /// does not confirm that one.
    pub(crate) fn leaving(&self) -> Vec<&LockedContact> {
        let survivor = self.merged_into.as_ref().filter(|survivor| survivor.marketing_status != "pending");
        [&self.contact].into_iter().chain(survivor).collect()
    }

    /// When the recipient last opted in, by the link of either.
    pub(crate) fn opted_in_at(&self) -> Option<DateTime<Utc>> {
        self.contact.opted_in_at.max(self.survivor().opted_in_at)
    }

    /// True if the recipient has certainly opted in again since an opt-out of this time, by a clock other than that of Postgres.
    pub(crate) fn has_opted_in_since(&self, opted_out_at: DateTime<Utc>) -> bool {
        self.opted_in_at().is_some_and(|at| at - CLOCK_ERROR_MAX > opted_out_at)
    }

    fn is_whole(&self) -> bool {
        self.contact.merged_into.is_none() || self.merged_into.is_some()
    }
}

/// Locks contacts with those that they were merged into, in one order, as a fence and every writer of suppressions do. Answers the people
/// by tenant and contact; an erased contact is left out.
pub(crate) async fn lock_people(
    db: &mut PgConnection,
    wanted: &[(Uuid, Uuid)],
) -> sqlx::Result<HashMap<(Uuid, Uuid), Person>> {
    let (tenants, contacts) = (column(wanted, |(tenant, _)| *tenant), column(wanted, |(_, contact)| *contact));
    let mut people = HashMap::new();
    for _ in 0..LOOKUPS_MAX {
        let rows = sqlx::query_file_as!(LockedContact, "queries/suppressions/lock_contacts.sql", &tenants, &contacts)
            .fetch_all(&mut *db)
            .await?;
        let locked: HashMap<(Uuid, Uuid), LockedContact> =
            rows.into_iter().map(|contact| ((contact.tenant_id, contact.id), contact)).collect();
        let person = |key: &(Uuid, Uuid)| {
            let contact = locked.get(key)?.clone();
            let merged_into = contact.merged_into.and_then(|id| locked.get(&(key.0, id)).cloned());
            Some((*key, Person { contact, merged_into }))
        };
        people = wanted.iter().filter_map(person).collect();
        if people.values().all(Person::is_whole) {
            break;
        }
    }
    Ok(people)
}

/// Locks one contact with the one that it was merged into. `None`: there is no such contact, or it is erased.
pub(crate) async fn lock_person(db: &mut PgConnection, tenant: Uuid, contact: Uuid) -> sqlx::Result<Option<Person>> {
    Ok(lock_people(db, &[(tenant, contact)]).await?.remove(&(tenant, contact)))
}

/// Locks those of these contacts that no other transaction has locked, before their suppressions change; answers which they are.
pub(crate) async fn try_lock_contacts(
    db: &mut PgConnection,
    tenants: &[Uuid],
    contacts: &[Uuid],
) -> sqlx::Result<HashSet<Uuid>> {
    let locked = sqlx::query_file_scalar!("queries/fence/try_contacts_for_suppression.sql", tenants, contacts);
    Ok(locked.fetch_all(db).await?.into_iter().collect())
}
