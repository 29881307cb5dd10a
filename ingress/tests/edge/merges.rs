//! `POST /v1/contacts/{id}/merge`, and what is held about a person

use std::{collections::BTreeSet, time::Duration};

use ledger::suppressions::{self, NewSuppression, SuppressionReason};
use schemas::Environment;
use serde_json::{Value, json};

use crate::common::{Client, Edge, PRODUCT, settings};

async fn make(client: &Client, body: Value) -> String {
    client.post("/v1/contacts", body).await.text("contact_id")
}

async fn merge(client: &Client, survivor: &str, merged: &str) -> Value {
    let answer = client.post(&format!("/v1/contacts/{survivor}/merge"), json!({"contact_id": merged})).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.body["contact"].clone()
}

async fn show(client: &Client, id: &str) -> Value {
    client.get(&format!("/v1/contacts/{id}")).await.body["contact"].clone()
}

fn names(contact: &Value, of: &str) -> Vec<String> {
    contact[of].as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn a_merged_contact_lives_on_in_the_survivor() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    for key in ["plan", "seats"] {
        client.post("/v1/fields", json!({"key": key, "label": key, "type": "string"})).await;
    }
    let ann = make(
        &client,
        json!({"email": "ann@example.com", "first_name": "Ann", "tags": ["a"], "fields": {"plan": "pro"}}),
    )
    .await;
    let other = json!({"email": "ann@work.example", "external_id": "user-1", "first_name": "A.", "phone": "+1", "tags": ["a", "b"],
                       "lists": ["News"], "fields": {"plan": "free", "seats": "3"}});
    let other = make(&client, other).await;
    for _ in 0..2 {
        let merged = merge(&client, &ann, &other).await;
        assert_eq!((&merged["contact_id"], &merged["merged"]), (&json!(ann), &json!([other])));
        assert_eq!(
            (&merged["email"], &merged["first_name"], &merged["phone"], &merged["external_id"]),
            (&json!("ann@example.com"), &json!("Ann"), &json!("+1"), &json!("user-1"))
        );
        assert_eq!(merged["fields"], json!({"plan": "pro", "seats": "3"}));
        assert_eq!(
            (names(&merged, "tags"), names(&merged, "lists")),
            (vec!["a".into(), "b".into()], vec!["News".into()])
        );
    }
    assert_eq!(show(&client, &other).await["contact_id"], json!(ann), "the id leads to the survivor");
    let listed = client.get("/v1/contacts").await.body["contacts"].as_array().unwrap().len();
    assert_eq!(listed, 1);
    let again = client.post("/v1/contacts", json!({"email": "ann@work.example"})).await;
    assert_eq!((again.status.as_u16(), again.text("contact_id")), (200, ann.clone()), "and so does its address");
    assert_eq!(edge.count("select count(*) from audit_log where action = 'contact.merged'").await, 1);
    let itself = client.post(&format!("/v1/contacts/{ann}/merge"), json!({"contact_id": ann})).await;
    assert_eq!(itself.refusal(), (400, "validation_failed"));
    let unknown = client.post(&format!("/v1/contacts/{ann}/merge"), json!({"contact_id": schemas::new_id()})).await;
    assert_eq!(unknown.refusal(), (404, "contact_not_found"));
    // Imports and members reach the survivor as well.
    client.post("/v1/imports", json!({"csv": "email,company\nann@work.example,Acme\n"})).await;
    assert_eq!(show(&client, &ann).await["company"], "Acme");
}

#[tokio::test]
async fn the_stricter_consent_and_suppression_survive_a_merge() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let ann = make(&client, json!({"email": "ann@example.com"})).await;
    let other = make(&client, json!({"email": "ann@work.example", "marketing_status": "unsubscribed"})).await;
    for reason in ["complaint", "hard_bounce"] {
        client.post("/v1/suppressions", json!({"email": "ann@work.example", "reason": reason})).await;
    }
    let merged = merge(&client, &ann, &other).await;
    assert_eq!(
        (&merged["marketing_status"], &merged["suppression"]["reason"]),
        (&json!("unsubscribed"), &json!("complaint"))
    );
    let reasons: Vec<String> = sqlx::query_scalar("select reason from suppressions where address = 'ann@example.com'")
        .fetch_all(&edge.pool)
        .await
        .unwrap();
    assert_eq!(reasons, ["complaint"], "a bounce is about one address");
}

#[tokio::test]
async fn a_later_opt_out_of_the_merged_address_holds_for_the_survivor() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let ann = make(&client, json!({"email": "ann@example.com"})).await;
    let other = make(&client, json!({"email": "ann@work.example"})).await;
    merge(&client, &ann, &other).await;
    client.post("/v1/suppressions", json!({"email": "ann@work.example", "reason": "unsubscribe"})).await;
    assert_eq!(show(&client, &ann).await["suppression"]["reason"], "unsubscribe");
}

/// Ann, and the contact that was merged into her.
async fn merged_pair(client: &Client) -> (String, String) {
    let ann = make(client, json!({"email": "ann@example.com"})).await;
    let other = make(client, json!({"email": "ann@work.example"})).await;
    merge(client, &ann, &other).await;
    (ann, other)
}

async fn sequence(client: &Client) -> String {
    let body = json!({"name": "Trial", "activate": true, "steps": [{"step_type": "wait"}], "trigger_type": "event",
                      "trigger_config": {"event": "trial_started"}});
    client.post("/v1/sequences", body).await.text("sequence_id")
}

#[tokio::test]
async fn suppressions_of_a_merged_address_hold_for_the_survivor() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    merged_pair(&client).await;
    let add = async |email: &str, reason: &str, scope: Value| {
        let body = json!({"email": email, "reason": reason, "scope": scope});
        let added = client.post("/v1/suppressions", body).await;
        assert_eq!((added.status.as_u16(), &added.body["already_existed"]), (201, &json!(false)), "{}", added.body);
    };
    // A narrower one, one that has expired, and one of the tenant's.
    add("ann@example.com", "manual", json!("marketing")).await;
    add("ann@example.com", "import", json!("marketing")).await;
    add("ann@example.com", "unsubscribe", Value::Null).await;
    sqlx::query("update suppressions set expires_at = now() - interval '1 hour' where reason = 'import'")
        .execute(&edge.pool)
        .await
        .unwrap();
    for reason in ["manual", "import", "hard_bounce"] {
        add("ann@work.example", reason, Value::Null).await;
    }
    let mut db = edge.pool.acquire().await.unwrap();
    let own =
        NewSuppression::new(client.tenant, "ann@work.example".into(), SuppressionReason::Unsubscribe, "recipient");
    let written = suppressions::suppress(&mut db, vec![own]).await.unwrap();
    assert_eq!(written.len(), 1, "what was asked for");
    let held: Vec<(String, String, String, bool)> = sqlx::query_as(
        "select reason, scope, source, expires_at is null from suppressions
         where address = 'ann@example.com' order by reason",
    )
    .fetch_all(&edge.pool)
    .await
    .unwrap();
    let expected = [("import", "all", "api"), ("manual", "all", "api"), ("unsubscribe", "marketing", "recipient")];
    assert_eq!(held, expected.map(|(a, b, c)| (a.into(), b.into(), c.into(), true)), "a bounce is about one address");
}

#[tokio::test]
async fn lifting_what_holds_for_a_merged_address_lifts_it_for_the_survivor() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let (ann, _) = merged_pair(&client).await;
    let path = "/v1/suppressions";
    client.post(path, json!({"email": "ann@work.example", "reason": "manual"})).await;
    client.post(path, json!({"email": "ann@example.com", "reason": "import"})).await;
    let lifted = client.delete(path, json!({"email": "ann@work.example"})).await;
    assert_eq!((lifted.status.as_u16(), &lifted.body["lifted"]), (200, &json!(2)), "{}", lifted.body);
    assert_eq!(show(&client, &ann).await["suppression"]["reason"], "import", "her own stays");
    let mut db = edge.pool.acquire().await.unwrap();
    let own = NewSuppression::new(client.tenant, "ann@example.com".into(), SuppressionReason::Unsubscribe, "recipient");
    suppressions::suppress(&mut db, vec![own]).await.unwrap();
    client.post(path, json!({"email": "ann@work.example", "reason": "unsubscribe"})).await;
    let refused = client.delete(path, json!({"email": "ann@work.example"})).await;
    assert_eq!(refused.refusal(), (409, "unsubscribed_by_recipient"));
    assert_eq!(edge.count("select count(*) from suppressions").await, 3, "all or none");
}

#[tokio::test]
async fn enrolling_by_a_merged_address_enrolls_the_survivor() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let (ann, other) = merged_pair(&client).await;
    let sequence = sequence(&client).await;
    let body = json!({"sequence_id": sequence, "email": "ann@work.example", "first_name": "Ann"});
    let enrolled = client.post("/v1/enrollments", body).await;
    assert_eq!((enrolled.status.as_u16(), &enrolled.body["contact_id"]), (201, &json!(ann)), "{}", enrolled.body);
    assert_eq!(show(&client, &ann).await["first_name"], "Ann");
    assert_eq!(edge.count("select count(*) from contacts where status = 'merged' and first_name is null").await, 1);
    let again = client.post("/v1/contacts", json!({"email": "ann@work.example"})).await;
    assert_eq!((again.status.as_u16(), again.text("contact_id")), (200, ann));
    assert_eq!(client.delete(&format!("/v1/contacts/{other}"), json!({"erase": true})).await.status, 200);
    assert_eq!(edge.count("select count(*) from contacts where status = 'erased'").await, 2);
}

#[tokio::test]
async fn an_external_id_of_a_merged_contact_leads_to_the_survivor() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let ann = make(&client, json!({"email": "ann@example.com", "external_id": "1"})).await;
    let other = make(&client, json!({"email": "ann@work.example", "external_id": "2"})).await;
    merge(&client, &ann, &other).await;
    let update = json!({"email": "ann@work.example", "external_id": "2", "first_name": "Ann", "on_existing": "update"});
    let updated = client.post("/v1/contacts", update).await;
    assert_eq!((updated.status.as_u16(), updated.text("contact_id")), (200, ann.clone()), "{}", updated.body);
    let event = client.post("/v1/events", json!({"name": "paid", "external_id": "2"})).await;
    assert_eq!(event.body["contact_id"], json!(ann));
    let csv = "email,external_id,company\nann@work.example,2,Acme\n";
    let import = client.post("/v1/imports", json!({"csv": csv})).await;
    assert_eq!((&import.body["errors"], &import.body["counts"]["updated"]), (&json!([]), &json!(1)), "{}", import.body);
    for id in ["1", "2"] {
        let found = &client.get(&format!("/v1/contacts?external_id={id}")).await.body["contacts"][0];
        assert_eq!((&found["contact_id"], &found["external_id"]), (&json!(ann), &json!("1")));
        assert_eq!((&found["first_name"], &found["company"]), (&json!("Ann"), &json!("Acme")));
    }
    let taken = client.post("/v1/contacts", json!({"email": "bob@example.com", "external_id": "2"})).await;
    assert_eq!(taken.refusal(), (409, "address_differs"));
    let moved = client.patch(&format!("/v1/contacts/{ann}"), json!({"external_id": "2"})).await;
    assert_eq!((moved.status.as_u16(), &moved.body["contact"]["external_id"]), (200, &json!("2")), "{}", moved.body);
}

#[tokio::test]
async fn a_merge_enters_no_segment_anew() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let ann = make(&client, json!({"email": "ann@example.com"})).await;
    let other = make(&client, json!({"email": "ann@work.example"})).await;
    sequence(&client).await;
    sqlx::query(
        "insert into segment_entries (tenant_id, sequence_id, contact_id)
         select s.tenant_id, s.id, c.id from sequences s, contacts c where c.address = 'ann@work.example'",
    )
    .execute(&edge.pool)
    .await
    .unwrap();
    let passed = "insert into segments_passed (tenant_id, contact_id, passed_at)
                  select tenant_id, id, now() from contacts where address = 'ann@work.example'";
    sqlx::query(passed).execute(&edge.pool).await.unwrap();
    merge(&client, &ann, &other).await;
    let passed = "select count(*) from segments_passed p join contacts c on c.id = p.contact_id
                  where c.address = 'ann@example.com'";
    assert_eq!(edge.count(passed).await, 1);
    let entered = "select count(*) from segment_entries e join contacts c on c.id = e.contact_id
                   where c.address = 'ann@example.com'";
    assert_eq!(edge.count(entered).await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn writers_that_waited_for_a_merge_write_to_the_survivor() {
    // A tenant's writes have half of them.
    let edge = Edge::with_connections(settings(), 12).await;
    let client = edge.client().await;
    let ann = make(&client, json!({"email": "ann@example.com"})).await;
    let other = make(&client, json!({"email": "ann@work.example"})).await;
    let sequence = sequence(&client).await;
    let list = client.post("/v1/audiences", json!({"kind": "list", "name": "News"})).await.text("audience_id");
    let mut merging = edge.pool.begin().await.unwrap();
    sqlx::query("select from contacts for update").execute(&mut *merging).await.unwrap();
    sqlx::query(
        "update contacts set status = 'merged', merged_into = (select id from contacts where address = 'ann@example.com')
         where address = 'ann@work.example'",
    )
    .execute(&mut *merging)
    .await
    .unwrap();
    let write = |method: http::Method, path: String, body: Value| {
        let client = client.clone();
        tokio::spawn(async move { client.write(method, &path, body, &[]).await })
    };
    let post = |path: &str, body: Value| write(http::Method::POST, path.to_owned(), body);
    let writing = [
        write(http::Method::PATCH, format!("/v1/contacts/{other}"), json!({"first_name": "Ann"})),
        post("/v1/contacts", json!({"email": "ann@work.example", "on_existing": "update", "last_name": "Low"})),
        post("/v1/events", json!({"name": "paid", "contact_id": other})),
        post("/v1/enrollments", json!({"sequence_id": sequence, "email": "ann@work.example"})),
        post("/v1/imports", json!({"csv": "email,company\nann@work.example,Acme\n"})),
        post(&format!("/v1/audiences/{list}/members"), json!({"add": [other]})),
    ];
    edge.until_waiting(6).await;
    merging.commit().await.unwrap();
    for one in writing {
        let answer = tokio::time::timeout(Duration::from_secs(30), one).await.unwrap().unwrap();
        assert!(answer.status.is_success(), "{}", answer.body);
    }
    let seen = show(&client, &ann).await;
    assert_eq!(
        (&seen["first_name"], &seen["last_name"], &seen["company"]),
        (&json!("Ann"), &json!("Low"), &json!("Acme"))
    );
    for table in ["product_events", "enrollments", "audience_members"] {
        let sql = format!("select count(*) from {table} where contact_id = '{ann}'");
        let found: i64 = sqlx::query_scalar(sqlx::AssertSqlSafe(sql)).fetch_one(&edge.pool).await.unwrap();
        assert_eq!(found, 1, "{table}");
    }
    let untouched = "select count(*) from contacts where status = 'merged' and first_name is null and company is null";
    assert_eq!(edge.count(untouched).await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_opposite_merges_at_once_one_wins() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let ann = make(&client, json!({"email": "ann@example.com"})).await;
    let other = make(&client, json!({"email": "ann@work.example"})).await;
    let mut holding = edge.pool.begin().await.unwrap();
    sqlx::query("select from contacts for update").execute(&mut *holding).await.unwrap();
    let merging = [(&ann, &other), (&other, &ann)].map(|(survivor, merged)| {
        let (client, survivor, merged) = (client.clone(), survivor.clone(), merged.clone());
        tokio::spawn(async move { merge(&client, &survivor, &merged).await })
    });
    edge.until_waiting(2).await;
    holding.commit().await.unwrap();
    let mut left = Vec::new();
    for one in merging {
        let answer = tokio::time::timeout(Duration::from_secs(30), one).await.unwrap().unwrap();
        left.push(answer["contact_id"].clone());
    }
    assert_eq!(left[0], left[1], "the second is a repeat of the first");
    assert_eq!(edge.count("select count(*) from contacts where status = 'merged'").await, 1);
    assert_eq!(edge.count("select count(*) from audit_log where action = 'contact.merged'").await, 1);
}

#[tokio::test]
async fn a_merge_with_an_erased_contact_finds_no_contact() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let ann = make(&client, json!({"email": "ann@example.com"})).await;
    let gone = make(&client, json!({"email": "ann@work.example"})).await;
    assert_eq!(client.delete(&format!("/v1/contacts/{gone}"), json!({"erase": true})).await.status, 200);
    for (survivor, merged) in [(&ann, &gone), (&gone, &ann), (&gone, &gone)] {
        let answer = client.post(&format!("/v1/contacts/{survivor}/merge"), json!({"contact_id": merged})).await;
        assert_eq!(answer.refusal(), (404, "contact_not_found"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_import_that_waited_for_a_merge_loses_no_opt_out() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let ann = make(&client, json!({"email": "ann@example.com"})).await;
    make(&client, json!({"email": "ann@work.example"})).await;
    let mut merging = edge.pool.begin().await.unwrap();
    for sql in [
        "select from contacts for update",
        "update contacts set status = 'merged', merged_into = (select id from contacts where address = 'ann@example.com')
         where address = 'ann@work.example'",
    ] {
        sqlx::query(sql).execute(&mut *merging).await.unwrap();
    }
    let importing = client.clone();
    let import = tokio::spawn(async move {
        let csv = "email,unsubscribed\nann@work.example,yes\n";
        importing.post("/v1/imports", json!({"csv": csv, "operation": "update"})).await
    });
    edge.until_waiting(1).await;
    merging.commit().await.unwrap();
    let answer = import.await.unwrap();
    assert_eq!(answer.body["counts"]["updated"], 1, "{}", answer.body);
    assert_eq!(show(&client, &ann).await["marketing_status"], "unsubscribed");
}

#[tokio::test]
async fn a_merged_contact_is_in_no_export() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let (ann, _) = merged_pair(&client).await;
    let export = client.get("/v1/exports/contacts?format=ndjson").await;
    let text = String::from_utf8(export.bytes).unwrap();
    assert!(text.lines().count() == 1 && text.contains(&ann), "{text}");
}

#[tokio::test]
async fn erasing_the_survivor_erases_what_was_merged_into_it() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let ann = make(&client, json!({"email": "ann@example.com"})).await;
    let other = make(&client, json!({"email": "ann@work.example", "external_id": "user-1"})).await;
    merge(&client, &ann, &other).await;
    assert_eq!(client.delete(&format!("/v1/contacts/{other}"), json!({"erase": true})).await.status, 200);
    assert_eq!(
        edge.count("select count(*) from contacts where address like '%example%' or external_id is not null").await,
        0
    );
    assert_eq!(edge.count("select count(*) from contacts where status = 'erased'").await, 2);
}

#[tokio::test]
async fn chains_of_merges_lead_to_the_last_survivor() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let mut ids = Vec::new();
    for n in 0..3 {
        ids.push(make(&client, json!({"email": format!("c{n}@example.com")})).await);
    }
    merge(&client, &ids[1], &ids[0]).await;
    merge(&client, &ids[2], &ids[1]).await;
    for id in &ids {
        assert_eq!(show(&client, id).await["contact_id"], json!(ids[2]));
    }
    let back = client.post(&format!("/v1/contacts/{}/merge", ids[0]), json!({"contact_id": ids[2]})).await;
    assert_eq!((back.status.as_u16(), &back.body["contact"]["contact_id"]), (200, &json!(ids[2])));
}

#[tokio::test]
async fn mail_to_merged_contacts_counts_for_the_last_survivor() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let mut ids = Vec::new();
    for n in 0..4 {
        ids.push(make(&client, json!({"email": format!("c{n}@example.com")})).await);
    }
    let send = schemas::new_batch_id();
    sqlx::query(
        "insert into sends (tenant_id, id, month, contact_id, state, decided_at) values ($1, $2, $3, $4::uuid, 'sent', now())",
    )
    .bind(client.tenant)
    .bind(send)
    .bind(schemas::month_of(send))
    .bind(&ids[0])
    .execute(&edge.pool)
    .await
    .unwrap();
    sqlx::query("update sends set opened_at = now()").execute(&edge.pool).await.unwrap();
    merge(&client, &ids[1], &ids[0]).await;
    merge(&client, &ids[2], &ids[1]).await;
    for event in ["email.sent", "email.opened"] {
        let found = client.post("/v1/segments/preview", json!({"rule": {"event": event}})).await.body;
        assert_eq!((&found["count"], &found["sample"][0]["contact_id"]), (&json!(1), &json!(ids[2])), "{found}");
        let rest = client.post("/v1/segments/preview", json!({"rule": {"not": {"event": event}}})).await.body;
        assert_eq!((&rest["count"], &rest["sample"][0]["contact_id"]), (&json!(1), &json!(ids[3])), "{rest}");
    }
}

#[tokio::test]
async fn enrollments_and_outcomes_of_merged_contacts_are_listed_by_every_id() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let ann = make(&client, json!({"email": "ann@example.com"})).await;
    let other = make(&client, json!({"email": "ann@work.example"})).await;
    let sequence = sequence(&client).await;
    for contact in [&ann, &other] {
        let enrolled = client.post("/v1/enrollments", json!({"sequence_id": sequence, "contact_id": contact})).await;
        assert_eq!(enrolled.status, 201, "{}", enrolled.body);
    }
    let outcome = json!({"contact_email": "ann@work.example", "outcome_type": "bind"});
    assert!(client.post("/v1/outcomes", outcome).await.status.is_success());
    merge(&client, &ann, &other).await;
    for name in [format!("contact_id={ann}"), format!("contact_id={other}"), "email=ann%40work.example".to_owned()] {
        let listed = client.get(&format!("/v1/enrollments?{name}")).await.body["enrollments"].clone();
        let of = |n: usize| (listed[n]["contact_id"].clone(), listed[n]["status"].clone());
        assert_eq!((of(0), of(1)), ((json!(other), json!("exited")), (json!(ann), json!("active"))), "{listed}");
    }
    for id in [&ann, &other] {
        let listed = client.get(&format!("/v1/outcomes?contact_id={id}")).await.body["outcomes"].clone();
        assert_eq!((&listed[0]["contact_id"], &listed[1]), (&json!(ann), &Value::Null), "{listed}");
    }
}

#[tokio::test]
async fn a_person_reads_everything_that_is_held_page_by_page() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let ann = make(&client, json!({"email": "ann@example.com"})).await;
    let other = make(&client, json!({"email": "ann@work.example"})).await;
    merge(&client, &ann, &other).await;
    make(&client, json!({"email": "bob@example.com"})).await;
    client.post("/v1/suppressions", json!({"email": "ann@work.example", "reason": "hard_bounce"})).await;
    let events = |email: &str, count: usize| {
        (0..count).map(|n| json!({"name": format!("event_{n}"), "email": email})).collect::<Vec<_>>()
    };
    for event in events("ann@work.example", 205).into_iter().chain(events("bob@example.com", 1)) {
        assert!(client.post("/v1/events", event).await.status.is_success());
    }
    let path = format!("/v1/contacts/{ann}/data");
    let first = client.post(&path, json!({})).await.body;
    assert_eq!(
        (&first["contact"]["contact_id"], &first["merged_addresses"]),
        (&json!(ann), &json!(["ann@work.example"]))
    );
    assert_eq!(first["suppressions"][0]["reason"], "hard_bounce");
    let second = client.post(&path, json!({"cursor": first["next_cursor"]})).await.body;
    assert_eq!(second["next_cursor"], Value::Null);
    let mut names: Vec<&str> = [&first, &second]
        .into_iter()
        .flat_map(|page| page["records"].as_array().unwrap())
        .map(|record| record["data"]["name"].as_str().unwrap())
        .collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), 205, "each once, and nobody else's");
    assert_eq!(edge.count("select count(*) from audit_log where action = 'contact.data_read'").await, 2, "each page");
    let wrong = client.post(&path, json!({"cursor": "x"})).await;
    assert_eq!(wrong.refusal(), (400, "validation_failed"));
}

#[tokio::test]
async fn all_that_is_held_about_a_person_comes_in_one_answer() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let ann = make(&client, json!({"email": "ann@example.com"})).await;
    let other = json!({"email": "ann@work.example", "first_name": "Annabel", "consent": {"basis": "opt_in"}});
    let other = make(&client, other).await;
    client.patch(&format!("/v1/contacts/{ann}"), json!({"first_name": "Ann"})).await;
    merge(&client, &ann, &other).await;
    let bob = make(&client, json!({"email": "bob@example.com"})).await;
    client.post("/v1/suppressions", json!({"email": "ann@work.example", "reason": "hard_bounce"})).await;
    let for_a_while = json!({"email": "ann@work.example", "reason": "manual", "expires_at": "2099-01-02T03:04:05Z"});
    client.post("/v1/suppressions", for_a_while).await;
    // More than two slices.
    sqlx::query(
        "insert into product_events (tenant_id, id, product, contact_id, name, occurred_at)
         select $1, gen_random_uuid(), 'crm', case when n > 450 then $2::uuid else $3::uuid end, 'event_' || n, now()
         from generate_series(1, 460) n",
    )
    .bind(client.tenant)
    .bind(&bob)
    .bind(&ann)
    .execute(&edge.pool)
    .await
    .unwrap();
    // The id of what was merged leads there, too.
    let answer = client.get(&format!("/v1/contacts/{other}/data")).await;
    assert_eq!((answer.status.as_u16(), answer.header("content-type")), (200, "application/x-ndjson"));
    let text = String::from_utf8(answer.bytes).unwrap();
    let mut lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let head = lines.next().unwrap();
    assert_eq!(
        (&head["contact"]["contact_id"], &head["merged_addresses"]),
        (&json!(ann), &json!(["ann@work.example"]))
    );
    let merged = &head["merged_contacts"][0];
    assert_eq!(
        (&merged["id"], &merged["first_name"], &merged["consent_basis"]),
        (&json!(other), &json!("Annabel"), &json!("opt_in"))
    );
    let suppressions = head["suppressions"].as_array().unwrap();
    let ends: BTreeSet<(&str, bool)> =
        suppressions.iter().map(|held| (held["reason"].as_str().unwrap(), held["expires_at"].is_string())).collect();
    assert_eq!(ends, BTreeSet::from([("hard_bounce", false), ("manual", true)]));
    let records: Vec<Value> = lines.collect();
    let mut names: Vec<&str> = records.iter().map(|record| record["data"]["name"].as_str().unwrap()).collect();
    assert_eq!(names.len(), 450, "nobody else's");
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), 450, "each once");
    assert_eq!(edge.count("select count(*) from audit_log where action = 'contact.data_read'").await, 1);
    let page = client.post(&format!("/v1/contacts/{ann}/data"), json!({})).await.body;
    assert_eq!(page["records"].as_array().unwrap()[..], records[..200], "what the pages have");
    let key = edge.key(PRODUCT, Environment::Production, &["contacts:read", "contacts:write"]).await;
    let refused = Client { key, ..client }.get(&format!("/v1/contacts/{ann}/data")).await;
    assert_eq!(refused.refusal(), (403, "missing_scope:contacts:data"));
}

#[tokio::test]
async fn what_is_held_needs_a_scope_and_leaves_data_of_requests_out() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let ann = make(&client, json!({"email": "ann@example.com"})).await;
    sqlx::query(
        "insert into requests (tenant_id, id, product, environment, kind, payload)
         select tenant_id, $1, 'acme', 'production', 'transactional',
                jsonb_build_object('address', address, 'data', jsonb_build_object('code', '123456'))
         from contacts",
    )
    .bind(schemas::new_id())
    .execute(&edge.pool)
    .await
    .unwrap();
    let path = format!("/v1/contacts/{ann}/data");
    let held = client.post(&path, json!({})).await.body;
    assert_eq!(held["records"][0]["data"]["payload"], json!({"address": "ann@example.com"}));
    let key = edge.key(PRODUCT, Environment::Production, &["contacts:read", "contacts:write"]).await;
    let refused = Client { key, ..client }.post(&path, json!({})).await;
    assert_eq!(refused.refusal(), (403, "missing_scope:contacts:data"));
}
