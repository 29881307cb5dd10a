//! From a rule to SQL. What a caller wrote is bound, never spliced: the texts pushed here are constants of this module, names of
//! columns from the closed table of fields, and numbers of joins.

mod field;

use chrono::{DateTime, Utc};
use sqlx::{Postgres, QueryBuilder};
use uuid::Uuid;

use self::field::push_field;
use super::{
    event::{EventSource, EventTest, MailEvents, ProductEvents, Times},
    rule::{Expanded, Rule},
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
                    query.push(" and f.contact_id = c.id");
                    if matches!(source, EventSource::Mail(events) if events.kind.fact().is_none()) {
                        // Said twice: in this form the planner does not look for repeats among the sends before it joins them, which
                        // costs more than the join. It has no statistics of an id that may be that of the contact that is left.
                        query.push(" and f.contact_id is not distinct from c.id");
                    }
                    query.push(")");
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
    push_since(query, "f.occurred_at", events.within_days);
}

/// Rare facts: `contact_facts_by_time` and `contact_facts_by_human`, or the key where a campaign is named.
fn push_facts(query: &mut Query, tenant: Uuid, fact: &'static str, events: &MailEvents) {
    query.push("contact_facts f where f.tenant_id = ").push_bind(tenant).push(" and f.fact = ").push_bind(fact);
    let time = if events.human_only { "f.human_at" } else { "f.occurred_at" };
    if events.human_only {
        query.push(" and f.human_at is not null");
    }
    push_since(query, time, events.within_days);
    if let Some(campaign) = events.campaign_id {
        push_campaign(query, tenant, campaign, "f.send_id");
    }
}

/// What nearly every send has, from the sends themselves: a range of their ids. A send is decided within three days of its
/// launch, or before its campaign is complete, and its delivery reported within five more: earlier sends are not read. A send keeps
/// the id of a contact that was merged; it is mail to the one that is left. The merged ones are few: `contacts_merged`.
fn push_sends(query: &mut Query, tenant: Uuid, events: &MailEvents) {
    query.push(
        "(select coalesce(merged.merged_into, f.contact_id) as contact_id
          from sends f
          left join contacts merged
              on merged.tenant_id = f.tenant_id and merged.id = f.contact_id and merged.merged_into is not null
          where f.tenant_id = ",
    );
    query.push_bind(tenant).push(" and f.state = 'sent'");
    if events.campaign_id.is_none() {
        // Tests of campaigns are nothing that a segment knows.
        query.push(
            " and (f.request_id is null or not exists (
                 select from messages m where m.tenant_id = f.tenant_id and m.id = f.request_id and m.is_test))",
        );
    }
    let delivered = events.kind == super::event::EventKind::Delivered;
    let time = if delivered { DELIVERED_AT } else { "f.decided_at" };
    if delivered {
        query.push(format_args!(" and {time} is not null"));
    }
    push_since(query, time, events.within_days);
    if let Some(days) = events.within_days {
        push_floor(query, tenant, days.saturating_add(LATE_DAYS));
    }
    if let Some(campaign) = events.campaign_id {
        push_campaign(query, tenant, campaign, "f.id");
        query.push(" and f.month = (select k.month from campaigns k where k.tenant_id = ").push_bind(tenant);
        query.push(" and k.id = ").push_bind(campaign).push(")");
    }
    query.push(") f where true");
}

/// Since when a send counts as delivered.
const DELIVERED_AT: &str = "counted_delivered_at(f.provider, f.state, f.decided_at, f.delivered_at, f.bounced_at)";

/// How long after its launch something may still happen to a send whose campaign is complete, or that has none.
const LATE_DAYS: i32 = 8;

/// The oldest id and month that can matter. Mail may also have waited in a pause of the tenant, and that of a sequence for room under its
/// frequency cap.
fn push_floor(query: &mut Query, tenant: Uuid, days: i32) {
    let recent = |query: &mut Query, what: &str| {
        query.push(format_args!("(select min({what}) from campaigns k where k.tenant_id = ")).push_bind(tenant);
        query.push(" and (k.completed_at is null or k.completed_at >= ");
        push_days_ago(query, days);
        query.push("))");
    };
    let since = |query: &mut Query| {
        query.push("(select launched_since(t.pauses, ");
        push_days_ago(query, days);
        query.push(" - make_interval(days => coalesce(t.frequency_cap_days, 0))) from tenants t where t.id = ");
        query.push_bind(tenant).push(")");
    };
    query.push(" and f.month >= least(date_trunc('month', ");
    since(query);
    query.push(" at time zone 'UTC')::date, ");
    recent(query, "k.month");
    // The first twelve digits of an id are its time in milliseconds since 1970.
    query.push(") and f.id >= least((rpad(lpad(to_hex(greatest(0, extract(epoch from ");
    since(query);
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

fn push_since(query: &mut Query, time: &str, within_days: Option<i32>) {
    if let Some(days) = within_days {
        query.push(format_args!(" and {time} >= "));
        push_days_ago(query, days);
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
