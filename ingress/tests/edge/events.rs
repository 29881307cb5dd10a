//! `/v1/events`: what products tell about contacts, what it starts and ends, and what segments know of it.

use schemas::Environment;
use serde_json::{Value, json};

use crate::common::{Client, Edge, PRODUCT};

async fn contact(client: &Client, email: &str) -> String {
    let made = client.post("/v1/contacts", json!({ "email": email })).await;
    assert_eq!(made.status, 201, "{}", made.body);
    made.text("contact_id")
}

async fn sequence(client: &Client, change: Value) -> String {
    let mut body = json!({
        "name": "Trial", "activate": true, "steps": [{"step_type": "wait"}], "trigger_type": "event",
        "trigger_config": {"event": "trial_started"},
    });
    for (name, value) in change.as_object().unwrap() {
        body[name] = value.clone();
    }
    let made = client.post("/v1/sequences", body).await;
    assert_eq!(made.status, 201, "{}", made.body);
    made.text("sequence_id")
}

#[tokio::test]
async fn an_event_is_recorded_once_for_its_source_id() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let ann = contact(&client, "ann@example.com").await;
    let event =
        json!({"name": "paid", "email": "Ann@Example.com", "properties": {"cents": 100}, "source_event_id": "e-1"});
    let first = client.post("/v1/events", event.clone()).await;
    assert_eq!((first.status.as_u16(), &first.body["status"]), (201, &json!("recorded")), "{}", first.body);
    assert_eq!(first.body["contact_id"], json!(ann));
    let repeated = client.post("/v1/events", event.clone()).await;
    assert_eq!((repeated.status.as_u16(), &repeated.body["status"]), (200, &json!("already_recorded")));
    assert_eq!(repeated.body["event_id"], first.body["event_id"]);
    let other = json!({"name": "paid", "contact_id": ann});
    let unknown = json!({"name": "paid", "email": "nobody@example.com"});
    let new = json!({"name": "paid", "contact_id": ann, "source_event_id": "e-2"});
    let many = client.post("/v1/events", json!({"events": [event, other, unknown, new, new]})).await;
    assert_eq!((many.status.as_u16(), &many.body["recorded"]), (201, &json!(2)), "{}", many.body);
    let statuses: Vec<&str> =
        many.body["events"].as_array().unwrap().iter().map(|event| event["status"].as_str().unwrap()).collect();
    assert_eq!(statuses, ["already_recorded", "recorded", "contact_not_found", "recorded", "already_recorded"]);
    assert_eq!(many.body["events"][3]["event_id"], many.body["events"][4]["event_id"]);
    assert_eq!(edge.count("select count(*) from product_events").await, 3);
}

#[tokio::test]
async fn a_faulty_event_of_many_keeps_all_of_them_out() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    contact(&client, "ann@example.com").await;
    let good = json!({"name": "paid", "email": "ann@example.com"});
    let answer =
        client.post("/v1/events", json!({"events": [good, {"name": "Paid!", "email": "ann@example.com"}]})).await;
    assert_eq!(answer.refusal(), (400, "validation_failed"));
    assert_eq!(answer.faults()[0].0, "events[1].name");
    let unknown = client.post("/v1/events", json!({"name": "paid", "email": "nobody@example.com"})).await;
    assert_eq!(unknown.refusal(), (404, "contact_not_found"));
    assert_eq!(edge.count("select count(*) from product_events").await, 0);
}

#[tokio::test]
async fn another_tenants_contact_has_no_events() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let stranger = edge.client_for(PRODUCT, Environment::Production, "tenant-2").await;
    let ann = contact(&client, "ann@example.com").await;
    for body in [json!({"name": "paid", "contact_id": ann}), json!({"name": "paid", "email": "ann@example.com"})] {
        assert_eq!(stranger.post("/v1/events", body).await.refusal(), (404, "contact_not_found"));
    }
    sequence(&stranger, json!({})).await;
    client.post("/v1/events", json!({"name": "trial_started", "contact_id": ann})).await;
    assert_eq!(edge.count("select count(*) from trigger_occurrences").await, 0);
}

#[tokio::test]
async fn an_event_notes_the_sequences_it_starts_and_no_other() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    contact(&client, "ann@example.com").await;
    let plain = sequence(&client, json!({})).await;
    let of_plan = json!({"trigger_config": {"event": "trial_started", "properties": {"plan": "pro"}}});
    let matching = sequence(&client, of_plan).await;
    for other in [
        json!({"trigger_config": {"event": "trial_started", "properties": {"plan": "free"}}}),
        json!({"trigger_config": {"event": "trial_ended"}}),
        json!({"trigger_config": null}),
        json!({"activate": false}),
        json!({"enroll_from": "2999-01-01T00:00:00Z"}),
        json!({"enroll_until": "2020-01-01T00:00:00Z"}),
    ] {
        sequence(&client, other).await;
    }
    let event = json!({"name": "trial_started", "email": "ann@example.com", "properties": {"plan": "pro", "seats": 3}});
    assert_eq!(client.post("/v1/events", event.clone()).await.status, 201);
    let mut late = event;
    late["occurred_at"] = json!("2026-01-01T00:00:00Z");
    assert_eq!(client.post("/v1/events", late).await.status, 201);
    let noted: Vec<String> =
        sqlx::query_scalar("select sequence_id::text from trigger_occurrences order by sequence_id")
            .fetch_all(&edge.pool)
            .await
            .unwrap();
    assert_eq!(noted, [plain, matching]);
}

#[tokio::test]
async fn explain_says_why_a_trigger_started_nothing() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    contact(&client, "ann@example.com").await;
    let id = sequence(&client, json!({})).await;
    let explained = async || {
        let answer = client.get(&format!("/v1/explain?sequence_id={id}&email=ann%40example.com")).await.body;
        let gates = answer["explanation"]["gates"].as_array().unwrap_or_else(|| panic!("{answer}")).clone();
        let trigger = gates.iter().find(|gate| gate["gate"] == "trigger");
        trigger.map(|gate| (gate["verdict"].clone(), gate["detail"].clone()))
    };
    assert_eq!(explained().await, None, "nothing has occurred");
    client.post("/v1/events", json!({"name": "trial_started", "email": "ann@example.com"})).await;
    assert_eq!(explained().await, Some((json!("wait"), json!("is_not_decided"))));
    sqlx::query("update trigger_occurrences set decided_at = now(), outcome = 'gap'")
        .execute(&edge.pool)
        .await
        .unwrap();
    assert_eq!(explained().await, Some((json!("stop"), json!("not_started_gap"))));
    // It is on its way, started in another way, and its sequence rests: that is what it waits for.
    let enrolled = client.post("/v1/enrollments", json!({"sequence_id": id, "email": "ann@example.com"})).await;
    assert_eq!(enrolled.status, 201, "{}", enrolled.body);
    assert_eq!(explained().await, Some((json!("pass"), json!("not_started_gap"))));
    for sql in ["update sequences set status = 'paused'", "update enrollments set status = 'paused'"] {
        sqlx::query(sql).execute(&edge.pool).await.unwrap();
    }
    let answer = client.get(&format!("/v1/explain?sequence_id={id}&email=ann%40example.com")).await.body;
    let found = &answer["explanation"];
    assert_eq!((&found["verdict"], &found["decided_by"]), (&json!("wait"), &json!("sequence")), "{answer}");
    // It went through the sequence after that occurrence.
    sqlx::query("update enrollments set status = 'completed', next_action_at = null, ended_at = now()")
        .execute(&edge.pool)
        .await
        .unwrap();
    let answer = client.get(&format!("/v1/explain?sequence_id={id}&email=ann%40example.com")).await.body;
    let found = &answer["explanation"];
    assert_eq!((&found["verdict"], &found["decided_by"]), (&json!("stop"), &json!("audience")), "{answer}");
}

#[tokio::test]
async fn a_segment_asks_how_often_how_lately_and_with_what() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    for name in ["ann", "bob", "cid"] {
        contact(&client, &format!("{name}@example.com")).await;
    }
    let tell = async |name: &str, plan: &str, at: &str| {
        let body = json!({"name": "paid", "email": format!("{name}@example.com"), "properties": {"plan": plan}, "occurred_at": at});
        assert_eq!(client.post("/v1/events", body).await.status, 201);
    };
    let now = chrono::Utc::now().to_rfc3339();
    tell("ann", "pro", &now).await;
    tell("ann", "pro", &now).await;
    tell("bob", "free", &now).await;
    tell("cid", "pro", "2021-01-01T00:00:00Z").await;
    let count = async |rule: Value| {
        let answer = client.post("/v1/segments/preview", json!({ "rule": rule })).await;
        answer.body["count"].as_i64().unwrap_or_else(|| panic!("{}", answer.body))
    };
    assert_eq!(count(json!({"product_event": "paid"})).await, 3);
    assert_eq!(count(json!({"product_event": "paid", "within_days": 30})).await, 2);
    assert_eq!(count(json!({"product_event": "paid", "count": 2})).await, 1);
    assert_eq!(count(json!({"product_event": "paid", "properties": {"plan": "pro"}})).await, 2);
    assert_eq!(count(json!({"product_event": "paid", "within_days": 30, "properties": {"plan": "pro"}})).await, 1);
    assert_eq!(count(json!({"product_event": "paid", "op": "exactly", "count": 0})).await, 0);
    assert_eq!(count(json!({"not": {"product_event": "paid", "within_days": 30}})).await, 1);
    assert_eq!(count(json!({"product_event": "left"})).await, 0);
}

#[tokio::test]
async fn an_erasure_deletes_what_products_told() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let ann = contact(&client, "ann@example.com").await;
    contact(&client, "bob@example.com").await;
    for name in ["ann", "bob"] {
        client.post("/v1/events", json!({"name": "paid", "email": format!("{name}@example.com")})).await;
    }
    let erased = client.delete(&format!("/v1/contacts/{ann}"), json!({"erase": true})).await;
    assert!(erased.status.is_success(), "{}", erased.body);
    edge.finish_erasures().await;
    assert_eq!(edge.count("select count(*) from product_events").await, 1);
    assert_eq!(client.post("/v1/events", json!({"name": "paid", "contact_id": ann})).await.status, 404);
}

#[tokio::test]
async fn what_is_wrong_with_a_trigger_is_named() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    for (key, kind) in [("plan", "string"), ("renewal", "date")] {
        client.post("/v1/fields", json!({"key": key, "label": key, "type": kind})).await;
    }
    for (change, path) in [
        (json!({"trigger_type": "moon", "trigger_config": {}}), "trigger_config"),
        (json!({"trigger_config": {}}), "trigger_config.event"),
        (json!({"trigger_config": {"event": "Trial Started"}}), "trigger_config.event"),
        (json!({"trigger_config": {"event": "t", "properties": {"a": []}}}), "trigger_config.properties.a"),
        (json!({"trigger_type": "field_date", "trigger_config": {"field": "plan"}}), "trigger_config.field"),
        (
            json!({"trigger_type": "field_date", "trigger_config": {"field": "renewal", "at": "9:00"}}),
            "trigger_config.at",
        ),
        (
            json!({"trigger_type": "field_date", "trigger_config": {"field": "renewal", "offset_days": 4000}}),
            "trigger_config.offset_days",
        ),
        (
            json!({"trigger_type": "field_date", "trigger_config": {"field": "renewal", "offset_days": i32::MIN}}),
            "trigger_config.offset_days",
        ),
        (
            json!({"trigger_type": "field_date", "trigger_config": {"field": "renewal", "yearly": true}, "reentry": "once"}),
            "reentry",
        ),
        (json!({"reentry": "every_time"}), "reentry_gap_minutes"),
        (json!({"enroll_from": "2026-02-01T00:00:00Z", "enroll_until": "2026-01-01T00:00:00Z"}), "enroll_until"),
        (json!({"exit_on_event": {"event": ""}}), "exit_on_event.event"),
    ] {
        let mut body = json!({
            "name": "Trial", "steps": [{"step_type": "wait"}], "trigger_type": "event", "trigger_config": {"event": "t"},
        });
        for (name, value) in change.as_object().unwrap() {
            body[name] = value.clone();
        }
        let answer = client.post("/v1/sequences", body).await;
        assert_eq!(answer.refusal(), (400, "validation_failed"), "{change}: {}", answer.body);
        assert_eq!(answer.faults()[0].0, path, "{change}");
    }
    let labelled =
        client.post("/v1/sequences", json!({"name": "S", "steps": [{"step_type": "wait"}], "trigger_type": "event"}));
    let id = labelled.await.text("sequence_id");
    let shown = client.get(&format!("/v1/sequences/{id}")).await.body["sequence"].clone();
    assert_eq!((&shown["trigger_type"], &shown["trigger_config"]), (&json!("event"), &Value::Null), "a label, as ever");
}

async fn audience(client: &Client, kind: &str) -> String {
    let made = client.post("/v1/audiences", json!({"kind": kind, "name": kind})).await;
    assert_eq!(made.status, 201, "{}", made.body);
    made.text("audience_id")
}

/// How many occurrences of each trigger there are, in the order of their words.
async fn noted(edge: &Edge) -> Vec<(String, i64)> {
    sqlx::query_as(
        "select s.trigger_type, count(*) from trigger_occurrences o join sequences s on s.id = o.sequence_id group by 1 order by 1",
    )
    .fetch_all(&edge.pool)
    .await
    .unwrap()
}

#[tokio::test]
async fn new_contacts_and_members_start_sequences_and_an_import_does_not() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let (list, tag) = (audience(&client, "list").await, audience(&client, "tag").await);
    for (trigger, config) in [
        ("contact_created", json!({})),
        ("list_joined", json!({ "list_id": list })),
        ("tag_added", json!({ "tag_id": tag })),
    ] {
        sequence(&client, json!({"trigger_type": trigger, "trigger_config": config})).await;
    }
    let import = |name: &str| json!({"csv": format!("email,list,tags\n{name}@example.com,list,tag\n")});
    let imported = client.post("/v1/imports", import("ann")).await;
    assert_eq!((imported.status.as_u16(), &imported.body["counts"]["created"]), (200, &json!(1)), "{}", imported.body);
    assert_eq!(edge.count("select count(*) from audience_members").await, 2);
    assert_eq!(noted(&edge).await, []);
    let mut starting = import("bob");
    starting["start_sequences"] = json!(true);
    client.post("/v1/imports", starting).await;
    let each = |count| ["contact_created", "list_joined", "tag_added"].map(|word| (word.to_owned(), count)).to_vec();
    assert_eq!(noted(&edge).await, each(1));
    client.post("/v1/contacts", json!({"email": "cid@example.com", "lists": [list], "tags": [tag]})).await;
    assert_eq!(noted(&edge).await, each(2));
    // Who is a member does not join; who left joins again.
    let members = format!("/v1/audiences/{list}/members");
    client.post(&members, json!({"add": ["cid@example.com"]})).await;
    client.post("/v1/contacts", json!({"email": "cid@example.com", "tags": [tag]})).await;
    assert_eq!(noted(&edge).await, each(2));
    client.post(&members, json!({"remove": ["cid@example.com"]})).await;
    client.post(&members, json!({"add": ["cid@example.com"]})).await;
    assert_eq!(noted(&edge).await[1], ("list_joined".to_owned(), 3));
}

#[tokio::test]
async fn an_import_passes_over_the_segments_of_triggers() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    contact(&client, "known@example.com").await;
    contact(&client, "changed@example.com").await;
    let rule = json!({"field": "company", "op": "exists"});
    let segment = client.post("/v1/segments", json!({"name": "Firms", "rule": rule})).await.text("segment_id");
    let trigger = json!({"trigger_type": "segment_entered", "trigger_config": {"segment_id": segment}});
    sequence(&client, trigger.clone()).await;
    let paused = sequence(&client, trigger.clone()).await;
    assert_eq!(client.patch(&format!("/v1/sequences/{paused}"), json!({"status": "paused"})).await.status, 200);
    let mut draft = trigger;
    draft["activate"] = json!(false);
    sequence(&client, draft).await;
    let csv = "email,company\nknown@example.com,\nchanged@example.com,Acme\nnew@example.com,Bolt\n";
    for body in [
        json!({"csv": csv, "operation": "verification_only"}),
        json!({"csv": csv, "start_sequences": true, "operation": "audience_only"}),
        json!({"csv": csv}),
    ] {
        let imported = client.post("/v1/imports", body).await;
        assert_eq!(imported.body["status"], "completed", "{}", imported.body);
    }
    let passed: Vec<String> =
        sqlx::query_scalar("select c.address from segments_passed p join contacts c on c.id = p.contact_id order by 1")
            .fetch_all(&edge.pool)
            .await
            .unwrap();
    assert_eq!(passed, ["changed@example.com", "new@example.com"], "once, however many triggers there are");
    client.post("/v1/imports", json!({"csv": "email,company\nlate@example.com,Cid\n", "start_sequences": true})).await;
    assert_eq!(edge.count("select count(*) from segments_passed").await, 2, "it may start sequences");
    // Postgres has a table of a few thousand locks for all tenants.
    let mut tx = edge.pool.begin().await.unwrap();
    sqlx::query("select pass_over_segments(tenant_id, array_agg(id)) from contacts group by tenant_id")
        .execute(&mut *tx)
        .await
        .unwrap();
    let locks = "select count(*) from pg_locks where locktype = 'advisory' and pid = pg_backend_pid()";
    let locks: i64 = sqlx::query_scalar(locks).fetch_one(&mut *tx).await.unwrap();
    assert_eq!(locks, 1, "one, however many triggers there are");
}

#[tokio::test]
async fn a_resumed_sequence_starts_no_dates_of_its_pause() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    client.post("/v1/fields", json!({"key": "renewal", "label": "Renewal", "type": "date"})).await;
    let config = json!({"field": "renewal", "offset_days": -7, "yearly": false, "at": "08:30"});
    let dates = sequence(&client, json!({"trigger_type": "field_date", "trigger_config": config})).await;
    let shown = client.get(&format!("/v1/sequences/{dates}")).await.body["sequence"]["trigger_config"].clone();
    assert_eq!(shown, config, "as it was given, so that it can be given again");
    let rule = json!({"field": "company", "op": "exists"});
    let segment = client.post("/v1/segments", json!({"name": "Firms", "rule": rule})).await.text("segment_id");
    let entries =
        sequence(&client, json!({"trigger_type": "segment_entered", "trigger_config": {"segment_id": segment}})).await;
    sqlx::query("update sequences set triggers_swept_at = now() - interval '90 days'")
        .execute(&edge.pool)
        .await
        .unwrap();
    for id in [&dates, &entries] {
        for status in ["paused", "active"] {
            let changed = client.patch(&format!("/v1/sequences/{id}"), json!({ "status": status })).await;
            assert_eq!(changed.status, 200, "{}", changed.body);
        }
    }
    // A trigger that was not looked at finds the dates of the last day; who is in a segment then would not enter it.
    let looked: Vec<String> =
        sqlx::query_scalar("select trigger_type from sequences where triggers_swept_at is not null")
            .fetch_all(&edge.pool)
            .await
            .unwrap();
    assert_eq!(looked, ["segment_entered"]);
}

#[tokio::test]
async fn a_yearly_trigger_starts_a_contact_every_year() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    client.post("/v1/fields", json!({"key": "born", "label": "Born", "type": "date"})).await;
    for (yearly, reentry, gap, expected) in [
        (false, Value::Null, 0, "once"),
        (true, Value::Null, 0, "after_finishing"),
        (true, json!("every_time"), 60, "every_time"),
    ] {
        let config = json!({"field": "born", "yearly": yearly});
        let body = json!({
            "trigger_type": "field_date", "trigger_config": config, "reentry": reentry, "reentry_gap_minutes": gap,
        });
        let path = format!("/v1/sequences/{}", sequence(&client, body.clone()).await);
        assert_eq!(client.get(&path).await.body["sequence"]["reentry"], expected, "{body}");
        let changed = client.patch(&format!("{path}/trigger"), body).await;
        assert_eq!(changed.body["sequence"]["reentry"], expected, "{}", changed.body);
    }
}

#[tokio::test]
async fn a_changed_trigger_forgets_no_entry_into_its_segment() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let segment = async |field: &str| {
        let rule = json!({"field": field, "op": "exists"});
        client.post("/v1/segments", json!({"name": field, "rule": rule})).await.text("segment_id")
    };
    let (firms, titles) = (segment("company").await, segment("title").await);
    let by = |segment: &str| json!({"trigger_type": "segment_entered", "trigger_config": {"segment_id": segment}});
    let path = format!("/v1/sequences/{}/trigger", sequence(&client, by(&firms)).await);
    sqlx::query("update sequences set triggers_swept_at = now(), triggers_tried_at = now()")
        .execute(&edge.pool)
        .await
        .unwrap();
    let mut until_then = by(&firms);
    until_then["enroll_until"] = json!("2199-01-01T00:00:00Z");
    for (body, looked) in [(until_then, 1), (by(&titles), 0)] {
        let changed = client.patch(&path, body).await;
        assert_eq!(changed.status, 200, "{}", changed.body);
        let kept = "select count(*) from sequences where triggers_swept_at is not null and triggers_tried_at is null";
        assert_eq!(edge.count(kept).await, looked, "{}", changed.body);
    }
}

#[tokio::test]
async fn a_trigger_names_the_tenants_own_list() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let stranger = edge.client_for(PRODUCT, Environment::Production, "tenant-2").await;
    let (list, tag) = (audience(&client, "list").await, audience(&client, "tag").await);
    for (client, trigger, config, code) in [
        (&client, "list_joined", json!({ "list_id": tag }), "list_not_found"),
        (&client, "tag_added", json!({ "tag_id": list }), "tag_not_found"),
        (&stranger, "list_joined", json!({ "list_id": list }), "list_not_found"),
    ] {
        let body =
            json!({"name": "S", "steps": [{"step_type": "wait"}], "trigger_type": trigger, "trigger_config": config});
        assert_eq!(client.post("/v1/sequences", body).await.refusal(), (404, code));
    }
    let body = json!({"name": "S", "steps": [{"step_type": "wait"}], "trigger_type": "list_joined", "trigger_config": {"list_id": 7}});
    assert_eq!(client.post("/v1/sequences", body).await.faults()[0].0, "trigger_config.list_id");
}

#[tokio::test]
async fn a_segment_that_starts_a_sequence_stays() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let rule = json!({"field": "company", "op": "exists"});
    let segment = client.post("/v1/segments", json!({"name": "Firms", "rule": rule})).await.text("segment_id");
    let trigger = json!({"trigger_type": "segment_entered", "trigger_config": {"segment_id": segment}});
    let id = sequence(&client, trigger).await;
    let path = format!("/v1/segments/{segment}");
    assert_eq!(client.delete(&path, json!({})).await.refusal(), (409, "segment_in_use"));
    client.patch(&format!("/v1/sequences/{id}"), json!({"status": "archived"})).await;
    assert_eq!(client.delete(&path, json!({})).await.status, 200);
    let body = json!({"name": "S", "steps": [{"step_type": "wait"}], "trigger_type": "segment_entered",
                      "trigger_config": {"segment_id": segment}});
    assert_eq!(client.post("/v1/sequences", body).await.refusal(), (404, "segment_not_found"));
}

#[tokio::test]
async fn a_trigger_is_replaced_as_a_whole() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let stranger = edge.client_for(PRODUCT, Environment::Production, "tenant-2").await;
    contact(&client, "ann@example.com").await;
    let exit = json!({"reentry": "after_finishing", "exit_on_event": {"event": "paid"}});
    let path = format!("/v1/sequences/{}/trigger", sequence(&client, exit).await);
    let body = json!({"trigger_type": "event", "trigger_config": {"event": "trial_ended"}});
    assert_eq!(stranger.patch(&path, body.clone()).await.refusal(), (404, "sequence_not_found"));
    let changed = client.patch(&path, body).await;
    let shown = &changed.body["sequence"];
    assert_eq!((changed.status.as_u16(), &shown["trigger_config"]), (200, &json!({"event": "trial_ended"})), "{shown}");
    assert_eq!((&shown["reentry"], &shown["exit_on_event"]), (&json!("once"), &Value::Null));
    for name in ["trial_started", "trial_ended"] {
        client.post("/v1/events", json!({"name": name, "email": "ann@example.com"})).await;
    }
    assert_eq!(noted(&edge).await, [("event".to_owned(), 1)]);
    for (body, path_of_fault) in [
        (json!({"trigger_config": {}}), "trigger_type"),
        (json!({"trigger_type": "event", "trigger_config": {"event": "No"}}), "trigger_config.event"),
    ] {
        assert_eq!(client.patch(&path, body).await.faults()[0].0, path_of_fault);
    }
    client.patch(path.trim_end_matches("/trigger"), json!({"status": "archived"})).await;
    assert_eq!(client.patch(&path, json!({"trigger_type": "manual"})).await.refusal(), (409, "sequence_archived"));
}
