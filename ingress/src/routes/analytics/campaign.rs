//! `GET /v1/analytics/campaigns/{id}`: what became of one campaign, and of its A/B test.

use serde::Serialize;
use serde_json::{Value, json};

use super::{
    outcomes::{self, OUTCOMES_NOTE},
    store::{self, Campaign},
    totals::{DELIVERED_NOTE, OPENS_NOTE, RATES_NOTE, Rates, Totals},
};
use crate::{
    act::{Act, NoParameters, Reply, time},
    error::ApiError,
};

#[derive(Debug, Serialize)]
struct Variant {
    variant: String,
    name: String,
    #[serde(flatten)]
    totals: Totals,
    rates: Rates,
}

pub(super) async fn campaign(act: &mut Act, _: NoParameters) -> Result<Reply, ApiError> {
    let (tenant, id) = (act.tenant, act.id("campaign")?);
    let campaign = store::campaign(act.db(), tenant, id).await?.ok_or_else(|| ApiError::not_found("campaign"))?;
    let names = store::variant_names(act.db(), tenant, id).await?;
    let by_variant = store::by_variant(act.db(), tenant, id).await?;
    let totals = by_variant.iter().fold(Totals::default(), |sum, (_, totals)| sum.plus(totals));
    let credited = store::campaign_outcomes(act.db(), tenant, id).await?;
    let mut answer = json!({
        "ok": true, "campaign_id": id, "totals": totals, "rates": Rates::from(&totals),
        "outcomes": outcomes::of_campaign(&credited), "revenue_amount": outcomes::campaign_revenue(&credited),
        "notes": notes(&campaign, &names),
    });
    // "variants appear when an A/B test ran" (specification, Analytics)
    if campaign.tested && campaign.launched {
        let of = |variant: &str| {
            by_variant
                .iter()
                .find(|(of, _)| of.as_deref() == Some(variant))
                .map_or_else(Totals::default, |(_, totals)| *totals)
        };
        let variants: Vec<Variant> = names
            .iter()
            .map(|(variant, name)| {
                let totals = of(variant);
                Variant { variant: variant.clone(), name: name.clone(), totals, rates: Rates::from(&totals) }
            })
            .collect();
        answer["variants"] = json!(variants);
        answer["winner"] = winner(&campaign, &names);
    }
    Reply::ok(&answer)
}

fn winner(campaign: &Campaign, names: &[(String, String)]) -> Value {
    let name = |letter: &str| names.iter().find(|(variant, _)| variant == letter).map(|(_, name)| name.clone());
    campaign.winner.as_ref().map_or(
        Value::Null,
        |letter| json!({"variant": letter, "name": name(letter), "decided_at": campaign.decided_at.map(time)}),
    )
}

fn notes(campaign: &Campaign, names: &[(String, String)]) -> Vec<String> {
    let mut notes: Vec<String> = [OPENS_NOTE, DELIVERED_NOTE, RATES_NOTE, OUTCOMES_NOTE].map(str::to_owned).to_vec();
    if campaign.tested && campaign.launched {
        notes.push(match (&campaign.winner_reason, campaign.decided_at) {
            (Some(reason), _) => format!("Of the A/B test: {reason}."),
            (None, Some(_)) => format!("The A/B test of {} variants is decided.", names.len()),
            (None, None) => "The A/B test is not decided yet.".to_owned(),
        });
    }
    notes
}
