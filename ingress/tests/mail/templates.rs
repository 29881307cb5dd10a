use rstest::rstest;
use serde_json::{Value, json};

use crate::fixtures::Ready;

#[tokio::test]
async fn a_template_is_read_back_as_it_was_written() {
    let ready = Ready::start().await;
    let id = ready
        .template(json!({
            "subject": "Hi {{ contact.first_name | default: 'there' }}", "preheader": "News", "body_text": "Hi {{ email }}",
            "template_type": "transactional", "status": "draft", "body_html": "<p>{{ data.order.id }}</p>",
        }))
        .await;
    let template = ready.client.get(&format!("/v1/templates/{id}")).await.body["template"].clone();
    assert_eq!(template["template_id"], json!(id));
    assert_eq!((&template["status"], &template["version"]), (&json!("draft"), &json!(1)));
    assert_eq!(template["template_type"], json!("transactional"));
    assert_eq!(template["body_html"], json!("<p>{{ data.order.id }}</p>"));
    assert_eq!(template["body_text"], json!("Hi {{ email }}"));
    assert_eq!(template["variables"], json!(["contact.first_name", "data.order.id", "email"]));
    assert!(template["created_at"].as_str().unwrap().ends_with('Z'));
}

#[rstest]
#[case(json!({"name": null}), "name", "required")]
#[case(json!({"name": " "}), "name", "empty")]
#[case(json!({"name": "a\u{0007}"}), "name", "control_character")]
#[case(json!({"subject": "a\r\nBcc: b@example.com"}), "subject", "control_character")]
#[case(json!({"body_html": ""}), "body_html", "empty")]
#[case(json!({"template_type": "push"}), "template_type", "not_allowed")]
#[case(json!({"status": "archived"}), "status", "not_allowed")]
#[case(json!({"colour": "red"}), "colour", "unknown_field")]
#[case(json!({"subject": "{{ first_nam }}"}), "subject", "unknown_variable")]
#[case(json!({"body_html": "{% if first_name %}x"}), "body_html", "unclosed_block")]
#[case(json!({"body_text": "{{ data.order }}"}), "body_text", "unknown_variable")]
#[case(json!({"preheader": "{{ contact.fields.plan }}"}), "preheader", "unknown_variable")]
#[tokio::test]
async fn a_template_with_a_fault_is_refused_where_the_fault_is(
    #[case] change: Value,
    #[case] path: &str,
    #[case] code: &str,
) {
    let ready = Ready::start().await;
    let mut body = json!({"name": "T", "subject": "S", "body_html": "<p>B</p>"});
    body.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
    let answer = ready.client.post("/v1/templates", body).await;
    assert_eq!(answer.refusal(), (400, "validation_failed"));
    assert_eq!(answer.faults(), [(path.to_owned(), code.to_owned())], "{}", answer.body);
    assert_eq!(ready.edge.count("select count(*) from templates").await, 0);
}

#[tokio::test]
async fn warnings_name_what_goes_wrong_in_a_mailbox() {
    let ready = Ready::start().await;
    let html = "<p>Hi</p>\n<a href=\"#\">{{ first_name }}</a><img src=\"https://cdn.acme.test/a.png\">";
    let body = json!({"name": "T", "subject": "S", "body_html": html});
    let created = ready.client.post("/v1/templates", body).await;
    let codes = |body: &Value| -> Vec<(String, u64)> {
        let warnings = body["warnings"].as_array().unwrap();
        warnings.iter().map(|one| (one["code"].as_str().unwrap().to_owned(), one["line"].as_u64().unwrap())).collect()
    };
    let expected = [("dead_link".to_owned(), 2), ("missing_alt".to_owned(), 2)];
    assert_eq!((created.status.as_u16(), codes(&created.body)), (201, expected.to_vec()));
    let path = format!("/v1/templates/{}", created.text("template_id"));
    let long = json!({"sample": {"first_name": "x".repeat(2_000)}});
    let rendered = ready.client.post(&format!("{path}/render"), long).await;
    assert_eq!(codes(&rendered.body), expected);
    assert_eq!(codes(&ready.client.patch(&path, json!({"name": "U"})).await.body), []);
    let loud = format!("{}<p>{{{{ first_name }}}}</p>", "<p>long</p>".repeat(9_600));
    let changed = ready.client.patch(&path, json!({"body_html": loud})).await;
    assert_eq!(codes(&changed.body), [("html_clipped".to_owned(), 1)]);
}

#[rstest]
#[case("件".repeat(300), true)]
#[case("件".repeat(301), false)]
#[tokio::test]
async fn the_text_of_a_subject_fits_into_its_line(#[case] subject: String, #[case] fits: bool) {
    let ready = Ready::start().await;
    let status = if fits { 201 } else { 400 };
    let faults = if fits { Vec::new() } else { vec![("subject".to_owned(), "too_long".to_owned())] };
    let mjml = "<mjml><mj-body><mj-section><mj-column><mj-text>Hi</mj-text></mj-column></mj-section></mj-body></mjml>";
    for (field, body) in [("body_html", "<p>Hi</p>"), ("mjml", mjml)] {
        let template = json!({"name": "T", "subject": subject, field: body});
        let campaign = json!({"subject": subject, "body_html": null, field: body});
        for (path, body) in [("/v1/templates", template), ("/v1/campaigns", ready.campaign_body(campaign))] {
            let answer = ready.client.post(path, body).await;
            assert_eq!((answer.status.as_u16(), answer.faults()), (status, faults.clone()), "{path} {}", answer.body);
        }
    }
    if fits {
        let template = ready.template(json!({"subject": subject})).await;
        let rendered = ready.client.post(&format!("/v1/templates/{template}/render"), json!({})).await;
        assert_eq!(rendered.body["subject"], json!(subject), "{}", rendered.body);
    }
}

#[tokio::test]
async fn a_fault_names_line_and_column() {
    let ready = Ready::start().await;
    let body = json!({"name": "T", "subject": "S", "body_html": "<p>\n  {{ nobody }}</p>"});
    let answer = ready.client.post("/v1/templates", body).await;
    let detail = answer.body["fields"][0]["detail"].as_str().unwrap().to_owned();
    assert!(detail.starts_with("line 2 column 3: "), "{detail}");
}

#[tokio::test]
async fn a_field_the_tenant_has_defined_may_be_used() {
    let ready = Ready::start().await;
    sqlx::query(
        "insert into fields (tenant_id, id, key, label, type) values ($1, gen_random_uuid(), 'plan', 'Plan', 'string')",
    )
    .bind(ready.client.tenant)
    .execute(&ready.edge.pool)
    .await
    .unwrap();
    ready.template(json!({"subject": "Your {{ contact.fields.plan }}"})).await;
}

#[tokio::test]
async fn every_change_of_content_is_a_new_version_and_nothing_else_is() {
    let ready = Ready::start().await;
    let id = ready.template(json!({"preheader": "P"})).await;
    let path = format!("/v1/templates/{id}");
    for (change, version) in [
        (json!({"name": "Other"}), 1),
        (json!({"subject": "Your receipt"}), 1),
        (json!({"subject": "Receipt"}), 2),
        (json!({"preheader": null}), 3),
        (json!({"status": "draft"}), 3),
        (json!({"body_text": "Thank you", "body_html": "<b>Thank you</b>"}), 4),
        (json!({}), 4),
    ] {
        let answer = ready.client.patch(&path, change.clone()).await;
        assert_eq!((answer.status.as_u16(), &answer.body["version"]), (200, &json!(version)), "{change}");
    }
    let template = ready.client.get(&path).await.body["template"].clone();
    assert_eq!(
        (&template["name"], &template["subject"], &template["preheader"]),
        (&json!("Other"), &json!("Receipt"), &Value::Null)
    );
    assert_eq!(template["status"], json!("draft"));
    // Old versions stay: sends pin them.
    assert_eq!(ready.edge.count("select count(*) from template_versions").await, 4);
    assert_eq!(ready.edge.count("select count(*) from contents").await, 4);
}

#[tokio::test]
async fn versions_made_at_the_same_time_are_numbered_one_after_the_other() {
    let ready = Ready::start().await;
    let path = format!("/v1/templates/{}", ready.template(json!({})).await);
    let changes = (0..6).map(|n| {
        let (client, path) = (ready.client.clone(), path.clone());
        async move {
            client.patch(&path, json!({"subject": format!("Subject {n}")})).await.body["version"].as_i64().unwrap()
        }
    });
    let mut versions = futures::future::join_all(changes).await;
    versions.sort_unstable();
    assert_eq!(versions, [2, 3, 4, 5, 6, 7]);
}

#[tokio::test]
async fn a_patch_that_is_refused_changes_nothing() {
    let ready = Ready::start().await;
    let path = format!("/v1/templates/{}", ready.template(json!({})).await);
    let answer = ready.client.patch(&path, json!({"name": "New", "subject": "{{ nobody }}"})).await;
    assert_eq!(answer.faults(), [("subject".to_owned(), "unknown_variable".to_owned())]);
    assert_eq!(ready.client.patch(&path, json!({"subject": null})).await.faults()[0].1, "required");
    assert_eq!(ready.client.patch(&path, json!({"template_type": "marketing"})).await.faults()[0].1, "unknown_field");
    assert_eq!(ready.client.get(&path).await.body["template"]["name"], json!("Receipt"));
}

#[tokio::test]
async fn an_archived_template_stays_readable_and_comes_back_by_patch() {
    let ready = Ready::start().await;
    let id = ready.template(json!({})).await;
    let path = format!("/v1/templates/{id}");
    for _ in 0..2 {
        let answer = ready.client.delete(&path, json!({})).await;
        assert_eq!(
            (answer.status.as_u16(), &answer.body),
            (200, &json!({"ok": true, "template_id": id, "status": "archived"}))
        );
    }
    assert_eq!(ready.client.get(&path).await.body["template"]["status"], json!("archived"));
    let refused = ready.client.post("/v1/campaigns", ready.campaign_body(json!({"template_id": id}))).await;
    assert_eq!(refused.refusal(), (404, "template_not_found"));
    assert_eq!(ready.client.patch(&path, json!({"status": "active"})).await.text("status"), "active");
}

#[tokio::test]
async fn a_template_comes_back_only_without_a_field_that_was_removed_meanwhile() {
    let ready = Ready::start().await;
    let field = json!({"key": "plan", "label": "Plan", "type": "string"});
    let field = ready.client.post("/v1/fields", field).await.text("field_id");
    let id = ready.template(json!({"body_html": "<p>{{ contact.fields.plan }}</p>"})).await;
    let path = format!("/v1/templates/{id}");
    for gone in [path.clone(), format!("/v1/fields/{field}")] {
        assert_eq!(ready.client.delete(&gone, json!({})).await.status, 200, "{gone}");
    }
    let returned = ready.client.patch(&path, json!({"status": "active"})).await;
    assert_eq!(returned.faults(), [("status".to_owned(), "unknown_variable".to_owned())]);
    let mended = json!({"status": "active", "body_html": "<p>Hello</p>"});
    assert_eq!(ready.client.patch(&path, mended).await.text("status"), "active");
}

#[tokio::test]
async fn templates_are_listed_newest_first_by_status_page_by_page_without_bodies() {
    let ready = Ready::start().await;
    let mut ids = Vec::new();
    for status in ["active", "draft", "active", "active"] {
        ids.push(ready.template(json!({"status": status})).await);
    }
    let names = |body: &Value| -> Vec<String> {
        body["templates"]
            .as_array()
            .unwrap()
            .iter()
            .map(|template| template["template_id"].as_str().unwrap().to_owned())
            .collect()
    };
    let first = ready.client.get("/v1/templates?status=active&limit=2").await.body;
    assert_eq!(names(&first), [ids[3].clone(), ids[2].clone()]);
    assert!(first["templates"][0].get("body_html").is_none());
    let cursor = first["next_cursor"].as_str().unwrap();
    let second = ready.client.get(&format!("/v1/templates?status=active&limit=2&cursor={cursor}")).await.body;
    assert_eq!((names(&second), &second["next_cursor"]), (vec![ids[0].clone()], &Value::Null));
    for (query, path) in
        [("status=old", "status"), ("limit=0", "limit"), ("limit=201", "limit"), ("colour=red", "colour")]
    {
        let answer = ready.client.get(&format!("/v1/templates?{query}")).await;
        assert_eq!((answer.status.as_u16(), answer.faults()[0].0.as_str()), (400, path));
    }
}
