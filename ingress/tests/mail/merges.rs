//! Campaign mail that is owed to a contact as it is merged into another one.

use serde_json::json;
use uuid::Uuid;

use crate::fixtures::Ready;

const SURVIVOR: &str = "survivor@example.org";

async fn id_of(ready: &Ready, address: &str) -> Uuid {
    let found = sqlx::query_scalar("select id from contacts where address = $1").bind(address);
    found.fetch_one(&ready.edge.pool).await.unwrap()
}

async fn merge(ready: &Ready, survivor: &str, merged: &str) {
    let (survivor, merged) = (id_of(ready, survivor).await, id_of(ready, merged).await);
    let answer = ready.client.post(&format!("/v1/contacts/{survivor}/merge"), json!({"contact_id": merged})).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
}

/// Address and state of every send.
async fn sends(ready: &Ready) -> Vec<(String, String)> {
    sqlx::query_as("select c.address, s.state from sends s join contacts c on c.id = s.contact_id order by s.id")
        .fetch_all(&ready.edge.pool)
        .await
        .unwrap()
}

/// The sends whose recipients the gate lets pass.
const MAILED: &str = "select count(*) from sends s
     cross join lateral recipient_eligibility(s.tenant_id, array[s.contact_id]) e
     where s.state = 'queued' and e.contact_active";

#[tokio::test]
async fn campaign_mail_of_a_merged_contact_is_the_survivors_once() {
    let ready = Ready::start().await;
    let campaign = ready.campaign(json!({})).await;
    ready.batch(&campaign, &["queued", "sent"]).await;
    sqlx::query("update campaigns set paused = true").execute(&ready.edge.pool).await.unwrap();
    assert_eq!(ready.client.post("/v1/contacts", json!({"email": SURVIVOR})).await.status, 201);
    for merged in ["reader1@example.com", "reader1@example.com", "reader2@example.com"] {
        merge(&ready, SURVIVOR, merged).await;
    }
    let expected = [("reader1@example.com", "queued"), ("reader2@example.com", "sent"), (SURVIVOR, "queued")];
    assert_eq!(sends(&ready).await, expected.map(|(address, state)| (address.to_owned(), state.to_owned())));
    assert_eq!(ready.edge.count(MAILED).await, 1, "and the gate skips the merged contact's");
    let own = "select count(*) from batches b
               join sends s on s.id = b.id and s.month = b.month and s.campaign_id = b.campaign_id
               where b.state = 'waiting' and b.lane = 'bulk' and b.size = 1 and b.queued = 1";
    assert_eq!(ready.edge.count(own).await, 1, "it waits for dispatch");
}

#[tokio::test]
async fn a_merge_does_not_wait_for_a_held_campaign_without_end() {
    let ready = Ready::start().await;
    let campaign = ready.campaign(json!({})).await;
    ready.batch(&campaign, &["queued", "sent"]).await;
    let other = id_of(&ready, "reader2@example.com").await;
    let path = format!("/v1/contacts/{other}/merge");
    let body = json!({"contact_id": id_of(&ready, "reader1@example.com").await});
    // A launch that is written, for as long as this test likes.
    let mut launch = ready.edge.pool.begin().await.unwrap();
    sqlx::query("select from campaigns for update").execute(&mut *launch).await.unwrap();
    let refused = ready.client.post(&path, body.clone()).await;
    assert_eq!((refused.refusal(), refused.header("retry-after")), ((503, "unavailable"), "2"));
    launch.rollback().await.unwrap();
    assert_eq!(ready.client.post(&path, body).await.status, 200);
}

#[tokio::test]
async fn a_survivor_with_mail_of_the_campaign_gets_no_second_one() {
    let ready = Ready::start().await;
    let campaign = ready.campaign(json!({})).await;
    ready.batch(&campaign, &["queued", "queued"]).await;
    merge(&ready, "reader2@example.com", "reader1@example.com").await;
    assert_eq!((sends(&ready).await.len(), ready.edge.count(MAILED).await), (2, 1));
}

#[tokio::test]
async fn a_pinned_audience_has_the_survivor_for_the_merged_contact() {
    let ready = Ready::start().await;
    let campaign = ready.campaign(json!({})).await;
    ready.set_status(&campaign, "scheduled").await;
    let pinned = [id_of(&ready, "reader1@example.com").await, id_of(&ready, "reader3@example.com").await];
    sqlx::query("insert into launch_audiences (tenant_id, campaign_id, part, contacts) values ($1, $2::uuid, 0, $3)")
        .bind(ready.client.tenant)
        .bind(&campaign)
        .bind(pinned.to_vec())
        .execute(&ready.edge.pool)
        .await
        .unwrap();
    assert_eq!(ready.client.post("/v1/contacts", json!({"email": SURVIVOR})).await.status, 201);
    // The second one finds the survivor there: it stays, and the gate skips it.
    for merged in ["reader1@example.com", "reader3@example.com"] {
        merge(&ready, SURVIVOR, merged).await;
        let contacts: Vec<Uuid> =
            sqlx::query_scalar("select contacts from launch_audiences").fetch_one(&ready.edge.pool).await.unwrap();
        assert_eq!(contacts, [id_of(&ready, SURVIVOR).await, pinned[1]]);
    }
    assert_eq!(ready.edge.count("select count(*) from sends").await, 0);
}
