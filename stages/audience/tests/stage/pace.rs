//! A paced campaign: evenly, and never more than its minute's mail in any minute.

use chrono::{DateTime, TimeDelta, Utc};
use stage_rig::{Rig, until};
use uuid::Uuid;

use crate::{run, start};

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

/// Delivery at its quickest: what is announced is sent at once. Answers when the batches it found would have been announced
/// again, which tells exactly when they were dispatched.
async fn dispatched_at(rig: &Rig) -> Vec<DateTime<Utc>> {
    sqlx::query_scalar(
        "with found as (select tenant_id, id, announce_after from batches where state = 'announced' for no key update)
         update batches b
         set state = 'done', sent = b.queued, queued = 0, done_at = now(), quiet_at = now(), announce_after = null
         from found f where b.tenant_id = f.tenant_id and b.id = f.id
         returning f.announce_after",
    )
    .fetch_all(&rig.pool)
    .await
    .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn two_processes_together_keep_the_pace() {
    let rig = Rig::new().await;
    paced(&rig, 60, 600).await;
    for _ in 0..2 {
        start(&rig, &["--audience-reannounce", "10m"]).await;
    }
    let mut times: Vec<DateTime<Utc>> = Vec::new();
    until("the campaign is dispatched", async || {
        times.extend(dispatched_at(&rig).await.into_iter().map(|first_ring| first_ring - TimeDelta::minutes(10)));
        times.len() >= 6
    })
    .await;
    times.sort_unstable();
    assert_eq!(times.len(), 6, "a batch is a second's mail");
    // By the engine's own times, so however slow the machine is: never ahead of ten a second, but that a second which was missed
    // may be made up for. Between any two, not only neighbours.
    for (at, from) in times.iter().enumerate() {
        for (later, to) in times.iter().enumerate().skip(at + 1) {
            let (gap, due) = ((*to - *from).num_milliseconds(), 1_000 * (later - at - 1) as i64);
            assert!(gap >= due - 1, "batch {later} came {gap} ms after batch {at}, not {due}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_minute_that_is_used_up_is_waited_for() {
    let rig = Rig::new().await;
    let campaign = paced(&rig, 500, 6_000).await;
    start(&rig, &[]).await;
    until("the first is dispatched", async || {
        rig.number("select count(*) from batches where state = 'announced' and dispatched_sends = 100").await >= 1
    })
    .await;
    // A minute's mail has just left, as far as the ledger knows.
    sqlx::query("update campaigns set paused = true where id = $1").bind(campaign).execute(&rig.pool).await.unwrap();
    dispatched_at(&rig).await;
    sqlx::query(
        "update batches set dispatched_sends = 5950 where id = (select id from batches where state = 'done' limit 1)",
    )
    .execute(&rig.pool)
    .await
    .unwrap();
    let before = rig.number("select count(*) from batches where state <> 'waiting'").await;
    run(&rig, "update campaigns set paused = false").await;
    // Another tenant's campaign shows that hands are being dispatched meanwhile.
    paced(&rig, 1, 60).await;
    until("the other one is dispatched", async || {
        rig.number("select count(*) from batches where state = 'announced' and dispatched_sends = 1").await == 1
    })
    .await;
    assert_eq!(
        rig.number("select count(*) from batches where state <> 'waiting' and size = 100").await,
        before,
        "a hundred more would be more than a minute's mail"
    );
    run(&rig, "update batches set quiet_at = now() - interval '61 seconds'").await;
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
    until("one is dispatched", async || {
        rig.number("select count(*) from batches where state = 'announced'").await == 1
    })
    .await;
    // It is deferred, and due again.
    sqlx::query(
        "with one as (update batches set state = 'resting', queued = 0, deferred = queued, quiet_at = now(), announce_after = now()
                      where state = 'announced' returning id)
         update sends set state = 'deferred', next_attempt_at = now() from one where sends.id between one.id and last_id_of(one.id)",
    )
    .execute(&deps.pool)
    .await
    .unwrap();
    until("it is dispatched", async || {
        rig.number("select count(*) from batches where state = 'announced' and deferred = 10 and announcement = 2 and dispatched_sends = 10").await
            == 1
    })
    .await;
    rig.assert_books().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_has_just_left_counts_when_its_batch_comes_again() {
    let rig = Rig::new().await;
    paced(&rig, 100, 6_000).await;
    start(&rig, &[]).await;
    let dispatched = "select coalesce(max(announcement), 0)::bigint from batches where state = 'announced'";
    until("it is dispatched", async || rig.number(dispatched).await == 1).await;
    run(
        &rig,
        "update batches set state = 'resting', queued = 0, sent = 60, deferred = 40, quiet_at = now(), announce_after = now()",
    )
    .await;
    until("the rest is dispatched", async || rig.number(dispatched).await == 2).await;
    assert_eq!(rig.number("select dispatched_sends::bigint from batches").await, 100);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_was_set_back_holds_no_paced_campaign() {
    let rig = Rig::new().await;
    paced(&rig, 20, 60).await;
    start(&rig, &[]).await;
    let begun = "select count(*) from batches where state <> 'waiting'";
    until("one is dispatched", async || rig.number(begun).await == 1).await;
    dispatched_at(&rig).await;
    for ahead in [
        "update campaign_paces set next_at = now() + interval '1 hour'",
        "update batches set quiet_at = now() + interval '1 hour', dispatched_sends = 60 where state = 'done'",
    ] {
        run(&rig, ahead).await;
    }
    until("the other is dispatched", async || rig.number(begun).await == 2).await;
}
