//! A contact is named by id, by address or by the product's own id of it, wherever a request names one.

use rstest::rstest;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::{common::Client, fixtures::Ready};

const ADDRESS: &str = "ann@example.com";

/// Makes Ann, whom the product calls user-1; answers her contact's id.
async fn ann(client: &Client) -> String {
    let made = client.post("/v1/contacts", json!({"email": ADDRESS, "external_id": "user-1"})).await;
    assert_eq!(made.status, 201, "{}", made.body);
    made.text("contact_id")
}

async fn addresses_of_requests(ready: &Ready) -> Vec<String> {
    sqlx::query_scalar("select payload->>'address' from requests order by id")
        .fetch_all(&ready.edge.pool)
        .await
        .unwrap()
}

/// `body` with a name of the contact.
fn named(mut body: Value, name: &str, value: &str) -> Value {
    body[name] = json!(value);
    body
}

async fn sequence(ready: &Ready) -> String {
    let steps = json!([{"step_type": "create_task", "action_config": {"title": "Call"}}]);
    let body = json!({"name": "Welcome", "sender_profile_id": ready.sender, "activate": true, "steps": steps});
    ready.client.post("/v1/sequences", body).await.text("sequence_id")
}

#[tokio::test]
async fn transactional_mail_finds_a_contact_by_each_name() {
    let ready = Ready::start().await;
    let (id, template) = (ann(&ready.client).await, ready.template(json!({})).await);
    for (name, value) in [("email", ADDRESS), ("external_id", "user-1"), ("contact_id", &id)] {
        let body = named(json!({"template_id": template, "cc": [{"email": ADDRESS}]}), name, value);
        let answer = ready.client.post("/v1/transactional", body).await;
        assert_eq!(answer.status, 202, "{name}: {}", answer.body);
    }
    let messages: Vec<Value> = ["user-1", "nobody"]
        .map(|id| named(json!({"template_id": template}), "external_id", id))
        .into_iter()
        .chain([json!({"template_id": template, "email": "bob@example.com"})])
        .collect();
    let answer = ready.client.post("/v1/transactional/batch", json!({"messages": messages})).await;
    let errors: Vec<&Value> = answer.body["results"].as_array().unwrap().iter().map(|one| &one["error"]).collect();
    assert_eq!(errors, [&Value::Null, &json!("contact_not_found"), &Value::Null], "{}", answer.body);
    let mut addresses = addresses_of_requests(&ready).await;
    addresses.sort();
    assert_eq!(addresses, [ADDRESS, ADDRESS, ADDRESS, ADDRESS, "bob@example.com"]);
    let copies = ready.edge.count("select count(*) from requests where options->'copies' is not null").await;
    assert_eq!(copies, 0, "the recipient is not mailed a copy as well");
}

#[rstest]
#[case::external_id("external_id", "user-1")]
#[case::contact_id("contact_id", "")]
#[tokio::test]
async fn other_requests_find_a_contact_by_its_ids(#[case] name: &str, #[case] value: &str) {
    let ready = Ready::start().await;
    let client = &ready.client;
    let (id, sequence) = (ann(client).await, sequence(&ready).await);
    let value = if value.is_empty() { id.as_str() } else { value };

    let enrolled = client.post("/v1/enrollments", named(json!({"sequence_id": sequence}), name, value)).await;
    assert_eq!((enrolled.status.as_u16(), enrolled.text("contact_id")), (201, id.clone()), "{}", enrolled.body);
    let listed = client.get(&format!("/v1/enrollments?{name}={value}")).await.body;
    assert_eq!(listed["enrollments"].as_array().unwrap().len(), 1, "{listed}");

    let recorded = client.post("/v1/events", named(json!({"name": "paid"}), name, value)).await;
    assert_eq!((recorded.status.as_u16(), recorded.text("contact_id")), (201, id.clone()), "{}", recorded.body);

    let campaign = ready.campaign(json!({})).await;
    let explained = client.get(&format!("/v1/explain?campaign_id={campaign}&{name}={value}")).await;
    assert_eq!(explained.body["explanation"]["email"], ADDRESS, "{}", explained.body);

    let suppressed = client.post("/v1/suppressions", named(json!({"scope": "marketing"}), name, value)).await;
    assert_eq!(suppressed.status, 201, "{}", suppressed.body);
    let items = json!({"suppressions": [named(json!({}), name, value)]});
    assert_eq!(client.post("/v1/suppressions", items).await.body["suppressions"][0]["email"], ADDRESS);
}

#[tokio::test]
async fn an_outcome_finds_its_contact_by_external_id() {
    let ready = Ready::start().await;
    let id = ann(&ready.client).await;
    let body = json!({"external_id": "user-1", "outcome_type": "bind"});
    let recorded = ready.client.post("/v1/outcomes", body).await;
    assert_eq!(recorded.body["contact_matched"], true, "{}", recorded.body);
    let outcome = ready.client.get(&format!("/v1/outcomes/{}", recorded.text("outcome_id"))).await.body;
    assert_eq!(outcome["outcome"]["contact_id"], json!(id));
}

#[tokio::test]
async fn a_fault_of_an_outcome_comes_before_an_unknown_contact() {
    let ready = Ready::start().await;
    let answer = ready.client.post("/v1/outcomes", json!({"external_id": "unknown"})).await;
    assert_eq!(answer.refusal(), (400, "validation_failed"), "{}", answer.body);
    assert_eq!(answer.faults(), [("outcome_type".to_owned(), "required".to_owned())]);
}

#[rstest]
#[case::transactional("/v1/transactional", json!({"template_id": Uuid::nil()}))]
#[case::enrollment("/v1/enrollments", json!({"sequence_id": Uuid::nil()}))]
#[case::event("/v1/events", json!({"name": "paid"}))]
#[case::suppression("/v1/suppressions", json!({}))]
#[case::outcome("/v1/outcomes", json!({"outcome_type": "bind"}))]
#[tokio::test]
async fn an_unknown_id_is_a_404_and_two_names_a_400(#[case] path: &str, #[case] body: Value) {
    let ready = Ready::start().await;
    let client = &ready.client;
    let mut body = body;
    if path == "/v1/transactional" {
        body["template_id"] = json!(ready.template(json!({})).await);
    }
    if path == "/v1/enrollments" {
        body["sequence_id"] = json!(sequence(&ready).await);
    }
    // Another tenant's contact has the id.
    let other = ready.edge.client_for("crm", schemas::Environment::Production, "other").await;
    ann(&other).await;
    let unknown = client.post(path, named(body.clone(), "external_id", "user-1")).await;
    assert_eq!(unknown.refusal(), (404, "contact_not_found"), "{}", unknown.body);
    let email = if path == "/v1/outcomes" { "contact_email" } else { "email" };
    let both = named(named(body, "external_id", "user-1"), email, ADDRESS);
    assert_eq!(client.post(path, both).await.faults(), [(email.to_owned(), "ambiguous".to_owned())]);
    for rows in [
        "select count(*) from requests",
        "select count(*) from enrollments",
        "select count(*) from product_events",
        "select count(*) from suppressions",
        "select count(*) from outcomes",
    ] {
        assert_eq!(ready.edge.count(rows).await, 0, "{rows}");
    }
}

#[rstest]
#[tokio::test]
async fn a_contact_that_is_being_erased_is_waited_for_and_not_found(
    #[values("/v1/enrollments", "/v1/transactional")] path: &str,
    #[values("contact_id", "external_id")] name: &str,
) {
    let ready = Ready::start().await;
    let client = &ready.client;
    let id = ann(client).await;
    let body = if path == "/v1/enrollments" {
        json!({"sequence_id": sequence(&ready).await})
    } else {
        json!({"template_id": ready.template(json!({})).await})
    };
    let body = named(body, name, if name == "contact_id" { id.as_str() } else { "user-1" });
    let mut erasure = ready.edge.pool.begin().await.unwrap();
    let erase =
        "update contacts set address = 'erased:' || id, external_id = null, status = 'erased' where address = $1";
    sqlx::query(erase).bind(ADDRESS).execute(&mut *erasure).await.unwrap();
    let erased = async {
        ready.edge.until_waiting(1).await;
        erasure.commit().await.unwrap();
    };
    let (answer, ()) = tokio::join!(client.post(path, body), erased);
    assert_eq!(answer.refusal(), (404, "contact_not_found"), "{}", answer.body);
    assert_eq!(ready.edge.count("select count(*) from contacts where address = 'ann@example.com'").await, 0);
}

#[tokio::test]
async fn the_id_of_a_merged_contact_leads_to_the_one_that_is_left() {
    let ready = Ready::start().await;
    let (client, template) = (&ready.client, ready.template(json!({})).await);
    let left = ann(client).await;
    let gone = client.post("/v1/contacts", json!({"email": "ann@work.example", "external_id": "user-2"})).await;
    let gone = gone.text("contact_id");
    assert_eq!(client.post(&format!("/v1/contacts/{left}/merge"), json!({"contact_id": gone})).await.status, 200);
    let body = json!({"template_id": template, "contact_id": gone});
    assert_eq!(client.post("/v1/transactional", body).await.status, 202);
    assert_eq!(addresses_of_requests(&ready).await, [ADDRESS]);
}
