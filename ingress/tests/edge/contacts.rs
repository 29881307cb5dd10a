//! `/v1/contacts`

use http::Method;
use rstest::rstest;
use serde_json::{Value, json};
use uuid::Uuid;

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
async fn null_is_as_good_as_left_out() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let body = json!({"email": "ann@example.com", "tags": null, "lists": null, "require_verification": null});
    let id = make(&client, body).await;
    let list = client.post("/v1/audiences", json!({"kind": "list", "name": "News"})).await.text("audience_id");
    let members = format!("/v1/audiences/{list}/members");
    let field = json!({"key": "born", "label": "Born", "type": "date"});
    assert_eq!(client.post("/v1/fields", field).await.status, 201);
    let imported =
        json!({"csv": "email\nbob@example.com", "operation": null, "compliance": null, "start_sequences": null});
    let trigger = json!({"field": "born", "offset_days": null, "yearly": null, "at": null});
    let sequence =
        json!({"name": "S", "steps": [{"step_type": "wait"}], "trigger_type": "field_date", "trigger_config": trigger});
    for (path, body) in [
        ("/v1/imports", imported),
        (members.as_str(), json!({"add": [id], "remove": null})),
        ("/v1/exports/contacts/links", json!({"format": null})),
        ("/v1/sequences", sequence),
        ("/v1/suppressions", json!({"email": "eve@example.com"})),
    ] {
        let answer = client.post(path, body).await;
        assert!(answer.status.is_success(), "{path}: {}", answer.body);
    }
    let hours = json!({"quiet_hours": {"from": "21:00", "to": "08:00", "time_zone": null, "applies_to": null}});
    assert_eq!(client.patch("/v1/tenant", hours).await.status, 200);
    let lifted = client.delete("/v1/suppressions", json!({"email": "eve@example.com", "confirm": null})).await;
    assert_eq!(lifted.status, 200, "{}", lifted.body);
    let removed = client.delete(&format!("/v1/contacts/{id}"), json!({"erase": null})).await;
    assert_eq!((removed.status.as_u16(), &removed.body["status"]), (200, &json!("archived")), "{}", removed.body);
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
        "contact_id": id, "email": "ann.lee@xn--bcher-kva.example", "external_id": null, "first_name": "Ann", "last_name": "Lee", "title": "Dr",
        "phone": "+1 2", "company": "Acme", "dot_number": 42, "fields": {"plan": "pro"}, "tags": contact["tags"],
        "lists": contact["lists"], "timezone": "Europe/Paris", "locale": "fr-FR", "lifecycle_stage": "lead", "status": "active",
        "marketing_status": "subscribed", "suppression": null, "source": "form",
        "consent": {"basis": "opt_in", "at": "2026-01-02T02:04:05.000Z", "source": "web", "description": null, "evidence": null},
        "created_at": contact["created_at"], "updated_at": contact["updated_at"], "merged": [], "confirmation": null,
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
    for status in ["subscribed", "pending"] {
        let refused = client.patch(&path, json!({"marketing_status": status})).await;
        assert_eq!(refused.refusal(), (409, "unsubscribed_by_recipient"), "{status}");
    }
    assert_eq!(show(&client, &id).await["marketing_status"], "unsubscribed");
    assert_eq!(show(&client, &id).await["suppression"]["reason"], "unsubscribe");
}

#[tokio::test]
async fn the_sources_of_contacts_that_are_known_from_mail_are_the_engines_own() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let path = format!("/v1/contacts/{}", make(&client, json!({"email": "ann@example.com", "source": "form"})).await);
    for source in ["transactional", "message", "campaign_test"] {
        let known = sqlx::query_scalar("select is_known_from_mail($1)").bind(source);
        let is_known: bool = known.fetch_one(&edge.pool).await.unwrap();
        assert!(is_known, "{source}");
        let body = json!({"email": "bob@example.com", "marketing_status": "pending", "source": source});
        for refused in [client.post("/v1/contacts", body).await, client.patch(&path, json!({"source": source})).await] {
            assert_eq!(refused.faults(), [("source".to_owned(), "not_allowed".to_owned())], "{source}");
        }
        let refused =
            client.post("/v1/imports", json!({"csv": "email\nbob@example.com\n", "source_slug": source})).await;
        assert_eq!(refused.faults(), [("source_slug".to_owned(), "not_allowed".to_owned())], "{source}");
    }
    assert_eq!(edge.count("select count(*) from contacts where source = 'form'").await, 1);
    assert_eq!(edge.count("select count(*) from contacts").await, 1);
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
    for reason in ["complaint", "manual"] {
        client.post("/v1/suppressions", json!({"email": "ann@example.com", "reason": reason})).await;
    }
    sqlx::query("update suppressions set expires_at = now() - interval '1 day' where reason = 'manual'")
        .execute(&edge.pool)
        .await
        .unwrap();
    leave_traces(&edge, &client, &id).await;
    let report =
        client.post("/v1/imports", json!({"csv": "email\n<ANN@example.com>\nnobody\n"})).await.text("import_id");

    let erased = client.delete(&format!("/v1/contacts/{id}"), json!({"erase": true})).await;
    assert_eq!((erased.status.as_u16(), &erased.body["status"]), (200, &json!("erased")), "{}", erased.body);
    assert_eq!(client.get(&format!("/v1/contacts/{id}")).await.refusal(), (404, "contact_not_found"));
    assert_eq!(addresses(&client.get("/v1/contacts").await), Vec::<&str>::new());
    edge.finish_erasures().await;
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
    assert_eq!(edge.count("select count(*) from suppressions").await, 1, "what had expired goes");

    // Created again, the address is still suppressed; and it can be erased again.
    let again = make(&client, json!({"email": "ann@example.com"})).await;
    assert_eq!(show(&client, &again).await["suppression"]["reason"], "complaint");
    assert_eq!(client.delete(&format!("/v1/contacts/{again}"), json!({"erase": true})).await.status, 200);
    assert_eq!(client.delete(&format!("/v1/contacts/{again}"), json!({})).await.refusal(), (404, "contact_not_found"));
}

/// How a contact opted out before it was erased.
#[rstest]
#[case::by_the_product("update contacts set marketing_status = 'unsubscribed'", Some("unsubscribe"))]
#[case::of_a_topic(
    "with topic as (
         insert into audiences (tenant_id, id, kind, name, public_name)
         select tenant_id, gen_random_uuid(), 'list', 'News', 'News' from contacts returning tenant_id, id
     )
     insert into topic_opt_outs (tenant_id, audience_id, contact_id, send_id)
     select c.tenant_id, t.id, c.id, gen_random_uuid() from contacts c join topic t on t.tenant_id = c.tenant_id",
    Some("unsubscribe")
)]
#[case::not_at_all("update contacts set marketing_status = 'subscribed'", None)]
#[tokio::test]
async fn an_opt_out_outlives_the_erased_contact(#[case] opt_out: &'static str, #[case] reason: Option<&str>) {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let id = make(&client, json!({"email": "ann@example.com"})).await;
    sqlx::query(opt_out).execute(&edge.pool).await.unwrap();
    let erased = client.delete(&format!("/v1/contacts/{id}"), json!({"erase": true})).await;
    assert_eq!(erased.status, 200, "{}", erased.body);
    client.post("/v1/imports", json!({"csv": "email\nann@example.com\n"})).await;
    let made: Value = client.get("/v1/contacts").await.body["contacts"][0].clone();
    assert_eq!(made["email"], "ann@example.com");
    assert_eq!(made["suppression"]["reason"].as_str(), reason, "{made}");
    let withheld =
        "select count(*) from contacts c cross join lateral recipient_eligibility(c.tenant_id, array[c.id]) e
                    where e.unsubscribed and not e.suppressed_all";
    assert_eq!(edge.count(withheld).await, i64::from(reason.is_some()), "marketing, and nothing else");
}

#[tokio::test]
async fn what_comes_in_while_an_erasure_waits_for_the_contact_is_erased_too() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let path = format!("/v1/contacts/{}", make(&client, json!({"email": "ann@example.com"})).await);
    let mut other = edge.pool.begin().await.unwrap();
    sqlx::query("select from contacts for no key update").execute(&mut *other).await.unwrap();
    let handling = async {
        edge.until_waiting(1).await;
        sqlx::query(
            "insert into requests (tenant_id, id, product, environment, kind, payload, state)
             values ($1, $2, 'crm', 'production', 'transactional',
                     '{\"address\": \"ann@example.com\", \"data\": {\"name\": \"Annabel\"}}', 'handled')",
        )
        .bind(client.tenant)
        .bind(schemas::new_id())
        .execute(&edge.pool)
        .await
        .unwrap();
        other.commit().await.unwrap();
    };
    let (erased, ()) = tokio::join!(client.delete(&path, json!({"erase": true})), handling);
    assert_eq!(erased.status, 200, "{}", erased.body);
    edge.finish_erasures().await;
    assert_eq!(edge.count("select count(*) from requests where payload = '{\"erased\": true}'").await, 1);
}

#[tokio::test]
async fn of_two_erasures_at_once_the_later_says_how_far_the_first_is() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let path = format!("/v1/contacts/{}", make(&client, json!({"email": "ann@example.com"})).await);
    let mut other = edge.pool.begin().await.unwrap();
    sqlx::query("select from contacts for no key update").execute(&mut *other).await.unwrap();
    let freed = async {
        edge.until_waiting(2).await;
        other.commit().await.unwrap();
    };
    let erase = || client.delete(&path, json!({"erase": true}));
    let (first, second, ()) = tokio::join!(erase(), erase(), freed);
    for answer in [first, second] {
        assert_eq!((answer.status.as_u16(), &answer.body["erasure"]), (200, &json!("running")), "{}", answer.body);
    }
    assert_eq!(edge.count("select count(*) from audit_log where action = 'contact.erased'").await, 1);
}

#[tokio::test]
async fn stored_copies_of_an_erased_persons_mail_go_with_it() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let ann = make(&client, json!({"email": "ann@example.com"})).await;
    let eve = make(&client, json!({"email": "eve@example.com"})).await;
    let (mail, others) = (schemas::new_batch_id(), schemas::new_batch_id());
    let copy = |of| schemas::SendId::of(of, 1).0;
    for (request, send, contact) in
        [(mail, mail, &ann), (mail, copy(mail), &eve), (others, others, &eve), (others, copy(others), &ann)]
    {
        sqlx::query(
            "with request as (
                 insert into requests (tenant_id, id, product, environment, kind, payload, state)
                 values ($1, $2, 'crm', 'production', 'transactional', jsonb_build_object('send_id', $2), 'handled') on conflict do nothing
             ), send as (
                 insert into sends (tenant_id, id, month, request_id, contact_id) values ($1, $3, $4, $2, $5::uuid)
             )
             insert into renditions (tenant_id, send_id, rendered) values ($1, $3, 'Dear Ann')",
        )
        .bind(client.tenant)
        .bind(request)
        .bind(send)
        .bind(schemas::month_of(send))
        .bind(contact)
        .execute(&edge.pool)
        .await
        .unwrap();
    }
    assert_eq!(client.delete(&format!("/v1/contacts/{ann}"), json!({"erase": true})).await.status, 200);
    edge.finish_erasures().await;
    let left: Vec<uuid::Uuid> =
        sqlx::query_scalar("select send_id from renditions").fetch_all(&edge.pool).await.unwrap();
    assert_eq!(left, [others], "Eve's own mail; her copy of Ann's has Ann's data");
}

#[tokio::test]
async fn an_erased_address_stands_in_no_table_but_that_of_suppressions() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let id = make(&client, json!({"email": "ann@example.com", "first_name": "Annabel"})).await;
    client.post("/v1/suppressions", json!({"email": "ann@example.com", "reason": "complaint"})).await;
    leave_traces(&edge, &client, &id).await;
    leave_more_traces(&edge, &client, &id).await;
    client.post("/v1/imports", json!({"csv": "email\n<ANN@example.com>\n"})).await;
    let key = [("Idempotency-Key", "change-1")];
    let path = format!("/v1/contacts/{id}");
    let changed = client.write(Method::PATCH, &path, json!({"company": "Acme"}), &key).await;
    assert_eq!(changed.status, 200, "{}", changed.body);
    assert!(found(&edge).await.len() > 8, "{:?}", found(&edge).await);

    let erased = client.delete(&path, json!({"erase": true})).await;
    assert_eq!((&erased.body["status"], &erased.body["erasure"]), (&json!("erased"), &json!("running")));
    assert_eq!(client.get(&path).await.refusal(), (404, "contact_not_found"), "at once");
    // Of a fan-out that had read the contact.
    leave_webhook_body(&edge, &client, &id).await;
    edge.finish_erasures().await;
    assert_eq!(found(&edge).await, ["suppressions.address"]);
    let asked = client.delete(&path, json!({"erase": true})).await;
    assert_eq!((asked.status.as_u16(), &asked.body["erasure"]), (200, &json!("completed")));
    // What it would answer is erased; the request is not carried out again.
    let replayed = client.write(Method::PATCH, &path, json!({"company": "Acme"}), &key).await;
    assert_eq!(replayed.refusal(), (422, "contact_erased"));

    // What comes in later about mail that was under way is erased when nothing can come any more.
    sqlx::query("update events set detail = '{\"diagnostic\": \"no such user ann@example.com\"}'")
        .execute(&edge.pool)
        .await
        .unwrap();
    leave_webhook_body(&edge, &client, &id).await;
    for sql in [
        "update outcomes set contact_id = $1::uuid, contact_key = 'email'",
        "update outcome_credits set evidence = '{\"url\": \"https://x.example/?e=ann@example.com\"}' where contact_id = $1::uuid",
    ] {
        sqlx::query(sql).bind(&id).execute(&edge.pool).await.unwrap();
    }
    assert_eq!(edge.finish_erasures().await, 0, "it waits");
    sqlx::query("update erasures set due_at = now()").execute(&edge.pool).await.unwrap();
    edge.finish_erasures().await;
    assert_eq!(found(&edge).await, ["suppressions.address"]);
    assert_eq!(edge.count("select count(*) from erasures where finished_at is not null").await, 1);
}

#[tokio::test]
async fn an_erasure_leaves_the_answers_of_longer_addresses() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let mut paths = Vec::new();
    for email in ["info@shop.example", "my.info@shop.example", "myinfo@shop.example", "info@shop.example.com"] {
        paths.push(format!("/v1/contacts/{}", make(&client, json!({"email": email})).await));
    }
    let change = async |path: &str| {
        client
            .write(Method::PATCH, path, json!({"company": "Acme"}), &[("Idempotency-Key", path)])
            .await
            .status
            .as_u16()
    };
    for path in &paths {
        assert_eq!(change(path.as_str()).await, 200, "{path}");
    }
    assert_eq!(client.delete(&paths[0], json!({"erase": true})).await.status, 200);
    edge.finish_erasures().await;
    let mut replayed = Vec::new();
    for path in &paths {
        replayed.push(change(path.as_str()).await);
    }
    assert_eq!(replayed, [422, 200, 200, 200]);
}

#[tokio::test]
async fn an_erasure_takes_as_many_slices_as_there_is_to_look_through() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let id = make(&client, json!({"email": "ann@example.com"})).await;
    leave_traces(&edge, &client, &id).await;
    let other = make(&client, json!({"email": "bob@example.com"})).await;
    let erase = async |id: String| {
        let answer = client.delete(&format!("/v1/contacts/{id}"), json!({"erase": true})).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        edge.finish_erasures().await
    };
    let alone = erase(other).await;
    // Other people's requests and sends of the same tenant.
    sqlx::query(
        "with asked as (
             insert into requests (tenant_id, id, product, environment, kind, payload, state, handled_at)
             select $1, gen_random_uuid(), 'crm', 'production', 'transactional',
                    jsonb_build_object('address', 'p' || n || '@example.com'), 'handled', now()
             from generate_series(1, 5000) n
             returning id
         )
         insert into sends (tenant_id, id, month, request_id, contact_id, state)
         select $1, gen_random_uuid(), date_trunc('month', now()), id, gen_random_uuid(), 'sent' from asked",
    )
    .bind(client.tenant)
    .execute(&edge.pool)
    .await
    .unwrap();
    assert_eq!(erase(id).await, alone, "others' mail costs nothing");
    assert_eq!(edge.count("select count(*) from requests where payload ? 'address'").await, 5_000);
}

/// The columns in which the address, the name or the network address stands.
async fn found(edge: &Edge) -> Vec<String> {
    // Octets as text: what is ASCII stays readable.
    let columns: Vec<(String, String, String)> = sqlx::query_as(
        "select c.relname::text, a.attname::text,
                case when a.atttypid = 'bytea'::regtype then format('encode(%I, ''escape'')', a.attname)
                     else format('%I::text', a.attname) end
         from pg_class c join pg_attribute a on a.attrelid = c.oid
         where c.relnamespace = (select p.relnamespace from pg_class p where p.oid = 'sends'::regclass)
           and c.relkind in ('r', 'p') and not c.relispartition and a.attnum > 0 and not a.attisdropped
           and a.atttypid in ('text'::regtype, 'jsonb'::regtype, 'bytea'::regtype, 'text[]'::regtype)
         order by 1, 2",
    )
    .fetch_all(&edge.pool)
    .await
    .unwrap();
    let mut found = Vec::new();
    for (table, column, text) in columns {
        let sql = format!(
            "select exists (select from (select lower({text}) as text from {table}) r
                            where r.text like '%ann@example.com%' or r.text like '%annabel%' or r.text like '%203.0.113.9%'
                                  or strpos(r.text, 'ann%40example.com') > 0)"
        );
        if sqlx::query_scalar::<_, bool>(sqlx::AssertSqlSafe(sql)).fetch_one(&edge.pool).await.unwrap() {
            found.push(format!("{table}.{column}"));
        }
    }
    found
}

/// What providers told, what was captured, an outcome, an enrollment's step.
async fn leave_more_traces(edge: &Edge, client: &Client, contact: &str) {
    let send: Uuid = sqlx::query_scalar("select id from sends").fetch_one(&edge.pool).await.unwrap();
    for sql in [
        "insert into events (tenant_id, send_id, id, month, type, occurred_at, detail)
         select $1, $3, gen_random_uuid(), month, 'clicked', now(), '{\"url\": \"https://x.example/?e=ann@example.com\", \"link\": 1}'
         from sends where $2::text is not null",
        "insert into captured_mails (tenant_id, send_id, source, is_cut)
         select $1, $3, convert_to('To: ann@example.com', 'UTF8'), false where $2::text is not null",
        "insert into inbound_mails (tenant_id, id, send_id, address_kind, null_sender, size, head, outcome, due_at)
         select $1, gen_random_uuid(), $3, 'return_path', true, 40,
                convert_to('Final-Recipient: rfc822; ann@example.com', 'UTF8'), 'given_up', null
         where $2::text is not null",
        "insert into inbound_events (tenant_id, id, connection_id, provider, dedupe_key, nonce, raw, due_at, state)
         select $1, gen_random_uuid(), $3, 'postmark', 'x', '', convert_to('{\"Email\": \"Ann@Example.com\"}', 'UTF8'), null, 'handled'
         where $2::text is not null",
        "insert into inbound_events (tenant_id, id, connection_id, provider, dedupe_key, nonce, raw, due_at, state)
         select $1, gen_random_uuid(), $3, 'mailgun', 'y', '', convert_to('recipient=Ann%40Example.com&x=1', 'UTF8'), null, 'handled'
         where $2::text is not null",
        "insert into pending_facts (tenant_id, id, reason, send_id, signal, occurred_at)
         select $1, gen_random_uuid(), 'unknown_send', $3, '{\"kind\": \"opened\", \"ip\": \"203.0.113.9\", \"user_agent\": \"x\"}', now()
         where $2::text is not null",
        "insert into outcomes (tenant_id, id, source_system, contact_email, outcome_type, occurred_at)
         select $1, $3, 'crm', 'ann@example.com', 'quote', now() where $2::text is not null",
        "insert into outcome_credits (tenant_id, outcome_id, send_id, kind, contact_id, share, touched_at, evidence)
         select $1, $3, $3, 'campaign', $2::uuid, 1000000, now(), '{\"url\": \"https://x.example/?e=ann@example.com\"}'",
    ] {
        sqlx::query(sql).bind(client.tenant).bind(contact).bind(send).execute(&edge.pool).await.unwrap();
    }
}

/// The body of an event about the contact, written by the webhooks stage.
async fn leave_webhook_body(edge: &Edge, client: &Client, contact: &str) {
    let sql = "insert into webhook_events (tenant_id, product, id, erased_with, body)
         values ($1, 'crm', gen_random_uuid(), $2::uuid, convert_to('{\"email\": \"ann@example.com\"}', 'UTF8'))";
    stage_rig::run!(&edge.pool, sql, [client.tenant, contact]);
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
    run(
        "insert into renditions (tenant_id, send_id, rendered)
         select $1, $3, 'ann@example.com' where $2::uuid is not null and $4::date is not null and $5::text is not null",
    )
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
    for (since, found) in [("2999", 0), ("2001", 5)] {
        let path = format!("/v1/contacts?tag_id={tag}&updated_since={since}-01-01T00:00:00Z");
        assert_eq!(addresses(&client.get(&path).await).len(), found);
    }
    // A change has the time at which its transaction began: those of ten minutes before come again.
    for (age, found) in [("interval '9 minutes'", 6), ("interval '11 minutes'", 0)] {
        let aged = format!("update contacts set updated_at = now() - {age}");
        sqlx::query(sqlx::AssertSqlSafe(aged)).execute(&edge.pool).await.unwrap();
        let now = chrono::Utc::now().format("%Y-%m-%dT%H:%M:%SZ");
        assert_eq!(addresses(&client.get(&format!("/v1/contacts?updated_since={now}")).await).len(), found, "{age}");
    }
}

#[tokio::test]
async fn texts_that_deceive_the_reader_are_refused_wherever_people_read_them() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    for (text, code) in [
        ("Ann\r\nBcc: x", "control_character"),
        ("Ann\u{85}", "control_character"),
        ("Ann\u{202e}nnA", "invisible_character"),
        ("pay\u{200b}pal", "invisible_character"),
    ] {
        for (path, field, body) in [
            ("/v1/contacts", "first_name", json!({"email": "ann@example.com", "first_name": text})),
            ("/v1/contacts", "title", json!({"email": "ann@example.com", "title": text})),
            ("/v1/contacts", "company", json!({"email": "ann@example.com", "company": text})),
            ("/v1/contacts", "tags[0]", json!({"email": "ann@example.com", "tags": [text]})),
            ("/v1/audiences", "name", json!({"kind": "list", "name": text})),
            ("/v1/fields", "label", json!({"key": "plan", "label": text, "type": "string"})),
            ("/v1/templates", "subject", json!({"name": "T", "subject": text, "body_html": "<p>B</p>"})),
            ("/v1/templates", "name", json!({"name": text, "subject": "S", "body_html": "<p>B</p>"})),
        ] {
            let answer = client.post(path, body).await;
            assert_eq!(answer.faults(), [(field.to_owned(), code.to_owned())], "{path}: {}", answer.body);
        }
    }
    let dotted = client.post("/v1/contacts", json!({"email": "ann@example.com."})).await;
    assert_eq!(dotted.faults(), [("email".to_owned(), "bad_domain".to_owned())]);
}
