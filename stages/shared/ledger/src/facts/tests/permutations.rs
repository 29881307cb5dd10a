//! Facts fold to the same state in any order, any number of times. A thousand orders of one history go through the ledger, each told
//! of a mail of its own and compared in one query: locks, statements, triggers, totals. Ten thousand go through the decisions alone, with
//! what the statements do in their place (the earliest time counts; a recount is the last word).
#![allow(clippy::print_stdout)]

use chrono::{DateTime, TimeDelta, TimeZone, Utc};
use runtime::plans::PreparedPool;
use schemas::{BounceClass, Classification, SendId, Signal, SignalKind, new_id};
use sqlx::PgPool;
use stage_rig::Rig;
use uuid::Uuid;

use crate::facts::{
    Fact, MarkedSignal, Time,
    each::{self, Each},
    record,
};
use crate::{
    hours::Hours,
    machine::{self, Click},
};

const BATCHES: usize = 2;
const SENDS: usize = 500;
/// Mails in all: each is told of in an order of its own.
const MAILS: i64 = 1_000;
/// Orders without the ledger.
const ORDERS: usize = 10_000;
/// Mails told of in one transaction.
const GROUP: usize = 500;
/// What happens to each mail: eleven signals, and that the ledger learns that it was sent.
const FACTS: usize = 12;
/// Two of them come twice.
const POSITIONS: usize = FACTS + 2;
/// The turn of the ledger itself, which does not repeat.
const SENT: usize = 11;

const BROWSER: &str = "Mozilla/5.0 (Windows NT 10.0; Win64; x64) Firefox/128.0";

fn accepted() -> DateTime<Utc> {
    Utc.with_ymd_and_hms(2026, 3, 1, 10, 0, 0).unwrap()
}

/// What happens, by number: when in seconds after acceptance, what, and by which client.
fn happens(fact: usize) -> (i64, SignalKind, &'static str) {
    let click = |link| SignalKind::Clicked { url: "https://example.com/".to_owned(), link };
    let bounce = SignalKind::Bounced {
        class: BounceClass::Soft,
        smtp_code: Some(552),
        enhanced_code: Some("5.2.2".to_owned()),
        diagnostic: None,
        rule: "mailbox_full".to_owned(),
    };
    match fact {
        0 => (5, SignalKind::Opened, "GoogleImageProxy"),
        1 => (3_700, SignalKind::Opened, BROWSER),
        2 => (7_300, SignalKind::Opened, BROWSER),
        // Two links at once are a scanner's, whichever is told first.
        3 => (100, click(1), BROWSER),
        4 => (101, click(2), BROWSER),
        5 => (4_000, click(1), BROWSER),
        6 => (8, SignalKind::Delivered, BROWSER),
        7 => (9_000, bounce, BROWSER),
        8 => (9_100, SignalKind::Complained { feedback_type: "abuse".to_owned() }, BROWSER),
        9 => (9_200, SignalKind::Unsubscribed { method: "page".to_owned() }, BROWSER),
        _ => (9_300, SignalKind::Replied { message_id: None, automatic: false }, BROWSER),
    }
}

/// A small generator whose seed is printed.
struct Chance(u64);

impl Chance {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % bound as u64).unwrap()
    }

    /// One order of everything, with two repetitions somewhere in it.
    fn order(&mut self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..FACTS).chain([self.below(SENT), self.below(SENT)]).collect();
        for at in (1..order.len()).rev() {
            order.swap(at, self.below(at + 1));
        }
        order
    }
}

/// A mail, and the order in which it is told of.
struct MailOrder {
    send: SendId,
    order: Vec<usize>,
}

fn signal(tenant: Uuid, mail: &MailOrder, fact: usize) -> Signal {
    let (seconds, kind, user_agent) = happens(fact);
    Signal {
        signal_id: Uuid::new_v5(&mail.send.0, &fact.to_be_bytes()),
        tenant_id: tenant,
        send_id: mail.send.0,
        occurred_at: accepted() + TimeDelta::seconds(seconds),
        kind,
        ip: Some("203.0.113.9".to_owned()),
        user_agent: Some(user_agent.to_owned()),
    }
}

/// Tells the turns of these mails, now one at a time, now several together.
async fn record_orders(pool: PgPool, tenant: Uuid, batch: Uuid, sends: Vec<MailOrder>, shard: i16, mut chance: Chance) {
    let by_key = PreparedPool::new(&pool, 1);
    let mut position = 0;
    while position < POSITIONS {
        let to = (position + 1 + chance.below(7)).min(POSITIONS);
        let mut signals: Vec<Signal> = Vec::new();
        let mut sent: Vec<Uuid> = Vec::new();
        for mail in &sends {
            for fact in &mail.order[position..to] {
                if *fact == SENT { sent.push(mail.send.0) } else { signals.push(signal(tenant, mail, *fact)) }
            }
        }
        let mut tx = by_key.begin().await.unwrap();
        sqlx::query(
            "with books as (
                 update batches set fenced = fenced - cardinality($3), sent = sent + cardinality($3) where tenant_id = $1 and id = $2
             )
             update sends set state = 'sent', decided_at = fenced_at where tenant_id = $1 and id = any ($3) and month = $4",
        )
        .bind(tenant)
        .bind(batch)
        .bind(&sent)
        .bind(SendId(batch).month())
        .execute(&mut *tx)
        .await
        .unwrap();
        record(&mut tx, &signals, &[], shard).await.unwrap();
        tx.commit().await.unwrap();
        position = to;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_orders_of_the_same_facts_fold_to_one_state_in_the_ledger() {
    let rig = Rig::new().await;
    let tenant = rig.tenant().await;
    let list = rig.audience(&tenant, "list", &[]).await;
    let seed = u64::try_from(new_id().as_u128() & u128::from(u64::MAX)).unwrap() | 1;
    println!("seed {seed}");
    let mut chance = Chance(seed);
    let mut batches = Vec::new();
    for _ in 0..BATCHES {
        let campaign = rig.campaign(&tenant, list).await;
        // People of its own, so that those told at the same time do not wait for each other.
        let people = rig.people(&tenant, SENDS).await;
        batches.push(rig.batch(&tenant, campaign, Classification::Marketing, &people).await.batch_id);
    }
    sqlx::query("update sends set state = 'fenced', fenced_at = $1").bind(accepted()).execute(&rig.pool).await.unwrap();
    sqlx::query("update batches set fenced = size, queued = 0").execute(&rig.pool).await.unwrap();
    let groups = batches
        .into_iter()
        .enumerate()
        .flat_map(|(number, batch)| (0..SENDS).step_by(GROUP).map(move |first| (number, batch, first)));
    let mut tasks = tokio::task::JoinSet::new();
    for (number, batch, first) in groups {
        let sends = (first..first + GROUP)
            .map(|ordinal| MailOrder {
                send: SendId::of(batch, u16::try_from(ordinal).unwrap()),
                order: chance.order(),
            })
            .collect();
        let own = Chance(chance.0 | 1);
        while tasks.len() >= 2 {
            tasks.join_next().await.unwrap().unwrap();
        }
        tasks.spawn(record_orders(rig.pool.clone(), tenant.id, batch, sends, i16::try_from(number % 16).unwrap(), own));
    }
    tasks.join_all().await;
    sqlx::query("update batches set state = 'done', announce_after = null, done_at = now()")
        .execute(&rig.pool)
        .await
        .unwrap();
    assert_one_state(&rig).await;
    rig.assert_books().await;
}

async fn assert_one_state(rig: &Rig) {
    let count = |query| rig.number(query);
    assert_eq!(count("select count(*) from sends").await, MAILS);
    let states =
        "select count(distinct (state, delivered_at, bounced_at, complained_at, opened_at, human_opened_at, clicked_at,
        human_clicked_at, unsubscribed_at, replied_at)) from sends";
    assert_eq!(count(states).await, 1, "one state");
    let expected = "select count(*) from sends where state = 'sent' and delivered_at = fenced_at + interval '8 s'
        and opened_at = fenced_at + interval '5 s' and human_opened_at = fenced_at + interval '3700 s'
        and clicked_at = fenced_at + interval '100 s' and human_clicked_at = fenced_at + interval '4000 s'
        and bounced_at = fenced_at + interval '9000 s' and complained_at = fenced_at + interval '9100 s'
        and unsubscribed_at = fenced_at + interval '9200 s' and replied_at = fenced_at + interval '9300 s'";
    assert_eq!(count(expected).await, MAILS, "and the right one");
    let histories = "select count(distinct history) from (select string_agg(concat(type, occurred_at, detail), ' ' order by occurred_at, type)
        as history from events group by send_id) h";
    assert_eq!(count(histories).await, 1, "one history, with the same marks");
    assert_eq!(count("select count(*) from events").await, 11 * MAILS);
    let totals =
        "select count(*) from (select event, sum(count) as total from rollups where kind = 'campaign' group by event) t
        where total = case event when 'opened_total' then 3000 when 'clicked_total' then 3000
            -- Each bounced in the end.
            when 'delivered' then 0 when 'confirmed' then 0 else 1000 end";
    assert_eq!(count(totals).await, count("select count(distinct event) from rollups where kind = 'campaign'").await);
    assert_eq!(count("select count(*) from suppressions").await, 2 * MAILS, "each person left and complained, once");
}

/// A mail as its signals leave it.
#[derive(Default)]
struct Memory {
    known: Vec<Uuid>,
    clicks: Vec<Click>,
    times: Each<Time>,
}

impl Memory {
    /// Records what is told together, as [`record`] does.
    fn record(&mut self, signals: &[Signal]) {
        let mut new: Vec<MarkedSignal<'_>> = Vec::new();
        for signal in signals {
            if self.known.contains(&signal.signal_id) {
                continue;
            }
            self.known.push(signal.signal_id);
            let machine = each::machine_reason(signal, Some(accepted()));
            new.push(MarkedSignal { signal, machine });
            if let SignalKind::Clicked { link, .. } = signal.kind {
                let (id, at) = (signal.signal_id, signal.occurred_at);
                self.clicks.push(Click { id, at, link: link.into(), machine: machine.is_some() });
            }
        }
        for (_, sent) in crate::facts::collect_times(&new, &mut Default::default(), &mut Hours::default()) {
            for &fact in Fact::ALL {
                let time = sent.times[fact as usize];
                let known = &mut self.times[fact as usize];
                *known = [*known, time].into_iter().flatten().min();
            }
            if sent.times[Fact::Clicked as usize].is_some() {
                machine::bursts(&mut self.clicks);
                self.times[Fact::ClickedHuman as usize] =
                    self.clicks.iter().filter(|click| !click.machine).map(|click| click.at).min();
            }
        }
    }
}

#[test]
fn ten_thousand_orders_of_the_same_facts_come_to_one_state() {
    let seed = u64::try_from(new_id().as_u128() & u128::from(u64::MAX)).unwrap() | 1;
    println!("seed {seed}");
    let mut chance = Chance(seed);
    let tenant = new_id();
    let after = |seconds| Some(accepted() + TimeDelta::seconds(seconds));
    let expected = |fact: Fact| match fact {
        Fact::Delivered => after(8),
        Fact::Complained => after(9_100),
        Fact::Opened => after(5),
        Fact::Clicked => after(100),
        Fact::Unsubscribed => after(9_200),
        Fact::OpenedHuman => after(3_700),
        Fact::ClickedHuman => after(4_000),
        Fact::Bounced => after(9_000),
        Fact::Replied => after(9_300),
        // Follows from the delivery, in the statement.
        Fact::Confirmed => None,
    };
    for _ in 0..ORDERS {
        let orders = MailOrder { send: SendId(new_id()), order: chance.order() };
        let mut mail = Memory::default();
        let mut position = 0;
        while position < POSITIONS {
            let to = (position + 1 + chance.below(7)).min(POSITIONS);
            let facts = orders.order[position..to].iter().filter(|fact| **fact != SENT);
            let signals: Vec<Signal> = facts.map(|fact| signal(tenant, &orders, *fact)).collect();
            mail.record(&signals);
            position = to;
        }
        for &fact in Fact::ALL {
            assert_eq!(mail.times[fact as usize], expected(fact), "{fact:?} after {:?}", orders.order);
        }
        assert_eq!(mail.clicks.iter().filter(|click| click.machine).count(), 2, "{:?}", orders.order);
    }
}
