//! From a rule to SQL. What a caller wrote is bound, never spliced: the texts pushed here are constants of this file, names of
//! columns from the closed table of fields, and numbers of joins.

use chrono::{DateTime, Utc};
use sqlx::{Postgres, QueryBuilder};
use uuid::Uuid;

use super::{
    event::{EventSource, EventTest, MailEvents, ProductEvents, Times},
    field::{Field, FieldSource, ValueKind},
    rule::{Bound, Expanded, FieldTest, Rule, Scalar, Test},
};

type Query = QueryBuilder<Postgres>;

/// A rule that can be pushed into statements.
#[derive(Debug, Clone, PartialEq)]
pub struct CompiledSegment {
    /// All of them must hold.
    conditions: Vec<Condition>,
    /// What they look up beside the contact itself; each becomes one join, however often it is asked for.
    sources: Vec<ContactSet>,
}

/// One of the things that must all hold.
#[derive(Debug, Clone, PartialEq)]
enum Condition {
    /// The contact did this at least once, or never: a semi-join or an anti-join, which need not count.
    Did(EventSource, bool),
    /// Anything else.
    Rule(Expanded),
}

impl Condition {
    fn new(rule: Expanded) -> Self {
        let happened = |rule: &Expanded| match rule {
            Rule::Event(EventTest { source, times: Times::AtLeast(1) }) => Some((source.clone(), true)),
            Rule::Event(EventTest { source, times: Times::AtMost(0) | Times::Exactly(0) }) => {
                Some((source.clone(), false))
            }
            _ => None,
        };
        let found = match &rule {
            Rule::Not(part) => happened(part).map(|(source, did)| (source, !did)),
            rule => happened(rule),
        };
        found.map_or(Self::Rule(rule), |(source, did)| Self::Did(source, did))
    }
}

/// What must all hold for a rule to hold.
fn conditions_of(rule: Expanded, conditions: &mut Vec<Condition>) {
    match rule {
        Rule::All(parts) => parts.into_iter().for_each(|part| conditions_of(part, conditions)),
        rule => conditions.push(Condition::new(rule)),
    }
}

/// A set of contacts that a rule asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
enum ContactSet {
    /// The members of a list or tag.
    Members(Uuid),
    /// How often each contact did something.
    Events(EventSource),
}

/// The newest contacts of a tenant, whatever their status: where the first matches are looked for, because for most questions
/// they are enough, and reading all contacts costs a second for a million.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Newest {
    /// Only contacts older than this one, by time and id.
    pub before: Option<(DateTime<Utc>, Uuid)>,
}

/// How many contacts [`Newest`] is.
const NEWEST: i64 = 5_000;

impl Newest {
    /// Pushes them as `c`. Served by `contacts_newest`.
    pub fn push(&self, query: &mut Query, tenant: Uuid) {
        query.push("(select * from contacts where tenant_id = ").push_bind(tenant);
        if let Some((at, id)) = self.before {
            query.push(" and (created_at, id) < (").push_bind(at).push(", ").push_bind(id).push(")");
        }
        query.push(" order by created_at desc, id desc limit ").push_bind(NEWEST).push(") c");
    }
}

impl CompiledSegment {
    pub(super) fn new(rule: Expanded) -> Self {
        let (mut conditions, mut sources) = (Vec::new(), Vec::new());
        conditions_of(rule, &mut conditions);
        for condition in &conditions {
            let Condition::Rule(rule) = condition else { continue };
            rule.each_leaf(&mut |leaf| {
                let source = match leaf {
                    Rule::Member(membership) => ContactSet::Members(membership.id),
                    Rule::Event(event) => ContactSet::Events(event.source.clone()),
                    _ => return,
                };
                if !sources.contains(&source) {
                    sources.push(source);
                }
            });
        }
        Self { conditions, sources }
    }

    /// Pushes what follows `from`, up to and with the conditions, for the tenant's active contacts that pass; they are `c`.
    ///
    /// Sets are joined and not looked up with `in`: a hash join of any size spills to disk, where a hashed sub-select that is
    /// thought too large for memory is run again for every contact. Joins that must match become inner ones by themselves.
    pub fn push(&self, query: &mut Query, tenant: Uuid) {
        query.push("contacts c");
        self.push_rest(query, tenant);
    }

    /// Pushes what follows `from`, up to and with the conditions, for the newest contacts that pass; they are `c`.
    pub fn push_newest(&self, query: &mut Query, tenant: Uuid, newest: &Newest) {
        newest.push(query, tenant);
        self.push_rest(query, tenant);
    }

    fn push_rest(&self, query: &mut Query, tenant: Uuid) {
        for (at, source) in self.sources.iter().enumerate() {
            push_source(query, tenant, at, source);
        }
        query.push(" where c.tenant_id = ").push_bind(tenant).push(" and c.status = 'active'");
        for condition in &self.conditions {
            query.push(" and ");
            match condition {
                Condition::Rule(rule) => self.push_rule(query, rule),
                Condition::Did(source, did) => {
                    query.push(if *did { "exists (select from " } else { "not exists (select from " });
                    push_events(query, tenant, source);
                    query.push(" and f.contact_id = c.id)");
                }
            }
        }
    }

    /// Unknown counts as false: so it does under `where`, `and` and `or`, and `is not true` makes it so under `not`.
    fn push_rule(&self, query: &mut Query, rule: &Expanded) {
        match rule {
            Rule::All(parts) => self.push_parts(query, parts, " and "),
            Rule::Any(parts) => self.push_parts(query, parts, " or "),
            Rule::Not(part) => match part.as_ref() {
                // In this form the planner knows how many there are.
                Rule::Member(membership) => {
                    let join = self.join_of(&ContactSet::Members(membership.id));
                    query.push(format_args!("j{join}.contact_id is null"));
                }
                part => {
                    query.push("(");
                    self.push_rule(query, part);
                    query.push(") is not true");
                }
            },
            Rule::Field(test) => push_field(query, test),
            Rule::Member(membership) => {
                let join = self.join_of(&ContactSet::Members(membership.id));
                query.push(format_args!("j{join}.contact_id is not null"));
            }
            Rule::Event(event) => push_event(query, event, self.join_of(&ContactSet::Events(event.source.clone()))),
            Rule::Segment(never) => match *never {},
        }
    }

    fn push_parts(&self, query: &mut Query, parts: &[Expanded], between: &str) {
        for (at, part) in parts.iter().enumerate() {
            query.push(if at == 0 { "(" } else { between });
            self.push_rule(query, part);
        }
        query.push(")");
    }

    fn join_of(&self, wanted: &ContactSet) -> usize {
        // Every source of the rule was collected when it was compiled.
        self.sources.iter().position(|source| source == wanted).unwrap_or(usize::MAX)
    }
}

fn push_source(query: &mut Query, tenant: Uuid, at: usize, source: &ContactSet) {
    query.push(" left join ");
    match source {
        ContactSet::Members(audience) => {
            query.push(format_args!("audience_members j{at} on j{at}.contact_id = c.id and j{at}.tenant_id = "));
            query.push_bind(tenant).push(format_args!(" and j{at}.audience_id = ")).push_bind(*audience);
        }
        ContactSet::Events(events) => {
            query.push("(select f.contact_id, count(*) as times from ");
            push_events(query, tenant, events);
            query.push(format_args!(" group by f.contact_id) j{at} on j{at}.contact_id = c.id"));
        }
    }
}

/// The mails with which it happened, or the events that products reported, as `f`.
fn push_events(query: &mut Query, tenant: Uuid, events: &EventSource) {
    match events {
        EventSource::Product(events) => push_product_events(query, tenant, events),
        EventSource::Mail(events) => match events.kind.fact() {
            Some(fact) => push_facts(query, tenant, fact, events),
            None => push_sends(query, tenant, events),
        },
    }
}

/// What products reported: `product_events_by_name`.
fn push_product_events(query: &mut Query, tenant: Uuid, events: &ProductEvents) {
    query.push("product_events f where f.tenant_id = ").push_bind(tenant);
    query.push(" and f.name = ").push_bind(events.name.clone());
    if let Some(properties) = &events.properties {
        query.push(" and f.properties @> ").push_bind(properties.clone());
    }
    if let Some(days) = events.within_days {
        query.push(" and f.occurred_at >= ");
        push_days_ago(query, days);
    }
}

/// Rare facts: `contact_facts_by_time` and `contact_facts_by_human`, or the key where a campaign is named.
fn push_facts(query: &mut Query, tenant: Uuid, fact: &'static str, events: &MailEvents) {
    query.push("contact_facts f where f.tenant_id = ").push_bind(tenant).push(" and f.fact = ").push_bind(fact);
    let time = if events.human_only { "f.human_at" } else { "f.occurred_at" };
    if events.human_only {
        query.push(" and f.human_at is not null");
    }
    if let Some(days) = events.within_days {
        query.push(format_args!(" and {time} >= "));
        push_days_ago(query, days);
    }
    if let Some(campaign) = events.campaign_id {
        push_campaign(query, tenant, campaign, "f.send_id");
    }
}

/// What nearly every send has, from the sends themselves: a range of their ids. A send is decided within three days of its
/// launch, or before its campaign is complete, and its delivery reported within five more: earlier sends are not read.
fn push_sends(query: &mut Query, tenant: Uuid, events: &MailEvents) {
    query.push("sends f where f.tenant_id = ").push_bind(tenant).push(" and f.state = 'sent'");
    if events.campaign_id.is_none() {
        // Tests of campaigns are nothing that a segment knows.
        query.push(
            " and (f.request_id is null or not exists (
                 select from messages m where m.tenant_id = f.tenant_id and m.id = f.request_id and m.is_test))",
        );
    }
    let delivered = events.kind == super::event::EventKind::Delivered;
    if delivered {
        // Where the route confirms deliveries, an accepted mail is not a delivered one.
        query.push(" and f.bounced_at is null and (f.delivered_at is not null or coalesce(delivers_at_once(f.provider), true))");
    }
    if let Some(days) = events.within_days {
        let time = if delivered { "coalesce(f.delivered_at, f.decided_at)" } else { "f.decided_at" };
        query.push(format_args!(" and {time} >= "));
        push_days_ago(query, days);
        push_floor(query, tenant, days.saturating_add(LATE_DAYS));
    }
    if let Some(campaign) = events.campaign_id {
        push_campaign(query, tenant, campaign, "f.id");
        query.push(" and f.month = (select k.month from campaigns k where k.tenant_id = ").push_bind(tenant);
        query.push(" and k.id = ").push_bind(campaign).push(")");
    }
}

/// How long after its launch something may still happen to a send whose campaign is complete, or that has none.
const LATE_DAYS: i32 = 8;

/// The oldest id and month that can matter.
fn push_floor(query: &mut Query, tenant: Uuid, days: i32) {
    let recent = |query: &mut Query, what: &str| {
        query.push(format_args!("(select min({what}) from campaigns k where k.tenant_id = ")).push_bind(tenant);
        query.push(" and (k.completed_at is null or k.completed_at >= ");
        push_days_ago(query, days);
        query.push("))");
    };
    query.push(" and f.month >= least(date_trunc('month', (");
    push_days_ago(query, days);
    query.push(") at time zone 'UTC')::date, ");
    recent(query, "k.month");
    // The first twelve digits of an id are its time in milliseconds.
    query.push(") and f.id >= least((rpad(lpad(to_hex((extract(epoch from ");
    push_days_ago(query, days);
    query.push(") * 1000)::bigint), 12, '0'), 32, '0'))::uuid, (rpad(");
    recent(query, "k.launch_prefix");
    query.push(", 32, '0'))::uuid)");
}

/// All sends of a campaign: one range of ids. None, if it was not launched.
fn push_campaign(query: &mut Query, tenant: Uuid, campaign: Uuid, id: &str) {
    for (comparison, filler) in [(">=", "0"), ("<=", "f")] {
        query.push(format_args!(
            " and {id} {comparison} (select rpad(k.launch_prefix, 32, '{filler}')::uuid from campaigns k where k.tenant_id = "
        ));
        query.push_bind(tenant).push(" and k.id = ").push_bind(campaign).push(")");
    }
}

fn push_days_ago(query: &mut Query, days: i32) {
    query.push("(now() - make_interval(secs => 86400.0 * ").push_bind(days).push("))");
}

fn push_event(query: &mut Query, event: &EventTest, join: usize) {
    match event.times {
        Times::AtLeast(count) => query.push(format_args!("j{join}.times >= ")).push_bind(count),
        Times::AtMost(count) => query.push(format_args!("coalesce(j{join}.times, 0) <= ")).push_bind(count),
        Times::Exactly(count) => query.push(format_args!("coalesce(j{join}.times, 0) = ")).push_bind(count),
    };
}

fn push_field(query: &mut Query, test: &FieldTest) {
    query.push("(");
    push_test(query, &test.field, &test.test);
    query.push(if test.negated { ") is not true" } else { ")" });
}

fn push_test(query: &mut Query, field: &Field, test: &Test) {
    match test {
        Test::Exists => push_exists(query, field),
        Test::OneOf(values) => push_one_of(query, field, values),
        Test::Contains(text) => {
            query.push("strpos(");
            push_text(query, field);
            query.push(", lower(").push_bind(text.clone()).push(")) > 0");
        }
        Test::StartsWith(text) => {
            query.push("starts_with(");
            push_text(query, field);
            query.push(", lower(").push_bind(text.clone()).push("))");
        }
        Test::EndsWith(text) => {
            query.push("right(");
            push_text(query, field);
            query.push(", length(lower(").push_bind(text.clone());
            query.push("))) = lower(").push_bind(text.clone()).push(")");
        }
        Test::Range(from, to) => push_range(query, field, from.as_ref(), to.as_ref()),
        Test::WithinDays(days) => push_within(query, field, *days),
        Test::OlderThanDays(days) => {
            push_value(query, field);
            query.push(" < ");
            push_now(query, field.kind, -days);
        }
        Test::Includes(text) => {
            query.push("exists (select from jsonb_array_elements_text(");
            push_value(query, field);
            query.push(") item where lower(item) = lower(").push_bind(text.clone()).push("))");
        }
    }
}

fn push_exists(query: &mut Query, field: &Field) {
    push_value(query, field);
    query.push(match field.kind {
        ValueKind::Text | ValueKind::Email => " <> ''",
        ValueKind::TextList => " <> '[]'",
        ValueKind::Word(_) | ValueKind::Number | ValueKind::Boolean | ValueKind::Date | ValueKind::Instant => {
            " is not null"
        }
    });
}

fn push_one_of(query: &mut Query, field: &Field, values: &[Scalar]) {
    if field.kind == ValueKind::Text {
        push_text(query, field);
    } else {
        push_value(query, field);
    }
    for (at, value) in values.iter().enumerate() {
        query.push(if at == 0 { " in (" } else { ", " });
        match (field.kind, value) {
            (ValueKind::Text, Scalar::Text(text)) => {
                query.push("lower(").push_bind(text.clone()).push(")");
            }
            _ => push_scalar(query, value),
        }
    }
    query.push(")");
}

fn push_range(query: &mut Query, field: &Field, from: Option<&Bound>, to: Option<&Bound>) {
    let ends = [(from, " > ", " >= "), (to, " < ", " <= ")];
    let mut first = true;
    for (bound, strict, inclusive) in ends {
        let Some(bound) = bound else { continue };
        if !first {
            query.push(" and ");
        }
        first = false;
        push_value(query, field);
        query.push(if bound.inclusive { inclusive } else { strict });
        push_scalar(query, &bound.value);
    }
}

/// The last so many days up to now; or from now on, the next.
fn push_within(query: &mut Query, field: &Field, days: i32) {
    let (from, to) = if days > 0 { (-days, 0) } else { (0, -days) };
    push_value(query, field);
    query.push(" between ");
    push_now(query, field.kind, from);
    query.push(" and ");
    push_now(query, field.kind, to);
}

/// The moment, or the UTC day, so many days from now.
fn push_now(query: &mut Query, kind: ValueKind, days: i32) {
    if kind == ValueKind::Date {
        query.push("to_char((now() at time zone 'UTC')::date + ").push_bind(days).push(", 'YYYY-MM-DD')");
    } else {
        push_days_ago(query, -days);
    }
}

fn push_scalar(query: &mut Query, value: &Scalar) {
    match value {
        Scalar::Text(text) | Scalar::Date(text) => query.push_bind(text.clone()),
        Scalar::Number(number) => query.push_bind(number.clone()).push("::numeric"),
        Scalar::Boolean(value) => query.push_bind(*value),
        Scalar::Instant(at) => query.push_bind(*at),
    };
}

/// A text for comparisons without regard to case.
fn push_text(query: &mut Query, field: &Field) {
    // Addresses are in lower case.
    if field.kind == ValueKind::Email {
        return push_value(query, field);
    }
    query.push("lower(");
    push_value(query, field);
    query.push(")");
}

/// A field's value in the type its kind is compared in; null where it is missing, or is not of that kind.
fn push_value(query: &mut Query, field: &Field) {
    let key = match &field.source {
        FieldSource::Column(column) => {
            query.push(format_args!("c.{column}"));
            if field.kind == ValueKind::Number {
                query.push("::numeric");
            }
            return;
        }
        FieldSource::Custom(key) => key,
    };
    match field.kind {
        ValueKind::Text | ValueKind::Email | ValueKind::Word(_) => {
            query.push("(c.fields ->> ").push_bind(key.clone()).push(")");
        }
        // Compared as text, which for this form is the order of days.
        ValueKind::Date => {
            query.push("(c.fields ->> ").push_bind(key.clone()).push(") collate \"C\"");
        }
        ValueKind::Number => push_guarded(query, key, "jsonb_typeof(c.fields -> ", ") = 'number'", "::numeric"),
        ValueKind::Boolean => push_guarded(query, key, "jsonb_typeof(c.fields -> ", ") = 'boolean'", "::boolean"),
        ValueKind::Instant => push_instant(query, key),
        ValueKind::TextList => {
            query.push("(case when jsonb_typeof(c.fields -> ").push_bind(key.clone());
            query.push(") = 'array' then c.fields -> ").push_bind(key.clone()).push(" end)");
        }
    }
}

/// A value that is cast only where the cast cannot fail.
fn push_guarded(query: &mut Query, key: &str, guard: &str, passes: &str, cast: &str) {
    query.push("(case when ").push(guard).push_bind(key.to_owned()).push(passes);
    query.push(" then (c.fields ->> ").push_bind(key.to_owned()).push(")").push(cast).push(" end)");
}

/// A time. RFC 3339, by which values are checked when they are written, allows a year 0 and zones that Postgres does not read, and
/// one contact with such a value must not make the whole segment fail. The two forms that nearly all have are distinguished
/// without the regular expression, which costs more than all the rest.
fn push_instant(query: &mut Query, key: &str) {
    let value = |query: &mut Query| {
        query.push("(c.fields ->> ").push_bind(key.to_owned()).push(")");
    };
    query.push("(case when ");
    value(query);
    query.push(" collate \"C\" < '0001' then null when ");
    value(query);
    query.push(" like any (array['____-__-__T__:__:__Z', '____-__-__T__:__:__.___Z']) or ");
    value(query);
    query.push(INSTANT);
    value(query);
    query.push("::timestamptz end)");
}

const INSTANT: &str = " ~ '^[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}:[0-9]{2}([.][0-9]{1,9})?([Zz]|[+-](0[0-9]|1[0-4]):[0-5][0-9])$' then ";
