//! `GET /v1/analytics/campaigns/{id}`: statistics of one campaign and its A/B test.

use schemars::JsonSchema;
use schemas::{WinnerMetric, WinnerReason};
use serde::Serialize;
use serde_json::Number;
use uuid::Uuid;

use super::{
    outcomes::{self, CreditedOutcomes, OUTCOMES_NOTE},
    store::{self, AnalysedCampaign},
    totals::{DELIVERED_NOTE, DeliveredBasis, MessageTotals, OPENS_NOTE, RATES_NOTE, Rates},
};
use crate::pipeline::{ApiReply, NoParameters, RequestContext, error::ApiError, page::OptionalTime, types::counts};

/// What is said of variants that no test compares.
const SPLIT_NOTE: &str =
    "The variants have no winner: without ab_test the whole audience is divided among them, and none is chosen.";

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(transform = counts)]
pub(super) struct CampaignAnalytics {
    campaign_id: Uuid,
    totals: MessageTotals,
    delivered_basis: Option<DeliveredBasis>,
    rates: Rates,
    outcomes: Vec<CreditedOutcomes>,
    /// The premium of outcomes of type `premium`, as far as it is the campaign's.
    revenue_amount: Number,
    #[serde(flatten)]
    ab_test: Option<AbTestReport>,
    notes: Vec<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct AbTestReport {
    variants: Vec<VariantReport>,
    /// Null while undecided, or when no variant was better; `notes` says why, and what the rest of the audience got.
    winner: Option<AbTestWinner>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct VariantReport {
    variant: String,
    name: String,
    #[serde(flatten)]
    totals: MessageTotals,
    rates: Rates,
}

#[derive(Debug, Serialize, JsonSchema)]
struct AbTestWinner {
    variant: String,
    name: Option<String>,
    decided_at: OptionalTime,
}

pub(super) async fn campaign(ctx: &mut RequestContext, _: NoParameters) -> Result<ApiReply, ApiError> {
    let (tenant, id) = (ctx.tenant, ctx.id("campaign")?);
    let campaign = store::campaign(ctx.db(), tenant, id).await?.ok_or_else(|| ApiError::not_found("campaign"))?;
    let names = store::variant_names(ctx.db(), tenant, id).await?;
    let by_variant = store::by_variant(ctx.db(), tenant, id).await?;
    let totals = by_variant.iter().fold(MessageTotals::default(), |sum, (_, totals)| sum.plus(totals));
    let credited = store::campaign_outcomes(ctx.db(), tenant, id).await?;
    let mut answer = CampaignAnalytics {
        campaign_id: id,
        totals,
        delivered_basis: totals.delivered_basis(),
        rates: Rates::from(&totals),
        outcomes: outcomes::of_campaign(&credited),
        revenue_amount: outcomes::campaign_revenue(&credited),
        ab_test: None,
        notes: notes(&campaign, !names.is_empty()),
    };
    // Variants appear when an A/B test ran: also of a split without a winner rule.
    if campaign.launched && !names.is_empty() {
        let variants = names.iter().map(|(variant, name)| {
            let found = by_variant.iter().find(|(of, _)| of.as_ref() == Some(variant));
            let totals = found.map(|(_, totals)| *totals).unwrap_or_default();
            VariantReport { variant: variant.clone(), name: name.clone(), totals, rates: Rates::from(&totals) }
        });
        answer.ab_test = Some(AbTestReport { variants: variants.collect(), winner: winner(&campaign, &names) });
    }
    ApiReply::ok(&answer)
}

/// The winner is by human click rate with a minimum sample, else `winner: null` and the reason in `notes`. What the rest of the
/// audience was sent is then stored in the campaign.
fn winner(campaign: &AnalysedCampaign, names: &[(String, String)]) -> Option<AbTestWinner> {
    let letter = campaign.winner.as_ref().filter(|_| campaign.winner_reason == Some(WinnerReason::HighestRate))?;
    let name = names.iter().find(|(variant, _)| variant == letter).map(|(_, name)| name.clone());
    Some(AbTestWinner { variant: letter.clone(), name, decided_at: campaign.decided_at.into() })
}

fn notes(campaign: &AnalysedCampaign, has_variants: bool) -> Vec<String> {
    let mut notes: Vec<String> = [OPENS_NOTE, DELIVERED_NOTE, RATES_NOTE, OUTCOMES_NOTE].map(str::to_owned).to_vec();
    let on_variants = match campaign.test_percent {
        Some(percent) => Some(test_note(campaign, percent)),
        None => has_variants.then(|| SPLIT_NOTE.to_owned()),
    };
    notes.extend(on_variants.filter(|_| campaign.launched));
    notes
}

/// A note about the result of an A/B test of so much of the audience.
fn test_note(campaign: &AnalysedCampaign, percent: i16) -> String {
    let rate = match campaign.metric {
        Some(WinnerMetric::OpenRate) => "opens by people per message sent",
        _ => "clicks by people per message sent",
    };
    let letter = campaign.winner.as_deref().unwrap_or_default();
    let rest = |which: &str| {
        if percent == 100 {
            return String::new();
        }
        format!(" The rest of the audience was sent variant {letter}, {which}.")
    };
    match campaign.winner_reason {
        None => format!("The A/B test is not decided yet; it is by {rate}."),
        Some(WinnerReason::HighestRate) => format!("The A/B test was decided by {rate}: variant {letter} had most."),
        Some(WinnerReason::Tie) => {
            format!("The A/B test has no winner: several variants had as many {rate}.{}", rest("the first of them"))
        }
        Some(WinnerReason::TooLittleData) => format!(
            "The A/B test has no winner: it needs {} messages sent of each variant and {} responses in all. It goes by \
             {rate}.{}",
            ledger::variants::SENT_MIN,
            ledger::variants::RESPONSES_MIN,
            rest("the first")
        ),
    }
}
