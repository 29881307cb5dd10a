//! How a tenant's contacts are asked to confirm their consent: by which mail, and how often and how long.

use std::ops::RangeInclusive;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sqlx::PgConnection;
use uuid::Uuid;

use crate::pipeline::{Faults, Id, Patch, error::ApiError};

/// The most reminders after the first mail.
const REMINDERS_MAX: i32 = 3;
/// The longest time before a reminder, in hours.
const REMINDER_HOURS_MAX: i32 = 720;
/// The longest time before the links expire, in days.
const DAYS_MAX: i32 = 90;
/// What a template of the tenant must print.
const LINK: &str = "data.confirmation_url";

/// How contacts are asked to confirm their consent. Null: as the installation does it.
#[derive(Debug, Clone, Copy, Default, Serialize, JsonSchema)]
pub struct TenantConfirmation {
    /// The tenant's own mail; null: the engine's, in English, German, French or Spanish by the contact's locale.
    pub template_id: Option<Uuid>,
    /// Reminders after the first mail.
    #[schemars(range(min = 0, max = REMINDERS_MAX))]
    pub reminders: Option<i32>,
    /// Hours before a reminder.
    #[schemars(range(min = 1, max = REMINDER_HOURS_MAX))]
    pub reminder_hours: Option<i32>,
    /// Days after the first mail before the links expire.
    #[schemars(range(min = 1, max = DAYS_MAX))]
    pub days: Option<i32>,
}

/// What is to be changed of the confirmation of consent. What is left out stays; null: as the installation does it.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ConfirmationChange {
    /// A transactional template that prints `data.confirmation_url`. It may use `data.organisation` and `data.is_reminder`.
    pub template_id: Patch<Id>,
    /// Reminders after the first mail.
    #[schemars(range(min = 0, max = REMINDERS_MAX))]
    pub reminders: Patch<i32>,
    /// Hours before a reminder.
    #[schemars(range(min = 1, max = REMINDER_HOURS_MAX))]
    pub reminder_hours: Patch<i32>,
    /// Days after the first mail before the links expire.
    #[schemars(range(min = 1, max = DAYS_MAX))]
    pub days: Patch<i32>,
}

impl ConfirmationChange {
    /// The settings after this change. Faults are named by their fields.
    pub(super) fn applied_to(self, before: TenantConfirmation, faults: &mut Faults) -> TenantConfirmation {
        let mut within = |path: &str, patch: Patch<i32>, before: Option<i32>, range: RangeInclusive<i32>| {
            let number = patch.applied_to(before);
            if let Some(number) = number {
                faults.within(path, number, range);
            }
            number
        };
        TenantConfirmation {
            template_id: self.template_id.applied_to(before.template_id.map(Id)).map(|Id(id)| id),
            reminders: within("confirmation.reminders", self.reminders, before.reminders, 0..=REMINDERS_MAX),
            reminder_hours: within(
                "confirmation.reminder_hours",
                self.reminder_hours,
                before.reminder_hours,
                1..=REMINDER_HOURS_MAX,
            ),
            days: within("confirmation.days", self.days, before.days, 1..=DAYS_MAX),
        }
    }
}

/// Refuses a template that cannot be the confirmation mail, and holds one that can: it is not archived before the tenant names it.
///
/// # Errors
/// 404 `template_not_found`, 422 `confirmation_link_required`.
pub(super) async fn require_link(db: &mut PgConnection, tenant: Uuid, template: Uuid) -> Result<(), ApiError> {
    let has_link = sqlx::query_scalar!(
        r#"select t.template_type = 'transactional' and $3 = any (c.variables) as "has_link!"
           from templates t join contents c on c.tenant_id = t.tenant_id and c.id = t.content_id
           where t.tenant_id = $1 and t.id = $2 and t.status <> 'archived'
           for share of t"#,
        tenant,
        template,
        LINK,
    )
    .fetch_optional(db)
    .await?
    .ok_or_else(|| ApiError::not_found("template"))?;
    if has_link {
        return Ok(());
    }
    Err(ApiError::unprocessable("confirmation_link_required")
        .at("confirmation.template_id", "must be a transactional template that prints data.confirmation_url"))
}
