//! `/v1/outcomes`: outcomes that products record, and the mails that are credited for them.

mod input;
mod store;

use std::sync::Arc;

use chrono::Utc;
use ledger::outcomes::{OutcomeRefusal, PREMIUM_MAX, PREMIUM_UNITS, Premium, SHARE_WHOLE, VALUE_CENTS_MAX};
use runtime::Publication;
use schemars::JsonSchema;
use schemas::{AttributionModel, MessageKind, OutcomeType, RequestAnnounced, RequestKind, new_id, subjects};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Number, Value, json};
use uuid::Uuid;

use self::{input::RecordOutcome, store::RESTATEMENTS_MAX};
use crate::{
    api::contacts::named,
    pipeline::{
        ApiReply, Doc, GivenTime, Id, NoParameters, RequestContext, Routes,
        error::ApiError,
        page::{OptionalTime, Time},
        read, read_page, resource,
        types::Email,
        write,
    },
};

/// The highest premium, in dollars.
const DOLLARS_MAX: i64 = PREMIUM_MAX.0 / PREMIUM_UNITS;
/// By what the mails of a credit can be chosen.
const RULES: [&str; 2] = ["human_click", "delivered"];

pub(crate) fn routes() -> Routes {
    Routes::new()
        .get(
            "/v1/outcomes",
            read_page("outcomes:read", list),
            Doc::new("listOutcomes", "List outcomes", "Newest first.").page::<OutcomeView>("A page"),
        )
        .post(
            "/v1/outcomes",
            write("outcomes:write", record),
            Doc::new(
                "recordOutcome",
                "Record an outcome for attribution",
                "The contact is found by `contact_email` or `dot_number`, one of which is required; when it is made \
                 later, the outcome finds it then. Instead of the address, `external_id` names a contact that is known. Credit follows within moments: the last mail a person clicked in \
                 the 30 days before, else the last that was delivered in the 7 days before (model and windows are \
                 the tenant's). Clicks that become known later restate it.",
            )
            .example(json!({
                "contact_email": "ann@example.com", "outcome_type": "bind", "premium_amount": 1250.5,
                "source_event_id": "policy-81",
            }))
            .answer::<OutcomeRecorded>(200, "Recorded")
            .leads_to("outcome_id", &["getOutcome"])
            .refuses(404, &["contact_not_found"])
            .refuses(422, &["contact_conflict"]),
        )
        .get(
            "/v1/outcomes/{id}",
            read("outcomes:read", one),
            Doc::new(
                "getOutcome",
                "Read an outcome",
                "With the mails it is credited to, why, and every credit it had before.",
            )
            .answer::<OutcomeAnswer>(200, "The outcome")
            .refuses(404, &["outcome_not_found"]),
        )
}

async fn record(ctx: &mut RequestContext, body: RecordOutcome) -> Result<ApiReply, ApiError> {
    let (mut new, contact) = body.validate(Utc::now())?;
    let (tenant, caller) = (ctx.tenant, Arc::clone(&ctx.caller));
    if let Some(contact) = contact {
        new.contact_email = Some(named::address(ctx.db(), tenant, &contact).await?);
    }
    let recorded =
        ledger::outcomes::record(ctx.db(), tenant, &caller.product, &new).await.map_err(|refusal| match refusal {
            OutcomeRefusal::ContactConflict => ApiError::unprocessable("contact_conflict")
                .detail("contact_email and dot_number belong to different contacts"),
            OutcomeRefusal::Ledger(error) => error.into(),
        })?;
    if recorded.changed {
        let announced = RequestAnnounced::of(tenant, recorded.outcome_id, RequestKind::Outcome);
        let subject = subjects::accepted(&caller.product, caller.environment, RequestKind::Outcome);
        // A new message id: within the duplicate window an outcome may be recorded again and must be credited again.
        let publication = Publication::json(subject, format!("outcome-{}", new_id().simple()), &announced);
        ctx.announce(publication.map_err(|error| ApiError::unexpected(&error))?);
    }
    ApiReply::ok(&OutcomeRecorded { outcome_id: recorded.outcome_id, contact_matched: recorded.contact_matched })
}

#[derive(Debug, Serialize, JsonSchema)]
struct OutcomeRecorded {
    outcome_id: Uuid,
    contact_matched: bool,
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ListOutcomes {
    contact_id: Option<Id>,
    /// Those credited to it, in whole or in part.
    campaign_id: Option<Id>,
    #[serde(rename = "type")]
    outcome_type: Option<OutcomeType>,
    /// Those that happened since.
    since: Option<GivenTime>,
}

async fn list(ctx: &mut RequestContext, query: ListOutcomes) -> Result<ApiReply, ApiError> {
    let (tenant, page) = (ctx.tenant, ctx.page);
    let rows = store::list(ctx.db(), tenant, None, &query, &page).await?;
    ApiReply::page(page, rows)
}

async fn one(ctx: &mut RequestContext, _: NoParameters) -> Result<ApiReply, ApiError> {
    let (tenant, id) = (ctx.tenant, ctx.id("outcome")?);
    let outcome = store::get(ctx.db(), tenant, id).await?.ok_or_else(|| ApiError::not_found("outcome"))?;
    let credits = store::credits(ctx.db(), tenant, id).await?;
    let restatements = store::restatements(ctx.db(), tenant, id).await?;
    ApiReply::ok(&OutcomeAnswer { outcome: OutcomeDetail { outcome, credits, restatements } })
}

#[derive(Debug, Serialize, JsonSchema)]
struct OutcomeAnswer {
    outcome: OutcomeDetail,
}

/// Something that mails may be credited for.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Outcome")]
struct OutcomeView {
    outcome_id: Uuid,
    /// The product that reported it.
    source_system: String,
    source_event_id: Option<String>,
    outcome_type: OutcomeType,
    #[schemars(with = "Option<Email>")]
    contact_email: Option<String>,
    #[schemars(range(min = 1))]
    dot_number: Option<i64>,
    contact_id: Option<Uuid>,
    contact_matched: bool,
    #[schemars(extend("enum" = ["email", "dot_number"]))]
    matched_by: Option<String>,
    /// In dollars, exactly as reported.
    #[schemars(range(min = 0, max = DOLLARS_MAX))]
    premium_amount: Option<Number>,
    /// Null as well where it is no whole number of cents.
    #[schemars(range(min = 0, max = VALUE_CENTS_MAX))]
    premium_cents: Option<i64>,
    #[schemars(range(min = 0, max = VALUE_CENTS_MAX))]
    value_cents: Option<i64>,
    occurred_at: Time,
    attribution: OutcomeAttribution,
    created_at: Time,
    updated_at: Time,
}

resource!(OutcomeView, "outcome", "outcomes", outcome_id);

/// How an outcome was credited.
#[derive(Debug, Serialize, JsonSchema)]
struct OutcomeAttribution {
    #[serde(flatten)]
    policy: CreditPolicy,
    /// `pending` until the outcome is credited as it was reported last.
    #[schemars(extend("enum" = ["pending", "credited", "uncredited"]))]
    status: &'static str,
    /// How often the credit was set.
    #[schemars(range(min = 0))]
    revision: i32,
    /// When it was set last.
    credited_at: OptionalTime,
}

#[derive(Debug, Serialize, JsonSchema)]
struct CreditPolicy {
    /// By what the mails were chosen; null while there is none.
    #[schemars(extend("enum" = RULES))]
    rule: Option<String>,
    #[schemars(with = "Option<AttributionModel>")]
    model: Option<String>,
    #[schemars(range(min = 0, max = 365))]
    click_window_days: Option<i32>,
    #[schemars(range(min = 0, max = 365))]
    delivery_window_days: Option<i32>,
}

/// An outcome with the mails it is credited to, and every credit it had.
#[derive(Debug, Serialize, JsonSchema)]
struct OutcomeDetail {
    #[serde(flatten)]
    outcome: OutcomeView,
    /// The mails it is credited to, the latest touch first.
    credits: Vec<OutcomeCredit>,
    /// Every credit it had, the present one first.
    #[schemars(length(max = RESTATEMENTS_MAX))]
    restatements: Vec<OutcomeRestatement>,
}

/// The part of an outcome that one mail is credited with.
#[derive(Debug, Serialize, JsonSchema)]
struct CreditPart {
    send_id: Uuid,
    campaign_id: Option<Uuid>,
    /// Those of one outcome add up to 1.
    #[schemars(range(min = 0, max = 1))]
    share: f64,
    /// Those of one outcome add up to its own.
    #[schemars(range(min = 0, max = DOLLARS_MAX))]
    premium_amount: Option<Number>,
    #[schemars(range(min = 0, max = VALUE_CENTS_MAX))]
    value_cents: Option<i64>,
}

/// A part as the history of an outcome stores it: the share in millionths, the premium in ten-thousandths of a dollar.
#[derive(Debug, Deserialize)]
struct StoredPart {
    send_id: Uuid,
    campaign_id: Option<Uuid>,
    share: i64,
    premium: Option<i64>,
    value_cents: Option<i64>,
}

impl CreditPart {
    fn of(stored: StoredPart) -> Self {
        Self {
            send_id: stored.send_id,
            campaign_id: stored.campaign_id,
            share: stored.share as f64 / SHARE_WHOLE as f64,
            premium_amount: stored.premium.map(|premium| Premium(premium).dollars()),
            value_cents: stored.value_cents,
        }
    }
}

#[derive(Debug, Serialize, JsonSchema)]
struct OutcomeCredit {
    #[serde(flatten)]
    part: CreditPart,
    message_kind: MessageKind,
    sequence_id: Option<Uuid>,
    /// Its recipient: of several with the same `dot_number`, the one who was mailed.
    contact_id: Uuid,
    #[schemars(extend("enum" = RULES))]
    rule: Option<String>,
    /// When it was clicked, or delivered.
    touched_at: Time,
    /// Of a click its `event_id`, `url` and `link_id`.
    #[schemars(with = "Map<String, Value>")]
    evidence: Value,
}

/// A credit that was set once.
#[derive(Debug, Serialize, JsonSchema)]
struct OutcomeRestatement {
    #[serde(flatten)]
    policy: CreditPolicy,
    #[schemars(range(min = 1))]
    revision: i32,
    restated_at: Time,
    #[schemars(extend("enum" = ["first", "changed", "late_fact", "contact", "model", "rescored"]))]
    reason: String,
    credits: Vec<CreditPart>,
}
