//! Enrolling: the contact is found or made, and its first step has a time. Needs a transaction confined to the tenant, and nothing
//! of HTTP.

use chrono::{DateTime, Utc};
use ledger::gate;
use schemars::JsonSchema;
use schemas::delay;
use schemas::{Address, Classification, DelayUnit, MessageKind, SequenceStatus, SkipReason};
use serde::Serialize;
use sqlx::PgConnection;
use uuid::Uuid;

use super::input::NewEnrollment;
use crate::{
    api::contacts::{LOOKUPS_MAX, named},
    pipeline::{error::ApiError, page::Time},
};

/// An enrollment that was made.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Enrolled {
    enrollment_id: Uuid,
    contact_id: Uuid,
    sequence_id: Uuid,
    /// When its first step is due.
    next_action_at: Time,
    /// Whether marketing mail to the contact would pass the gate now.
    mailable: bool,
    /// Why the gate would withhold it.
    skip_reason: Option<SkipReason>,
}

/// Enrolls a contact. `product` gets the events of tasks and opportunities.
///
/// # Errors
/// 404 `sequence_not_found`, `contact_not_found`; 409 `sequence_not_active`, `sequence_has_no_steps`, `already_enrolled`.
pub(crate) async fn enroll(
    db: &mut PgConnection,
    tenant: Uuid,
    product: &str,
    new: &NewEnrollment,
) -> Result<Enrolled, ApiError> {
    let first = first_step(&mut *db, tenant, new.sequence_id).await?;
    let address = named::address(&mut *db, tenant, &new.contact).await?;
    let contact = find_or_create(&mut *db, tenant, &address, new).await?;
    let zone = delay::zone(contact.timezone.as_deref(), &first.tenant_timezone);
    let due = delay::after(first.now, u32::try_from(first.delay_amount).unwrap_or(0), first.delay_unit, zone);
    let id = schemas::new_id();
    let inserted = sqlx::query_scalar!(
        "insert into enrollments (tenant_id, id, sequence_id, contact_id, product, next_step, next_action_at)
         values ($1, $2, $3, $4, $5, $6, $7)
         on conflict (tenant_id, sequence_id, contact_id) where status in ('active', 'paused') and not is_parallel do nothing
         returning next_action_at",
        tenant,
        id,
        new.sequence_id,
        contact.id,
        product,
        first.step_order,
        due,
    )
    .fetch_optional(&mut *db)
    .await?
    .flatten();
    let Some(next_action_at) = inserted else { return Err(ApiError::conflict("already_enrolled")) };
    // Who may not be mailed any more leaves at once, and not only when the first step is due.
    sqlx::query!("insert into enrollment_checks (tenant_id, contact_id) values ($1, $2)", tenant, contact.id)
        .execute(&mut *db)
        .await?;
    let eligibility = gate::load_eligibility(db, tenant, &[contact.id]).await?;
    // The mail of sequences is marketing.
    let skip_reason = eligibility.first().and_then(|(_, eligibility)| {
        gate::decide_recipient(eligibility, MessageKind::Sequence, Classification::Marketing)
    });
    Ok(Enrolled {
        enrollment_id: id,
        contact_id: contact.id,
        sequence_id: new.sequence_id,
        next_action_at: next_action_at.into(),
        mailable: skip_reason.is_none(),
        skip_reason,
    })
}

/// What the first step says.
struct FirstStep {
    now: DateTime<Utc>,
    tenant_timezone: String,
    step_order: i16,
    delay_amount: i32,
    delay_unit: DelayUnit,
}

/// Holds the sequence as it is: one that is being paused or archived waits for this enrollment, which then follows it.
async fn first_step(db: &mut PgConnection, tenant: Uuid, sequence: Uuid) -> Result<FirstStep, ApiError> {
    let status = sqlx::query_scalar!(
        r#"select status as "status: SequenceStatus" from sequences
           where tenant_id = $1 and id = $2 and deleted_at is null for share"#,
        tenant,
        sequence,
    )
    .fetch_optional(&mut *db)
    .await?
    .ok_or_else(|| ApiError::not_found("sequence"))?;
    if status != SequenceStatus::Active {
        return Err(ApiError::conflict("sequence_not_active").detail(format!("the sequence is {status}")));
    }
    sqlx::query_as!(
        FirstStep,
        r#"select now() as "now!", t.timezone as tenant_timezone, p.step_order, p.delay_amount,
                  p.delay_unit as "delay_unit: DelayUnit"
           from sequence_steps p
           join sequences s on s.tenant_id = p.tenant_id and s.id = p.sequence_id and s.version = p.version
           join tenants t on t.id = p.tenant_id
           where p.tenant_id = $1 and p.sequence_id = $2
           order by p.step_order limit 1"#,
        tenant,
        sequence,
    )
    .fetch_optional(db)
    .await?
    .ok_or_else(|| ApiError::conflict("sequence_has_no_steps"))
}

struct EnrolledContact {
    id: Uuid,
    timezone: Option<String>,
}

/// Finds or makes the contact by address, and fills what it has nothing in yet. A new one is subscribed, as one that is created
/// through `/v1/contacts` is, unless its recipient has unsubscribed: the product that enrolls a contact says that it may be written to. The
/// same holds for a contact that the engine itself made for transactional or one-off mail, and of which nothing else is known. What the
/// product or the recipient said of a contact (unsubscribed, pending, suppressed) stays and counts. An archived contact is active again.
async fn find_or_create(
    db: &mut PgConnection,
    tenant: Uuid,
    address: &Address,
    new: &NewEnrollment,
) -> Result<EnrolledContact, ApiError> {
    sqlx::query!(
        "insert into contacts (tenant_id, id, address, first_name, last_name, title, phone, source, marketing_status)
         select $1, $2, $3, $4, $5, $6, $7, 'enrollment',
                case when exists (select from own_opt_outs($1, $3)) then 'unsubscribed' else 'subscribed' end
         where not exists (select from contacts c where c.tenant_id = $1 and c.address = $3)
         on conflict (tenant_id, address) do nothing",
        tenant,
        schemas::new_id(),
        address.as_str(),
        new.details.first_name,
        new.details.last_name,
        new.details.title,
        new.details.phone,
    )
    .execute(&mut *db)
    .await?;
    // Statements of their own: another transaction may have inserted it meanwhile.
    let contact = lock_by_address(&mut *db, tenant, address).await?;
    sqlx::query!(
        "update contacts
         set first_name = coalesce(first_name, $3), last_name = coalesce(last_name, $4), title = coalesce(title, $5),
             phone = coalesce(phone, $6), status = 'active', updated_at = now(),
             marketing_status = case
                 when marketing_status = 'pending' and is_known_from_mail(source)
                      and not exists (select from confirmations f where f.tenant_id = $1 and f.contact_id = contacts.id)
                      and not exists (select from own_opt_outs($1, contacts.address))
                 then 'subscribed' else marketing_status end
         where tenant_id = $1 and id = $2
           and (status = 'archived' or marketing_status = 'pending' and is_known_from_mail(source)
                or first_name is null and $3::text is not null or last_name is null and $4::text is not null
                or title is null and $5::text is not null or phone is null and $6::text is not null)",
        tenant,
        contact.id,
        new.details.first_name,
        new.details.last_name,
        new.details.title,
        new.details.phone,
    )
    .execute(db)
    .await?;
    Ok(contact)
}

/// Locks the contact that an address leads to: of a merged contact the one that it is a part of.
async fn lock_by_address(db: &mut PgConnection, tenant: Uuid, address: &Address) -> Result<EnrolledContact, ApiError> {
    for _ in 0..LOOKUPS_MAX {
        let found = sqlx::query_as!(
            EnrolledContact,
            "select id, timezone from contacts
             where tenant_id = $1 and status in ('active', 'archived')
               and id = (select coalesce(merged_into, id) from contacts where tenant_id = $1 and address = $2)
             for no key update",
            tenant,
            address.as_str(),
        )
        .fetch_optional(&mut *db)
        .await?;
        if let Some(contact) = found {
            return Ok(contact);
        }
    }
    // One that was erased at this very moment is made anew by a repeat.
    Err(ApiError::unavailable())
}
