//! Enrolling: the contact is found or made, and its first step has a time. Needs a transaction confined to the tenant, and nothing
//! of HTTP.

use ledger::gate;
use schemars::JsonSchema;
use schemas::delay;
use schemas::{
    Address, Classification, DelayUnit, MessageKind, SequenceStatus, SkipReason, action::CONTACT_TEXT_MAX_CHARS,
    messages::ContactDetails,
};
use serde::{Deserialize, Serialize};
use sqlx::PgConnection;
use uuid::Uuid;

use crate::{
    api::contacts::{ContactNames, EXTERNAL_ID_MAX_CHARS, LOOKUPS_MAX, NamedContact, check_details, named},
    pipeline::{
        Faults, Id,
        error::ApiError,
        page::Time,
        types::{Email, Line, Name},
    },
};

/// The body of an enrollment, without the tenant.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct EnrollContact {
    #[schemars(required)]
    sequence_id: Option<Id>,
    /// One of email, external_id and contact_id names the contact.
    #[schemars(with = "Option<Email>")]
    email: Option<String>,
    /// Instead of email: the contact's id in the product. The contact must be known.
    #[schemars(with = "Option<Name<EXTERNAL_ID_MAX_CHARS>>")]
    external_id: Option<String>,
    /// Instead of email. The contact must be known.
    contact_id: Option<Id>,
    #[schemars(with = "Option<Line<CONTACT_TEXT_MAX_CHARS>>")]
    first_name: Option<String>,
    #[schemars(with = "Option<Line<CONTACT_TEXT_MAX_CHARS>>")]
    last_name: Option<String>,
    #[schemars(with = "Option<Line<CONTACT_TEXT_MAX_CHARS>>")]
    title: Option<String>,
    #[schemars(with = "Option<Line<CONTACT_TEXT_MAX_CHARS>>")]
    phone: Option<String>,
}

#[derive(Debug)]
pub(super) struct NewEnrollment {
    sequence_id: Uuid,
    contact: NamedContact,
    details: ContactDetails,
}

impl EnrollContact {
    /// Checks its form.
    ///
    /// # Errors
    /// 400 with every fault.
    pub(super) fn validate(self) -> Result<NewEnrollment, ApiError> {
        let mut faults = Faults::default();
        let sequence_id = faults.required("sequence_id", self.sequence_id);
        let names = ContactNames { contact_id: self.contact_id, email: self.email, external_id: self.external_id };
        let contact = names.check("", &mut faults);
        let Self { first_name, last_name, title, phone, .. } = self;
        let details = check_details(ContactDetails { first_name, last_name, title, phone }, &mut faults);
        faults.finish()?;
        Ok(NewEnrollment {
            sequence_id: sequence_id.ok_or_else(ApiError::internal)?.0,
            contact: contact.ok_or_else(ApiError::internal)?,
            details,
        })
    }
}

/// An enrollment that was made.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Enrolled {
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
pub(super) async fn enroll(
    db: &mut PgConnection,
    tenant: Uuid,
    product: &str,
    new: &NewEnrollment,
) -> Result<Enrolled, ApiError> {
    // The sequence is held as it is: one that is being paused or archived waits for this enrollment, which then follows it.
    let status = sqlx::query_scalar!(
        r#"select status as "status: SequenceStatus" from sequences
           where tenant_id = $1 and id = $2 and deleted_at is null for share"#,
        tenant,
        new.sequence_id,
    )
    .fetch_optional(&mut *db)
    .await?
    .ok_or_else(|| ApiError::not_found("sequence"))?;
    if status != SequenceStatus::Active {
        return Err(ApiError::conflict("sequence_not_active").detail(format!("the sequence is {status}")));
    }
    let first = sqlx::query!(
        r#"select now() as "now!", t.timezone as tenant_timezone, p.step_order, p.delay_amount,
                  p.delay_unit as "delay_unit: DelayUnit"
           from sequence_steps p
           join sequences s on s.tenant_id = p.tenant_id and s.id = p.sequence_id and s.version = p.version
           join tenants t on t.id = p.tenant_id
           where p.tenant_id = $1 and p.sequence_id = $2
           order by p.step_order limit 1"#,
        tenant,
        new.sequence_id,
    )
    .fetch_optional(&mut *db)
    .await?
    .ok_or_else(|| ApiError::conflict("sequence_has_no_steps"))?;
    let address = named::hold_addresses(&mut *db, tenant, &[&new.contact]).await?.address(&new.contact)?;
    let contact = find_or_create(&mut *db, tenant, &address, new).await?;
    let zone = delay::zone(contact.timezone.as_deref(), &first.tenant_timezone);
    let due = delay::after(first.now, u32::try_from(first.delay_amount).unwrap_or(0), first.delay_unit, zone);
    let id = schemas::new_id();
    // One that a trigger started counts too; the unique index, which leaves those out, decides between two calls at a time.
    let inserted = sqlx::query_scalar!(
        "insert into enrollments (tenant_id, id, sequence_id, contact_id, product, next_step, next_action_at)
         select $1, $2, $3, $4, $5, $6, $7
         where not exists (select from enrollments e where e.tenant_id = $1 and e.sequence_id = $3 and e.contact_id = $4
                               and e.status in ('active', 'paused'))
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
    let eligibility = gate::load_eligibility(db, &[tenant], &[contact.id]).await?;
    // The mail of sequences is marketing.
    let skip_reason = eligibility
        .values()
        .next()
        .and_then(|eligibility| gate::decide_recipient(eligibility, MessageKind::Sequence, Classification::Marketing));
    Ok(Enrolled {
        enrollment_id: id,
        contact_id: contact.id,
        sequence_id: new.sequence_id,
        next_action_at: next_action_at.into(),
        mailable: skip_reason.is_none(),
        skip_reason,
    })
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
                 when exists (select from unstated_consent(contacts)) then 'subscribed' else marketing_status end
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
