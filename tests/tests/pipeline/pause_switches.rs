//! What an operator holds back and lets go, against a running system.

use std::time::Duration;

use chrono::{DateTime, Utc};
use pipeline::{Client, Rig, eventually, ledger, process};
use serde_json::{Value, json};
use uuid::Uuid;

const PATIENCE: Duration = Duration::from_secs(120);

/// Runs a command with `--json` and answers what it printed.
fn run(rig: &Rig, args: &[&str]) -> Vec<Value> {
    process::lines(&process::run(&[&["--json"], args].concat(), &rig.operator_env()))
}

/// The database's clock: fences are stamped by it.
async fn now(rig: &Rig) -> DateTime<Utc> {
    sqlx::query_scalar("select clock_timestamp()").fetch_one(&rig.pool).await.unwrap()
}

async fn fenced_after(rig: &Rig, tenant: Uuid, at: DateTime<Utc>) -> i64 {
    sqlx::query_scalar("select count(*) from sends where tenant_id = $1 and fenced_at > $2")
        .bind(tenant)
        .bind(at)
        .fetch_one(&rig.pool)
        .await
        .unwrap()
}

/// How many messages a stage has before it. One that a worker gave back when the pause came is no longer pending to the server, but
/// still to be acknowledged.
fn waiting(rig: &Rig, stage: &str) -> u64 {
    let streams = run(rig, &["streams", "report"]);
    let readers = streams.iter().flat_map(|stream| stream["consumers"].as_array().unwrap().clone());
    readers
        .filter(|reader| reader["consumer"].as_str().unwrap().starts_with(stage))
        .map(|reader| reader["pending"].as_u64().unwrap() + reader["ack_pending"].as_u64().unwrap())
        .sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn of_a_paused_tenant_nothing_is_fenced_after_the_answer_others_go_on_and_all_is_mailed_once_in_the_end() {
    let mut rig = Rig::shared().await;
    rig.start_all().await;
    let tenant = rig.engine_tenant_id;
    let (list, addresses) = rig.list_of(6_000, "pause", "example.com").await;
    let campaign = rig.campaign(list, "Hello", "<p>Hello {{ first_name }}</p>").await;
    rig.launch(campaign).await;
    rig.sink.wait(300, 60_000).await;

    let paused = run(&rig, &["pause", "tenant", &tenant.to_string(), "--reason", "abuse report 17"]);
    let answered = now(&rig).await;
    assert_eq!((&paused[0]["paused"], &paused[0]["was_paused"]), (&json!(true), &json!(false)));
    let reached = rig.sink.accepted().await;
    assert!(reached < 6_000, "the campaign was over before the tenant was paused");

    // Requests are accepted meanwhile.
    let to = json!({"email": "later@example.com", "template_id": template(&rig).await});
    let later = rig.client.post("/v1/transactional", to).await.expect(202)["send_id"].as_str().unwrap().to_owned();
    // Others go on: the same product's tenant in the sandbox.
    others_go_on(&rig).await;
    // What was in hand comes to rest, and nothing spins.
    eventually("the tenant's work to rest", PATIENCE, || async {
        let moving: i64 = sqlx::query_scalar(
            "select count(*) from batches where tenant_id = $1 and (fenced > 0 or state = 'announced')",
        )
        .bind(tenant)
        .fetch_one(&rig.pool)
        .await
        .ok()?;
        let accepted: i64 =
            sqlx::query_scalar("select count(*) from batches where tenant_id = $1 and lane = 'priority'")
                .bind(tenant)
                .fetch_one(&rig.pool)
                .await
                .ok()?;
        (moving == 0 && accepted > 0).then_some(())
    })
    .await;
    assert_eq!(fenced_after(&rig, tenant, answered).await, 0, "fenced after the pause was answered");

    let explained = &run(&rig, &["explain", &campaign.to_string(), &addresses[5_999]])[0]["explanation"];
    assert_eq!((&explained["verdict"], &explained["decided_by"]), (&json!("wait"), &json!("tenant")), "{explained}");
    let health = &run(&rig, &["health"])[0];
    let check = health["checks"].as_array().unwrap().iter().find(|check| check["id"] == "paused").unwrap();
    assert_eq!(check["status"], "warn", "{check}");
    let listed = run(&rig, &["pause", "list"]);
    assert!(
        listed.iter().any(|line| line["which"] == json!(tenant) && line["reason"] == "abuse report 17"),
        "{listed:?}"
    );

    run(&rig, &["resume", "tenant", &tenant.to_string()]);
    let ended: i64 = sqlx::query_scalar(
        "select count(*) from tenants t cross join unnest(t.pauses) p where t.id = $1 and upper(p) <= now()",
    )
    .bind(tenant)
    .fetch_one(&rig.pool)
    .await
    .unwrap();
    assert_eq!(ended, 1, "mail may have waited in it");
    rig.status(campaign, "sent", PATIENCE).await;
    assert_eq!(rig.sink.counts(&addresses).await, vec![1; 6_000]);
    eventually("the transactional mail", PATIENCE, || async {
        (rig.sink.counts(&["later@example.com".to_owned()]).await == [1]).then_some(())
    })
    .await;
    let send = &run(&rig, &["explain", &later])[0]["explanation"]["send"];
    assert_eq!(send["state"], "sent", "{send}");
    rig.books_balance().await;

    let audited = run(&rig, &["audit", "list", "--tenant", &tenant.to_string(), "--action", "tenant."]);
    let acts: Vec<&Value> = audited.iter().map(|line| &line["action"]).collect();
    assert_eq!(acts[..2], [&json!("tenant.resume"), &json!("tenant.pause")]);
    assert_eq!((&audited[1]["reason"], &audited[1]["outcome"]), (&json!("abuse report 17"), &json!("paused")));
    assert!(audited[1]["actor"].as_str().unwrap().starts_with("cli:"), "{}", audited[1]);
}

async fn template(rig: &Rig) -> Value {
    let body = json!({"name": "later", "subject": "Hi", "body_html": "<p>Hi</p>", "template_type": "transactional"});
    rig.client.post("/v1/templates", body).await.expect(201)["template_id"].clone()
}

/// A campaign of another tenant runs to its end.
async fn others_go_on(rig: &Rig) {
    let issued = run(rig, &["key", "issue", "--product", "demo", "--environment", "sandbox"]);
    let key = issued[0]["key"].as_str().unwrap();
    let other = Client::new(&rig.base_url, "demo", "sandbox", key, "demo-tenant");
    let sender = other.get("/v1/senders", &[]).await.expect(200)["senders"][0]["sender_id"].clone();
    let list = other.post("/v1/audiences", json!({"kind": "list", "name": "others"})).await.expect(201);
    let list = list["audience_id"].as_str().unwrap().to_owned();
    let members: Vec<String> = (0..20).map(|n| format!("delivered+{n}@sandbox.test")).collect();
    for email in &members {
        other.post("/v1/contacts", json!({"email": email, "marketing_status": "subscribed"})).await;
    }
    other.post(&format!("/v1/audiences/{list}/members"), json!({"add": members})).await.expect(200);
    let draft = json!({
        "name": "others", "sender_profile_id": sender, "audience_mode": "list", "list_id": list, "subject": "Hi",
        "body_html": "<p>Hi</p>",
    });
    let created = other.post("/v1/campaigns", draft).await.expect(201);
    let campaign: Uuid = created["campaign_id"].as_str().unwrap().parse().unwrap();
    other.post(&format!("/v1/campaigns/{campaign}/launch"), json!({})).await.expect(202);
    rig.status(campaign, "sent", PATIENCE).await;
    let sent = ledger::states(&rig.pool, campaign).await;
    assert_eq!(sent.get("sent"), Some(&20), "{sent:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_stage_handles_nothing_even_after_a_restart_drains_and_handles_all_when_resumed() {
    let mut rig = Rig::shared().await;
    rig.start("rest", &["stage", "audience", "compliance", "delivery"]).await;
    rig.start("rendering", &["stage", "rendering"]).await;
    rig.start("ingress", &["ingress"]).await;
    let drained = &run(&rig, &["drain", "rendering", "--reason", "a bad template"])[0];
    assert_eq!((&drained["drained"], &drained["stage"]), (&json!(true), &json!("rendering")), "{drained}");
    assert_eq!(drained["processes"][0]["process"], "rendering", "{drained}");

    let (list, addresses) = rig.list_of(50, "stage", "example.com").await;
    let campaign = rig.campaign(list, "Hello", "<p>Hello</p>").await;
    rig.launch(campaign).await;
    eventually("the work to wait before the paused stage", PATIENCE, || async {
        (waiting(&rig, "rendering") == 1).then_some(())
    })
    .await;
    // A pause outlives its process.
    rig.kill9("rendering");
    rig.start("rendering", &["stage", "rendering"]).await;
    eventually("the new process to say that it rests", PATIENCE, || async {
        let paused: i64 = sqlx::query_scalar(
            "select count(*) from heartbeats where stage = 'rendering' and paused and seen_at > now() - interval '5 seconds'",
        )
        .fetch_one(&rig.pool)
        .await
        .ok()?;
        (paused > 0).then_some(())
    })
    .await;
    assert_eq!((waiting(&rig, "rendering"), rig.sink.accepted().await), (1, 0));

    let resumed = &run(&rig, &["resume", "stage", "--all"])[2];
    assert_eq!((&resumed["stage"], &resumed["paused"]), (&json!("rendering"), &json!(false)), "{resumed}");
    rig.status(campaign, "sent", PATIENCE).await;
    assert_eq!(rig.sink.counts(&addresses).await, vec![1; 50]);
    rig.books_balance().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_of_a_stage_that_is_resumed_meanwhile_fails() {
    let rig = Rig::shared().await;
    // A process that does not pause: without it the stage would be drained at once.
    let busy = "insert into heartbeats (process_id, stage, version, in_hand, seen_at)
                values (gen_random_uuid(), 'webhooks', 'test', 1, now() + interval '1 hour')";
    sqlx::query(busy).execute(&rig.pool).await.unwrap();
    let mut drain = std::process::Command::new(process::binary());
    drain.args(["drain", "webhooks"]).envs(rig.operator_env()).stderr(std::process::Stdio::piped());
    let drain = drain.spawn().unwrap();
    eventually("the pause", PATIENCE, || async {
        let paused: i64 = sqlx::query_scalar("select count(*) from stage_pauses").fetch_one(&rig.pool).await.ok()?;
        (paused == 1).then_some(())
    })
    .await;
    run(&rig, &["resume", "stage", "webhooks"]);
    let drained = tokio::task::spawn_blocking(|| drain.wait_with_output().unwrap()).await.unwrap();
    let said = String::from_utf8(drained.stderr).unwrap();
    assert!(!drained.status.success() && said.contains("webhooks was resumed meanwhile"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_campaign_an_operator_pauses_rests_as_if_its_owner_had_and_its_owner_is_told() {
    let mut rig = Rig::shared().await;
    rig.start_all().await;
    let (list, addresses) = rig.list_of(4_000, "campaign", "example.com").await;
    let campaign = rig.campaign(list, "Hello", "<p>Hello</p>").await;
    rig.launch(campaign).await;
    rig.sink.wait(200, 60_000).await;
    let paused = &run(&rig, &["pause", "campaign", &campaign.to_string(), "--reason", "wrong list"])[0];
    let answered = now(&rig).await;
    assert_eq!(paused["was_paused"], json!(false), "{paused}");
    // A repeated pause does not replace the reason of the first.
    run(&rig, &["pause", "campaign", &campaign.to_string(), "--reason", "again"]);
    let listed = run(&rig, &["pause", "list"]);
    let line = listed.iter().find(|line| line["which"] == json!(campaign)).unwrap();
    assert_eq!(line["reason"], "wrong list", "{line}");
    assert!(line["by"].as_str().is_some_and(|operator| operator.starts_with("cli:")), "{line}");
    let seen = rig.client.get(&format!("/v1/campaigns/{campaign}"), &[]).await.expect(200);
    assert_eq!((&seen["campaign"]["paused"], &seen["campaign"]["pause_reason"]), (&json!(true), &json!("requested")));
    let notice: Value =
        sqlx::query_scalar("select data from notices where type = 'campaign.paused' and subject_id = $1")
            .bind(campaign)
            .fetch_one(&rig.pool)
            .await
            .unwrap();
    assert!(!notice.to_string().contains("wrong list"), "what operators tell each other is not the owner's to read");
    eventually("the campaign to rest", PATIENCE, || async {
        let held: i64 = sqlx::query_scalar("select sum(fenced)::bigint from batches where campaign_id = $1")
            .bind(campaign)
            .fetch_one(&rig.pool)
            .await
            .ok()?;
        (held == 0).then_some(())
    })
    .await;
    assert_eq!(fenced_after(&rig, rig.engine_tenant_id, answered).await, 0);
    run(&rig, &["resume", "campaign", &campaign.to_string()]);
    rig.status(campaign, "sent", PATIENCE).await;
    assert_eq!(rig.sink.counts(&addresses).await, vec![1; 4_000]);
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_batches_are_announced_and_doubt_is_decided_not_resent() {
    // Nothing is announced again by itself for an hour.
    let mut rig = Rig::shared().await.with("AUDIENCE_REANNOUNCE", "1h");
    rig.start("front", &["stage", "audience"]).await;
    rig.start("ingress", &["ingress"]).await;
    let (list, addresses) = rig.list_of(10, "requeue", "example.com").await;
    let campaign = rig.campaign(list, "Hello", "<p>Hello</p>").await;
    rig.launch(campaign).await;
    let nats = async_nats::connect(&rig.env["POSTRIDER_NATS_URL"]).await.unwrap();
    let jetstream = async_nats::jetstream::new(nats);
    let resolved = format!("{}MAIL_RESOLVED", rig.env["POSTRIDER_STREAM_PREFIX"]);
    eventually("the announcement", PATIENCE, || async {
        let mut stream = jetstream.get_stream(&resolved).await.ok()?;
        (stream.info().await.ok()?.state.messages > 0).then_some(())
    })
    .await;
    jetstream.get_stream(&resolved).await.unwrap().purge().await.unwrap();
    rig.start("rest", &["stage", "compliance", "rendering", "delivery"]).await;
    let requeued = &run(&rig, &["requeue", "campaign", &campaign.to_string()])[0];
    assert_eq!((&requeued["announced"], &requeued["in_doubt"]), (&json!(1), &json!(0)), "{requeued}");
    rig.status(campaign, "sent", PATIENCE).await;
    assert_eq!(rig.sink.counts(&addresses).await, vec![1; 10]);

    let doubtful = put_in_doubt(&rig, campaign, 3).await;
    let looked = &run(&rig, &["requeue", "campaign", &campaign.to_string()])[0];
    assert_eq!(
        (&looked["announced"], &looked["in_doubt"], &looked["decided"]),
        (&json!(0), &json!(3), &json!(0)),
        "{looked}"
    );
    let one = doubtful[0].to_string();
    let decided =
        &run(&rig, &["requeue", "send", &one, "--unknown-as", "sent", "--reason", "the relay's log has it"])[0];
    assert_eq!((&decided["decided"], &decided["in_doubt"]), (&json!(1), &json!(0)), "{decided}");
    let given_up =
        ["requeue", "campaign", &campaign.to_string(), "--unknown-as", "failed", "--reason", "the relay lost them"];
    assert_eq!(run(&rig, &given_up)[0]["decided"], 2);
    let states = ledger::states(&rig.pool, campaign).await;
    assert_eq!(
        (states.get("sent"), states.get("failed"), states.get("unknown")),
        (Some(&8), Some(&2), None),
        "{states:?}"
    );
    // Not even by the caller's own wish: it may have left.
    let retried = rig.client.post(&format!("/v1/campaigns/{campaign}/retry_failed"), json!({})).await.expect(200);
    assert_eq!((&retried["queued"], &retried["skipped"]), (&json!(0), &json!(2)));
    assert_eq!(rig.sink.accepted().await, 10, "nothing left a second time");
    rig.books_balance().await;
}

/// Some of a campaign's sends as a crash after the last gate would leave them.
async fn put_in_doubt(rig: &Rig, campaign: Uuid, count: i64) -> Vec<Uuid> {
    let mut tx = rig.pool.begin().await.unwrap();
    let sends: Vec<Uuid> = sqlx::query_scalar(
        "update sends s set state = 'unknown', reason = 'no_answer'
         where s.id in (select id from sends where campaign_id = $1 and state = 'sent' order by id limit $2) returning s.id",
    )
    .bind(campaign)
    .bind(count)
    .fetch_all(&mut *tx)
    .await
    .unwrap();
    sqlx::query("update batches set sent = sent - $2, delivered = delivered - $2, unknown = unknown + $2 where campaign_id = $1")
        .bind(campaign)
        .bind(i32::try_from(count).unwrap())
        .execute(&mut *tx)
        .await
        .unwrap();
    tx.commit().await.unwrap();
    sends
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_filter_of_running_processes_is_changed_and_put_back() {
    let mut rig = Rig::shared().await.with("LOG", "warn");
    rig.start("ingress", &["ingress"]).await;
    rig.start("compliance", &["stage", "compliance"]).await;
    let told = ["log-level", "info,runtime=debug", "--process", "ingress", "--reason", "looking into case 4"];
    let answers = eventually("the process to listen", PATIENCE, || async {
        let answers = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(&rig, &told))).ok()?;
        (answers.len() == 1).then_some(answers)
    })
    .await;
    assert_eq!((&answers[0]["process"], &answers[0]["filter"]), (&json!("ingress"), &json!("info,runtime=debug")));
    let changed = |rig: &Rig, name: &str| rig.processes[name].log().contains("the log filter was changed");
    eventually("the process to say more", PATIENCE, || async { changed(&rig, "ingress").then_some(()) }).await;
    assert!(!changed(&rig, "compliance"), "the command was not for it");
    let again = run(&rig, &["log-level", "--reset"]);
    assert_eq!(again.len(), 2);
    assert!(again.iter().all(|answer| answer["filter"] == "warn"), "{again:?}");
    let audited = run(&rig, &["audit", "list", "--action", "log."]);
    assert_eq!(audited.last().unwrap()["reason"], "looking into case 4");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_nats_settings_a_pause_is_made_and_a_drain_pauses_nothing() {
    let rig = Rig::shared().await;
    let mut env = rig.operator_env();
    env.remove("POSTRIDER_NATS_URL");
    process::run(&["pause", "stage", "webhooks"], &env);
    process::run(&["resume", "stage", "webhooks"], &env);
    let drained =
        std::process::Command::new(process::binary()).args(["drain", "webhooks"]).envs(&env).output().unwrap();
    assert!(!drained.status.success(), "{drained:?}");
    let paused: i64 = sqlx::query_scalar("select count(*) from stage_pauses").fetch_one(&rig.pool).await.unwrap();
    assert_eq!(paused, 0);
}
