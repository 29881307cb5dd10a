//! Traces against a stand-in for a collector. One test of one process: who records is installed once.
#![allow(clippy::unwrap_used)]

use std::time::{Duration, Instant};

use clap::{Args, Command, FromArgMatches};
use collector::{Collector, Step};
use metrics_exporter_prometheus::PrometheusBuilder;
use runtime::trace::{self, Span, SpanKind, TraceContext, TraceSettings};

const CALLER: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const PATIENCE: Duration = Duration::from_secs(60);

fn settings(endpoint: &str, ratio: &str) -> TraceSettings {
    let command = TraceSettings::augment_args(Command::new("test"));
    let matches = command.try_get_matches_from(["test", "--otlp-endpoint", endpoint, "--trace-ratio", ratio]).unwrap();
    TraceSettings::from_arg_matches(&matches).unwrap()
}

async fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn caller() -> TraceContext {
    TraceContext::parse(CALLER, Some("vendor=1")).unwrap()
}

/// A request, what it has done elsewhere, and a batch because of it.
async fn work() {
    let parent = caller();
    let door = Span::enter(SpanKind::Server, || "POST /v1/things".into(), Some(&parent)).unwrap();
    door.set("http.response.status_code", 202);
    let handed_on = trace::within(Some(door.ambient()), async {
        tokio::task::yield_now().await;
        tokio::spawn(trace::inherit(async { TraceContext::current() })).await.unwrap()
    })
    .await
    .unwrap();
    let step = Span::of(SpanKind::Consumer, "stage work", &handed_on);
    step.fail("ledger");
    drop(Span::because_of(SpanKind::Producer, "stage hand on", &step.context().unwrap()));
}

fn steps_by_name(steps: &[Step], name: &str) -> Vec<Step> {
    steps.iter().filter(|step| step.name == name).cloned().collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn steps_reach_the_collector_and_nobody_waits_for_it() {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let metrics = PrometheusBuilder::new().install_recorder().unwrap();
    let counted = |outcome: &str| {
        let wanted = format!("mail_trace_spans_total{{outcome=\"{outcome}\"}} ");
        let text = metrics.render();
        text.lines().find_map(|line| line.strip_prefix(&wanted)?.parse::<u64>().ok()).unwrap_or(0)
    };

    // Without an endpoint what the caller sends is passed on as it is, and nothing else is traced.
    assert!(otlp::start(&settings("", "1"), "test").unwrap().is_none());
    assert!(Span::enter(SpanKind::Server, || unreachable!("nobody reads it"), None).is_none());
    let passed = Span::enter(SpanKind::Server, || unreachable!("nobody reads it"), Some(&caller())).unwrap();
    assert_eq!(passed.context().unwrap().headers().collect::<Vec<_>>(), caller().headers().collect::<Vec<_>>());
    drop(passed);

    let collector = Collector::start().await;
    let exporting = otlp::start(&settings(&collector.endpoint(), "0"), "audience+delivery").unwrap().unwrap();
    assert!(Span::enter(SpanKind::Server, || unreachable!("nobody reads it"), None).is_none(), "the ratio is 0");
    work().await;
    let steps = eventually("three steps", || Some(collector.steps()).filter(|steps| steps.len() >= 3)).await;

    let [door] = &steps_by_name(&steps, "POST /v1/things")[..] else { panic!("{steps:?}") };
    assert_eq!(
        (door.trace.as_str(), door.parent.as_str(), door.state.as_str()),
        (TRACE, "b7ad6b7169203331", "vendor=1")
    );
    assert_eq!((door.kind.as_str(), door.attributes["http.response.status_code"].as_str()), ("Server", "202"));
    assert_eq!(door.resource["service.name"], "postrider");
    assert_eq!(door.resource["postrider.processes"], "audience+delivery");
    assert!(door.resource.contains_key("service.instance.id") && door.resource.contains_key("service.version"));
    let [work_step] = &steps_by_name(&steps, "stage work")[..] else { panic!("{steps:?}") };
    assert_eq!((&work_step.trace, &work_step.parent), (&door.trace, &door.id), "handed on through a task of its own");
    assert!(work_step.failed && work_step.attributes["error.type"] == "ledger");
    let [batch] = &steps_by_name(&steps, "stage hand on")[..] else { panic!("{steps:?}") };
    assert_ne!(batch.trace, door.trace);
    assert_eq!((batch.parent.as_str(), &batch.links), ("", &vec![TRACE.to_owned()]));
    eventually("the count of what was taken", || (counted("exported") == 3).then_some(())).await;

    // The collector refuses: counted, and taken again afterwards.
    collector.refuse(true);
    work().await;
    eventually("the count of what was refused", || (counted("refused") == 3).then_some(())).await;
    collector.refuse(false);
    work().await;
    eventually("steps again", || (collector.steps().len() == 6).then_some(())).await;

    // The collector is gone, and more comes than is kept: nobody waits, and what is dropped is counted.
    drop(collector);
    let begun = Instant::now();
    let parent = caller();
    for _ in 0..30_000 {
        drop(Span::of(SpanKind::Internal, "flood", &parent));
    }
    assert!(begun.elapsed() < PATIENCE, "ending a step waits for nobody");
    eventually("the count of what was dropped", || (counted("dropped") > 0).then_some(())).await;
    // What waits is not worth more than a moment of the process's end.
    let begun = Instant::now();
    exporting.flush(Duration::from_millis(200)).await;
    assert!(begun.elapsed() < PATIENCE);
}
