//! `GET /v1/analytics/overview`: statistics of a tenant's mail within a window.

use std::collections::BTreeMap;

use chrono::{Datelike, NaiveDate, Utc};
use chrono_tz::Tz;
use schemars::JsonSchema;
use schemas::{BounceClass, MessageKind, answers::Class};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{
    outcomes::{self, OUTCOMES_NOTE, OutcomeTypeSum, OutcomeTypeTotals, Revenue},
    store::{self, DayTotal, TOP},
    totals::{DELIVERED_NOTE, DeliveredBasis, MessageTotals, OPENS_NOTE, RATES_NOTE, Rates, UNTRACKED_NOTE},
    window::{HourWindow, ReportWindow},
};
use crate::pipeline::{ApiReply, Faults, RequestContext, error::ApiError, page::OptionalTime, types::counts};

/// The days of the week, in order.
const WEEKDAYS: [&str; 7] = ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"];

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct GetOverview {
    #[schemars(extend("format" = "date-time"))]
    from: Option<String>,
    #[schemars(extend("format" = "date-time"))]
    to: Option<String>,
}

pub(super) async fn overview(ctx: &mut RequestContext, query: GetOverview) -> Result<ApiReply, ApiError> {
    let tenant = ctx.tenant;
    let zone = store::timezone(ctx.db(), tenant).await?;
    let known: Option<Tz> = zone.parse().ok();
    let (mut faults, zone_or_utc) = (Faults::default(), known.unwrap_or(Tz::UTC));
    let window = HourWindow::new(query.from.as_deref(), query.to.as_deref(), zone_or_utc, Utc::now(), &mut faults);
    faults.finish()?;
    let days = store::days(ctx.db(), tenant, &window).await?;
    let suppressions = ledger::suppressions::count_by_reason(ctx.db(), tenant).await?;
    let top = store::top_messages(ctx.db(), tenant, &window).await?;
    let sequences = store::sequence_triggers(ctx.db(), tenant, &window).await?;
    let outcomes = store::outcomes(ctx.db(), tenant, &window).await?;
    let report = AnalyticsReport::new(&window, &days, suppressions, top, sequences, &outcomes);
    ApiReply::ok(&AnalyticsOverview {
        window: (&window).into(),
        report,
        notes: notes(&window, known.is_none().then_some(zone.as_str())),
    })
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct AnalyticsOverview {
    window: ReportWindow,
    report: AnalyticsReport,
    notes: Vec<String>,
}

fn notes(window: &HourWindow, unknown_zone: Option<&str>) -> Vec<String> {
    let mut notes: Vec<String> =
        [OPENS_NOTE, UNTRACKED_NOTE, DELIVERED_NOTE, RATES_NOTE, OUTCOMES_NOTE].map(str::to_owned).to_vec();
    notes.push(
        "Sent, failed, skipped and bounced count in the hour it was decided; what is delivered in the hour it was accepted or confirmed; opens, clicks, complaints, \
         unsubscribes and replies in the hour they first happened, whenever the message was sent; outcomes in the hour they \
         happened."
            .to_owned(),
    );
    notes.push(
        "bounces counts refusals by class, those given at once and those that came later: hard says that the mailbox is none, \
         soft that it could not take mail for now, block that the sender was refused. Of those given at once, only hard ones \
         count as bounced; of those that came later, all. \
         sequence_triggers and templates among the top messages count with the hour in which their mail was made, and only what was sent."
            .to_owned(),
    );
    if window.splits_hours() {
        notes.push(
            "Totals stand by the hour of UTC: an hour that a day of this time zone divides counts to the earlier day."
                .to_owned(),
        );
    }
    if let Some(zone) = unknown_zone {
        notes.push(format!("The tenant's time zone {zone:?} is not known; days are those of UTC."));
    }
    notes
}

#[derive(Debug, Serialize, JsonSchema)]
struct AnalyticsReport {
    totals: OverallTotals,
    delivered_basis: Option<DeliveredBasis>,
    rates: Rates,
    /// Every day of the window, in the tenant's time zone.
    daily: Vec<DayTotals>,
    /// Monday first.
    day_of_week: Vec<WeekdayTotals>,
    triggers: Vec<TriggerTotals>,
    /// Of sequences, by what enrolls contacts in them.
    sequence_triggers: Vec<SequenceTriggerTotals>,
    /// By human clicks: campaigns launched within the window (of the newest 200), with all that became of them, and templates of
    /// sequences and of transactional mail.
    #[schemars(length(max = TOP))]
    top_messages: Vec<TopMessage>,
    suppressions: Vec<SuppressionTotals>,
    /// Refusals, at once and later.
    bounces: Vec<BounceTotals>,
    outcomes: Vec<OutcomeTypeTotals>,
    revenue: Revenue,
}

/// Unique facts, and each single open and click.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(transform = counts)]
struct OverallTotals {
    #[serde(flatten)]
    totals: MessageTotals,
    opened_total: i64,
    clicked_total: i64,
}

#[derive(Debug, Serialize, JsonSchema)]
struct DayTotals {
    date: NaiveDate,
    #[serde(flatten)]
    totals: MessageTotals,
}

#[derive(Debug, Serialize, JsonSchema)]
struct WeekdayTotals {
    #[schemars(extend("enum" = WEEKDAYS))]
    day: &'static str,
    #[serde(flatten)]
    totals: MessageTotals,
}

#[derive(Debug, Serialize, JsonSchema)]
struct TriggerTotals {
    trigger: MessageKind,
    #[serde(flatten)]
    totals: MessageTotals,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct SequenceTriggerTotals {
    pub(super) trigger_type: String,
    #[serde(flatten)]
    pub(super) totals: MessageTotals,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(transform = counts)]
struct BounceTotals {
    class: BounceClass,
    count: i64,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(transform = counts)]
struct SuppressionTotals {
    reason: String,
    /// How many there are now.
    total: i64,
    /// How many came within the window.
    added: i64,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct TopMessage {
    #[schemars(extend("enum" = ["campaign", "sequence", "template"]))]
    pub(super) kind: &'static str,
    pub(super) campaign_id: Option<Uuid>,
    pub(super) template_id: Option<Uuid>,
    /// The sequence whose mail the template was.
    pub(super) sequence_id: Option<Uuid>,
    pub(super) name: String,
    pub(super) launched_at: OptionalTime,
    pub(super) totals: MessageTotals,
    pub(super) rates: Rates,
}

impl AnalyticsReport {
    fn new(
        window: &HourWindow,
        days: &[DayTotal],
        suppressions: Vec<(String, i64)>,
        top_messages: Vec<TopMessage>,
        sequence_triggers: Vec<SequenceTriggerTotals>,
        outcomes: &[OutcomeTypeSum],
    ) -> Self {
        let mut overall = OverallTotals { totals: MessageTotals::default(), opened_total: 0, clicked_total: 0 };
        let mut daily: BTreeMap<NaiveDate, MessageTotals> =
            window.days().map(|day| (day, MessageTotals::default())).collect();
        let mut week = [MessageTotals::default(); 7];
        let mut triggers = [MessageTotals::default(); MessageKind::ALL.len()];
        // By reason: how many there are, and how many came.
        let mut reasons: BTreeMap<String, (i64, i64)> =
            suppressions.into_iter().map(|(reason, count)| (reason, (count, 0))).collect();
        for total in days {
            if total.kind == "suppression" {
                reasons.entry(total.event.clone()).or_default().1 += total.count;
            }
            let Some(kind) = MessageKind::ALL.iter().position(|kind| kind.as_str() == total.kind) else { continue };
            match total.event.as_str() {
                "opened_total" => overall.opened_total += total.count,
                "clicked_total" => overall.clicked_total += total.count,
                _ => {}
            }
            let weekday = total.day.weekday().num_days_from_monday() as usize;
            for totals in
                [&mut overall.totals, daily.entry(total.day).or_default(), &mut week[weekday], &mut triggers[kind]]
            {
                totals.add(&total.event, total.count);
            }
        }
        let triggers = MessageKind::reported().zip(triggers).map(|(trigger, totals)| TriggerTotals { trigger, totals });
        let reasons = reasons.into_iter().map(|(reason, (total, added))| SuppressionTotals { reason, total, added });
        Self {
            delivered_basis: overall.totals.delivered_basis(),
            rates: Rates::from(&overall.totals),
            totals: overall,
            daily: daily.into_iter().map(|(date, totals)| DayTotals { date, totals }).collect(),
            day_of_week: WEEKDAYS.into_iter().zip(week).map(|(day, totals)| WeekdayTotals { day, totals }).collect(),
            triggers: triggers.collect(),
            top_messages,
            suppressions: reasons.collect(),
            bounces: bounces(days),
            outcomes: outcomes::of_window(outcomes),
            revenue: outcomes::revenue(outcomes),
            sequence_triggers,
        }
    }
}

/// Refusals by class: at once (`failure`) and by what came back later.
fn bounces(days: &[DayTotal]) -> Vec<BounceTotals> {
    let of = |class: BounceClass| {
        let later = format!("bounced_{class}");
        let counts = |total: &&DayTotal| {
            if total.kind == "failure" {
                Class::parse(&total.event).and_then(Class::refused_as) == Some(class)
            } else {
                total.event == later
            }
        };
        days.iter().filter(counts).map(|total| total.count).sum()
    };
    BounceClass::ALL.iter().map(|class| BounceTotals { class: *class, count: of(*class) }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_given_at_once_counts_as_its_bounce() {
        let failed = |class: &str, count| DayTotal {
            day: NaiveDate::default(),
            kind: "failure".to_owned(),
            event: class.to_owned(),
            count,
        };
        let days = [failed("policy", 7), failed("mailbox_full", 2), failed("temporary", 3)];
        let counted: Vec<_> = bounces(&days).iter().map(|total| (total.class.as_str(), total.count)).collect();
        assert_eq!(counted.len(), BounceClass::ALL.len());
        for expected in [("block", 7), ("soft", 2), ("hard", 0)] {
            assert!(counted.contains(&expected), "{expected:?} in {counted:?}");
        }
    }
}
