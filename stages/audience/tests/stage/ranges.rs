//! A large audience is written to the ledger in ranges.

use chrono::{DateTime, Utc};
use ledger::requeue::{RequeueScope, RequeuedWork};
use schemas::{LaunchId, RequestAnnounced};
use stage_rig::{Person, Rig, Tenant, until};
use uuid::Uuid;

use crate::{materialized, run, start};

/// A launch with the digest of a pinned audience of so many contacts.
async fn pinned_launch(rig: &Rig, tenant: &Tenant, contacts: usize) -> (Uuid, RequestAnnounced, Vec<Person>) {
    let people = rig.people(tenant, contacts).await;
    let list = rig.audience(tenant, "list", &people).await;
    let campaign = rig.campaign(tenant, list).await;
    let request = rig.launch_request_of(tenant, campaign, &people, 20).await;
    (campaign, request, people)
}

/// As a process left it that died after the first range: twenty contacts have a send.
async fn after_one_range(rig: &Rig, tenant: &Tenant, campaign: Uuid, people: &[Person]) -> LaunchId {
    let launch = LaunchId::fresh();
    run(rig, "delete from launch_audiences where part < 1").await;
    sqlx::query(
        "with begun as (
             update campaigns set launch_prefix = $2, month = $3, launched_at = now() - interval '1 minute' where id = $1
         ), batch as (
             insert into batches (tenant_id, id, month, kind, lane, classification, campaign_id, content_id, sender_id, size, queued)
             select tenant_id, $4, $3, 'campaign', 'bulk', classification, id, content_id, sender_profile_id, 20, 20
             from campaigns where id = $1
         )
         insert into sends (tenant_id, id, month, campaign_id, contact_id)
         select $5, (left($4::text, 32) || lpad(to_hex(place - 1), 4, '0'))::uuid, $3, $1, contact
         from unnest($6::uuid[]) with ordinality as p (contact, place)",
    )
    .bind(campaign)
    .bind(launch.prefix())
    .bind(launch.month())
    .bind(launch.batch(0))
    .bind(tenant.id)
    .bind(people[..20].iter().map(|person| person.id).collect::<Vec<_>>())
    .execute(&rig.pool)
    .await
    .unwrap();
    launch
}

#[tokio::test(flavor = "multi_thread")]
async fn a_launch_in_ranges_writes_everybody_once_and_is_handled_when_all_are_written() {
    let rig = Rig::new().await;
    let tenant = rig.tenant().await;
    let (_, request, people) = pinned_launch(&rig, &tenant, 49).await;
    start(&rig, &[]).await;
    rig.ring(std::slice::from_ref(&request), "1").await;
    materialized(&rig).await;
    let contacts: Vec<Uuid> =
        sqlx::query_scalar("select contact_id from sends order by id").fetch_all(&rig.pool).await.unwrap();
    assert_eq!(contacts, people.iter().map(|person| person.id).collect::<Vec<_>>());
    let sizes: Vec<i32> =
        sqlx::query_scalar("select size from batches order by id").fetch_all(&rig.pool).await.unwrap();
    assert_eq!(sizes, [20, 20, 9]);
    let (state, outcome): (String, String) =
        sqlx::query_as("select state, outcome from requests").fetch_one(&rig.pool).await.unwrap();
    assert_eq!((state.as_str(), outcome.as_str()), ("handled", "materialized"));
    rig.assert_books().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_launch_goes_on_after_a_crash_where_its_last_range_ended() {
    let rig = Rig::new().await;
    let tenant = rig.tenant().await;
    let (campaign, request, people) = pinned_launch(&rig, &tenant, 30).await;
    let launch = after_one_range(&rig, &tenant, campaign, &people).await;
    let began: DateTime<Utc> =
        sqlx::query_scalar("select launched_at from campaigns").fetch_one(&rig.pool).await.unwrap();
    start(&rig, &[]).await;
    rig.ring(std::slice::from_ref(&request), "1").await;
    materialized(&rig).await;
    let batches: Vec<(Uuid, i32)> =
        sqlx::query_as("select id, size from batches order by id").fetch_all(&rig.pool).await.unwrap();
    assert_eq!(batches, [(launch.batch(0), 20), (launch.batch(1), 10)]);
    assert_eq!(rig.number("select count(distinct contact_id) from sends").await, 30);
    let launched_at: DateTime<Utc> =
        sqlx::query_scalar("select launched_at from campaigns").fetch_one(&rig.pool).await.unwrap();
    assert_eq!(launched_at, began);
    rig.assert_books().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_launch_of_which_a_range_could_not_be_written_goes_on_when_it_is_requeued() {
    let rig = Rig::new().await;
    let tenant = rig.tenant().await;
    let (campaign, request, people) = pinned_launch(&rig, &tenant, 30).await;
    after_one_range(&rig, &tenant, campaign, &people).await;
    // As its login, which owns the tables.
    let mut owner = rig.pool.acquire().await.unwrap().detach();
    let poison = format!("alter table sends add constraint poison check (contact_id <> '{}') not valid", people[25].id);
    sqlx::raw_sql(sqlx::AssertSqlSafe(format!("set role none; {poison}"))).execute(&mut owner).await.unwrap();
    start(&rig, &[]).await;
    rig.ring(std::slice::from_ref(&request), "1").await;
    until("it is rejected", async || rig.number("select count(*) from requests where state = 'rejected'").await == 1)
        .await;
    sqlx::raw_sql("alter table sends drop constraint poison").execute(&mut owner).await.unwrap();
    let scope = RequeueScope { tenant: tenant.id, work: RequeuedWork::Campaign(campaign) };
    assert_eq!(ledger::requeue::requeue(&rig.pool, &scope, false).await.unwrap().requests, 1);
    materialized(&rig).await;
    assert_eq!(rig.number("select count(distinct contact_id) from sends").await, 30);
    rig.assert_books().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_campaign_that_is_cancelled_between_two_ranges_gets_no_further_one() {
    let rig = Rig::new().await;
    let tenant = rig.tenant().await;
    let (campaign, request, people) = pinned_launch(&rig, &tenant, 30).await;
    after_one_range(&rig, &tenant, campaign, &people).await;
    run(&rig, "update campaigns set status = 'cancelled'").await;
    start(&rig, &[]).await;
    rig.ring(std::slice::from_ref(&request), "1").await;
    until("the campaign is complete", async || {
        rig.number("select count(*) from campaigns where completed_at is not null").await == 1
            && rig.number("select count(*) from requests where outcome = 'not_launched'").await == 1
    })
    .await;
    assert_eq!(rig.number("select count(*) from sends where state = 'cancelled'").await, 20);
    assert_eq!(rig.number("select count(*) from sends").await, 20);
    assert_eq!(rig.number("select count(*) from launch_audiences").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_range_is_dispatched_before_the_last_is_written() {
    let rig = Rig::new().await;
    let tenant = rig.tenant().await;
    let (campaign, request, people) = pinned_launch(&rig, &tenant, 30).await;
    after_one_range(&rig, &tenant, campaign, &people).await;
    // Nobody takes the next range: the rest of the audience is held.
    let mut held = rig.pool.begin().await.unwrap();
    sqlx::query("select from launch_audiences for update").execute(&mut *held).await.unwrap();
    start(&rig, &[]).await;
    rig.ring(std::slice::from_ref(&request), "1").await;
    until("dispatched", async || rig.number("select count(*) from batches where state = 'announced'").await == 1).await;
    assert_eq!(rig.number("select count(*) from campaigns where materialized_at is not null").await, 0);
    held.rollback().await.unwrap();
    materialized(&rig).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_range_is_announced_again_within_a_minute() {
    let rig = Rig::new().await;
    let tenant = rig.tenant().await;
    let (_, request, _) = pinned_launch(&rig, &tenant, 30).await;
    // The last range cannot be taken: nothing is announced after the first.
    let mut held = rig.pool.begin().await.unwrap();
    sqlx::query("select from launch_audiences where part = 1 for update").execute(&mut *held).await.unwrap();
    start(&rig, &[]).await;
    rig.ring(std::slice::from_ref(&request), "1").await;
    until("the first range is written", async || rig.number("select count(*) from sends").await == 20).await;
    let wait = rig.number("select extract(epoch from announce_after - now())::bigint from requests").await;
    assert!(wait <= 60, "{wait}");
    held.rollback().await.unwrap();
    materialized(&rig).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_is_archived_while_ranges_are_written_has_a_send_and_who_was_before_has_none() {
    let rig = Rig::new().await;
    let tenant = rig.tenant().await;
    let people = rig.people(&tenant, 30).await;
    let list = rig.audience(&tenant, "list", &people).await;
    let campaign = rig.campaign(&tenant, list).await;
    let request = rig.launch_request_of(&tenant, campaign, &people, 20).await;
    run(&rig, "update requests set payload = payload - 'digest'").await;
    after_one_range(&rig, &tenant, campaign, &people).await;
    for (person, archived) in [(&people[28], "2 minutes"), (&people[29], "10 seconds")] {
        sqlx::query("update contacts set status = 'archived', updated_at = now() - $2::interval where id = $1")
            .bind(person.id)
            .bind(archived)
            .execute(&rig.pool)
            .await
            .unwrap();
    }
    start(&rig, &[]).await;
    rig.ring(std::slice::from_ref(&request), "1").await;
    materialized(&rig).await;
    let last: Uuid =
        sqlx::query_scalar("select contact_id from sends order by id desc limit 1").fetch_one(&rig.pool).await.unwrap();
    assert_eq!((last, rig.number("select count(*) from sends").await), (people[29].id, 29));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_launch_of_another_tenant_does_not_wait_for_the_last_range() {
    let rig = Rig::new().await;
    let (large, small) = (rig.tenant().await, rig.tenant().await);
    let (_, first, _) = pinned_launch(&rig, &large, 200).await;
    let people = rig.people(&small, 2).await;
    let list = rig.audience(&small, "list", &people).await;
    let campaign = rig.campaign(&small, list).await;
    let second = rig.launch_request(&small, campaign).await;
    rig.ring(&[first, second], "1").await;
    start(&rig, &[]).await;
    until("both are handled", async || rig.number("select count(*) from requests where state = 'handled'").await == 2)
        .await;
    let order: Vec<Uuid> =
        sqlx::query_scalar("select tenant_id from requests order by handled_at").fetch_all(&rig.pool).await.unwrap();
    assert_eq!(order, [small.id, large.id]);
}
