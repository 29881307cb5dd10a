//! The engagement stage on its own database and streams.

use std::collections::BTreeMap;

use chrono::{DateTime, TimeDelta, TimeZone, Utc};
use ledger::OptOut;
use ledger::erasure::PERSONAL_DETAILS;
use ledger::opt_out;
use ledger::preferences::{ConsentEvidence, opt_in};
use runtime::{Publication, plans::PreparedPool};
use schemas::{BounceClass, SendId, Signal, SignalKind, new_batch_id, new_id, subjects, subjects::stream};
use stage_rig::{Person, Rig, Tenant, until};
use uuid::Uuid;

use super::{all_sent, batch_to, rows, run, start};

/// A tenant, its people and a batch of sends that went out to them.
async fn mailed(count: usize) -> (Rig, Tenant, Vec<Person>, Uuid) {
    let rig = Rig::new().await;
    let tenant = rig.tenant().await;
    let people = rig.people(&tenant, count).await;
    let batch = batch_to(&rig, &tenant, &people).await;
    all_sent(&rig, "decided_at").await;
    (rig, tenant, people, batch)
}

/// A moment of a day long past.
fn at(day: u32, hour: u32) -> DateTime<Utc> {
    Utc.with_ymd_and_hms(2026, 3, day, hour, 0, 0).unwrap()
}

fn signal(tenant: &Tenant, batch: Uuid, ordinal: u16, occurred_at: DateTime<Utc>, kind: SignalKind) -> Signal {
    Signal {
        signal_id: new_id(),
        tenant_id: tenant.id,
        send_id: SendId::of(batch, ordinal).0,
        occurred_at,
        kind,
        ip: Some("192.0.2.7".to_owned()),
        user_agent: Some("Mozilla/5.0 (Windows NT 10.0) Thunderbird/115".to_owned()),
    }
}

fn clicked() -> SignalKind {
    SignalKind::Clicked { url: "https://example.com/a".to_owned(), link: 0 }
}

fn left() -> SignalKind {
    SignalKind::Unsubscribed { method: "one_click".to_owned() }
}

/// Publishes signals; `name` sets repeats apart, which JetStream would otherwise drop.
async fn tell(rig: &Rig, signals: &[Signal], name: &str) {
    let publications = signals.iter().map(|signal| {
        Publication::json(subjects::signal("tracking"), format!("{}-{name}", signal.signal_id), signal).unwrap()
    });
    rig.publish(publications.collect()).await;
}

async fn all_taken(rig: &Rig) {
    until("every signal is taken", async || rig.held(stream::SIGNALS).await == 0).await;
}

type Time = Option<DateTime<Utc>>;
/// Opened, clicked, unsubscribed, opened and clicked by a person.
type Facts = (Time, Time, Time, Time, Time);

/// What the ledger says in the end, in an order of its own.
#[derive(Debug, PartialEq, Eq)]
struct Ledger {
    sends: Vec<Facts>,
    batches: Vec<(i32, i32, i32, i32, i32)>,
    events: i64,
    hours: BTreeMap<String, i64>,
}

async fn ledger(rig: &Rig) -> Ledger {
    let hours: Vec<(String, i64)> = rows(
        rig,
        "select to_char(hour at time zone 'UTC', 'DD HH24 ') || kind || ' ' || event, sum(count)::bigint
         from rollups where kind <> 'suppression' group by 1 having sum(count) <> 0",
    )
    .await;
    Ledger {
        sends: rows(
            rig,
            "select opened_at, clicked_at, unsubscribed_at, human_opened_at, human_clicked_at from sends order by id",
        )
        .await,
        batches: rows(
            rig,
            "select opened, clicked, unsubscribed, opened_human, clicked_human from batches order by id",
        )
        .await,
        events: rig.number("select count(*) from events").await,
        hours: hours.into_iter().collect(),
    }
}

/// Opens and clicks of four sends, several of each, over three days.
fn a_history(tenant: &Tenant, batch: Uuid) -> Vec<Signal> {
    let mut signals = Vec::new();
    for (ordinal, day) in [(0, 3), (0, 1), (0, 1), (1, 2), (1, 3), (2, 2)] {
        signals.push(signal(tenant, batch, ordinal, at(day, u32::from(ordinal)), SignalKind::Opened));
    }
    for (ordinal, day) in [(0, 2), (0, 3), (3, 3), (3, 1)] {
        signals.push(signal(tenant, batch, ordinal, at(day, 12), clicked()));
    }
    signals.push(signal(tenant, batch, 2, at(3, 5), left()));
    signals
}

fn expected() -> Ledger {
    let hours = [
        ("01 00 campaign opened", 1),
        ("01 00 campaign opened_human", 1),
        ("02 01 campaign opened", 1),
        ("02 01 campaign opened_human", 1),
        ("02 02 campaign opened", 1),
        ("02 02 campaign opened_human", 1),
        ("01 00 campaign opened_total", 2),
        ("02 01 campaign opened_total", 1),
        ("02 02 campaign opened_total", 1),
        ("03 00 campaign opened_total", 1),
        ("03 01 campaign opened_total", 1),
        ("01 12 campaign clicked", 1),
        ("01 12 campaign clicked_human", 1),
        ("02 12 campaign clicked", 1),
        ("02 12 campaign clicked_human", 1),
        ("01 12 campaign clicked_total", 1),
        ("02 12 campaign clicked_total", 1),
        ("03 12 campaign clicked_total", 2),
        ("03 05 campaign unsubscribed", 1),
    ];
    let (first, second, third) = (Some(at(1, 0)), Some(at(2, 1)), Some(at(2, 2)));
    Ledger {
        sends: vec![
            (first, Some(at(2, 12)), None, first, Some(at(2, 12))),
            (second, None, None, second, None),
            (third, None, Some(at(3, 5)), third, None),
            (None, Some(at(1, 12)), None, None, Some(at(1, 12))),
        ],
        batches: vec![(3, 2, 1, 3, 2)],
        events: 11,
        hours: hours.into_iter().map(|(key, count)| (key.to_owned(), count)).collect(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn facts_of_one_group_are_folded() {
    let (rig, tenant, _, batch) = mailed(4).await;
    tell(&rig, &a_history(&tenant, batch), "1").await;
    start(&rig).await;
    all_taken(&rig).await;
    assert_eq!(ledger(&rig).await, expected());
    rig.assert_books().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn facts_fold_to_the_same_backwards_and_twice() {
    let (rig, tenant, _, batch) = mailed(4).await;
    let history = a_history(&tenant, batch);
    start(&rig).await;
    for signal in history.iter().rev() {
        tell(&rig, std::slice::from_ref(signal), "1").await;
        all_taken(&rig).await;
    }
    tell(&rig, &history, "again").await;
    all_taken(&rig).await;
    assert_eq!(ledger(&rig).await, expected());
    rig.assert_books().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn facts_fold_to_the_same_in_two_processes_at_once() {
    let (rig, tenant, _, batch) = mailed(4).await;
    let history = a_history(&tenant, batch);
    start(&rig).await;
    start(&rig).await;
    for turn in 0..6 {
        let mut turned = history.clone();
        turned.rotate_left(turn * 2);
        tell(&rig, &turned, &turn.to_string()).await;
    }
    all_taken(&rig).await;
    assert_eq!(ledger(&rig).await, expected());
    rig.assert_books().await;
    assert!(rig.dead().await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_of_an_unknown_send_waits_and_nonsense_is_set_aside() {
    let (rig, tenant, _, batch) = mailed(2).await;
    let signals = [
        signal(&tenant, batch, 0, at(1, 1), SignalKind::Opened),
        signal(&tenant, new_batch_id(), 0, at(1, 1), SignalKind::Opened),
        signal(&tenant, batch, 1, at(1, 1), SignalKind::Opened),
    ];
    tell(&rig, &signals, "1").await;
    rig.publish(vec![Publication {
        subject: subjects::signal("tracking"),
        message_id: "nonsense".to_owned(),
        schema: "mail.v1.signal",
        body: "{\"kind\": \"laughed\"}".into(),
        headers: Vec::new(),
    }])
    .await;
    start(&rig).await;
    all_taken(&rig).await;
    let reasons: Vec<String> = rig.dead().await.into_iter().map(|dead| dead.reason).collect();
    assert_eq!(reasons, ["malformed"]);
    assert_eq!(rig.number("select opened::bigint from batches").await, 2);
    assert_eq!(rig.number("select count(*) from pending_facts where due_at is not null").await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn another_tenants_send_is_unknown() {
    let (rig, _, _, batch) = mailed(1).await;
    let other = rig.tenant().await;
    tell(&rig, &[signal(&other, batch, 0, at(1, 1), SignalKind::Opened)], "1").await;
    start(&rig).await;
    all_taken(&rig).await;
    assert_eq!(rig.number("select count(*) from pending_facts where reason = 'unknown_send'").await, 1);
    assert_eq!(rig.number("select count(opened_at) from sends").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_open_of_a_dropped_month_waits_for_no_send() {
    let (rig, tenant, _, batch) = mailed(1).await;
    crate::inbound::drop_months(&rig).await;
    tell(&rig, &[signal(&tenant, batch, 0, Utc::now(), SignalKind::Opened)], "1").await;
    start(&rig).await;
    all_taken(&rig).await;
    assert_eq!(rig.number("select count(*) from pending_facts").await, 0);
    assert!(rig.dead().await.is_empty());
}

async fn marketing_status(rig: &Rig, person: &Person) -> String {
    sqlx::query_scalar("select marketing_status from contacts where id = $1")
        .bind(person.id)
        .fetch_one(&rig.pool)
        .await
        .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_direct_unsubscribe_opts_the_recipient_out_for_good() {
    let (rig, tenant, people, batch) = mailed(2).await;
    let signals = [signal(&tenant, batch, 0, Utc::now(), left()), signal(&tenant, batch, 0, Utc::now(), left())];
    tell(&rig, &signals, "1").await;
    start(&rig).await;
    all_taken(&rig).await;
    assert_eq!(marketing_status(&rig, &people[0]).await, "unsubscribed");
    assert_eq!(marketing_status(&rig, &people[1]).await, "subscribed");
    let suppressions: Vec<(String, String, String, Option<Uuid>)> =
        rows(&rig, "select address, reason, source, send_id from suppressions").await;
    let expected = (people[0].address.clone(), "unsubscribe".to_owned(), "recipient".to_owned(), Some(batch));
    assert_eq!(suppressions, [expected]);
    rig.assert_books().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_unsubscribe_does_not_undo_a_newer_opt_in() {
    let (rig, tenant, people, batch) = mailed(1).await;
    sqlx::query("update contacts set opted_in_at = now()").execute(&rig.pool).await.unwrap();
    tell(&rig, &[signal(&tenant, batch, 0, Utc::now() - TimeDelta::hours(1), left())], "1").await;
    start(&rig).await;
    all_taken(&rig).await;
    assert_eq!(marketing_status(&rig, &people[0]).await, "subscribed");
    assert_eq!(rig.number("select count(*) from suppressions").await, 0);
    assert_eq!(rig.number("select unsubscribed::bigint from batches").await, 1, "the fact stands all the same");
}

/// The clocks of provider and ledger may be that far apart.
#[tokio::test(flavor = "multi_thread")]
async fn an_unsubscribe_dated_just_before_an_opt_in_holds() {
    let (rig, tenant, people, batch) = mailed(1).await;
    sqlx::query("update contacts set opted_in_at = now()").execute(&rig.pool).await.unwrap();
    tell(&rig, &[signal(&tenant, batch, 0, Utc::now() - TimeDelta::seconds(10), left())], "1").await;
    start(&rig).await;
    all_taken(&rig).await;
    assert_eq!(marketing_status(&rig, &people[0]).await, "unsubscribed");
    assert_eq!(rig.number("select count(*) from suppressions where reason = 'unsubscribe'").await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_unsubscribe_does_not_undo_a_newer_opt_in_of_the_survivor() {
    let (rig, tenant, people, batch) = mailed(2).await;
    run!(
        &rig.pool,
        "update contacts set status = 'merged', merged_into = $2 where id = $1",
        [people[0].id, people[1].id]
    );
    run!(&rig.pool, "update contacts set opted_in_at = now() where id = $1", [people[1].id]);
    tell(&rig, &[signal(&tenant, batch, 0, Utc::now() - TimeDelta::hours(1), left())], "1").await;
    start(&rig).await;
    all_taken(&rig).await;
    assert_eq!(rig.number("select count(*) from suppressions").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn facts_about_mail_of_an_erased_contact_suppress_nobody() {
    let (rig, tenant, _, batch) = mailed(1).await;
    sqlx::query("update contacts set status = 'erased', address = 'erased:x'").execute(&rig.pool).await.unwrap();
    let complaint = SignalKind::Complained { feedback_type: "abuse".to_owned() };
    let signals = [left(), complaint, clicked()].map(|kind| signal(&tenant, batch, 0, Utc::now(), kind));
    tell(&rig, &signals, "1").await;
    start(&rig).await;
    all_taken(&rig).await;
    assert_eq!(rig.number("select count(*) from suppressions").await, 0);
    assert_eq!(
        rig.number("select (complained + unsubscribed + clicked)::bigint from batches").await,
        3,
        "the facts stand"
    );
    let (facts, personal): (i64, i64) =
        sqlx::query_as("select count(*), count(*) filter (where detail ?| $1) from events")
            .bind(PERSONAL_DETAILS.as_slice())
            .fetch_one(&rig.pool)
            .await
            .unwrap();
    assert_eq!((facts, personal), (3, 0), "and say nothing of the person, however late they come");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_opt_out_is_recorded_once_in_the_ingress_role() {
    let (rig, tenant, people, batch) = mailed(1).await;
    let pool = rig.ingress_pool();
    run!(&rig.pool, "insert into event_listeners (tenant_id) values ($1)", [tenant.id]);
    let evidence = ConsentEvidence { ip: Some("192.0.2.7".to_owned()), user_agent: Some("Test/1.0".to_owned()) };
    let by_key = PreparedPool::new(&pool, 1);
    for expected in [OptOut::Recorded, OptOut::Already] {
        let mut tx = by_key.begin_for_tenant(tenant.id).await.unwrap();
        assert_eq!(opt_out(&mut tx, tenant.id, batch, "page", &evidence).await.unwrap(), expected);
        tx.commit().await.unwrap();
    }
    assert_eq!(marketing_status(&rig, &people[0]).await, "unsubscribed");
    assert_eq!(rig.number(FACT).await, 1, "the fact is committed with the opt-out");
    assert_eq!(rig.number("select count(*) from events where type = 'unsubscribed'").await, 1, "once");
    assert_eq!(rig.number("select unsubscribed::bigint from batches").await, 1);
    assert_eq!(rig.number("select sum(count)::bigint from rollups where event = 'unsubscribed'").await, 1);
    assert_eq!(rig.number("select count(*) from contact_facts where fact = 'unsubscribed'").await, 1);
    assert_eq!(rig.number("select count(*) from outbox where source = 'events'").await, 1);
    rig.assert_books().await;
    let mut tx = runtime::db::begin_for_tenant(&pool, tenant.id).await.unwrap();
    let nobody = opt_out(&mut tx, tenant.id, new_batch_id(), "page", &evidence).await.unwrap();
    assert_eq!(nobody, OptOut::UnknownSend);
}

/// The event of an opt-out, and its time on the send.
const FACT: &str = "select count(*) from events e join sends s on s.tenant_id = e.tenant_id and s.id = e.send_id
    where e.type = 'unsubscribed' and e.occurred_at = s.unsubscribed_at and e.detail->>'method' = 'page'
      and e.detail->>'ip' = '192.0.2.7' and e.detail->>'user_agent' = 'Test/1.0'";

#[tokio::test(flavor = "multi_thread")]
async fn who_comes_back_and_leaves_again_has_left_twice() {
    let (rig, tenant, people, batch) = mailed(1).await;
    let evidence = ConsentEvidence::default();
    let mut db = rig.pool.acquire().await.unwrap();
    for _ in 0..2 {
        for _ in 0..2 {
            opt_out(&mut db, tenant.id, batch, "page", &evidence).await.unwrap();
        }
        assert_eq!(marketing_status(&rig, &people[0]).await, "unsubscribed");
        assert!(opt_in(&mut db, tenant.id, people[0].id, batch, &evidence).await.unwrap());
    }
    assert_eq!(rig.number("select count(*) from events where type = 'unsubscribed'").await, 2);
    assert_eq!(rig.number("select unsubscribed::bigint from batches").await, 1);
}

/// An import or a caller may state consent of any time: it is not the recipient's word.
#[tokio::test(flavor = "multi_thread")]
async fn consent_that_the_tenant_states_outweighs_no_opt_out() {
    let (rig, tenant, people, batch) = mailed(1).await;
    sqlx::query("update contacts set consent_at = '2099-01-01'").execute(&rig.pool).await.unwrap();
    tell(&rig, &[signal(&tenant, batch, 0, Utc::now() - TimeDelta::hours(1), left())], "1").await;
    start(&rig).await;
    all_taken(&rig).await;
    assert_eq!(marketing_status(&rig, &people[0]).await, "unsubscribed");
    assert_eq!(rig.number("select count(*) from suppressions where reason = 'unsubscribe'").await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_opt_out_noted_by_others_becomes_the_recipients_own() {
    let (rig, tenant, people, batch) = mailed(1).await;
    rig.suppress(&tenant, &people[0], "unsubscribe", "marketing").await;
    sqlx::query("update suppressions set expires_at = now() + interval '1 hour'").execute(&rig.pool).await.unwrap();
    let mut db = rig.pool.acquire().await.unwrap();
    let evidence = ConsentEvidence::default();
    assert_eq!(opt_out(&mut db, tenant.id, batch, "page", &evidence).await.unwrap(), OptOut::Recorded);
    assert_eq!(
        rig.number("select count(*) from suppressions where source = 'recipient' and expires_at is null").await,
        1
    );
}

fn click_on(tenant: &Tenant, batch: Uuid, link: u16, occurred_at: DateTime<Utc>) -> Signal {
    let kind = SignalKind::Clicked { url: format!("https://example.com/{link}"), link };
    signal(tenant, batch, 0, occurred_at, kind)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_machines_do_is_kept_and_not_taken_for_a_persons() {
    let (rig, tenant, _, batch) = mailed(2).await;
    let proxy = Some("Mozilla/5.0 (via ggpht.com GoogleImageProxy)".to_owned());
    let signals = [
        Signal { user_agent: proxy, ..signal(&tenant, batch, 0, at(1, 1), SignalKind::Opened) },
        Signal { user_agent: None, ..signal(&tenant, batch, 0, at(1, 2), clicked()) },
        signal(&tenant, batch, 0, at(2, 5), SignalKind::Opened),
        Signal { ip: None, user_agent: None, ..signal(&tenant, batch, 1, at(1, 1), clicked()) },
    ];
    tell(&rig, &signals, "1").await;
    start(&rig).await;
    all_taken(&rig).await;
    let told = ledger(&rig).await;
    assert_eq!(told.batches, [(1, 2, 0, 1, 1)]);
    assert_eq!((told.sends[0].0, told.sends[0].3), (Some(at(1, 1)), Some(at(2, 5))), "{told:?}");
    let marks: Vec<(bool, Option<String>, i32)> = rows(
        &rig,
        "select (detail->>'is_machine')::boolean, detail->>'machine_reason', (detail->>'rules')::integer from events
         order by send_id, occurred_at",
    )
    .await;
    let version = i32::from(ledger::machine::VERSION);
    let machine = |reason: &str| (true, Some(reason.to_owned()), version);
    assert_eq!(
        marks,
        [machine("image_proxy"), machine("no_user_agent"), (false, None, version), (false, None, version)]
    );
    rig.assert_books().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_click_before_anybody_can_have_read_is_a_machines() {
    let (rig, tenant, _, batch) = mailed(1).await;
    sqlx::query("update sends set decided_at = $1").bind(at(1, 1)).execute(&rig.pool).await.unwrap();
    tell(&rig, &[click_on(&tenant, batch, 0, at(1, 1) + TimeDelta::seconds(1))], "1").await;
    start(&rig).await;
    all_taken(&rig).await;
    assert_eq!(ledger(&rig).await.batches, [(0, 1, 0, 0, 0)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_click_before_a_result_that_is_recorded_late_is_a_persons() {
    let (rig, tenant, _, batch) = mailed(1).await;
    run!(&rig.pool, "update sends set fenced_at = $1, decided_at = $2", [at(1, 1), at(1, 1) + TimeDelta::minutes(10)]);
    tell(&rig, &[click_on(&tenant, batch, 0, at(1, 1) + TimeDelta::seconds(60))], "1").await;
    start(&rig).await;
    all_taken(&rig).await;
    assert_eq!(ledger(&rig).await.batches, [(0, 1, 0, 0, 1)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_link_at_once_takes_back_that_the_first_was_a_persons() {
    let (rig, tenant, _, batch) = mailed(1).await;
    start(&rig).await;
    tell(&rig, &[click_on(&tenant, batch, 0, at(1, 1))], "1").await;
    all_taken(&rig).await;
    assert_eq!(ledger(&rig).await.batches, [(0, 1, 0, 0, 1)]);
    tell(&rig, &[click_on(&tenant, batch, 1, at(1, 1) + TimeDelta::seconds(1))], "1").await;
    all_taken(&rig).await;
    let told = ledger(&rig).await;
    assert_eq!((told.batches.as_slice(), told.sends[0].4), ([(0, 1, 0, 0, 0)].as_slice(), None));
    assert!(!told.hours.keys().any(|key| key.contains("clicked_human")), "{told:?}");
    tell(&rig, &[click_on(&tenant, batch, 1, at(1, 2))], "1").await;
    all_taken(&rig).await;
    assert_eq!(ledger(&rig).await.sends[0].4, Some(at(1, 2)), "an hour later it is a person");
    rig.assert_books().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_complaint_suppresses_everything_and_is_counted_once() {
    let (rig, tenant, people, batch) = mailed(3).await;
    let complaint = |feedback_type: &str| SignalKind::Complained { feedback_type: feedback_type.to_owned() };
    let signals = [
        signal(&tenant, batch, 0, at(1, 1), complaint("abuse")),
        signal(&tenant, batch, 0, at(1, 2), complaint("abuse")),
        signal(&tenant, batch, 1, at(1, 1), complaint("not-spam")),
        signal(&tenant, batch, 2, at(1, 1), SignalKind::Delivered),
    ];
    tell(&rig, &signals, "1").await;
    start(&rig).await;
    all_taken(&rig).await;
    let held: Vec<(String, String, String)> = rows(&rig, "select address, reason, scope from suppressions").await;
    assert_eq!(held, [(people[0].address.clone(), "complaint".to_owned(), "all".to_owned())]);
    assert_eq!(
        rig.number("select complained::bigint from batches").await,
        1,
        "putting a mail back into the inbox is none"
    );
    assert_eq!(rig.number("select delivered::bigint from batches").await, 1);
    rig.assert_books().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lifted_complaint_does_not_come_back_with_a_repeat_of_the_report() {
    let (rig, tenant, _, batch) = mailed(1).await;
    let report = signal(&tenant, batch, 0, at(1, 1), SignalKind::Complained { feedback_type: "abuse".to_owned() });
    start(&rig).await;
    tell(&rig, std::slice::from_ref(&report), "1").await;
    all_taken(&rig).await;
    sqlx::query("delete from suppressions").execute(&rig.pool).await.unwrap();
    tell(&rig, &[report], "again").await;
    all_taken(&rig).await;
    assert_eq!(rig.number("select count(*) from suppressions").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn suppressions_are_counted_by_the_table_itself_whoever_writes_them() {
    let rig = Rig::new().await;
    let tenant = rig.tenant().await;
    let people = rig.people(&tenant, 3).await;
    for (person, reason) in people.iter().zip(["hard_bounce", "unsubscribe", "unsubscribe"]) {
        rig.suppress(&tenant, person, reason, "marketing").await;
    }
    sqlx::query("insert into suppressions select * from suppressions on conflict do nothing")
        .execute(&rig.pool)
        .await
        .unwrap();
    run!(&rig.pool, "delete from suppressions where address = $1", [&people[2].address]);
    start(&rig).await;
    until("the log is folded", async || rig.number("select count(*) from suppression_changes").await == 0).await;
    let totals: Vec<(String, i64)> = rows(&rig, "select reason, count from suppression_totals order by reason").await;
    assert_eq!(totals, [("hard_bounce".to_owned(), 1), ("unsubscribe".to_owned(), 1)]);
    let new = "select sum(count)::bigint from rollups where kind = 'suppression' and event = 'unsubscribe'";
    assert_eq!(rig.number(new).await, 2, "what came in the hour does not go away with what is lifted");
}

#[tokio::test(flavor = "multi_thread")]
async fn members_are_counted_by_the_table_itself_whoever_writes_them() {
    let rig = Rig::new().await;
    let tenant = rig.tenant().await;
    let people = rig.people(&tenant, 3).await;
    rig.audience(&tenant, "list", &people).await;
    sqlx::query("insert into audience_members select * from audience_members on conflict do nothing")
        .execute(&rig.pool)
        .await
        .unwrap();
    run!(&rig.pool, "delete from audience_members where contact_id = $1", [people[2].id]);
    let count = "select audience_member_count(tenant_id, id) from audiences";
    assert_eq!(rig.number(count).await, 2, "by the log alone");
    start(&rig).await;
    until("the log is folded", async || rig.number("select count(*) from audience_member_changes").await == 0).await;
    assert_eq!(rig.number(count).await, 2);
}

#[tokio::test]
async fn feedback_on_a_test_suppresses_nobody_and_counts_nowhere() {
    let (rig, tenant, _, batch) = mailed(4).await;
    sqlx::query("update batches set kind = 'test', campaign_id = null").execute(&rig.pool).await.unwrap();
    start(&rig).await;
    let bounced = SignalKind::Bounced {
        class: BounceClass::Hard,
        smtp_code: Some(550),
        enhanced_code: None,
        diagnostic: None,
        rule: "test".to_owned(),
    };
    let complained = SignalKind::Complained { feedback_type: "abuse".to_owned() };
    let kinds = [bounced, complained, left(), clicked()];
    let signals: Vec<Signal> =
        kinds.into_iter().zip(0..).map(|(kind, ordinal)| signal(&tenant, batch, ordinal, at(2, 9), kind)).collect();
    tell(&rig, &signals, "once").await;
    all_taken(&rig).await;
    assert_eq!(rig.number("select count(*) from events where type <> 'sent'").await, 4, "the timeline has them");
    assert_eq!(rig.number("select count(*) from suppressions").await, 0);
    assert_eq!(rig.number("select count(*) from contact_facts").await, 0);
    assert_eq!(rig.number("select count(*) from rollups").await, 0);
    assert_eq!(rig.number("select count(*) from contacts where marketing_status = 'unsubscribed'").await, 0);
    assert_eq!(
        rig.number("select count(*) from batches where bounced + complained + unsubscribed + clicked > 0").await,
        0
    );
}
