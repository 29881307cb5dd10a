use rstest::rstest;
use serde_json::{Value, json};

use crate::{
    common::Edge,
    fixtures::{domain, sender},
};

#[tokio::test]
async fn a_sender_is_made_once_and_the_first_is_the_default() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    domain(&edge.pool, client.tenant, "acme.test", "verified").await;
    let body = json!({
        "email": " Ann@ACME.test", "name": "Ann", "reply_to": "Help@acme.test", "physical_address": "1 Main Street\nSpringfield",
    });
    let first = client.post("/v1/senders", body.clone()).await;
    assert_eq!((first.status.as_u16(), &first.body["already_existed"]), (200, &json!(false)));
    let again = client.post("/v1/senders", json!({"email": "ann@acme.test", "name": "Another name"})).await;
    assert_eq!(again.body, json!({"ok": true, "sender_id": first.body["sender_id"], "already_existed": true}));
    client
        .post("/v1/senders", json!({"email": "bob@acme.test", "name": "Bob", "physical_address": "1 Main Street"}))
        .await;
    let list = client.get("/v1/senders").await.body;
    let of = |n: usize, field: &str| list["senders"][n][field].clone();
    assert_eq!((of(0, "email"), of(0, "is_default")), (json!("bob@acme.test"), json!(false)));
    assert_eq!((of(1, "email"), of(1, "is_default")), (json!("ann@acme.test"), json!(true)));
    assert_eq!((of(1, "name"), of(1, "reply_to")), (json!("Ann"), json!("help@acme.test")));
    assert_eq!((of(1, "status"), of(1, "domain_status")), (json!("active"), json!("verified")));
    assert_eq!(list["next_cursor"], Value::Null);
}

#[tokio::test]
async fn of_many_first_senders_one_is_the_default() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    domain(&edge.pool, client.tenant, "acme.test", "verified").await;
    let made = (0..8).map(|n| {
        let client = client.clone();
        // Every address twice: the second finds the first.
        async move {
            let body = json!({"email": format!("a{}@acme.test", n / 2), "name": "A", "physical_address": "x"});
            client.post("/v1/senders", body).await.status.as_u16()
        }
    });
    assert_eq!(futures::future::join_all(made).await, [200; 8]);
    assert_eq!(edge.count("select count(*) from senders").await, 4);
    assert_eq!(edge.count("select count(*) from senders where is_default").await, 1);
}

#[rstest]
#[case::another_domain(json!({"email": "ann@other.test"}), "domain_not_found_for_tenant")]
#[case::a_subdomain(json!({"email": "ann@mail.acme.test"}), "domain_not_found_for_tenant")]
#[case::pending(json!({"email": "ann@pending.test"}), "domain_not_verified")]
#[case::failed(json!({"email": "ann@failed.test"}), "domain_not_verified")]
#[case::suspended(json!({"email": "ann@suspended.test"}), "domain_not_verified")]
#[case::of_another_tenant(json!({"email": "ann@foreign.test"}), "domain_not_found_for_tenant")]
#[case::no_address(json!({"physical_address": null}), "physical_address_required")]
#[case::blank_address(json!({"physical_address": " "}), "physical_address_required")]
#[tokio::test]
async fn a_sender_needs_a_proven_domain_of_the_tenant_and_a_postal_address(#[case] change: Value, #[case] code: &str) {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let other = edge.client_for("crm", client.environment, "tenant-2").await;
    for (tenant, name, status) in [
        (client.tenant, "acme.test", "verified"),
        (client.tenant, "pending.test", "pending"),
        (client.tenant, "failed.test", "failed"),
        (client.tenant, "suspended.test", "suspended"),
        (other.tenant, "foreign.test", "verified"),
    ] {
        domain(&edge.pool, tenant, name, status).await;
    }
    let mut body = json!({"email": "ann@acme.test", "name": "Ann", "physical_address": "1 Main Street"});
    body.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
    assert_eq!(client.post("/v1/senders", body).await.refusal(), (422, code));
    assert_eq!(edge.count("select count(*) from senders").await, 0);
}

#[tokio::test]
async fn a_degraded_domain_still_sends_and_the_tenants_address_will_do() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    domain(&edge.pool, client.tenant, "acme.test", "degraded").await;
    sqlx::query("update tenants set physical_address = '1 Main Street'").execute(&edge.pool).await.unwrap();
    assert_eq!(client.post("/v1/senders", json!({"email": "ann@acme.test", "name": "Ann"})).await.status, 200);
}

#[rstest]
#[case(json!({"email": "nobody"}), "email", "missing_at")]
#[case(json!({"email": null}), "email", "required")]
#[case(json!({"name": "Ann\r\nBcc: x"}), "name", "control_character")]
#[case(json!({"name": ""}), "name", "empty")]
#[case(json!({"reply_to": "a@localhost"}), "reply_to", "bad_domain")]
#[case(json!({"physical_address": "a\u{0007}"}), "physical_address", "control_character")]
#[case(json!({"is_default": true}), "is_default", "unknown_field")]
#[tokio::test]
async fn a_sender_with_a_fault_is_refused(#[case] change: Value, #[case] path: &str, #[case] code: &str) {
    let edge = Edge::start().await;
    let client = edge.client().await;
    sender(&edge.pool, client.tenant, "acme.test", "verified").await;
    let mut body = json!({"email": "ann@acme.test", "name": "Ann", "physical_address": "1 Main Street"});
    body.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
    let answer = client.post("/v1/senders", body).await;
    assert_eq!((answer.status.as_u16(), answer.faults()), (400, vec![(path.to_owned(), code.to_owned())]));
}
