//! What is particular to each type of event: its `data`. That of mail stands in [`crate::events`].

use std::collections::BTreeMap;

use chrono::NaiveDate;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use uuid::Uuid;

use crate::{AttributionModel, DomainStatus, ExitReason, OutcomeType, PauseReason};

/// `data` of `contact.confirmed`.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub(super) struct ContactConfirmedData {
    /// The contact.
    contact_id: Uuid,
    /// The contact's address; null once it was erased.
    email: Option<String>,
    /// The mail whose link was followed.
    send_id: Uuid,
}

/// `data` of `campaign.sent`.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub(super) struct CampaignSentData {
    /// The campaign.
    campaign_id: Uuid,
    /// Its name.
    name: String,
    /// How many sends ended in each state.
    counts: Map<String, Value>,
}

/// `data` of `campaign.paused`.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub(super) struct CampaignPausedData {
    /// The campaign.
    campaign_id: Uuid,
    /// Why.
    reason: PauseReason,
    /// Mails that were decided when it was paused; with the tripwire's reasons.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    decided: Option<i64>,
    /// Of them, those that bounced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    bounced: Option<i64>,
    /// Of them, those that were complained about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    complained: Option<i64>,
}

/// `data` of `domain.status_changed`.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub(super) struct DomainStatusChangedData {
    /// The domain.
    domain_id: Uuid,
    /// What it was.
    from: DomainStatus,
    /// What it is.
    to: DomainStatus,
}

/// `data` of `sequence.completed`.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub(super) struct SequenceCompletedData {
    /// The enrollment.
    enrollment_id: Uuid,
    /// The sequence.
    sequence_id: Uuid,
    /// The contact who completed it.
    contact_id: Uuid,
    /// The contact's address; null once it was erased.
    email: Option<String>,
}

/// `data` of `enrollment.exited`.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub(super) struct EnrollmentExitedData {
    /// The enrollment.
    enrollment_id: Uuid,
    /// The sequence.
    sequence_id: Uuid,
    /// Why it ended early.
    exit_reason: ExitReason,
    /// The contact who left.
    contact_id: Uuid,
    /// The contact's address; null once it was erased.
    email: Option<String>,
}

/// `data` of `enrollment.failed`.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub(super) struct EnrollmentFailedData {
    /// The enrollment.
    enrollment_id: Uuid,
    /// The sequence.
    sequence_id: Uuid,
    /// The place of the step that could not be taken.
    step_order: i16,
    /// Why not: a code.
    error: Option<String>,
    /// The contact who was enrolled.
    contact_id: Uuid,
    /// The contact's address; null once it was erased.
    email: Option<String>,
}

/// `data` of `contact.created`.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub(super) struct ContactCreatedData {
    /// The contact.
    contact_id: Uuid,
    /// Its address.
    email: String,
    /// Its first name.
    first_name: Option<String>,
    /// Its last name.
    last_name: Option<String>,
    /// Where it came from.
    source: Option<String>,
}

/// `data` of `task.created`.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub(super) struct TaskCreatedData {
    /// The enrollment.
    enrollment_id: Uuid,
    /// The sequence.
    sequence_id: Uuid,
    /// The step that asks for it.
    step_id: Uuid,
    /// The contact it is about.
    contact_id: Uuid,
    /// The contact's address; null once it was erased.
    email: Option<String>,
    /// What is to be done.
    title: String,
    /// Until when.
    due_on: Option<NaiveDate>,
    /// More about it.
    notes: Option<String>,
}

/// `data` of `opportunity.created`.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub(super) struct OpportunityCreatedData {
    /// The enrollment.
    enrollment_id: Uuid,
    /// The sequence.
    sequence_id: Uuid,
    /// The step that asks for it.
    step_id: Uuid,
    /// The contact it is about.
    contact_id: Uuid,
    /// The contact's address; null once it was erased.
    email: Option<String>,
    /// Its name.
    name: String,
    /// Where it stands.
    stage: Option<String>,
    /// What it is worth.
    value_cents: Option<i64>,
}

/// A mail's part in an outcome.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub(super) struct CreditedSend {
    /// The send.
    send_id: Uuid,
    /// Its campaign, for campaign mail.
    campaign_id: Option<Uuid>,
    /// Its share, from 0 to 1.
    share: f64,
    /// Its part of the premium, in dollars.
    premium_amount: Option<f64>,
    /// Its part of the value.
    value_cents: Option<i64>,
}

/// `data` of `outcome.credited`.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub(super) struct OutcomeCreditedData {
    /// The outcome.
    outcome_id: Uuid,
    /// What sort of outcome.
    outcome_type: OutcomeType,
    /// How often its credit was set, from 1.
    revision: i32,
    /// Why it was set now.
    reason: String,
    /// The model by which.
    model: AttributionModel,
    /// Which rule of the model found mails to credit; null when none did.
    rule: Option<String>,
    /// The credit before.
    before: Vec<CreditedSend>,
    /// The credit now.
    after: Vec<CreditedSend>,
    /// The contact who bought; left out when it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    contact_id: Option<Uuid>,
    /// The contact's address; null once it was erased.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    email: Option<String>,
}

/// `data` of `suppression.added` and `suppression.lifted`.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub(super) struct SuppressionData {
    /// The suppression.
    suppression_id: Uuid,
    /// Why: `hard_bounce`, `complaint`, `unsubscribe`, `manual`, `invalid` or `import`.
    reason: String,
    /// Which mail is withheld: `all` or `marketing`.
    scope: String,
    /// Where it comes from: `recipient`, `provider`, `delivery`, `engagement`, `api`, `sequence` or `import`.
    source: String,
    /// The mail that led to it; left out without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    send_id: Option<Uuid>,
    /// When it ends; left out when it does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    expires_at: Option<String>,
    /// The contact with the address; left out when there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    contact_id: Option<Uuid>,
    /// The address; null once the contact was erased. Left out of a lifted suppression that was no contact's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    email: Option<String>,
}

/// `data` of `import.finished`: `GET /v1/imports/{id}` has the errors.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub(super) struct ImportFinishedData {
    /// The import.
    import_id: Uuid,
    /// Its name.
    name: Option<String>,
    /// What was done with the rows.
    operation: String,
    /// `completed`, `completed_with_errors` or `failed`: no row was valid.
    status: String,
    /// Where the contacts come from.
    source_slug: String,
    /// How many rows met with what.
    #[serde(flatten)]
    counts: BTreeMap<String, i64>,
}

/// `data` of `quota.near`.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub(super) struct QuotaNearData {
    /// `day` or `month` (UTC).
    period: String,
    /// The period's first day.
    starts_on: NaiveDate,
    /// Mails that may be sent in it.
    limit: i64,
    /// Mails that were sent in it.
    used: i64,
}

/// `data` of `webhook.disabled`.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub(super) struct WebhookDisabledData {
    /// The subscription.
    subscription_id: Uuid,
    /// `gone`: its endpoint answered 410. `failing`: no attempt has succeeded for days.
    reason: String,
}
