//! What refers to an object protects it, and a refusal names it.

use http::Method;
use rstest::rstest;
use serde_json::{Value, json};
use sqlx::AssertSqlSafe;

use crate::{
    common::Answer,
    fixtures::{Ready, audience},
};

/// The status of a refusal, its code, and what it says refers to the object.
fn refused(answer: &Answer) -> (u16, &str, Vec<(String, String)>) {
    let (status, code) = answer.refusal();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let references = answer.body["references"].as_array().cloned().unwrap_or_default();
    let references = references.iter().map(|one| (text(&one["type"]), text(&one["name"]))).collect();
    (status, code, references)
}

fn named(kind: &str, name: &str) -> (String, String) {
    (kind.to_owned(), name.to_owned())
}

async fn remove(ready: &Ready, path: &str) -> Answer {
    ready.client.delete(path, json!({})).await
}

async fn tag(ready: &Ready) -> String {
    let body = json!({"kind": "tag", "name": "vip"});
    ready.client.post("/v1/audiences", body).await.text("audience_id")
}

#[tokio::test]
async fn a_list_stays_while_a_campaign_that_is_not_over_names_it() {
    let ready = Ready::start().await;
    let campaign = ready.campaign(json!({})).await;
    let path = format!("/v1/audiences/{}", ready.list);
    for status in ["draft", "scheduled", "sending"] {
        ready.set_status(&campaign, status).await;
        let answer = remove(&ready, &path).await;
        assert_eq!(refused(&answer), (409, "audience_in_use", vec![named("campaign", "Spring")]), "{status}");
        assert_eq!(answer.body["references"][0]["id"], campaign);
    }
    assert_eq!(ready.client.get(&path).await.body["audience"]["member_count"], 3, "nothing is left half done");
    ready.set_status(&campaign, "sent").await;
    let gone = remove(&ready, &path).await;
    assert_eq!((gone.status.as_u16(), &gone.body["members"]), (200, &json!(3)), "{}", gone.body);
    assert_eq!(ready.client.get(&path).await.refusal(), (404, "audience_not_found"));
    let past = ready.client.get(&format!("/v1/campaigns/{campaign}")).await.body;
    assert_eq!(past["campaign"]["list_id"], json!(ready.list), "a campaign of the past keeps its reference");
    for contact in ready.client.get("/v1/contacts").await.body["contacts"].as_array().unwrap() {
        assert_eq!(contact["lists"], json!([]), "its members are deleted later");
    }
    assert_eq!(ready.edge.count("select count(*) from audit_log where action = 'audience.removed'").await, 1);
}

#[tokio::test]
async fn a_deleted_list_is_nowhere_and_its_name_is_free() {
    let ready = Ready::start().await;
    let body = json!({"kind": "list", "name": "Friends", "public_name": "News"});
    let list = ready.client.post("/v1/audiences", body.clone()).await.text("audience_id");
    sqlx::query(
        "insert into topic_opt_outs (tenant_id, audience_id, contact_id, send_id)
         select tenant_id, $1::uuid, id, id from contacts limit 1",
    )
    .bind(&list)
    .execute(&ready.edge.pool)
    .await
    .unwrap();
    assert_eq!(remove(&ready, &format!("/v1/audiences/{list}")).await.status, 200);
    assert_eq!(remove(&ready, &format!("/v1/audiences/{list}")).await.refusal(), (404, "audience_not_found"));
    let campaign = ready.client.post("/v1/campaigns", ready.campaign_body(json!({"list_id": list}))).await;
    assert_eq!(campaign.refusal(), (404, "list_not_found"));
    let segment = json!({"name": "S", "rule": {"in_list": list}});
    assert_eq!(ready.client.post("/v1/segments", segment).await.refusal(), (404, "list_not_found"));
    let members = json!({"add": ["reader1@example.com"]});
    let joined = ready.client.post(&format!("/v1/audiences/{list}/members"), members).await;
    assert_eq!(joined.refusal(), (404, "audience_not_found"));
    let step = json!({"step_type": "update_subscription", "action_config": {"list_id": list, "status": "subscribed"}});
    let sequence = ready.client.post("/v1/sequences", json!({"name": "Q", "steps": [step]})).await;
    assert_eq!(sequence.refusal(), (404, "list_not_found"));
    let again = ready.client.post("/v1/audiences", body).await;
    assert_eq!(again.status, 201, "{}", again.body);
    assert_ne!(again.text("audience_id"), list);
    assert_eq!(ready.edge.count("select count(*) from topic_opt_outs").await, 1, "who left stays away from retries");
}

#[tokio::test]
async fn a_tag_stays_while_a_segment_or_a_sequence_names_it() {
    let ready = Ready::start().await;
    let tag = tag(&ready).await;
    let path = format!("/v1/audiences/{tag}");
    let rule = json!({"all": [{"not": {"has_tag": tag}}, {"in_list": ready.list}]});
    let segment = ready.client.post("/v1/segments", json!({"name": "Others", "rule": rule})).await.text("segment_id");
    let step = json!({"step_type": "apply_tag", "action_config": {"tag_id": tag}});
    let sequence = ready.client.post("/v1/sequences", json!({"name": "Welcome", "steps": [step]})).await;
    let sequence = sequence.text("sequence_id");
    let both = vec![named("segment", "Others"), named("sequence", "Welcome")];
    assert_eq!(refused(&remove(&ready, &path).await), (409, "audience_in_use", both));
    assert_eq!(remove(&ready, &format!("/v1/segments/{segment}")).await.status, 200);
    let archived = ready.client.patch(&format!("/v1/sequences/{sequence}"), json!({"status": "archived"})).await;
    assert_eq!(archived.status, 200);
    assert_eq!(remove(&ready, &path).await.status, 200);
}

#[tokio::test]
async fn steps_that_nobody_goes_through_any_more_keep_nothing() {
    let ready = Ready::start().await;
    let tag = tag(&ready).await;
    let path = format!("/v1/audiences/{tag}");
    let steps = json!([
        {"step_type": "wait", "delay_amount": 2, "delay_unit": "days"},
        {"step_type": "apply_tag", "action_config": {"tag_id": tag}},
    ]);
    let body = json!({"name": "Welcome", "activate": true, "steps": steps});
    let sequence = ready.client.post("/v1/sequences", body).await.text("sequence_id");
    let enrolled = json!({"sequence_id": sequence, "email": "reader1@example.com"});
    assert!(ready.client.post("/v1/enrollments", enrolled).await.status.is_success());
    let steps = json!({"steps": [{"step_type": "end_sequence"}]});
    let changed = ready.client.patch(&format!("/v1/sequences/{sequence}"), steps).await;
    assert!(changed.status.is_success(), "{}", changed.body);
    let used = (409, "audience_in_use", vec![named("sequence", "Welcome")]);
    assert_eq!(refused(&remove(&ready, &path).await), used, "one is still on the way to the step");
    sqlx::query("update enrollments set status = 'completed', next_action_at = null, ended_at = now()")
        .execute(&ready.edge.pool)
        .await
        .unwrap();
    assert_eq!(remove(&ready, &path).await.status, 200);
}

#[tokio::test]
async fn an_archived_template_is_still_sent_by_the_sequences_that_name_it() {
    let ready = Ready::start().await;
    let field = json!({"key": "plan", "label": "Plan", "type": "string"});
    let field = format!("/v1/fields/{}", ready.client.post("/v1/fields", field).await.text("field_id"));
    let template = ready.template(json!({"body_html": "<p>{{ contact.fields.plan }}</p>"})).await;
    let path = format!("/v1/templates/{template}");
    let body = json!({
        "name": "Welcome", "activate": true, "sender_profile_id": ready.sender,
        "steps": [{"step_type": "send_email", "template_id": template}],
    });
    let made = ready.client.post("/v1/sequences", body).await;
    assert_eq!(made.status, 201, "{}", made.body);
    let sequence = format!("/v1/sequences/{}", made.text("sequence_id"));
    assert_eq!(ready.client.patch(&path, json!({"status": "archived"})).await.status, 200);
    assert_eq!(remove(&ready, &path).await.status, 200);
    for status in ["paused", "active"] {
        let changed = ready.client.patch(&sequence, json!({"status": status})).await;
        assert_eq!(changed.status, 200, "{status}: {}", changed.body);
    }
    let used = (409, "field_in_use", vec![named("sequence", "Welcome")]);
    assert_eq!(refused(&remove(&ready, &field).await), used, "its mail prints the field");
    ready.client.patch(&sequence, json!({"status": "archived"})).await;
    assert_eq!(remove(&ready, &field).await.status, 200);
}

#[tokio::test]
async fn a_field_goes_with_its_values_when_nothing_uses_it() {
    let ready = Ready::start().await;
    let field = json!({"key": "plan", "label": "Plan", "type": "string"});
    let field = ready.client.post("/v1/fields", field).await.text("field_id");
    let path = format!("/v1/fields/{field}");
    let ann = json!({"email": "ann@example.com", "fields": {"plan": "pro"}});
    let ann = ready.client.post("/v1/contacts", ann).await.text("contact_id");
    let rule = json!({"any": [{"field": "fields.plan", "op": "eq", "value": "pro"}]});
    let segment = ready.client.post("/v1/segments", json!({"name": "Pros", "rule": rule})).await.text("segment_id");
    let html = "<p>{{ contact.fields.plan }}</p>";
    let template = ready.template(json!({"body_html": html})).await;
    let campaign = ready.campaign(json!({"body_html": html})).await;
    let step = json!({"step_type": "update_field", "action_config": {"field": "plan", "value": "pro"}});
    let sequence = ready.client.post("/v1/sequences", json!({"name": "Welcome", "steps": [step]})).await;
    let sequence = sequence.text("sequence_id");
    let all = vec![
        named("segment", "Pros"),
        named("template", "Receipt"),
        named("campaign", "Spring"),
        named("sequence", "Welcome"),
    ];
    assert_eq!(refused(&remove(&ready, &path).await), (409, "field_in_use", all));
    for used in [format!("segments/{segment}"), format!("templates/{template}"), format!("campaigns/{campaign}")] {
        assert_eq!(remove(&ready, &format!("/v1/{used}")).await.status, 200, "{used}");
    }
    assert_eq!(remove(&ready, &format!("/v1/sequences/{sequence}")).await.status, 200);
    let gone = remove(&ready, &path).await;
    assert_eq!((gone.status.as_u16(), &gone.body["contacts"]), (200, &json!(1)), "{}", gone.body);
    assert_eq!(ready.client.get(&path).await.refusal(), (404, "field_not_found"));
    let ann = ready.client.get(&format!("/v1/contacts/{ann}")).await.body;
    assert_eq!(ann["contact"]["fields"], json!({}), "{ann}");
    let anew = json!({"key": "plan", "label": "Plan", "type": "number"});
    assert_eq!(ready.client.post("/v1/fields", anew.clone()).await.refusal(), (409, "field_being_removed"));
    ready.edge.take_out_removed_fields().await;
    assert_eq!(ready.client.post("/v1/fields", anew).await.status, 201);
}

#[tokio::test]
async fn senders_domains_segments_and_drafts_name_what_refers_to_them() {
    let ready = Ready::start().await;
    let campaign = ready.campaign(json!({})).await;
    let sender = remove(&ready, &format!("/v1/senders/{}", ready.sender)).await;
    assert_eq!(refused(&sender), (409, "sender_in_use", vec![named("campaign", "Spring")]));
    let domain = ready.client.get("/v1/domains").await.body["domains"][0]["domain_id"].as_str().unwrap().to_owned();
    let domain = remove(&ready, &format!("/v1/domains/{domain}")).await;
    assert_eq!(refused(&domain), (409, "domain_in_use", vec![named("sender", "news@acme.test")]));
    let rule = json!({"event": "email.clicked", "campaign_id": campaign});
    let inner = ready.client.post("/v1/segments", json!({"name": "Clickers", "rule": rule})).await;
    let inner = inner.text("segment_id");
    let outer = json!({"name": "Outer", "rule": {"not": {"in_segment": inner}}});
    assert_eq!(ready.client.post("/v1/segments", outer).await.status, 201);
    let segment = remove(&ready, &format!("/v1/segments/{inner}")).await;
    assert_eq!(refused(&segment), (409, "segment_in_use", vec![named("segment", "Outer")]));
    let draft = remove(&ready, &format!("/v1/campaigns/{campaign}")).await;
    assert_eq!(refused(&draft), (409, "campaign_in_use", vec![named("segment", "Clickers")]));
}

#[tokio::test]
async fn a_sequence_is_deleted_when_nobody_is_under_way() {
    let ready = Ready::start().await;
    let body = json!({"name": "Welcome", "activate": true, "steps": [{"step_type": "wait", "delay_amount": 2, "delay_unit": "days"}]});
    let sequence = ready.client.post("/v1/sequences", body).await.text("sequence_id");
    let path = format!("/v1/sequences/{sequence}");
    assert_eq!(remove(&ready, &path).await.refusal(), (409, "sequence_not_archived"));
    let enrolled = json!({"sequence_id": sequence, "email": "reader1@example.com"});
    let enrolled = ready.client.post("/v1/enrollments", enrolled).await;
    assert!(enrolled.status.is_success(), "{}", enrolled.body);
    assert_eq!(ready.client.patch(&path, json!({"status": "archived"})).await.status, 200);
    let early = remove(&ready, &path).await;
    assert_eq!(early.refusal(), (409, "sequence_has_enrollments"));
    assert!(!early.header("retry-after").is_empty());
    sqlx::query("update enrollments set status = 'exited', exit_reason = 'sequence_archived', next_action_at = null, ended_at = now()")
        .execute(&ready.edge.pool)
        .await
        .unwrap();
    assert_eq!(remove(&ready, &path).await.status, 200);
    assert_eq!(ready.client.get(&path).await.refusal(), (404, "sequence_not_found"));
    assert_eq!(ready.client.get("/v1/sequences").await.body["sequences"], json!([]));
    let late = json!({"sequence_id": sequence, "email": "reader2@example.com"});
    assert_eq!(ready.client.post("/v1/enrollments", late).await.refusal(), (404, "sequence_not_found"));
    let past = ready.client.get(&format!("/v1/enrollments?sequence_id={sequence}")).await.body;
    assert_eq!(past["enrollments"].as_array().map(Vec::len), Some(1), "what was stays readable: {past}");
}

#[tokio::test]
async fn a_list_never_goes_under_a_campaign_that_is_being_made() {
    let ready = Ready::start().await;
    for _ in 0..8 {
        let list = audience(&ready.edge.pool, ready.client.tenant, "list", "race", 0).await;
        let path = format!("/v1/audiences/{list}");
        let body = ready.campaign_body(json!({"list_id": list}));
        let (made, gone) = tokio::join!(
            ready.client.write(Method::POST, "/v1/campaigns", body, &[]),
            ready.client.write(Method::DELETE, &path, json!({}), &[])
        );
        let outcome = (made.status.as_u16(), gone.status.as_u16());
        assert!([(201, 409), (404, 200)].contains(&outcome), "{outcome:?} {} {}", made.body, gone.body);
    }
}

#[rstest]
#[case::template("template", (200, ""), (404, "template_not_found"))]
#[case::sender("sender", (409, "sender_in_use"), (404, "sender_profile_not_found"))]
#[tokio::test]
async fn a_sequence_and_the_removal_of_what_it_names_take_turns(
    #[case] object: &str,
    #[case] after_it: (u16, &str),
    #[case] gone: (u16, &str),
) {
    let ready = Ready::start().await;
    let template = ready.template(json!({})).await;
    let id = if object == "sender" { ready.sender.to_string() } else { template.clone() };
    let path = format!("/v1/{object}s/{id}");
    let steps = json!([{"step_type": "send_email", "template_id": template}]);
    let body = json!({"name": "Welcome", "sender_profile_id": ready.sender, "activate": true, "steps": steps});
    let removal = || {
        let (client, path) = (ready.client.clone(), path.clone());
        tokio::spawn(async move { client.delete(&path, json!({})).await })
    };
    let save = || {
        let (client, body) = (ready.client.clone(), body.clone());
        tokio::spawn(async move { client.post("/v1/sequences", body).await })
    };
    // The sequence is about to be stored: the removal waits for it.
    let mut stalled = ready.edge.pool.begin().await.unwrap();
    sqlx::query("lock table sequences in share mode").execute(&mut *stalled).await.unwrap();
    let saved = save();
    ready.edge.until_waiting(1).await;
    let removed = removal();
    ready.edge.until_waiting(2).await;
    stalled.rollback().await.unwrap();
    assert_eq!(saved.await.unwrap().status, 201);
    assert_eq!(removed.await.unwrap().refusal(), after_it);
    for undone in [
        "update sequences set status = 'archived', sender_profile_id = null, deleted_at = now()",
        "update templates set status = 'active'",
    ] {
        sqlx::query(undone).execute(&ready.edge.pool).await.unwrap();
    }
    // The removal is about to be stored: the sequence waits, and finds nothing.
    let mut stalled = ready.edge.pool.begin().await.unwrap();
    let rows = AssertSqlSafe(format!("select from {object}s for update"));
    sqlx::query(rows).execute(&mut *stalled).await.unwrap();
    let removed = removal();
    ready.edge.until_waiting(1).await;
    let saved = save();
    ready.edge.until_waiting(2).await;
    stalled.rollback().await.unwrap();
    assert_eq!(removed.await.unwrap().status, 200);
    assert_eq!(saved.await.unwrap().refusal(), gone);
}

#[tokio::test]
async fn a_draft_sequence_keeps_no_template_and_is_not_activated_without_it() {
    let ready = Ready::start().await;
    let template = ready.template(json!({})).await;
    let steps = json!([{"step_type": "send_email", "template_id": template}]);
    let body = json!({"name": "Welcome", "sender_profile_id": ready.sender, "steps": steps});
    let path = format!("/v1/sequences/{}", ready.client.post("/v1/sequences", body).await.text("sequence_id"));
    assert_eq!(remove(&ready, &format!("/v1/templates/{template}")).await.status, 200);
    let activated = || ready.client.patch(&path, json!({"status": "active"}));
    assert_eq!(activated().await.refusal(), (422, "template_archived"));
    let back = ready.client.patch(&format!("/v1/templates/{template}"), json!({"status": "active"})).await;
    assert_eq!(back.status, 200, "{}", back.body);
    assert_eq!(activated().await.status, 200);
}

#[tokio::test]
async fn a_duplicate_of_a_past_campaign_names_no_removed_field() {
    let ready = Ready::start().await;
    let field = json!({"key": "plan", "label": "Plan", "type": "string"});
    let field = ready.client.post("/v1/fields", field).await.text("field_id");
    let campaign = ready.campaign(json!({"body_html": "<p>{{ contact.fields.plan }}</p>"})).await;
    ready.set_status(&campaign, "sent").await;
    assert_eq!(remove(&ready, &format!("/v1/fields/{field}")).await.status, 200);
    let copied = ready.client.post(&format!("/v1/campaigns/{campaign}/duplicate"), json!({})).await;
    assert_eq!(copied.faults(), [("body_html".to_owned(), "unknown_variable".to_owned())], "{}", copied.body);
}
