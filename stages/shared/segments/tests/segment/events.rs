//! Facts by contact: kept with the sends, whoever writes them; and which sends are read.

use chrono::{NaiveDate, TimeDelta, Utc};
use schemas::{SendId, month_of, new_batch_id};
use serde_json::json;
use stage_rig::{Rig, Tenant, until};
use uuid::Uuid;

use crate::{insert_sent, rig, select};

async fn send(rig: &Rig, tenant: &Tenant, id: Uuid, contact: Uuid, sent_days_ago: i64) {
    insert_sent(rig, tenant, id, contact, Utc::now() - TimeDelta::days(sent_days_ago)).await;
}

async fn facts(rig: &Rig) -> Vec<(String, bool, bool)> {
    sqlx::query_as(
        "select f.fact, f.occurred_at = coalesce(s.opened_at, s.bounced_at), f.human_at is not null
         from contact_facts f join sends s on s.tenant_id = f.tenant_id and s.id = f.send_id order by 1",
    )
    .fetch_all(&rig.pool)
    .await
    .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_facts_of_a_contact_follow_those_of_its_sends() {
    let (rig, tenant) = rig().await;
    let people = rig.people(&tenant, 1).await;
    let id = new_batch_id();
    send(&rig, &tenant, id, people[0].id, 3).await;
    let run = |sql: &'static str| sqlx::query(sql).execute(&rig.pool);
    run("update sends set opened_at = now() - interval '2 days'").await.unwrap();
    assert_eq!(facts(&rig).await, [("opened".to_owned(), true, false)]);
    // Told to have been earlier, and by a person.
    run("update sends set opened_at = opened_at - interval '1 hour', human_opened_at = now()").await.unwrap();
    assert_eq!(facts(&rig).await, [("opened".to_owned(), true, true)]);
    // What is no fact changes nothing.
    run("update sends set attempts = 3, bounced_at = bounced_at").await.unwrap();
    run("update sends set opened_at = null, human_opened_at = null, bounced_at = now()").await.unwrap();
    assert_eq!(facts(&rig).await, [("bounced".to_owned(), true, false)]);
    run("update sends set bounced_at = null, state = 'queued'").await.unwrap();
    assert_eq!(facts(&rig).await, []);
}

/// A month's partition of the past.
async fn partition(rig: &Rig, month: NaiveDate) {
    let pool = sqlx::PgPool::connect(&rig.database.url()).await.unwrap();
    let next = month + chrono::Months::new(1);
    sqlx::query(sqlx::AssertSqlSafe(format!(
        "create table if not exists sends_{} partition of sends for values from ('{month}') to ('{next}')",
        month.format("%Y_%m")
    )))
    .execute(&pool)
    .await
    .unwrap();
}

/// An id that was made so many days ago.
fn id_of(days_ago: i64) -> Uuid {
    let at = Utc::now() - TimeDelta::days(days_ago);
    let stamp = uuid::Timestamp::from_unix(uuid::NoContext, u64::try_from(at.timestamp()).unwrap(), 0);
    SendId(Uuid::new_v7(stamp)).batch()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mail_counts_from_the_time_it_was_sent() {
    let (rig, tenant) = rig().await;
    let people = rig.people(&tenant, 4).await;
    let list = rig.audience(&tenant, "list", &people).await;
    let (paused, done) = (rig.campaign(&tenant, list).await, rig.campaign(&tenant, list).await);
    // Launched 100 days ago and paused until yesterday; launched and over 60 days ago; of no campaign, 5 and 40 days ago.
    let sends = [(id_of(100), 1), (id_of(60), 60), (id_of(5), 5), (id_of(40), 40)];
    for ((id, sent), person) in sends.iter().zip(&people) {
        partition(&rig, month_of(*id)).await;
        send(&rig, &tenant, *id, person.id, *sent).await;
    }
    for (campaign, id, completed) in
        [(paused, sends[0].0, None), (done, sends[1].0, Some(Utc::now() - TimeDelta::days(59)))]
    {
        sqlx::query("update campaigns set launch_prefix = $2, month = $3, completed_at = $4 where id = $1")
            .bind(campaign)
            .bind(&id.simple().to_string()[..23])
            .bind(month_of(id))
            .bind(completed)
            .execute(&rig.pool)
            .await
            .unwrap();
    }
    let sent = |days: i64| json!({"event": "email.sent", "within_days": days});
    assert_eq!(select(&rig, &tenant, &sent(7)).await, [people[0].id, people[2].id]);
    assert_eq!(select(&rig, &tenant, &sent(45)).await, [people[0].id, people[2].id, people[3].id]);
    assert_eq!(select(&rig, &tenant, &json!({"event": "email.delivered"})).await.len(), 4);
    let of = |campaign: Uuid| json!({"event": "email.sent", "campaign_id": campaign});
    assert_eq!(select(&rig, &tenant, &of(done)).await, [people[1].id]);
    assert_eq!(
        select(&rig, &tenant, &json!({"not": {"event": "email.sent", "within_days": 30}})).await,
        [people[1].id, people[3].id]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mail_is_delivered_when_reports_count_it() {
    let (rig, tenant) = rig().await;
    let people = rig.people(&tenant, 5).await;
    let changes = [
        "update sends set provider = 'smtp' where id = $1",
        "update sends set provider = 'smtp', delivered_at = now() where id = $1",
        "update sends set provider = 'ses' where id = $1",
        "update sends set provider = 'ses', delivered_at = now() where id = $1",
        "update sends set provider = 'ses', delivered_at = now(), bounced_at = now() where id = $1",
    ];
    for (change, person) in changes.into_iter().zip(&people) {
        let id = new_batch_id();
        send(&rig, &tenant, id, person.id, 5).await;
        sqlx::query(change).bind(id).execute(&rig.pool).await.unwrap();
    }
    let delivered = json!({"event": "email.delivered"});
    assert_eq!(select(&rig, &tenant, &delivered).await, [people[0].id, people[1].id, people[3].id]);
    // A relay's late report does not change when its mail was delivered.
    let lately = json!({"event": "email.delivered", "within_days": 3});
    assert_eq!(select(&rig, &tenant, &lately).await, [people[3].id]);
}

#[tokio::test(flavor = "multi_thread")]
async fn mail_to_a_merged_contact_counts_for_the_one_that_is_left() {
    let (rig, tenant) = rig().await;
    let people = rig.people(&tenant, 3).await;
    let list = rig.audience(&tenant, "list", &people).await;
    let (campaign, id) = (rig.campaign(&tenant, list).await, new_batch_id());
    sqlx::query("update campaigns set launch_prefix = $2, month = $3 where id = $1")
        .bind(campaign)
        .bind(&id.simple().to_string()[..23])
        .bind(month_of(id))
        .execute(&rig.pool)
        .await
        .unwrap();
    send(&rig, &tenant, id, people[0].id, 3).await;
    send(&rig, &tenant, new_batch_id(), people[1].id, 3).await;
    sqlx::query("update contacts set status = 'merged', merged_into = $2 where id = $1")
        .bind(people[0].id)
        .bind(people[1].id)
        .execute(&rig.pool)
        .await
        .unwrap();
    // The recipient of the old mail follows its link after the merge.
    sqlx::query("update sends set clicked_at = now(), human_clicked_at = now() where id = $1")
        .bind(id)
        .execute(&rig.pool)
        .await
        .unwrap();
    for event in ["email.sent", "email.delivered", "email.clicked"] {
        let of_campaign = json!({"event": event, "campaign_id": campaign});
        assert_eq!(select(&rig, &tenant, &of_campaign).await, [people[1].id], "{event}");
        assert_eq!(select(&rig, &tenant, &json!({"not": of_campaign})).await, [people[2].id], "{event}");
    }
    let twice = json!({"event": "email.sent", "op": "exactly", "count": 2});
    assert_eq!(select(&rig, &tenant, &twice).await, [people[1].id]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fact_recorded_while_a_merge_runs_counts_for_the_one_that_is_left() {
    let (rig, tenant) = rig().await;
    let people = rig.people(&tenant, 2).await;
    send(&rig, &tenant, new_batch_id(), people[0].id, 3).await;
    let mut merging = rig.pool.begin().await.unwrap();
    sqlx::query("select from contacts for update").execute(&mut *merging).await.unwrap();
    sqlx::query("update contacts set status = 'merged', merged_into = $2 where id = $1")
        .bind(people[0].id)
        .bind(people[1].id)
        .execute(&mut *merging)
        .await
        .unwrap();
    let pool = rig.pool.clone();
    let recording = tokio::spawn(async move {
        sqlx::query("update sends set clicked_at = now(), human_clicked_at = now()").execute(&pool).await
    });
    until("the fact waits for the merge", async || {
        let waiting = "select count(*) from pg_locks l join pg_stat_activity a using (pid)
                       where a.datname = current_database() and not l.granted";
        rig.number(waiting).await == 1
    })
    .await;
    merging.commit().await.unwrap();
    recording.await.unwrap().unwrap();
    assert_eq!(select(&rig, &tenant, &json!({"event": "email.clicked"})).await, [people[1].id]);
}

#[tokio::test(flavor = "multi_thread")]
async fn as_many_days_as_a_rule_may_name_reach_back_to_every_mail() {
    let (rig, tenant) = rig().await;
    let people = rig.people(&tenant, 1).await;
    send(&rig, &tenant, id_of(1), people[0].id, 1).await;
    for days in [20_000, 20_800, 36_500] {
        assert_eq!(select(&rig, &tenant, &json!({"event": "email.sent", "within_days": days})).await, [people[0].id]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn mail_that_waited_in_a_pause_counts_from_the_time_it_was_sent() {
    let (rig, tenant) = rig().await;
    let people = rig.people(&tenant, 1).await;
    let id = id_of(40);
    partition(&rig, month_of(id)).await;
    send(&rig, &tenant, id, people[0].id, 1).await;
    let rule = json!({"event": "email.sent", "within_days": 7});
    assert!(select(&rig, &tenant, &rule).await.is_empty(), "without a pause no mail waits for so long");
    // Pauses by the days ago when they began and ended.
    for (pauses, is_read) in [
        (vec![(40, 1)], true),
        (vec![(40, 14)], true),
        (vec![(300, 100)], false),
        (vec![(300, 100), (2, 1)], false),
        (vec![(40, 20), (18, 12)], true),
        (vec![(40, 25), (13, 12)], false),
    ] {
        let (began, ended): (Vec<i32>, Vec<i32>) = pauses.iter().copied().unzip();
        sqlx::query(
            "update tenants set pauses = (
                 select range_agg(tstzrange(now() - make_interval(days => w.began), now() - make_interval(days => w.ended)))
                 from unnest($2::integer[], $3::integer[]) as w (began, ended))
             where id = $1",
        )
        .bind(tenant.id)
        .bind(began)
        .bind(ended)
        .execute(&rig.pool)
        .await
        .unwrap();
        assert_eq!(!select(&rig, &tenant, &rule).await.is_empty(), is_read, "{pauses:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn mail_that_waited_for_the_frequency_cap_counts_from_the_time_it_was_sent() {
    let (rig, tenant) = rig().await;
    let people = rig.people(&tenant, 1).await;
    let id = id_of(25);
    partition(&rig, month_of(id)).await;
    send(&rig, &tenant, id, people[0].id, 5).await;
    let rule = json!({"event": "email.sent", "within_days": 7});
    assert!(select(&rig, &tenant, &rule).await.is_empty(), "without a cap no mail waits for so long");
    sqlx::query("update tenants set frequency_cap_messages = 1, frequency_cap_days = 30 where id = $1")
        .bind(tenant.id)
        .execute(&rig.pool)
        .await
        .unwrap();
    assert_eq!(select(&rig, &tenant, &rule).await, [people[0].id]);
}
