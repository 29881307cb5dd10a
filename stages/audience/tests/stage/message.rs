//! One-off messages.

use schemas::{Cleared, Lane, SendId, subjects::stream};
use stage_rig::{Rig, until};
use uuid::Uuid;

use crate::start;

async fn all_handled(rig: &Rig, count: i64) {
    until("all messages are handled and every ring is taken", async || {
        rig.number("select count(*) from requests where state = 'handled'").await == count
            && rig.held(stream::ACCEPTED).await == 0
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_becomes_one_batch_however_often_it_is_announced() {
    let rig = Rig::new().await;
    let tenant = rig.tenant().await;
    let people = rig.people(&tenant, 50).await;
    let mut requests = Vec::new();
    for size in [1, 3, 50] {
        requests.push(rig.message_request(&tenant, &people[..size]).await);
    }
    for ring in 0..3 {
        rig.ring(&requests, &ring.to_string()).await;
    }
    for _ in 0..2 {
        start(&rig, &[]).await;
    }
    all_handled(&rig, 3).await;
    let batches: Vec<(Uuid, String, String, String, i32)> = sqlx::query_as(
        "select id, kind, lane, classification, queued from batches where state = 'announced' order by id",
    )
    .fetch_all(&rig.pool)
    .await
    .unwrap();
    let expected: Vec<_> = requests
        .iter()
        .zip([1, 3, 50])
        .map(|(request, size)| {
            (request.request_id, "one_off".to_owned(), "priority".to_owned(), "operational".to_owned(), size)
        })
        .collect();
    assert_eq!(batches, expected);
    let sends: Vec<(Uuid, Uuid)> = sqlx::query_as("select id, contact_id from sends where request_id = $1 order by id")
        .bind(requests[1].request_id)
        .fetch_all(&rig.pool)
        .await
        .unwrap();
    let expected: Vec<_> =
        (0..3_u16).map(|at| (SendId::of(requests[1].request_id, at).0, people[usize::from(at)].id)).collect();
    assert_eq!(sends, expected);
    rig.assert_books().await;
    let announced: Vec<Cleared> = rig.messages(stream::CLEARED).await;
    assert_eq!(announced.len(), 3, "once each");
    assert!(announced.iter().all(|message| message.lane == Lane::Priority));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_without_its_message_is_rejected_and_the_others_go_on() {
    let rig = Rig::new().await;
    let tenant = rig.tenant().await;
    let people = rig.people(&tenant, 1).await;
    let good = rig.message_request(&tenant, &people).await;
    let bad = rig.message_request(&tenant, &people).await;
    for statement in ["delete from message_recipients where message_id = $1", "delete from messages where id = $1"] {
        sqlx::query(statement).bind(bad.request_id).execute(&rig.pool).await.unwrap();
    }
    rig.ring(&[good, bad], "1").await;
    start(&rig, &[]).await;
    all_handled(&rig, 1).await;
    until("it is set aside", async || rig.held(stream::DEAD).await == 1).await;
    assert_eq!(rig.dead().await[0].reason, "unknown_request");
    assert_eq!(rig.number("select count(*) from requests where state = 'rejected'").await, 1);
}
