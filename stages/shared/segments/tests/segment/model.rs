//! Random contacts, and a plain reading of rules over them.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, TimeDelta, Utc};
use proptest::{prelude::*, sample::select};
use serde_json::{Map, Value, json};
use uuid::Uuid;

/// Texts that occur in contacts and in rules, so that they meet.
pub const TEXTS: [&str; 14] = [
    "pro",
    "Pro",
    "PRO plus",
    "team",
    "50% off",
    "5_% off",
    "a\\b",
    "O'Brien",
    "\"quoted\"",
    "'; drop table contacts; --",
    "$1 {} ?",
    "Ünï",
    "line\nbreak",
    " ",
];
pub const ADDRESSES: [&str; 4] =
    ["ann@example.com", "bob@example.com", "o'neil+x@sub.example.org", "ann@xn--bcher-kva.example"];
pub const DATES: [&str; 4] = ["2020-02-29", "2026-01-01", "2026-01-02", "2031-12-31"];
pub const TIMES: [&str; 4] =
    ["2020-02-29T00:00:00Z", "2026-01-01T00:00:00+01:00", "2026-01-01T00:00:00.5Z", "2031-12-31T23:59:59-05:00"];
const EVENTS: [&str; 8] = [
    "email.sent",
    "email.delivered",
    "email.opened",
    "email.clicked",
    "email.bounced",
    "email.complained",
    "email.unsubscribed",
    "email.replied",
];
pub const NUMBERS: [&str; 6] = ["-1", "0", "1", "1.5", "9007199254740993", "1e300"];

/// A fact about one mail.
#[derive(Debug, Clone)]
pub struct Fact {
    pub event: &'static str,
    /// Of which of the campaigns; none: of none.
    pub campaign: Option<usize>,
    pub hours_ago: i64,
    /// When a person did it.
    pub human_hours_ago: Option<i64>,
}

/// A contact.
#[derive(Debug, Clone)]
pub struct Person {
    pub id: Uuid,
    /// As the API shows them: `company`, `consent.at`, `fields.plan`. Missing ones are not there.
    pub values: BTreeMap<&'static str, Value>,
    pub audiences: BTreeSet<usize>,
    pub facts: Vec<Fact>,
    pub active: bool,
}

/// What a rule is read against.
pub struct World<'a> {
    pub now: DateTime<Utc>,
    pub audiences: &'a [Uuid],
    pub campaigns: &'a [Uuid],
    pub segments: &'a [(Uuid, Value)],
}

fn maybe<T: Clone + std::fmt::Debug + 'static>(values: &'static [T]) -> impl Strategy<Value = Option<T>> {
    prop_oneof![1 => Just(None), 3 => select(values).prop_map(Some)]
}

/// A moment some days from the epoch of the test's clock, never at the edge of a day.
fn moment() -> impl Strategy<Value = Option<Value>> {
    let near = (-60_i64..60).prop_map(|days| json!((Utc::now() + TimeDelta::hours(days * 24 + 7)).to_rfc3339()));
    prop_oneof![1 => Just(None), 2 => near.prop_map(Some), 1 => select(&TIMES[..]).prop_map(|time| Some(json!(time)))]
}

fn day() -> impl Strategy<Value = Option<Value>> {
    let near =
        (-60_i64..60).prop_map(|days| json!((Utc::now() + TimeDelta::days(days)).format("%Y-%m-%d").to_string()));
    prop_oneof![1 => Just(None), 2 => near.prop_map(Some), 1 => select(&DATES[..]).prop_map(|day| Some(json!(day)))]
}

fn number() -> impl Strategy<Value = Option<Value>> {
    maybe(&NUMBERS).prop_map(|text| text.map(|text| serde_json::from_str(text).unwrap()))
}

fn fact() -> impl Strategy<Value = Fact> {
    // A delivery follows from the sending.
    let events: Vec<&str> = EVENTS.into_iter().filter(|event| *event != "email.delivered").collect();
    let campaign = prop_oneof![Just(None), (0..2_usize).prop_map(Some)];
    // Not at the edge of a day: the test's clock and the database's differ a little.
    (select(events), campaign, 0..40_i64, any::<bool>()).prop_map(|(event, campaign, days, human)| Fact {
        event,
        campaign,
        hours_ago: days * 24 + 7,
        human_hours_ago: (human && matches!(event, "email.opened" | "email.clicked")).then_some(days * 24 / 2 + 5),
    })
}

/// A contact without an address: that is unique.
pub fn person() -> impl Strategy<Value = Person> {
    let texts = (maybe(&TEXTS), maybe(&TEXTS), maybe(&TEXTS));
    let own = (maybe(&TEXTS), number(), any::<Option<bool>>(), day(), moment());
    let langs = prop_oneof![Just(None), proptest::collection::vec(select(&TEXTS[..]), 0..3).prop_map(Some)];
    let statuses =
        (select(vec!["subscribed", "unsubscribed", "pending"]), prop::bool::weighted(0.9), maybe(&[1_i64, 50, 7_000]));
    let doings = (
        proptest::collection::btree_set(0..3_usize, 0..3),
        proptest::collection::vec(fact(), 0..5),
        (moment(), moment()),
    );
    (texts, own, langs, statuses, doings).prop_map(|(texts, own, langs, statuses, doings)| {
        let text = |text: Option<&str>| text.map(|text| json!(text));
        let values = [
            ("first_name", text(texts.0)),
            ("company", text(texts.1)),
            ("lifecycle_stage", text(texts.2)),
            ("fields.plan", text(own.0)),
            ("fields.seats", own.1),
            ("fields.vip", own.2.map(|vip| json!(vip))),
            ("fields.renews", own.3),
            ("fields.seen", own.4),
            ("fields.langs", langs.map(|langs| json!(langs))),
            ("marketing_status", Some(json!(statuses.0))),
            ("status", Some(json!("active"))),
            ("dot_number", statuses.2.map(|number| json!(number))),
            ("consent.at", doings.2.0),
            ("created_at", Some(doings.2.1.unwrap_or_else(|| json!("2024-05-06T07:08:09Z")))),
        ];
        Person {
            id: schemas::new_id(),
            values: values.into_iter().filter_map(|(name, value)| Some((name, value?))).collect(),
            audiences: doings.0,
            facts: doings.1,
            active: statuses.1,
        }
    })
}

/// A leaf about a field, of every kind and with every operator that applies.
fn field_leaf() -> impl Strategy<Value = Value> {
    let texts = || select(&TEXTS[..]).prop_map(|text| json!(text));
    let leaf = |field: &'static str, op: &str, value: Value| json!({"field": field, "op": op, "value": value});
    let text_fields = || select(vec!["first_name", "company", "lifecycle_stage", "fields.plan"]);
    let text_ops = select(vec!["eq", "neq", "contains", "not_contains", "starts_with", "ends_with"]);
    let part =
        || (select(&TEXTS[..]), 0..4_usize).prop_map(|(text, take)| text.chars().take(take.max(1)).collect::<String>());
    let exists = select(vec!["exists", "not_exists"]);
    let any_field = select(vec![
        "email",
        "first_name",
        "company",
        "dot_number",
        "consent.at",
        "fields.plan",
        "fields.seats",
        "fields.vip",
        "fields.renews",
        "fields.seen",
        "fields.langs",
        "source",
    ]);
    let range_ops = || select(vec!["gt", "gte", "lt", "lte"]);
    let numbers = || select(&NUMBERS[..]).prop_map(|text| serde_json::from_str::<Value>(text).unwrap());
    let days = prop_oneof![-50..-1_i32, 1..50_i32].prop_map(|days| json!(days));
    prop_oneof![
        3 => (text_fields(), text_ops, prop_oneof![texts(), part().prop_map(|text| json!(text))])
            .prop_map(move |(field, op, value)| leaf(field, op, value)),
        2 => (text_fields(), select(vec!["in", "not_in"]), proptest::collection::vec(texts(), 1..4))
            .prop_map(move |(field, op, values)| leaf(field, op, json!(values))),
        1 => (any_field, exists).prop_map(move |(field, op)| json!({"field": field, "op": op})),
        1 => (select(vec!["eq", "neq"]), select(&ADDRESSES[..])).prop_map(move |(op, value)| leaf("email", op, json!(value))),
        1 => (select(vec!["contains", "starts_with", "ends_with"]), select(vec!["ANN@", "example.com", "o'", "%", "p0"]))
            .prop_map(move |(op, value)| leaf("email", op, json!(value))),
        1 => (select(vec!["eq", "neq"]), select(vec!["subscribed", "unsubscribed", "pending"]))
            .prop_map(move |(op, value)| leaf("marketing_status", op, json!(value))),
        2 => (select(vec!["fields.seats", "dot_number"]), prop_oneof![range_ops(), select(vec!["eq", "neq"])], numbers())
            .prop_map(move |(field, op, value)| leaf(field, op, value)),
        1 => (numbers(), numbers()).prop_map(move |(from, to)| leaf("fields.seats", "between", json!([from, to]))),
        1 => (select(vec!["eq", "neq"]), any::<bool>()).prop_map(move |(op, value)| leaf("fields.vip", op, json!(value))),
        1 => (prop_oneof![range_ops(), select(vec!["eq", "neq", "before", "after"])], select(&DATES[..]))
            .prop_map(move |(op, value)| leaf("fields.renews", op, json!(value))),
        1 => (select(vec!["fields.seen", "consent.at", "created_at"]), prop_oneof![range_ops(), select(vec!["before", "after"])], select(&TIMES[..]))
            .prop_map(move |(field, op, value)| leaf(field, op, json!(value))),
        1 => (select(vec!["fields.renews", "fields.seen", "created_at"]), days.clone())
            .prop_map(move |(field, days)| leaf(field, "within_days", days)),
        1 => (select(vec!["fields.renews", "fields.seen", "created_at"]), 1..50_i32)
            .prop_map(move |(field, days)| leaf(field, "older_than_days", json!(days))),
        1 => texts().prop_map(move |value| leaf("fields.langs", "includes", value)),
    ]
}

fn event_leaf(campaigns: Vec<Uuid>) -> impl Strategy<Value = Value> {
    let campaign = prop_oneof![Just(None), select(campaigns).prop_map(Some)];
    let times = prop_oneof![
        (1..3_i64).prop_map(|count| ("at_least", count)),
        (0..3_i64).prop_map(|count| ("at_most", count)),
        (0..3_i64).prop_map(|count| ("exactly", count)),
    ];
    (select(&EVENTS[..]), times, any::<Option<u8>>(), campaign, any::<bool>()).prop_map(
        |(event, (op, count), days, campaign, human)| {
            let human = human && matches!(event, "email.opened" | "email.clicked");
            let days = days.map(|days| i64::from(days % 40) + 1);
            json!({"event": event, "op": op, "count": count, "within_days": days, "campaign_id": campaign, "human_only": human})
        },
    )
}

/// A rule of any shape, at most four deep.
pub fn rule(lists: Vec<Uuid>, tag: Uuid, campaigns: Vec<Uuid>, segments: Vec<Uuid>) -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        6 => field_leaf(),
        1 => select(lists).prop_map(|list| json!({"in_list": list})),
        1 => Just(json!({"has_tag": tag})),
        1 => select(segments).prop_map(|segment| json!({"in_segment": segment})),
        2 => event_leaf(campaigns),
    ];
    leaf.prop_recursive(3, 8, 3, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 1..4).prop_map(|parts| json!({ "all": parts })),
            proptest::collection::vec(inner.clone(), 1..4).prop_map(|parts| json!({ "any": parts })),
            inner.prop_map(|part| json!({ "not": part })),
        ]
    })
}

impl World<'_> {
    /// Whether a rule is true of a contact: read from its JSON, by nothing of the engine.
    pub fn holds(&self, rule: &Value, person: &Person) -> bool {
        let rule = rule.as_object().unwrap();
        let parts = |key: &str| rule[key].as_array().unwrap().iter();
        if rule.contains_key("all") {
            return parts("all").all(|part| self.holds(part, person));
        }
        if rule.contains_key("any") {
            return parts("any").any(|part| self.holds(part, person));
        }
        if let Some(part) = rule.get("not") {
            return !self.holds(part, person);
        }
        if let Some(id) = rule.get("in_list").or(rule.get("has_tag")) {
            return person.audiences.iter().any(|at| json!(self.audiences[*at]) == *id);
        }
        if let Some(id) = rule.get("in_segment") {
            let (_, rule) = self.segments.iter().find(|(known, _)| json!(known) == *id).unwrap();
            return self.holds(rule, person);
        }
        if rule.contains_key("event") { self.happened(rule, person) } else { self.passes(rule, person) }
    }

    fn happened(&self, rule: &Map<String, Value>, person: &Person) -> bool {
        let event = rule["event"].as_str().unwrap();
        let get = |key: &str| rule.get(key).unwrap_or(&Value::Null);
        let human = *get("human_only") == json!(true);
        let times = person.facts.iter().filter(|fact| {
            // A mail that somebody opened was sent and, unless it bounced, delivered.
            let kind = match event {
                "email.sent" => true,
                "email.delivered" => fact.event != "email.bounced",
                event => fact.event == event,
            };
            let hours_ago = match (event, human) {
                ("email.sent" | "email.delivered", _) => Some(SENT_HOURS_AGO),
                (_, true) => fact.human_hours_ago,
                (_, false) => Some(fact.hours_ago),
            };
            let recent =
                hours_ago.is_some_and(|hours| get("within_days").as_i64().is_none_or(|days| hours <= days * 24));
            let campaign = get("campaign_id").is_null()
                || fact.campaign.is_some_and(|at| json!(self.campaigns[at]) == *get("campaign_id"));
            kind && recent && campaign
        });
        let (times, count) = (times.count() as i64, get("count").as_i64().unwrap_or(1));
        match get("op").as_str().unwrap_or("at_least") {
            "at_least" => times >= count,
            "at_most" => times <= count,
            _ => times == count,
        }
    }

    fn passes(&self, rule: &Map<String, Value>, person: &Person) -> bool {
        let op = rule["op"].as_str().unwrap();
        let positive = match op {
            "neq" => "eq",
            "not_in" => "in",
            "not_contains" => "contains",
            "not_exists" => "exists",
            op => op,
        };
        let field = rule["field"].as_str().unwrap();
        let held = person.values.get(field).is_some_and(|value| {
            positive == "exists" && *value != json!("") && *value != json!([])
                || positive != "exists" && self.compares(field, positive, value, &rule["value"])
        });
        held != (op != positive)
    }

    fn compares(&self, field: &str, op: &str, value: &Value, wanted: &Value) -> bool {
        let lower = |value: &Value| value.as_str().unwrap().to_lowercase();
        match op {
            "in" => wanted.as_array().unwrap().iter().any(|wanted| lower(wanted) == lower(value)),
            "contains" => lower(value).contains(&lower(wanted)),
            "starts_with" => lower(value).starts_with(&lower(wanted)),
            "ends_with" => lower(value).ends_with(&lower(wanted)),
            "includes" => value.as_array().unwrap().iter().any(|item| lower(item) == lower(wanted)),
            "within_days" => {
                let days = wanted.as_i64().unwrap();
                let (from, to) = if days > 0 { (-days, 0) } else { (0, -days) };
                self.days_from_now(field, value, from) >= 0.0 && self.days_from_now(field, value, to) <= 0.0
            }
            "older_than_days" => self.days_from_now(field, value, -wanted.as_i64().unwrap()) < 0.0,
            "between" => {
                let ends = wanted.as_array().unwrap();
                compare(field, value, &ends[0]).is_ge() && compare(field, value, &ends[1]).is_le()
            }
            "eq" => compare(field, value, wanted).is_eq(),
            "gt" | "after" => compare(field, value, wanted).is_gt(),
            "gte" => compare(field, value, wanted).is_ge(),
            "lt" | "before" => compare(field, value, wanted).is_lt(),
            "lte" => compare(field, value, wanted).is_le(),
            op => panic!("{op}"),
        }
    }

    /// How many days a value lies after the moment, or the day, so many days from now.
    fn days_from_now(&self, field: &str, value: &Value, days: i64) -> f64 {
        let text = value.as_str().unwrap();
        if field == "fields.renews" {
            let day = chrono::NaiveDate::parse_from_str(text, "%Y-%m-%d").unwrap();
            return (day - (self.now.date_naive() + TimeDelta::days(days))).num_days() as f64;
        }
        let at = DateTime::parse_from_rfc3339(text).unwrap().to_utc();
        (at - (self.now + TimeDelta::days(days))).num_milliseconds() as f64 / 86_400_000.0
    }
}

/// When every mail of the model was sent.
pub const SENT_HOURS_AGO: i64 = 10 * 24 + 7;

fn compare(field: &str, value: &Value, wanted: &Value) -> std::cmp::Ordering {
    match (value, wanted) {
        (Value::Number(value), Value::Number(wanted)) => match (value.as_i64(), wanted.as_i64()) {
            (Some(value), Some(wanted)) => value.cmp(&wanted),
            _ => value.as_f64().unwrap().total_cmp(&wanted.as_f64().unwrap()),
        },
        (Value::Bool(value), Value::Bool(wanted)) => value.cmp(wanted),
        (Value::String(value), Value::String(wanted)) => match field {
            "fields.renews" => value.cmp(wanted),
            "fields.seen" | "consent.at" | "created_at" => {
                DateTime::parse_from_rfc3339(value).unwrap().cmp(&DateTime::parse_from_rfc3339(wanted).unwrap())
            }
            _ => value.to_lowercase().cmp(&wanted.to_lowercase()),
        },
        pair => panic!("{pair:?}"),
    }
}
