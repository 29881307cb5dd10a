//! What goes over a whole audience while a caller waits: an import, and the answer to a launch.

use std::time::Instant;

use pipeline::Rig;
use serde_json::json;

use super::common::{Watch, fill_list};

pub(super) async fn import(rows: usize) {
    let mut rig = Rig::measured().await.with("LOG", "warn").with("IMPORT_MAX_ROWS", &rows.max(50_000).to_string());
    rig.start("ingress", &["ingress"]).await;
    let mut csv = String::from("email,first_name,last_name,company,phone,list,tags\n");
    for n in 0..rows {
        csv.push_str(&format!("import-{n}@example.com,First{n},Last{n},Company {n},+1 555 {n},big,a;b\n"));
    }
    let watch = Watch::start(&rig);
    let started = Instant::now();
    let answer = rig.client.post("/v1/imports", json!({"csv": csv})).await.expect(200);
    let fresh = started.elapsed();
    let again = Instant::now();
    rig.client.post("/v1/imports", json!({"csv": csv})).await.expect(200);
    println!(
        "import rows {rows}: fresh {:.2} s ({:.0} rows/s), again {:.2} s; counts {}  {}",
        fresh.as_secs_f64(),
        rows as f64 / fresh.as_secs_f64(),
        again.elapsed().as_secs_f64(),
        answer["counts"],
        watch.report(rows * 2)
    );
}

pub(super) async fn launch(contacts: usize) {
    let mut rig = Rig::measured().await.with("LOG", "warn");
    rig.start("ingress", &["ingress"]).await;
    let list = fill_list(&rig, contacts).await;
    let campaign = rig.campaign(list, "Hello", "<p>Hello {{ first_name }}</p>").await;
    let path = format!("/v1/campaigns/{campaign}/launch");
    let dry = Instant::now();
    rig.client.post(&path, json!({"dry_run": true})).await;
    let dry = dry.elapsed();
    let started = Instant::now();
    let answer = rig.client.post(&path, json!({})).await.expect(202);
    println!(
        "launch contacts {contacts}: dry run {:.2} s, launch {:.2} s, queued {}",
        dry.as_secs_f64(),
        started.elapsed().as_secs_f64(),
        answer["queued"]
    );
}
