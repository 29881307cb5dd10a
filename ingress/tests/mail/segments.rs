//! Campaigns to segments: created, tried, launched; and what that means for the segment.

use serde_json::{Value, json};

use crate::fixtures::{Ready, open_streams};

async fn segment(ready: &Ready, rule: Value) -> String {
    let answer = ready.client.post("/v1/segments", json!({"name": schemas::new_id(), "rule": rule})).await;
    assert_eq!(answer.status, 201, "{}", answer.body);
    answer.text("segment_id")
}

fn to(segment: &str) -> Value {
    json!({"audience_mode": "segment", "list_id": null, "segment_id": segment})
}

#[tokio::test]
async fn a_campaign_is_launched_to_a_segment() {
    let ready = Ready::start().await;
    open_streams(&ready.edge).await;
    let rule =
        json!({"all": [{"in_list": ready.list}, {"field": "email", "op": "neq", "value": "reader1@example.com"}]});
    let segment = segment(&ready, rule).await;
    let id = ready.campaign(to(&segment)).await;
    assert_eq!(ready.client.get(&format!("/v1/campaigns/{id}")).await.body["campaign"]["segment_id"], json!(segment));
    let path = format!("/v1/campaigns/{id}/launch");
    let dry = ready.client.post(&path, json!({"dry_run": true})).await;
    assert_eq!((&dry.body["queued"], &dry.body["sampled"]), (&json!(2), &json!(2)), "{}", dry.body);
    let digest = dry.text("digest");

    // Another rule, another audience: the digest no longer holds.
    let change = json!({"rule": {"in_list": ready.list}});
    assert_eq!(ready.client.patch(&format!("/v1/segments/{segment}"), change).await.status, 200);
    assert_eq!(ready.client.post(&path, json!({"digest": digest})).await.refusal(), (409, "audience_changed"));
    let dry = ready.client.post(&path, json!({"dry_run": true})).await;
    let launched = ready.client.post(&path, json!({"digest": dry.text("digest")})).await;
    assert_eq!((launched.status.as_u16(), &launched.body["queued"]), (202, &json!(3)), "{}", launched.body);
}

#[tokio::test]
async fn a_segment_that_matches_nobody_is_no_audience() {
    let ready = Ready::start().await;
    let id = ready.campaign(to(&segment(&ready, json!({"field": "company", "op": "exists"})).await)).await;
    let answer = ready.client.post(&format!("/v1/campaigns/{id}/launch"), json!({})).await;
    assert_eq!(answer.refusal(), (422, "audience_resolved_to_zero_contacts"));
}

#[tokio::test]
async fn a_segment_is_not_deleted_while_a_campaign_may_still_need_it() {
    let ready = Ready::start().await;
    let segment = segment(&ready, json!({"in_list": ready.list})).await;
    let path = format!("/v1/segments/{segment}");
    let id = ready.campaign(to(&segment)).await;
    for status in ["draft", "scheduled", "sending"] {
        ready.set_status(&id, status).await;
        assert_eq!(ready.client.delete(&path, json!({})).await.refusal(), (409, "segment_in_use"), "{status}");
    }
    ready.set_status(&id, "sent").await;
    assert_eq!(ready.client.delete(&path, json!({})).await.status, 200);
    assert_eq!(ready.client.get(&format!("/v1/campaigns/{id}")).await.body["campaign"]["segment_id"], json!(segment));
    let again = ready.client.post("/v1/campaigns", ready.campaign_body(to(&segment))).await;
    assert_eq!(again.refusal(), (404, "segment_not_found"));
}
