//! `GET /v1/analytics/overview`: what became of a tenant's mail within a window.

use std::collections::BTreeMap;

use chrono::{Datelike, NaiveDate, Utc, Weekday};
use chrono_tz::Tz;
use schemas::{BounceClass, MessageKind};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{
    outcomes::{self, OUTCOMES_NOTE, Recorded, Revenue, Sum},
    store::{self, ByReason, DayTotal, Message},
    totals::{DELIVERED_NOTE, DeliveredBasis, OPENS_NOTE, RATES_NOTE, Rates, Totals, UNTRACKED_NOTE},
    window::Window,
};
use crate::{
    act::{Act, Reply, time},
    error::ApiError,
};

/// The days of the week, in order.
pub(super) const WEEKDAYS: [&str; 7] = ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"];

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Query {
    from: Option<String>,
    to: Option<String>,
}

pub(super) async fn overview(act: &mut Act, query: Query) -> Result<Reply, ApiError> {
    let tenant = act.tenant;
    let zone = store::timezone(act.db(), tenant).await?;
    let known: Option<Tz> = zone.parse().ok();
    let window = Window::new(query.from.as_deref(), query.to.as_deref(), known.unwrap_or(Tz::UTC), Utc::now())?;
    let days = store::days(act.db(), tenant, &window).await?;
    let suppressions = store::suppressions(act.db(), tenant).await?;
    let new_suppressions = store::new_suppressions(act.db(), tenant, &window).await?;
    let top = store::top_messages(act.db(), tenant, &window).await?;
    let sequences = store::sequence_triggers(act.db(), tenant, &window).await?;
    let outcomes = store::outcomes(act.db(), tenant, &window).await?;
    let report = Report::new(&window, &days, &suppressions, &new_suppressions, top, sequences, &outcomes);
    Reply::untyped_ok(&json!({
        "ok": true,
        "window": {"from": time(window.from), "to": time(window.to), "timezone": window.timezone.name()},
        "report": report,
        "notes": notes(&window, known.is_none().then_some(zone.as_str())),
    }))
}

fn notes(window: &Window, unknown_zone: Option<&str>) -> Vec<String> {
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

#[derive(Debug, Serialize)]
struct Report {
    totals: Overall,
    delivered_basis: Option<DeliveredBasis>,
    rates: Rates,
    daily: Vec<Day>,
    day_of_week: Vec<DayOfWeek>,
    triggers: Vec<Trigger>,
    sequence_triggers: Vec<SequenceTrigger>,
    top_messages: Vec<Value>,
    suppressions: Vec<Suppressions>,
    bounces: Vec<Bounces>,
    outcomes: Vec<Recorded>,
    revenue: Revenue,
}

/// Unique facts, and each single open and click.
#[derive(Debug, Serialize)]
struct Overall {
    #[serde(flatten)]
    totals: Totals,
    opened_total: i64,
    clicked_total: i64,
}

#[derive(Debug, Serialize)]
struct Day {
    date: NaiveDate,
    #[serde(flatten)]
    totals: Totals,
}

#[derive(Debug, Serialize)]
struct DayOfWeek {
    day: &'static str,
    #[serde(flatten)]
    totals: Totals,
}

#[derive(Debug, Serialize)]
struct Trigger {
    trigger: &'static str,
    #[serde(flatten)]
    totals: Totals,
}

#[derive(Debug, Serialize)]
struct SequenceTrigger {
    trigger_type: String,
    #[serde(flatten)]
    totals: Totals,
}

#[derive(Debug, Serialize)]
struct Bounces {
    class: BounceClass,
    count: i64,
}

#[derive(Debug, Serialize)]
struct Suppressions {
    reason: String,
    total: i64,
    added: i64,
}

impl Report {
    fn new(
        window: &Window,
        days: &[DayTotal],
        suppressions: &[ByReason],
        new_suppressions: &[ByReason],
        top: Vec<Message>,
        sequences: Vec<(String, Totals)>,
        outcomes: &[Sum],
    ) -> Self {
        let mut overall = Overall { totals: Totals::default(), opened_total: 0, clicked_total: 0 };
        let mut daily: BTreeMap<NaiveDate, Totals> = window.days().map(|day| (day, Totals::default())).collect();
        let mut week = [Totals::default(); 7];
        let mut triggers = [Totals::default(); MessageKind::ALL.len()];
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
        for new in new_suppressions {
            *added.entry(&new.reason).or_default() += new.count;
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
            daily: daily.into_iter().map(|(date, totals)| Day { date, totals }).collect(),
            day_of_week: WEEKDAYS.into_iter().zip(week).map(|(day, totals)| DayOfWeek { day, totals }).collect(),
            triggers: MessageKind::ALL
                .iter()
                .zip(triggers)
                .map(|(kind, totals)| Trigger { trigger: kind.as_str(), totals })
                .collect(),
            top_messages: top.iter().map(top_message).collect(),
            suppressions: reasons
                .into_iter()
                .map(|(reason, (total, added))| Suppressions { reason: reason.to_owned(), total, added })
                .collect(),
            bounces: bounces(days),
            outcomes: outcomes::of_window(outcomes),
            revenue: outcomes::revenue(outcomes),
            sequence_triggers: sequences
                .into_iter()
                .map(|(trigger_type, totals)| SequenceTrigger { trigger_type, totals })
                .collect(),
        }
    }
}

/// Refusals by class: at once (`failure`) and by what came back later.
fn bounces(days: &[DayTotal]) -> Vec<Bounces> {
    let of = |class: BounceClass| {
        let later = format!("bounced_{class}");
        let counts = |total: &&DayTotal| {
            if total.kind == "failure" { total.event == class.as_str() } else { total.event == later }
        };
        days.iter().filter(counts).map(|total| total.count).sum()
    };
    BounceClass::ALL.iter().map(|class| Bounces { class: *class, count: of(*class) }).collect()
}

fn weekday(day: Weekday) -> usize {
    day.num_days_from_monday() as usize
}

fn top_message(message: &Message) -> Value {
    let mut record = json!({
        "kind": match (message.campaign_id, message.sequence_id) {
            (Some(_), _) => "campaign",
            (None, Some(_)) => "sequence",
            (None, None) => "template",
        },
        "campaign_id": message.campaign_id,
        "template_id": message.template_id,
        "sequence_id": message.sequence_id,
        "name": message.name,
        "launched_at": message.launched_at.map(time),
        "totals": message.totals,
        "rates": Rates::from(&message.totals),
    });
    if message.template_id.is_some() {
        // Of a template nobody counts what was not sent, so there is nothing to be a share of.
        record["rates"]["delivery_rate"] = Value::Null;
        record["rates"]["bounce_rate"] = Value::Null;
    }
    record
}
