//! Contacts in Postgres.

use schemas::{new_id, parse_id};
use serde_json::Value;
use sqlx::PgConnection;
use uuid::Uuid;

use super::input::{ChangeContact, Consent, ContactMarketingStatus, CreateContact};
use crate::{api::audiences::AudienceKind, pipeline::error::ApiError};

/// What a change needs to know of a contact before it.
#[derive(Debug)]
pub(crate) struct ContactBeforeChange {
    pub address: String,
    pub marketing_status: String,
    /// The recipient unsubscribed through a link in mail: no API call undoes that.
    pub left_by_own_hand: bool,
}

/// 404 `list_not_found` or `tag_not_found` unless there is one.
pub(crate) async fn require_audience(
    db: &mut PgConnection,
    tenant: Uuid,
    id: Uuid,
    kind: AudienceKind,
) -> Result<(), ApiError> {
    sqlx::query_scalar!(
        "select id from audiences where tenant_id = $1 and id = $2 and kind = $3",
        tenant,
        id,
        kind.as_str()
    )
    .fetch_optional(db)
    .await?
    .map(drop)
    .ok_or_else(|| ApiError::not_found(kind.as_str()))
}

/// Finds or creates by address; `true` when it was created.
pub(crate) async fn find_or_create(
    db: &mut PgConnection,
    tenant: Uuid,
    new: &CreateContact,
) -> sqlx::Result<(Uuid, bool)> {
    let id = new_id();
    let consent = new.consent.clone().unwrap_or_default();
    let inserted = sqlx::query!(
        "insert into contacts (tenant_id, id, address, first_name, last_name, title, phone, company, dot_number, timezone, locale,
                               lifecycle_stage, fields, marketing_status, source, consent_basis, consent_at, consent_source,
                               consent_description)
         values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, coalesce($15, 'api'), $16, $17, $18, $19)
         on conflict (tenant_id, address) do nothing",
        tenant,
        id,
        new.email,
        new.first_name,
        new.last_name,
        new.title,
        new.phone,
        new.company,
        new.dot_number,
        new.timezone,
        new.locale,
        new.lifecycle_stage,
        Value::Object(new.fields.clone()),
        new.marketing_status.unwrap_or(ContactMarketingStatus::Subscribed).as_str(),
        new.source,
        consent.basis,
        consent.at,
        consent.source,
        consent.description,
    )
    .execute(&mut *db)
    .await?;
    if inserted.rows_affected() == 1 {
        return Ok((id, true));
    }
    // In statements of their own, which see a row that a concurrent request has just committed.
    sqlx::query!(
        "update contacts set status = 'active', updated_at = now() where tenant_id = $1 and address = $2 and status = 'archived'",
        tenant,
        new.email,
    )
    .execute(&mut *db)
    .await?;
    let found = sqlx::query!("select id from contacts where tenant_id = $1 and address = $2", tenant, new.email,)
        .fetch_one(db)
        .await?;
    Ok((found.id, false))
}

/// Subscribes a contact whose consent is pending, and notes where the consent comes from. One that unsubscribed stays so, and so does
/// one of which a suppression says that the recipient left. `true`: it was pending and is subscribed now.
pub(crate) async fn subscribe_pending(
    db: &mut PgConnection,
    tenant: Uuid,
    id: Uuid,
    consent: &Consent,
) -> Result<bool, ApiError> {
    let before = lock(&mut *db, tenant, id).await?;
    if before.marketing_status != ContactMarketingStatus::Pending.as_str() || before.left_by_own_hand {
        return Ok(false);
    }
    sqlx::query!(
        "update contacts set
             marketing_status = 'subscribed', consent_basis = coalesce($3, consent_basis), consent_at = coalesce($4, consent_at),
             consent_source = coalesce($5, consent_source), consent_description = coalesce($6, consent_description),
             updated_at = now()
         where tenant_id = $1 and id = $2",
        tenant,
        id,
        consent.basis,
        consent.at,
        consent.source,
        consent.description,
    )
    .execute(db)
    .await?;
    Ok(true)
}

/// Puts a contact into lists or tags, named by id or by name; an unknown name is created.
pub(crate) async fn join(
    db: &mut PgConnection,
    tenant: Uuid,
    contact: Uuid,
    kind: AudienceKind,
    named: &[String],
) -> Result<(), ApiError> {
    if named.is_empty() {
        return Ok(());
    }
    let mut ids = Vec::new();
    let mut names = Vec::new();
    for text in named {
        match parse_id(text) {
            Ok(id) => {
                require_audience(&mut *db, tenant, id, kind).await?;
                ids.push(id);
            }
            Err(_) => names.push(text.trim().to_owned()),
        }
    }
    ensure_audiences(&mut *db, tenant, kind, &names).await?;
    sqlx::query!(
        "insert into audience_members (tenant_id, audience_id, contact_id)
         select $1, id, $2 from audiences where tenant_id = $1 and kind = $3 and (id = any ($4) or name = any ($5))
         on conflict do nothing",
        tenant,
        contact,
        kind.as_str(),
        &ids,
        &names,
    )
    .execute(db)
    .await?;
    Ok(())
}

/// Creates the lists or tags that do not exist.
pub(crate) async fn ensure_audiences(
    db: &mut PgConnection,
    tenant: Uuid,
    kind: AudienceKind,
    names: &[String],
) -> sqlx::Result<()> {
    let mut names: Vec<String> = names.to_vec();
    names.sort_unstable();
    names.dedup();
    let ids: Vec<Uuid> = names.iter().map(|_| new_id()).collect();
    sqlx::query!(
        "insert into audiences (tenant_id, id, kind, name)
         select $1, new.id, $2, new.name from unnest($3::uuid[], $4::text[]) as new (id, name) order by new.name
         on conflict (tenant_id, kind, name) do nothing",
        tenant,
        kind.as_str(),
        &ids,
        &names,
    )
    .execute(db)
    .await
    .map(drop)
}

/// Locks a contact for a change. The lock conflicts with the fence of delivery, so that what is answered is in force; the look
/// at the suppressions is a later statement, which sees what the lock waited for.
pub(crate) async fn lock(db: &mut PgConnection, tenant: Uuid, id: Uuid) -> Result<ContactBeforeChange, ApiError> {
    let contact = sqlx::query!(
        "select address, marketing_status from contacts where tenant_id = $1 and id = $2 and status <> 'erased'
         for no key update",
        tenant,
        id,
    )
    .fetch_optional(&mut *db)
    .await?
    .ok_or_else(|| ApiError::not_found("contact"))?;
    let left_by_own_hand = sqlx::query_scalar!(
        r#"select exists (
               select from suppressions
               where tenant_id = $1 and address = $2 and reason = 'unsubscribe' and source = 'recipient'
                 and (expires_at is null or expires_at > now())
           ) as "left!""#,
        tenant,
        contact.address,
    )
    .fetch_one(db)
    .await?;
    Ok(ContactBeforeChange { address: contact.address, marketing_status: contact.marketing_status, left_by_own_hand })
}

/// Changes what the caller names; `fields` are merged, null deletes a key.
pub(crate) async fn update(db: &mut PgConnection, tenant: Uuid, id: Uuid, change: &ChangeContact) -> sqlx::Result<()> {
    let consent = change.consent.clone();
    let marketing_status = change.marketing_status.map(|status| status.as_str());
    let status = change.status.map(|status| status.as_str());
    sqlx::query!(
        "update contacts set
             first_name = case when $3 then $4 else first_name end,
             last_name = case when $5 then $6 else last_name end,
             title = case when $7 then $8 else title end,
             phone = case when $9 then $10 else phone end,
             company = case when $11 then $12 else company end,
             dot_number = case when $13 then $14 else dot_number end,
             timezone = case when $15 then $16 else timezone end,
             locale = case when $17 then $18 else locale end,
             lifecycle_stage = case when $19 then $20 else lifecycle_stage end,
             source = case when $21 then $22 else source end,
             fields = jsonb_strip_nulls(fields || $23),
             status = coalesce($24, status),
             marketing_status = coalesce($25, marketing_status),
             consent_basis = case when $26 then $27 else consent_basis end,
             consent_at = case when $26 then $28 else consent_at end,
             consent_source = case when $26 then $29 else consent_source end,
             consent_description = case when $26 then $30 else consent_description end,
             updated_at = now()
         where tenant_id = $1 and id = $2",
        tenant,
        id,
        change.first_name.is_given(),
        change.first_name.value(),
        change.last_name.is_given(),
        change.last_name.value(),
        change.title.is_given(),
        change.title.value(),
        change.phone.is_given(),
        change.phone.value(),
        change.company.is_given(),
        change.company.value(),
        change.dot_number.is_given(),
        change.dot_number.value().copied(),
        change.timezone.is_given(),
        change.timezone.value(),
        change.locale.is_given(),
        change.locale.value(),
        change.lifecycle_stage.is_given(),
        change.lifecycle_stage.value(),
        change.source.is_given(),
        change.source.value(),
        Value::Object(change.fields.clone()),
        status,
        marketing_status,
        consent.is_some(),
        consent.as_ref().and_then(|consent| consent.basis.as_deref()),
        consent.as_ref().and_then(|consent| consent.at),
        consent.as_ref().and_then(|consent| consent.source.as_deref()),
        consent.as_ref().and_then(|consent| consent.description.as_deref()),
    )
    .execute(db)
    .await
    .map(drop)
}

/// Archives. Harmless to repeat.
pub(crate) async fn archive(db: &mut PgConnection, tenant: Uuid, id: Uuid) -> sqlx::Result<()> {
    sqlx::query!(
        "update contacts set status = 'archived', updated_at = now() where tenant_id = $1 and id = $2 and status <> 'archived'",
        tenant,
        id,
    )
    .execute(db)
    .await
    .map(drop)
}
