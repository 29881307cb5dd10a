//! Repeated, several and unknown batches.

use schemas::{Classification, Resolved, new_batch_id};
use stage_rig::Rig;

use crate::{all_taken, announce, campaign, cleared, decide, start, ten_people};

#[tokio::test(flavor = "multi_thread")]
async fn repeats_and_two_processes_change_nothing_more() {
    let rig = Rig::new().await;
    let (tenant, campaign) = campaign(&rig).await;
    let people = ten_people(&rig, &tenant).await;
    let batch = rig.batch(&tenant, campaign, Classification::Marketing, &people).await;
    for name in ["1", "2", "3", "4", "5"] {
        announce(&rig, &[&batch], name).await;
    }
    start(&rig).await;
    start(&rig).await;
    all_taken(&rig).await;
    rig.assert_books().await;
    assert_eq!(rig.number("select sum(count)::bigint from rollups where event = 'skipped'").await, 9);
    assert_eq!(cleared(&rig).await.len(), 1, "the repeats are one message");
}

#[tokio::test(flavor = "multi_thread")]
async fn batches_of_several_tenants_are_decided_each_by_its_facts() {
    let rig = Rig::new().await;
    let mut batches = Vec::new();
    for at in 0..6 {
        let (tenant, campaign) = campaign(&rig).await;
        let people = rig.people(&tenant, 3).await;
        if at % 2 == 0 {
            rig.suppress(&tenant, &people[1], "complaint", "all").await;
        }
        batches.push(rig.batch(&tenant, campaign, Classification::Marketing, &people).await);
    }
    // The priority lane takes many at once.
    for batch in &mut batches {
        batch.lane = schemas::Lane::Priority;
    }
    sqlx::query("update batches set lane = 'priority'").execute(&rig.pool).await.unwrap();
    decide(&rig, &batches.iter().collect::<Vec<_>>()).await;
    let cleared = cleared(&rig).await;
    for (at, batch) in batches.iter().enumerate() {
        let of_batch: Vec<_> = cleared.iter().filter(|message| message.batch_id == batch.batch_id).collect();
        assert_eq!(of_batch.len(), 1);
        assert_eq!(of_batch[0].tenant_id, batch.tenant_id);
        assert_eq!(of_batch[0].recipients.len(), if at % 2 == 0 { 2 } else { 3 });
    }
    rig.assert_books().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_that_is_not_in_the_ledger_is_nothing_to_do() {
    let rig = Rig::new().await;
    let tenant = rig.tenant().await;
    let gone = Resolved {
        tenant_id: tenant.id,
        batch_id: new_batch_id(),
        lane: schemas::Lane::Bulk,
        announcement: 1,
        notify: None,
    };
    decide(&rig, &[&gone]).await;
    assert!(cleared(&rig).await.is_empty() && rig.dead().await.is_empty());
}
