//! `GET /v1/analytics/overview`: statistics of a tenant's mail within a window.

use std::collections::BTreeMap;

use chrono::{Datelike, NaiveDate, Utc, Weekday};
use chrono_tz::Tz;
use schemars::JsonSchema;
use schemas::{BounceClass, MessageKind};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{
    outcomes::{self, OUTCOMES_NOTE, OutcomeTypeSum, OutcomeTypeTotals, Revenue},
    store::{self, ByReason, DayTotal, RankedMail, TOP},
    totals::{DELIVERED_NOTE, DeliveredBasis, MessageTotals, OPENS_NOTE, RATES_NOTE, Rates, UNTRACKED_NOTE},
    window::{HourWindow, ReportWindow},
};
use crate::pipeline::{ApiReply, RequestContext, error::ApiError, page::OptionalTime, types::counts};

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
    let window = HourWindow::new(query.from.as_deref(), query.to.as_deref(), known.unwrap_or(Tz::UTC), Utc::now())?;
    let days = store::days(ctx.db(), tenant, &window).await?;
    let suppressions = store::suppressions(ctx.db(), tenant).await?;
    let top = store::top_messages(ctx.db(), tenant, &window).await?;
    let sequences = store::sequence_triggers(ctx.db(), tenant, &window).await?;
    let outcomes = store::outcomes(ctx.db(), tenant, &window).await?;
    let report = AnalyticsReport::new(&window, &days, &suppressions, top, sequences, &outcomes);
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
         soft that it could not take mail for now, block that the sender was refused. Only hard ones count as bounced. \
         sequence_triggers and templates among the top messages count in the hour it became known, and only what was sent."
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
struct SequenceTriggerTotals {
    trigger_type: String,
    #[serde(flatten)]
    totals: MessageTotals,
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
struct TopMessage {
    #[schemars(extend("enum" = ["campaign", "sequence", "template"]))]
    kind: &'static str,
    campaign_id: Option<Uuid>,
    template_id: Option<Uuid>,
    /// The sequence whose mail the template was.
    sequence_id: Option<Uuid>,
    name: String,
    launched_at: OptionalTime,
    totals: MessageTotals,
    rates: Rates,
}

impl AnalyticsReport {
    fn new(
        window: &HourWindow,
        days: &[DayTotal],
        suppressions: &[ByReason],
        top: Vec<RankedMail>,
        sequences: Vec<(String, MessageTotals)>,
        outcomes: &[OutcomeTypeSum],
    ) -> Self {
        let mut overall = OverallTotals { totals: MessageTotals::default(), opened_total: 0, clicked_total: 0 };
        let mut daily: BTreeMap<NaiveDate, MessageTotals> =
            window.days().map(|day| (day, MessageTotals::default())).collect();
        let mut week = [MessageTotals::default(); 7];
        let mut triggers = [MessageTotals::default(); MessageKind::ALL.len()];
        let mut added: BTreeMap<&str, i64> = BTreeMap::new();
        for total in days {
            if total.kind == "suppression" {
                *added.entry(&total.event).or_default() += total.count;
            }
            let Some(kind) = MessageKind::ALL.iter().position(|kind| kind.as_str() == total.kind) else { continue };
            match total.event.as_str() {
                "opened_total" => overall.opened_total += total.count,
                "clicked_total" => overall.clicked_total += total.count,
                _ => {}
            }
            let weekday = weekday(total.day.weekday());
            for totals in
                [&mut overall.totals, daily.entry(total.day).or_default(), &mut week[weekday], &mut triggers[kind]]
            {
                totals.add(&total.event, total.count);
            }
        }
        let mut reasons: BTreeMap<&str, (i64, i64)> = BTreeMap::new();
        for held in suppressions {
            reasons.entry(&held.reason).or_default().0 = held.count;
        }
        for (reason, count) in added {
            reasons.entry(reason).or_default().1 = count;
        }
        Self {
            delivered_basis: overall.totals.delivered_basis(),
            rates: Rates::from(&overall.totals),
            totals: overall,
            daily: daily.into_iter().map(|(date, totals)| DayTotals { date, totals }).collect(),
            day_of_week: WEEKDAYS.into_iter().zip(week).map(|(day, totals)| WeekdayTotals { day, totals }).collect(),
            triggers: MessageKind::reported()
                .zip(triggers)
                .map(|(kind, totals)| TriggerTotals { trigger: kind, totals })
                .collect(),
            top_messages: top.into_iter().map(TopMessage::of).collect(),
            suppressions: reasons
                .into_iter()
                .map(|(reason, (total, added))| SuppressionTotals { reason: reason.to_owned(), total, added })
                .collect(),
            bounces: bounces(days),
            outcomes: outcomes::of_window(outcomes),
            revenue: outcomes::revenue(outcomes),
            sequence_triggers: sequences
                .into_iter()
                .map(|(trigger_type, totals)| SequenceTriggerTotals { trigger_type, totals })
                .collect(),
        }
    }
}

/// Refusals by class: at once (`failure`) and by what came back later.
fn bounces(days: &[DayTotal]) -> Vec<BounceTotals> {
    let of = |class: BounceClass| {
        let later = format!("bounced_{class}");
        let counts = |total: &&DayTotal| {
            if total.kind == "failure" { total.event == class.as_str() } else { total.event == later }
        };
        days.iter().filter(counts).map(|total| total.count).sum()
    };
    BounceClass::ALL.iter().map(|class| BounceTotals { class: *class, count: of(*class) }).collect()
}

fn weekday(day: Weekday) -> usize {
    day.num_days_from_monday() as usize
}

impl TopMessage {
    fn of(message: RankedMail) -> Self {
        let mut rates = Rates::from(&message.totals);
        if message.template_id.is_some() {
            // What was not sent of a template is not counted, so there is nothing to be a share of.
            (rates.delivery_rate, rates.bounce_rate) = (None, None);
        }
        Self {
            kind: match (message.campaign_id, message.sequence_id) {
                (Some(_), _) => "campaign",
                (None, Some(_)) => "sequence",
                (None, None) => "template",
            },
            campaign_id: message.campaign_id,
            template_id: message.template_id,
            sequence_id: message.sequence_id,
            name: message.name,
            launched_at: message.launched_at.into(),
            totals: message.totals,
            rates,
        }
    }
}
