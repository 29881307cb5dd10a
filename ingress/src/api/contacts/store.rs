//! Contacts in Postgres.

use std::collections::{HashMap, HashSet};

use schemars::JsonSchema;
use schemas::{MarketingStatus, new_id};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sqlx::{PgConnection, types::Json};
use uuid::Uuid;

use crate::{
    api::{audiences::held::AudienceKind, limits},
    pipeline::{RequestContext, error::ApiError},
};

/// In the audit log: a contact's consent was changed by a product.
pub(super) const MARKETING_STATUS_CHANGED: &str = "contact.marketing_status";

schemas::named_enum! {
    /// The states a caller can see: an erased contact is gone.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
    pub(super) wire enum ContactStatus {
        Active = "active",
        Archived = "archived",
    }
}

/// What a change needs to know of a contact before it.
#[derive(Debug)]
pub(crate) struct ContactBeforeChange {
    pub id: Uuid,
    pub address: String,
    pub marketing_status: MarketingStatus,
    /// The recipient unsubscribed through a link in mail: no API call undoes that.
    pub left_by_own_hand: bool,
}

/// The contact that an id leads to: itself, or the one that it was merged into.
///
/// # Errors
/// 404 `contact_not_found`.
pub(crate) async fn survivor(db: &mut PgConnection, tenant: Uuid, id: Uuid) -> Result<Uuid, ApiError> {
    sqlx::query_scalar!(
        r#"select coalesce(merged_into, id) as "id!" from contacts where tenant_id = $1 and id = $2"#,
        tenant,
        id
    )
    .fetch_optional(db)
    .await?
    .ok_or_else(|| ApiError::not_found("contact"))
}

/// The contact of the path, or the one that it was merged into.
pub(super) async fn survivor_of_path(ctx: &mut RequestContext) -> Result<Uuid, ApiError> {
    let (tenant, id) = (ctx.tenant, ctx.id("contact")?);
    survivor(ctx.db(), tenant, id).await
}

/// The contacts that were merged into this one, with their addresses; locked.
pub(crate) async fn merged(db: &mut PgConnection, tenant: Uuid, id: Uuid) -> sqlx::Result<Vec<(Uuid, String)>> {
    let rows = sqlx::query!(
        "select id, address from contacts where tenant_id = $1 and merged_into = $2 and status <> 'erased'
         order by id for no key update",
        tenant,
        id
    );
    Ok(rows.fetch_all(db).await?.into_iter().map(|row| (row.id, row.address)).collect())
}

/// The lists or tags with these names, which are made if they do not exist, and held against a removal and another name until the end of the
/// transaction.
///
/// # Errors
/// 409 when they are too many, 503 when they are removed each time before they are held.
pub(crate) async fn hold_or_create_audiences(
    db: &mut PgConnection,
    tenant: Uuid,
    kind: AudienceKind,
    names: &[String],
) -> Result<HashMap<String, Uuid>, ApiError> {
    let mut names: Vec<String> = names.to_vec();
    names.sort_unstable();
    names.dedup();
    for _ in 0..LOOKUPS_MAX {
        // Before the others are made: one that is given a name of these meanwhile waits for them, and must not be waited for.
        let held = hold_named(&mut *db, tenant, kind, &names).await?;
        if held.len() == names.len() {
            return Ok(held);
        }
        let ids: Vec<Uuid> = names.iter().map(|_| new_id()).collect();
        let created = sqlx::query!(
            "insert into audiences (tenant_id, id, kind, name)
             select $1, new.id, $2, new.name from unnest($3::uuid[], $4::text[]) as new (id, name) order by new.name
             on conflict (tenant_id, kind, name) where deleted_at is null do nothing",
            tenant,
            kind.as_str(),
            &ids,
            &names,
        )
        .execute(&mut *db)
        .await?;
        if created.rows_affected() > 0 {
            limits::of_audiences(kind).check(&mut *db, tenant).await?;
        }
    }
    let held = hold_named(db, tenant, kind, &names).await?;
    if held.len() == names.len() { Ok(held) } else { Err(ApiError::unavailable()) }
}

/// Those of the lists or tags with these names that there are, held.
async fn hold_named(
    db: &mut PgConnection,
    tenant: Uuid,
    kind: AudienceKind,
    names: &[String],
) -> sqlx::Result<HashMap<String, Uuid>> {
    let held = sqlx::query!(
        "select id, name from audiences where tenant_id = $1 and kind = $2 and name = any ($3) and deleted_at is null
         order by id for share",
        tenant,
        kind.as_str(),
        names,
    )
    .fetch_all(db)
    .await?;
    Ok(held.into_iter().map(|row| (row.name, row.id)).collect())
}

/// How often a name is looked up that leads elsewhere each time: what waits for a contact's lock may have waited for its merge.
pub(crate) const LOOKUPS_MAX: usize = 3;

/// Locks the contact that an id leads to, for a change. The lock conflicts with the fence of delivery, so that what is answered is in force;
/// the look at the suppressions is a later statement, which sees what the lock waited for.
///
/// # Errors
/// 404 `contact_not_found`.
pub(crate) async fn lock(db: &mut PgConnection, tenant: Uuid, id: Uuid) -> Result<ContactBeforeChange, ApiError> {
    let mut found = None;
    for _ in 0..LOOKUPS_MAX {
        found = sqlx::query!(
            r#"select id, address, marketing_status as "marketing_status: MarketingStatus" from contacts
               where tenant_id = $1 and status in ('active', 'archived')
                 and id = (select coalesce(merged_into, id) from contacts where tenant_id = $1 and id = $2)
               for no key update"#,
            tenant,
            id,
        )
        .fetch_optional(&mut *db)
        .await?;
        if found.is_some() {
            break;
        }
    }
    let contact = found.ok_or_else(|| ApiError::not_found("contact"))?;
    let left_by_own_hand =
        sqlx::query_scalar!(r#"select exists (select from own_opt_outs($1, $2)) as "left!""#, tenant, contact.address)
            .fetch_one(db)
            .await?;
    Ok(ContactBeforeChange {
        id: contact.id,
        address: contact.address,
        marketing_status: contact.marketing_status,
        left_by_own_hand,
    })
}

/// The values that contacts get.
#[derive(Debug, Serialize)]
pub(crate) struct NewValues<'a> {
    pub id: Uuid,
    /// By name; null clears one.
    pub columns: &'a Map<String, Value>,
    /// Merged into the contact's; null deletes a key.
    pub fields: &'a Map<String, Value>,
}

/// Changes contacts, whose rows the caller has locked. Answers which were not so before. Its fault may be an `external_id` that another
/// contact has: see [`external_id_fault`] and [`external_id_race`].
pub(crate) async fn update(
    db: &mut PgConnection,
    tenant: Uuid,
    values: &[NewValues<'_>],
) -> sqlx::Result<HashSet<Uuid>> {
    if values.is_empty() {
        return Ok(HashSet::new());
    }
    let changed = sqlx::query_file_scalar!("queries/update_contacts.sql", tenant, Json(values) as _);
    Ok(changed.fetch_all(db).await?.into_iter().collect())
}

fn is_external_id_taken(error: &sqlx::Error) -> bool {
    error.as_database_error().is_some_and(|error| error.constraint() == Some("contacts_by_external_id"))
}

/// 409 `external_id_taken` for an `external_id` that another contact has.
pub(super) fn external_id_fault(error: sqlx::Error) -> ApiError {
    if is_external_id_taken(&error) { external_id_taken() } else { error.into() }
}

/// 409 `external_id_taken` for an `external_id` that another contact got at this very moment: a repeat finds that contact.
pub(crate) fn external_id_race(error: sqlx::Error) -> ApiError {
    if !is_external_id_taken(&error) {
        return error.into();
    }
    ApiError::busy("external_id_taken")
        .at("external_id", "another contact gets it at this very moment; repeat the request")
}

/// Another contact of the tenant has the `external_id`.
pub(super) fn external_id_taken() -> ApiError {
    let detail = "another contact has it; merge the two, or change the other one first";
    ApiError::conflict("external_id_taken").at("external_id", detail)
}
