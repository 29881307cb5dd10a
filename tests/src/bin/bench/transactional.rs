//! Transactional mail: latency from request to acceptance at the sink, in an open loop.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use futures::future::join_all;
use pipeline::Rig;
use serde_json::json;

use super::common::{Watch, code_template, fill_list, newsletter, spread};

pub(super) async fn run(per_second: u32, seconds: u32, beside_campaign: usize) {
    let mut rig = Rig::measured().await.with("LOG", "warn");
    rig.start_all().await;
    let template = code_template(&rig).await;
    let mut campaign = None;
    if beside_campaign > 0 {
        let list = fill_list(&rig, beside_campaign).await;
        campaign = Some(rig.campaign(list, "News for {{ first_name }}", &newsletter()).await);
    }
    let rig = Arc::new(rig);
    // One first, so that caches and connections are as in a running system.
    send_one(&rig, &template, "warm@example.com".to_owned()).await;
    rig.sink.wait(1, 10_000).await;
    let watch = Watch::start(&rig);
    if let Some(campaign) = campaign {
        rig.launch(campaign).await;
        rig.sink.wait(1_000, 30_000).await;
    }
    let total = per_second * seconds;
    let mut ticks = tokio::time::interval(Duration::from_secs_f64(1.0 / f64::from(per_second)));
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Burst);
    let mut tasks = Vec::new();
    for n in 0..total {
        ticks.tick().await;
        let (rig, template) = (rig.clone(), template.clone());
        let due = std::time::SystemTime::now();
        tasks.push(tokio::spawn(async move {
            let address = format!("latency-{n}@example.com");
            send_one(&rig, &template, address.clone()).await;
            (address, due)
        }));
    }
    let due: Vec<_> = join_all(tasks).await.into_iter().map(Result::unwrap).collect();
    let during = match campaign {
        Some(campaign) => pipeline::ledger::states(&rig.pool, campaign).await.get("queued").copied().unwrap_or(0),
        None => 0,
    };
    let addresses: Vec<String> = due.iter().map(|(address, _)| address.clone()).collect();
    let mut latencies = Vec::new();
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut times = rig.sink.first_accepted_us(&addresses).await;
    while times.iter().any(Option::is_none) && Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(200)).await;
        times = rig.sink.first_accepted_us(&addresses).await;
    }
    for ((_, due), accepted) in due.iter().zip(times) {
        let due_us = due.duration_since(std::time::UNIX_EPOCH).unwrap().as_micros() as f64;
        latencies.push((accepted.expect("a mail was lost") as f64 - due_us) / 1_000.0);
    }
    println!(
        "transactional {per_second}/s for {seconds} s beside a campaign of {beside_campaign} ({during} still queued at the end): {}  {}",
        spread(&mut latencies),
        watch.report(total as usize)
    );
}

async fn send_one(rig: &Rig, template: &str, address: String) {
    let body = json!({"template_id": template, "email": address, "first_name": "Ann", "data": {"code": "123456"}});
    rig.client.post("/v1/transactional", body).await.expect(202);
}
