//! What stops a campaign by itself: its window, and its tripwire.

use ledger::end_stopped::EndStopped;
use runner::Sweep;
use schemas::{Classification, LaunchId, month_of};
use serde_json::Value;
use stage_rig::{Rig, until};
use uuid::Uuid;

use crate::{blocks_read, run, start};

/// A launched campaign to so many people, dispatched as far as the backlog goes.
async fn running(rig: &Rig, people: usize) -> Uuid {
    let tenant = rig.tenant().await;
    let people = rig.people(&tenant, people).await;
    let list = rig.audience(&tenant, "list", &people).await;
    let campaign = rig.campaign(&tenant, list).await;
    let request = rig.launch_request(&tenant, campaign).await;
    rig.ring(&[request], "1").await;
    start(rig, &["--audience-backlog", "500"]).await;
    until("one batch is dispatched", async || {
        rig.number("select count(*) from batches where state = 'announced'").await == 1
    })
    .await;
    campaign
}

async fn pause_reason(rig: &Rig) -> Option<String> {
    sqlx::query_scalar("select pause_reason from campaigns where paused")
        .fetch_optional(&rig.pool)
        .await
        .unwrap()
        .flatten()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_closed_window_leaves_is_skipped_and_counted() {
    let rig = Rig::new().await;
    running(&rig, 1_200).await;
    // One of those dispatched is in a worker's hands.
    run(&rig, "update sends set state = 'fenced' where id = (select id from batches where state = 'announced')").await;
    run(&rig, "update batches set queued = queued - 1, fenced = 1 where state = 'announced'").await;
    run(&rig, "update campaigns set not_after = now(), closes_at = now()").await;
    until("all that nobody holds is skipped", async || {
        rig.number("select coalesce(sum(skipped), 0) from batches").await == 1_199
    })
    .await;
    assert_eq!(
        rig.number("select count(*) from sends where state = 'skipped' and reason = 'window_missed'").await,
        1_199
    );
    assert_eq!(
        rig.number("select coalesce(sum(count), 0)::bigint from rollups where kind = 'campaign' and event = 'skipped'")
            .await,
        1_199
    );
    rig.assert_books().await;
    run(&rig, "update sends set state = 'sent' where state = 'fenced'").await;
    run(&rig, "update batches set fenced = 0, sent = 1, state = 'done', done_at = now() where fenced = 1").await;
    until("sent", async || rig.number("select count(*) from campaigns where status = 'sent'").await == 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_campaign_of_many_small_batches_ends_soon() {
    let rig = Rig::new().await;
    let tenant = rig.tenant().await;
    let list = rig.audience(&tenant, "list", &[]).await;
    let campaign = rig.campaign(&tenant, list).await;
    let launch = LaunchId::fresh();
    let ids: Vec<Uuid> = (0..2_000).map(|number| launch.batch(number)).collect();
    sqlx::query(
        "update campaigns set status = 'cancelled', materialized_at = now(), launch_prefix = left(replace($1::text, '-', ''), 23)",
    )
    .bind(ids[0])
    .execute(&rig.pool)
    .await
    .unwrap();
    sqlx::query(
        "with made as (
             insert into batches (tenant_id, id, month, kind, lane, classification, campaign_id, content_id, sender_id, size, queued)
             select $1, unnest($2::uuid[]), $3, 'campaign', 'bulk', 'marketing', $4, $5, $6, 1, 1
             returning tenant_id, id, month, campaign_id
         )
         insert into sends (tenant_id, id, month, campaign_id, contact_id)
         select m.tenant_id, m.id, m.month, m.campaign_id, gen_random_uuid() from made m",
    )
    .bind(tenant.id)
    .bind(&ids)
    .bind(month_of(ids[0]))
    .bind(campaign)
    .bind(tenant.content)
    .bind(tenant.sender)
    .execute(&rig.pool)
    .await
    .unwrap();
    let sweep = EndStopped(rig.pool.clone());
    for _ in 0..4 {
        assert_eq!(sweep.sweep().await.unwrap(), 500);
    }
    assert_eq!(sweep.sweep().await.unwrap(), 0);
    assert_eq!(rig.number("select count(*) from sends where state = 'cancelled'").await, 2_000);
    rig.assert_books().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_campaign_to_be_held_is_paused_when_its_window_closes() {
    let rig = Rig::new().await;
    running(&rig, 1_200).await;
    run(&rig, "update campaigns set on_miss = 'hold', not_after = now(), closes_at = now()").await;
    until("paused", async || pause_reason(&rig).await.as_deref() == Some("window_missed")).await;
    assert_eq!(rig.number("select coalesce(sum(skipped), 0) from batches").await, 0);
    assert_eq!(
        rig.number(
            "select count(*) from audit_log where action = 'campaign.paused' and detail ->> 'reason' = 'window_missed'"
        )
        .await,
        1
    );
    // Who resumes it waives the window: the rest is sent late.
    run(&rig, "update batches set state = 'done', sent = queued, queued = 0 where state = 'announced'").await;
    run(&rig, "update campaigns set paused = false, pause_reason = null, closes_at = null").await;
    until("the next batch is dispatched", async || {
        rig.number("select count(*) from batches where state = 'announced'").await == 1
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_campaign_that_bounces_too_often_is_paused_once() {
    let rig = Rig::new().await;
    running(&rig, 1_200).await;
    let bounce = "update batches set queued = queued - 3, failed = failed + 3, bounced = bounced + 3
                  where id = (select id from batches where state = 'announced' or queued < size order by id limit 1)";
    run(&rig, bounce).await;
    run(&rig, bounce).await;
    until("paused", async || pause_reason(&rig).await.as_deref() == Some("tripwire_bounces")).await;
    let audited: (i64, i64) = sqlx::query_as(
        "select (detail ->> 'bounced')::bigint, (detail ->> 'decided')::bigint from audit_log where action = 'campaign.paused'",
    )
    .fetch_one(&rig.pool)
    .await
    .unwrap();
    assert_eq!(audited, (6, 6));
    // Resumed, it is not stopped for this again.
    run(&rig, "update campaigns set paused = false, pause_reason = null, tripwire = 'disarmed'").await;
    run(&rig, "update batches set state = 'done', failed = failed + queued, queued = 0 where state = 'announced' or queued < size").await;
    until("it goes on", async || rig.number("select count(*) from batches where state = 'announced'").await >= 1).await;
    assert_eq!(pause_reason(&rig).await, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn complaints_trip_it_too() {
    let rig = Rig::new().await;
    running(&rig, 600).await;
    run(&rig, "update batches set complained = 4, queued = queued - 4, sent = 4 where state = 'announced'").await;
    until("paused", async || pause_reason(&rig).await.as_deref() == Some("tripwire_complaints")).await;
    assert_eq!(rig.number("select count(*) from campaigns where tripwire = 'tripped'").await, 1);
}

#[tokio::test]
async fn only_the_first_bounce_of_a_batch_writes_to_an_index() {
    let rig = Rig::new().await;
    let tenant = rig.tenant().await;
    let list = rig.audience(&tenant, "list", &[]).await;
    let campaign = rig.campaign(&tenant, list).await;
    let people = rig.people(&tenant, 3).await;
    rig.batch(&tenant, campaign, Classification::Marketing, &people).await;
    let mut tx = rig.pool.begin().await.unwrap();
    let bounce = "update batches set queued = queued - 1, failed = failed + 1, bounced = bounced + 1";
    for hot in [0_i64, 1, 2] {
        sqlx::query(bounce).execute(&mut *tx).await.unwrap();
        let updated = "select pg_stat_get_xact_tuples_hot_updated('batches'::regclass)";
        let updated: i64 = sqlx::query_scalar(updated).fetch_one(&mut *tx).await.unwrap();
        assert_eq!(updated, hot, "updates that are HOT");
    }
    let found = "select count(*) from batches where needs_tripwire and bounced = 3";
    let found: i64 = sqlx::query_scalar(found).fetch_one(&mut *tx).await.unwrap();
    assert_eq!(found, 1);
}

#[tokio::test]
async fn the_tripwire_does_not_read_all_batches_of_a_slow_campaign() {
    let rig = Rig::new().await;
    let tenant = rig.tenant().await;
    let list = rig.audience(&tenant, "list", &[]).await;
    let campaign = rig.campaign(&tenant, list).await;
    let launch = LaunchId::fresh();
    let ids: Vec<Uuid> = (0..6_000).map(|number| launch.batch(number)).collect();
    // Of a mail each. Three came back.
    sqlx::query(
        "insert into batches (tenant_id, id, month, kind, lane, classification, campaign_id, content_id, sender_id, state, size, sent, bounced)
         select $1, b.id, $3, 'campaign', 'bulk', 'marketing', $4, $5, $6, 'done', 1, 1, (b.n % 2000 = 0)::integer
         from unnest($2::uuid[]) with ordinality as b (id, n)",
    )
    .bind(tenant.id)
    .bind(&ids)
    .bind(month_of(ids[0]))
    .bind(campaign)
    .bind(tenant.content)
    .bind(tenant.sender)
    .execute(&rig.pool)
    .await
    .unwrap();
    let owner = sqlx::PgPool::connect(&rig.database.url()).await.unwrap();
    sqlx::raw_sql("analyze campaigns, batches").execute(&owner).await.unwrap();
    let statement = include_str!("../../queries/tripped_campaigns.sql");
    let plan: Value =
        sqlx::query_scalar(sqlx::AssertSqlSafe(format!("explain (analyze, buffers, format json)\n{statement}")))
            .fetch_one(&rig.pool)
            .await
            .unwrap();
    let blocks = blocks_read(&plan);
    assert!(blocks < 100, "{blocks} blocks were read: {plan:#}");
}
