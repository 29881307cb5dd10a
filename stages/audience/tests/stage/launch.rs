//! Launches: the audience in the ledger, once.

use chrono::{TimeDelta, Utc};
use ledger::requeue::{RequeueScope, RequeuedWork, requeue};
use schemas::{LaunchId, RequestKind, SendId, new_id, subjects::stream};
use stage_rig::{Rig, Tenant, settings, until};
use uuid::Uuid;

use crate::{materialized, pause_ledger, release_ledger, run, start};

async fn request_is(rig: &Rig, request: Uuid, state: &str) -> bool {
    let found: String = sqlx::query_scalar("select state from requests where id = $1")
        .bind(request)
        .fetch_one(&rig.pool)
        .await
        .unwrap();
    found == state
}

/// Starts the stage, and has it handle the launch of this campaign. Answers the outcome.
async fn launch(rig: &Rig, tenant: &Tenant, campaign: Uuid) -> String {
    let request = rig.launch_request(tenant, campaign).await;
    start(rig, &[]).await;
    rig.ring(std::slice::from_ref(&request), "1").await;
    until("handled", async || !request_is(rig, request.request_id, "accepted").await).await;
    sqlx::query_scalar("select outcome from requests").fetch_one(&rig.pool).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_audience_is_materialized_once_by_two_processes_that_hear_of_it_many_times() {
    let rig = Rig::new().await;
    let tenant = rig.tenant().await;
    let people = rig.people(&tenant, 1_203).await;
    let list = rig.audience(&tenant, "list", &people).await;
    let campaign = rig.campaign(&tenant, list).await;
    let mut requests = Vec::new();
    for _ in 0..4 {
        requests.push(rig.launch_request(&tenant, campaign).await);
    }
    for ring in 0..5 {
        rig.ring(&requests, &ring.to_string()).await;
    }
    for _ in 0..2 {
        start(&rig, &["--audience-launches", "2"]).await;
    }
    until("all requests are handled and every ring is taken", async || {
        rig.number("select count(*) from requests where state = 'handled'").await == 4
            && rig.held(stream::ACCEPTED).await == 0
    })
    .await;
    assert_eq!(rig.number("select count(*) from sends").await, 1_203);
    assert_eq!(rig.number("select count(*) from batches").await, 3);
    assert!(rig.dead().await.is_empty());
    rig.assert_books().await;

    let sends: Vec<(Uuid, Uuid)> =
        sqlx::query_as("select id, contact_id from sends order by id").fetch_all(&rig.pool).await.unwrap();
    assert_eq!(
        sends.iter().map(|(_, contact)| *contact).collect::<Vec<_>>(),
        people.iter().map(|person| person.id).collect::<Vec<_>>(),
        "sends are in the order of contacts"
    );
    let (prefix, size): (String, Vec<i32>) = sqlx::query_as(
        "select launch_prefix, array(select size from batches order by id) from campaigns where id = $1",
    )
    .bind(campaign)
    .fetch_one(&rig.pool)
    .await
    .unwrap();
    assert_eq!(size, [500, 500, 203]);
    assert_eq!(prefix.len(), LaunchId::fresh().prefix().len());
    assert!(sends.iter().all(|(id, _)| id.simple().to_string().starts_with(&prefix)));
    assert_eq!(SendId(sends[1_202].0).ordinal(), 202);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_suppressed_are_materialized_for_their_reason_and_the_archived_are_not() {
    let rig = Rig::new().await;
    let tenant = rig.tenant().await;
    let people = rig.people(&tenant, 3).await;
    rig.suppress(&tenant, &people[0], "complaint", "all").await;
    stage_rig::run!(&rig.pool, "update contacts set status = 'archived' where id = $1", [people[1].id]);
    let list = rig.audience(&tenant, "list", &people).await;
    let campaign = rig.campaign(&tenant, list).await;
    assert_eq!(launch(&rig, &tenant, campaign).await, "materialized");
    let sends: Vec<Uuid> =
        sqlx::query_scalar("select contact_id from sends order by id").fetch_all(&rig.pool).await.unwrap();
    assert_eq!(sends, [people[0].id, people[2].id]);
}

#[tokio::test(flavor = "multi_thread")]
async fn each_time_zone_has_batches_that_wait_for_its_time() {
    let rig = Rig::new().await;
    let tenant = rig.tenant().await;
    let people = rig.people(&tenant, 6).await;
    // A zone that is none counts as none: the tenant's, which is UTC.
    let zones = ["Pacific/Kiritimati", "Etc/GMT+12", "UTC", "Mars/Olympus", "Etc/GMT+12", "UTC"];
    for (person, zone) in people.iter().zip(zones) {
        sqlx::query("update contacts set timezone = $2 where id = $1")
            .bind(person.id)
            .bind(zone)
            .execute(&rig.pool)
            .await
            .unwrap();
    }
    let list = rig.audience(&tenant, "list", &people).await;
    let campaign = rig.campaign(&tenant, list).await;
    // It is that time now where the day begins first.
    sqlx::query(
        "update campaigns set scheduled_for_local = now() at time zone 'utc' + interval '14 hours' where id = $1",
    )
    .bind(campaign)
    .execute(&rig.pool)
    .await
    .unwrap();
    assert_eq!(launch(&rig, &tenant, campaign).await, "materialized");
    let batches: Vec<(bool, i32, Option<i32>)> = sqlx::query_as(
        "select state = 'timed', size, case when due_at = announce_after then round(extract(epoch from announce_after - now()) / 3600)::int end
         from batches order by id",
    )
    .fetch_all(&rig.pool)
    .await
    .unwrap();
    assert_eq!(batches, [(false, 1, None), (true, 3, Some(14)), (true, 2, Some(26))]);
    let contacts: Vec<Uuid> =
        sqlx::query_scalar("select contact_id from sends order by id").fetch_all(&rig.pool).await.unwrap();
    assert_eq!(contacts, [0, 2, 3, 5, 1, 4].map(|at: usize| people[at].id));
    rig.assert_books().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn variants_go_out_by_time_zones_too() {
    let rig = Rig::new().await;
    let tenant = rig.tenant().await;
    let people = rig.people(&tenant, 200).await;
    sqlx::query(
        "update contacts set timezone = 'Etc/GMT+12' where id in (select id from contacts order by id limit 100)",
    )
    .execute(&rig.pool)
    .await
    .unwrap();
    let list = rig.audience(&tenant, "list", &people).await;
    let campaign = rig.campaign(&tenant, list).await;
    sqlx::query(
        "insert into campaign_variants (tenant_id, campaign_id, variant, name, weight, content_id)
         select c.tenant_id, c.id, v, v, 1, c.content_id from campaigns c, unnest(array['A', 'B']) v",
    )
    .execute(&rig.pool)
    .await
    .unwrap();
    run(&rig, "update campaigns set scheduled_for_local = now() at time zone 'utc' + interval '14 hours'").await;
    assert_eq!(launch(&rig, &tenant, campaign).await, "materialized");
    let batches: Vec<(String, Option<String>, i32)> = sqlx::query_as(
        "select state, variant, round(extract(epoch from announce_after - now()) / 3600)::int from batches order by id",
    )
    .fetch_all(&rig.pool)
    .await
    .unwrap();
    let expected = [("A", 14), ("B", 14), ("A", 26), ("B", 26)];
    assert_eq!(batches, expected.map(|(variant, hours)| ("timed".to_owned(), Some(variant.to_owned()), hours)));
    assert_eq!(
        rig.number("select sum(size) from batches where announce_after > now() + interval '20 hours'").await,
        100
    );
    assert_eq!(rig.number("select count(distinct contact_id) from sends").await, 200);
    rig.assert_books().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_campaign_cancelled_before_its_launch_is_handled_mails_nobody_and_is_completed() {
    let rig = Rig::new().await;
    let tenant = rig.tenant().await;
    let people = rig.people(&tenant, 3).await;
    let list = rig.audience(&tenant, "list", &people).await;
    let campaign = rig.campaign(&tenant, list).await;
    run(&rig, "update campaigns set status = 'cancelled'").await;
    assert_eq!(launch(&rig, &tenant, campaign).await, "not_launched");
    until("completed", async || {
        rig.number("select count(*) from campaigns where completed_at is not null and (counts ->> 'sent')::int = 0")
            .await
            == 1
    })
    .await;
    assert_eq!(rig.number("select count(*) from sends").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_campaign_without_an_audience_is_sent_with_zero_counts() {
    let rig = Rig::new().await;
    let tenant = rig.tenant().await;
    let list = rig.audience(&tenant, "list", &[]).await;
    let campaign = rig.campaign(&tenant, list).await;
    assert_eq!(launch(&rig, &tenant, campaign).await, "audience_empty");
    until("sent", async || {
        rig.number(
            "select count(*) from campaigns where status = 'sent' and completed_at is not null and counts is not null",
        )
        .await
            == 1
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scheduled_campaign_starts_when_it_is_due_and_not_before() {
    let rig = Rig::new().await;
    let tenant = rig.tenant().await;
    let people = rig.people(&tenant, 2).await;
    let list = rig.audience(&tenant, "list", &people).await;
    let campaign = rig.campaign(&tenant, list).await;
    let due = Utc::now() + TimeDelta::milliseconds(1_500);
    sqlx::query("update campaigns set status = 'scheduled', scheduled_for = $1")
        .bind(due)
        .execute(&rig.pool)
        .await
        .unwrap();
    let payload = serde_json::json!({ "campaign_id": campaign });
    let request = rig.request(&tenant, RequestKind::CampaignLaunch, new_id(), payload, due).await;
    start(&rig, &[]).await;
    // Somebody rings too early: the request goes on waiting for its time.
    rig.ring(std::slice::from_ref(&request), "early").await;
    until("materialized", async || {
        rig.number("select count(*) from campaigns where status = 'sending' and materialized_at is not null").await == 1
    })
    .await;
    assert_eq!(rig.number("select count(*) from campaigns where materialized_at < scheduled_for").await, 0);
    assert_eq!(rig.number("select count(*) from sends").await, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_launch_begins_when_a_held_ledger_is_released() {
    let rig = Rig::new().await;
    let tenant = rig.tenant().await;
    let people = rig.people(&tenant, 3).await;
    let list = rig.audience(&tenant, "list", &people).await;
    let campaign = rig.campaign(&tenant, list).await;
    let request = rig.launch_request(&tenant, campaign).await;
    run(&rig, "update requests set announcements = 3").await;
    let switches = pause_ledger(&rig).await;
    let mut deps = rig.process();
    deps.runner = deps.runner.with_switches(switches.clone());
    audience::start(&deps, &settings::<audience::Settings>(&[]));
    rig.ring(std::slice::from_ref(&request), "1").await;
    // Until then it is to be announced tomorrow.
    let looked_at =
        "select count(*) from requests where state <> 'accepted' or announce_after < now() + interval '1 hour'";
    until("the launch is looked at", async || rig.number(looked_at).await == 1).await;
    assert_eq!(rig.number("select count(*) from batches").await, 0);
    let waiting =
        "select count(*) from requests where state = 'accepted' and announce_after > now() and announcements = 0";
    assert_eq!(rig.number(waiting).await, 1, "and it is not late");
    release_ledger(&rig, &switches).await;
    until("handled", async || request_is(&rig, request.request_id, "handled").await).await;
    assert_eq!(rig.number("select count(*) from sends").await, 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scheduled_launch_that_was_rejected_starts_when_it_is_requeued() {
    let rig = Rig::new().await;
    let tenant = rig.tenant().await;
    let people = rig.people(&tenant, 2).await;
    let list = rig.audience(&tenant, "list", &people).await;
    let campaign = rig.campaign(&tenant, list).await;
    rig.launch_request(&tenant, campaign).await;
    run(&rig, "update campaigns set status = 'scheduled', scheduled_for = now()").await;
    run(&rig, "update requests set state = 'rejected', outcome = 'ledger', announce_after = null").await;
    start(&rig, &[]).await;
    let scope = RequeueScope { tenant: tenant.id, work: RequeuedWork::Campaign(campaign) };
    assert_eq!(requeue(&rig.pool, &scope, false).await.unwrap().requests, 1);
    materialized(&rig).await;
    assert_eq!(rig.number("select count(*) from sends").await, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn many_launches_of_one_tenant_keep_no_other_waiting() {
    let rig = Rig::new().await;
    let (many, other) = (rig.tenant().await, rig.tenant().await);
    let mut requests = Vec::new();
    for tenant in std::iter::repeat_n(&many, 20).chain([&other]) {
        let list = rig.audience(tenant, "list", &[]).await;
        let campaign = rig.campaign(tenant, list).await;
        requests.push(rig.launch_request(tenant, campaign).await.request_id);
    }
    // All are due, the other tenant's last.
    run(&rig, "update requests set announce_after = now()").await;
    start(&rig, &["--audience-launches", "1"]).await;
    until("all are handled", async || rig.number("select count(*) from requests where state = 'handled'").await == 21)
        .await;
    let first: Vec<Uuid> = sqlx::query_scalar("select tenant_id from requests order by handled_at limit 2")
        .fetch_all(&rig.pool)
        .await
        .unwrap();
    assert!(first.contains(&other.id), "one of each tenant");
    let handled: Vec<Uuid> = sqlx::query_scalar("select id from requests where tenant_id = $1 order by handled_at")
        .bind(many.id)
        .fetch_all(&rig.pool)
        .await
        .unwrap();
    assert_eq!(handled, requests[..20], "the oldest first");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_launch_in_the_hands_of_another_process_is_not_waited_for() {
    let rig = Rig::new().await;
    let tenant = rig.tenant().await;
    let list = rig.audience(&tenant, "list", &[]).await;
    let (held, free) = (rig.campaign(&tenant, list).await, rig.campaign(&tenant, list).await);
    let held = rig.launch_request(&tenant, held).await;
    let free = rig.launch_request(&tenant, free).await;
    let mut other = rig.pool.begin().await.unwrap();
    sqlx::query("select from requests where id = $1 for update")
        .bind(held.request_id)
        .execute(&mut *other)
        .await
        .unwrap();
    start(&rig, &["--audience-launches", "1"]).await;
    rig.ring(&[held.clone(), free.clone()], "1").await;
    until("the free one is handled", async || request_is(&rig, free.request_id, "handled").await).await;
    // The other process has died, or a caller held it: its announcement comes again.
    other.rollback().await.unwrap();
    until("it is handled", async || request_is(&rig, held.request_id, "handled").await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_launch_of_a_campaign_that_names_no_audience_is_rejected_with_its_reason() {
    let rig = Rig::new().await;
    let tenant = rig.tenant().await;
    let list = rig.audience(&tenant, "list", &[]).await;
    let campaign = rig.campaign(&tenant, list).await;
    run(&rig, "update campaigns set audience_mode = 'segment'").await;
    assert_eq!(launch(&rig, &tenant, campaign).await, "audience_unknown");
    assert_eq!(rig.number("select count(*) from requests where state = 'rejected'").await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_launch_of_an_unknown_campaign_is_a_dead_letter_once() {
    let rig = Rig::new().await;
    let tenant = rig.tenant().await;
    let request = rig.launch_request(&tenant, new_id()).await;
    start(&rig, &[]).await;
    rig.ring(std::slice::from_ref(&request), "1").await;
    until("set aside", async || rig.held(stream::DEAD).await == 1).await;
    assert_eq!(rig.dead().await[0].reason, "unknown_campaign");
    assert!(request_is(&rig, request.request_id, "rejected").await);
    assert_eq!(rig.number("select count(*) from requests where announce_after is not null").await, 0);
}
