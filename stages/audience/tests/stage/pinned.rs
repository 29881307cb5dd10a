//! A launch with a digest mails who was in the audience then.

use std::collections::BTreeSet;

use ledger::audience::AudienceSelector;
use ledger::audience::count;
use ledger::audience::pin;
use ledger::merged_mail::lock_owing_campaigns;
use schemas::{Classification, RequestKind, new_id};
use stage_rig::{Rig, until};
use uuid::Uuid;

use crate::{materialized, start};

#[tokio::test(flavor = "multi_thread")]
async fn who_joins_or_leaves_after_a_launch_with_a_digest_changes_nothing() {
    let rig = Rig::new().await;
    let tenant = rig.tenant().await;
    let people = rig.people(&tenant, 30).await;
    let list = rig.audience(&tenant, "list", &people[..20]).await;
    let campaign = rig.campaign(&tenant, list).await;
    let selector = AudienceSelector::List(list);
    let mut tx = rig.pool.begin().await.unwrap();
    let counted = count(&mut tx, tenant.id, &selector, Classification::Marketing).await.unwrap();
    let pinned = pin(&mut tx, tenant.id, &selector, campaign).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!((pinned, pinned.contacts), (counted.members, 20));

    // One leaves the list, one is archived, ten join.
    stage_rig::run!(&rig.pool, "delete from audience_members where contact_id = $1", [people[3].id]);
    stage_rig::run!(&rig.pool, "update contacts set status = 'archived' where id = $1", [people[4].id]);
    sqlx::query("insert into audience_members (tenant_id, audience_id, contact_id) select $1, $2, unnest($3::uuid[])")
        .bind(tenant.id)
        .bind(list)
        .bind(people[20..].iter().map(|person| person.id).collect::<Vec<_>>())
        .execute(&rig.pool)
        .await
        .unwrap();
    let payload = serde_json::json!({"campaign_id": campaign, "digest": counted.digest});
    let request = rig.request(&tenant, RequestKind::CampaignLaunch, new_id(), payload, chrono::Utc::now()).await;
    rig.ring(&[request], "1").await;
    start(&rig, &[]).await;
    materialized(&rig).await;
    let mailed: Vec<Uuid> = sqlx::query_scalar("select contact_id from sends").fetch_all(&rig.pool).await.unwrap();
    let expected: BTreeSet<Uuid> = people[..20].iter().map(|person| person.id).collect();
    assert_eq!((mailed.len(), mailed.into_iter().collect::<BTreeSet<_>>()), (20, expected));
    assert_eq!(rig.number("select count(*) from launch_audiences").await, 0, "nobody needs it any more");
    rig.assert_books().await;
}

#[tokio::test]
async fn a_merge_sees_an_audience_that_is_being_pinned() {
    let rig = Rig::new().await;
    let tenant = rig.tenant().await;
    let people = rig.people(&tenant, 1).await;
    let list = rig.audience(&tenant, "list", &people).await;
    let campaign = rig.campaign(&tenant, list).await;
    sqlx::query("update campaigns set status = 'draft'").execute(&rig.pool).await.unwrap();
    let (mut launch, mut merge) = (rig.pool.begin().await.unwrap(), rig.pool.begin().await.unwrap());
    pin(&mut launch, tenant.id, &AudienceSelector::List(list), campaign).await.unwrap();
    sqlx::query("update campaigns set status = 'sending'").execute(&mut *launch).await.unwrap();
    let launching = async {
        until("the merge to wait for the launch", async || rig.statements_waiting().await > 0).await;
        launch.commit().await.unwrap();
    };
    let (owing, ()) = tokio::join!(lock_owing_campaigns(&mut merge, tenant.id, people[0].id), launching);
    assert_eq!(owing.unwrap(), [campaign]);
}
