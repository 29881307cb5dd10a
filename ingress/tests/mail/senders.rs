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
    // The repeat brought the name up to date, and left what it did not name.
    assert_eq!((of(1, "name"), of(1, "reply_to")), (json!("Another name"), json!("help@acme.test")));
    assert_eq!(of(1, "physical_address"), json!("1 Main Street\nSpringfield"));
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
#[case(json!({"reply_to": "jürgen@acme.test"}), "reply_to", "bad_local_part")]
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

/// A client with two senders on a verified domain: the first is the default.
async fn two_senders(edge: &Edge) -> (crate::common::Client, String, String) {
    let client = edge.client().await;
    domain(&edge.pool, client.tenant, "acme.test", "verified").await;
    let make = async |email: &str| {
        let body = json!({"email": email, "name": "Ann", "physical_address": "1 Main Street"});
        client.post("/v1/senders", body).await.text("sender_id")
    };
    let (first, second) = (make("ann@acme.test").await, make("bob@acme.test").await);
    (client, first, second)
}

#[tokio::test]
async fn a_sender_is_changed_and_what_is_left_out_stays() {
    let edge = Edge::start().await;
    let (client, id, _) = two_senders(&edge).await;
    let path = format!("/v1/senders/{id}");
    let body = json!({"name": " Acme ", "reply_to": "Help@acme.test", "physical_address": "2 Side Street"});
    let changed = client.patch(&path, body).await.body["sender"].clone();
    assert_eq!((&changed["name"], &changed["reply_to"]), (&json!("Acme"), &json!("help@acme.test")));
    let changed = client.patch(&path, json!({"reply_to": null})).await.body["sender"].clone();
    assert_eq!((&changed["reply_to"], &changed["physical_address"]), (&Value::Null, &json!("2 Side Street")));
    assert_eq!(client.get(&path).await.body["sender"], changed);
    assert_eq!(
        client.patch(&path, json!({"physical_address": null})).await.refusal(),
        (422, "physical_address_required")
    );
    client.patch("/v1/tenant", json!({"physical_address": "3 Third Street"})).await;
    assert_eq!(client.patch(&path, json!({"physical_address": null})).await.status, 200);
    assert_eq!(edge.count("select count(*) from audit_log where action = 'sender.changed'").await, 3);
}

#[rstest]
#[case(json!({"name": ""}), "name", "empty")]
#[case(json!({"reply_to": "a@localhost"}), "reply_to", "bad_domain")]
#[case(json!({"reply_to": "jürgen@acme.test"}), "reply_to", "bad_local_part")]
#[case(json!({"status": "pending_domain"}), "status", "not_allowed")]
#[case(json!({"email": "eve@acme.test"}), "email", "unknown_field")]
#[tokio::test]
async fn a_change_with_a_fault_is_refused(#[case] change: Value, #[case] path: &str, #[case] code: &str) {
    let edge = Edge::start().await;
    let (client, id, _) = two_senders(&edge).await;
    let answer = client.patch(&format!("/v1/senders/{id}"), change).await;
    assert_eq!((answer.status.as_u16(), answer.faults()), (400, vec![(path.to_owned(), code.to_owned())]));
}

#[tokio::test]
async fn the_default_moves_and_gives_way_only_to_another() {
    let edge = Edge::start().await;
    let (client, first, second) = two_senders(&edge).await;
    let (first, second) = (format!("/v1/senders/{first}"), format!("/v1/senders/{second}"));
    for body in [json!({"is_default": false}), json!({"status": "disabled"})] {
        assert_eq!(client.patch(&first, body).await.refusal(), (409, "sender_is_default"));
    }
    assert_eq!(client.delete(&first, json!({})).await.refusal(), (409, "sender_is_default"));
    let moved = client.patch(&second, json!({"is_default": true})).await;
    assert_eq!(moved.body["sender"]["is_default"], json!(true));
    assert_eq!(client.get(&first).await.body["sender"]["is_default"], json!(false));
    let off = client.patch(&first, json!({"status": "disabled"})).await;
    assert_eq!(off.body["sender"]["status"], json!("disabled"));
    assert_eq!(client.patch(&first, json!({"is_default": true})).await.refusal(), (409, "sender_disabled"));
    // The last one may be put away: there is no other to take its place.
    assert_eq!(client.patch(&second, json!({"status": "disabled"})).await.status, 200);
    assert_eq!(edge.count("select count(*) from senders where is_default").await, 1);
}

#[tokio::test]
async fn a_sender_waits_for_its_domain_and_a_disabled_one_sends_nothing() {
    let edge = Edge::start().await;
    let (client, _, second) = two_senders(&edge).await;
    let path = format!("/v1/senders/{second}");
    let status = async || client.get(&path).await.body["sender"]["status"].clone();
    for (domain, shown) in
        [("failed", "pending_domain"), ("suspended", "pending_domain"), ("degraded", "active"), ("verified", "active")]
    {
        sqlx::query("update domains set status = $1").bind(domain).execute(&edge.pool).await.unwrap();
        assert_eq!(status().await, json!(shown), "{domain}");
    }
    client.patch(&path, json!({"status": "disabled"})).await;
    let body = json!({
        "sender_id": second, "to": [{"email": "ann@example.com"}], "subject": "Hi", "html": "<p>Hi</p>", "message_class": "business",
    });
    assert_eq!(client.post("/v1/messages", body).await.refusal(), (403, "domain_not_verified"));
    assert_eq!(client.patch(&path, json!({"status": "active"})).await.body["sender"]["status"], json!("active"));
}

#[tokio::test]
async fn a_sender_is_removed_unless_something_refers_to_it() {
    let ready = crate::fixtures::Ready::start().await;
    let (client, used) = (&ready.client, format!("/v1/senders/{}", ready.sender));
    ready.campaign(json!({})).await;
    for (status, way_out) in [("disabled", "disabled as it is"), ("active", "PATCH status to disabled instead")] {
        sqlx::query("update senders set status = $1").bind(status).execute(&ready.edge.pool).await.unwrap();
        let refused = client.delete(&used, json!({})).await;
        assert_eq!(refused.refusal(), (409, "sender_in_use"));
        assert!(refused.text("detail").contains(way_out), "{}", refused.body);
    }
    let spare =
        client.post("/v1/senders", json!({"email": "eve@acme.test", "name": "Eve", "physical_address": "x"})).await;
    let spare = format!("/v1/senders/{}", spare.text("sender_id"));
    assert_eq!(client.delete(&spare, json!({})).await.body["status"], json!("deleted"));
    assert_eq!(client.get(&spare).await.refusal(), (404, "sender_not_found"));
    assert_eq!(client.delete(&spare, json!({})).await.refusal(), (404, "sender_not_found"));
}

/// The request is stored under a lock on its sender, so a removal at the same moment waits until it can see it.
#[tokio::test]
async fn a_sender_is_not_removed_while_mail_from_it_is_being_accepted() {
    let ready = crate::fixtures::Ready::start().await;
    let template = ready.template(json!({})).await;
    let (client, sender) = (&ready.client, format!("/v1/senders/{}", ready.sender));
    let mut tx = ready.edge.pool.begin().await.unwrap();
    sqlx::query("lock table requests in share row exclusive mode").execute(&mut *tx).await.unwrap();
    let request = json!({"template_id": template, "email": "ann@example.com"});
    let (accepted, removed, ()) = tokio::join!(
        client.post("/v1/transactional", request),
        async {
            ready.edge.until_waiting(1).await;
            client.delete(&sender, json!({})).await
        },
        async {
            ready.edge.until_waiting(2).await;
            tx.commit().await.unwrap();
        }
    );
    assert_eq!(accepted.status, 202);
    assert_eq!(removed.refusal(), (409, "sender_in_use"));
}

#[tokio::test]
async fn a_domain_is_not_removed_while_a_sender_is_made_below_it() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let domain = format!("/v1/domains/{}", domain(&edge.pool, client.tenant, "acme.test", "verified").await);
    let mut tx = edge.pool.begin().await.unwrap();
    sqlx::query("lock table senders in share row exclusive mode").execute(&mut *tx).await.unwrap();
    let sender = json!({"email": "ann@acme.test", "name": "Ann", "physical_address": "1 Main Street"});
    let (made, removed, ()) = tokio::join!(
        client.post("/v1/senders", sender),
        async {
            edge.until_waiting(1).await;
            client.delete(&domain, json!({})).await
        },
        async {
            edge.until_waiting(2).await;
            tx.commit().await.unwrap();
        }
    );
    assert_eq!(made.status, 200, "{}", made.body);
    assert_eq!(removed.refusal(), (409, "domain_in_use"));
}

/// A tenant has as many batches as mails; each removal would go through all of them.
#[tokio::test]
async fn what_refers_to_a_sender_is_found_by_an_index() {
    let edge = Edge::start().await;
    let mut tx = edge.pool.begin().await.unwrap();
    sqlx::query("set local enable_seqscan = off").execute(&mut *tx).await.unwrap();
    for table in ["batches", "messages"] {
        // As the foreign key asks.
        let asked = format!(
            "explain select 1 from only {table} where tenant_id = gen_random_uuid() and sender_id = gen_random_uuid()"
        );
        let plan: Vec<String> = sqlx::query_scalar(sqlx::AssertSqlSafe(asked)).fetch_all(&mut *tx).await.unwrap();
        assert!(plan.iter().any(|line| line.contains("_by_sender")), "{table}: {plan:#?}");
    }
}
