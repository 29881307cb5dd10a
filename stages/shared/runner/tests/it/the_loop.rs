//! The loop against a real JetStream.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_nats::jetstream::{consumer::pull, stream::Stream};
use async_trait::async_trait;
use bytes::Bytes;
use runner::{MAX_ACK_PENDING, Runner, Stage, StageError, Sweep, SweepSchedule};
use runtime::{Bus, CommitNotifier, Publication};
use schemas::{
    Lane, Resolved,
    subjects::{self, header, stream},
};
use secrecy::SecretString;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::{PATIENCE, eventually, input, intake, publish};

/// What the toy stage does with an announcement of this number.
const GOOD: i32 = 1;
const POISON: i32 = 2;
const FAILS_ONCE: i32 = 3;
const SLOW: i32 = 4;
const PANICS: i32 = 5;
const WAITS: i32 = 6;
const BUSY: i32 = 7;
const BUSY_THEN_FAILS: i32 = 8;
/// More than the attempts after which a message that fails is set aside.
const BUSY_TIMES: usize = 20;

#[derive(Default)]
struct Toy {
    seen: Mutex<Vec<Vec<Uuid>>>,
    failures: AtomicUsize,
    finished: AtomicUsize,
    released: tokio::sync::Notify,
}

#[async_trait]
impl Stage for Toy {
    const NAME: &'static str = "toy";
    type Input = Resolved;

    async fn handle(&self, inputs: &[Resolved]) -> Result<Vec<Publication>, StageError> {
        self.seen.lock().unwrap().push(inputs.iter().map(|input| input.batch_id).collect());
        if inputs.iter().any(|input| input.announcement == POISON) {
            return Err(StageError::rejected("poison", "it says so itself"));
        }
        assert!(inputs.iter().all(|input| input.announcement != PANICS), "a handler that panics");
        if inputs.iter().any(|input| input.announcement == FAILS_ONCE)
            && self.failures.fetch_add(1, Ordering::SeqCst) == 0
        {
            return Err(StageError::Deferred { reason: "not_yet" });
        }
        if inputs.iter().any(|input| input.announcement == BUSY)
            && self.failures.fetch_add(1, Ordering::SeqCst) < BUSY_TIMES
        {
            return Err(StageError::Busy { reason: "busy", wait: Duration::from_millis(5) });
        }
        if inputs.iter().any(|input| input.announcement == BUSY_THEN_FAILS) {
            match self.failures.fetch_add(1, Ordering::SeqCst) {
                before if before < BUSY_TIMES => {
                    return Err(StageError::Busy { reason: "busy", wait: Duration::from_millis(5) });
                }
                BUSY_TIMES => return Err(StageError::Deferred { reason: "not_yet" }),
                _ => {}
            }
        }
        if inputs.iter().any(|input| input.announcement == SLOW) {
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        if inputs.iter().any(|input| input.announcement == WAITS) {
            self.released.notified().await;
        }
        self.finished.fetch_add(inputs.len(), Ordering::SeqCst);
        let output = |input: &Resolved| {
            Publication::json(subjects::cleared(input.lane), format!("out-{}", input.message_id()), input)
        };
        Ok(inputs.iter().map(output).collect::<Result<_, _>>()?)
    }
}

struct Rig {
    bus: Bus,
    toy: Arc<Toy>,
    runner: Runner,
    shutdown: CancellationToken,
}

impl Rig {
    async fn new() -> Self {
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let servers = devtools::servers::shared().await.unwrap();
        let prefix = format!("toy{:08x}_", rand_u32());
        let url = SecretString::from(servers.nats_url().to_owned());
        let bus = Bus::connect(&url, None, &prefix, 1, "test").await.unwrap();
        bus.apply_streams().await.unwrap();
        let shutdown = CancellationToken::new();
        Self {
            runner: Runner::new(bus.clone(), CommitNotifier::default(), shutdown.clone()),
            bus,
            toy: Arc::default(),
            shutdown,
        }
    }

    fn start(&self, coalesce: usize) {
        self.start_workers(1, coalesce);
    }

    fn start_workers(&self, workers: usize, coalesce: usize) {
        self.runner.start(self.toy.clone(), vec![intake("toy-priority", workers, coalesce)]);
    }

    async fn publish(&self, announcement: i32) -> Uuid {
        publish(&self.bus, announcement).await
    }

    async fn stream(&self, name: &str) -> Stream {
        self.bus.jetstream().get_stream(self.bus.prefixed(name)).await.unwrap()
    }

    /// Waits until so many of its pulls are open at the server.
    async fn pulls_are(&self, open: usize) {
        let deadline = tokio::time::Instant::now() + Duration::from_secs(10);
        loop {
            let found = self.stream(stream::RESOLVED).await.consumer_info("toy-priority").await;
            if found.as_ref().is_ok_and(|found| found.num_waiting == open) {
                return;
            }
            assert!(tokio::time::Instant::now() < deadline, "{open} open pulls: {found:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn messages(&self, name: &str) -> u64 {
        self.stream(name).await.get_info().await.unwrap().state.messages
    }

    async fn holds(&self, name: &str, messages: u64) {
        let deadline = tokio::time::Instant::now() + PATIENCE;
        loop {
            let now = self.messages(name).await;
            if now == messages {
                return;
            }
            assert!(tokio::time::Instant::now() < deadline, "{name} holds {now}, not {messages}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

fn rand_u32() -> u32 {
    // The random tail of a v7 id; spares the test a dependency.
    schemas::new_id().as_u128() as u32
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handled_message_leaves_its_stream_and_its_output_is_stored() {
    let rig = Rig::new().await;
    rig.publish(GOOD).await;
    rig.start(1);
    rig.holds(stream::CLEARED, 1).await;
    rig.holds(stream::RESOLVED, 0).await;
    rig.holds(stream::DEAD, 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_that_wait_together_are_handled_together() {
    let rig = Rig::new().await;
    for _ in 0..50 {
        rig.publish(GOOD).await;
    }
    rig.start(64);
    rig.holds(stream::CLEARED, 50).await;
    rig.holds(stream::RESOLVED, 0).await;
    assert!(rig.toy.seen.lock().unwrap().len() < 10, "one by one costs fifty turns");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_poison_message_among_many_costs_itself_only() {
    let rig = Rig::new().await;
    for n in 0..10 {
        rig.publish(if n == 4 { POISON } else { GOOD }).await;
    }
    rig.start(64);
    rig.holds(stream::DEAD, 1).await;
    rig.holds(stream::RESOLVED, 0).await;
    rig.holds(stream::CLEARED, 9).await;
    let letter = rig.stream(stream::DEAD).await.get_raw_message(1).await.unwrap();
    let says = |name: &str| letter.headers.get(name).map(|value| value.as_str().to_owned()).unwrap();
    assert_eq!(says(header::DEAD_REASON), "poison");
    assert_eq!(says(header::DEAD_SUBJECT), "mail.v1.resolved.priority");
    assert!(says(header::DEAD_DETAIL).contains("it says so itself"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_does_not_decode_is_set_aside_at_once() {
    let rig = Rig::new().await;
    let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let publication = Publication {
        subject: subjects::resolved(Lane::Priority),
        message_id: "broken".to_owned(),
        schema: "mail.v1.resolved",
        body: Bytes::from_static(b"{\"tenant_id\": 7}"),
        headers: vec![(header::TRACEPARENT, trace.to_owned())],
    };
    rig.bus.publish_all(vec![publication]).await.unwrap();
    rig.start(1);
    rig.holds(stream::DEAD, 1).await;
    rig.holds(stream::RESOLVED, 0).await;
    assert!(rig.toy.seen.lock().unwrap().is_empty());
    let letter = rig.stream(stream::DEAD).await.get_raw_message(1).await.unwrap();
    assert_eq!(letter.headers.get(header::TRACEPARENT).unwrap().as_str(), trace, "it stays part of its trace");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transient_error_brings_the_message_again() {
    let rig = Rig::new().await;
    let batch = rig.publish(FAILS_ONCE).await;
    rig.start(1);
    rig.holds(stream::CLEARED, 1).await;
    rig.holds(stream::RESOLVED, 0).await;
    assert_eq!(*rig.toy.seen.lock().unwrap(), vec![vec![batch], vec![batch]]);
    assert_eq!(rig.messages(stream::DEAD).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_waits_for_capacity_is_never_set_aside() {
    let rig = Rig::new().await;
    rig.publish(BUSY).await;
    rig.start(1);
    rig.holds(stream::CLEARED, 1).await;
    rig.holds(stream::RESOLVED, 0).await;
    assert_eq!(rig.toy.seen.lock().unwrap().len(), BUSY_TIMES + 1);
    assert_eq!(rig.messages(stream::DEAD).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn deliveries_that_were_not_a_messages_fault_use_up_none_of_its_attempts() {
    let rig = Rig::new().await;
    rig.publish(BUSY_THEN_FAILS).await;
    rig.start(1);
    rig.holds(stream::RESOLVED, 0).await;
    assert_eq!(rig.toy.seen.lock().unwrap().len(), BUSY_TIMES + 2);
    assert_eq!((rig.messages(stream::CLEARED).await, rig.messages(stream::DEAD).await), (1, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeat_within_the_duplicate_window_publishes_nothing_new() {
    let rig = Rig::new().await;
    let input = input(GOOD);
    for id in ["first", "second"] {
        let publication = Publication::json(subjects::resolved(Lane::Priority), id.to_owned(), &input).unwrap();
        rig.bus.publish_all(vec![publication]).await.unwrap();
    }
    rig.start(1);
    rig.holds(stream::RESOLVED, 0).await;
    assert_eq!(rig.toy.finished.load(Ordering::SeqCst), 2, "handled twice");
    assert_eq!(rig.messages(stream::CLEARED).await, 1, "output ids derive from the input");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_deleted_under_a_worker_is_made_again_and_work_goes_on() {
    let rig = Rig::new().await;
    rig.start(1);
    rig.publish(GOOD).await;
    rig.holds(stream::CLEARED, 1).await;
    rig.bus.jetstream().delete_stream(rig.bus.prefixed(stream::RESOLVED)).await.unwrap();
    eventually("the worker makes the stream again", async || {
        rig.bus.jetstream().get_stream(rig.bus.prefixed(stream::RESOLVED)).await.is_ok()
    })
    .await;
    rig.publish(GOOD).await;
    rig.holds(stream::CLEARED, 2).await;
}

/// Makes the consumer for these lanes, as a process of another version does, and connects again.
async fn made_by_another(rig: &Rig, lanes: &[Lane]) {
    let config = pull::Config {
        durable_name: Some("toy-priority".to_owned()),
        filter_subjects: lanes.iter().map(|lane| rig.bus.prefixed(&subjects::resolved(*lane))).collect(),
        ack_wait: Duration::from_secs(30),
        max_deliver: -1,
        max_ack_pending: MAX_ACK_PENDING,
        ..pull::Config::default()
    };
    rig.stream(stream::RESOLVED).await.create_consumer(config).await.unwrap();
    let mut connects = rig.bus.connects();
    rig.bus.client().force_reconnect().await.unwrap();
    connects.changed().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_connects_again_adds_the_subjects_that_an_older_one_left_out() {
    let rig = Rig::new().await;
    rig.start(1);
    rig.publish(GOOD).await;
    rig.holds(stream::CLEARED, 1).await;
    made_by_another(&rig, &[Lane::Bulk]).await;
    rig.publish(GOOD).await;
    rig.holds(stream::CLEARED, 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_connects_again_leaves_the_subjects_of_a_newer_one() {
    let rig = Rig::new().await;
    rig.start(1);
    rig.publish(GOOD).await;
    rig.holds(stream::CLEARED, 1).await;
    made_by_another(&rig, Lane::ALL).await;
    for handled in [2, 3] {
        rig.publish(GOOD).await;
        rig.holds(stream::CLEARED, handled).await;
    }
    let found = rig.stream(stream::RESOLVED).await.consumer_info("toy-priority").await.unwrap();
    assert_eq!(found.config.filter_subjects.len(), 2, "{:?}", found.config);
}

#[tokio::test(flavor = "multi_thread")]
async fn draining_finishes_and_acknowledges_what_is_in_hand() {
    let rig = Rig::new().await;
    rig.publish(SLOW).await;
    rig.start(1);
    eventually("the work is taken", async || !rig.toy.seen.lock().unwrap().is_empty()).await;
    rig.shutdown.cancel();
    assert!(rig.runner.drained(PATIENCE).await);
    assert_eq!(rig.toy.finished.load(Ordering::SeqCst), 1);
    assert_eq!((rig.messages(stream::RESOLVED).await, rig.messages(stream::CLEARED).await), (0, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_that_panics_sets_its_message_aside_and_the_worker_goes_on() {
    let rig = Rig::new().await;
    rig.publish(PANICS).await;
    rig.start(1);
    rig.holds(stream::DEAD, 1).await;
    rig.publish(GOOD).await;
    rig.holds(stream::CLEARED, 1).await;
    rig.holds(stream::RESOLVED, 0).await;
    let letter = rig.stream(stream::DEAD).await.get_raw_message(1).await.unwrap();
    assert_eq!(letter.headers.get(header::DEAD_REASON).unwrap().as_str(), "panicked");
}

#[tokio::test(flavor = "multi_thread")]
async fn of_a_group_that_panics_each_is_handled_alone_and_one_is_set_aside() {
    let rig = Rig::new().await;
    for n in 0..10 {
        rig.publish(if n == 4 { PANICS } else { GOOD }).await;
    }
    rig.start(64);
    rig.holds(stream::DEAD, 1).await;
    rig.holds(stream::RESOLVED, 0).await;
    rig.holds(stream::CLEARED, 9).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_finishes_its_work_takes_no_further_message() {
    let rig = Rig::new().await;
    rig.start_workers(2, 1);
    rig.publish(WAITS).await;
    rig.pulls_are(1).await;
    while rig.toy.seen.lock().unwrap().is_empty() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    rig.pulls_are(1).await;
    rig.shutdown.cancel();
    rig.pulls_are(0).await;
    rig.toy.released.notify_one();
    assert!(rig.runner.drained(PATIENCE).await);
    assert_eq!(rig.toy.finished.load(Ordering::SeqCst), 1);
}

/// A sweep that panics at first.
#[derive(Default)]
struct Trips(AtomicUsize);

#[async_trait]
impl Sweep for Trips {
    fn schedule(&self) -> SweepSchedule {
        SweepSchedule::every("trips", Duration::from_millis(10))
    }

    async fn sweep(&self) -> Result<u64, StageError> {
        assert!(self.0.fetch_add(1, Ordering::SeqCst) > 0, "the first run panics");
        Ok(0)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sweep_and_a_task_that_panic_go_on() {
    let rig = Rig::new().await;
    let sweep = Arc::new(Trips::default());
    rig.runner.start_sweep("compliance", sweep.clone());
    let starts = Arc::new(AtomicUsize::new(0));
    let counted = starts.clone();
    rig.runner.supervise("compliance", move || {
        let starts = counted.clone();
        async move { assert!(starts.fetch_add(1, Ordering::SeqCst) > 0, "the first start panics") }
    });
    eventually("they go on", async || sweep.0.load(Ordering::SeqCst) >= 3 && starts.load(Ordering::SeqCst) >= 2).await;
    rig.shutdown.cancel();
    assert!(rig.runner.drained(PATIENCE).await);
}
