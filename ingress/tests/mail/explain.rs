//! Why somebody is mailed, or not.

use rstest::rstest;
use serde_json::{Value, json};

use crate::{common::Answer, fixtures::Ready, rules::two_variants};

async fn explain(ready: &Ready, campaign: &str, email: &str) -> Value {
    let answer: Answer = ready.client.get(&format!("/v1/explain?campaign_id={campaign}&email={email}")).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.body["explanation"].clone()
}

fn gate(explanation: &Value, name: &str) -> Value {
    explanation["gates"].as_array().unwrap().iter().find(|gate| gate["gate"] == name).cloned().unwrap_or(Value::Null)
}

#[tokio::test]
async fn a_draft_is_explained_as_what_would_happen() {
    let ready = Ready::start().await;
    let id = ready.campaign(json!({})).await;
    let found = explain(&ready, &id, "READER1%40example.com").await;
    let order: Vec<&str> =
        found["gates"].as_array().unwrap().iter().map(|gate| gate["gate"].as_str().unwrap()).collect();
    assert_eq!(
        order,
        [
            "audience",
            "contact",
            "suppression",
            "consent",
            "frequency",
            "quiet_hours",
            "tenant",
            "sender",
            "domain",
            "quota",
            "warmup",
            "pace",
            "window",
            "campaign"
        ]
    );
    assert_eq!(
        (&found["verdict"], &found["decided_by"], &found["send"]),
        (&json!("wait"), &json!("campaign"), &Value::Null)
    );
    assert_eq!(gate(&found, "audience")["row"], json!({"kind": "list", "id": ready.list}));
    assert_eq!(gate(&found, "campaign")["detail"], json!("draft"));
}

#[tokio::test]
async fn the_first_gate_that_stops_decides_and_names_its_row() {
    let ready = Ready::start().await;
    let id = ready.campaign(json!({})).await;
    let suppressed = ready
        .client
        .post("/v1/suppressions", json!({"email": "reader1@example.com", "reason": "manual", "scope": "all"}))
        .await;
    assert_eq!(suppressed.status, 201, "{}", suppressed.body);
    let found = explain(&ready, &id, "reader1%40example.com").await;
    assert_eq!((&found["verdict"], &found["decided_by"]), (&json!("stop"), &json!("suppression")));
    let gate = gate(&found, "suppression");
    assert_eq!((&gate["detail"], &gate["row"]["kind"]), (&json!("manual"), &json!("suppression")));
    assert!(gate["at"].is_string());
    assert_eq!(explain(&ready, &id, "reader2%40example.com").await["verdict"], json!("wait"));
}

#[tokio::test]
async fn a_capped_contact_is_told_when_there_is_space_again() {
    let ready = Ready::start().await;
    let id = ready.campaign(json!({})).await;
    let capped = ready.client.patch("/v1/tenant", json!({"frequency_cap": {"messages": 1, "days": 7}})).await;
    assert_eq!(capped.status, 200, "{}", capped.body);
    let open = gate(&explain(&ready, &id, "reader1%40example.com").await, "frequency");
    assert_eq!((&open["verdict"], &open["detail"], &open["at"]), (&json!("pass"), &json!("1"), &Value::Null));
    sqlx::query(
        "insert into capped_sends (tenant_id, send_id, contact_id, fenced_at)
         select tenant_id, gen_random_uuid(), id, now() from contacts where address = 'reader1@example.com'",
    )
    .execute(&ready.edge.pool)
    .await
    .unwrap();
    let found = explain(&ready, &id, "reader1%40example.com").await;
    assert_eq!((&found["verdict"], &found["decided_by"]), (&json!("stop"), &json!("frequency")));
    let full = gate(&found, "frequency");
    assert_eq!(full["detail"], json!("cap_is_reached"));
    let opens_at: chrono::DateTime<chrono::Utc> = full["at"].as_str().unwrap().parse().unwrap();
    assert!(opens_at - chrono::Utc::now() > chrono::TimeDelta::days(6), "{full}");
    let dry = ready.client.post(&format!("/v1/campaigns/{id}/launch"), json!({"dry_run": true})).await;
    assert_eq!(dry.body["skipped_by_reason"], json!({"frequency_cap": 1}), "{}", dry.body);
}

#[tokio::test]
async fn room_that_a_more_urgent_campaign_needs_is_spoken_for() {
    let ready = Ready::start().await;
    let (id, urgent) = (ready.campaign(json!({})).await, ready.campaign(json!({"urgency": "urgent"})).await);
    let capped = ready.client.patch("/v1/tenant", json!({"frequency_cap": {"messages": 1, "days": 7}})).await;
    assert_eq!(capped.status, 200, "{}", capped.body);
    let batch = schemas::new_batch_id();
    for owed in [
        "update campaigns set status = 'sending', launched_at = now(), month = $2 where id = $1::uuid",
        "insert into batches (tenant_id, id, month, kind, lane, classification, campaign_id, content_id, sender_id, size, queued)
         select tenant_id, $3, $2, 'campaign', 'bulk', classification, id, content_id, sender_profile_id, 1, 1
         from campaigns where id = $1::uuid",
        "insert into sends (tenant_id, id, month, campaign_id, contact_id)
         select c.tenant_id, $3, $2, c.id, p.id
         from campaigns c join contacts p on p.tenant_id = c.tenant_id and p.address = 'reader1@example.com' where c.id = $1::uuid",
    ] {
        let owed = sqlx::query(owed).bind(&urgent).bind(schemas::month_of(batch)).bind(batch);
        owed.execute(&ready.edge.pool).await.unwrap();
    }
    let decided = async |id: &str, email| {
        let gate = gate(&explain(&ready, id, email).await, "frequency");
        (gate["verdict"].clone(), gate["detail"].clone())
    };
    assert_eq!(decided(&id, "reader1%40example.com").await, (json!("wait"), json!("spoken_for")));
    assert_eq!(decided(&id, "reader2%40example.com").await, (json!("pass"), json!("1")));
    assert_eq!(decided(&urgent, "reader1%40example.com").await, (json!("pass"), json!("1")));
    let dry = ready.client.post(&format!("/v1/campaigns/{id}/launch"), json!({"dry_run": true})).await;
    let waiting = &dry.body["waiting"];
    assert_eq!((&waiting[0]["reason"], &waiting[0]["count"]), (&json!("frequency_cap"), &json!(1)), "{}", dry.body);
    assert_eq!((waiting.as_array().unwrap().len(), &dry.body["skipped_by_reason"]), (1, &json!({})), "{}", dry.body);
}

#[tokio::test]
async fn who_is_asleep_is_told_apart_with_the_end_of_the_night() {
    let ready = Ready::start().await;
    let id = ready.campaign(json!({})).await;
    // Fourteen hours ahead it is quiet now, whatever the time.
    sqlx::query(
        "update tenants set quiet_from = (now() at time zone 'Pacific/Kiritimati' - interval '1 hour')::time,
             quiet_to = (now() at time zone 'Pacific/Kiritimati' + interval '1 hour')::time,
             quiet_by_contact = true, quiet_for = '{marketing}'",
    )
    .execute(&ready.edge.pool)
    .await
    .unwrap();
    sqlx::query("update contacts set timezone = 'Pacific/Kiritimati' where address = 'reader1@example.com'")
        .execute(&ready.edge.pool)
        .await
        .unwrap();
    let asleep = gate(&explain(&ready, &id, "reader1%40example.com").await, "quiet_hours");
    assert_eq!((&asleep["verdict"], &asleep["detail"]), (&json!("wait"), &json!("quiet")));
    let awake = gate(&explain(&ready, &id, "reader2%40example.com").await, "quiet_hours");
    assert_eq!((&awake["verdict"], &awake["detail"], &awake["at"]), (&json!("pass"), &json!("open"), &Value::Null));
    let dry = ready.client.post(&format!("/v1/campaigns/{id}/launch"), json!({"dry_run": true})).await;
    let expected = json!([{"reason": "quiet_hours", "until": asleep["at"], "count": 1}]);
    assert_eq!(dry.body["waiting"], expected, "{}", dry.body);
}

/// It is quiet now, for another hour.
async fn keep_quiet(ready: &Ready) {
    sqlx::query(
        "update tenants set timezone = 'UTC', quiet_from = (now() at time zone 'UTC' - interval '1 hour')::time,
             quiet_to = (now() at time zone 'UTC' + interval '1 hour')::time,
             quiet_by_contact = false, quiet_for = '{marketing}'",
    )
    .execute(&ready.edge.pool)
    .await
    .unwrap();
}

fn in_minutes(minutes: i64) -> String {
    (chrono::Utc::now() + chrono::TimeDelta::minutes(minutes)).to_rfc3339()
}

#[tokio::test]
async fn scheduled_mail_does_not_wait_for_what_is_over_when_it_is_due() {
    let ready = Ready::start().await;
    let id = ready.campaign(json!({})).await;
    let path = format!("/v1/campaigns/{id}/launch");
    let launched = ready.client.post(&path, json!({"schedule_for": in_minutes(120)})).await;
    assert_eq!(launched.status, 202, "{}", launched.body);
    keep_quiet(&ready).await;
    let body = json!({"email": "reader1@example.com", "reason": "manual", "scope": "all"});
    assert_eq!(ready.client.post("/v1/suppressions", body).await.status, 201);
    let found = explain(&ready, &id, "reader1%40example.com").await;
    assert_eq!((&found["verdict"], &found["decided_by"]), (&json!("stop"), &json!("suppression")), "{found}");
    sqlx::query("update suppressions set expires_at = now() + interval '1 hour'")
        .execute(&ready.edge.pool)
        .await
        .unwrap();
    let found = explain(&ready, &id, "reader1%40example.com").await;
    assert_eq!((&found["verdict"], &found["decided_by"]), (&json!("wait"), &json!("campaign")), "{found}");
    assert_eq!(gate(&found, "quiet_hours")["detail"], json!("open"));
}

#[tokio::test]
async fn the_remainder_of_a_test_is_explained_as_of_its_decision() {
    let ready = Ready::start().await;
    let test = json!({"test_percent": 10, "winner_metric": "click_rate", "decide_after_minutes": 120});
    let id = ready.campaign(json!({"variants": two_variants(), "ab_test": test})).await;
    for name in ["reader1", "reader2", "reader3"] {
        let body = json!({
            "email": format!("{name}@example.com"), "reason": "manual", "scope": "all", "expires_at": in_minutes(60),
        });
        assert_eq!(ready.client.post("/v1/suppressions", body).await.status, 201);
        let found = explain(&ready, &id, &format!("{name}%40example.com")).await;
        let is_suppressed = gate(&found, "suppression")["verdict"] == "stop";
        assert_eq!(
            is_suppressed,
            !found["variant"].is_null(),
            "the test goes out before the suppression ends: {found}"
        );
    }
}

#[tokio::test]
async fn a_pause_and_a_cancel_are_shown_with_their_own_times() {
    let ready = Ready::start().await;
    let id = ready.campaign(json!({})).await;
    let path = format!("/v1/campaigns/{id}");
    let launched = ready.client.post(&format!("{path}/launch"), json!({"schedule_for": in_minutes(120)})).await;
    assert_eq!(launched.status, 202, "{}", launched.body);
    for (change, detail) in
        [(json!({"paused": true}), "paused_requested"), (json!({"status": "cancelled"}), "cancelled")]
    {
        assert_eq!(ready.client.patch(&path, change).await.status, 200);
        let found = gate(&explain(&ready, &id, "reader1%40example.com").await, "campaign");
        let changed = ready.client.get(&path).await.body["campaign"]["updated_at"].clone();
        assert_eq!((&found["detail"], &found["at"]), (&json!(detail), &changed));
    }
}

#[tokio::test]
async fn mail_that_waits_beyond_its_window_is_stopped_by_it() {
    let ready = Ready::start().await;
    let (skipped, held, sent) = (
        ready.campaign(json!({"not_after": in_minutes(30)})).await,
        ready.campaign(json!({"not_after": in_minutes(30), "on_miss": "hold"})).await,
        ready.campaign(json!({"not_after": in_minutes(30), "on_miss": "send"})).await,
    );
    let decided = async |id: &str| {
        let found = explain(&ready, id, "reader1%40example.com").await;
        let window = gate(&found, "window");
        (found["verdict"].clone(), found["decided_by"].clone(), window["detail"].clone())
    };
    let missed = "closes_before_the_mail_leaves";
    assert_eq!(decided(&skipped).await, (json!("wait"), json!("campaign"), json!("open")));
    keep_quiet(&ready).await;
    assert_eq!(decided(&skipped).await, (json!("stop"), json!("window"), json!(missed)));
    assert_eq!(decided(&held).await, (json!("wait"), json!("quiet_hours"), json!(missed)));
    assert_eq!(decided(&sent).await, (json!("wait"), json!("quiet_hours"), json!("late")));
}

#[tokio::test]
async fn a_magic_recipient_is_suppressed_in_the_sandbox() {
    let ready = Ready::start().await;
    let id = ready.campaign(json!({})).await;
    sqlx::query("update contacts set address = 'suppressed+1@sandbox.test' where address = 'reader1@example.com'")
        .execute(&ready.edge.pool)
        .await
        .unwrap();
    for (environment, verdict, detail) in [("production", "wait", "none"), ("sandbox", "stop", "sandbox_recipient")] {
        sqlx::query("update tenants set environment = $1").bind(environment).execute(&ready.edge.pool).await.unwrap();
        let found = explain(&ready, &id, "suppressed%2B1%40sandbox.test").await;
        assert_eq!((&found["verdict"], &gate(&found, "suppression")["detail"]), (&json!(verdict), &json!(detail)));
    }
}

#[tokio::test]
async fn a_stranger_is_in_no_audience() {
    let ready = Ready::start().await;
    let id = ready.campaign(json!({})).await;
    let found = explain(&ready, &id, "stranger%40example.com").await;
    assert_eq!(
        (&found["verdict"], &found["decided_by"], &found["contact_id"]),
        (&json!("stop"), &json!("audience"), &Value::Null)
    );
}

#[tokio::test]
async fn the_audience_of_a_launch_with_a_digest_is_that_of_the_launch() {
    let ready = Ready::start().await;
    let id = ready.campaign(json!({})).await;
    let path = format!("/v1/campaigns/{id}/launch");
    let digest = ready.client.post(&path, json!({"dry_run": true})).await.text("digest");
    let later = (chrono::Utc::now() + chrono::TimeDelta::hours(2)).to_rfc3339();
    let launched = ready.client.post(&path, json!({"schedule_for": later, "digest": digest})).await;
    assert_eq!(launched.status, 202, "{}", launched.body);
    for sql in [
        "delete from audience_members where contact_id = (select id from contacts where address = 'reader1@example.com')",
        "insert into contacts (tenant_id, id, address, source)
         select id, gen_random_uuid(), 'late@example.com', 'api' from tenants limit 1",
        "insert into audience_members (tenant_id, audience_id, contact_id)
         select a.tenant_id, a.id, c.id from audiences a join contacts c on c.tenant_id = a.tenant_id
         where c.address = 'late@example.com'",
    ] {
        sqlx::query(sql).execute(&ready.edge.pool).await.unwrap();
    }
    for (email, verdict) in [("reader1%40example.com", "pass"), ("late%40example.com", "stop")] {
        assert_eq!(gate(&explain(&ready, &id, email).await, "audience")["verdict"], json!(verdict), "{email}");
    }
}

#[tokio::test]
async fn a_contact_that_left_the_topic_is_stopped_also_once_it_is_none() {
    let ready = Ready::start().await;
    let id = ready.campaign(json!({})).await;
    let public = async |name: Option<&str>| {
        let changed = ready.client.patch(&format!("/v1/audiences/{}", ready.list), json!({"public_name": name})).await;
        assert_eq!(changed.status, 200, "{}", changed.body);
    };
    public(Some("News")).await;
    sqlx::query(
        "insert into topic_opt_outs (tenant_id, audience_id, contact_id, send_id)
         select tenant_id, $1, id, id from contacts where address = 'reader1@example.com'",
    )
    .bind(ready.list)
    .execute(&ready.edge.pool)
    .await
    .unwrap();
    let left = explain(&ready, &id, "reader1%40example.com").await;
    assert_eq!((&left["verdict"], &left["decided_by"]), (&json!("stop"), &json!("consent")));
    let consent = gate(&left, "consent");
    assert_eq!(
        (&consent["detail"], &consent["row"]),
        (&json!("left_topic"), &json!({"kind": "list", "id": ready.list}))
    );
    assert!(consent["at"].is_string());
    let stayed = gate(&explain(&ready, &id, "reader2%40example.com").await, "consent");
    assert_eq!((&stayed["verdict"], &stayed["detail"]), (&json!("pass"), &json!("subscribed")));
    public(None).await;
    let left = explain(&ready, &id, "reader1%40example.com").await;
    assert_eq!(gate(&left, "consent")["detail"], json!("left_topic"), "{left}");
}

#[tokio::test]
async fn a_one_off_message_waits_until_it_is_due_and_a_cancelled_one_is_stopped() {
    let ready = Ready::start().await;
    let due = chrono::Utc::now() + chrono::TimeDelta::days(2);
    let body = json!({
        "sender_id": ready.sender, "to": [{"email": "ann@example.com"}], "subject": "Hello", "html": "<p>Hello</p>",
        "message_class": "business", "scheduled_at": due.to_rfc3339(),
    });
    let answer = ready.client.post("/v1/messages", body).await;
    assert_eq!(answer.status, 202, "{}", answer.body);
    let id = answer.text("message_id");
    let explain = async || {
        let answer = ready.client.get(&format!("/v1/explain?message_id={id}&email=ann%40example.com")).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        answer.body["explanation"].clone()
    };
    let waiting = explain().await;
    assert_eq!((&waiting["verdict"], &waiting["decided_by"]), (&json!("wait"), &json!("message")));
    assert_eq!(gate(&waiting, "message")["detail"], json!("scheduled"));
    let send = answer.body["recipients"][0]["send_id"].as_str().unwrap();
    assert_eq!(ready.client.delete(&format!("/v1/sends/{send}"), json!({})).await.status, 200);
    let cancelled = explain().await;
    assert_eq!((&cancelled["verdict"], &cancelled["decided_by"]), (&json!("stop"), &json!("message")));
    assert_eq!(gate(&cancelled, "message")["detail"], json!("cancelled"));
}

#[tokio::test]
async fn after_the_launch_the_send_is_shown_with_its_end() {
    let ready = Ready::start().await;
    let id = ready.campaign(json!({})).await;
    let sends = ready.batch(&id, &["skipped"]).await;
    let found = explain(&ready, &id, "reader1%40example.com").await;
    assert_eq!((&found["send"]["send_id"], &found["send"]["skip_reason"]), (&json!(sends[0]), &json!("unsubscribed")));
    assert_eq!(gate(&found, "audience")["detail"], json!("was_in_the_audience"));
    let outside = explain(&ready, &id, "reader2%40example.com").await;
    assert_eq!(gate(&outside, "audience")["detail"], json!("was_not_in_the_audience"));
    // A range of the audience that is not written to the ledger yet.
    sqlx::query(
        "insert into launch_audiences (tenant_id, campaign_id, part, contacts)
         select tenant_id, $1::uuid, 1, array[id] from contacts where address = 'reader2@example.com'",
    )
    .bind(&id)
    .execute(&ready.edge.pool)
    .await
    .unwrap();
    let pinned = explain(&ready, &id, "reader2%40example.com").await;
    assert_eq!(gate(&pinned, "audience")["detail"], json!("was_in_the_audience"));
}

#[tokio::test]
async fn mail_to_a_merged_contact_is_shown_for_the_one_that_is_left() {
    let ready = Ready::start().await;
    let id = ready.campaign(json!({})).await;
    let sends = ready.batch(&id, &["sent"]).await;
    let body = json!({
        "sender_id": ready.sender, "to": [{"email": "reader1@example.com"}], "subject": "Hello", "html": "<p>Hello</p>",
        "message_class": "business", "scheduled_at": (chrono::Utc::now() + chrono::TimeDelta::days(2)).to_rfc3339(),
    });
    let message = ready.client.post("/v1/messages", body).await.text("message_id");
    let contact = async |number: i32| -> uuid::Uuid {
        sqlx::query_scalar("select id from contacts where address = $1")
            .bind(format!("reader{number}@example.com"))
            .fetch_one(&ready.edge.pool)
            .await
            .unwrap()
    };
    let (merged, survivor) = (contact(1).await, contact(2).await);
    let path = format!("/v1/contacts/{survivor}/merge");
    assert_eq!(ready.client.post(&path, json!({"contact_id": merged})).await.status, 200);
    let found = explain(&ready, &id, "reader2%40example.com").await;
    assert_eq!(found["send"]["send_id"], json!(sends[0]));
    assert_eq!(gate(&found, "audience")["detail"], json!("was_in_the_audience"));
    let listed = ready.client.get(&format!("/v1/campaigns/{id}/sends?email=reader2%40example.com")).await;
    assert_eq!(listed.body["sends"][0]["send_id"], json!(sends[0]), "{}", listed.body);
    let answer = ready.client.get(&format!("/v1/explain?message_id={message}&email=reader2%40example.com")).await;
    assert_eq!(gate(&answer.body["explanation"], "audience")["detail"], json!("is_recipient"), "{}", answer.body);
    // Mail of its own comes first.
    let own = ready.batch(&id, &["sent"]).await;
    assert_eq!(explain(&ready, &id, "reader2%40example.com").await["send"]["send_id"], json!(own[0]));
}

#[tokio::test]
async fn after_a_merge_the_enrollment_that_goes_on_is_explained() {
    let ready = Ready::start().await;
    let steps = json!([{"step_type": "wait", "delay_amount": 1, "delay_unit": "days"}]);
    let body = json!({"name": "Welcome", "sender_profile_id": ready.sender, "activate": true, "steps": steps});
    let id = ready.client.post("/v1/sequences", body).await.text("sequence_id");
    let enroll = async |email: &str| {
        let made = ready.client.post("/v1/enrollments", json!({"sequence_id": id, "email": email})).await;
        assert_eq!(made.status, 201, "{}", made.body);
        made.text("contact_id")
    };
    let survivor = enroll("ann@example.com").await;
    let merged = enroll("ann@work.example").await;
    let path = format!("/v1/contacts/{survivor}/merge");
    assert_eq!(ready.client.post(&path, json!({"contact_id": merged})).await.status, 200);
    for name in ["email=ann%40example.com", "email=ann%40work.example", &format!("contact_id={merged}")] {
        let answer = ready.client.get(&format!("/v1/explain?sequence_id={id}&{name}")).await;
        let found = &answer.body["explanation"];
        let told = (&found["verdict"], &found["gates"][0]["detail"], &found["email"]);
        assert_eq!(told, (&json!("pass"), &json!("is_enrolled"), &json!("ann@example.com")), "{name}: {found}");
    }
}

#[tokio::test]
async fn a_disabled_sender_is_told_as_such() {
    let ready = Ready::start().await;
    let id = ready.campaign(json!({})).await;
    ready.batch(&id, &["skipped"]).await;
    for sql in ["update senders set status = 'disabled'", "update sends set reason = 'sender_disabled'"] {
        sqlx::query(sql).execute(&ready.edge.pool).await.unwrap();
    }
    let found = explain(&ready, &id, "reader1%40example.com").await;
    assert_eq!(found["send"]["skip_reason"], json!("sender_disabled"));
    assert_eq!((&found["verdict"], &found["decided_by"]), (&json!("stop"), &json!("sender")));
    assert_eq!(gate(&found, "sender")["detail"], json!("disabled"));
}

#[tokio::test]
async fn mail_that_waits_for_its_turn_says_for_what_and_until_when() {
    let ready = Ready::start().await;
    let id = ready.campaign(json!({})).await;
    ready.batch(&id, &["deferred"]).await;
    let run = async |sql: &'static str| {
        sqlx::query(sql).bind(ready.client.tenant).execute(&ready.edge.pool).await.unwrap();
    };
    run("update campaigns set status = 'sending' where tenant_id = $1").await;
    run("update sends set reason = 'paced', next_attempt_at = now() + interval '1 minute' where tenant_id = $1").await;
    let found = explain(&ready, &id, "reader1%40example.com").await;
    assert_eq!((&found["verdict"], &found["decided_by"]), (&json!("wait"), &json!("pace")));
    assert_eq!(gate(&found, "pace")["detail"], json!("paced"));
    assert!(gate(&found, "pace")["at"].is_string());

    run("update sends set reason = 'temporary' where tenant_id = $1").await;
    let found = explain(&ready, &id, "reader1%40example.com").await;
    assert_eq!((&found["verdict"], &found["decided_by"]), (&json!("wait"), &json!("pace")));
    assert_eq!(gate(&found, "pace")["detail"], json!("temporary"));
    assert_eq!(gate(&found, "pace")["at"], found["send"]["next_attempt_at"]);

    run("update sends set state = 'queued' where tenant_id = $1").await;
    run("update batches set queued = 1, deferred = 0, announce_after = now() + interval '1 day', quiet_at = now() + interval '1 day'
         where tenant_id = $1")
        .await;
    let found = explain(&ready, &id, "reader1%40example.com").await;
    assert_eq!((&found["verdict"], &gate(&found, "pace")["detail"]), (&json!("wait"), &json!("set_aside")));
    run("update batches set state = 'held' where tenant_id = $1").await;
    let found = explain(&ready, &id, "reader1%40example.com").await;
    assert_eq!((&found["verdict"], &gate(&found, "pace")["detail"]), (&json!("wait"), &json!("held_for_winner")));

    run("insert into domain_warmups (tenant_id, domain_id, caps) select tenant_id, id, '{5}' from domains where tenant_id = $1").await;
    run("insert into warmup_usage (tenant_id, domain_id, day, used)
         select tenant_id, id, (now() at time zone 'utc')::date, 5 from domains where tenant_id = $1")
    .await;
    let found = explain(&ready, &id, "reader1%40example.com").await;
    assert_eq!((&found["verdict"], &found["decided_by"]), (&json!("wait"), &json!("warmup")));
    assert_eq!(gate(&found, "warmup")["detail"], json!("day_is_full"));
    assert!(gate(&found, "warmup")["at"].is_string());
}

#[rstest]
#[case("email=a%40example.com", 400, "validation_failed")]
#[case("campaign_id=0197a1c2-7b1e-7c44-9d3f-2a6b8c0d1e2f", 400, "validation_failed")]
#[case(
    "campaign_id=0197a1c2-7b1e-7c44-9d3f-2a6b8c0d1e2f&message_id=0197a1c2-7b1e-7c44-9d3f-2a6b8c0d1e2f&email=a%40example.com",
    400,
    "validation_failed"
)]
#[case("campaign_id=0197a1c2-7b1e-7c44-9d3f-2a6b8c0d1e2f&email=a%40example.com", 404, "campaign_not_found")]
#[case("message_id=0197a1c2-7b1e-7c44-9d3f-2a6b8c0d1e2f&email=a%40example.com", 404, "message_not_found")]
#[case("sequence_id=0197a1c2-7b1e-7c44-9d3f-2a6b8c0d1e2f&email=a%40example.com", 404, "sequence_not_found")]
#[tokio::test]
async fn one_thing_and_one_person_are_asked_about(#[case] query: &str, #[case] status: u16, #[case] code: &str) {
    let ready = Ready::start().await;
    assert_eq!(ready.client.get(&format!("/v1/explain?{query}")).await.refusal(), (status, code));
}
