//! How many facts of one send are stored.
#![allow(clippy::unwrap_used)]

use chrono::{TimeDelta, Utc};
use runtime::plans::PreparedPool;
use schemas::{Classification, SendId, Signal, SignalKind, new_id};
use stage_rig::Rig;

use crate::facts::{TOUCHES_MAX, record};

#[tokio::test(flavor = "multi_thread")]
async fn opens_and_clicks_of_one_send_are_bounded() {
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
    let signal = |ordinal: u16, kind: SignalKind, minute: i64| Signal {
        signal_id: new_id(),
        tenant_id: tenant.id,
        send_id: SendId::of(batch, ordinal).0,
        occurred_at: Utc::now() - TimeDelta::minutes(600 - minute),
        kind,
        ip: Some("203.0.113.9".to_owned()),
        user_agent: Some("Mozilla/5.0 (Windows NT 10.0; Win64; x64) Firefox/128.0".to_owned()),
    };
    let clicked = || SignalKind::Clicked { url: "https://example.com/".to_owned(), link: 1 };
    let opens = |of: std::ops::Range<i64>| of.map(|minute| signal(0, SignalKind::Opened, minute)).collect::<Vec<_>>();
    let first = opens(0..150);
    let loops: Vec<Signal> = (0..TOUCHES_MAX + 100).map(|minute| signal(0, clicked(), minute)).collect();
    let others = vec![signal(1, clicked(), 1), signal(0, SignalKind::Unsubscribed { method: "page".to_owned() }, 1)];
    let by_key = PreparedPool::new(&rig.pool, 1);
    let mut stored = Vec::new();
    for group in [&first, &first, &opens(150..300), &loops, &loops, &others] {
        let mut tx = by_key.begin().await.unwrap();
        stored.push(record(&mut tx, group, &[], 0).await.unwrap().fresh.total());
        tx.commit().await.unwrap();
    }
    assert_eq!(stored, [150, 0, 50, 200, 0, 2]);
    assert_eq!(rig.number("select sum(clicked)::bigint from batches").await, 2);
    assert_eq!(rig.number("select count(*) from sends where human_clicked_at is not null").await, 2);
    assert_eq!(rig.number("select sum(count)::bigint from rollups where event = 'clicked_total'").await, 201);
}
