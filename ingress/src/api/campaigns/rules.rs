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
    Faults, Id,
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
    /// What it said when it was stored; no caller gives it.
    #[serde(skip)]
    content_id: Option<Uuid>,
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

/// The requested rules, before validation.
#[derive(Debug, Default)]
pub(crate) struct RequestedRules {
    variants: Option<Vec<NewVariant>>,
    test: Option<NewAbTest>,
    not_after: NotAfter,
    on_miss: Option<String>,
    max_per_minute: Option<i64>,
    tripwire: NewTripwire,
}

/// When the window closes: as it stood, or as this request says.
#[derive(Debug, Default)]
enum NotAfter {
    #[default]
    Never,
    Stands(DateTime<Utc>),
    Asked(String),
}

impl RequestedRules {
    /// The stored rules.
    pub(crate) fn of(row: &CampaignRow) -> Self {
        Self {
            variants: Some(row.variants.iter().map(NewVariant::of).collect()).filter(|all: &Vec<_>| !all.is_empty()),
            test: row.test_percent.map(|percent| NewAbTest {
                test_percent: Some(percent.into()),
                winner_metric: row.winner_metric.map(|metric| metric.as_str().to_owned()),
                decide_after_minutes: row.decide_after_minutes.map(i64::from),
            }),
            not_after: row.not_after.map_or(NotAfter::Never, NotAfter::Stands),
            on_miss: Some(row.on_miss.as_str().to_owned()),
            max_per_minute: row.max_per_minute.map(i64::from),
            tripwire: NewTripwire {
                bounce_percent: Some(row.bounce_percent),
                complaint_percent: Some(row.complaint_percent),
            },
        }
    }

    /// The rules of a copy: a window that has closed is over.
    pub(crate) fn copied(self, now: DateTime<Utc>) -> Self {
        let not_after = match self.not_after {
            NotAfter::Stands(at) if at <= now => NotAfter::Never,
            other => other,
        };
        Self { not_after, ..self }
    }

    /// What a body makes of it. A tripwire's two limits change one by one; null goes back to the defaults.
    pub(crate) fn changed(self, body: &mut CampaignBody) -> Self {
        let tripwire = match take(&mut body.tripwire).into_option() {
            None => self.tripwire,
            Some(None) => NewTripwire::default(),
            Some(Some(given)) => NewTripwire {
                bounce_percent: given.bounce_percent.or(self.tripwire.bounce_percent),
                complaint_percent: given.complaint_percent.or(self.tripwire.complaint_percent),
            },
        };
        let not_after = take(&mut body.not_after).into_option();
        Self {
            variants: take(&mut body.variants).into_option().unwrap_or(self.variants),
            test: take(&mut body.ab_test).into_option().unwrap_or(self.test),
            not_after: not_after.map_or(self.not_after, |given| given.map_or(NotAfter::Never, NotAfter::Asked)),
            on_miss: take(&mut body.on_miss).into_option().unwrap_or(self.on_miss),
            max_per_minute: body.max_per_minute.into_option().unwrap_or(self.max_per_minute),
            tripwire,
        }
    }

    /// Validates the rules alone.
    pub(crate) fn validate(self, faults: &mut Faults, now: DateTime<Utc>) -> Rules {
        let has_variants = self.variants.is_some();
        let variants = self.variants.map_or_else(Vec::new, |variants| validate_variants(faults, variants));
        faults.require(
            self.test.is_none() || has_variants,
            "ab_test",
            "variants_required",
            "tests variants, and there are none",
        );
        let test = self.test.map(|test| test.validate(faults));
        let not_after = self.not_after.validate(faults, now);
        let on_miss = self.on_miss.as_deref();
        let on_miss = on_miss.and_then(|text| faults.word("on_miss", text, OnMiss::ALL, OnMiss::as_str));
        Rules {
            variants,
            test,
            not_after,
            on_miss: on_miss.unwrap_or(OnMiss::Skip),
            max_per_minute: self.max_per_minute.map(|pace| number(faults, "max_per_minute", pace, PACE_MAX)),
            bounce_percent: percent(faults, "tripwire.bounce_percent", self.tripwire.bounce_percent, TRIPWIRE.0),
            complaint_percent: percent(
                faults,
                "tripwire.complaint_percent",
                self.tripwire.complaint_percent,
                TRIPWIRE.1,
            ),
        }
    }
}

impl NewVariant {
    fn of(row: &VariantRow) -> Self {
        let OwnBody { body_html, mjml, body_text, layout } = row.body.clone();
        Self {
            name: Some(row.name.clone()),
            weight: Some(row.weight.into()),
            subject: row.subject.clone(),
            preheader: row.preheader.clone(),
            template_id: row.template_id.map(Id),
            body_html,
            mjml,
            body_text,
            layout,
            content_id: Some(row.content_id),
        }
    }

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
        Variant {
            name,
            weight: number(faults, &path("weight"), weight, WEIGHT_MAX),
            content,
            content_id: self.content_id.unwrap_or_default(),
        }
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

impl NotAfter {
    fn validate(self, faults: &mut Faults, now: DateTime<Utc>) -> Option<DateTime<Utc>> {
        match self {
            Self::Never => None,
            Self::Stands(at) => Some(at),
            Self::Asked(text) => faults.due("not_after", &text, NOT_AFTER_MAX, "is more than two years ahead", now),
        }
    }
}

/// A number from 1 to `max`, and `max` fits.
fn number(faults: &mut Faults, path: &str, number: i64, max: i64) -> i32 {
    faults.within(path, number, 1..=max);
    i32::try_from(number).unwrap_or(1)
}

fn percent(faults: &mut Faults, path: &str, percent: Option<f64>, usual: f64) -> f64 {
    let percent = percent.unwrap_or(usual);
    faults.within(path, percent, 0.0..=100.0);
    percent
}
