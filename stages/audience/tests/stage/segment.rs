//! Campaigns to segments: counted, pinned, launched.

use ledger::audience::AudienceSelector;
use ledger::audience::count;
use ledger::audience::includes;
use ledger::audience::pin;
use ledger::audience::some;
use schemas::{Classification, RequestAnnounced, SkipReason, new_id};
use serde_json::{Value, json};
use sqlx::{Connection, PgConnection, Postgres, Transaction};
use stage_rig::{Person, Rig, Tenant, until};
use uuid::Uuid;

use crate::{materialized, run, start};

async fn segment(rig: &Rig, tenant: &Tenant, rule: &Value) -> Uuid {
    let id = new_id();
    sqlx::query("insert into segments (tenant_id, id, name, rule) values ($1, $2, $2::text, $3)")
        .bind(tenant.id)
        .bind(id)
        .bind(rule)
        .execute(&rig.pool)
        .await
        .unwrap();
    id
}

/// A launched campaign to whoever has a company.
async fn campaign(rig: &Rig, tenant: &Tenant) -> (Uuid, Uuid) {
    let list = rig.audience(tenant, "list", &[]).await;
    let campaign = rig.campaign(tenant, list).await;
    let segment = segment(rig, tenant, &json!({"field": "company", "op": "exists"})).await;
    sqlx::query("update campaigns set audience_mode = 'segment', list_id = null, segment_id = $2 where id = $1")
        .bind(campaign)
        .bind(segment)
        .execute(&rig.pool)
        .await
        .unwrap();
    (campaign, segment)
}

async fn employ(rig: &Rig, people: &[Person]) {
    let ids: Vec<Uuid> = people.iter().map(|person| person.id).collect();
    sqlx::query("update contacts set company = 'Acme' where id = any ($1)")
        .bind(&ids)
        .execute(&rig.pool)
        .await
        .unwrap();
}

async fn mailed(rig: &Rig) -> Vec<Uuid> {
    sqlx::query_scalar("select contact_id from sends order by id").fetch_all(&rig.pool).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_segment_is_counted_as_the_gate_would_judge_it() {
    let rig = Rig::new().await;
    let tenant = rig.tenant().await;
    let people = rig.people(&tenant, 5).await;
    employ(&rig, &people[..3]).await;
    rig.suppress(&tenant, &people[0], "complaint", "all").await;
    rig.suppress(&tenant, &people[4], "complaint", "all").await;
    let (_, segment) = campaign(&rig, &tenant).await;
    let selector = AudienceSelector::Segment(segment);
    let mut db = rig.pool.begin().await.unwrap();
    let counted = count(&mut db, tenant.id, &selector, Classification::Marketing).await.unwrap();
    assert_eq!((counted.total, counted.queued), (3, 2));
    assert_eq!(counted.skipped, [(SkipReason::Complained, 1)]);
    // As the same people on a list.
    let list = AudienceSelector::List(rig.audience(&tenant, "list", &people[..3]).await);
    assert_eq!(count(&mut db, tenant.id, &list, Classification::Marketing).await.unwrap(), counted);
    for (person, expected) in people.iter().zip([true, true, true, false, false]) {
        assert_eq!(includes(&mut db, tenant.id, &selector, person.id).await.unwrap(), expected);
        assert_eq!(includes(&mut db, tenant.id, &list, person.id).await.unwrap(), expected);
    }
    for selector in [&selector, &list] {
        assert_eq!(some(&mut db, tenant.id, selector, 2).await.unwrap().len(), 2);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_launch_mails_the_segment_as_it_is_when_the_audience_is_written_down() {
    let rig = Rig::new().await;
    let tenant = rig.tenant().await;
    let people = rig.people(&tenant, 6).await;
    employ(&rig, &people[..4]).await;
    stage_rig::run!(&rig.pool, "update contacts set status = 'archived' where id = $1", [people[1].id]);
    rig.suppress(&tenant, &people[2], "complaint", "all").await;
    let (campaign, _) = campaign(&rig, &tenant).await;
    let request = rig.launch_request(&tenant, campaign).await;
    employ(&rig, &people[5..]).await;
    start(&rig, &[]).await;
    rig.ring(std::slice::from_ref(&request), "1").await;
    materialized(&rig).await;
    assert_eq!(mailed(&rig).await, [people[0].id, people[2].id, people[3].id, people[5].id]);
    assert_eq!(rig.number("select count(*) from launch_audiences").await, 0);
    rig.assert_books().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pinned_segment_is_mailed_as_it_was_pinned() {
    let rig = Rig::new().await;
    let tenant = rig.tenant().await;
    let people = rig.people(&tenant, 4).await;
    employ(&rig, &people[..2]).await;
    let (campaign, segment) = campaign(&rig, &tenant).await;
    let mut tx = rig.pool.begin().await.unwrap();
    let members = pin(&mut tx, tenant.id, &AudienceSelector::Segment(segment), campaign).await.unwrap();
    assert_eq!(members.contacts, 2);
    tx.commit().await.unwrap();
    employ(&rig, &people[2..]).await;
    let payload = json!({"campaign_id": campaign, "digest": "0".repeat(32)});
    let due = chrono::Utc::now() + chrono::TimeDelta::days(1);
    let request = rig.request(&tenant, schemas::RequestKind::CampaignLaunch, new_id(), payload, due).await;
    start(&rig, &[]).await;
    rig.ring(std::slice::from_ref(&request), "1").await;
    materialized(&rig).await;
    assert_eq!(mailed(&rig).await, [people[0].id, people[1].id]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_launch_to_a_segment_that_is_gone_is_rejected_with_its_reason() {
    let rig = Rig::new().await;
    let tenant = rig.tenant().await;
    let (campaign, _) = campaign(&rig, &tenant).await;
    run(&rig, "update segments set deleted_at = now()").await;
    let request = rig.launch_request(&tenant, campaign).await;
    start(&rig, &[]).await;
    rig.ring(std::slice::from_ref(&request), "1").await;
    until("rejected", async || {
        rig.number("select count(*) from requests where state = 'rejected' and outcome = 'audience_unknown'").await == 1
    })
    .await;
    assert_eq!(rig.number("select count(*) from sends").await, 0);
}

/// A launch of this campaign that has read the segment's rule, and waits for the definitions of fields while `fields` is locked.
async fn launch_that_waits(rig: &Rig, tenant: &Tenant, campaign: Uuid) -> RequestAnnounced {
    let request = rig.launch_request(tenant, campaign).await;
    start(rig, &[]).await;
    rig.ring(std::slice::from_ref(&request), "1").await;
    until("the launch waits", async || {
        rig.number("select count(*) from pg_locks where relation = 'fields'::regclass and not granted").await > 0
    })
    .await;
    request
}

/// Locks the definitions of fields once whoever has read them is done.
async fn lock_fields(owner: &mut PgConnection) -> Transaction<'_, Postgres> {
    let mut held = owner.begin().await.unwrap();
    sqlx::query("lock table fields").execute(&mut *held).await.unwrap();
    held
}

async fn set_rule(rig: &Rig, rule: Value) {
    sqlx::query("update segments set rule = $1").bind(rule).execute(&rig.pool).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_segment_that_changes_between_two_reads_of_its_launch_is_mailed() {
    let rig = Rig::new().await;
    let tenant = rig.tenant().await;
    let people = rig.people(&tenant, 2).await;
    employ(&rig, &people[..1]).await;
    let (campaign, _) = campaign(&rig, &tenant).await;
    let list = rig.audience(&tenant, "list", &[]).await;
    set_rule(&rig, json!({"in_list": list})).await;
    let mut owner = PgConnection::connect(&rig.database.url()).await.unwrap();
    let held = lock_fields(&mut owner).await;
    launch_that_waits(&rig, &tenant, campaign).await;
    set_rule(&rig, json!({"field": "company", "op": "exists"})).await;
    sqlx::query("update audiences set deleted_at = now() where id = $1").bind(list).execute(&rig.pool).await.unwrap();
    held.rollback().await.unwrap();
    until("handled", async || rig.number("select count(*) from requests where state <> 'accepted'").await == 1).await;
    assert_eq!(mailed(&rig).await, [people[0].id]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_campaign_waits_for_a_version_that_can_read_its_segment() {
    let rig = Rig::new().await;
    let tenant = rig.tenant().await;
    let people = rig.people(&tenant, 2).await;
    employ(&rig, &people[..1]).await;
    let (campaign, _) = campaign(&rig, &tenant).await;
    set_rule(&rig, json!({"operator_of_next_year": 1})).await;
    let mut owner = PgConnection::connect(&rig.database.url()).await.unwrap();
    let held = lock_fields(&mut owner).await;
    let request = launch_that_waits(&rig, &tenant, campaign).await;
    held.rollback().await.unwrap();
    lock_fields(&mut owner).await.rollback().await.unwrap();
    set_rule(&rig, json!({"field": "company", "op": "exists"})).await;
    rig.ring(std::slice::from_ref(&request), "2").await;
    until("handled", async || rig.number("select count(*) from requests where state <> 'accepted'").await == 1).await;
    assert_eq!(mailed(&rig).await, [people[0].id]);
}
