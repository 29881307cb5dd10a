//! The platform's health over a living installation: a stage is stopped, a stage is killed.

use std::{collections::BTreeMap, process::Command, time::Duration};

use pipeline::{Client, Rig, eventually, process};
use serde_json::Value;

/// Long enough for a killed process to be missed.
const MISSED: Duration = Duration::from_secs(60);

fn operations(rig: &Rig) -> Client {
    let scope = schemas::scope::PLATFORM_HEALTH_READ;
    let args = ["key", "issue", "--product", "ops", "--scopes", scope, "--json"];
    let issued: Value = serde_json::from_str(&process::run(&args, &database_env(rig))).unwrap();
    Client::new(&rig.base_url, "ops", "production", issued["key"].as_str().unwrap(), "")
}

fn database_env(rig: &Rig) -> BTreeMap<String, String> {
    rig.operator_env().into_iter().filter(|(name, _)| name.ends_with("DATABASE_URL")).collect()
}

/// The report of `postrider health --json`, and whether it ended well.
fn by_command(rig: &Rig) -> (Value, bool) {
    let output = Command::new(process::binary()).args(["health", "--json"]).envs(rig.operator_env()).output().unwrap();
    let report = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|_| panic!("no report: {}", String::from_utf8_lossy(&output.stderr)));
    (report, output.status.success())
}

fn check<'a>(report: &'a Value, id: &str) -> &'a Value {
    report["checks"].as_array().unwrap().iter().find(|check| check["id"] == id).unwrap()
}

/// What a report says of each check: everything but what was measured.
fn story(report: &Value) -> Vec<Value> {
    let checks = report["checks"].as_array().unwrap();
    let without_measures = |check: &Value| {
        let mut check = check.clone();
        check.as_object_mut().unwrap().remove("observation");
        check
    };
    checks.iter().map(without_measures).collect()
}

/// The command and the endpoint tell the same story. Asked again when something changed in between.
async fn agree(rig: &Rig, client: &Client) {
    eventually("command and endpoint to tell the same story", Duration::from_secs(60), || async {
        let (commanded, well) = by_command(rig);
        let answer = client.get("/v1/platform/health", &[]).await;
        assert_eq!(well, commanded["ok"] == true, "{commanded}");
        let is_same = commanded["overall"] == answer.body["overall"] && story(&commanded) == story(&answer.body);
        is_same.then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_that_is_away_is_told_with_cause_and_fix_by_both() {
    let mut rig = Rig::shared().await.with("PROVIDER_PING_INTERVAL", "1s");
    // Nobody listens there.
    let nowhere = format!("smtp://127.0.0.1:{}", devtools::servers::free_port());
    let relay = rig.env.insert("POSTRIDER_SMTP_URL".to_owned(), nowhere).unwrap();
    rig.start_all().await;
    let client = operations(&rig);
    let told = eventually("the relay to be missed", Duration::from_secs(60), || async {
        let answer = client.get("/v1/platform/health", &[]).await;
        let provider = check(&answer.body, "provider").clone();
        (provider["status"] == "crit").then_some((answer.status.as_u16(), provider))
    })
    .await;
    assert_eq!(told.0, 503, "sending is impaired");
    assert!(told.1["cause"].is_string() && told.1["link"] == "ops/runbooks/relay-unreachable.md", "{}", told.1);
    assert!(!told.1["fix"].as_array().unwrap().is_empty(), "{}", told.1);
    agree(&rig, &client).await;
    // The right relay: well again.
    rig.kill9("all");
    rig.env.insert("POSTRIDER_SMTP_URL".to_owned(), relay);
    rig.start_all().await;
    eventually("the relay to be back", Duration::from_secs(60), || async {
        let answer = client.get("/v1/platform/health", &[]).await;
        (check(&answer.body, "provider")["status"] == "ok").then_some(())
    })
    .await;
    agree(&rig, &client).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stage_that_is_gone_is_named_and_a_503_says_so() {
    let mut rig = Rig::shared().await;
    rig.start_separate().await;
    let client = operations(&rig);
    let ask = async || client.get("/v1/platform/health", &[]).await;
    eventually("every stage to be heard of", Duration::from_secs(60), || async {
        let answer = ask().await;
        (answer.status == 200).then_some(())
    })
    .await;
    let (report, well) = by_command(&rig);
    assert!(well && report["ok"] == true, "{report}");
    assert_eq!(check(&report, "configuration")["status"], "ok", "{report}");

    // Killed: its heartbeat falls silent.
    rig.kill9("rendering");
    let answer = eventually("the killed stage to be missed", MISSED, || async {
        let answer = ask().await;
        (answer.status == 503).then_some(answer)
    })
    .await;
    let missed = check(&answer.body, "heartbeat.rendering");
    assert_eq!((answer.body["overall"].as_str(), missed["status"].as_str()), (Some("crit"), Some("crit")), "{missed}");
    assert!(missed["cause"].as_str().unwrap().contains("rendering") && !missed["fix"].as_array().unwrap().is_empty());
    assert!(!by_command(&rig).1, "the command ends with 1");

    // Started again: well.
    rig.start("rendering", &["stage", "rendering"]).await;
    eventually("the stage to be back", Duration::from_secs(120), || async {
        (ask().await.status == 200).then_some(())
    })
    .await;

    // Stopped on purpose: it says so itself, at once.
    let engagement = rig.processes.remove("engagement").unwrap();
    assert!(engagement.terminate().await);
    agree(&rig, &client).await;
    let answer = ask().await;
    let missed = check(&answer.body, "engagement");
    assert_eq!(
        (answer.status.as_u16(), missed["status"].as_str()),
        (200, Some("warn")),
        "mail goes out without it: {missed}"
    );
}
