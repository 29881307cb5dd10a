//! What has not moved is announced again; what is cancelled is cancelled; what is over is completed.

use std::collections::BTreeSet;

use chrono::{TimeDelta, Utc};
use ledger::{dispatch::AnnounceRequests, quota::QuotaDefaults};
use runner::Sweep;
use runtime::{Notifier, plans::PreparedPool};
use schemas::{Classification, RequestKind, Resolved, new_batch_id, subjects::stream};
use stage_rig::{Rig, Tenant, rows_in_vain, until};
use uuid::Uuid;

use crate::{run, set_aside, start};

async fn launched(rig: &Rig, tenant: &Tenant, people: usize) -> Uuid {
    let people = rig.people(tenant, people).await;
    let list = rig.audience(tenant, "list", &people).await;
    let campaign = rig.campaign(tenant, list).await;
    // Nothing is sent here: the first thousand would be all that is dispatched.
    stage_rig::run!(&rig.pool, "update campaigns set tripwire = 'disarmed' where id = $1", [campaign]);
    let request = rig.launch_request(tenant, campaign).await;
    rig.ring(&[request], "1").await;
    campaign
}

async fn state_of(rig: &Rig, batch: Uuid) -> (String, i32, bool) {
    sqlx::query_as(
        "select state, announcement, coalesce(announce_after > now() + interval '25 minutes', false) from batches where id = $1",
    )
    .bind(batch)
    .fetch_one(&rig.pool)
    .await
    .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_is_announced_again_when_the_stream_store_is_lost() {
    let rig = Rig::new().await;
    let tenant = rig.tenant().await;
    launched(&rig, &tenant, 1_100).await;
    let mut requests = Vec::new();
    for at in 0..5 {
        requests.push(rig.transactional_request(&tenant, &format!("t{at}@example.org"), |_| {}).await);
    }
    rig.ring(&requests, "1").await;
    start(&rig, &["--audience-reannounce", "1s"]).await;
    until("all is announced", async || rig.held(stream::RESOLVED).await >= 8).await;
    rig.lose_the_streams().await;
    // A request that was accepted while nobody could hear of it.
    let payload = serde_json::json!({"send_id": new_batch_id(), "address": "late@example.org", "template_id": tenant.content,
        "content_id": tenant.content, "sender_id": tenant.sender});
    let id = serde_json::from_value(payload["send_id"].clone()).unwrap();
    rig.request(&tenant, RequestKind::Transactional, id, payload, Utc::now()).await;
    until("all is announced again, and the late one too", async || {
        if rig.held(stream::RESOLVED).await < 9 {
            return false;
        }
        let announced: Vec<Resolved> = rig.messages(stream::RESOLVED).await;
        announced.iter().map(|message| message.batch_id).collect::<BTreeSet<_>>().len() == 9
    })
    .await;
    assert_eq!(rig.number("select count(*) from sends").await, 1_106);
    rig.assert_books().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_open_batch_is_announced_again_with_growing_pauses() {
    let rig = Rig::new().await;
    let tenant = rig.tenant().await;
    let campaign = launched(&rig, &tenant, 1).await;
    let people = rig.people(&tenant, 1).await;
    let batch = rig.batch(&tenant, campaign, Classification::Marketing, &people).await.batch_id;
    running(&rig, campaign, batch, false).await;
    stage_rig::run!(&rig.pool, "update batches set announcement = 9, announce_after = now() where id = $1", [batch]);
    start(&rig, &[]).await;
    until("announced", async || state_of(&rig, batch).await.1 == 10).await;
    assert_eq!(
        state_of(&rig, batch).await,
        ("announced".to_owned(), 10, true),
        "thirty times the first pause and no more"
    );
    until("announced", async || rig.held(stream::RESOLVED).await == 1).await;
    let announced: Vec<Resolved> = rig.messages(stream::RESOLVED).await;
    assert_eq!((announced[0].batch_id, announced[0].announcement), (batch, 10));
}

#[tokio::test]
async fn what_is_announced_at_its_time_was_not_lost() {
    const SCHEDULED: i64 = 700;
    let rig = Rig::new().await;
    let tenant = rig.tenant().await;
    let request = rig.transactional_request(&tenant, "ann@example.org", |_| {}).await.request_id;
    let run = async |statement: &'static str| {
        sqlx::query(statement).bind(request).execute(&rig.pool).await.unwrap();
    };
    let sweep = AnnounceRequests::new(rig.pool.clone(), rig.bus.clone(), Notifier::default());
    run("update requests set announce_after = now() where id = $1").await;
    assert_eq!(sweep.sweep().await.unwrap(), 1, "it was to be announced when it was accepted");
    run("update requests set announce_after = now(), due_at = now(), received_at = now() - interval '1 day', announcements = 0
         where id = $1")
        .await;
    assert_eq!(sweep.sweep().await.unwrap(), 0, "it was due just now");
    run("update requests set announce_after = now() where id = $1").await;
    assert_eq!(sweep.sweep().await.unwrap(), 1, "its announcement did not help");

    let before = rig.held(stream::ACCEPTED).await;
    sqlx::query(
        "insert into requests (tenant_id, id, product, environment, kind, payload, announce_after, due_at, received_at)
         select tenant_id, gen_random_uuid(), product, environment, kind, payload, now(), now(), now() - interval '1 day'
         from requests cross join generate_series(1, $1)",
    )
    .bind(SCHEDULED)
    .execute(&rig.pool)
    .await
    .unwrap();
    assert_eq!(sweep.sweep().await.unwrap(), 0);
    assert_eq!(rig.number("select count(*) from requests where announcements = 1").await, SCHEDULED);
    assert!(rig.held(stream::ACCEPTED).await > before);
}

#[tokio::test]
async fn a_kind_of_a_newer_version_delays_no_other_request() {
    let rig = Rig::new().await;
    let tenant = rig.tenant().await;
    let request = rig.transactional_request(&tenant, "ann@example.org", |_| {}).await.request_id;
    let owner = sqlx::PgPool::connect(&rig.database.url()).await.unwrap();
    for sql in [
        "alter table requests drop constraint requests_kind_check",
        "insert into requests (tenant_id, id, product, environment, kind, payload, announce_after)
         select tenant_id, gen_random_uuid(), product, environment, 'of-tomorrow', payload, now() from requests",
        "update requests set announce_after = now()",
    ] {
        sqlx::query(sql).execute(&owner).await.unwrap();
    }
    AnnounceRequests::new(rig.pool.clone(), rig.bus.clone(), Notifier::default()).sweep().await.unwrap();
    let announced: Vec<Uuid> =
        sqlx::query_scalar("select id from requests where announcements > 0").fetch_all(&rig.pool).await.unwrap();
    assert_eq!(announced, [request]);
}

/// The campaign was launched with this batch.
async fn running(rig: &Rig, campaign: Uuid, batch: Uuid, paused: bool) {
    sqlx::query(
        "update campaigns set status = 'sending', materialized_at = now(), month = $3, paused = $4,
             launch_prefix = left(replace($2::text, '-', ''), 23) where id = $1",
    )
    .bind(campaign)
    .bind(batch)
    .bind(schemas::month_of(batch))
    .bind(paused)
    .execute(&rig.pool)
    .await
    .unwrap();
}

/// A batch with one deferred send, and one that is decided.
async fn deferred(rig: &Rig, due: TimeDelta, state: &str) -> Uuid {
    let tenant = rig.tenant().await;
    let people = rig.people(&tenant, 2).await;
    let list = rig.audience(&tenant, "list", &people).await;
    let campaign = rig.campaign(&tenant, list).await;
    let batch = rig.batch(&tenant, campaign, Classification::Marketing, &people).await.batch_id;
    let due = Utc::now() + due;
    sqlx::query("update sends set state = 'deferred', next_attempt_at = $2 where id = $1")
        .bind(batch)
        .bind(due)
        .execute(&rig.pool)
        .await
        .unwrap();
    sqlx::query("update sends set state = 'sent' where id <> $1").bind(batch).execute(&rig.pool).await.unwrap();
    sqlx::query(
        "update batches set queued = 0, deferred = 1, sent = 1, state = $2, announce_after = now() where id = $1",
    )
    .bind(batch)
    .bind(state)
    .execute(&rig.pool)
    .await
    .unwrap();
    running(rig, campaign, batch, false).await;
    batch
}

#[tokio::test(flavor = "multi_thread")]
async fn a_resting_batch_is_announced_when_a_send_is_due() {
    let rig = Rig::new().await;
    let batch = deferred(&rig, TimeDelta::seconds(-1), "resting").await;
    start(&rig, &[]).await;
    until("announced", async || state_of(&rig, batch).await.0 == "announced" && rig.held(stream::RESOLVED).await == 1)
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transactional_batch_that_comes_back_is_as_old_as_its_return() {
    let rig = Rig::new().await;
    let batch = deferred(&rig, TimeDelta::seconds(-1), "resting").await;
    let rested = "update batches set lane = 'priority', created_at = now() - interval '2 hours', quiet_at = now() - interval '1 hour'";
    run(&rig, rested).await;
    start(&rig, &[]).await;
    until("announced", async || state_of(&rig, batch).await.0 == "announced").await;
    let old = "select count(*) from platform_batches() where lane = 'priority' and oldest > 60";
    assert_eq!(rig.number(old).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_that_is_set_aside_for_a_day_is_not_the_oldest() {
    let rig = Rig::new().await;
    deferred(&rig, TimeDelta::seconds(-1), "announced").await;
    let made = "update batches set lane = 'priority', created_at = now() - interval '2 hours'";
    run(&rig, made).await;
    let old = "select count(*) from platform_batches() where lane = 'priority' and oldest > 60";
    assert_eq!(rig.number(old).await, 1);
    let (tenant, batch): (Uuid, Uuid) =
        sqlx::query_as("select tenant_id, id from batches").fetch_one(&rig.pool).await.unwrap();
    set_aside(&rig, tenant, batch).await;
    assert_eq!(rig.number(old).await, 0);
    // Nor on its way back.
    let soon = "update batches set announce_after = now() + interval '30 minutes'";
    run(&rig, soon).await;
    assert_eq!(rig.number(old).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_timed_batch_is_dispatched_when_its_time_has_come() {
    let rig = Rig::new().await;
    let tenant = rig.tenant().await;
    let people = rig.people(&tenant, 6).await;
    let list = rig.audience(&tenant, "list", &people).await;
    let [due, later, paused] =
        [rig.campaign(&tenant, list).await, rig.campaign(&tenant, list).await, rig.campaign(&tenant, list).await];
    let mut batches = Vec::new();
    for (campaign, seconds) in [(due, -1), (later, 3600), (paused, -1)] {
        let batch = rig.batch(&tenant, campaign, Classification::Marketing, &people).await.batch_id;
        sqlx::query(
            "update batches set state = 'timed', announce_after = now() + make_interval(secs => $2) where id = $1",
        )
        .bind(batch)
        .bind(f64::from(seconds))
        .execute(&rig.pool)
        .await
        .unwrap();
        running(&rig, campaign, batch, campaign == paused).await;
        batches.push(batch);
    }
    start(&rig, &[]).await;
    until("dispatched", async || {
        state_of(&rig, batches[0]).await.0 == "announced" && rig.held(stream::RESOLVED).await == 1
    })
    .await;
    assert_eq!(state_of(&rig, batches[1]).await.0, "timed");
    until("the paused campaign's waits for dispatch, and is looked at no more", async || {
        state_of(&rig, batches[2]).await == ("waiting".to_owned(), 1, false)
    })
    .await;
    rig.assert_books().await;
}

#[tokio::test]
async fn batches_that_are_timed_for_later_are_not_read_each_second() {
    let rig = Rig::new().await;
    let tenant = rig.tenant().await;
    let first = new_batch_id();
    sqlx::query(
        "insert into batches (tenant_id, id, month, kind, lane, classification, content_id, sender_id, state, announce_after, size, queued)
         select $1, (left(replace($2::text, '-', ''), 23) || lpad(to_hex(n * 512), 9, '0'))::uuid, $3, 'transactional', 'bulk',
                'operational', $4, $5, 'timed', case n when 1 then now() else now() + interval '1 day' end, 1, 1
         from generate_series(1, 5000) n",
    )
    .bind(tenant.id)
    .bind(first)
    .bind(schemas::month_of(first))
    .bind(tenant.content)
    .bind(tenant.sender)
    .execute(&rig.pool)
    .await
    .unwrap();
    let owner = sqlx::PgPool::connect(&rig.database.url()).await.unwrap();
    sqlx::raw_sql("analyze batches").execute(&owner).await.unwrap();
    let statement = include_str!("../../../shared/ledger/queries/dispatch/reannounce_batches.sql");
    let plan: serde_json::Value =
        sqlx::query_scalar(sqlx::AssertSqlSafe(format!("explain (analyze, format json)\n{statement}")))
            .bind(256_i64)
            .bind(60.0)
            .bind(10.0)
            .fetch_one(&mut *PreparedPool::new(&rig.pool, 1).begin().await.unwrap())
            .await
            .unwrap();
    let in_vain = rows_in_vain(&plan);
    assert!(in_vain < 100.0, "{in_vain} rows were looked at in vain: {plan:#}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_with_nothing_due_is_laid_to_rest_until_it_has() {
    let rig = Rig::new().await;
    let batch = deferred(&rig, TimeDelta::minutes(40), "announced").await;
    start(&rig, &[]).await;
    until("resting", async || state_of(&rig, batch).await == ("resting".to_owned(), 1, true)).await;
    rig.assert_books().await;
    assert_eq!(rig.held(stream::RESOLVED).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_campaign_mails_nobody_more_and_is_completed_with_its_counts() {
    let rig = Rig::new().await;
    let tenant = rig.tenant().await;
    let campaign = launched(&rig, &tenant, 1_300).await;
    let deps = start(&rig, &["--audience-backlog", "500"]).await;
    until("one batch is dispatched", async || {
        rig.number("select count(*) from batches where state = 'announced'").await == 1
    })
    .await;
    // Of the one in flight, one is sent, one is fenced, one is deferred.
    sqlx::query(
        "with picked as (select id, row_number() over (order by id) n from sends where month is not null)
         update sends s set state = case p.n when 1 then 'sent' when 2 then 'fenced' else 'deferred' end,
                            next_attempt_at = case p.n when 3 then now() + interval '1 hour' end
         from picked p where p.id = s.id and p.n <= 3",
    )
    .execute(&deps.pool)
    .await
    .unwrap();
    sqlx::query("update batches set queued = queued - 3, sent = 1, fenced = 1, deferred = 1 where state = 'announced'")
        .execute(&deps.pool)
        .await
        .unwrap();
    stage_rig::run!(&rig.pool, "update campaigns set status = 'cancelled' where id = $1", [campaign]);
    until("all that is not in a worker's hands is cancelled", async || {
        rig.number("select coalesce(sum(cancelled), 0) from batches").await == 1_298
    })
    .await;
    rig.assert_books().await;
    assert_eq!(
        rig.number("select count(*) from campaigns where completed_at is not null").await,
        0,
        "one is still fenced"
    );
    // The worker gives it back.
    run(&rig, "update sends set state = 'queued' where state = 'fenced'").await;
    run(&rig, "update batches set fenced = 0, queued = 1 where fenced = 1").await;
    until("completed", async || {
        rig.number("select count(*) from campaigns where completed_at is not null and status = 'cancelled'").await == 1
    })
    .await;
    rig.assert_books().await;
    let counts: serde_json::Value =
        sqlx::query_scalar("select counts from campaigns").fetch_one(&rig.pool).await.unwrap();
    assert_eq!((counts["cancelled"].as_i64(), counts["sent"].as_i64()), (Some(1_299), Some(1)));
    assert_eq!(
        rig.number("select count(*) from sends where state = 'cancelled' and reason = 'campaign_cancelled' and decided_at is not null")
            .await,
        1_299
    );
    assert_eq!(
        rig.number("select sum(count)::bigint from rollups where kind = 'campaign' and event = 'skipped'").await,
        1_299
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_campaign_is_sent_when_nothing_of_it_is_open() {
    let rig = Rig::new().await;
    let tenant = rig.tenant().await;
    launched(&rig, &tenant, 700).await;
    start(&rig, &[]).await;
    until("dispatched", async || rig.number("select count(*) from batches where state = 'announced'").await == 2).await;
    let finish = "update batches set state = 'done', announce_after = null, done_at = now(), sent = queued, queued = 0
                  where id = (select min(id::text)::uuid from batches where state = 'announced')";
    run(&rig, "update sends set state = 'sent'").await;
    run(&rig, finish).await;
    assert_eq!(rig.number("select count(*) from campaigns where status = 'sending'").await, 1);
    run(&rig, finish).await;
    until("sent", async || {
        rig.number("select count(*) from campaigns where status = 'sent' and (counts ->> 'sent')::int = 700").await == 1
    })
    .await;
    rig.assert_books().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_quota_that_is_nearly_used_up_is_told_once_in_each_period() {
    let rig = Rig::new().await;
    let (near, far) = (rig.tenant().await, rig.tenant().await);
    for (tenant, used) in [(&near, 80_i64), (&far, 79)] {
        stage_rig::run!(
            &rig.pool,
            "insert into send_limits (tenant_id, monthly, daily) values ($1, 1000, 100)",
            [tenant.id]
        );
        sqlx::query("insert into send_usage (tenant_id, day, shard, used) values ($1, (now() at time zone 'utc')::date, -1, $2)")
            .bind(tenant.id)
            .bind(used)
            .execute(&rig.pool)
            .await
            .unwrap();
    }
    let sweep = audience::WarnQuotas { pool: rig.pool.clone(), defaults: QuotaDefaults::default() };
    let (one, other) = tokio::join!(sweep.sweep(), sweep.sweep());
    assert_eq!(one.unwrap() + other.unwrap(), 1, "of two processes one tells it");
    assert_eq!(sweep.sweep().await.unwrap(), 0, "told once");
    let (tenant, data): (Uuid, serde_json::Value) =
        sqlx::query_as("select tenant_id, data - 'starts_on' from notices where type = 'quota.near'")
            .fetch_one(&rig.pool)
            .await
            .unwrap();
    assert_eq!((tenant, data), (near.id, serde_json::json!({"period": "day", "limit": 100, "used": 80})));
    run(&rig, "update send_usage set used = 900").await;
    assert_eq!(sweep.sweep().await.unwrap(), 3, "both tenants by the month, the second by its day");
}

#[tokio::test]
async fn the_largest_limit_keeps_no_tenant_from_its_warning() {
    let rig = Rig::new().await;
    let (near, unlimited) = (rig.tenant().await, rig.tenant().await);
    for (tenant, limit) in [(&near, 100), (&unlimited, i64::MAX)] {
        let sql = "insert into send_limits (tenant_id, daily) values ($1, $2)";
        stage_rig::run!(&rig.pool, sql, [tenant.id, limit]);
        let sql = "insert into send_usage (tenant_id, day, shard, used) values ($1, (now() at time zone 'utc')::date, -1, 80)";
        stage_rig::run!(&rig.pool, sql, [tenant.id]);
    }
    let sweep = audience::WarnQuotas { pool: rig.pool.clone(), defaults: QuotaDefaults::default() };
    assert_eq!(sweep.sweep().await.unwrap(), 1);
    let told: Vec<Uuid> = sqlx::query_scalar("select tenant_id from notices where type = 'quota.near'")
        .fetch_all(&rig.pool)
        .await
        .unwrap();
    assert_eq!(told, [near.id]);
}

#[tokio::test]
async fn batches_that_are_done_are_not_read_to_complete_a_campaign() {
    let rig = Rig::new().await;
    let tenant = rig.tenant().await;
    let list = rig.audience(&tenant, "list", &[]).await;
    let (over, open) = (rig.campaign(&tenant, list).await, rig.campaign(&tenant, list).await);
    for (campaign, state) in [(over, "done"), (open, "waiting")] {
        let first = new_batch_id();
        running(&rig, campaign, first, false).await;
        sqlx::query(
            "insert into batches (tenant_id, id, month, kind, lane, classification, campaign_id, content_id, sender_id, state, done_at,
                                  size, queued, sent)
             select $1, (left(replace($2::text, '-', ''), 23) || lpad(to_hex(n * 512), 9, '0'))::uuid, $3, 'campaign', 'bulk', 'marketing',
                    $4, $5, $6, $7, case $7 when 'done' then now() end, 1, case $7 when 'done' then 0 else 1 end,
                    case $7 when 'done' then 1 else 0 end
             from generate_series(1, 3000) n",
        )
        .bind(tenant.id)
        .bind(first)
        .bind(schemas::month_of(first))
        .bind(campaign)
        .bind(tenant.content)
        .bind(tenant.sender)
        .bind(state)
        .execute(&rig.pool)
        .await
        .unwrap();
    }
    let owner = sqlx::PgPool::connect(&rig.database.url()).await.unwrap();
    sqlx::raw_sql("analyze campaigns, batches").execute(&owner).await.unwrap();
    let statement = include_str!("../../queries/lock_finished_campaigns.sql").replace("$1", "50");
    let plan: serde_json::Value =
        sqlx::query_scalar(sqlx::AssertSqlSafe(format!("explain (analyze, format json)\n{statement}")))
            .fetch_one(&rig.pool)
            .await
            .unwrap();
    let in_vain = rows_in_vain(&plan);
    assert!(in_vain < 100.0, "{in_vain} rows were looked at in vain: {plan:#}");
    let found: Vec<(Uuid, Uuid)> = sqlx::query_as(sqlx::AssertSqlSafe(statement)).fetch_all(&rig.pool).await.unwrap();
    assert_eq!(found, [(tenant.id, over)]);
}
