//! The fence against those who must win: unsubscribes, cancels, pauses.

use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use rstest::rstest;
use schemas::SendId;
use stage_rig::until;
use uuid::Uuid;

use super::world::{Handle, World, run};

#[tokio::test(flavor = "multi_thread")]
async fn no_mail_is_fenced_after_an_unsubscribe_was_answered() {
    let world = Arc::new(World::new().await);
    let addresses: Vec<String> = (0..300).map(|number| format!("user{number}@example.com")).collect();
    let (_, batch) = world.campaign_batch(&addresses.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let contacts: Vec<(Uuid, Uuid)> =
        sqlx::query_as("select contact_id, id from sends where tenant_id = $1 order by id desc")
            .bind(world.tenant)
            .fetch_all(&world.pool)
            .await
            .unwrap();
    let leavers = world.clone();
    let leaving = tokio::spawn(async move {
        let mut answered = Vec::new();
        for (contact, send) in contacts {
            let mut tx = leavers.pool.begin().await.unwrap();
            run!(
                &mut *tx,
                "select 1 from contacts where tenant_id = $1 and id = $2 for no key update",
                [leavers.tenant, contact]
            );
            run!(
                &mut *tx,
                "update contacts set marketing_status = 'unsubscribed' where tenant_id = $1 and id = $2",
                [leavers.tenant, contact]
            );
            tx.commit().await.unwrap();
            // The database's clock, after the answer.
            let at: chrono::DateTime<chrono::Utc> =
                sqlx::query_scalar("select clock_timestamp()").fetch_one(&leavers.pool).await.unwrap();
            answered.push((send, at));
        }
        answered
    });
    world.stage().deliver(&[&batch]).await.unwrap();
    let answered = leaving.await.unwrap();
    let fenced: Vec<(Uuid, chrono::DateTime<chrono::Utc>)> =
        sqlx::query_as("select id, fenced_at from sends where tenant_id = $1 and fenced_at is not null")
            .bind(world.tenant)
            .fetch_all(&world.pool)
            .await
            .unwrap();
    let late: Vec<_> =
        answered.iter().filter(|(send, at)| fenced.iter().any(|(id, fence)| id == send && fence > at)).collect();
    assert!(late.is_empty(), "{} fenced after their opt-out", late.len());
    let states: HashSet<String> = world.states(&batch).await.into_iter().collect();
    assert!(
        states.contains("skipped") && states.is_subset(&HashSet::from(["sent".into(), "skipped".into()])),
        "{states:?}"
    );
    assert_eq!(u64::try_from(fenced.len()).unwrap(), world.sink.inbox().stats().accepted);
    world.assert_counters_are_right().await;
}

#[rstest]
#[case::of_a_topic("'News', false")]
#[case::of_one_that_is_none_any_more("null, true")]
#[tokio::test]
async fn a_contact_that_left_the_topic_is_not_fenced(#[case] public_name_and_was_topic: &str) {
    let world = World::new().await;
    let (campaign, batch) = world.campaign_batch(&["stays@example.com", "leaves@example.com"]).await;
    let topic = schemas::new_id();
    let statements = format!(
        "insert into audiences (tenant_id, id, kind, name, public_name, was_topic)
         values ($1, $2, 'list', 'l', {public_name_and_was_topic});
         update campaigns set audience_mode = 'list', list_id = $2 where tenant_id = $1 and id = $3;
         insert into topic_opt_outs (tenant_id, audience_id, contact_id, send_id)
         select tenant_id, $2, contact_id, id from sends where tenant_id = $1 order by id desc limit 1"
    );
    for statement in statements.split(';') {
        // Postgres wants each parameter used.
        let statement = format!("with asked as (select $1::uuid, $2::uuid, $3::uuid) {statement}");
        let query = sqlx::query(sqlx::AssertSqlSafe(statement)).bind(world.tenant).bind(topic).bind(campaign);
        query.execute(&world.pool).await.unwrap();
    }
    world.stage().deliver(&[&batch]).await.unwrap();
    assert_eq!(world.states(&batch).await, ["sent", "skipped"]);
    assert_eq!(world.row(SendId::of(batch.id, 1).0).await.reason.as_deref(), Some("unsubscribed"));
    assert_eq!(world.sink.inbox().stats().accepted, 1);
    world.assert_counters_are_right().await;
}

/// An import holds thousands of contacts for seconds. What the server said of one is written as soon as he is free, and nothing else
/// waits for that.
#[tokio::test(flavor = "multi_thread")]
async fn a_locked_recipients_bounce_delays_no_other_result() {
    let (world, batch) = World::with_campaign_batch(&["reject-550-5.1.1@example.com", "free@example.com"]).await;
    let stage = world.stage();
    let mut holder = world.pool.begin().await.unwrap();
    // Weakly: a fence would pass, a suppression waits.
    run!(
        &mut *holder,
        "select 1 from contacts where tenant_id = $1 and address like 'reject%' for share",
        [world.tenant]
    );
    let batches = [&batch];
    let mut delivered = stage.deliver(&batches);
    tokio::select! {
        _ = &mut delivered => panic!("the bounce was written over somebody's lock"),
        () = until("the other is sent", async || world.states(&batch).await[1] == "sent") => {}
    }
    assert_ne!(world.states(&batch).await[0], "failed");
    holder.rollback().await.unwrap();
    delivered.await.unwrap();
    assert_eq!(world.states(&batch).await, ["failed", "sent"]);
    assert_eq!(world.number("select count(*) from suppressions where tenant_id = $1").await, 1);
    world.assert_counters_are_right().await;
}

/// Before the fence, too.
#[tokio::test(flavor = "multi_thread")]
async fn a_locked_recipient_is_mailed_later_without_delaying_others() {
    let (world, batch) = World::with_campaign_batch(&["held@example.com", "free@example.com"]).await;
    let stage = world.stage();
    let mut holder = world.pool.begin().await.unwrap();
    run!(
        &mut *holder,
        "select 1 from contacts where tenant_id = $1 and address = 'held@example.com' for no key update",
        [world.tenant]
    );
    stage.deliver(&[&batch]).await.unwrap();
    assert_eq!(world.states(&batch).await, ["queued", "sent"]);
    assert!(
        world.number("select count(*) from batches where tenant_id = $1 and announce_after is not null").await == 1
    );
    holder.rollback().await.unwrap();
    stage.deliver(&[&batch]).await.unwrap();
    assert_eq!(world.states(&batch).await, ["sent", "sent"]);
    assert_eq!(world.sink.inbox().stats().accepted, 2);
    world.assert_counters_are_right().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_and_a_pause_stop_what_is_not_fenced() {
    for (change, rest) in [
        ("update campaigns set status = 'cancelled' where tenant_id = $1", ["cancelled", "queued"]),
        ("update campaigns set paused = true where tenant_id = $1", ["queued", "queued"]),
    ] {
        let world = World::new().await;
        // All of them are slow, so that the change comes while some wait for a connection, also where a commit takes its time.
        let addresses: Vec<String> = (0..40).map(|number| format!("slow-data-1s+{number}@example.com")).collect();
        let (_, batch) = world.campaign_batch(&addresses.iter().map(String::as_str).collect::<Vec<_>>()).await;
        let stage = world.stage();
        let (delivered, ()) = tokio::join!(async { stage.deliver(&[&batch]).await }, async {
            assert!(world.sink.inbox().wait_for_accepted(1, Duration::from_secs(120)).await);
            world.run(change).await;
        });
        delivered.unwrap();
        let states = world.states(&batch).await;
        let sent = states.iter().filter(|state| *state == "sent").count();
        assert!(
            sent < 40 && states.iter().all(|state| state == "sent" || rest.contains(&state.as_str())),
            "{states:?}"
        );
        assert_eq!(world.sink.inbox().stats().accepted, sent as u64);
        world.assert_counters_are_right().await;
    }
}

/// Everything that stops sending: the campaign's, the tenant's, the domain's and the sender's.
const STOPS: [&str; 6] = [
    "update campaigns set status = 'cancelled' where tenant_id = $1",
    "update campaigns set paused = true where tenant_id = $1",
    "update tenants set status = 'suspended' where id = $1",
    "update tenants set paused_at = now() where id = $1",
    "update domains set status = 'suspended' where tenant_id = $1",
    "update senders set status = 'disabled' where tenant_id = $1",
];

#[tokio::test(flavor = "multi_thread")]
async fn a_committing_stop_blocks_fences_of_its_tenant_only() {
    for stop in STOPS {
        let mut world = World::new().await;
        let (_, batch) = world.campaign_batch(&["ann@example.com", "bob@example.net"]).await;
        let mut stopping = world.pool.begin().await.unwrap();
        sqlx::query(stop).bind(world.tenant).execute(&mut *stopping).await.unwrap();
        let stage = world.stage();
        stage.deliver(&[&batch]).await.unwrap();
        assert_eq!(world.states(&batch).await, ["queued", "queued"], "{stop}");
        assert_eq!(world.sink.inbox().stats().accepted, 0, "{stop}");
        stopping.rollback().await.unwrap();
        // It was not stopped after all.
        stage.deliver(&[&batch]).await.unwrap();
        assert_eq!(world.states(&batch).await, ["sent", "sent"], "{stop}");

        let gate = world.gate().await;
        let mut stopping = world.pool.begin().await.unwrap();
        sqlx::query(stop).bind(world.tenant).execute(&mut *stopping).await.unwrap();
        while world.gate().await == gate {
            world.become_another().await;
        }
        let (_, others) = world.campaign_batch(&["eve@example.org"]).await;
        stage.deliver(&[&others]).await.unwrap();
        assert_eq!(world.states(&others).await, ["sent"], "{stop}");
        stopping.rollback().await.unwrap();
    }
}

#[tokio::test]
async fn a_stop_waits_for_the_fences_that_have_looked() {
    let world = World::new().await;
    world.campaign().await;
    for stop in STOPS {
        let mut fencing = world.pool.begin().await.unwrap();
        let held = sqlx::query_scalar::<_, bool>("select try_gate($1)").bind(world.tenant).fetch_one(&mut *fencing);
        assert!(held.await.unwrap());
        let mut stopping = world.pool.begin().await.unwrap();
        sqlx::query("set local lock_timeout = '100ms'").execute(&mut *stopping).await.unwrap();
        let refused = sqlx::query(stop).bind(world.tenant).execute(&mut *stopping).await.unwrap_err();
        assert_eq!(refused.as_database_error().unwrap().code().as_deref(), Some("55P03"), "{stop}");
        stopping.rollback().await.unwrap();
        fencing.rollback().await.unwrap();
        let mut stopping = world.pool.begin().await.unwrap();
        assert_eq!(
            sqlx::query(stop).bind(world.tenant).execute(&mut *stopping).await.unwrap().rows_affected(),
            1,
            "{stop}"
        );
        stopping.rollback().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn several_processes_mail_each_recipient_once() {
    let world = World::new().await;
    let mut batches = Vec::new();
    for group in 0..4 {
        let addresses: Vec<String> = (0..50).map(|number| format!("user{group}x{number}@example.com")).collect();
        batches.push(world.campaign_batch(&addresses.iter().map(String::as_str).collect::<Vec<_>>()).await.1);
    }
    let (one, two) = (world.stage(), world.stage());
    let all = batches.iter().flat_map(|batch| [(&one, batch), (&two, batch)]);
    let all = all.map(|(stage, batch)| async move { stage.deliver(&[batch]).await });
    futures::future::try_join_all(all).await.unwrap();
    assert_eq!(world.sink.inbox().stats().accepted, 200);
    for batch in &batches {
        for ordinal in 0..50 {
            assert_eq!(world.row(SendId::of(batch.id, ordinal).0).await.state, "sent");
        }
    }
    world.assert_counters_are_right().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn acceptances_of_single_mails_and_other_changes_of_their_batches_all_count() {
    let world = Arc::new(World::new().await);
    let mut batches = Vec::new();
    for number in 0..100 {
        batches.push(world.transactional_batch(&format!("user{number}@example.com")).await);
    }
    let (beside, ids) = (world.clone(), batches.iter().map(|batch| batch.id).collect::<Vec<_>>());
    let over = Arc::new(AtomicBool::new(false));
    let is_over = over.clone();
    let changing = tokio::spawn(async move {
        let mut changes = 0_i64;
        for id in ids.iter().cycle() {
            if is_over.load(Ordering::Relaxed) {
                break;
            }
            run!(
                &beside.pool,
                "update batches set opened = opened + 1 where tenant_id = $1 and id = $2",
                [beside.tenant, id]
            );
            changes += 1;
        }
        changes
    });
    world.stage().deliver(&batches.iter().collect::<Vec<_>>()).await.unwrap();
    over.store(true, Ordering::Relaxed);
    let changes = changing.await.unwrap();
    assert_eq!(world.number("select sum(opened) from batches where tenant_id = $1").await, changes);
    assert_eq!(
        world.number("select count(*) from batches where tenant_id = $1 and state = 'done' and sent = 1").await,
        100
    );
    world.assert_counters_are_right().await;
    // And the totals of content, which a trigger notes.
    assert_eq!(world.number("select sum(opened) from content_changes where tenant_id = $1").await, changes);
    assert_eq!(world.number("select sum(sent) from content_changes where tenant_id = $1").await, 100);
}
