//! A paced campaign: evenly, and never more than its minute's mail in any minute.

use std::time::Duration;

use chrono::{DateTime, Utc};
use stage_rig::{Rig, until};
use uuid::Uuid;

use crate::start;

/// A campaign to so many people at so many a minute, launched.
async fn paced(rig: &Rig, people: usize, per_minute: i32) -> Uuid {
    let tenant = rig.tenant().await;
    let people = rig.people(&tenant, people).await;
    let list = rig.audience(&tenant, "list", &people).await;
    let campaign = rig.campaign(&tenant, list).await;
    sqlx::query("update campaigns set max_per_minute = $2 where id = $1")
        .bind(campaign)
        .bind(per_minute)
        .execute(&rig.pool)
        .await
        .unwrap();
    let request = rig.launch_request(&tenant, campaign).await;
    rig.ring(&[request], "1").await;
    campaign
}

/// Delivery at its quickest: what is announced is sent at once. Answers how many batches it found.
async fn deliver(rig: &Rig) -> u64 {
    sqlx::query(
        "update batches set state = 'done', sent = queued, queued = 0, done_at = clock_timestamp(), quiet_at = now(),
                announce_after = null
         where state = 'announced'",
    )
    .execute(&rig.pool)
    .await
    .unwrap()
    .rows_affected()
}

#[tokio::test(flavor = "multi_thread")]
async fn two_processes_together_keep_the_pace() {
    let rig = Rig::new().await;
    paced(&rig, 60, 600).await;
    for _ in 0..2 {
        start(&rig, &[]).await;
    }
    let done = || rig.number("select count(*) from batches where state = 'done'");
    let mut handed = 0;
    let deadline = tokio::time::Instant::now() + Duration::from_secs(30);
    while done().await < 6 || handed < 6 {
        assert!(tokio::time::Instant::now() < deadline, "the campaign goes on");
        handed += deliver(&rig).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let times: Vec<DateTime<Utc>> =
        sqlx::query_scalar("select done_at from batches order by done_at").fetch_all(&rig.pool).await.unwrap();
    assert_eq!(times.len(), 6, "a batch is a second's mail");
    // Evenly: ten a second. What the first second missed may be made up for; each measurement is late by up to a tick.
    for (at, pair) in times.windows(2).enumerate() {
        let gap = (pair[1] - pair[0]).num_milliseconds();
        assert!(gap >= 600 || at == 0, "batch {at} came after {gap} ms");
    }
    let all = (times[5] - times[0]).num_milliseconds();
    assert!((3_700..9_000).contains(&all), "{all} ms for sixty at ten a second");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_minute_that_is_used_up_is_waited_for() {
    let rig = Rig::new().await;
    let campaign = paced(&rig, 500, 6_000).await;
    start(&rig, &[]).await;
    until("the first is handed on", async || {
        rig.number("select count(*) from batches where state = 'announced' and handed = 100").await >= 1
    })
    .await;
    // A minute's mail has just left, as far as the ledger knows.
    sqlx::query("update campaigns set paused = true where id = $1").bind(campaign).execute(&rig.pool).await.unwrap();
    deliver(&rig).await;
    sqlx::query("update batches set handed = 5950 where id = (select id from batches where state = 'done' limit 1)")
        .execute(&rig.pool)
        .await
        .unwrap();
    let before = rig.number("select count(*) from batches where state <> 'waiting'").await;
    sqlx::query("update campaigns set paused = false").execute(&rig.pool).await.unwrap();
    // Another tenant's campaign shows that hands are being handed on meanwhile.
    paced(&rig, 1, 60).await;
    until("the other one is handed on", async || {
        rig.number("select count(*) from batches where state = 'announced' and handed = 1").await == 1
    })
    .await;
    assert_eq!(
        rig.number("select count(*) from batches where state <> 'waiting' and size = 100").await,
        before,
        "a hundred more would be more than a minute's mail"
    );
    sqlx::query("update batches set quiet_at = now() - interval '61 seconds'").execute(&rig.pool).await.unwrap();
    until("it goes on", async || {
        rig.number("select count(*) from batches where state <> 'waiting' and size = 100").await > before
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_deferred_waits_for_its_turn_like_other_mail() {
    let rig = Rig::new().await;
    paced(&rig, 20, 60).await;
    let deps = start(&rig, &[]).await;
    until("one is handed on", async || rig.number("select count(*) from batches where state = 'announced'").await == 1)
        .await;
    // It is deferred, and due again.
    sqlx::query(
        "with one as (update batches set state = 'resting', queued = 0, deferred = 1, quiet_at = now(), announce_after = now()
                      where state = 'announced' returning id)
         update sends set state = 'deferred', next_attempt_at = now() from one where sends.id = one.id",
    )
    .execute(&deps.pool)
    .await
    .unwrap();
    until("it is handed on in its turn", async || {
        rig.number("select count(*) from batches where state = 'announced' and deferred = 1 and announcement = 2 and handed = 1").await
            == 1
    })
    .await;
    rig.assert_books().await;
}
