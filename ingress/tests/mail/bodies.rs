//! Bodies of campaigns' own: snippets, layouts and MJML in them, when they take the newest, and what they protect.

use rstest::rstest;
use serde_json::{Value, json};

use crate::{
    common::Answer,
    fixtures::{Ready, open_streams},
};

const INCLUDE: &str = "{% include 'hello' %}";

fn mjml(text: &str) -> String {
    format!("<mjml><mj-body><mj-section><mj-column><mj-text>{text}</mj-text></mj-column></mj-section></mj-body></mjml>")
}

/// The snippet `hello` and the layouts `page` and `frame`, of HTML and text. Answers their ids.
async fn snippets(ready: &Ready) -> [String; 3] {
    let bodies = [
        json!({"name": "hello", "body_html": "<b>Hello {{ first_name }}</b>", "body_text": "HELLO {{ first_name }}"}),
        json!({"name": "page", "kind": "layout", "body_html": "<main>{{ content }}</main>", "body_text": "{{ content }}\n--"}),
        json!({"name": "frame", "kind": "layout", "body_html": "<div>{{ content }}</div>"}),
    ];
    let mut ids = [const { String::new() }; 3];
    for (id, body) in ids.iter_mut().zip(bodies) {
        let answer = ready.client.post("/v1/snippets", body).await;
        assert_eq!(answer.status, 201, "{}", answer.body);
        *id = answer.text("snippet_id");
    }
    ids
}

fn own() -> Value {
    json!({"body_html": INCLUDE, "body_text": INCLUDE, "layout": "page"})
}

/// The HTML that a campaign, or a variant of it, holds.
async fn held(ready: &Ready, campaign: &str, variant: Option<&str>) -> String {
    sqlx::query_scalar(
        "select c.body_html
         from campaigns k
         left join campaign_variants v on v.campaign_id = k.id and v.variant = $2
         join contents c on c.id = case when $2 is null then k.content_id else v.content_id end
         where k.id = $1::uuid",
    )
    .bind(campaign)
    .bind(variant)
    .fetch_one(&ready.edge.pool)
    .await
    .unwrap()
}

async fn preview(ready: &Ready, campaign: &str, body: Value) -> Answer {
    ready.client.post(&format!("/v1/campaigns/{campaign}/preview"), body).await
}

async fn change_hello(ready: &Ready, hello: &str, html: &str) -> Answer {
    let changed = ready.client.patch(&format!("/v1/snippets/{hello}"), json!({"body_html": html})).await;
    assert_eq!(changed.status, 200, "{}", changed.body);
    changed
}

async fn read(ready: &Ready, campaign: &str) -> Value {
    ready.client.get(&format!("/v1/campaigns/{campaign}")).await.body["campaign"].clone()
}

/// The campaigns that hold a snippet: status and version of the snippet.
async fn users(ready: &Ready, snippet: &str) -> Vec<(String, i64)> {
    let answer = ready.client.get(&format!("/v1/snippets/{snippet}/campaigns")).await;
    let text = |one: &Value| one["status"].as_str().unwrap().to_owned();
    let users = answer.body["campaigns"].as_array().unwrap().iter();
    users.map(|one| (text(one), one["snippet_version"].as_i64().unwrap())).collect()
}

#[tokio::test]
async fn an_own_body_is_shown_as_written_and_sent_composed() {
    let ready = Ready::start().await;
    snippets(&ready).await;
    let campaign = ready.campaign(own()).await;
    let copied = ready.client.post(&format!("/v1/campaigns/{campaign}/duplicate"), json!({})).await;
    for id in [&campaign, &copied.text("campaign_id")] {
        let shown = read(&ready, id).await;
        let parts = [&shown["body_html"], &shown["body_text"], &shown["layout"], &shown["mjml"]];
        assert_eq!(parts, [&json!(INCLUDE), &json!(INCLUDE), &json!("page"), &Value::Null]);
        let seen = preview(&ready, id, json!({"sample": {"first_name": "Ann"}})).await;
        assert!(seen.text("html").starts_with("<main><b>Hello Ann</b></main>"), "{}", seen.body);
        assert!(seen.text("text").starts_with("HELLO Ann\n--"), "{}", seen.body);
    }
    let listed = ready.client.get("/v1/campaigns").await.body["campaigns"][0].clone();
    assert!(listed.get("body_html").is_none() && listed.get("layout").is_none(), "{listed}");

    open_streams(&ready.edge).await;
    let to = json!({"to": ["boss@example.com"], "sample": {"first_name": "Ann"}});
    assert_eq!(ready.client.post(&format!("/v1/campaigns/{campaign}/test"), to).await.status, 202);
    let sent =
        "select count(*) from contents where kind = 'one_off' and body_html like '<main><b>Hello Ann</b></main>%'";
    assert_eq!(ready.edge.count(sent).await, 1);
}

#[tokio::test]
async fn a_draft_takes_the_newest_snippets_until_its_launch() {
    let ready = Ready::start().await;
    let [hello, ..] = snippets(&ready).await;
    let campaign = ready.campaign(own()).await;
    let changed = change_hello(&ready, &hello, "<i>{{ first_name }}</i>").await;
    assert_eq!(changed.body["outdated_templates"], 0, "nobody has to refresh a campaign");
    assert_eq!(held(&ready, &campaign, None).await, "<main><b>Hello {{ first_name }}</b></main>");
    let seen = preview(&ready, &campaign, json!({"sample": {"first_name": "Ann"}})).await;
    assert!(seen.text("html").starts_with("<main><i>Ann</i></main>"), "{}", seen.body);
    assert_eq!(users(&ready, &hello).await, [("draft".to_owned(), 1)]);

    let launched = ready.client.post(&format!("/v1/campaigns/{campaign}/launch"), json!({})).await;
    assert_eq!(launched.status, 202, "{}", launched.body);
    let newest = held(&ready, &campaign, None).await;
    assert_eq!(newest, "<main><i>{{ first_name }}</i></main>");
    assert_eq!(users(&ready, &hello).await, [("sending".to_owned(), 2)]);

    change_hello(&ready, &hello, "LATE").await;
    assert_eq!(held(&ready, &campaign, None).await, newest, "nothing changes under a campaign that was launched");
    let seen = preview(&ready, &campaign, json!({"sample": {"first_name": "Ann"}})).await;
    assert!(seen.text("html").starts_with("<main><i>Ann</i></main>"), "{}", seen.body);
}

#[tokio::test]
async fn a_launch_without_newer_snippets_keeps_the_content_of_the_draft() {
    let ready = Ready::start().await;
    snippets(&ready).await;
    let campaign = ready.campaign(own()).await;
    let contents = ready.edge.count("select count(*) from contents").await;
    assert_eq!(ready.client.post(&format!("/v1/campaigns/{campaign}/launch"), json!({})).await.status, 202);
    assert_eq!(ready.edge.count("select count(*) from contents").await, contents);
}

#[tokio::test]
async fn a_launch_is_refused_where_a_newer_snippet_has_a_fault() {
    let ready = Ready::start().await;
    let [hello, ..] = snippets(&ready).await;
    let variants = json!([{"name": "Plain", "weight": 1}, {"name": "Own", "weight": 1, "body_html": INCLUDE}]);
    let campaign = ready.campaign(json!({"variants": variants})).await;
    change_hello(&ready, &hello, "{{ data.price }}").await;
    let refused = ready.client.post(&format!("/v1/campaigns/{campaign}/launch"), json!({})).await;
    assert_eq!(refused.faults(), [("variants[1].body_html".to_owned(), "unknown_variable".to_owned())]);
    assert_eq!(read(&ready, &campaign).await["status"], "draft");
}

#[tokio::test]
async fn an_own_body_may_be_mjml_in_a_layout() {
    let ready = Ready::start().await;
    let layout = json!({"name": "letter", "kind": "layout", "mjml": mjml("{{ content }}")});
    assert_eq!(ready.client.post("/v1/snippets", layout).await.status, 201);
    let campaign = ready.campaign(json!({"body_html": null, "mjml": "Hi {{ first_name }}", "layout": "letter"})).await;
    let shown = read(&ready, &campaign).await;
    assert_eq!(shown["mjml"], "Hi {{ first_name }}");
    assert!(shown["body_html"].as_str().unwrap().starts_with("<!doctype html>"), "what it was compiled to: {shown}");
    let seen = preview(&ready, &campaign, json!({"sample": {"first_name": "Ann"}})).await;
    assert!(seen.text("html").contains("Hi Ann</div>"), "{}", seen.body);

    let path = format!("/v1/campaigns/{campaign}");
    let patch = async |change: Value| ready.client.patch(&path, change).await;
    let unfit = patch(json!({"body_html": "<p>HTML</p>"})).await;
    assert_eq!(unfit.faults(), [("layout".to_owned(), "unknown_layout".to_owned())], "it is one of MJML");
    assert_eq!(patch(json!({"body_html": "<p>HTML</p>", "layout": null})).await.status, 200);
    let shown = read(&ready, &campaign).await;
    assert_eq!((&shown["mjml"], &shown["body_html"]), (&Value::Null, &json!("<p>HTML</p>")));
    assert_eq!(patch(json!({"mjml": mjml("Bye")})).await.status, 200);
    assert!(held(&ready, &campaign, None).await.contains("Bye</div>"));
    let template = ready.template(json!({})).await;
    let both = patch(json!({"template_id": template})).await;
    assert_eq!(both.faults(), [("mjml".to_owned(), "conflict".to_owned())]);
    assert_eq!(patch(json!({"template_id": template, "mjml": null})).await.status, 200);
    assert_eq!(held(&ready, &campaign, None).await, "<p>Thank you</p>");
}

#[tokio::test]
async fn a_variant_may_have_a_layout_or_a_body_of_its_own() {
    let ready = Ready::start().await;
    let [hello, ..] = snippets(&ready).await;
    let variants = json!([
        {"name": "Same", "weight": 1}, {"name": "Layout", "weight": 1, "layout": "frame"},
        {"name": "Body", "weight": 1, "body_html": "<p>Own</p>"}, {"name": "MJML", "weight": 1, "mjml": mjml("{% include 'hello' %}")},
    ]);
    let campaign = ready.campaign_body(json!({"body_html": "<p>Hi</p>", "layout": "page", "variants": variants}));
    let unfit = ready.client.post("/v1/campaigns", campaign.clone()).await;
    assert_eq!(unfit.faults(), [("variants[3].layout".to_owned(), "unknown_layout".to_owned())], "it is one of HTML");

    let mut campaign = campaign;
    campaign["variants"][3]["mjml"] = Value::Null;
    campaign["variants"][3]["body_html"] = json!(INCLUDE);
    let created = ready.client.post("/v1/campaigns", campaign).await;
    assert_eq!(created.status, 201, "{}", created.body);
    let id = created.text("campaign_id");
    for (variant, html) in [
        ("A", "<main><p>Hi</p></main>"),
        ("B", "<div><p>Hi</p></div>"),
        ("C", "<main><p>Own</p></main>"),
        ("D", "<main><b>Hello {{ first_name }}</b></main>"),
    ] {
        assert_eq!(held(&ready, &id, Some(variant)).await, html, "{variant}");
    }
    let shown = read(&ready, &id).await;
    assert_eq!((&shown["variants"][1]["layout"], &shown["variants"][1]["body_html"]), (&json!("frame"), &Value::Null));
    assert_eq!(users(&ready, &hello).await, [("draft".to_owned(), 1)]);
    change_hello(&ready, &hello, "<i>{{ first_name }}</i>").await;
    let seen = preview(&ready, &id, json!({"variant": "D", "sample": {"first_name": "Ann"}})).await;
    assert!(seen.text("html").starts_with("<main><i>Ann</i></main>"), "{}", seen.body);
    assert_eq!(ready.client.post(&format!("/v1/campaigns/{id}/launch"), json!({})).await.status, 202);
    assert_eq!(held(&ready, &id, Some("D")).await, "<main><i>{{ first_name }}</i></main>");
}

#[rstest]
#[case(json!({"layout": "none"}), "layout", "unknown_layout")]
#[case(json!({"body_html": "{% include 'none' %}"}), "body_html", "unknown_snippet")]
#[case(json!({"body_text": "{% include 'frame' %}"}), "body_text", "unknown_snippet")]
#[case(json!({"mjml": "<mjml/>"}), "mjml", "ambiguous")]
#[case(json!({"body_html": null}), "body_html", "required")]
#[case(json!({"body_html": null, "mjml": " "}), "mjml", "empty")]
#[case(json!({"body_html": null, "mjml": "<mjml><mj-body><mj-x/></mj-body></mjml>"}), "mjml", "html_invalid")]
#[case(json!({"body_html": null, "mjml": "<mjml><mj-body>{{ nope }}</mj-body></mjml>"}), "mjml", "unknown_variable")]
#[tokio::test]
async fn a_fault_of_an_own_body_is_named_where_it_is(#[case] change: Value, #[case] path: &str, #[case] code: &str) {
    let ready = Ready::start().await;
    snippets(&ready).await;
    let answer = ready.client.post("/v1/campaigns", ready.campaign_body(change.clone())).await;
    assert_eq!(answer.faults(), [(path.to_owned(), code.to_owned())], "{}", answer.body);
    // A variant inherits the body.
    if code != "required" {
        let mut variant = change;
        variant.as_object_mut().unwrap().extend([("name".to_owned(), json!("B")), ("weight".to_owned(), json!(1))]);
        if code == "ambiguous" {
            variant["body_html"] = json!("<p>B</p>");
        }
        let variants = json!({"variants": [{"name": "A", "weight": 1}, variant]});
        let answer = ready.client.post("/v1/campaigns", ready.campaign_body(variants)).await;
        assert_eq!(answer.faults(), [(format!("variants[1].{path}"), code.to_owned())], "{}", answer.body);
    }
    assert_eq!(ready.edge.count("select count(*) from campaigns").await, 0);
}

#[tokio::test]
async fn a_layout_goes_with_a_body_and_not_with_a_template() {
    let ready = Ready::start().await;
    snippets(&ready).await;
    let template = ready.template(json!({})).await;
    let body = json!({"template_id": template, "body_html": null, "layout": "page", "body_text": "x"});
    let answer = ready.client.post("/v1/campaigns", ready.campaign_body(body)).await;
    let required = |path: &str| (path.to_owned(), "body_required".to_owned());
    assert_eq!(answer.faults(), [required("body_text"), required("layout")]);
}

#[tokio::test]
async fn warnings_and_faults_point_into_what_was_written() {
    let ready = Ready::start().await;
    let [hello, ..] = snippets(&ready).await;
    let body = json!({"body_html": "<p>\n {% include 'hello' %}<img src=\"https://a.test/x.png\">", "layout": "page"});
    let created = ready.client.post("/v1/campaigns", ready.campaign_body(body)).await;
    let seen = preview(&ready, &created.text("campaign_id"), json!({})).await;
    for answer in [&created.body, &seen.body] {
        let warning = &answer["warnings"][0];
        let place = [&warning["code"], &warning["path"], &warning["line"], &warning["column"]];
        assert_eq!(place, [&json!("missing_alt"), &json!("body_html"), &json!(2), &json!(23)], "{answer}");
    }
    change_hello(&ready, &hello, "<b>\n{{ data.price }}</b>").await;
    let seen = preview(&ready, &created.text("campaign_id"), json!({})).await;
    let detail = seen.body["fields"][0]["detail"].as_str().unwrap();
    assert!(
        detail.starts_with("line 2 column 2: in the snippet `hello`, line 2 column 1: `data.price` "),
        "{}",
        seen.body
    );
}

#[tokio::test]
async fn a_snippet_stays_while_a_campaign_that_is_not_over_holds_it() {
    let ready = Ready::start().await;
    let [hello, page, frame] = snippets(&ready).await;
    let variants = json!([{"name": "A", "weight": 1}, {"name": "B", "weight": 1, "layout": "frame"}]);
    let campaign = ready.campaign(json!({"body_html": INCLUDE, "layout": "page", "variants": variants})).await;
    let remove = async |id: &str| ready.client.delete(&format!("/v1/snippets/{id}"), json!({})).await;
    for status in ["draft", "scheduled", "sending"] {
        ready.set_status(&campaign, status).await;
        for id in [&hello, &page, &frame] {
            let refused = remove(id).await;
            assert_eq!(refused.refusal(), (409, "snippet_in_use"), "{status}");
            assert_eq!(refused.body["references"], json!([{"type": "campaign", "id": campaign, "name": "Spring"}]));
            assert_eq!(users(&ready, id).await, [(status.to_owned(), 1)]);
        }
    }
    ready.set_status(&campaign, "sent").await;
    for id in [&hello, &page, &frame] {
        assert_eq!(users(&ready, id).await, []);
        assert_eq!(remove(id).await.status, 200);
    }
    let none = ready.client.get(&format!("/v1/snippets/{hello}/campaigns")).await;
    assert_eq!(none.refusal(), (404, "snippet_not_found"));
}

/// What a campaign has through its template is the template's: a draft takes the newest version of it.
#[tokio::test]
async fn a_campaign_with_a_template_holds_no_snippet_itself() {
    let ready = Ready::start().await;
    let [hello, ..] = snippets(&ready).await;
    let template = ready.template(json!({"body_html": INCLUDE})).await;
    for subject in [Value::Null, json!("Own")] {
        ready.campaign(json!({"template_id": template, "subject": subject, "body_html": null})).await;
    }
    assert_eq!(users(&ready, &hello).await, []);
    let path = format!("/v1/templates/{template}");
    assert_eq!(ready.client.patch(&path, json!({"body_html": "<p>None</p>"})).await.status, 200);
    assert_eq!(ready.client.delete(&format!("/v1/snippets/{hello}"), json!({})).await.status, 200);
}
