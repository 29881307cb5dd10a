//! Versions of templates, and what they look like for somebody.

use std::time::{Duration, Instant};

use rstest::rstest;
use serde_json::{Value, json};

use crate::fixtures::Ready;

#[tokio::test]
async fn versions_are_listed_newest_first_and_each_can_be_read() {
    let ready = Ready::start().await;
    let id = ready.template(json!({"subject": "One"})).await;
    let path = format!("/v1/templates/{id}");
    for subject in ["Two", "Three"] {
        ready.client.patch(&path, json!({"subject": subject})).await;
    }
    let first = ready.client.get(&format!("{path}/versions?limit=2")).await.body;
    let seen = |body: &Value| -> Vec<(i64, bool, String)> {
        let of = |version: &Value| {
            let subject = version["subject"].as_str().unwrap().to_owned();
            (version["version"].as_i64().unwrap(), version["current"].as_bool().unwrap(), subject)
        };
        body["versions"].as_array().unwrap().iter().map(of).collect()
    };
    assert_eq!(seen(&first), [(3, true, "Three".to_owned()), (2, false, "Two".to_owned())]);
    let cursor = first["next_cursor"].as_str().unwrap();
    let second = ready.client.get(&format!("{path}/versions?limit=2&cursor={cursor}")).await.body;
    assert_eq!((seen(&second), &second["next_cursor"]), (vec![(1, false, "One".to_owned())], &Value::Null));

    let old = ready.client.get(&format!("{path}?version=1")).await.body["template"].clone();
    assert_eq!((&old["subject"], &old["version"], &old["status"]), (&json!("One"), &json!(1), &json!("active")));
    assert_eq!(ready.client.get(&path).await.body["template"]["subject"], "Three");
    let missing = ready.client.get(&format!("{path}?version=4")).await;
    assert_eq!(missing.refusal(), (404, "template_version_not_found"));
}

async fn render(ready: &Ready, id: &str, body: Value) -> crate::common::Answer {
    ready.client.post(&format!("/v1/templates/{id}/render"), body).await
}

#[tokio::test]
async fn a_template_is_rendered_for_a_contact_a_sample_or_nobody_in_particular() {
    let ready = Ready::start().await;
    let contact = ready.client.post("/v1/contacts", json!({"email": "ann@example.com", "first_name": "Ann"})).await;
    let id = ready
        .template(json!({
            "template_type": "transactional", "subject": "Hi {{ first_name | default: 'you' }}",
            "body_html": "<p>{{ email }} pays {{ data.total }} to {{ sender.name }}</p>",
        }))
        .await;
    let data = json!({"total": "<12>"});
    let for_contact = render(&ready, &id, json!({"contact_id": contact.text("contact_id"), "data": data})).await;
    assert_eq!(for_contact.text("subject"), "Hi Ann");
    let html = for_contact.text("html");
    assert!(html.contains("ann@example.com pays &lt;12&gt; to News"), "escaped: {html}");
    assert!(for_contact.text("text").contains("ann@example.com pays <12> to News"), "{}", for_contact.body);
    let for_sample = render(&ready, &id, json!({"sample": {"first_name": "Bob"}, "data": data})).await;
    assert_eq!(for_sample.text("subject"), "Hi Bob");
    assert_eq!(render(&ready, &id, json!({})).await.text("subject"), "Hi you");
    // Nobody was mailed, and nothing was written down.
    assert_eq!(ready.edge.count("select count(*) from requests").await, 0);
}

#[rstest]
#[case("marketing", true)]
#[case("sequence", true)]
#[case("transactional", false)]
#[tokio::test]
async fn a_template_is_shown_with_the_footer_of_its_mail(#[case] kind: &str, #[case] has_footer: bool) {
    let ready = Ready::start().await;
    let id = ready.template(json!({"template_type": kind})).await;
    let shown = render(&ready, &id, json!({})).await;
    assert_eq!(shown.text("html").contains("Unsubscribe"), has_footer, "{}", shown.body);
}

#[tokio::test]
async fn any_version_and_any_status_can_be_looked_at() {
    let ready = Ready::start().await;
    let id = ready.template(json!({"subject": "One", "status": "draft"})).await;
    ready.client.patch(&format!("/v1/templates/{id}"), json!({"subject": "Two"})).await;
    ready.client.delete(&format!("/v1/templates/{id}"), json!({})).await;
    let shown = render(&ready, &id, json!({})).await.body;
    assert_eq!((&shown["subject"], &shown["version"]), (&json!("Two"), &json!(2)));
    assert_eq!(render(&ready, &id, json!({"version": 1})).await.text("subject"), "One");
    for (body, code) in [
        (json!({"version": 9}), "template_version_not_found"),
        (json!({"contact_id": schemas::new_id()}), "contact_not_found"),
        (json!({"sender_profile_id": schemas::new_id()}), "sender_profile_not_found"),
    ] {
        assert_eq!(render(&ready, &id, body).await.refusal(), (404, code));
    }
    let long = render(&ready, &id, json!({"sample": {"email": "x".repeat(10_000)}})).await;
    assert_eq!(long.faults(), [("sample.email".to_owned(), "too_long".to_owned())]);
    let both = render(&ready, &id, json!({"contact_id": schemas::new_id(), "sample": {}})).await;
    assert_eq!(both.faults(), [("sample".to_owned(), "ambiguous".to_owned())]);
}

#[tokio::test]
async fn a_name_that_is_markup_stays_a_name() {
    let ready = Ready::start().await;
    let id = ready.template(json!({"subject": "Hi {{ first_name }}", "body_html": "<p>Hi {{ first_name }}</p>"})).await;
    for name in
        ["<script>alert(1)</script>", "{{ email }}", "{% for i in (1..9) %}x{% endfor %}", "A\r\nBcc: b@example.com"]
    {
        let shown = render(&ready, &id, json!({"sample": {"first_name": name}})).await;
        assert_eq!(shown.status, 200, "{}", shown.body);
        let (subject, html) = (shown.text("subject"), shown.text("html"));
        assert!(!subject.contains(['\r', '\n']), "{subject:?}");
        assert!(!html.contains("<script") && !html.contains("someone@example.com"), "{html}");
    }
}

/// Refused when it is saved, or cut short when it is rendered; quickly, and with the process alive.
#[rstest]
#[case::nested_blocks("{% if email %}".repeat(1_000) + &"{% endif %}".repeat(1_000), Err("nesting_too_deep"))]
#[case::nested_indexes(format!("{{{{ data{}.x{} }}}}", "[data".repeat(500), "]".repeat(500)), Err("nesting_too_deep"))]
#[case::a_huge_range("{% for i in (1..3000000) %}x{% endfor %}".to_owned(), Err("range_too_large"))]
#[case::many_tags("{{ email }}".repeat(3_000), Err("too_many_tags"))]
#[case::doubling_append(
    format!("{{% assign x = 'aaaaaaaaaaaaaaaa' %}}{}{{{{ x }}}}", "{% assign x = x | append: x %}".repeat(40)),
    Ok("render_filter_failed")
)]
#[case::doubling_capture(
    format!("{{% capture x %}}aaaaaaaaaaaaaaaa{{% endcapture %}}{}{{{{ x }}}}", "{% capture x %}{{ x }}{{ x }}{% endcapture %}".repeat(40)),
    Ok("render_output_too_large")
)]
#[case::a_million_rounds(
    "{% for i in (1..1000) %}{% for j in (1..1000) %}{% if i == j %}{% endif %}{% endfor %}{% endfor %}".to_owned(),
    Ok("render_deadline_exceeded")
)]
#[case::much_output(format!("{{% for i in (1..1000) %}}{}{{% endfor %}}", "x".repeat(2_000)), Ok("render_output_too_large"))]
#[case::openings_after_raw(format!("{{% raw %}}{}%}}", "{%".repeat(240_000)), Err("unclosed_tag"))]
#[case::openings_after_comment(format!("{{% comment %}}{}", "{%".repeat(240_000)), Err("unclosed_tag"))]
#[case::words_like_placeholders((0..60_000).map(|number| format!("qz{number}x")).collect(), Ok(""))]
#[case::many_alternatives(
    format!("{{% case email %}}{{% when {} %}}{{% endcase %}}", vec!["1"; 2_000].join(",")),
    Err("syntax_error")
)]
#[case::an_open_comment("<p>x</p><!-- ".to_owned(), Err("html_invalid"))]
#[tokio::test]
async fn a_hostile_template_is_refused_or_bounded_while_others_are_served(
    #[case] html: String,
    #[case] expected: Result<&str, &str>,
) {
    let ready = Ready::start().await;
    let begun = Instant::now();
    let other = async {
        let begun = Instant::now();
        assert_eq!(ready.client.get("/v1/templates").await.status, 200);
        begun.elapsed()
    };
    let create = ready.client.post("/v1/templates", json!({"name": "T", "subject": "S", "body_html": html}));
    let (made, waited) = tokio::join!(create, other);
    assert!(waited < Duration::from_secs(60), "others waited {waited:?}");
    match expected {
        Err(code) => {
            assert_eq!(made.refusal(), (400, "validation_failed"));
            assert_eq!(made.faults()[0], ("body_html".to_owned(), code.to_owned()), "{}", made.body);
        }
        Ok(code) => {
            assert_eq!(made.status, 201, "{}", made.body);
            let shown = render(&ready, &made.text("template_id"), json!({})).await;
            if code.is_empty() {
                assert_eq!(shown.status, 200, "{}", shown.body);
            } else {
                assert_eq!(shown.refusal(), (422, code));
            }
        }
    }
    assert!(begun.elapsed() < Duration::from_secs(90), "{:?}", begun.elapsed());
    assert_eq!(ready.client.get("/v1/templates").await.status, 200, "the process lives");
}

/// Merge data that one message cannot have: each with the limit it passes.
fn too_much_data() -> [(Value, &'static str, &'static str); 3] {
    let deep = (0..20).fold(json!(1), |inner, _| json!({"a": inner}));
    [
        (json!({"big": vec![2; 20_000]}), "data", "too_many"),
        (json!({"big": "x".repeat(300_000)}), "data", "too_long"),
        (json!({"deep": deep}), "data.deep.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a", "nested_too_deep"),
    ]
}

#[tokio::test]
async fn merge_data_over_a_limit_is_refused_with_its_path_wherever_it_is_taken() {
    let ready = Ready::start().await;
    let id = ready.template(json!({"template_type": "transactional"})).await;
    for (data, path, code) in too_much_data() {
        let expected = [(path.to_owned(), code.to_owned())];
        let shown = render(&ready, &id, json!({"data": data})).await;
        assert_eq!((shown.refusal(), shown.faults()), ((400, "validation_failed"), expected.to_vec()));
        let body = json!({"template_id": id, "email": "ann@example.com", "data": data});
        let sent = ready.client.post("/v1/transactional", body).await;
        assert_eq!((sent.refusal(), sent.faults()), ((400, "validation_failed"), expected.to_vec()));
    }
    assert_eq!(ready.edge.count("select count(*) from requests").await, 0);
}

/// A `case` on as much merge data as is taken, sixteen times at once: as many as there are connections.
#[tokio::test]
async fn renderings_that_spend_their_budget_hold_no_connection_and_others_are_served() {
    let ready = Ready::start().await;
    let branch = format!("{{% when {} %}}x", vec!["data.other"; 20].join(", "));
    let html = format!("{{% case data.big %}}{}{{% endcase %}}", branch.repeat(100));
    let id = ready.template(json!({"template_type": "transactional", "body_html": html})).await;
    let big = vec![2; 4_900];
    let mut other = big.clone();
    other[4_899] = 3;
    let body = json!({"data": {"big": big, "other": other}});
    let renderings = (0..16).map(|_| render(&ready, &id, body.clone()));
    let others = async {
        for _ in 0..10 {
            assert_eq!(ready.client.get("/v1/templates").await.status, 200);
        }
    };
    let (shown, ()) = tokio::join!(futures::future::join_all(renderings), others);
    for shown in shown {
        // Spent, or not even begun while so many others were at it.
        assert!(
            shown.refusal() == (422, "render_deadline_exceeded") || shown.refusal() == (503, "unavailable"),
            "{}",
            shown.body
        );
    }
}

fn receipts() -> Value {
    json!([
        {"name": "tea", "sample": {"first_name": "Ann"}, "data": {"total": "12", "spare": 1}},
        {"name": "none", "data": {"items": [1, 2]}},
    ])
}

#[tokio::test]
async fn a_template_is_rendered_with_its_test_data_by_name() {
    let ready = Ready::start().await;
    let body = json!({
        "name": "R", "template_type": "transactional", "subject": "Hi {{ first_name | default: 'you' }}", "test_data": receipts(),
        "body_html": "<p>{{ data.total }} for {% for item in data.items %}{{ item }}{% endfor %}</p>",
    });
    let made = ready.client.post("/v1/templates", body).await;
    let misfits = json!([
        {"name": "tea", "unknown": ["data.spare"], "missing": ["data.items"]},
        {"name": "none", "unknown": [], "missing": ["data.total"]},
    ]);
    assert_eq!((made.status.as_u16(), &made.body["test_data_misfits"]), (201, &misfits), "{}", made.body);
    let id = made.text("template_id");
    let seen = render(&ready, &id, json!({"test_data": "tea"})).await.body;
    assert_eq!((&seen["subject"], &seen["html"]), (&json!("Hi Ann"), &json!("<p>12 for </p>")));
    assert_eq!(render(&ready, &id, json!({"test_data": "none"})).await.body["html"], "<p> for 12</p>");
    for (body, fault) in [
        (json!({"test_data": "coffee"}), ("test_data", "unknown")),
        (json!({"test_data": "tea", "sample": {}}), ("test_data", "ambiguous")),
        (json!({"test_data": "tea", "data": {}}), ("data", "ambiguous")),
    ] {
        let refused = render(&ready, &id, body).await;
        assert_eq!(refused.faults(), [(fault.0.to_owned(), fault.1.to_owned())], "{}", refused.body);
    }

    let path = format!("/v1/templates/{id}");
    let read = ready.client.get(&path).await.body["test_data"][0].clone();
    assert_eq!((&read["sample"], &read["data"]["total"]), (&json!({"first_name": "Ann"}), &json!("12")));
    let changed = ready.client.patch(&path, json!({"body_html": "<p>{{ data.total }}</p>"})).await.body;
    assert_eq!((&changed["version"], &changed["test_data_misfits"][1]["unknown"]), (&json!(2), &json!(["data.items"])));
    let changed = ready.client.patch(&path, json!({"test_data": null})).await.body;
    assert_eq!((&changed["version"], &changed["test_data_misfits"]), (&json!(2), &json!([])));
    assert_eq!(ready.client.get(&path).await.body["test_data"], json!([]));
}

#[tokio::test]
async fn every_fault_of_test_data_is_named() {
    let ready = Ready::start().await;
    let set = |name: &str| json!({"name": name, "sample": {"fields": {"plan": "x", "size": 1}}});
    let mut sets = vec![set("a"), set("a"), json!({"name": " "})];
    let body = |sets: &[Value]| json!({"name": "T", "subject": "S", "body_html": "<p>B</p>", "test_data": sets});
    let mut faults = ready.client.post("/v1/templates", body(&sets)).await.faults();
    faults.sort();
    let mut expected = Vec::new();
    for index in 0..2 {
        for field in ["plan", "size"] {
            expected.push((format!("test_data[{index}].sample.fields.{field}"), "unknown_field".to_owned()));
        }
    }
    expected.push(("test_data[1].name".to_owned(), "duplicate".to_owned()));
    expected.push(("test_data[2].name".to_owned(), "empty".to_owned()));
    expected.sort();
    assert_eq!(faults, expected);
    sets = (0..21).map(|number| json!({"name": number.to_string()})).collect();
    let faults = ready.client.post("/v1/templates", body(&sets)).await.faults();
    assert_eq!(faults, [("test_data".to_owned(), "too_many".to_owned())]);
}

#[tokio::test]
async fn a_campaign_is_previewed_with_test_data_of_its_template() {
    let ready = Ready::start().await;
    let data = json!([{"name": "ann", "sample": {"first_name": "Ann"}}]);
    let template = ready.template(json!({"body_html": "<p>Hi {{ first_name }}</p>", "test_data": data})).await;
    let campaign =
        ready.campaign(json!({"template_id": template, "subject": "Own {{ first_name }}", "body_html": null})).await;
    let path = format!("/v1/campaigns/{campaign}/preview");
    let seen = ready.client.post(&path, json!({"test_data": "ann"})).await.body;
    assert_eq!(seen["subject"], "Own Ann", "{seen}");
    assert!(seen["html"].as_str().unwrap().contains("Hi Ann"), "{seen}");
    let unknown = ready.client.post(&path, json!({"test_data": "bob"})).await;
    assert_eq!(unknown.faults(), [("test_data".to_owned(), "unknown".to_owned())]);
}
