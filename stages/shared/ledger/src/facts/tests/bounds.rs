//! How many facts of one send are stored.

use std::slice;

use chrono::{TimeDelta, Utc};
use runtime::plans::PreparedPool;
use schemas::{BounceClass, Classification, SendId, Signal, SignalKind, new_id};
use stage_rig::Rig;
use uuid::Uuid;

use crate::facts::{STORED_MAX, record};

/// Two mails that were sent.
struct Mails {
    by_key: PreparedPool,
    rig: Rig,
    tenant: Uuid,
    batch: Uuid,
}

impl Mails {
    async fn sent() -> Self {
        let rig = Rig::new().await;
        let tenant = rig.tenant().await;
        let people = rig.people(&tenant, 2).await;
        let list = rig.audience(&tenant, "list", &[]).await;
        let campaign = rig.campaign(&tenant, list).await;
        let batch = rig.batch(&tenant, campaign, Classification::Marketing, &people).await.batch_id;
        sqlx::query("update sends set state = 'sent', decided_at = now() - interval '1 day'")
            .execute(&rig.pool)
            .await
            .unwrap();
        let by_key = PreparedPool::new(&rig.pool, 1);
        Self { by_key, rig, tenant: tenant.id, batch }
    }

    fn signal(&self, ordinal: u16, kind: SignalKind, minute: i64) -> Signal {
        Signal {
            signal_id: new_id(),
            tenant_id: self.tenant,
            send_id: SendId::of(self.batch, ordinal).0,
            occurred_at: Utc::now() - TimeDelta::minutes(600 - minute),
            kind,
            ip: Some("203.0.113.9".to_owned()),
            user_agent: Some("Mozilla/5.0 (Windows NT 10.0; Win64; x64) Firefox/128.0".to_owned()),
        }
    }

    /// Signals of one kind about the first mail, one a minute.
    fn signals(&self, kind: &SignalKind, minutes: std::ops::Range<i64>) -> Vec<Signal> {
        minutes.map(|minute| self.signal(0, kind.clone(), minute)).collect()
    }

    /// Records signals, and answers how many were stored.
    async fn record(&self, signals: &[Signal]) -> u64 {
        let mut tx = self.by_key.begin().await.unwrap();
        let recorded = record(&mut tx, signals, &[], 0).await.unwrap();
        tx.commit().await.unwrap();
        recorded.fresh.values().sum::<u64>()
    }
}

fn clicked() -> SignalKind {
    SignalKind::Clicked { url: "https://example.com/".to_owned(), link: 1 }
}

fn left() -> SignalKind {
    SignalKind::Unsubscribed { method: "provider".to_owned() }
}

fn bounced(class: BounceClass) -> SignalKind {
    SignalKind::Bounced { class, smtp_code: None, enhanced_code: None, diagnostic: None, rule: "test".to_owned() }
}

fn replied(automatic: bool) -> SignalKind {
    SignalKind::Replied { message_id: None, automatic }
}

#[tokio::test(flavor = "multi_thread")]
async fn opens_and_clicks_of_one_send_are_bounded() {
    let mails = Mails::sent().await;
    let (first, more) = (mails.signals(&SignalKind::Opened, 0..150), mails.signals(&SignalKind::Opened, 150..300));
    let loops = mails.signals(&clicked(), 0..STORED_MAX + 100);
    let others = vec![mails.signal(1, clicked(), 1), mails.signal(0, left(), 1)];
    let mut stored = Vec::new();
    for group in [&first, &first, &more, &loops, &loops, &others] {
        stored.push(mails.record(group).await);
    }
    assert_eq!(stored, [150, 0, 50, 200, 0, 2]);
    let rig = &mails.rig;
    assert_eq!(rig.number("select sum(clicked)::bigint from batches").await, 2);
    assert_eq!(rig.number("select count(*) from sends where human_clicked_at is not null").await, 2);
    assert_eq!(rig.number("select sum(count)::bigint from rollups where event = 'clicked_total'").await, 201);
}

#[tokio::test(flavor = "multi_thread")]
async fn repeated_facts_take_no_place_from_new_ones() {
    let mails = Mails::sent().await;
    let mut signals = mails.signals(&SignalKind::Opened, 0..150);
    assert_eq!(mails.record(&signals).await, 150);
    signals.extend(mails.signals(&SignalKind::Opened, 150..180));
    assert_eq!(mails.record(&signals).await, 30, "together with those that are stored");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_stranger_mails_about_one_send_is_bounded_and_hides_nothing() {
    let mails = Mails::sent().await;
    for kind in [bounced(BounceClass::Soft), replied(true)] {
        assert_eq!(mails.record(&mails.signals(&kind, 0..STORED_MAX + 100)).await, 200);
        assert_eq!(mails.record(&mails.signals(&kind, 300..310)).await, 0);
    }
    let rig = &mails.rig;
    assert_eq!(rig.number("select sum(count)::bigint from rollups where event = 'bounced_soft'").await, 200);
    assert_eq!(rig.number("select count(*) from sends where replied_at is not null").await, 0);
    let real = [mails.signal(0, bounced(BounceClass::Hard), 400), mails.signal(0, replied(false), 400)];
    assert_eq!(mails.record(&real).await, 2);
    assert_eq!(rig.number("select count(*) from suppressions where reason = 'hard_bounce'").await, 1);
    assert_eq!(rig.number("select count(*) from sends where replied_at is not null").await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_opt_out_beyond_the_bound_opts_out() {
    let mails = Mails::sent().await;
    assert_eq!(mails.record(&mails.signals(&left(), 0..STORED_MAX + 1)).await, 200);
    let came_back = "delete from suppressions;
        update contacts set marketing_status = 'subscribed', opted_in_at = now() - interval '1 hour'";
    sqlx::raw_sql(came_back).execute(&mails.rig.pool).await.unwrap();
    for (minute, expected) in [(500, 0), (590, 1)] {
        assert_eq!(mails.record(&[mails.signal(0, left(), minute)]).await, 0);
        let own = "select count(*) from suppressions where reason = 'unsubscribe' and source = 'recipient'";
        assert_eq!(mails.rig.number(own).await, expected, "{minute}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_opt_out_undoes_no_opt_in_since_then() {
    let mails = Mails::sent().await;
    // By a clock that is ahead of ours.
    let gone = mails.signal(0, left(), 0);
    assert_eq!(mails.record(slice::from_ref(&gone)).await, 1);
    let came_back = "delete from suppressions;
        update contacts set marketing_status = 'subscribed', opted_in_at = now() - interval '30 days'";
    sqlx::raw_sql(came_back).execute(&mails.rig.pool).await.unwrap();
    assert_eq!(mails.record(&[gone]).await, 0);
    assert_eq!(mails.rig.number("select count(*) from suppressions").await, 0);
}
