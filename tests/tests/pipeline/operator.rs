//! What an operator does from the command line, against a running system.

use std::time::Duration;

use pipeline::{
    Client, Rig, eventually,
    process::{self, lines},
};
use serde_json::{Value, json};
use uuid::Uuid;

const DEADLINE: Duration = Duration::from_secs(60);

/// What a command said that was refused.
fn refusal(rig: &Rig, args: &[&str]) -> String {
    let output = std::process::Command::new(process::binary()).args(args).envs(rig.operator_env()).output().unwrap();
    assert!(!output.status.success(), "{args:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_issued_key_works_for_its_scopes_until_it_is_revoked() {
    let mut rig = Rig::shared().await;
    rig.start("ingress", &["ingress"]).await;
    let issue = ["key", "--json", "issue", "--product", "demo", "--scopes", "contacts:read"];
    let issued = &lines(&process::run(&issue, &rig.operator_env()))[0];
    let key = issued["key"].as_str().unwrap();
    let client = Client::new(&rig.base_url, "demo", "production", key, "demo-tenant");
    client.get("/v1/contacts", &[]).await.expect(200);
    let refused = client.post("/v1/contacts", json!({"email": "ann@example.com"})).await;
    assert_eq!((refused.status.as_u16(), refused.error()), (403, "missing_scope:contacts:write"));

    let listed = process::run(&["key", "--json", "list"], &rig.operator_env());
    assert!(!listed.contains(key), "the key itself is never shown again");
    let is_listed = |line: &Value| line["key_id"] == issued["key_id"] && line["scopes"] == json!(["contacts:read"]);
    assert!(lines(&listed).iter().any(is_listed), "{listed}");
    let id = issued["key_id"].as_str().unwrap();
    let rotate = ["key", "--json", "rotate", id, "--overlap-hours", "1"];
    let replaced = &lines(&process::run(&rotate, &rig.operator_env()))[0];
    assert_eq!(replaced.get("expires_at"), Some(&Value::Null), "{replaced}");
    let refused = refusal(&rig, &rotate);
    let replaced_by = format!("replaced by {}", replaced["key_id"].as_str().unwrap());
    assert!(refused.contains(&replaced_by), "{refused}");
    let key = replaced["key"].as_str().unwrap();
    let successor = Client::new(&rig.base_url, "demo", "production", key, "demo-tenant");
    for caller in [&client, &successor] {
        caller.get("/v1/contacts", &[]).await.expect(200);
    }
    process::run(&["key", "revoke", id], &rig.operator_env());
    eventually("the revoked key to be refused", Duration::from_secs(120), || async {
        let answer = client.get("/v1/contacts", &[]).await;
        (answer.status.as_u16() == 401 && answer.error() == "invalid_api_key").then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_could_never_reach_its_tenant_is_refused() {
    let rig = Rig::shared().await;
    let (tenant, unknown) = (rig.engine_tenant_id.to_string(), Uuid::nil().to_string());
    for (product, environment, tenant, reason) in [
        ("demo", "production", &unknown, "no such tenant"),
        ("demo", "sandbox", &tenant, "the tenant belongs to production, the key to sandbox"),
        ("other", "production", &tenant, "the tenant is not linked to other"),
    ] {
        let args = ["key", "issue", "--product", product, "--environment", environment, "--tenant", tenant];
        let refused = refusal(&rig, &args);
        assert!(refused.contains(reason), "{refused}");
    }
    process::run(&["key", "issue", "--product", "demo", "--tenant", &tenant], &rig.operator_env());
    let refused = refusal(&rig, &["recount", "--tenant", &unknown]);
    assert!(refused.contains("no such tenant"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_for_an_unknown_name_is_refused() {
    let rig = Rig::shared().await;
    let unknown = Uuid::nil().to_string();
    for args in [
        &["mcp", "drafts", &unknown][..],
        &["mcp", "list", "--tenant", &unknown],
        &["provider", "list", "--tenant", &unknown],
        &["audit", "list", "--tenant", &unknown],
        &["domain", "list", "--tenant", &unknown],
        &["rescore", "--tenant", &unknown],
    ] {
        let refused = refusal(&rig, args);
        assert!(refused.contains("no such tenant"), "{args:?}: {refused}");
    }
    for args in [["dead", "list", "--stage", "nope"], ["domain", "list", "--status", "nope"]] {
        let refused = refusal(&rig, &args);
        assert!(refused.contains("possible values"), "{args:?}: {refused}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_is_shown_with_its_links_and_senders() {
    let rig = Rig::shared().await;
    let tenant = rig.engine_tenant_id.to_string();
    let shown = &lines(&process::run(&["tenant", "--json", "show", &tenant], &rig.operator_env()))[0];
    assert_eq!(
        shown["links"][0],
        json!({"product": "demo", "product_tenant_id": "demo-tenant", "producer_name": null}),
        "{shown}"
    );
    assert!(shown["senders"][0]["email"].as_str().is_some_and(|email| email.contains('@')), "{shown}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_says_where_postgres_does_not_answer() {
    let rig = Rig::shared().await;
    let refused = refusal(&rig, &["tenant", "list", "--database-url", "postgres://ann:secret@127.0.0.1:1/none"]);
    assert!(refused.contains("no connection to Postgres at 127.0.0.1:1"), "{refused}");
    assert!(!refused.contains("secret"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_expired_approval_is_renewed_and_a_live_one_is_not() {
    let rig = Rig::shared().await;
    let tenant = rig.engine_tenant_id.to_string();
    let user = ["--issuer", "https://id.example.com", "--subject", "ann", "--client", "assistant"];
    let approve = [&["mcp", "--json", "approve", "--tenant", &tenant][..], &user].concat();
    process::run(&approve, &rig.operator_env());
    let refused = refusal(&rig, &approve);
    assert!(refused.contains("approved already"), "{refused}");
    sqlx::query("update assistant_approvals set expires_at = now()").execute(&rig.pool).await.unwrap();
    let renewed = &lines(&process::run(&approve, &rig.operator_env()))[0];
    let live: Vec<Uuid> = sqlx::query_scalar("select id from assistant_approvals where revoked_at is null")
        .fetch_all(&rig.pool)
        .await
        .unwrap();
    assert_eq!(json!(live), json!([renewed["approval_id"]]));
}

#[tokio::test(flavor = "multi_thread")]
async fn mail_of_its_own_is_explained_with_what_it_waits_for() {
    let mut rig = Rig::shared().await;
    rig.start("ingress", &["ingress"]).await;
    let env = rig.operator_env();
    let due = (chrono::Utc::now() + chrono::TimeDelta::days(7)).to_rfc3339();
    let template = rig.transactional_template().await;
    let accepted = async |body: Value| rig.client.post("/v1/transactional", body).await.expect(202);
    let prompt = accepted(json!({"template_id": template, "email": "ann@example.com"})).await;
    let body = json!({"template_id": template, "email": "bob@example.com", "scheduled_at": due});
    let scheduled = accepted(body).await;
    let body = json!({
        "sender_id": rig.sender_id, "to": [{"email": "cid@example.com"}], "subject": "Hello", "html": "<p>Hello</p>",
        "message_class": "business", "scheduled_at": due,
    });
    let message = rig.client.post("/v1/messages", body).await.expect(202);
    let (prompt, scheduled) = (prompt["send_id"].as_str().unwrap(), scheduled["send_id"].as_str().unwrap());
    let one_off = message["recipients"][0]["send_id"].as_str().unwrap();
    let explain = |send: &str| lines(&process::run(&["--json", "explain", send], &env))[0]["explanation"].clone();
    let decided = |send: &str| {
        let found = explain(send);
        (found["verdict"].clone(), found["decided_by"].clone())
    };
    assert_eq!(decided(prompt), (json!("pass"), Value::Null));
    for send in [scheduled, one_off] {
        assert_eq!(decided(send), (json!("wait"), json!("message")));
        let text = process::run(&["explain", send], &env);
        assert!(text.contains("scheduled for "), "{text}");
    }
    let stages = |send: &str| {
        let gates = explain(send)["gates"].as_array().unwrap().clone();
        let paused = gates.iter().filter(|gate| gate["gate"] == "stage");
        paused.map(|gate| gate["detail"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    process::run(&["pause", "stage", "audience", "compliance"], &env);
    assert_eq!(decided(prompt), (json!("pass"), Value::Null), "it is past both");
    assert_eq!((stages(prompt).len(), stages(scheduled)), (0, vec!["audience paused".to_owned()]));
    sqlx::query("update batches set queued = 0, deferred = 1").execute(&rig.pool).await.unwrap();
    assert_eq!(stages(prompt).len(), 2, "it is announced again by the one and decided by the other");
    sqlx::query("update batches set queued = 1, deferred = 0").execute(&rig.pool).await.unwrap();
    process::run(&["resume", "stage", "audience", "compliance"], &env);
    process::run(&["pause", "stage", "delivery", "--reason", "the relay is moved"], &env);
    assert_eq!(decided(prompt), (json!("wait"), json!("stage")));
    let detail = "delivery paused: the relay is moved";
    let found = explain(prompt);
    assert!(found["gates"].as_array().unwrap().iter().any(|gate| gate["detail"] == detail), "{found}");
    process::run(&["resume", "stage", "delivery"], &env);
    sqlx::query("update ledger set held_at = now(), held_reason = 'restored'").execute(&rig.pool).await.unwrap();
    assert_eq!(decided(prompt), (json!("wait"), json!("ledger")));
    process::run(&["pause", "tenant", &rig.engine_tenant_id.to_string()], &env);
    assert_eq!(decided(prompt), (json!("wait"), json!("tenant")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_send_that_is_not_written_yet_says_so_when_it_is_requeued() {
    let mut rig = Rig::shared().await;
    rig.start("ingress", &["ingress"]).await;
    let due = (chrono::Utc::now() + chrono::TimeDelta::days(7)).to_rfc3339();
    let body = json!({
        "sender_id": rig.sender_id, "to": [{"email": "cid@example.com"}, {"email": "dan@example.com"}], "subject": "Hello",
        "html": "<p>Hello</p>", "message_class": "business", "scheduled_at": due,
    });
    let message = rig.client.post("/v1/messages", body).await.expect(202);
    let requeue = |send: &Value| {
        let args = ["--json", "requeue", "send", send["send_id"].as_str().unwrap()];
        lines(&process::run(&args, &rig.operator_env()))[0].clone()
    };
    for send in message["recipients"].as_array().unwrap() {
        let requeued = requeue(send);
        assert_eq!((&requeued["requests"], &requeued["left_alone"]["scheduled"]), (&json!(0), &json!(1)), "{requeued}");
        assert!(requeued["says"].as_str().unwrap().contains("waiting for their time"), "{requeued}");
    }
    // Due, and announced a moment later: as a launch that was just accepted, or waits for an earlier one.
    sqlx::query("update requests set due_at = now() - interval '1 second'").execute(&rig.pool).await.unwrap();
    let requeued = requeue(&message["recipients"][1]);
    let left_alone = &requeued["left_alone"];
    assert_eq!((&left_alone["unwritten"], &left_alone["scheduled"]), (&json!(1), &json!(0)), "{requeued}");
    let unknown = refusal(&rig, &["requeue", "send", &Uuid::now_v7().to_string()]);
    assert!(unknown.contains("no such send"), "{unknown}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_letter_is_listed_shown_replayed_and_dropped() {
    let mut rig = Rig::shared().await;
    let nothing = process::run(&["dead", "--json", "list"], &rig.operator_env());
    assert_eq!(nothing, "", "before there is anything at all");
    rig.start("compliance", &["stage", "compliance"]).await;
    let nats = async_nats::connect(&rig.env["POSTRIDER_NATS_URL"]).await.unwrap();
    let jetstream = async_nats::jetstream::new(nats);
    let subject = format!("{}mail.v1.resolved.bulk", rig.env["POSTRIDER_STREAM_PREFIX"]);
    let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
    let mut headers = async_nats::HeaderMap::new();
    headers.insert("traceparent", format!("00-{trace}-00f067aa0ba902b7-01"));
    eventually("the stream to take the poison", DEADLINE, || async {
        let poison = "{\"poison\": true}".into();
        jetstream.publish_with_headers(subject.clone(), headers.clone(), poison).await.ok()?.await.ok()
    })
    .await;
    let list = || lines(&process::run(&["dead", "--json", "list"], &rig.operator_env()));
    let letter = eventually("the dead letter", DEADLINE, || async { list().into_iter().next() }).await;
    assert_eq!((&letter["stage"], &letter["code"]), (&json!("compliance"), &json!("malformed")), "{letter}");

    let number = letter["number"].to_string();
    let shown = &lines(&process::run(&["dead", "--json", "show", &number], &rig.operator_env()))[0];
    assert_eq!(shown["body"], json!({"poison": true}));
    assert_eq!(shown["subject"], "mail.v1.resolved.bulk");
    process::run(&["dead", "replay", &number], &rig.operator_env());
    let again = eventually("the replayed poison to be dead again", DEADLINE, || async {
        list().into_iter().find(|other| other["number"] != letter["number"])
    })
    .await;
    assert_eq!(list().len(), 1, "a replayed letter is removed");
    assert_eq!((&again["code"], &again["trace"]), (&json!("malformed"), &json!(trace)), "{again}");
    let fits = |filter: &[&str]| {
        lines(&process::run(&[&["dead", "--json", "list"], filter].concat(), &rig.operator_env())).len()
    };
    let nobody = Uuid::nil().to_string();
    for (filter, expected) in [
        (&["--stage", "compliance", "--code", "malformed"][..], 1),
        (&["--subject", "mail.v1.resolved"], 1),
        (&["--newer", "1h"], 1),
        (&["--stage", "audience"], 0),
        (&["--code", "render"], 0),
        (&["--subject", "mail.v1.cleared"], 0),
        (&["--older", "1h"], 0),
        (&["--tenant", &nobody], 0),
    ] {
        assert_eq!(fits(filter), expected, "{filter:?}");
    }
    process::run(&["dead", "drop", "--all", "--stage", "audience"], &rig.operator_env());
    assert_eq!(list().len(), 1, "the filter holds");
    // As one that a product published, and may have published again since.
    let request = "mail.v1.request.demo.production.message";
    let mut headers = async_nats::HeaderMap::new();
    headers.insert("Mail-Dead-Subject", request);
    let dead = format!("{}mail.v1.dead.ingress", rig.env["POSTRIDER_STREAM_PREFIX"]);
    jetstream.publish_with_headers(dead, headers, "{}".into()).await.unwrap().await.unwrap();
    process::run(&["dead", "replay", "--all", "--stage", "ingress"], &rig.operator_env());
    assert_eq!(fits(&["--subject", request]), 1, "it is replayed by name only");
    process::run(&["dead", "drop", "--all", "--stage", "ingress"], &rig.operator_env());
    process::run(&["dead", "drop", "--all", "--stage", "compliance"], &rig.operator_env());
    assert_eq!(list(), Vec::<Value>::new());

    let streams = lines(&process::run(&["streams", "--json", "report"], &rig.operator_env()));
    assert_eq!(streams.len(), runtime::streams::STREAMS.len());
    let audited = lines(&process::run(&["audit", "--json", "list", "--action", "dead."], &rig.operator_env()));
    let acts: Vec<&Value> = audited.iter().map(|line| &line["action"]).collect();
    assert_eq!(acts, ["dead.drop", "dead.drop", "dead.replay", "dead.drop", "dead.replay"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_suspended_tenant_sends_nothing_and_its_recipients_have_their_reason() {
    let mut rig = Rig::shared().await;
    rig.start_all().await;
    let (list, _) = rig.list_of(10, "suspended", "example.com").await;
    let campaign = rig.campaign(list, "Hello", "<p>Hello</p>").await;
    // Launched while it may, and due when it is suspended.
    let launch = format!("/v1/campaigns/{campaign}/launch");
    let due = (chrono::Utc::now() + chrono::TimeDelta::seconds(10)).to_rfc3339();
    let launched = rig.client.post(&launch, json!({"schedule_for": due})).await;
    assert_eq!(launched.status, 202);
    process::run(&["tenant", "suspend", &rig.engine_tenant_id.to_string()], &rig.operator_env());
    rig.status(campaign, "sent", Duration::from_secs(60)).await;
    let states = pipeline::ledger::by_address(&rig.pool, campaign).await;
    assert_eq!(states.len(), 10);
    assert!(states.values().all(|(state, reason)| state == "skipped" && reason.is_some()), "{states:?}");
    assert_eq!(rig.sink.accepted().await, 0);
    rig.books_balance().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_quota_set_from_the_command_line_gates_launches_and_counts_what_was_handed_over() {
    let mut rig = Rig::shared().await;
    let tenant = rig.engine_tenant_id.to_string();
    let set = process::run(&["quota", "--json", "set", &tenant, "--daily", "7"], &rig.operator_env());
    let [month, day] = <[Value; 2]>::try_from(lines(&set)).unwrap();
    assert_eq!(
        (&day["limit"], &day["from"], &day["used"], &day["remaining"]),
        (&json!(7), &json!("tenant"), &json!(0), &json!(7))
    );
    assert_eq!((&month["limit"], &month["from"]), (&Value::Null, &json!("setting")));
    rig.start_all().await;
    // What would not fit is refused before it is queued …
    let (list, _) = rig.list_of(10, "quota", "example.com").await;
    let campaign = rig.campaign(list, "Hello", "<p>Hello</p>").await;
    let refused = rig.client.post(&format!("/v1/campaigns/{campaign}/launch"), json!({})).await;
    assert_eq!((refused.status.as_u16(), refused.error()), (429, "send_quota_exceeded"));
    // … and what fits is sent and counted.
    let (list, _) = rig.list_of(7, "fits", "example.com").await;
    let campaign = rig.campaign(list, "Hello", "<p>Hello</p>").await;
    rig.launch(campaign).await;
    rig.status(campaign, "sent", Duration::from_secs(60)).await;
    assert_eq!(rig.sink.accepted().await, 7);
    let shown = lines(&process::run(&["quota", "--json", "show", &tenant], &rig.operator_env()));
    assert_eq!((&shown[1]["used"], &shown[1]["remaining"]), (&json!(7), &json!(0)));
    rig.books_balance().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_provider_connection_is_added_with_its_secret_from_outside_and_taken_out_again() {
    let rig = Rig::shared().await;
    let tenant = rig.engine_tenant_id.to_string();
    let mut env = rig.operator_env();
    env.insert("POSTRIDER_MASTER_KEY".to_owned(), rig.env["POSTRIDER_MASTER_KEY"].clone());
    env.insert("THE_SECRET".to_owned(), "re_secret_key".to_owned());
    let add = ["provider", "--json", "add", "--tenant", &tenant, "--provider", "resend", "--secret-env", "THE_SECRET"];
    let added = lines(&process::run(&add, &env));
    let id = added[0]["connection_id"].as_str().unwrap().to_owned();
    let list = || process::run(&["provider", "--json", "list", "--tenant", &tenant], &env);
    assert!(!list().contains("re_secret_key"));
    let listed = lines(&list());
    assert_eq!(
        (&listed[0]["provider"], &listed[0]["status"], &listed[0]["default"]),
        (&json!("resend"), &json!("active"), &json!(true))
    );
    for (order, expected) in [(None, false), (Some(&id), true)] {
        let args: Vec<&str> = ["provider", "order", &tenant].into_iter().chain(order.map(String::as_str)).collect();
        process::run(&args, &env);
        assert_eq!(lines(&list())[0]["default"], json!(expected));
    }
    process::run(&["provider", "disable", &id], &env);
    assert_eq!(lines(&list())[0]["status"], "disabled");
    process::run(&["provider", "remove", &id], &env);
    assert_eq!(lines(&list()), Vec::<Value>::new());
    let audited: i64 =
        sqlx::query_scalar("select count(*) from audit_log where tenant_id = $1 and action like 'provider.%'")
            .bind(rig.engine_tenant_id)
            .fetch_one(&rig.pool)
            .await
            .unwrap();
    assert_eq!(audited, 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_is_set_and_shared_and_its_domain_is_suspended_and_released() {
    let mut rig = Rig::shared().await;
    rig.start("ingress", &["ingress"]).await;
    let (env, tenant) = (rig.operator_env(), rig.engine_tenant_id.to_string());
    let run = |args: &[&str]| lines(&process::run(args, &env));
    let set = ["tenant", "--json", "set", &tenant, "timezone=Europe/Paris", "physical_address=2 Side Street"];
    assert_eq!(run(&set)[0]["timezone"], json!("Europe/Paris"));
    let profile = async || rig.client.get("/v1/tenant", &[]).await.expect(200)["tenant"].clone();
    assert_eq!(profile().await["physical_address"], json!("2 Side Street"));

    // Another product speaks for the same tenant.
    let link = [
        "tenant",
        "--json",
        "link",
        "--product",
        "other",
        "--product-tenant-id",
        "o-1",
        "--email",
        "other@example.com",
        "--engine-tenant-id",
        &tenant,
    ];
    for _ in 0..2 {
        assert_eq!(run(&link)[0]["engine_tenant_id"], json!(tenant));
    }
    let key = run(&["key", "--json", "issue", "--product", "other", "--scopes", "tenant:read"]);
    let other = Client::new(&rig.base_url, "other", "production", key[0]["key"].as_str().unwrap(), "o-1");
    assert_eq!(other.get("/v1/tenant", &[]).await.expect(200)["tenant"], profile().await);

    let domain = async || rig.client.get("/v1/domains", &[]).await.expect(200)["domains"][0].clone();
    let before = domain().await;
    let (name, id) = (before["domain"].as_str().unwrap().to_owned(), before["domain_id"].as_str().unwrap().to_owned());
    // The sandbox tenant claims the name, too: the one that has proven it is meant.
    assert_eq!(run(&["domain", "--json", "suspend", &format!("{name}.")])[0]["status"], json!("suspended"));
    assert_eq!(domain().await["status"], json!("suspended"));
    let sender = rig.client.get(&format!("/v1/senders/{}", rig.sender_id), &[]).await.expect(200);
    assert_eq!(sender["sender"]["status"], json!("pending_domain"));
    let refused = rig.client.delete(&format!("/v1/domains/{id}"), json!({})).await;
    assert_eq!((refused.status.as_u16(), refused.error()), (409, "domain_suspended"));
    assert_eq!(run(&["domain", "--json", "release", &name])[0]["status"], before["status"]);
    let told = "select count(*) from notices where type = 'domain.status_changed'";
    let told: i64 = sqlx::query_scalar(told).fetch_one(&rig.pool).await.unwrap();
    assert_eq!(told, 2);
}
