//! What is done with a campaign besides launching it: preview, test, duplicate, delete.

use chrono::{TimeDelta, Utc};
use rstest::rstest;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::{
    common::{Edge, settings},
    fixtures::{Ready, open_streams},
};

async fn contact(ready: &Ready, email: &str) -> String {
    let body = json!({"email": email, "first_name": "Ann"});
    ready.client.post("/v1/contacts", body).await.text("contact_id")
}

async fn suppress(ready: &Ready, email: &str, reason: &str) {
    let body = json!({"email": email, "reason": reason});
    assert!(ready.client.post("/v1/suppressions", body).await.status.is_success());
}

#[tokio::test]
async fn a_preview_is_the_mail_of_one_contact_with_its_footer() {
    let ready = Ready::start().await;
    let ann = contact(&ready, "ann@example.com").await;
    let link = "<p>Hello {{ first_name }} <a href=\"https://acme.test/offer\">go</a></p>";
    let campaign = ready.campaign(json!({"body_html": link})).await;
    let path = format!("/v1/campaigns/{campaign}/preview");
    let seen = ready.client.post(&path, json!({"contact_id": ann})).await;
    assert_eq!((seen.status.as_u16(), seen.text("subject").as_str()), (200, "Hello Ann"));
    let html = seen.text("html");
    for part in ["Hello Ann", "href=\"https://acme.test/offer\"", "1 Main Street", "https://example.com/"] {
        assert!(html.contains(part), "{part} in {html}");
    }
    assert!(seen.text("text").contains("Hello Ann"));
    let sample = ready.client.post(&path, json!({"sample": {"first_name": "Bob"}})).await;
    assert_eq!(sample.text("subject"), "Hello Bob");
    assert_eq!(ready.edge.count("select count(*) from messages").await, 0);
}

#[tokio::test]
async fn a_draft_is_previewed_with_the_current_version_of_its_template() {
    let ready = Ready::start().await;
    let template = ready.template(json!({"subject": "First"})).await;
    let own = json!({"template_id": template, "subject": null, "body_html": null});
    let draft = ready.campaign(own.clone()).await;
    let launched = ready.campaign(own).await;
    ready.set_status(&launched, "sending").await;
    let changed = ready.client.patch(&format!("/v1/templates/{template}"), json!({"subject": "Second"})).await;
    assert_eq!(changed.status, 200, "{}", changed.body);
    for (campaign, subject) in [(draft, "Second"), (launched, "First")] {
        let seen = ready.client.post(&format!("/v1/campaigns/{campaign}/preview"), json!({})).await;
        assert_eq!(seen.text("subject"), subject);
    }
}

#[tokio::test]
async fn a_variant_is_previewed_and_tested_by_its_letter() {
    let ready = Ready::start().await;
    let variants =
        json!({"variants": [{"name": "Plain", "weight": 1}, {"name": "Loud", "weight": 1, "subject": "LOUD"}]});
    let campaign = ready.campaign(variants).await;
    let seen = ready.client.post(&format!("/v1/campaigns/{campaign}/preview"), json!({"variant": "B"})).await;
    assert_eq!(seen.text("subject"), "LOUD");
    let none = ready.client.post(&format!("/v1/campaigns/{campaign}/preview"), json!({"variant": "C"})).await;
    assert_eq!(none.faults(), [("variant".to_owned(), "unknown".to_owned())]);
}

#[rstest]
#[case::nobody(json!({"to": []}), "to", "empty")]
#[case::missing(json!({}), "to", "required")]
#[case::eleven(json!({"to": vec!["a@example.com"; 11]}), "to", "too_many")]
#[case::no_address(json!({"to": ["ann"]}), "to[0]", "invalid_address")]
#[case::both(json!({"to": ["a@example.com"], "contact_id": Uuid::nil(), "sample": {}}), "sample", "ambiguous")]
#[case::variant(json!({"to": ["a@example.com"], "variant": "A"}), "variant", "unknown")]
#[tokio::test]
async fn a_test_names_who_gets_it_and_for_whom_it_is(#[case] body: Value, #[case] path: &str, #[case] code: &str) {
    let ready = Ready::start().await;
    let campaign = ready.campaign(json!({})).await;
    let answer = ready.client.post(&format!("/v1/campaigns/{campaign}/test"), body).await;
    assert_eq!(answer.status, 400, "{}", answer.body);
    assert_eq!(answer.body["fields"][0]["path"], path, "{}", answer.body);
    if code != "invalid_address" {
        assert_eq!(answer.body["fields"][0]["code"], code, "{}", answer.body);
    }
    assert_eq!(ready.edge.count("select count(*) from messages").await, 0, "nothing is left half done");
}

#[tokio::test]
async fn a_test_goes_to_whom_no_suppression_binds_without_consent() {
    let ready = Ready::start().await;
    open_streams(&ready.edge).await;
    suppress(&ready, "left@example.com", "unsubscribe").await;
    suppress(&ready, "gone@example.com", "hard_bounce").await;
    let campaign = ready.campaign(json!({})).await;
    let to = ["new@example.com", "left@example.com", "gone@example.com", "NEW@example.com"];
    let answer = ready.client.post(&format!("/v1/campaigns/{campaign}/test"), json!({"to": to})).await;
    assert_eq!(answer.status, 202, "{}", answer.body);
    let skipped: Vec<&Value> =
        answer.body["recipients"].as_array().unwrap().iter().map(|recipient| &recipient["skipped"]).collect();
    assert_eq!(skipped, [&Value::Null, &json!("unsubscribed"), &json!("hard_bounced")], "an address gets one mail");
    let stored: (bool, String, String) = sqlx::query_as(
        "select is_test, classification, subject from messages m join contents c on c.id = m.content_id",
    )
    .fetch_one(&ready.edge.pool)
    .await
    .unwrap();
    assert_eq!(stored, (true, "marketing".to_owned(), "[Test] Hello".to_owned()));
    let send = answer.body["recipients"][0]["send_id"].as_str().unwrap();
    let followed = ready.client.get(&format!("/v1/sends/{send}")).await;
    assert_eq!(followed.body["send"]["message_kind"], "test", "{}", followed.body);
    assert_eq!(ready.edge.count("select count(*) from audit_log where action = 'campaign.test'").await, 1);
    let read = ready.client.get(&format!("/v1/campaigns/{campaign}")).await.body;
    assert_eq!((&read["campaign"]["status"], &read["send_counts"]["total"]), (&json!("draft"), &json!(0)));
    let all = json!({"to": ["gone@example.com"]});
    let refused = ready.client.post(&format!("/v1/campaigns/{campaign}/test"), all).await;
    assert_eq!(refused.refusal(), (422, "all_recipients_suppressed"));
}

#[tokio::test]
async fn a_campaign_is_answered_with_warnings_about_its_own_bodies() {
    let ready = Ready::start().await;
    let warned = |answer: &Value| -> Vec<(String, String)> {
        let of = |one: &Value, name: &str| one[name].as_str().unwrap().to_owned();
        answer["warnings"].as_array().unwrap().iter().map(|one| (of(one, "code"), of(one, "path"))).collect()
    };
    let no_alt = |path: &str| vec![("missing_alt".to_owned(), path.to_owned())];
    let body = "<p>Hi</p><img src=\"https://a.test/x.png\">";
    let variants = json!([{"name": "Plain", "weight": 1}, {"name": "Own", "weight": 1, "body_html": body}]);
    let good = ready.campaign_body(json!({"variants": variants}));
    let created = ready.client.post("/v1/campaigns", good).await;
    assert_eq!((created.status.as_u16(), warned(&created.body)), (201, no_alt("variants[1].body_html")));
    let path = format!("/v1/campaigns/{}", created.text("campaign_id"));
    let changed = ready.client.patch(&path, json!({"body_html": body, "variants": null})).await;
    assert_eq!((changed.status.as_u16(), warned(&changed.body)), (200, no_alt("body_html")), "{}", changed.body);
    assert_eq!(warned(&ready.client.patch(&path, json!({"name": "Other"})).await.body), []);
    let shown = ready.client.post(&format!("{path}/preview"), json!({})).await;
    assert_eq!((shown.status.as_u16(), warned(&shown.body)), (200, no_alt("body_html")), "{}", shown.body);
}

#[tokio::test]
async fn a_blank_address_of_a_sender_is_none() {
    let ready = Ready::start().await;
    let campaign = ready.campaign(json!({"body_html": "<p>Hi</p>{{ physical_address }}"})).await;
    for sql in ["update senders set physical_address = ' '", "update tenants set physical_address = '2 Side Street'"] {
        sqlx::query(sql).execute(&ready.edge.pool).await.unwrap();
    }
    let shown = ready.client.post(&format!("/v1/campaigns/{campaign}/preview"), json!({})).await;
    assert!(shown.text("html").contains("2 Side Street"), "{}", shown.body);
}

#[tokio::test]
async fn a_test_with_a_contacts_data_is_erased_with_the_contact() {
    let ready = Ready::start().await;
    open_streams(&ready.edge).await;
    let person = json!({"email": "ann@example.com", "first_name": "Annabel"});
    let contact = ready.client.post("/v1/contacts", person).await.text("contact_id");
    let campaign = ready.campaign(json!({"body_html": "<p>Hi {{ first_name }}</p>{{ physical_address }}"})).await;
    let path = format!("/v1/campaigns/{campaign}/test");
    for body in [
        json!({"to": ["boss@example.com"], "contact_id": contact}),
        json!({"to": ["boss@example.com"], "sample": {"first_name": "Bob"}}),
    ] {
        assert_eq!(ready.client.post(&path, body).await.status, 202);
    }
    let named = "select count(*) from contents where kind = 'one_off' and body_html like '%Annabel%'";
    assert_eq!(ready.edge.count(named).await, 1);
    let erased = ready.client.delete(&format!("/v1/contacts/{contact}"), json!({"erase": true})).await;
    assert_eq!(erased.status, 200, "{}", erased.body);
    ready.edge.finish_erasures().await;
    assert_eq!(ready.edge.count(named).await, 0);
    assert_eq!(ready.edge.count("select count(*) from contents where kind = 'one_off' and body_html <> ''").await, 1);
}

#[tokio::test]
async fn tests_have_an_hourly_limit_of_their_own() {
    let edge = Edge::with(ingress::Settings { campaign_test_rate_per_hour: 1, ..settings() }).await;
    let ready = Ready::on(edge).await;
    open_streams(&ready.edge).await;
    let campaign = ready.campaign(json!({})).await;
    let path = format!("/v1/campaigns/{campaign}/test");
    let body = json!({"to": ["ann@example.com"]});
    assert_eq!(ready.client.post(&path, body.clone()).await.status, 202);
    assert_eq!(ready.client.post(&path, body).await.refusal(), (429, "test_rate_exceeded"));
    assert_eq!(ready.edge.count("select count(*) from messages").await, 1);
}

#[tokio::test]
async fn a_test_needs_a_sender_that_may_send() {
    let ready = Ready::start().await;
    let campaign = ready.campaign(json!({})).await;
    sqlx::query("update domains set status = 'failed'").execute(&ready.edge.pool).await.unwrap();
    let answer = ready.client.post(&format!("/v1/campaigns/{campaign}/test"), json!({"to": ["ann@example.com"]})).await;
    assert_eq!(answer.refusal(), (422, "sender_missing_verified_domain"));
}

#[tokio::test]
async fn a_duplicate_is_a_new_draft_with_all_that_was_decided() {
    let ready = Ready::start().await;
    let body = json!({
        "variants": [{"name": "Plain", "weight": 1}, {"name": "Loud", "weight": 2, "subject": "LOUD"}],
        "max_per_minute": 60, "urgency": "important", "preheader": "Soon",
    });
    let first = ready.campaign(body).await;
    ready.set_status(&first, "sent").await;
    let copied = ready.client.post(&format!("/v1/campaigns/{first}/duplicate"), json!({})).await;
    assert_eq!((copied.status.as_u16(), copied.text("status").as_str()), (201, "draft"));
    assert_eq!(copied.text("name"), "Spring (copy)");
    let read = |id: String| {
        let path = format!("/v1/campaigns/{id}");
        let client = &ready.client;
        async move { client.get(&path).await.body["campaign"].clone() }
    };
    let (mut before, mut after) = (read(first.clone()).await, read(copied.text("campaign_id")).await);
    for own in ["campaign_id", "name", "status", "created_at", "updated_at"] {
        for campaign in [&mut before, &mut after] {
            campaign.as_object_mut().unwrap().remove(own);
        }
    }
    assert_eq!(before, after);
    let named = ready.client.post(&format!("/v1/campaigns/{first}/duplicate"), json!({"name": "Autumn"})).await;
    assert_eq!(named.text("name"), "Autumn");
    let blank = ready.client.post(&format!("/v1/campaigns/{first}/duplicate"), json!({"name": " "})).await;
    assert_eq!(blank.status, 400);
}

#[tokio::test]
async fn a_duplicate_has_no_window_that_is_closed() {
    let ready = Ready::start().await;
    for (past, kept) in [("1 day", false), ("-1 day", true)] {
        let campaign = ready.campaign(json!({})).await;
        sqlx::query("update campaigns set status = 'sent', not_after = now() - $2::interval where id = $1::uuid")
            .bind(&campaign)
            .bind(past)
            .execute(&ready.edge.pool)
            .await
            .unwrap();
        let copied = ready.client.post(&format!("/v1/campaigns/{campaign}/duplicate"), json!({})).await;
        assert_eq!(copied.status, 201, "{}", copied.body);
        let read = ready.client.get(&format!("/v1/campaigns/{}", copied.text("campaign_id"))).await.body;
        assert_eq!(read["campaign"]["not_after"].is_string(), kept, "{read}");
    }
}

#[rstest]
#[case("scheduled", "draft")]
#[case("sending", "cancel")]
#[case("sent", "launched")]
#[case("cancelled", "launched")]
#[tokio::test]
async fn only_what_was_not_launched_is_deleted(#[case] status: &str, #[case] way_out: &str) {
    let ready = Ready::start().await;
    let campaign = ready.campaign(json!({})).await;
    ready.set_status(&campaign, status).await;
    if way_out == "launched" {
        sqlx::query("update campaigns set launched_at = now()").execute(&ready.edge.pool).await.unwrap();
    }
    let refused = ready.client.delete(&format!("/v1/campaigns/{campaign}"), json!({})).await;
    assert_eq!(refused.refusal(), (409, format!("campaign_already_{status}").as_str()));
    assert!(refused.text("detail").contains(way_out), "{}", refused.body);
    assert_eq!(ready.client.get(&format!("/v1/campaigns/{campaign}")).await.status, 200);
}

#[rstest]
#[case::draft(None)]
#[case::scheduled(Some(json!({"schedule_for": (Utc::now() + TimeDelta::hours(2)).to_rfc3339()})))]
#[case::sending(Some(json!({})))]
#[tokio::test]
async fn what_was_cancelled_before_its_launch_began_is_deleted(#[case] launch: Option<Value>) {
    let ready = Ready::start().await;
    let campaign = ready.campaign(json!({})).await;
    let path = format!("/v1/campaigns/{campaign}");
    if let Some(launch) = launch {
        let launched = ready.client.post(&format!("{path}/launch"), launch).await;
        assert_eq!(launched.status, 202, "{}", launched.body);
    }
    assert_eq!(ready.client.patch(&path, json!({"status": "cancelled"})).await.status, 200);
    let gone = ready.client.delete(&path, json!({})).await;
    assert_eq!((gone.status.as_u16(), gone.text("status").as_str()), (200, "deleted"), "{}", gone.body);
    assert_eq!(ready.client.get(&path).await.refusal(), (404, "campaign_not_found"));
    assert_eq!(ready.edge.count("select count(*) from requests where state = 'accepted'").await, 0);
    assert_eq!(ready.edge.count("select count(*) from launch_audiences").await, 0);
}

#[tokio::test]
async fn a_deleted_draft_is_gone_with_its_variants() {
    let ready = Ready::start().await;
    let variants =
        json!({"variants": [{"name": "Plain", "weight": 1}, {"name": "Loud", "weight": 1, "subject": "LOUD"}]});
    let campaign = ready.campaign(variants).await;
    let gone = ready.client.delete(&format!("/v1/campaigns/{campaign}"), json!({})).await;
    assert_eq!((gone.status.as_u16(), gone.text("status").as_str()), (200, "deleted"));
    assert_eq!(ready.client.get(&format!("/v1/campaigns/{campaign}")).await.refusal(), (404, "campaign_not_found"));
    assert_eq!(ready.edge.count("select count(*) from campaign_variants").await, 0);
    assert_eq!(ready.edge.count("select count(*) from audit_log where action = 'campaign.deleted'").await, 1);
}

#[tokio::test]
async fn what_a_draft_no_longer_says_is_not_kept() {
    let ready = Ready::start().await;
    let template = ready.template(json!({"body_html": "<p>Of the template</p>"})).await;
    let variants = json!([{"name": "Plain", "weight": 1}, {"name": "Loud", "weight": 1, "subject": "LOUD"}]);
    let campaign = ready.campaign(json!({"body_html": "<p>First</p>", "variants": variants})).await;
    let path = format!("/v1/campaigns/{campaign}");
    let change = async |body: Value| {
        let changed = ready.client.patch(&path, body).await;
        assert_eq!(changed.status, 200, "{}", changed.body);
    };
    let kept = async || {
        let bodies: Vec<String> = sqlx::query_scalar(
            "select distinct substring(body_html from 'First|Second|Of the template') as body from contents
             where body_html ~ 'First|Second|Of the template' order by body",
        )
        .fetch_all(&ready.edge.pool)
        .await
        .unwrap();
        bodies
    };
    change(json!({"body_html": "<p>Second</p>"})).await;
    assert_eq!(kept().await, ["Of the template", "Second"]);
    change(json!({"name": "Another name"})).await;
    assert_eq!(kept().await, ["Of the template", "Second"], "it says what it said");
    change(json!({"template_id": template, "subject": null, "body_html": null, "variants": null})).await;
    assert_eq!(kept().await, ["Of the template"]);
    change(json!({"template_id": null, "subject": "Own", "body_html": "<p>First</p>"})).await;
    assert_eq!(kept().await, ["First", "Of the template"], "a version of a template stays");
    assert_eq!(ready.client.delete(&path, json!({})).await.status, 200);
    assert_eq!(kept().await, ["Of the template"]);
}
