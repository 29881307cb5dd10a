//! `POST /v1/contacts/{id}/confirmation`: a contact is asked by mail to confirm the consent, again or for the first time.

use std::sync::Arc;

use chrono::{DateTime, Utc};
use http::StatusCode;
use ledger::confirmations::{self, ConfirmationSettings};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use uuid::Uuid;

use super::{
    record::{self, ContactView},
    store::survivor_of_path,
};
use crate::pipeline::{
    ApiReply, NoFields, RequestContext,
    error::ApiError,
    page::{OptionalTime, Time},
};

/// How far the confirmation of a contact's consent is.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub(super) struct ContactConfirmation {
    /// `withdrawn`: the consent was stated or ended otherwise before it was confirmed.
    #[schemars(extend("enum" = ["pending", "confirmed", "expired", "withdrawn"]))]
    state: String,
    requested_at: Time,
    /// When the last mail was made; null while the first is due.
    sent_at: OptionalTime,
    /// The last mail.
    send_id: Option<Uuid>,
    /// Of the mails since `requested_at`.
    reminders: i32,
    /// When the links expire.
    expires_at: OptionalTime,
    confirmed_at: OptionalTime,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct ConfirmationRequested {
    contact_id: Uuid,
    confirmation: ContactConfirmation,
}

/// Asks these contacts to confirm, and answers those that are asked now.
pub(super) async fn request(ctx: &mut RequestContext, contacts: &[Uuid]) -> sqlx::Result<Vec<Uuid>> {
    let (tenant, ingress) = (ctx.tenant, Arc::clone(&ctx.ingress));
    let (settings, keys) = (&ingress.settings.confirmations, &ingress.master_keys);
    confirmations::request(ctx.db(), tenant, contacts, false, settings, keys).await
}

pub(super) async fn ask_again(ctx: &mut RequestContext, _: NoFields) -> Result<ApiReply, ApiError> {
    let (tenant, id) = (ctx.tenant, survivor_of_path(ctx).await?);
    let contact = record::one(ctx.db(), tenant, id).await?;
    if request(ctx, &[id]).await?.is_empty() {
        let state = UnaskedContact::load(ctx, id).await?;
        if let Some(refusal) = state.refusal(&ctx.ingress.settings.confirmations, Utc::now()) {
            return Err(refusal);
        }
        // The mail that was asked for before is still due.
        return accepted(contact);
    }
    ctx.audit("contact.confirmation_requested", &id.to_string(), json!({})).await?;
    accepted(record::one(ctx.db(), tenant, id).await?)
}

fn accepted(contact: ContactView) -> Result<ApiReply, ApiError> {
    let confirmation = contact.confirmation.ok_or_else(ApiError::internal)?;
    ApiReply::accepted(&ConfirmationRequested { contact_id: contact.contact_id, confirmation })
}

/// A contact that was not asked, and what may be the reason.
#[derive(Debug, Clone, Default)]
struct UnaskedContact {
    /// Active, and its consent is pending.
    is_pending: bool,
    /// Its consent is pending, and no suppression is in force.
    may_be_asked: bool,
    /// The mail is due.
    is_due: bool,
    mails: i32,
    last_mail_at: Option<DateTime<Utc>>,
}

impl UnaskedContact {
    async fn load(ctx: &mut RequestContext, id: Uuid) -> sqlx::Result<Self> {
        let tenant = ctx.tenant;
        sqlx::query_as!(
            Self,
            r#"select c.status = 'active' and c.marketing_status = 'pending' as "is_pending!",
                      coalesce((select g.may_be_asked from recipient_eligibility($1, array[$2::uuid]) g), false) as "may_be_asked!",
                      coalesce(f.state = 'pending' and f.due_at <= now(), false) as "is_due!",
                      coalesce(f.mails, 0) as "mails!", f.last_mail_at as "last_mail_at?"
               from contacts c
               left join confirmations f on f.tenant_id = c.tenant_id and f.contact_id = c.id
               where c.tenant_id = $1 and c.id = $2"#,
            tenant,
            id,
        )
        .fetch_one(ctx.db())
        .await
    }

    /// `None`: it will be mailed all the same.
    fn refusal(&self, settings: &ConfirmationSettings, now: DateTime<Utc>) -> Option<ApiError> {
        if !self.is_pending {
            return Some(ApiError::conflict("consent_not_pending").detail("the contact's consent is not pending"));
        }
        // Also while a mail is due: the sweep would withdraw it.
        if !self.may_be_asked {
            return Some(ApiError::conflict("contact_suppressed").detail("the address is suppressed"));
        }
        if self.mails >= settings.confirmation_mails_max {
            let detail = format!("the contact got {} confirmation mails and does not get another", self.mails);
            return Some(ApiError::conflict("confirmation_limit_reached").detail(detail));
        }
        let next = self.last_mail_at.map(|at| settings.next_mail(at)).filter(|next| *next > now);
        if let Some(next) = next {
            let detail = "the contact got a confirmation mail a short while ago";
            let refusal = ApiError::new(StatusCode::TOO_MANY_REQUESTS, "confirmation_rate_exceeded").detail(detail);
            return Some(refusal.retry_at(next));
        }
        // It may be asked since a moment ago: a repeat asks it.
        (!self.is_due).then(ApiError::unavailable)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::subscribed(false, false, false, 0, None, Some("consent_not_pending"))]
    #[case::mailed_often(true, true, true, 5, Some(900), Some("confirmation_limit_reached"))]
    #[case::mailed_lately(true, true, false, 1, Some(11), Some("confirmation_rate_exceeded"))]
    #[case::mailed_long_ago(true, true, true, 1, Some(13), None)]
    #[case::about_to_be_mailed(true, true, true, 0, None, None)]
    #[case::suppressed(true, false, false, 0, None, Some("contact_suppressed"))]
    #[case::suppressed_while_a_mail_is_due(true, false, true, 0, None, Some("contact_suppressed"))]
    #[case::asked_a_moment_too_early(true, true, false, 1, Some(13), Some("unavailable"))]
    fn a_contact_that_is_not_asked_again_has_a_reason(
        #[case] is_pending: bool,
        #[case] may_be_asked: bool,
        #[case] is_due: bool,
        #[case] mails: i32,
        #[case] hours_ago: Option<i64>,
        #[case] expected: Option<&str>,
    ) {
        let now = Utc::now();
        let last_mail_at = hours_ago.map(|hours| now - chrono::TimeDelta::hours(hours));
        let contact = UnaskedContact { is_pending, may_be_asked, is_due, mails, last_mail_at };
        let refusal = contact.refusal(&ConfirmationSettings::default(), now);
        assert_eq!(refusal.as_ref().map(|error| error.code.as_ref()), expected);
        let waits = refusal.and_then(|error| error.retry_after);
        let hour = (3_590..=3_601).contains(&waits.unwrap_or(0));
        assert_eq!(hour, expected == Some("confirmation_rate_exceeded"), "{waits:?}");
    }
}
