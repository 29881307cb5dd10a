//! One mail followed by its trace, through every process, into what it sets off.

use std::{collections::BTreeSet, time::Duration};

use async_nats::jetstream::stream::Stream;
use collector::{Collector, Step};
use pipeline::{Rig, eventually};
use serde_json::{Value, json};

const WITHIN: Duration = Duration::from_secs(60);
/// A caller's traces, each with the step of his that calls us.
const TRACES: [(&str, &str); 4] = [
    ("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"),
    ("1bf7651916cd43dd8448eb211c80319c", "b7ad6b7169203332"),
    ("2cf7651916cd43dd8448eb211c80319c", "b7ad6b7169203333"),
    ("3df7651916cd43dd8448eb211c80319c", "b7ad6b7169203334"),
];
/// The stages that handle mail.
const ROAD: [&str; 4] = ["audience resolve", "compliance decide", "rendering render", "delivery transact"];
/// The road of prompt mail to a recipient who may be mailed.
const PROMPT_ROAD: [&str; 2] = [ROAD[2], ROAD[3]];

fn parent((trace, step): (&str, &str)) -> String {
    format!("00-{trace}-{step}-01")
}

async fn rig(collector: &Collector) -> Rig {
    // Nothing is traced but what somebody asks for.
    Rig::shared()
        .await
        .with("OTLP_ENDPOINT", &collector.endpoint())
        .with("TRACE_RATIO", "0")
        .with("WEBHOOK_ALLOW_NETWORKS", "127.0.0.0/8")
}

async fn template(rig: &Rig) -> Value {
    let body = json!({"name": "T", "template_type": "transactional", "subject": "T", "body_html": "<p>T</p>"});
    rig.client.post("/v1/templates", body).await.expect(201)["template_id"].clone()
}

/// Waits until a trace has a step of each of these names.
async fn trace_with(collector: &Collector, trace: &str, names: &[&str]) -> Vec<Step> {
    eventually(&format!("{names:?} in trace {trace}"), WITHIN, || async {
        let steps = collector.trace(trace);
        names.iter().all(|name| steps.iter().any(|step| step.name == *name)).then_some(steps)
    })
    .await
}

fn named<'a>(steps: &'a [Step], name: &str) -> &'a Step {
    steps.iter().find(|step| step.name == name).unwrap_or_else(|| panic!("no {name} in {steps:#?}"))
}

/// Each is part of the one before it, began after it did, and says who did it.
fn assert_chain(steps: &[Step], names: &[&str]) {
    for pair in names.windows(2) {
        let (above, below) = (named(steps, pair[0]), named(steps, pair[1]));
        assert_eq!(below.parent, above.id, "{} follows from {}", below.name, above.name);
        assert!(below.times.0 >= above.times.0 && below.times.1 >= below.times.0, "{above:?} {below:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transactional_mail_is_one_trace_from_the_request_to_the_webhook() {
    let collector = Collector::start().await;
    let mut rig = rig(&collector).await;
    rig.start_separate().await;
    let hook = json!({"url": collector.hooks(), "events": ["email.sent"]});
    rig.client.post("/v1/webhooks", hook).await.expect(201);
    let template = template(&rig).await;
    let body = json!({"template_id": template, "email": "ann@example.com"});
    let bad = rig.client.saying("traceparent", "00-nonsense-01").post("/v1/transactional", body.clone()).await;
    bad.expect(202);
    rig.sink.wait(1, 60_000).await;
    let traced = rig.client.saying("traceparent", &parent(TRACES[0]));
    let send = traced.post("/v1/transactional", body).await.expect(202)["send_id"].as_str().unwrap().to_owned();

    let road = [&["POST /v1/transactional"], &PROMPT_ROAD[..]].concat();
    let all = [&road[..], &["webhooks post"]].concat();
    let steps = trace_with(&collector, TRACES[0].0, &all).await;
    assert_chain(&steps, &road);
    let door = named(&steps, "POST /v1/transactional");
    assert_eq!((door.parent.as_str(), door.kind.as_str()), (TRACES[0].1, "Server"));
    assert_eq!(door.attributes["http.response.status_code"], "202");
    for (name, process) in PROMPT_ROAD.iter().zip(["rendering", "delivery"]) {
        let step = named(&steps, name);
        assert_eq!((step.resource["postrider.processes"].as_str(), step.kind.as_str()), (process, "Consumer"));
        assert_eq!((step.attributes["messaging.system"].as_str(), step.failed), ("nats", false), "{step:?}");
        let id = step.attributes.get("mail.batch_id").or(step.attributes.get("mail.request_id"));
        assert_eq!(id, Some(&send), "one id leads all the way: {step:?}");
    }
    let posted = named(&steps, "webhooks post");
    assert_eq!(posted.attributes["http.response.status_code"], "204");
    let called = format!("00-{}-{}-01", TRACES[0].0, posted.id);
    assert!(collector.called().iter().any(|headers| headers.get("traceparent").is_some_and(|value| *value == *called)));

    // The bad header was nobody's trace, and of people a trace says nothing.
    let steps = collector.steps();
    assert!(steps.iter().all(|step| step.trace == TRACES[0].0), "{steps:#?}");
    let said = format!("{steps:?}");
    assert!(!said.contains('@') && !said.contains("example.com"), "{said}");
    for name in ["ingress", "delivery"] {
        let log = rig.processes[name].log();
        let ids = format!(r#""trace_id":"{}""#, TRACES[0].0);
        assert!(name != "ingress" || log.contains(&ids), "{name} logs of the trace:\n{log}");
        assert!(log.lines().all(|line| serde_json::from_str::<Value>(line).is_ok()), "{name} logs JSON");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_batch_of_a_campaign_is_a_trace_that_names_the_launch() {
    let collector = Collector::start().await;
    let mut rig = rig(&collector).await;
    rig.start_all().await;
    let (list, _) = rig.list_of(1_200, "traced", "example.com").await;
    let campaign = rig.campaign(list, "Hello", "<p>Hello {{ first_name }}</p>").await;
    let path = format!("/v1/campaigns/{campaign}/launch");
    rig.client.saying("traceparent", &parent(TRACES[1])).post(&path, json!({})).await.expect(202);
    rig.status(campaign, "sent", WITHIN).await;

    let launch = ["POST /v1/campaigns/{id}/launch", "audience resolve"];
    let steps = trace_with(&collector, TRACES[1].0, &launch).await;
    assert_chain(&steps, &launch);
    assert!(!steps.iter().any(|step| step.name == ROAD[3]), "the batches' steps are theirs");
    let batches = eventually("three batches' traces", WITHIN, || async {
        let steps = collector.steps();
        let sent: BTreeSet<String> =
            steps.iter().filter(|step| step.name == ROAD[3]).map(|step| step.trace.clone()).collect();
        (sent.len() == 3).then_some(sent)
    })
    .await;
    let mut ids = BTreeSet::new();
    for trace in batches {
        let steps = trace_with(&collector, &trace, &ROAD[1..]).await;
        assert_chain(&steps, &["audience dispatch", ROAD[1], ROAD[2], ROAD[3]]);
        let first = named(&steps, "audience dispatch");
        assert_eq!((first.parent.as_str(), &first.links), ("", &vec![TRACES[1].0.to_owned()]), "because of the launch");
        assert_eq!(named(&steps, ROAD[2]).attributes["mail.campaign_id"], campaign.to_string());
        ids.insert(first.attributes["mail.batch_id"].clone());
    }
    assert_eq!(ids.len(), 3, "each batch its own");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_sweep_announces_again_stays_in_its_trace() {
    let collector = Collector::start().await;
    let mut rig = rig(&collector).await;
    rig.start("ingress", &["ingress"]).await;
    let body = json!({"template_id": template(&rig).await, "email": "ann@example.com"});
    // Of a stream that is not there yet there is nothing to lose.
    cleared(&rig).await;
    rig.client.saying("traceparent", &parent(TRACES[2])).post("/v1/transactional", body).await.expect(202);
    // The notification is lost, and the ledger announces at once.
    lose_bell(&rig).await;
    sqlx::query("update batches set announce_after = now() where state = 'announced'")
        .execute(&rig.pool)
        .await
        .unwrap();
    rig.start("stages", &["stage", "audience", "compliance", "rendering", "delivery"]).await;
    let road = [&["POST /v1/transactional", "audience announce"], &ROAD[1..]].concat();
    let steps = trace_with(&collector, TRACES[2].0, &road).await;
    assert_chain(&steps, &road);
    assert_eq!(rig.sink.wait(1, 60_000).await, 1);
}

async fn lose_bell(rig: &Rig) {
    let cleared = cleared(rig).await;
    eventually("the announcement", WITHIN, || async {
        (cleared.get_info().await.ok()?.state.messages == 1).then_some(())
    })
    .await;
    cleared.purge().await.unwrap();
}

/// The stream of announcements. A process makes the streams while it takes its first requests.
async fn cleared(rig: &Rig) -> Stream {
    let jetstream = jetstream(rig).await;
    let name = format!("{}{}", rig.env["POSTRIDER_STREAM_PREFIX"], schemas::subjects::stream::CLEARED);
    eventually("the stream", WITHIN, || async { jetstream.get_stream(&name).await.ok() }).await
}

async fn jetstream(rig: &Rig) -> async_nats::jetstream::Context {
    async_nats::jetstream::new(async_nats::connect(&rig.env["POSTRIDER_NATS_URL"]).await.unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_and_requests_over_the_bus_are_part_of_their_messages_trace() {
    let collector = Collector::start().await;
    let mut rig = rig(&collector).await;
    rig.start_all().await;
    let jetstream = jetstream(&rig).await;
    let subject = |kind: &str| format!("{}mail.v1.{kind}", rig.env["POSTRIDER_STREAM_PREFIX"]);
    let mut headers = async_nats::HeaderMap::new();
    headers.insert("traceparent", parent(TRACES[3]).as_str());
    let body = |email: &str| json!({"product_tenant_id": rig.client.tenant(), "email": email}).to_string();

    let call = subject("api.demo.production.createContact");
    let nats = jetstream.client();
    let answer = eventually("the call to be answered", WITHIN, || {
        let asked = nats.request_with_headers(call.clone(), headers.clone(), body("ann@example.com").into());
        async { asked.await.ok() }
    })
    .await;
    assert_eq!(answer.headers.unwrap().get("Mail-Status").unwrap().as_str(), "201");
    let steps = trace_with(&collector, TRACES[3].0, &["POST /v1/contacts"]).await;
    assert_eq!(named(&steps, "POST /v1/contacts").parent, TRACES[3].1);

    let asked = subject("request.demo.production.contact");
    jetstream.publish_with_headers(asked, headers, body("bob@example.com").into()).await.unwrap().await.unwrap();
    let road = ["ingress take in", "POST /v1/contacts"];
    let steps = eventually("the direct request's steps", WITHIN, || async {
        let mut steps = collector.trace(TRACES[3].0);
        let taken = steps.iter().find(|step| step.name == road[0])?.id.clone();
        steps.retain(|step| step.id == taken || step.parent == taken);
        (steps.len() == 2).then_some(steps)
    })
    .await;
    assert_chain(&steps, &road);
    assert_eq!(named(&steps, road[0]).parent, TRACES[3].1);
}
