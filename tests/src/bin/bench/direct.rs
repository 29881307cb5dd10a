//! Transactional requests published straight to the bus, in arrays: from the first publication to the last acceptance at the sink.

use std::time::{Duration, Instant};

use async_nats::{HeaderMap, jetstream};
use pipeline::Rig;
use serde_json::json;

use super::common::{Setup, Watch, code_template};

/// Publications whose answer is awaited at once.
const WINDOW: usize = 8;

pub(super) async fn run(mails: usize, array: usize, setup: Setup) {
    let rig = setup.start().await;
    let template = code_template(&rig).await;
    let bodies = arrays(&rig, &template, mails, array);
    let client = async_nats::connect(rig.env["POSTRIDER_NATS_URL"].as_str()).await.unwrap();
    let jetstream = jetstream::new(client);
    let subject = format!("mail.v1.request.{}.production.transactional", rig.client.product());
    let watch = Watch::start(&rig);
    let started = Instant::now();
    let mut answers = Vec::new();
    for (number, body) in bodies.into_iter().enumerate() {
        let mut headers = HeaderMap::new();
        headers.insert("Nats-Msg-Id", format!("array-{number}"));
        answers.push(jetstream.publish_with_headers(subject.clone(), headers, body.into()).await.unwrap());
        if answers.len() >= WINDOW {
            answers.remove(0).await.unwrap();
        }
    }
    for answer in answers {
        answer.await.unwrap();
    }
    let published = started.elapsed();
    let mut reached = 0;
    while reached < mails as u64 {
        reached = rig.sink.wait((reached + 5_000).min(mails as u64), 2_000).await;
        eprint!("\r{reached} of {mails} in {:.1} s   ", started.elapsed().as_secs_f64());
        assert!(started.elapsed() < Duration::from_secs(900), "stuck");
    }
    let wall = started.elapsed();
    eprintln!();
    let report = watch.report(mails);
    println!(
        "direct mails {mails} in arrays of {array} {}: {:.0} mails/s ({:.1} s; published in {:.2} s)  duplicates {}  {report}",
        setup.words(),
        mails as f64 / wall.as_secs_f64(),
        wall.as_secs_f64(),
        published.as_secs_f64(),
        rig.sink.stats().await["duplicates"],
    );
}

fn arrays(rig: &Rig, template: &str, mails: usize, array: usize) -> Vec<String> {
    let request = |n: usize| {
        json!({
            "product_tenant_id": rig.client.tenant(), "template_id": template, "email": format!("direct-{n}@example-{}.com", n % 50),
            "first_name": "Ann", "data": {"code": format!("{n:06}")},
        })
    };
    let numbers: Vec<usize> = (0..mails).collect();
    numbers
        .chunks(array.max(1))
        .map(|part| json!(part.iter().map(|n| request(*n)).collect::<Vec<_>>()).to_string())
        .collect()
}
