//! How requests name a contact: by its id, its address, or the product's own id of it.

use std::{
    collections::{HashMap, HashSet},
    fmt,
};

use runtime::db::WAIT_BRIEFLY;
use schemas::{Address, parse_id};
use sqlx::PgConnection;
use uuid::Uuid;

use super::{input::EXTERNAL_ID_MAX_CHARS, store::LOOKUPS_MAX};
use crate::pipeline::{Faults, Id, error::ApiError};

/// What names a contact.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum NamedContact {
    Id(Uuid),
    Address(Address),
    ExternalId(String),
}

impl NamedContact {
    /// From the text of an id or an address.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        parse_id(text).map(Self::Id).or_else(|_| Address::parse(text).map(Self::Address)).ok()
    }
}

impl fmt::Display for NamedContact {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Id(id) => id.fmt(out),
            Self::Address(address) => out.write_str(address.as_str()),
            Self::ExternalId(id) => out.write_str(id),
        }
    }
}

/// The fields of a request that name a contact.
#[derive(Debug, Default)]
pub(crate) struct ContactNames {
    pub(crate) contact_id: Option<Id>,
    pub(crate) email: Option<String>,
    pub(crate) external_id: Option<String>,
}

impl ContactNames {
    /// True if no name is given.
    pub(crate) fn is_empty(&self) -> bool {
        self.contact_id.is_none() && self.email.is_none() && self.external_id.is_none()
    }

    /// The one name that is given. Adds a fault for none, for several, and for one that no contact can have.
    pub(crate) fn check(self, prefix: &str, faults: &mut Faults) -> Option<NamedContact> {
        let at = |name: &str| format!("{prefix}{name}");
        match (self.contact_id, self.email, self.external_id) {
            (Some(id), None, None) => Some(NamedContact::Id(id.0)),
            (None, Some(text), None) => faults.address(&at("email"), &text).map(NamedContact::Address),
            (None, None, Some(id)) => {
                faults.title(&at("external_id"), &id, EXTERNAL_ID_MAX_CHARS);
                Some(NamedContact::ExternalId(id))
            }
            (None, None, None) => faults.required(&at("email"), None),
            _ => {
                faults.add(at("email"), "ambiguous", "name the contact by one of contact_id, email and external_id");
                None
            }
        }
    }
}

/// A contact that a name leads to.
#[derive(Debug, Clone)]
struct FoundContact {
    id: Uuid,
    address: String,
}

/// The contacts that names lead to: of a merged contact the one that it is a part of.
#[derive(Debug, Default)]
pub(crate) struct FoundContacts(HashMap<NamedContact, FoundContact>);

impl FoundContacts {
    /// The id of the contact with this name.
    pub(crate) fn id(&self, name: &NamedContact) -> Option<Uuid> {
        self.0.get(name).map(|contact| contact.id)
    }

    /// The ids of all of them, each once.
    fn ids(&self) -> Vec<Uuid> {
        Vec::from_iter(self.0.values().map(|contact| contact.id).collect::<HashSet<Uuid>>())
    }

    /// The address of the contact with this name. An address that is given counts as it is, whether a contact has it or not.
    ///
    /// # Errors
    /// 404 `contact_not_found`.
    pub(crate) fn address(&self, name: &NamedContact) -> Result<Address, ApiError> {
        if let NamedContact::Address(address) = name {
            return Ok(address.clone());
        }
        let found = self.0.get(name).ok_or_else(|| ApiError::not_found("contact"))?;
        Address::parse(&found.address).map_err(|error| ApiError::unexpected(&error))
    }
}

/// The contacts with these names.
pub(crate) async fn find(db: &mut PgConnection, tenant: Uuid, names: &[&NamedContact]) -> sqlx::Result<FoundContacts> {
    let (mut ids, mut addresses, mut external_ids) = (Vec::new(), Vec::new(), Vec::new());
    for name in names {
        match name {
            NamedContact::Id(id) => ids.push(*id),
            NamedContact::Address(address) => addresses.push(address.as_str()),
            NamedContact::ExternalId(id) => external_ids.push(id.as_str()),
        }
    }
    if ids.is_empty() && addresses.is_empty() && external_ids.is_empty() {
        return Ok(FoundContacts::default());
    }
    let rows = sqlx::query!(
        r#"select n.id, n.address, n.external_id, c.id as found_id, c.address as found_address
           from contacts n
           -- Row security keeps a `coalesce` out of the condition of an index.
           join contacts c on c.tenant_id = n.tenant_id and c.id = case when n.merged_into is null then n.id else n.merged_into end
           where n.tenant_id = $1 and (n.id = any ($2) or n.address = any ($3) or n.external_id = any ($4)) 
             and n.status <> 'erased' and c.status <> 'erased'"#,
        tenant,
        &ids,
        &addresses as &[&str],
        &external_ids as &[&str],
    )
    .fetch_all(db)
    .await?;
    let mut found = HashMap::with_capacity(rows.len());
    for row in rows {
        let contact = FoundContact { id: row.found_id, address: row.found_address };
        // By any of its names: which one was asked for makes no difference.
        if let Some(id) = row.external_id {
            found.insert(NamedContact::ExternalId(id), contact.clone());
        }
        if let Ok(address) = Address::parse(&row.address) {
            found.insert(NamedContact::Address(address), contact.clone());
        }
        found.insert(NamedContact::Id(row.id), contact);
    }
    Ok(FoundContacts(found))
}

/// The contacts with these names, held against a merge and an erasure until the end of the transaction.
///
/// # Errors
/// 503 when they are merged each time before they are held.
pub(crate) async fn hold(
    db: &mut PgConnection,
    tenant: Uuid,
    names: &[&NamedContact],
) -> Result<FoundContacts, ApiError> {
    for _ in 0..LOOKUPS_MAX {
        let found = find(&mut *db, tenant, names).await?;
        let ids = found.ids();
        if ids.is_empty() {
            return Ok(found);
        }
        let held = sqlx::query!(
            "select from contacts where tenant_id = $1 and id = any ($2) and status in ('active', 'archived')
             order by id for key share",
            tenant,
            &ids,
        )
        .fetch_all(&mut *db)
        .await?;
        if held.len() == ids.len() {
            return Ok(found);
        }
    }
    Err(ApiError::unavailable())
}

/// The contacts whose addresses are to be looked up: those that are not named by address.
pub(crate) async fn find_addresses(
    db: &mut PgConnection,
    tenant: Uuid,
    names: &[&NamedContact],
) -> sqlx::Result<FoundContacts> {
    find(db, tenant, &not_addresses(names)).await
}

fn not_addresses<'a>(names: &[&'a NamedContact]) -> Vec<&'a NamedContact> {
    names.iter().copied().filter(|name| !matches!(name, NamedContact::Address(_))).collect()
}

/// The addresses of the contacts with these names, for what makes the contact of an address that has none: those that are named otherwise
/// are held, so that none of them is erased, and then made anew. Waits for a second at most: a merge that holds one may wait for an import.
///
/// # Errors
/// 503 when they are merged each time before they are held, or held by another for longer.
pub(crate) async fn hold_addresses(
    db: &mut PgConnection,
    tenant: Uuid,
    names: &[&NamedContact],
) -> Result<FoundContacts, ApiError> {
    let names = not_addresses(names);
    if names.is_empty() {
        return Ok(FoundContacts::default());
    }
    sqlx::raw_sql(WAIT_BRIEFLY).execute(&mut *db).await?;
    let found = hold(&mut *db, tenant, &names).await?;
    sqlx::raw_sql("set local lock_timeout to default").execute(db).await?;
    Ok(found)
}

/// As [`hold_addresses`], without waiting: `None` when another transaction holds one of them, as a merge does.
pub(crate) async fn try_hold_addresses(
    db: &mut PgConnection,
    tenant: Uuid,
    names: &[&NamedContact],
) -> sqlx::Result<Option<FoundContacts>> {
    let found = find_addresses(&mut *db, tenant, names).await?;
    let ids = found.ids();
    if ids.is_empty() {
        return Ok(Some(found));
    }
    let held = sqlx::query!(
        "select from contacts where tenant_id = $1 and id = any ($2) and status in ('active', 'archived')
         order by id for key share skip locked",
        tenant,
        &ids,
    )
    .fetch_all(db)
    .await?;
    Ok((held.len() == ids.len()).then_some(found))
}

/// The address of the contact with this name.
///
/// # Errors
/// 404 `contact_not_found`.
pub(crate) async fn address(db: &mut PgConnection, tenant: Uuid, name: &NamedContact) -> Result<Address, ApiError> {
    find_addresses(db, tenant, &[name]).await?.address(name)
}

/// The address of the contact that an address leads to: of a merged contact that of the one that it is a part of, and itself if there is none.
///
/// # Errors
/// When Postgres is away.
pub(crate) async fn surviving_address(
    db: &mut PgConnection,
    tenant: Uuid,
    address: &Address,
) -> Result<Address, ApiError> {
    let name = NamedContact::Address(address.clone());
    let found = find(db, tenant, &[&name]).await?;
    match found.0.get(&name) {
        Some(contact) => Address::parse(&contact.address).map_err(|error| ApiError::unexpected(&error)),
        None => Ok(address.clone()),
    }
}
