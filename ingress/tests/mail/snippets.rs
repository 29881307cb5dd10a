//! Snippets and layouts, the templates that hold them, and MJML.

use rstest::rstest;
use serde_json::{Value, json};

use crate::{common::Answer, fixtures::Ready};

async fn snippet(ready: &Ready, body: Value) -> String {
    let answer = ready.client.post("/v1/snippets", body).await;
    assert_eq!(answer.status, 201, "{}", answer.body);
    answer.text("snippet_id")
}

async fn rendered(ready: &Ready, template: &str) -> Value {
    let path = format!("/v1/templates/{template}/render");
    ready.client.post(&path, json!({"sample": {"first_name": "Ann"}})).await.body
}

/// A snippet, a layout that has it, and a template in the layout.
async fn newsletter(ready: &Ready) -> [String; 3] {
    let body = json!({"name": "hello", "body_html": "<b>Hello {{ who }}</b>", "body_text": "HELLO {{ who }}"});
    let hello = snippet(ready, body).await;
    let layout = json!({
        "kind": "layout", "name": "page", "body_html": "<main>{{ content }}</main>{% include 'hello', who: 'all' %}",
        "body_text": "{{ content }}\n--",
    });
    let page = snippet(ready, layout).await;
    let template = ready
        .template(json!({
            "body_html": "{% include 'hello', who: first_name %}", "body_text": "{% include 'hello', who: first_name %}",
            "layout": "page", "template_type": "transactional",
        }))
        .await;
    [hello, page, template]
}

#[tokio::test]
async fn a_template_holds_the_snippets_it_was_made_with_until_it_is_refreshed() {
    let ready = Ready::start().await;
    let [hello, page, template] = newsletter(&ready).await;
    let path = format!("/v1/templates/{template}");
    let before = rendered(&ready, &template).await;
    assert_eq!(before["html"], "<main><b>Hello Ann</b></main><b>Hello all</b>", "{before}");
    assert_eq!(before["text"], "HELLO Ann\n--");
    let read = ready.client.get(&path).await.body;
    assert_eq!(read["template"]["body_html"], "{% include 'hello', who: first_name %}", "as it was written");
    assert_eq!(read["template"]["body_text"], "{% include 'hello', who: first_name %}");
    assert_eq!((&read["template"]["layout"], &read["template"]["variables"]), (&json!("page"), &json!(["first_name"])));
    let held = |read: &Value| -> Vec<(String, i64, i64)> {
        let number = |one: &Value, name: &str| one[name].as_i64().unwrap();
        let snippets = read["snippets"].as_array().unwrap();
        let of = |one: &Value| {
            (one["name"].as_str().unwrap().to_owned(), number(one, "version"), number(one, "current_version"))
        };
        snippets.iter().map(of).collect()
    };
    assert_eq!(held(&read), [("hello".to_owned(), 1, 1), ("page".to_owned(), 1, 1)]);

    let changed =
        ready.client.patch(&format!("/v1/snippets/{hello}"), json!({"body_html": "<i>Hi {{ who }}</i>"})).await;
    assert_eq!(
        (&changed.body["version"], &changed.body["outdated_templates"]),
        (&json!(2), &json!(1)),
        "{}",
        changed.body
    );
    assert_eq!(rendered(&ready, &template).await["html"], before["html"], "nothing changes under a template");
    assert_eq!(ready.client.patch(&path, json!({"name": "Other"})).await.body["version"], 1);
    assert_eq!(held(&ready.client.get(&path).await.body)[0], ("hello".to_owned(), 1, 2));
    let users = ready.client.get(&format!("/v1/snippets/{hello}/templates")).await.body["templates"][0].clone();
    assert_eq!((&users["template_id"], &users["snippet_version"]), (&json!(template), &json!(1)));

    for _ in 0..2 {
        let refreshed = ready.client.post(&format!("{path}/refresh"), json!({})).await;
        assert_eq!((refreshed.status.as_u16(), &refreshed.body["version"]), (200, &json!(2)), "{}", refreshed.body);
    }
    assert_eq!(rendered(&ready, &template).await["html"], "<main><i>Hi Ann</i></main><i>Hi all</i>");
    let old = ready.client.get(&format!("{path}?version=1")).await.body;
    assert_eq!(held(&old)[0], ("hello".to_owned(), 1, 2));
    let old = ready.client.get(&format!("/v1/snippets/{hello}?version=1")).await.body;
    assert_eq!(old["snippet"]["body_html"], "<b>Hello {{ who }}</b>");
    let none = ready.client.get(&format!("/v1/snippets/{page}?version=2")).await;
    assert_eq!(none.refusal(), (404, "snippet_version_not_found"));
}

#[tokio::test]
async fn a_change_of_a_template_takes_the_newest_snippets() {
    let ready = Ready::start().await;
    let [hello, _, template] = newsletter(&ready).await;
    ready.client.patch(&format!("/v1/snippets/{hello}"), json!({"body_html": "<i>{{ who }}</i>"})).await;
    let path = format!("/v1/templates/{template}");
    assert_eq!(ready.client.patch(&path, json!({"subject": "Newer", "layout": null})).await.body["version"], 2);
    let seen = rendered(&ready, &template).await;
    assert_eq!((&seen["html"], &seen["text"]), (&json!("<i>Ann</i>"), &json!("HELLO Ann")));
}

#[rstest]
#[case(json!({"name": "Hello"}), "name", "invalid")]
#[case(json!({"body_html": null}), "body_html", "required")]
#[case(json!({"mjml": "<mj-text>x</mj-text>"}), "mjml", "ambiguous")]
#[case(json!({"body_html": " "}), "body_html", "empty")]
#[case(json!({"body_html": null, "mjml": "\u{c}"}), "mjml", "empty")]
#[case(json!({"body_html": "{% if x %}"}), "body_html", "unclosed_block")]
#[case(json!({"body_html": "{% include 'none' %}"}), "body_html", "unknown_snippet")]
#[case(json!({"body_html": "{% include 'own' %}"}), "body_html", "include_cycle")]
#[case(json!({"body_html": null, "mjml": "{% include 'none' %}"}), "mjml", "unknown_snippet")]
#[case(json!({"body_text": "{% include 'html-only' %}"}), "body_text", "unknown_snippet")]
#[case(json!({"kind": "layout"}), "body_html", "content_place")]
#[case(json!({"body_html": "x".repeat(128 * 1024 + 1)}), "body_html", "too_long")]
#[tokio::test]
async fn a_snippet_with_a_fault_is_refused_where_it_is(#[case] change: Value, #[case] path: &str, #[case] code: &str) {
    let ready = Ready::start().await;
    snippet(&ready, json!({"name": "html-only", "body_html": "x"})).await;
    let mut body = json!({"name": "own", "body_html": "<p>x</p>"});
    body.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
    let answer = ready.client.post("/v1/snippets", body).await;
    assert_eq!(answer.refusal(), (400, "validation_failed"), "{}", answer.body);
    assert_eq!(answer.faults(), [(path.to_owned(), code.to_owned())], "{}", answer.body);
    assert_eq!(ready.edge.count("select count(*) from snippets").await, 1);
}

#[rstest]
#[case(json!({"layout": "none"}), "layout", "unknown_layout")]
#[case(json!({"layout": "hello"}), "layout", "unknown_layout")]
#[case(json!({"body_html": "{% include 'page' %}"}), "body_html", "unknown_snippet")]
#[case(json!({"body_html": null, "mjml": "<mjml/>", "layout": "page"}), "layout", "unknown_layout")]
#[case(json!({"body_html": null, "mjml": "<mjml><mj-body><mj-x/></mj-body></mjml>"}), "mjml", "html_invalid")]
#[case(json!({"body_html": null, "mjml": "<mjml><mj-body>{{ nope }}</mj-body></mjml>"}), "mjml", "unknown_variable")]
#[case(json!({"mjml": "<mjml/>"}), "mjml", "ambiguous")]
#[case(json!({"body_html": null}), "body_html", "required")]
#[case(json!({"subject": "{% include 'hello' %}"}), "subject", "unknown_tag")]
#[tokio::test]
async fn a_template_is_refused_for_what_it_cannot_be_made_of(
    #[case] change: Value,
    #[case] path: &str,
    #[case] code: &str,
) {
    let ready = Ready::start().await;
    let [_, _, template] = newsletter(&ready).await;
    let mut body = json!({"name": "T", "subject": "S", "body_html": "<p>B</p>"});
    body.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
    let answer = ready.client.post("/v1/templates", body.clone()).await;
    assert_eq!(answer.faults(), [(path.to_owned(), code.to_owned())], "{}", answer.body);
    let answer = ready.client.patch(&format!("/v1/templates/{template}"), change).await;
    // A PATCH with one body takes the other's place.
    if code != "ambiguous" {
        assert_eq!(answer.refusal(), (400, "validation_failed"), "{}", answer.body);
    }
}

#[tokio::test]
async fn a_fault_in_a_snippet_is_answered_with_both_places() {
    let ready = Ready::start().await;
    snippet(&ready, json!({"name": "price", "body_html": "<b>\n{{ data.price }}</b>"})).await;
    let body = json!({"name": "T", "subject": "S", "body_html": "<p>\n {% include 'price' %} {{ nope }}</p>"});
    let answer = ready.client.post("/v1/templates", body).await;
    let details: Vec<&str> =
        answer.body["fields"].as_array().unwrap().iter().map(|fault| fault["detail"].as_str().unwrap()).collect();
    assert!(
        details[0].starts_with("line 2 column 2: in the snippet `price`, line 2 column 1: `data.price` "),
        "{details:?}"
    );
    assert!(details[1].starts_with("line 2 column 24: `nope` "), "{details:?}");
}

#[tokio::test]
async fn each_body_may_hold_a_hundred_snippets_and_name_no_more() {
    let ready = Ready::start().await;
    sqlx::query(
        "with made as (
             insert into snippets (tenant_id, id, kind, name, version)
             select $1, gen_random_uuid(), 'snippet', 's' || n, 1 from generate_series(1, 201) n returning id
         )
         insert into snippet_versions (tenant_id, snippet_id, version, body_html, body_text, mentions)
         select $1, id, 1, 'a', 'a', '{}' from made",
    )
    .bind(ready.client.tenant)
    .execute(&ready.edge.pool)
    .await
    .unwrap();
    let include = |from: u32, to: u32| (from..=to).map(|n| format!("{{% include 's{n}' %}}")).collect::<String>();
    snippet(&ready, json!({"kind": "layout", "name": "page", "body_html": "{{ content }}"})).await;
    let full = json!({"body_html": include(1, 100), "body_text": include(101, 200), "layout": "page"});
    ready.template(full).await;
    let body = json!({"name": "T", "subject": "S", "body_html": include(1, 101)});
    let refused = [("body_html".to_owned(), "too_many_includes".to_owned())];
    assert_eq!(ready.client.post("/v1/templates", body).await.faults(), refused);
    let body = json!({"name": "all", "body_html": format!("{{% comment %}}{}{{% endcomment %}}", include(1, 101))});
    assert_eq!(ready.client.post("/v1/snippets", body).await.faults(), refused);
}

async fn remove(ready: &Ready, snippet: &str) -> Answer {
    ready.client.delete(&format!("/v1/snippets/{snippet}"), json!({})).await
}

#[tokio::test]
async fn a_snippet_stays_while_a_template_or_a_snippet_has_it() {
    let ready = Ready::start().await;
    let [hello, page, template] = newsletter(&ready).await;
    let named = |answer: &Answer| -> Vec<String> {
        let all = answer.body["references"].as_array().cloned().unwrap_or_default();
        all.iter().map(|one| format!("{} {}", one["type"].as_str().unwrap(), one["name"].as_str().unwrap())).collect()
    };
    let refused = remove(&ready, &hello).await;
    assert_eq!(
        (refused.refusal(), named(&refused)),
        ((409, "snippet_in_use"), vec!["template Receipt".to_owned(), "snippet page".to_owned()])
    );
    assert_eq!(remove(&ready, &page).await.refusal(), (409, "snippet_in_use"));
    let cycle =
        ready.client.patch(&format!("/v1/snippets/{hello}"), json!({"body_html": "{% include 'hello' %}"})).await;
    assert_eq!(cycle.faults(), [("body_html".to_owned(), "include_cycle".to_owned())]);

    ready.client.delete(&format!("/v1/templates/{template}"), json!({})).await;
    for id in [&page, &hello] {
        assert_eq!(remove(&ready, id).await.body["status"], "deleted");
        assert_eq!(ready.client.get(&format!("/v1/snippets/{id}")).await.refusal(), (404, "snippet_not_found"));
    }
    assert_eq!(ready.client.get("/v1/snippets").await.body["snippets"], json!([]));
    assert_eq!(ready.edge.count("select count(*) from audit_log where action = 'snippet.removed'").await, 2);
    // What was made of them stays whole, and the name is free.
    assert_eq!(ready.client.patch(&format!("/v1/templates/{template}"), json!({"status": "active"})).await.status, 200);
    assert_eq!(rendered(&ready, &template).await["html"], "<main><b>Hello Ann</b></main><b>Hello all</b>");
    snippet(&ready, json!({"name": "hello", "body_html": "x"})).await;
    let taken = ready
        .client
        .post("/v1/snippets", json!({"name": "hello", "kind": "layout", "body_html": "{{ content }}"}))
        .await;
    assert_eq!(taken.refusal(), (409, "snippet_already_exists"));
}

#[tokio::test]
async fn mjml_is_kept_as_written_and_sent_as_html() {
    let ready = Ready::start().await;
    let mjml = |text: &str| {
        format!(
            "<mjml><mj-body><mj-section><mj-column><mj-text>{text}</mj-text></mj-column></mj-section></mj-body></mjml>"
        )
    };
    let template = ready.template(json!({"body_html": null, "mjml": mjml("Hi {{ first_name }}")})).await;
    let path = format!("/v1/templates/{template}");
    let read = ready.client.get(&path).await.body["template"].clone();
    assert_eq!(read["mjml"], mjml("Hi {{ first_name }}"));
    assert!(read["body_html"].as_str().unwrap().starts_with("<!doctype html>"), "{read}");
    let seen = rendered(&ready, &template).await;
    assert!(
        seen["html"].as_str().unwrap().contains("Hi Ann</div>") && seen["text"].as_str().unwrap().starts_with("Hi Ann"),
        "{seen}"
    );
    assert_eq!(ready.client.patch(&path, json!({"mjml": mjml("Hi {{ first_name }}")})).await.body["version"], 1);
    assert_eq!(ready.client.patch(&path, json!({"mjml": mjml("Bye")})).await.body["version"], 2);
    assert_eq!(ready.client.patch(&path, json!({"body_html": "<p>HTML</p>"})).await.body["version"], 3);
    let read = ready.client.get(&path).await.body["template"].clone();
    assert_eq!((&read["mjml"], &read["body_html"]), (&Value::Null, &json!("<p>HTML</p>")));
}

#[tokio::test]
async fn the_nearest_snippets_are_found_however_many_are_mentioned() {
    let ready = Ready::start().await;
    snippet(&ready, json!({"name": "zoo", "body_html": "<b>Zoo</b>", "body_text": "Zoo"})).await;
    for many in [
        "insert into snippets (tenant_id, id, kind, name, version)
         select $1, gen_random_uuid(), 'snippet', 'a' || n, 1 from generate_series(1, 300) n",
        "insert into snippet_versions (tenant_id, snippet_id, version, body_html)
         select tenant_id, id, 1, '' from snippets where tenant_id = $1 and name <> 'zoo'",
        "update snippet_versions set mentions = array(select name from snippets where tenant_id = $1 and name <> 'zoo')
         where tenant_id = $1",
    ] {
        sqlx::query(many).bind(ready.client.tenant).execute(&ready.edge.pool).await.unwrap();
    }
    let body = json!({
        "body_html": "{% include 'zoo' %}", "body_text": "{% include 'zoo' %}", "template_type": "transactional",
    });
    let template = ready.template(body).await;
    assert_eq!(rendered(&ready, &template).await["html"], "<b>Zoo</b>");
}

/// A template whose snippet changed while its request did its work without a connection is made of one of the two, whole.
#[tokio::test]
async fn templates_and_snippets_that_change_at_once_stay_whole() {
    let ready = Ready::start().await;
    let [hello, _, template] = newsletter(&ready).await;
    let path = format!("/v1/snippets/{hello}");
    let (template_path, client) = (format!("/v1/templates/{template}"), &ready.client);
    let changes = (0..4).map(|number| {
        client.patch(&path, json!({"body_html": format!("<i>{number}</i>"), "body_text": format!("{number}")}))
    });
    let refresh_path = format!("{template_path}/refresh");
    let refreshes = (0..4).map(|_| client.post(&refresh_path, json!({})));
    let (changes, refreshes): (Vec<_>, Vec<_>) = (changes.collect(), refreshes.collect());
    let (changed, refreshed) = tokio::join!(futures::future::join_all(changes), futures::future::join_all(refreshes));
    assert!(changed.iter().chain(&refreshed).all(|answer| answer.status == 200));
    client.post(&refresh_path, json!({})).await;
    let seen = rendered(&ready, &template).await;
    let text = seen["text"].as_str().unwrap().trim_end_matches("\n--").to_owned();
    assert_eq!(seen["html"], format!("<main><i>{text}</i></main><i>{text}</i>"), "{seen}");
    let read = client.get(&template_path).await.body;
    assert!(read["snippets"].as_array().unwrap().iter().all(|one| one["version"] == one["current_version"]), "{read}");
}
