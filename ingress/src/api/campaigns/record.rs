//! A campaign as callers see it.

use schemars::JsonSchema;
use schemas::{WinnerMetric, WinnerReason};
use serde::Serialize;

use super::{
    content::OwnBody,
    rows::{CampaignRow, VariantRow},
    rules::DECIDE_AFTER_MAX,
};
use crate::pipeline::{page::OptionalTime, resource};

/// One campaign, with its bodies.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Campaign {
    #[serde(flatten)]
    fields: CampaignFields,
    #[serde(flatten)]
    body: OwnBody,
    variants: Vec<CampaignVariant>,
}

/// A campaign in a list: without its bodies, which may have half a megabyte each.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct CampaignSummary {
    #[serde(flatten)]
    fields: CampaignFields,
    variants: Vec<VariantRow>,
}

resource!(CampaignSummary, "campaign", "campaigns", view => (*view.fields.row.created_at, view.fields.row.id));

#[derive(Debug, Serialize, JsonSchema)]
struct CampaignFields {
    #[serde(flatten)]
    row: CampaignRow,
    ab_test: Option<AbTest>,
    tripwire: TripwireView,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Tripwire")]
struct TripwireView {
    #[schemars(range(min = 0, max = 100))]
    bounce_percent: f64,
    #[schemars(range(min = 0, max = 100))]
    complaint_percent: f64,
    #[schemars(extend("enum" = ["armed", "tripped", "disarmed"]))]
    state: String,
}

/// An A/B test and its result.
#[derive(Debug, Serialize, JsonSchema)]
struct AbTest {
    #[schemars(range(min = 1, max = 100))]
    test_percent: i16,
    #[schemars(with = "WinnerMetric")]
    winner_metric: Option<WinnerMetric>,
    #[schemars(with = "i32", range(min = 1, max = DECIDE_AFTER_MAX))]
    decide_after_minutes: Option<i32>,
    /// When the test's mail was out: the clock starts.
    tested_at: OptionalTime,
    decided_at: OptionalTime,
    /// What the rest of the audience got, also where no variant was better: analytics then has no winner.
    #[schemars(extend("enum" = ledger::audience::VARIANT_NAMES))]
    winner: Option<String>,
    /// `highest_rate`; `tie`: the first of those that tied; `too_little_data`: the first variant, because one had sent fewer than 20
    /// mails, or all together had fewer than 5 responses.
    winner_reason: Option<WinnerReason>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct CampaignVariant {
    #[serde(flatten)]
    summary: VariantRow,
    #[serde(flatten)]
    body: OwnBody,
}

impl Campaign {
    pub(super) fn of(mut row: CampaignRow) -> Self {
        let body = std::mem::take(&mut row.body.0).with_compiled(row.compiled_html.take());
        let variants = std::mem::take(&mut row.variants.0).into_iter().map(|mut row| CampaignVariant {
            body: std::mem::take(&mut row.body).with_compiled(row.compiled_html.take()),
            summary: row,
        });
        Self { body, variants: variants.collect(), fields: CampaignFields::of(row) }
    }
}

impl CampaignSummary {
    pub(super) fn of(mut row: CampaignRow) -> Self {
        let variants = std::mem::take(&mut row.variants.0);
        Self { fields: CampaignFields::of(row), variants }
    }
}

impl CampaignFields {
    fn of(mut row: CampaignRow) -> Self {
        let ab_test = row.test_percent.map(|test_percent| AbTest {
            test_percent,
            winner_metric: row.winner_metric,
            decide_after_minutes: row.decide_after_minutes,
            tested_at: row.tested_at.into(),
            decided_at: row.decided_at.into(),
            winner: row.winner.take(),
            winner_reason: row.winner_reason,
        });
        let tripwire = TripwireView {
            bounce_percent: row.bounce_percent,
            complaint_percent: row.complaint_percent,
            state: std::mem::take(&mut row.tripwire),
        };
        Self { row, ab_test, tripwire }
    }
}
