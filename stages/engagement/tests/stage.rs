//! The engagement stage on its own database and streams.
#![allow(clippy::unwrap_used, missing_docs)]

use std::collections::BTreeMap;

use chrono::{DateTime, TimeDelta, TimeZone, Utc};
use engagement::{OptOut, Settings, opt_out};
use runtime::Publication;
use schemas::{Classification, SendId, Signal, SignalKind, new_batch_id, new_id, subjects, subjects::stream};
use stage_rig::{Person, Rig, Tenant, settings, until};
use uuid::Uuid;

async fn start(rig: &Rig) {
    engagement::start(&rig.process(), &settings::<Settings>(&[])).await.unwrap();
}

/// A tenant, its people and a batch of sends that went out to them.
async fn mailed(rig: &Rig, count: usize) -> (Tenant, Vec<Person>, Uuid) {
    let tenant = rig.tenant().await;
    let people = rig.people(&tenant, count).await;
    let list = rig.audience(&tenant, "list", &[]).await;
    let campaign = rig.campaign(&tenant, list).await;
    let batch = rig.batch(&tenant, campaign, Classification::Marketing, &people).await.batch_id;
    sqlx::query("update sends set state = 'sent'").execute(&rig.pool).await.unwrap();
    sqlx::query("update batches set state = 'done', announce_after = null, done_at = now(), sent = size, queued = 0")
        .execute(&rig.pool)
        .await
        .unwrap();
    (tenant, people, batch)
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
        user_agent: Some("Mail/1.0".to_owned()),
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

type Facts = (Option<DateTime<Utc>>, Option<DateTime<Utc>>, Option<DateTime<Utc>>);

/// What the ledger says in the end, in an order of its own.
#[derive(Debug, PartialEq, Eq)]
struct Ledger {
    sends: Vec<Facts>,
    batches: Vec<(i32, i32, i32)>,
    events: i64,
    days: BTreeMap<String, i64>,
}

async fn ledger(rig: &Rig) -> Ledger {
    let days: Vec<(String, i64)> = sqlx::query_as(
        "select day || ' ' || kind || ' ' || event, sum(count)::bigint from rollups group by 1 having sum(count) <> 0",
    )
    .fetch_all(&rig.pool)
    .await
    .unwrap();
    Ledger {
        sends: sqlx::query_as("select opened_at, clicked_at, unsubscribed_at from sends order by id")
            .fetch_all(&rig.pool)
            .await
            .unwrap(),
        batches: sqlx::query_as("select opened, clicked, unsubscribed from batches order by id")
            .fetch_all(&rig.pool)
            .await
            .unwrap(),
        events: rig.number("select count(*) from events").await,
        days: days.into_iter().collect(),
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
    let days = [
        ("2026-03-01 campaign opened", 1),
        ("2026-03-02 campaign opened", 2),
        ("2026-03-01 campaign opened_total", 2),
        ("2026-03-02 campaign opened_total", 2),
        ("2026-03-03 campaign opened_total", 2),
        ("2026-03-01 campaign clicked", 1),
        ("2026-03-02 campaign clicked", 1),
        ("2026-03-01 campaign clicked_total", 1),
        ("2026-03-02 campaign clicked_total", 1),
        ("2026-03-03 campaign clicked_total", 2),
        ("2026-03-03 campaign unsubscribed", 1),
    ];
    Ledger {
        sends: vec![
            (Some(at(1, 0)), Some(at(2, 12)), None),
            (Some(at(2, 1)), None, None),
            (Some(at(2, 2)), None, Some(at(3, 5))),
            (None, Some(at(1, 12)), None),
        ],
        batches: vec![(3, 2, 1)],
        events: 11,
        days: days.into_iter().map(|(key, count)| (key.to_owned(), count)).collect(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn facts_told_together_are_folded() {
    let rig = Rig::new().await;
    let (tenant, _, batch) = mailed(&rig, 4).await;
    tell(&rig, &a_history(&tenant, batch), "1").await;
    start(&rig).await;
    all_taken(&rig).await;
    assert_eq!(ledger(&rig).await, expected());
    rig.assert_books().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn facts_told_one_by_one_backwards_and_twice_are_folded_to_the_same() {
    let rig = Rig::new().await;
    let (tenant, _, batch) = mailed(&rig, 4).await;
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
async fn facts_told_by_many_at_once_to_two_processes_are_folded_to_the_same() {
    let rig = Rig::new().await;
    let (tenant, _, batch) = mailed(&rig, 4).await;
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
async fn a_signal_of_an_unknown_send_is_set_aside_alone() {
    let rig = Rig::new().await;
    let (tenant, _, batch) = mailed(&rig, 2).await;
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
    let mut reasons: Vec<String> = rig.dead().await.into_iter().map(|dead| dead.reason).collect();
    reasons.sort();
    assert_eq!(reasons, ["malformed", "unknown_send"]);
    assert_eq!(rig.number("select opened::bigint from batches").await, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn another_tenants_send_is_unknown() {
    let rig = Rig::new().await;
    let (_, _, batch) = mailed(&rig, 1).await;
    let other = rig.tenant().await;
    tell(&rig, &[signal(&other, batch, 0, at(1, 1), SignalKind::Opened)], "1").await;
    start(&rig).await;
    all_taken(&rig).await;
    assert_eq!(rig.dead().await[0].reason, "unknown_send");
    assert_eq!(rig.number("select count(opened_at) from sends").await, 0);
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
    let rig = Rig::new().await;
    let (tenant, people, batch) = mailed(&rig, 2).await;
    let signals = [signal(&tenant, batch, 0, Utc::now(), left()), signal(&tenant, batch, 0, Utc::now(), left())];
    tell(&rig, &signals, "1").await;
    start(&rig).await;
    all_taken(&rig).await;
    assert_eq!(marketing_status(&rig, &people[0]).await, "unsubscribed");
    assert_eq!(marketing_status(&rig, &people[1]).await, "subscribed");
    let suppressions: Vec<(String, String, String, Option<Uuid>)> =
        sqlx::query_as("select address, reason, source, send_id from suppressions").fetch_all(&rig.pool).await.unwrap();
    let expected = (people[0].address.clone(), "unsubscribe".to_owned(), "recipient".to_owned(), Some(batch));
    assert_eq!(suppressions, [expected]);
    rig.assert_books().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_unsubscribe_does_not_undo_a_newer_opt_in() {
    let rig = Rig::new().await;
    let (tenant, people, batch) = mailed(&rig, 1).await;
    sqlx::query("update contacts set consent_at = now()").execute(&rig.pool).await.unwrap();
    tell(&rig, &[signal(&tenant, batch, 0, Utc::now() - TimeDelta::hours(1), left())], "1").await;
    start(&rig).await;
    all_taken(&rig).await;
    assert_eq!(marketing_status(&rig, &people[0]).await, "subscribed");
    assert_eq!(rig.number("select count(*) from suppressions").await, 0);
    assert_eq!(rig.number("select unsubscribed::bigint from batches").await, 1, "the fact stands all the same");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_opt_out_is_recorded_once_in_the_ingress_role() {
    let rig = Rig::new().await;
    let (tenant, people, batch) = mailed(&rig, 1).await;
    let pool = rig.ingress_pool();
    for expected in [OptOut::Recorded, OptOut::Already] {
        let mut tx = runtime::db::begin_for_tenant(&pool, tenant.id).await.unwrap();
        assert_eq!(opt_out(&mut tx, tenant.id, batch).await.unwrap(), expected);
        tx.commit().await.unwrap();
    }
    assert_eq!(marketing_status(&rig, &people[0]).await, "unsubscribed");
    let mut tx = runtime::db::begin_for_tenant(&pool, tenant.id).await.unwrap();
    assert_eq!(opt_out(&mut tx, tenant.id, new_batch_id()).await.unwrap(), OptOut::UnknownSend);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_opt_out_noted_by_others_becomes_the_recipients_own() {
    let rig = Rig::new().await;
    let (tenant, people, batch) = mailed(&rig, 1).await;
    rig.suppress(&tenant, &people[0], "unsubscribe", "marketing").await;
    sqlx::query("update suppressions set expires_at = now() + interval '1 hour'").execute(&rig.pool).await.unwrap();
    let mut db = rig.pool.acquire().await.unwrap();
    assert_eq!(opt_out(&mut db, tenant.id, batch).await.unwrap(), OptOut::Recorded);
    assert_eq!(
        rig.number("select count(*) from suppressions where source = 'recipient' and expires_at is null").await,
        1
    );
}
