//! `/v1/tenant`: what a tenant chooses for all its mail, pages and reports, and its send quota. The operator's command
//! `postrider tenant set` changes the profile by the same rules.

use ledger::{
    attribution::{CLICK_DAYS_MAX, DELIVERY_DAYS_MAX, Policy},
    frequency::{DAYS_MAX, MESSAGES_MAX},
    quota::{PeriodUsage, QuotaUsage, quota_usage},
};
use schemars::JsonSchema;
use schemas::{AttributionModel, Environment};
use serde::{Deserialize, Serialize};
use serde_json::json;
use sqlx::PgConnection;
use uuid::Uuid;

use super::{
    confirmation::{self, ConfirmationChange, TenantConfirmation},
    pages::{PageBranding, PageChange},
    quiet::{NewQuietHours, QuietZone, TenantQuietHours},
};
use crate::{
    api::{contacts::is_timezone, senders::store as senders},
    pipeline::{
        ApiReply, Faults, Id, NoParameters, Patch, RequestContext, error::ApiError, page::Time, resource,
        types::PostalAddress,
    },
};

/// The shortest time a tenant may keep handled requests, in days: a send in doubt is rendered again from its request's data.
const REQUESTS_DAYS_MIN: i32 = 7;
/// The longest retention that can be written down, in days.
const KEEP_DAYS_MAX: i32 = 3_650;

/// A tenant's profile.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(rename = "Profile")]
pub struct TenantProfile {
    /// The organisation's name.
    pub org_name: Option<String>,
    /// Where `notify_owner` steps write to.
    pub owner_email: String,
    /// A suspended tenant sends nothing.
    #[schemars(extend("enum" = ["active", "suspended"]))]
    pub status: String,
    /// An IANA time zone: business days and the days of reports are its days.
    pub timezone: String,
    /// On marketing mail whose sender has no address of its own.
    pub physical_address: Option<String>,
    /// The sender of mail that names none.
    pub default_sender_id: Option<Uuid>,
    /// The domain whose tracking host carries links and pixel, while its CNAME is verified. Null: that of the sending domain.
    pub tracking_domain_id: Option<Uuid>,
    /// How outcomes are credited to mails.
    pub attribution: TenantAttribution,
    /// What is kept for fewer days than the installation keeps it.
    pub retention: TenantRetention,
    /// How many marketing mails a contact may get.
    pub frequency_cap: Option<FrequencyCap>,
    /// When mail waits.
    pub quiet_hours: Option<TenantQuietHours>,
    /// How contacts are asked to confirm their consent (`require_verification`).
    pub confirmation: TenantConfirmation,
    /// What the tenant adds to the pages that recipients open.
    pub pages: PageBranding,
    created_at: Time,
    updated_at: Time,
}

/// At most so many marketing mails of campaigns and sequences to a contact within so many times 24 hours. A campaign skips a contact that
/// has had them, with the reason `frequency_cap`; a sequence takes its step later. Mail counts that was accepted, is on its way or may
/// have been accepted, from when the cap is set. Transactional and one-off mail neither counts nor waits. While a more urgent campaign is to
/// send to the contact all that the cap leaves, less urgent mail waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FrequencyCap {
    /// How many mails.
    #[schemars(range(min = 1, max = MESSAGES_MAX))]
    messages: i32,
    /// In how many times 24 hours.
    #[schemars(range(min = 1, max = DAYS_MAX))]
    days: i32,
}

/// By which model and within which windows outcomes are credited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
pub struct TenantAttribution {
    /// How an outcome is divided between mails.
    pub model: AttributionModel,
    /// How many days before an outcome a person's click counts.
    #[schemars(range(min = 1, max = CLICK_DAYS_MAX))]
    pub click_days: i32,
    /// How many days before it a delivery counts if there is no click; 0: never.
    #[schemars(range(min = 0, max = DELIVERY_DAYS_MAX))]
    pub delivery_days: i32,
}

impl Default for TenantAttribution {
    fn default() -> Self {
        Policy::default().into()
    }
}

impl From<Policy> for TenantAttribution {
    fn from(Policy { model, click_days, delivery_days }: Policy) -> Self {
        Self { model, click_days, delivery_days }
    }
}

/// For how many days a tenant's data is kept, where the installation keeps it longer. Null: as long as the installation keeps it.
#[derive(Debug, Clone, Copy, Default, Serialize, JsonSchema)]
pub struct TenantRetention {
    /// Handled requests with their merge data, and the bodies of one-off messages.
    #[schemars(range(min = REQUESTS_DAYS_MIN, max = KEEP_DAYS_MAX))]
    pub requests_days: Option<i32>,
    /// Reports of imports, with the cells they complain of.
    #[schemars(range(min = 1, max = KEEP_DAYS_MAX))]
    pub imports_days: Option<i32>,
}

/// The send quota.
#[derive(Debug, Serialize, JsonSchema)]
struct TenantQuota {
    month: QuotaPeriod,
    day: QuotaPeriod,
}

/// Limit and use of one period, which starts at midnight UTC.
#[derive(Debug, Serialize, JsonSchema)]
struct QuotaPeriod {
    /// Mails; null: no limit.
    limit: Option<i64>,
    /// Mails sent so far.
    used: i64,
    /// Mails left; null: no limit.
    remaining: Option<i64>,
    resets_at: Time,
}

impl TenantQuota {
    fn new(usage: &QuotaUsage) -> Self {
        let period = |PeriodUsage { limit, used, remaining, resets_at }| QuotaPeriod {
            limit,
            used,
            remaining,
            resets_at: Time::from(resets_at),
        };
        Self { month: period(usage.month), day: period(usage.day) }
    }
}

/// A tenant and its profile.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Tenant {
    engine_tenant_id: Uuid,
    environment: Environment,
    #[serde(flatten)]
    profile: TenantProfile,
    quota: TenantQuota,
}

resource!(Tenant, "tenant", "tenants", row => (*row.profile.created_at, row.engine_tenant_id));

async fn answer(ctx: &mut RequestContext, profile: TenantProfile) -> Result<ApiReply, ApiError> {
    let (tenant, defaults) = (ctx.tenant, ctx.ingress.settings.quota);
    let quota = TenantQuota::new(&quota_usage(ctx.db(), tenant, &defaults).await?);
    let environment = ctx.caller.environment;
    ApiReply::single(Tenant { engine_tenant_id: tenant, environment, profile, quota })
}

/// What is to be changed. What is left out stays; null clears.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ProfileChange {
    /// An IANA time zone, such as Europe/Paris; null: UTC.
    pub timezone: Patch<String>,
    /// The postal address.
    #[schemars(with = "Option<PostalAddress>")]
    pub physical_address: Patch<String>,
    /// An active sender. There is a default for as long as there is a sender: null leaves it.
    pub default_sender_id: Option<Id>,
    /// A domain of the tenant.
    pub tracking_domain_id: Patch<Id>,
    /// How outcomes are credited to mails; null: as before any change.
    pub attribution: Patch<AttributionChange>,
    /// What is kept for fewer days than the installation keeps it; null: nothing.
    pub retention: Patch<RetentionChange>,
    /// How many marketing mails a contact may get; null: any number.
    pub frequency_cap: Patch<FrequencyCap>,
    /// When mail waits; null: never.
    pub quiet_hours: Patch<NewQuietHours>,
    /// How contacts are asked to confirm their consent; null: as the installation does it.
    pub confirmation: Patch<ConfirmationChange>,
    /// What the tenant adds to the pages that recipients open; null: nothing.
    pub pages: Patch<PageChange>,
}

/// What is to be changed of the retention. What is left out stays; null: as long as the installation keeps it.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RetentionChange {
    /// Handled requests with their merge data, and the bodies of one-off messages.
    #[schemars(range(min = REQUESTS_DAYS_MIN, max = KEEP_DAYS_MAX))]
    pub requests_days: Patch<i32>,
    /// Reports of imports, with the cells they complain of.
    #[schemars(range(min = 1, max = KEEP_DAYS_MAX))]
    pub imports_days: Patch<i32>,
}

impl RetentionChange {
    /// The retention after this change. Faults are named by their fields.
    fn applied_to(self, before: TenantRetention, faults: &mut Faults) -> TenantRetention {
        let mut days = |path: &str, patch: Patch<i32>, before: Option<i32>, least: i32| {
            let days = patch.applied_to(before);
            faults.within(path, days.unwrap_or(least), least..=KEEP_DAYS_MAX);
            days
        };
        TenantRetention {
            requests_days: days("retention.requests_days", self.requests_days, before.requests_days, REQUESTS_DAYS_MIN),
            imports_days: days("retention.imports_days", self.imports_days, before.imports_days, 1),
        }
    }
}

/// What is to be changed of the attribution. What is left out stays; null: as before any change.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AttributionChange {
    /// How an outcome is divided between mails.
    pub model: Patch<AttributionModel>,
    /// How many days before an outcome a person's click counts.
    #[schemars(range(min = 1, max = CLICK_DAYS_MAX))]
    pub click_days: Patch<i32>,
    /// How many days before it a delivery counts if there is no click; 0: never.
    #[schemars(range(min = 0, max = DELIVERY_DAYS_MAX))]
    pub delivery_days: Patch<i32>,
}

impl AttributionChange {
    /// The attribution after this change. Faults are named by their fields.
    fn applied_to(self, before: TenantAttribution, faults: &mut Faults) -> TenantAttribution {
        let first = TenantAttribution::default();
        let after = TenantAttribution {
            model: self.model.applied_to(Some(before.model)).unwrap_or(first.model),
            click_days: self.click_days.applied_to(Some(before.click_days)).unwrap_or(first.click_days),
            delivery_days: self.delivery_days.applied_to(Some(before.delivery_days)).unwrap_or(first.delivery_days),
        };
        faults.within("attribution.click_days", after.click_days, 1..=CLICK_DAYS_MAX);
        faults.within("attribution.delivery_days", after.delivery_days, 0..=DELIVERY_DAYS_MAX);
        after
    }
}

/// A part of the profile after its change. Null takes it back to what it is without one.
fn changed<T, S: Default>(change: Patch<T>, before: S, applied: impl FnOnce(T, S) -> S) -> S {
    match change {
        Patch::Absent => before,
        Patch::Null => S::default(),
        Patch::Value(change) => applied(change, before),
    }
}

impl ProfileChange {
    /// The names of the fields that are to be changed: for the audit log.
    #[must_use]
    pub fn fields(&self) -> Vec<&'static str> {
        let given = [
            ("timezone", self.timezone.is_given()),
            ("physical_address", self.physical_address.is_given()),
            ("default_sender_id", self.default_sender_id.is_some()),
            ("tracking_domain_id", self.tracking_domain_id.is_given()),
            ("attribution", self.attribution.is_given()),
            ("retention", self.retention.is_given()),
            ("frequency_cap", self.frequency_cap.is_given()),
            ("quiet_hours", self.quiet_hours.is_given()),
            ("confirmation", self.confirmation.is_given()),
            ("pages", self.pages.is_given()),
        ];
        given.into_iter().filter(|(_, given)| *given).map(|(name, _)| name).collect()
    }
}

pub(super) async fn show(ctx: &mut RequestContext, _: NoParameters) -> Result<ApiReply, ApiError> {
    let tenant = ctx.tenant;
    let profile = load(ctx.db(), tenant).await?;
    answer(ctx, profile).await
}

pub(super) async fn update(ctx: &mut RequestContext, body: ProfileChange) -> Result<ApiReply, ApiError> {
    let tenant = ctx.tenant;
    let fields = body.fields();
    let profile = change(ctx.db(), tenant, body).await?;
    if !fields.is_empty() {
        ctx.audit("tenant.changed", &tenant.to_string(), json!({"fields": fields})).await?;
    }
    answer(ctx, profile).await
}

/// The profile of a tenant.
///
/// # Errors
/// 404 `tenant_not_found`.
pub async fn load(db: &mut PgConnection, tenant: Uuid) -> Result<TenantProfile, ApiError> {
    let row = sqlx::query!(
        "select t.org_name, t.owner_email, t.status, t.timezone, t.physical_address, t.tracking_domain_id, t.unsubscribe_text,
                t.preferences_text, t.logo_url, t.button_color, t.background_color, t.keep_requests_days, t.keep_imports_days,
                t.frequency_cap_messages, t.frequency_cap_days, t.quiet_from, t.quiet_to, t.quiet_by_contact, t.quiet_for,
                t.confirmation_template_id, t.confirmation_reminders, t.confirmation_reminder_hours, t.confirmation_days,
                t.created_at, t.updated_at,
                (select s.id from senders s where s.tenant_id = t.id and s.is_default) as default_sender_id
         from tenants t where t.id = $1",
        tenant,
    )
    .fetch_optional(&mut *db)
    .await?
    .ok_or_else(|| ApiError::not_found("tenant"))?;
    let policy = Policy::of(db, &[tenant]).await?.remove(&tenant).unwrap_or_default();
    Ok(TenantProfile {
        org_name: row.org_name,
        owner_email: row.owner_email,
        status: row.status,
        timezone: row.timezone,
        physical_address: row.physical_address,
        default_sender_id: row.default_sender_id,
        tracking_domain_id: row.tracking_domain_id,
        attribution: policy.into(),
        retention: TenantRetention { requests_days: row.keep_requests_days, imports_days: row.keep_imports_days },
        frequency_cap: row
            .frequency_cap_messages
            .zip(row.frequency_cap_days)
            .map(|(messages, days)| FrequencyCap { messages, days }),
        quiet_hours: row.quiet_from.zip(row.quiet_to).map(|(from, to)| {
            let by_contact = row.quiet_by_contact.unwrap_or(false);
            TenantQuietHours::from_columns(from, to, by_contact, row.quiet_for.as_deref().unwrap_or_default())
        }),
        confirmation: TenantConfirmation {
            template_id: row.confirmation_template_id,
            reminders: row.confirmation_reminders,
            reminder_hours: row.confirmation_reminder_hours,
            days: row.confirmation_days,
        },
        pages: PageBranding {
            unsubscribe_text: row.unsubscribe_text,
            preferences_text: row.preferences_text,
            logo_url: row.logo_url,
            button_color: row.button_color,
            background_color: row.background_color,
        },
        created_at: row.created_at.into(),
        updated_at: row.updated_at.into(),
    })
}

/// Changes the profile of a tenant and answers it.
///
/// # Errors
/// 400 for a field with a fault, 404 for a sender or domain that is not the tenant's, 409 `sender_disabled`,
/// 422 `physical_address_required` while a sender relies on the address.
pub async fn change(db: &mut PgConnection, tenant: Uuid, change: ProfileChange) -> Result<TenantProfile, ApiError> {
    if change.fields().is_empty() {
        return load(db, tenant).await;
    }
    let mut faults = Faults::default();
    if let Some(name) = change.timezone.value() {
        // Reports are cut into days by Postgres, whose list of zones may be older than ours. Before the lock, for which fences may wait:
        // Postgres opens the files of all zones for it.
        let known = sqlx::query_scalar!(
            r#"select exists (select from pg_timezone_names where name = $1) as "known!""#,
            name.as_str()
        );
        let known = is_timezone(name) && known.fetch_one(&mut *db).await?;
        faults.require(known, "timezone", "unknown", "must be an IANA time zone such as Europe/Paris");
    }
    if change.timezone.is_given() || change.quiet_hours.is_given() {
        // What is put off by the old quiet hours is put off before this, or not.
        ledger::gate::block_fences(&mut *db, tenant).await?;
    }
    // Senders are made and changed under the same lock.
    senders::lock_profile_address(&mut *db, tenant).await?;
    let mut wanted = load(&mut *db, tenant).await?;
    let quiet_before = (wanted.quiet_hours.clone(), wanted.timezone.clone());
    wanted.timezone = change.timezone.applied_to(Some(wanted.timezone)).unwrap_or_else(|| "UTC".to_owned());
    let relies_on_address = wanted.physical_address.is_some();
    if let Some(text) = change.physical_address.into_option() {
        wanted.physical_address = faults.postal_address("physical_address", text);
    }
    let attribution_before = wanted.attribution;
    wanted.attribution =
        changed(change.attribution, wanted.attribution, |change, before| change.applied_to(before, &mut faults));
    wanted.retention =
        changed(change.retention, wanted.retention, |change, before| change.applied_to(before, &mut faults));
    if let Some(cap) = change.frequency_cap.into_option() {
        if let Some(FrequencyCap { messages, days }) = cap {
            faults.within("frequency_cap.messages", messages, 1..=MESSAGES_MAX);
            faults.within("frequency_cap.days", days, 1..=DAYS_MAX);
        }
        wanted.frequency_cap = cap;
    }
    if let Some(quiet) = change.quiet_hours.into_option() {
        let quiet = quiet.map(TenantQuietHours::from);
        quiet.iter().for_each(|quiet| quiet.check(&mut faults));
        wanted.quiet_hours = quiet;
    }
    let template_before = wanted.confirmation.template_id;
    wanted.confirmation =
        changed(change.confirmation, wanted.confirmation, |change, before| change.applied_to(before, &mut faults));
    wanted.pages = changed(change.pages, wanted.pages, |change, before| change.applied_to(before, &mut faults));
    faults.finish()?;
    if relies_on_address
        && wanted.physical_address.is_none()
        && senders::one_relies_on_profile_address(&mut *db, tenant).await?
    {
        return Err(ApiError::unprocessable("physical_address_required")
            .detail("a sender has no address of its own and relies on this one"));
    }
    if let Some(Id(sender)) = change.default_sender_id {
        let row = senders::get(&mut *db, tenant, sender).await?;
        senders::make_default(&mut *db, tenant, &row).await?;
    }
    if let Some(domain) = change.tracking_domain_id.into_option() {
        wanted.tracking_domain_id = domain.map(|Id(id)| id);
    }
    if let Some(template) = wanted.confirmation.template_id.filter(|id| Some(*id) != template_before) {
        confirmation::require_link(&mut *db, tenant, template).await?;
    }
    store(&mut *db, tenant, &wanted).await?;
    if quiet_before != (wanted.quiet_hours, wanted.timezone) {
        ledger::withhold::resume_timed(&mut *db, tenant).await?;
    }
    let TenantAttribution { model, click_days, delivery_days } = wanted.attribution;
    if wanted.attribution != attribution_before {
        Policy { model, click_days, delivery_days }.set(&mut *db, tenant).await?;
    }
    load(db, tenant).await
}

/// Stores what the tenant's row holds of a profile.
async fn store(db: &mut PgConnection, tenant: Uuid, wanted: &TenantProfile) -> Result<(), ApiError> {
    let PageBranding { unsubscribe_text, preferences_text, logo_url, button_color, background_color } = &wanted.pages;
    let quiet = wanted.quiet_hours.as_ref();
    let (from, to) = quiet.map(TenantQuietHours::times).unwrap_or_default();
    let quiet_for: Option<Vec<String>> =
        quiet.map(|quiet| quiet.applies_to.iter().map(|word| word.as_str().to_owned()).collect());
    sqlx::query!(
        "update tenants set timezone = $2, physical_address = $3, tracking_domain_id = $4, unsubscribe_text = $5,
             preferences_text = $6, logo_url = $7, button_color = $8, background_color = $9, keep_requests_days = $10,
             keep_imports_days = $11, frequency_cap_messages = $12, frequency_cap_days = $13, quiet_from = $14, quiet_to = $15,
             quiet_by_contact = $16, quiet_for = $17, confirmation_template_id = $18, confirmation_reminders = $19,
             confirmation_reminder_hours = $20, confirmation_days = $21, updated_at = now()
         where id = $1",
        tenant,
        wanted.timezone,
        wanted.physical_address.as_deref(),
        wanted.tracking_domain_id,
        unsubscribe_text.as_deref(),
        preferences_text.as_deref(),
        logo_url.as_deref(),
        button_color.as_deref(),
        background_color.as_deref(),
        wanted.retention.requests_days,
        wanted.retention.imports_days,
        wanted.frequency_cap.map(|cap| cap.messages),
        wanted.frequency_cap.map(|cap| cap.days),
        from,
        to,
        quiet.map(|quiet| quiet.time_zone == QuietZone::Recipient),
        quiet_for.as_deref(),
        wanted.confirmation.template_id,
        wanted.confirmation.reminders,
        wanted.confirmation.reminder_hours,
        wanted.confirmation.days,
    )
    .execute(db)
    .await
    .map_err(|error| match error.as_database_error() {
        Some(refused) if refused.is_foreign_key_violation() => ApiError::not_found("domain"),
        _ => error.into(),
    })?;
    Ok(())
}
