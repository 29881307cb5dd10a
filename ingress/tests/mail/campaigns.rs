use rstest::rstest;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::fixtures::{Ready, audience};

#[tokio::test]
async fn a_campaign_is_created_as_a_draft_and_read_back() {
    let ready = Ready::start().await;
    let body = ready.campaign_body(json!({
        "message_purpose": "service_notice", "audience_reason": "They use the service", "urgency": "important",
        "campaign_goal": "announcement", "preheader": "Soon",
    }));
    let created = ready.client.post("/v1/campaigns", body.clone()).await;
    let id = created.text("campaign_id");
    assert_eq!(created.status, 201);
    let draft = json!({"ok": true, "campaign_id": id, "status": "draft", "email_type": "operational", "warnings": []});
    assert_eq!(created.body, draft);
    let read = ready.client.get(&format!("/v1/campaigns/{id}")).await.body;
    for (field, value) in body.as_object().unwrap().iter().filter(|(field, _)| *field != "product_tenant_id") {
        assert_eq!(&read["campaign"][field], value, "{field}");
    }
    assert_eq!((&read["campaign"]["status"], &read["campaign"]["paused"]), (&json!("draft"), &json!(false)));
    assert_eq!(read["send_counts"]["total"], json!(0));
}

#[rstest]
#[case::sender(json!({"sender_profile_id": Uuid::max().to_string()}), "sender_profile_not_found")]
#[case::list(json!({"list_id": Uuid::max().to_string()}), "list_not_found")]
#[case::tag(json!({"audience_mode": "tags", "tag_ids": [Uuid::max().to_string()]}), "tag_not_found")]
#[case::segment(json!({"audience_mode": "segment", "segment_id": Uuid::max().to_string()}), "segment_not_found")]
#[case::template(json!({"template_id": Uuid::max().to_string()}), "template_not_found")]
#[tokio::test]
async fn what_a_campaign_names_must_be_there(#[case] change: Value, #[case] code: &str) {
    let ready = Ready::start().await;
    let answer = ready.client.post("/v1/campaigns", ready.campaign_body(change)).await;
    assert_eq!(answer.refusal(), (404, code));
}

#[tokio::test]
async fn a_list_is_no_tag_and_a_tag_is_no_list() {
    let ready = Ready::start().await;
    let tag = audience(&ready.edge.pool, ready.client.tenant, "tag", "tagged", 1).await;
    let as_list = ready.client.post("/v1/campaigns", ready.campaign_body(json!({"list_id": tag}))).await;
    assert_eq!(as_list.refusal(), (404, "list_not_found"));
    let change = json!({"audience_mode": "tags", "list_id": null, "tag_ids": [tag, ready.list]});
    let as_tag = ready.client.post("/v1/campaigns", ready.campaign_body(change)).await;
    assert_eq!(as_tag.refusal(), (404, "tag_not_found"));
}

#[rstest]
#[case(json!({"name": null}), "name", "required")]
#[case(json!({"audience_mode": "everyone"}), "audience_mode", "not_allowed")]
#[case(json!({"list_id": "7"}), "list_id", "invalid")]
#[case(json!({"message_purpose": "policy_update"}), "audience_reason", "required")]
#[case(json!({"subject": "{{ nobody }}"}), "subject", "unknown_variable")]
#[case(json!({"body_html": "{{ data.order }}"}), "body_html", "unknown_variable")]
#[case(json!({"subject": "a\nb"}), "subject", "control_character")]
#[case(json!({"status": "draft"}), "status", "unknown_field")]
#[case(json!({"variants": []}), "variants", "too_few")]
#[tokio::test]
async fn a_campaign_with_a_fault_is_refused(#[case] change: Value, #[case] path: &str, #[case] code: &str) {
    let ready = Ready::start().await;
    ready.refuses(change, path, code).await;
    assert_eq!(ready.edge.count("select count(*) from campaigns").await, 0);
}

#[tokio::test]
async fn a_template_speaks_where_the_campaign_has_no_words_of_its_own() {
    let ready = Ready::start().await;
    let template = ready.template(json!({"subject": "T", "preheader": "P", "body_text": "T"})).await;
    let contents = "select count(*) from contents";
    ready.campaign(json!({"template_id": template, "subject": null, "body_html": null})).await;
    assert_eq!(ready.edge.count(contents).await, 1, "the template's own content is used");
    let id = ready.campaign(json!({"template_id": template, "subject": "Own", "body_html": null})).await;
    let said: (String, Option<String>, String, Option<String>) = sqlx::query_as(
        "select c.subject, c.preheader, c.body_html, c.body_text from campaigns k join contents c on c.id = k.content_id where k.id = $1::uuid",
    )
    .bind(&id)
    .fetch_one(&ready.edge.pool)
    .await
    .unwrap();
    assert_eq!(said, ("Own".into(), Some("P".into()), "<p>Thank you</p>".into(), Some("T".into())));
}

#[tokio::test]
async fn a_template_that_needs_transactional_data_is_none_for_a_campaign() {
    let ready = Ready::start().await;
    let template = ready.template(json!({"template_type": "transactional", "body_html": "{{ data.order }}"})).await;
    let body = ready.campaign_body(json!({"template_id": template, "subject": null, "body_html": null}));
    let answer = ready.client.post("/v1/campaigns", body).await;
    assert_eq!(answer.faults(), [("template_id".to_owned(), "unknown_variable".to_owned())]);
}

#[rstest]
#[case("{{ event.name }}", 400)]
#[case("{{ event.properties.plan }}", 400)]
#[case("{{ first_name }}", 201)]
#[tokio::test]
async fn a_sequences_template_without_its_event_is_one_for_a_campaign(#[case] html: &str, #[case] status: u16) {
    let ready = Ready::start().await;
    let template = ready.template(json!({"template_type": "sequence", "body_html": html})).await;
    let body = ready.campaign_body(json!({"template_id": template, "subject": null, "body_html": null}));
    let answer = ready.client.post("/v1/campaigns", body).await;
    let refused = [("template_id".to_owned(), "unknown_variable".to_owned())];
    let faults = if status == 400 { refused.to_vec() } else { Vec::new() };
    assert_eq!((answer.status.as_u16(), answer.faults()), (status, faults), "{}", answer.body);
}

#[tokio::test]
async fn a_draft_may_change_in_any_field() {
    let ready = Ready::start().await;
    let id = ready.campaign(json!({"preheader": "P"})).await;
    let path = format!("/v1/campaigns/{id}");
    let tag = audience(&ready.edge.pool, ready.client.tenant, "tag", "tagged", 1).await;
    let change = json!({
        "name": "Autumn", "subject": "New", "preheader": null, "audience_mode": "tags", "tag_ids": [tag],
        "message_purpose": "receipt", "audience_reason": "They bought it", "urgency": "low",
    });
    let answer = ready.client.patch(&path, change).await;
    assert_eq!((answer.status.as_u16(), &answer.body["email_type"]), (200, &json!("transactional")));
    let campaign = ready.client.get(&path).await.body["campaign"].clone();
    assert_eq!(
        (&campaign["name"], &campaign["subject"], &campaign["preheader"]),
        (&json!("Autumn"), &json!("New"), &Value::Null)
    );
    assert_eq!((&campaign["audience_mode"], &campaign["tag_ids"]), (&json!("tags"), &json!([tag])));
    let refused = ready.client.patch(&path, json!({"tag_ids": []})).await;
    assert_eq!(refused.faults(), [("tag_ids".to_owned(), "required".to_owned())]);
    let refused = ready.client.patch(&path, json!({"sender_profile_id": Uuid::max().to_string()})).await;
    assert_eq!(refused.refusal(), (404, "sender_profile_not_found"));
    assert_eq!(ready.client.get(&path).await.body["campaign"]["name"], json!("Autumn"));
}

#[rstest]
#[case("draft", json!({"paused": true}), "campaign_already_draft")]
#[case("scheduled", json!({"name": "x"}), "campaign_already_scheduled")]
#[case("sending", json!({"subject": "x"}), "campaign_already_sending")]
#[case("sent", json!({"status": "cancelled"}), "campaign_already_sent")]
#[case("sent", json!({"paused": true}), "campaign_already_sent")]
#[case("cancelled", json!({"status": "cancelled"}), "campaign_already_cancelled")]
#[case("cancelled", json!({"paused": false}), "campaign_already_cancelled")]
#[tokio::test]
async fn a_change_the_status_forbids_is_a_409_that_names_the_status(
    #[case] status: &str,
    #[case] change: Value,
    #[case] code: &str,
) {
    let ready = Ready::start().await;
    let id = ready.campaign(json!({})).await;
    ready.set_status(&id, status).await;
    assert_eq!(ready.client.patch(&format!("/v1/campaigns/{id}"), change).await.refusal(), (409, code));
}

#[rstest]
#[case("draft")]
#[case("scheduled")]
#[case("sending")]
#[tokio::test]
async fn what_has_not_been_sent_can_be_cancelled(#[case] status: &str) {
    let ready = Ready::start().await;
    let id = ready.campaign(json!({})).await;
    ready.set_status(&id, status).await;
    let answer = ready.client.patch(&format!("/v1/campaigns/{id}"), json!({"status": "cancelled"})).await;
    assert_eq!((answer.status.as_u16(), &answer.body["status"]), (200, &json!("cancelled")));
    assert_eq!(ready.edge.count("select count(*) from audit_log where action = 'campaign.cancel'").await, 1);
}

#[tokio::test]
async fn pausing_is_a_flag_that_may_be_set_twice() {
    let ready = Ready::start().await;
    let id = ready.campaign(json!({})).await;
    let path = format!("/v1/campaigns/{id}");
    ready.set_status(&id, "sending").await;
    for (paused, reason) in [(true, json!("requested")), (true, json!("requested")), (false, Value::Null)] {
        let answer = ready.client.patch(&path, json!({"paused": paused})).await;
        assert_eq!((&answer.body["paused"], &answer.body["status"]), (&json!(paused), &json!("sending")));
        assert_eq!(ready.client.get(&path).await.body["campaign"]["pause_reason"], reason);
    }
    let answer = ready.client.patch(&path, json!({"paused": true, "status": "cancelled"})).await;
    assert_eq!(answer.refusal(), (400, "validation_failed"));
}

#[tokio::test]
async fn sends_put_off_wait_for_a_time_alone_and_beside_others() {
    let ready = Ready::start().await;
    let id = ready.campaign(json!({})).await;
    ready.batch(&id, &["sent", "deferred"]).await;
    let until = "2099-01-01T08:00:00.000Z";
    for sql in [
        "update sends set reason = 'quiet_hours', next_attempt_at = '2099-01-01T07:59:00.000001Z' where state = 'deferred'",
        "update batches set state = 'resting', announce_after = '2099-01-01T07:59:00.000001Z' where state = 'announced'",
    ] {
        sqlx::query(sql).execute(&ready.edge.pool).await.unwrap();
    }
    let waiting = async || ready.client.get(&format!("/v1/campaigns/{id}")).await.body["waiting"].clone();
    assert_eq!(waiting().await, json!([{"until": until, "count": 1}]));
    ready.batch(&id, &["queued"]).await;
    sqlx::query(
        "update batches set state = 'timed', announce_after = '2099-01-01T08:00:00Z' where state = 'announced'",
    )
    .execute(&ready.edge.pool)
    .await
    .unwrap();
    assert_eq!(waiting().await, json!([{"until": until, "count": 2}]));
}

#[tokio::test]
async fn send_counts_are_the_sums_over_the_batches() {
    let ready = Ready::start().await;
    let id = ready.campaign(json!({})).await;
    ready.batch(&id, &["sent", "skipped"]).await;
    ready.batch(&id, &["queued"]).await;
    sqlx::query("update batches set opened = 1 where size = 2").execute(&ready.edge.pool).await.unwrap();
    let counts = ready.client.get(&format!("/v1/campaigns/{id}")).await.body["send_counts"].clone();
    assert_eq!(
        counts,
        json!({
            "total": 3, "queued": 1, "fenced": 0, "deferred": 0, "sent": 1, "failed": 0, "unknown": 0, "skipped": 1,
            "cancelled": 0, "expired": 0, "delivered": 1, "delivered_confirmed": 0, "bounced": 0, "complained": 0, "opened": 1,
            "clicked": 0, "unsubscribed": 0,
        })
    );
}

#[tokio::test]
async fn campaigns_are_listed_newest_first_by_status_page_by_page() {
    let ready = Ready::start().await;
    let mut ids = Vec::new();
    for n in 0..4 {
        ids.push(ready.campaign(json!({"name": format!("Campaign {n}")})).await);
    }
    ready.set_status(&ids[1], "sent").await;
    let of = |body: &Value| -> Vec<String> {
        let campaigns = body["campaigns"].as_array().unwrap();
        campaigns.iter().map(|campaign| campaign["campaign_id"].as_str().unwrap().to_owned()).collect()
    };
    let first = ready.client.get("/v1/campaigns?status=draft&limit=2").await.body;
    assert_eq!(of(&first), [ids[3].clone(), ids[2].clone()]);
    let cursor = first["next_cursor"].as_str().unwrap();
    let second = ready.client.get(&format!("/v1/campaigns?status=draft&limit=2&cursor={cursor}")).await.body;
    assert_eq!((of(&second), &second["next_cursor"]), (vec![ids[0].clone()], &Value::Null));
    assert_eq!(
        ready.client.get("/v1/campaigns?status=gone").await.faults(),
        [("status".to_owned(), "not_allowed".to_owned())]
    );
}
