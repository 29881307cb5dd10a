//! How a campaign is sent, as its caller decides it: variants and their test, window, pace, tripwire.

use std::mem::take;

use chrono::{DateTime, TimeDelta, Utc};
use schemars::JsonSchema;
use schemas::{OnMiss, WinnerMetric};
use serde::Deserialize;
use templates::SNIPPET_NAME_MAX;
use uuid::Uuid;

use super::{
    content::{CampaignContent, OwnBody},
    draft::CampaignBody,
    rows::{CampaignRow, VariantRow},
};
use crate::pipeline::{
    Faults, Id, Patch,
    types::{Line, Name, Words},
    validate::{LINE_MAX, NAME_MAX},
};

/// Longest source of a part, in bytes.
pub(super) const SOURCE_MAX: usize = 512 * 1024;
/// Fewest variants of a test.
pub(super) const VARIANTS_MIN: usize = 2;
/// Most variants of a test: one for each of [`ledger::audience::VARIANT_NAMES`].
pub(super) const VARIANTS_MAX: usize = ledger::audience::VARIANT_NAMES.len();
/// The largest weight of a variant.
pub(super) const WEIGHT_MAX: i64 = 1_000;
/// Longest wait for a winner: thirty days.
pub(super) const DECIDE_AFTER_MAX: i64 = 30 * 24 * 60;
/// The usual wait for a winner: four hours.
pub(super) const DECIDE_AFTER: i64 = 240;
/// The fastest pace.
pub(super) const PACE_MAX: i64 = 10_000_000;
/// How far ahead a window may close: a year after the latest launch.
const NOT_AFTER_MAX: TimeDelta = TimeDelta::days(2 * 366);

/// A variant in a body. What it leaves out, the campaign says.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewVariant {
    #[schemars(with = "Name<NAME_MAX>")]
    name: Option<String>,
    #[schemars(with = "i64", range(min = 1, max = WEIGHT_MAX))]
    weight: Option<i64>,
    #[schemars(with = "Option<Name<LINE_MAX>>")]
    subject: Option<String>,
    #[schemars(with = "Option<Line<LINE_MAX>>")]
    preheader: Option<String>,
    /// Then the campaign's own content does not apply to this variant.
    template_id: Option<Id>,
    /// This or `mjml`.
    #[schemars(with = "Option<Words<SOURCE_MAX>>")]
    body_html: Option<String>,
    #[schemars(with = "Option<Words<SOURCE_MAX>>")]
    mjml: Option<String>,
    #[schemars(length(max = SOURCE_MAX))]
    body_text: Option<String>,
    /// The name of the layout around the bodies.
    #[schemars(length(max = SNIPPET_NAME_MAX))]
    layout: Option<String>,
}

/// A test in a body. It needs variants; without it they divide the whole audience.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewAbTest {
    /// How much of the audience the test takes; the rest waits for the winner.
    #[schemars(with = "i64", range(min = 1, max = 100))]
    test_percent: Option<i64>,
    /// Default: click_rate. People count, machines do not.
    #[schemars(with = "Option<WinnerMetric>")]
    winner_metric: Option<String>,
    /// After the test's mail is out.
    #[schemars(range(min = 1, max = DECIDE_AFTER_MAX), extend("default" = DECIDE_AFTER))]
    decide_after_minutes: Option<i64>,
}

/// Pauses the campaign when more than this much of its mail bounces or is complained about, counted of at least 100 mails for
/// bounces and 1,000 for complaints. 100 never trips.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewTripwire {
    #[schemars(range(min = 0, max = 100), extend("default" = TRIPWIRE.0))]
    bounce_percent: Option<f64>,
    #[schemars(range(min = 0, max = 100), extend("default" = TRIPWIRE.1))]
    complaint_percent: Option<f64>,
}

/// A variant, checked. `content_id` is nil until what it says is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Variant {
    pub(crate) name: String,
    pub(crate) weight: i32,
    pub(crate) content: CampaignContent,
    pub(crate) content_id: Uuid,
}

/// An A/B test, checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AbTestRules {
    pub(crate) percent: i16,
    pub(crate) metric: WinnerMetric,
    pub(crate) decide_after_minutes: i32,
}

/// The rules, checked.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Rules {
    pub(crate) variants: Vec<Variant>,
    pub(crate) test: Option<AbTestRules>,
    pub(crate) not_after: Option<DateTime<Utc>>,
    pub(crate) on_miss: OnMiss,
    pub(crate) max_per_minute: Option<i32>,
    pub(crate) bounce_percent: f64,
    pub(crate) complaint_percent: f64,
}

/// What stops a campaign when its caller says nothing, in percent: bounces and complaints.
pub(super) const TRIPWIRE: (f64, f64) = (5.0, 0.3);

impl Rules {
    /// The rules that a body asks for. What it leaves out stays as it is in the campaign that is changed or copied; but for a copy, a
    /// window that has closed is over.
    pub(super) fn validate(
        faults: &mut Faults,
        body: &mut CampaignBody,
        before: Option<&CampaignRow>,
        is_copy: bool,
        now: DateTime<Utc>,
    ) -> Self {
        let (variants, has_variants) = match take(&mut body.variants) {
            Patch::Value(given) => (validate_variants(faults, given), true),
            Patch::Null => (Vec::new(), false),
            Patch::Absent => {
                let stored = before.map(|row| row.variants.as_slice()).unwrap_or_default();
                (stored.iter().map(Variant::of).collect(), !stored.is_empty())
            }
        };
        let test = match take(&mut body.ab_test) {
            Patch::Value(given) => Some(given.validate(faults)),
            Patch::Null => None,
            Patch::Absent => before.and_then(|row| row.ab_test.as_ref()).map(|test| AbTestRules {
                percent: test.test_percent,
                metric: test.winner_metric,
                decide_after_minutes: test.decide_after_minutes,
            }),
        };
        let is_whole = test.is_none() || has_variants;
        faults.require(is_whole, "ab_test", "variants_required", "tests variants, and there are none");
        let not_after = match take(&mut body.not_after) {
            Patch::Value(text) => faults.due("not_after", &text, NOT_AFTER_MAX, "is more than two years ahead", now),
            Patch::Null => None,
            Patch::Absent => before.and_then(|row| *row.not_after).filter(|at| !is_copy || *at > now),
        };
        let on_miss = match take(&mut body.on_miss) {
            Patch::Value(text) => faults.word("on_miss", &text, OnMiss::ALL, OnMiss::as_str),
            Patch::Null => None,
            Patch::Absent => before.map(|row| row.on_miss),
        };
        let max_per_minute = match body.max_per_minute {
            Patch::Value(pace) => Some(number(faults, "max_per_minute", pace, PACE_MAX)),
            Patch::Null => None,
            Patch::Absent => before.and_then(|row| row.max_per_minute),
        };
        // The two limits change one by one; null goes back to the defaults.
        let (bounce, complaint) =
            before.map_or(TRIPWIRE, |row| (row.tripwire.bounce_percent, row.tripwire.complaint_percent));
        let (bounce_percent, complaint_percent) = match take(&mut body.tripwire) {
            Patch::Value(given) => {
                (given.bounce_percent.unwrap_or(bounce), given.complaint_percent.unwrap_or(complaint))
            }
            Patch::Null => TRIPWIRE,
            Patch::Absent => (bounce, complaint),
        };
        faults.within("tripwire.bounce_percent", bounce_percent, 0.0..=100.0);
        faults.within("tripwire.complaint_percent", complaint_percent, 0.0..=100.0);
        let on_miss = on_miss.unwrap_or(OnMiss::Skip);
        Self { variants, test, not_after, on_miss, max_per_minute, bounce_percent, complaint_percent }
    }
}

impl Variant {
    fn of(row: &VariantRow) -> Self {
        Self { name: row.name.clone(), weight: row.weight, content: row.content.clone(), content_id: row.content_id }
    }
}

impl NewVariant {
    fn validate(self, faults: &mut Faults, at: usize) -> Variant {
        let path = |field: &str| format!("variants[{at}].{field}");
        let name = faults.name(&path("name"), self.name);
        let weight = faults.required(&path("weight"), self.weight).unwrap_or(1);
        let Self { body_html, mjml, body_text, layout, .. } = self;
        let content = CampaignContent {
            template_id: self.template_id.map(|id| id.0),
            subject: self.subject,
            preheader: self.preheader,
            body: OwnBody { body_html, mjml, body_text, layout },
        };
        content.check(faults, &path(""), true);
        let weight = number(faults, &path("weight"), weight, WEIGHT_MAX);
        Variant { name, weight, content, content_id: Uuid::nil() }
    }
}

fn validate_variants(faults: &mut Faults, variants: Vec<NewVariant>) -> Vec<Variant> {
    let enough = variants.len() >= VARIANTS_MIN;
    faults.require(enough, "variants", "too_few", "a test needs two variants at least");
    if variants.len() > VARIANTS_MAX {
        faults.add("variants", "too_many", format!("names more than {VARIANTS_MAX} variants"));
        return Vec::new();
    }
    let variants: Vec<Variant> =
        variants.into_iter().enumerate().map(|(at, variant)| variant.validate(faults, at)).collect();
    for (at, variant) in variants.iter().enumerate() {
        if variants[..at].iter().any(|other| other.name == variant.name) {
            faults.add(format!("variants[{at}].name"), "duplicate", "is the name of another variant");
        }
    }
    variants
}

impl NewAbTest {
    fn validate(self, faults: &mut Faults) -> AbTestRules {
        let test_percent = faults.required("ab_test.test_percent", self.test_percent).unwrap_or(1);
        let percent: i32 = number(faults, "ab_test.test_percent", test_percent, 100);
        let metric = self
            .winner_metric
            .as_deref()
            .and_then(|text| faults.word("ab_test.winner_metric", text, WinnerMetric::ALL, WinnerMetric::as_str));
        let minutes = self.decide_after_minutes.unwrap_or(DECIDE_AFTER);
        AbTestRules {
            percent: i16::try_from(percent).unwrap_or(100),
            metric: metric.unwrap_or(WinnerMetric::ClickRate),
            decide_after_minutes: number(faults, "ab_test.decide_after_minutes", minutes, DECIDE_AFTER_MAX),
        }
    }
}

/// A number from 1 to `max`, and `max` fits.
fn number(faults: &mut Faults, path: &str, number: i64, max: i64) -> i32 {
    faults.within(path, number, 1..=max);
    i32::try_from(number).unwrap_or(1)
}
