//! How long a recipient's mail program waits for a pixel: `./ops/test measure_tracking -- --ignored --nocapture`.
#![allow(clippy::print_stdout)]

use std::time::{Duration, Instant};

use pipeline::Rig;

/// Hits a second, for how many seconds.
const RATE: u32 = 300;
const SECONDS: u32 = 10;

/// Open loop: a hit is due by the clock, whether or not the one before was answered, and its time counts from when it was due.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "a measurement"]
async fn measure_tracking_hits() {
    let mut rig = Rig::shared().await;
    rig.start_all().await;
    let (list, people) = rig.list_of(1, "reader", "example.com").await;
    let campaign = rig.campaign(list, "News", "<p>Hello</p>").await;
    rig.launch(campaign).await;
    rig.sink.wait(1, 60_000).await;
    let mail = rig.sink.messages_to(&people[0]).await;
    let html = mail[0]["html"].as_str().unwrap().to_owned();
    let start = html.find(&format!("{}/t/o/", rig.base_url)).unwrap();
    let pixel: String = html[start..].chars().take_while(|c| !matches!(c, '"' | '\'' | '<' | ' ')).collect();
    let http = reqwest::Client::new();
    for _ in 0..20 {
        http.get(&pixel).send().await.unwrap().error_for_status().unwrap();
    }
    let begun = Instant::now() + Duration::from_millis(100);
    let hits: Vec<_> = (0..RATE * SECONDS)
        .map(|n| {
            let (http, pixel) = (http.clone(), pixel.clone());
            let due = begun + Duration::from_secs(1) * n / RATE;
            tokio::spawn(async move {
                tokio::time::sleep_until(due.into()).await;
                let answer = http.get(&pixel).send().await.unwrap();
                assert_eq!(answer.status(), 200);
                due.elapsed()
            })
        })
        .collect();
    let mut took = Vec::new();
    for hit in hits {
        took.push(hit.await.unwrap());
    }
    took.sort_unstable();
    let at = |percent: usize| took[(took.len() - 1) * percent / 100];
    println!("{} hits at {RATE}/s: p50 {:?}, p99 {:?}, longest {:?}", took.len(), at(50), at(99), at(100));
}
