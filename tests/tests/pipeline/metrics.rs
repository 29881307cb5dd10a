//! Every metric of the list is told by the processes it says, nothing else is, and no label speaks of anybody.
#![allow(clippy::print_stdout, reason = "says how long a scrape takes")]

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use pipeline::{
    Rig, eventually, process,
    scrape::{Sample, scrape, sum},
};
use runtime::metric::{self, Emitter, Metric};
use serde_json::json;
use uuid::Uuid;

use crate::webhooks::receiver::Receiver;

const WITHIN: Duration = Duration::from_secs(90);

/// Counted rarely, or only where something is switched on: they are told, as zero. Who counts them is tested elsewhere.
const ZERO_HERE: &[&str] = &[
    "mail_sweep_failed_total",
    "mail_stage_redelivered_total",
    "mail_inbound_facts_total",
    "mail_inbound_mails_total",
    "mail_assistant_calls_total",
    "mail_assistant_refusals_total",
    "mail_pace_postponed_total",
    "mail_trace_spans_total",
    "mail_panics_total",
    "mail_reader_jobs_total",
    "mail_reader_starts_total",
];

/// The admin ports, by process.
type Ports = BTreeMap<String, String>;

async fn start(rig: &mut Rig) -> Ports {
    let mut ports = Ports::new();
    for name in ["ingress"].into_iter().chain(pipeline::rig::STAGES) {
        let args: &[&str] = if name == "ingress" { &["ingress"] } else { &["stage", name] };
        let addresses = rig.start(name, args).await;
        ports.insert(name.to_owned(), addresses["admin_addr"].as_str().unwrap().to_owned());
    }
    ports
}

/// What all processes tell, by process.
async fn scrape_all(rig: &Rig, ports: &Ports) -> BTreeMap<String, Vec<Sample>> {
    let mut told = BTreeMap::new();
    for (name, port) in ports {
        told.insert(name.clone(), scrape(rig.client.http(), port).await.0);
    }
    told
}

/// Something of everything happens.
async fn live(rig: &Rig) {
    process::run(&["feed", "on", "demo", "production"], &rig.operator_env());
    let receiver = Receiver::start().await;
    let subscribe = |url: String, event: &str| rig.client.post("/v1/webhooks", json!({"url": url, "events": [event]}));
    subscribe(receiver.url(), "email.sent").await.expect(201);
    // Nobody listens there.
    subscribe(format!("http://127.0.0.1:{}/", devtools::servers::free_port()), "email.sent").await.expect(201);

    // A mail that arrives, one that is refused, one that is put off, one in doubt, one that must not be sent.
    let scripts = ["reader", "reject-550", "defer-451", "drop-after-dot", "left"];
    let mut csv = String::from("email,first_name,list\n");
    for script in scripts {
        csv.push_str(&format!("{script}@example.com,Ann,people\n"));
    }
    rig.client.post("/v1/imports", json!({"csv": csv})).await.expect(200);
    rig.client
        .post("/v1/suppressions", json!({"email": "left@example.com", "reason": "manual", "scope": "all"}))
        .await
        .expect(201);
    let list = rig.list_id("people").await;
    let html = r#"<p>Hello {{ first_name }}, <a href="https://shop.example/offer">look</a></p>"#;
    let campaign = rig.campaign(list, "News", html).await;
    rig.launch(campaign).await;

    let template = json!({"name": "R", "template_type": "transactional", "subject": "R", "body_html": "<p>Hi</p>"});
    let template = rig.client.post("/v1/templates", template).await.expect(201);
    let mail = json!({"template_id": template["template_id"], "email": "dora@example.com"});
    rig.client.post("/v1/transactional", mail).await.expect(202);
    enroll(rig).await;

    eventually("the reader to have mail", WITHIN, || async {
        (rig.sink.messages_to("reader@example.com").await.len() == 1).then_some(())
    })
    .await;
    // An outcome is credited to what was sent before it.
    receiver.wait_for_about("email.sent", "email", "reader@example.com", WITHIN).await;
    rig.click("reader@example.com").await;
    let outcome = json!({"contact_email": "reader@example.com", "outcome_type": "premium", "premium_amount": 9.5, "source_event_id": "o-1"});
    rig.client.post("/v1/outcomes", outcome).await.expect(200);

    // A provider that does not prove who it is, a message that cannot be read, a request that is none.
    let hook = format!("{}/hooks/postmark/{}", rig.base_url, Uuid::now_v7());
    assert_eq!(rig.client.http().post(hook).json(&json!({})).send().await.unwrap().status(), 401);
    publish(rig, "mail.v1.resolved.bulk").await;
    publish(rig, "mail.v1.request.demo.production.contact").await;
}

async fn enroll(rig: &Rig) {
    let steps = json!([{"step_type": "end_sequence", "action_config": {"reason": "enough"}}]);
    let sequence =
        rig.client.post("/v1/sequences", json!({"name": "S", "activate": true, "steps": steps})).await.expect(201);
    let body = json!({"sequence_id": sequence["sequence_id"], "email": "emil@example.org"});
    rig.client.post("/v1/enrollments", body).await.expect(201);
}

/// Follows the link in the mail to an address, as a browser would.
async fn publish(rig: &Rig, subject: &str) {
    let nats = async_nats::connect(&rig.env["POSTRIDER_NATS_URL"]).await.unwrap();
    let jetstream = async_nats::jetstream::new(nats);
    let subject = format!("{}{subject}", rig.env["POSTRIDER_STREAM_PREFIX"]);
    eventually("the stream to take it", WITHIN, || async {
        jetstream.publish(subject.clone(), "{\"poison\": true}".into()).await.ok()?.await.ok()
    })
    .await;
}

/// What is missing yet: metrics nobody tells, counters that stand at zero.
fn missing(told: &BTreeMap<String, Vec<Sample>>) -> Vec<&'static str> {
    let samples: Vec<Sample> = told.values().flatten().cloned().collect();
    let names: BTreeSet<&str> = samples.iter().map(Sample::metric).collect();
    let is_counted = |metric: &Metric| {
        let name = if metric.buckets.is_empty() { metric.name.to_owned() } else { format!("{}_count", metric.name) };
        let counts = !metric.buckets.is_empty() || metric.name.ends_with("_total");
        !counts || ZERO_HERE.contains(&metric.name) || sum(&samples, &name, &[]) > 0.0
    };
    let is_missing = |metric: &Metric| !names.contains(metric.name) || !is_counted(metric);
    metric::all().iter().filter(|metric| is_missing(metric)).map(|metric| metric.name).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_metric_is_told_where_the_list_says_and_no_label_speaks_of_anybody() {
    let mut rig = Rig::shared().await.with("WEBHOOK_ALLOW_NETWORKS", "127.0.0.0/8");
    let ports = start(&mut rig).await;
    live(&rig).await;
    let seen = std::sync::Mutex::new(Vec::new());
    let all = async {
        eventually("every metric", WITHIN, || async {
            let told = scrape_all(&rig, &ports).await;
            let missing = missing(&told);
            let is_all = missing.is_empty();
            *seen.lock().unwrap() = missing;
            is_all.then_some(told)
        })
        .await
    };
    let told = tokio::time::timeout(WITHIN - Duration::from_secs(1), all)
        .await
        .unwrap_or_else(|_| panic!("never told, or never counted: {:?}", seen.lock().unwrap()));

    let known: BTreeMap<&str, Metric> = metric::all().into_iter().map(|metric| (metric.name, metric)).collect();
    let mut faults = BTreeSet::new();
    for (process, samples) in &told {
        for sample in samples.iter().filter(|sample| !sample.name.starts_with("process_")) {
            match known.get(sample.metric()) {
                Some(metric) => faults.extend(faults_of(process, sample, metric)),
                None => drop(faults.insert(format!("{process} tells {}, which is not in the list", sample.name))),
            }
        }
    }
    faults.extend(speaks_of_somebody(&rig, &told).await);
    assert!(faults.is_empty(), "{faults:#?}");
    of_the_process_itself(&told);
    how_long_a_scrape_takes(&rig, &ports).await;
}

/// What is wrong with a series.
fn faults_of(process: &str, sample: &Sample, metric: &Metric) -> Vec<String> {
    let mut faults = Vec::new();
    let is_emitter = match metric.emitter {
        Emitter::Every | Emitter::Runner => true,
        Emitter::Parts(parts) => parts.contains(&process),
    };
    if !is_emitter {
        faults.push(format!("{process} tells {}, which is another's", sample.name));
    }
    let named: BTreeSet<&str> = sample.labels.keys().map(String::as_str).filter(|label| *label != "le").collect();
    let listed: BTreeSet<&str> = metric.labels.iter().map(|label| label.name).collect();
    if named != listed {
        faults.push(format!("{} has {named:?}, the list says {listed:?}", sample.name));
    }
    for label in metric.labels {
        if let Some(value) = sample.labels.get(label.name)
            && !label.values.allow(value)
        {
            faults.push(format!("{}: {} = {value:?}", sample.name, label.name));
        }
    }
    faults
}

/// Values that are an id or an address, or name anything of this installation's.
async fn speaks_of_somebody(rig: &Rig, told: &BTreeMap<String, Vec<Sample>>) -> Vec<String> {
    let names: Vec<String> = sqlx::query_scalar(
        "select product_tenant_id from tenant_links union select domain from domains union select name from campaigns
         union select split_part(address, '@', 1) from contacts union select product from api_keys",
    )
    .fetch_all(&rig.pool)
    .await
    .unwrap();
    let is_about_somebody = |value: &str| {
        value.contains('@')
            || value.bytes().filter(u8::is_ascii_hexdigit).count() >= 16
                && value.bytes().any(|byte| byte.is_ascii_digit())
            || names.iter().any(|name| name == value)
    };
    let values = told.values().flatten().flat_map(|sample| sample.labels.iter().map(move |pair| (&sample.name, pair)));
    values
        .filter(|(_, (label, value))| *label != "le" && is_about_somebody(value))
        .map(|(name, (label, value))| format!("{name}: {label} = {value:?} is about somebody"))
        .collect()
}

fn of_the_process_itself(told: &BTreeMap<String, Vec<Sample>>) {
    for (process, samples) in told {
        for name in ["process_resident_memory_bytes", "process_open_fds", "process_max_fds"] {
            assert!(sum(samples, name, &[]) > 0.0, "{process} does not tell {name}");
        }
        // In whole seconds, of which a process that had little to do has used none.
        let name = "process_cpu_seconds_total";
        assert!(samples.iter().any(|sample| sample.name == name), "{process} does not tell {name}");
    }
}

async fn how_long_a_scrape_takes(rig: &Rig, ports: &Ports) {
    for (process, port) in ports {
        let mut times = Vec::new();
        let mut lines = 0;
        for _ in 0..20 {
            let (samples, took) = scrape(rig.client.http(), port).await;
            lines = samples.len();
            times.push(took);
        }
        times.sort_unstable();
        println!(
            "{process}: {lines} series, scraped in {:?}, at worst {:?}",
            times[times.len() / 2],
            times[times.len() - 1]
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_metrics_the_port_answers_nothing_of_ours() {
    let mut rig = Rig::shared().await.with("METRICS", "false");
    let addresses = rig.start("compliance", &["stage", "compliance"]).await;
    let (samples, _) = scrape(rig.client.http(), addresses["admin_addr"].as_str().unwrap()).await;
    assert_eq!(samples, Vec::<Sample>::new());
}
