//! `/v1/contacts`

use serde_json::{Value, json};

use crate::common::{Answer, Client, Edge};

async fn make(client: &Client, body: Value) -> String {
    let answer = client.post("/v1/contacts", body).await;
    assert_eq!(answer.status, 201, "{}", answer.body);
    answer.text("contact_id")
}

async fn show(client: &Client, id: &str) -> Value {
    client.get(&format!("/v1/contacts/{id}")).await.body["contact"].clone()
}

fn addresses(answer: &Answer) -> Vec<&str> {
    answer.body["contacts"].as_array().unwrap().iter().map(|contact| contact["email"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn a_contact_reads_back_as_it_was_written() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    client.post("/v1/fields", json!({"key": "plan", "label": "Plan", "type": "string"})).await;
    let body = json!({
        "email": " Ann.Lee@Bücher.Example ", "first_name": "Ann", "last_name": "Lee", "title": "Dr", "phone": "+1 2", "company": "Acme",
        "dot_number": 42, "fields": {"plan": "pro"}, "tags": ["vip"], "lists": ["News"], "timezone": "Europe/Paris", "locale": "fr-FR",
        "lifecycle_stage": "lead", "source": "form", "consent": {"basis": "opt_in", "at": "2026-01-02T03:04:05+01:00", "source": "web"},
    });
    let id = make(&client, body).await;
    let contact = show(&client, &id).await;
    let tag = &contact["tags"][0];
    assert!(tag["tag_id"].is_string() && tag["name"] == "vip");
    assert_eq!(contact["lists"][0]["name"], "News");
    let expected = json!({
        "contact_id": id, "email": "ann.lee@xn--bcher-kva.example", "first_name": "Ann", "last_name": "Lee", "title": "Dr",
        "phone": "+1 2", "company": "Acme", "dot_number": 42, "fields": {"plan": "pro"}, "tags": contact["tags"],
        "lists": contact["lists"], "timezone": "Europe/Paris", "locale": "fr-FR", "lifecycle_stage": "lead", "status": "active",
        "marketing_status": "subscribed", "suppression": null, "source": "form",
        "consent": {"basis": "opt_in", "at": "2026-01-02T02:04:05.000Z", "source": "web", "description": null},
        "created_at": contact["created_at"], "updated_at": contact["updated_at"],
    });
    assert_eq!(contact, expected);
    let created = contact["created_at"].as_str().unwrap();
    assert!(created.ends_with('Z') && created.len() == "2026-01-02T02:04:05.000Z".len(), "{created}");
}

#[tokio::test]
async fn the_same_address_in_another_form_is_the_same_contact() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let id = make(&client, json!({"email": "ann@example.com", "first_name": "Ann"})).await;
    let again = client.post("/v1/contacts", json!({"email": " ANN@Example.COM ", "first_name": "Eve"})).await;
    assert_eq!((again.status.as_u16(), again.body["already_existed"].as_bool()), (200, Some(true)));
    assert_eq!(again.text("contact_id"), id);
    assert_eq!(show(&client, &id).await["first_name"], "Ann", "what is found keeps what it has");
}

#[tokio::test]
async fn creations_at_once_make_one_contact() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let answers = futures::future::join_all((0..8).map(|_| {
        let client = client.clone();
        async move { client.post("/v1/contacts", json!({"email": "ann@example.com"})).await.status.as_u16() }
    }))
    .await;
    assert_eq!(answers.iter().filter(|status| **status == 201).count(), 1, "{answers:?}");
    assert!(answers.iter().all(|status| matches!(status, 200 | 201)));
}

#[tokio::test]
async fn a_patch_merges_fields_clears_by_null_and_leaves_the_rest() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    for (key, kind) in [("plan", "string"), ("seats", "number"), ("langs", "string_list")] {
        client.post("/v1/fields", json!({"key": key, "label": key, "type": kind})).await;
    }
    let id = make(
        &client,
        json!({
            "email": "ann@example.com", "first_name": "Ann", "last_name": "Lee", "fields": {"plan": "pro", "seats": 3}
        }),
    )
    .await;
    let path = format!("/v1/contacts/{id}");
    let change = json!({"first_name": null, "title": "Dr", "fields": {"plan": null, "langs": ["en"]}});
    let changed = client.patch(&path, change).await;
    assert_eq!(changed.status, 200, "{}", changed.body);
    let contact = &changed.body["contact"];
    assert_eq!(
        (&contact["first_name"], &contact["last_name"], &contact["title"]),
        (&Value::Null, &json!("Lee"), &json!("Dr"))
    );
    assert_eq!(contact["fields"], json!({"seats": 3, "langs": ["en"]}));
    let wrong =
        client.patch(&path, json!({"fields": {"seats": "three", "colour": "red"}, "email": "x@example.com"})).await;
    assert_eq!(wrong.faults(), [("email".to_owned(), "unknown_field".to_owned())]);
    let wrong = client.patch(&path, json!({"fields": {"seats": "three", "colour": "red"}})).await;
    let expected = [("fields.colour", "unknown_field"), ("fields.seats", "wrong_type")];
    assert_eq!(wrong.faults(), expected.map(|(path, code)| (path.to_owned(), code.to_owned())));
}

#[tokio::test]
async fn an_opt_out_by_the_tenant_can_be_taken_back_and_one_by_the_recipient_cannot() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let id = make(&client, json!({"email": "ann@example.com"})).await;
    let path = format!("/v1/contacts/{id}");
    for status in ["unsubscribed", "subscribed", "pending", "subscribed"] {
        let answer = client.patch(&path, json!({"marketing_status": status})).await;
        assert_eq!(answer.body["contact"]["marketing_status"], status, "{}", answer.body);
    }
    assert_eq!(edge.count("select count(*) from audit_log where action = 'contact.marketing_status'").await, 4);
    sqlx::query(
        "insert into suppressions (tenant_id, id, address, reason, scope, source)
         values ($1, $2, 'ann@example.com', 'unsubscribe', 'marketing', 'recipient')",
    )
    .bind(client.tenant)
    .bind(schemas::new_id())
    .execute(&edge.pool)
    .await
    .unwrap();
    client.patch(&path, json!({"marketing_status": "unsubscribed"})).await;
    let refused = client.patch(&path, json!({"marketing_status": "subscribed"})).await;
    assert_eq!(refused.refusal(), (409, "unsubscribed_by_recipient"));
    assert_eq!(show(&client, &id).await["suppression"]["reason"], "unsubscribe");
}

#[tokio::test]
async fn a_contact_is_archived_and_comes_back_by_creation_or_patch() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let id = make(&client, json!({"email": "ann@example.com"})).await;
    let path = format!("/v1/contacts/{id}");
    for _ in 0..2 {
        let archived = client.delete(&path, json!({})).await;
        assert_eq!((archived.status.as_u16(), &archived.body["status"]), (200, &json!("archived")));
    }
    assert_eq!(show(&client, &id).await["status"], "archived");
    assert_eq!(client.post("/v1/contacts", json!({"email": "ann@example.com"})).await.status, 200);
    assert_eq!(show(&client, &id).await["status"], "active");
    client.delete(&path, json!({})).await;
    assert_eq!(client.patch(&path, json!({"status": "active"})).await.body["contact"]["status"], "active");
}

#[tokio::test]
async fn an_erased_person_is_nowhere_and_stays_suppressed() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let id = make(&client, json!({"email": "ann@example.com", "first_name": "Annabel", "tags": ["vip"]})).await;
    client.post("/v1/suppressions", json!({"email": "ann@example.com", "reason": "complaint"})).await;
    leave_traces(&edge, &client, &id).await;
    let report =
        client.post("/v1/imports", json!({"csv": "email\n<ANN@example.com>\nnobody\n"})).await.text("import_id");

    let erased = client.delete(&format!("/v1/contacts/{id}"), json!({"erase": true})).await;
    assert_eq!((erased.status.as_u16(), &erased.body["status"]), (200, &json!("erased")), "{}", erased.body);
    assert_eq!(client.get(&format!("/v1/contacts/{id}")).await.refusal(), (404, "contact_not_found"));
    assert_eq!(addresses(&client.get("/v1/contacts").await), Vec::<&str>::new());
    for table in ["contacts", "requests", "sends", "events", "renditions", "audience_members", "imports"] {
        let text: String = sqlx::query_scalar(sqlx::AssertSqlSafe(format!(
            "select coalesce(string_agg(t::text, ' '), '') from {table} t"
        )))
        .fetch_one(&edge.pool)
        .await
        .unwrap();
        let text = text.replace("ANN@", "ann@");
        assert!(
            !text.contains("ann@example.com") && !text.contains("Annabel") && !text.contains("203.0.113.9"),
            "{table}: {text}"
        );
    }
    assert_eq!(edge.count("select count(*) from sends").await, 1, "the ledger keeps its row");
    let errors = client.get(&format!("/v1/imports/{report}")).await.body["import"]["errors"].clone();
    assert_eq!((&errors[0]["value"], &errors[1]["value"]), (&json!(""), &json!("nobody")));
    assert_eq!(edge.count("select count(*) from contacts where address like 'erased:%'").await, 1);

    // Created again, the address is still suppressed; and it can be erased again.
    let again = make(&client, json!({"email": "ann@example.com"})).await;
    assert_eq!(show(&client, &again).await["suppression"]["reason"], "complaint");
    assert_eq!(client.delete(&format!("/v1/contacts/{again}"), json!({"erase": true})).await.status, 200);
    assert_eq!(client.delete(&format!("/v1/contacts/{again}"), json!({})).await.refusal(), (404, "contact_not_found"));
}

/// A handled transactional request with its send, an event and a rendition.
async fn leave_traces(edge: &Edge, client: &Client, contact: &str) {
    let (request, send) = (schemas::new_id(), schemas::new_batch_id());
    let month = schemas::month_of(send);
    let run = |sql: &'static str| {
        sqlx::query(sql).bind(client.tenant).bind(request).bind(send).bind(month).bind(contact).execute(&edge.pool)
    };
    run("insert into requests (tenant_id, id, product, environment, kind, payload, state)
         select $1, $2, 'crm', 'production', 'transactional',
                jsonb_build_object('address', 'ann@example.com', 'first_name', 'Annabel', 'send_id', $3::uuid), 'handled'
         where $4::date is not null and $5::text is not null")
        .await
        .unwrap();
    run("insert into sends (tenant_id, id, month, request_id, contact_id, state, response)
         values ($1, $3, $4, $2, $5::uuid, 'sent', '250 ok ann@example.com')")
    .await
    .unwrap();
    run("insert into events (tenant_id, send_id, id, month, type, occurred_at, detail)
         select $1, $3, $2, $4, 'sent', now(), '{\"response\": \"250 ok ann@example.com\", \"ip\": \"203.0.113.9\", \"attempt\": 1}'
         where $5::text is not null")
        .await
        .unwrap();
    run("insert into events (tenant_id, send_id, id, month, type, occurred_at, detail)
         select $1, $3, gen_random_uuid(), $4, 'bounced', now(),
                '{\"class\": \"hard\", \"diagnostic\": \"550 5.1.1 <ann@example.com>: no such user\"}'
         where $2::uuid is not null and $5::text is not null")
    .await
    .unwrap();
    run("insert into renditions (tenant_id, send_id, rendered)
         select $1, $3, '{\"to\": \"ann@example.com\"}' where $2::uuid is not null and $4::date is not null and $5::text is not null")
        .await
        .unwrap();
}

#[tokio::test]
async fn lists_are_filtered_paged_and_newest_first() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    for number in 1..=5 {
        make(
            &client,
            json!({"email": format!("p{number}@example.com"), "first_name": format!("N{number}"), "tags": ["all"]}),
        )
        .await;
    }
    make(&client, json!({"email": "ann@acme.example", "first_name": "Ann", "last_name": "Lee", "company": "50% Off"}))
        .await;
    let page = client.get("/v1/contacts?limit=4").await;
    assert_eq!(addresses(&page), ["ann@acme.example", "p5@example.com", "p4@example.com", "p3@example.com"]);
    let next = client.get(&format!("/v1/contacts?limit=4&cursor={}", page.text("next_cursor"))).await;
    assert_eq!(addresses(&next), ["p2@example.com", "p1@example.com"]);
    assert_eq!(next.body["next_cursor"], Value::Null);

    let tags = client.get("/v1/audiences?kind=tag").await;
    let tag = tags.body["audiences"][0]["audience_id"].as_str().unwrap();
    assert_eq!(tags.body["audiences"][0]["member_count"], 5);
    assert_eq!(addresses(&client.get(&format!("/v1/contacts?tag_id={tag}")).await).len(), 5);
    assert_eq!(client.get(&format!("/v1/contacts?list_id={tag}")).await.refusal(), (404, "list_not_found"));
    assert_eq!(addresses(&client.get("/v1/contacts?email=P2%40Example.com").await), ["p2@example.com"]);
    for (q, found) in [("acme", 1), ("ann%20lee", 1), ("50%25", 1), ("5_%25", 0), ("example.com", 5), ("%25", 1)] {
        assert_eq!(addresses(&client.get(&format!("/v1/contacts?q={q}")).await).len(), found, "{q}");
    }
    assert_eq!(addresses(&client.get("/v1/contacts?status=archived").await).len(), 0);
    assert_eq!(addresses(&client.get("/v1/contacts?updated_since=2999-01-01T00:00:00Z").await).len(), 0);
    assert_eq!(addresses(&client.get("/v1/contacts?updated_since=2001-01-01T00:00:00Z").await).len(), 6);
}
