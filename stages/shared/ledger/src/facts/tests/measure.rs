//! How fast groups of signals are recorded, without the bus: `cargo test -p engagement measure -- --ignored --nocapture`.
#![allow(clippy::print_stdout)]

use chrono::{TimeDelta, Utc};
use schemas::{Classification, SendId, Signal, SignalKind, new_id};
use stage_rig::Rig;

use crate::facts::record;

const BATCHES: usize = 20;
const SENDS: usize = 500;
const GROUP: usize = 500;
const GROUPS: usize = 60;

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a measurement"]
async fn measure_signals_a_second() {
    let rig = Rig::new().await;
    let tenant = rig.tenant().await;
    let people = rig.people(&tenant, SENDS).await;
    let list = rig.audience(&tenant, "list", &[]).await;
    let mut batches = Vec::new();
    for _ in 0..BATCHES {
        let campaign = rig.campaign(&tenant, list).await;
        batches.push(rig.batch(&tenant, campaign, Classification::Marketing, &people).await.batch_id);
    }
    sqlx::query("update sends set state = 'sent', decided_at = now() - interval '1 day'")
        .execute(&rig.pool)
        .await
        .unwrap();
    let begun = Utc::now();
    let signal = |n: usize| Signal {
        signal_id: new_id(),
        tenant_id: tenant.id,
        send_id: SendId::of(batches[n / 7 % BATCHES], u16::try_from(n * 31 % SENDS).unwrap()).0,
        occurred_at: begun + TimeDelta::milliseconds(i64::try_from(n).unwrap()),
        // Two opens to a click, as mail has them.
        kind: match n % 3 {
            0 => SignalKind::Clicked { url: "https://example.com/".to_owned(), link: 1 },
            _ => SignalKind::Opened,
        },
        ip: Some("203.0.113.9".to_owned()),
        user_agent: Some("Mozilla/5.0 (Windows NT 10.0; Win64; x64) Firefox/128.0".to_owned()),
    };
    let groups: Vec<Vec<Signal>> =
        (0..GROUPS).map(|group| (0..GROUP).map(|n| signal(group * GROUP + n)).collect()).collect();
    let by_key = runtime::plans::PreparedPool::new(&rig.pool, 1);
    let started = std::time::Instant::now();
    for group in &groups {
        let mut tx = by_key.begin().await.unwrap();
        let recorded = record(&mut tx, group, &[], 0).await.unwrap();
        tx.commit().await.unwrap();
        assert_eq!(recorded.fresh.values().sum::<u64>(), GROUP as u64);
    }
    let took = started.elapsed();
    println!("{} signals in {took:?}: {:.0} a second", GROUP * GROUPS, (GROUP * GROUPS) as f64 / took.as_secs_f64());
}
