//! `postrider dev`: one command from nothing to a running system, and back to nothing.

use std::{collections::BTreeMap, path::Path, time::Duration};

use pipeline::{
    eventually, measure,
    process::{self, Process},
};
use serde_json::Value;
use tokio::process::Command;

use crate::clients;

#[tokio::test(flavor = "multi_thread")]
async fn dev_serves_a_newcomers_first_day_and_leaves_nothing_running() {
    let dir = tempfile::tempdir().unwrap();
    let ready = dir.path().join("ready.json");
    let args = ["dev", "--ephemeral", "--ready-file", ready.to_str().unwrap(), "--rate-limit-per-minute", "0"];
    let process = Process::start("dev", &args, &BTreeMap::new(), dir.path());
    let facts: Value = eventually("dev to be ready", Duration::from_secs(90), || async {
        serde_json::from_str(&std::fs::read_to_string(&ready).ok()?).ok()
    })
    .await;
    for name in [
        "base_url",
        "admin_url",
        "nats_url",
        "database_url",
        "inbox_url",
        "smtp_url",
        "product",
        "environment",
        "product_tenant_id",
        "engine_tenant_id",
        "sender_id",
        "domain",
        "live_key",
        "test_key",
    ] {
        assert!(facts[name].as_str().is_some_and(|text| !text.is_empty()), "{name} is missing: {facts}");
    }
    assert!(facts["env"]["POSTRIDER_DATABASE_URL"].is_string(), "the settings to start further processes with");
    let text = |name: &str| facts[name].as_str().unwrap();
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    // In the sandbox, where there are no people but a journey's own.
    for language in ["python", "typescript"] {
        if let Some(journey) = clients::journey(language, here) {
            clients::take_journey(journey, text("base_url"), text("test_key"), text("product_tenant_id")).await;
        }
    }
    let newcomer = here.join("clients/newcomer.py");
    let day = Command::new(newcomer).arg(&ready).arg(process::binary()).output().await.unwrap();
    assert!(day.status.success(), "{}", String::from_utf8_lossy(&day.stderr));
    let metrics = reqwest::get(format!("{}/metrics", text("admin_url"))).await.unwrap().text().await.unwrap();
    assert!(metrics.contains("mail_build_info"));

    let family: BTreeMap<u32, String> =
        measure::family(process.pid()).into_iter().filter_map(|pid| Some((pid, program(pid)?))).collect();
    assert!(family.len() >= 5, "dev, engine, sink, NATS and Postgres: {family:?}");
    assert!(process.terminate().await, "dev ended well");
    // What deletes the data of ephemeral servers outlives them on purpose.
    let alive: BTreeMap<u32, String> =
        family.into_iter().filter(|(pid, name)| name != "rm" && program(*pid).as_ref() == Some(name)).collect();
    assert_eq!(alive, BTreeMap::new(), "still running");
}

/// The program a process runs; `None` when it has ended.
fn program(pid: u32) -> Option<String> {
    let path = std::fs::read_link(format!("/proc/{pid}/exe")).ok()?;
    Some(path.file_name()?.to_string_lossy().into_owned())
}
