//! One worker: pulls for itself, so a message is only ever fetched by somebody free to handle it.
//!
//! A worker asks for one message and waits; when it comes, it takes up to `coalesce - 1` more that are already there. Every
//! pull is a request of its own with an end, so nothing is ever stuck in a subscription that stopped hearing its server: a
//! pull that comes back empty or fails is simply followed by the next, on a consumer made afresh when it is gone.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_nats::jetstream::{self, AckKind, consumer::pull};
use futures::{StreamExt, future};
use runtime::{
    Bus, BusError, CommitNotifier, Counter, Gauge, Histogram,
    panics::{caught, caught_here},
    trace::{self, TraceContext},
};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::{
    DeadLetter, Decode, Hold, Incoming, Intake, MAX_ACK_PENDING, MAX_DELIVERIES, Stage, StageError,
    starts::{self, Key, Starts},
};

type Consumer = jetstream::consumer::Consumer<pull::Config>;

/// How long one pull waits at the server. Also the longest an idle worker takes to stop.
const PULL_EXPIRES: Duration = Duration::from_secs(2);
/// Past its end by this much, a pull is given up: the server forgot it or is gone.
const PULL_GRACE: Duration = Duration::from_secs(3);
/// When a message comes again that came to a stage which had just been paused.
const HELD_BACK: Duration = Duration::from_secs(1);
/// Pause after a failed pull.
const PULL_BACKOFF: Duration = Duration::from_millis(500);

/// The code of a message that was begun several times and never finished.
const NEVER_FINISHED: &str = "never_finished";

/// What the workers of a runner have in common. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Shared {
    pub(crate) bus: Bus,
    pub(crate) facts: CommitNotifier,
    pub(crate) hold: Hold,
    pub(crate) starts: Starts,
    pub(crate) ack_wait: Duration,
    pub(crate) shutdown: CancellationToken,
}

pub(crate) struct Worker<S> {
    stage: Arc<S>,
    intake: Arc<Intake>,
    shared: Shared,
}

/// A message in hand.
struct Held {
    message: jetstream::Message,
    deliveries: i64,
    key: Key,
    /// It was acknowledged or given back: it needs no sign of life any more.
    is_settled: AtomicBool,
}

/// A message that decoded.
struct Work<'a, I> {
    held: &'a Held,
    input: I,
}

impl<S: Stage> Worker<S> {
    pub(crate) fn new(stage: Arc<S>, intake: Arc<Intake>, shared: Shared) -> Self {
        Self { stage, intake, shared }
    }

    /// Works until shut down. Whatever goes wrong in one turn, a panic, too, the next one follows.
    pub(crate) async fn run(self) {
        let mut consumer = None;
        let shutdown = &self.shared.shutdown;
        while shutdown.run_until_cancelled(self.shared.hold.until_running(S::NAME)).await.is_some() {
            let turned = caught(S::NAME, "worker", self.turn(&mut consumer)).await;
            if let Ok(Err(error)) = &turned {
                tracing::warn!(stage = S::NAME, lane = %self.intake.lane, %error, "pull failed, trying again");
            }
            if !matches!(turned, Ok(Ok(()))) {
                consumer = None;
                tokio::select! {
                    () = shutdown.cancelled() => {}
                    () = tokio::time::sleep(PULL_BACKOFF) => {}
                }
            }
        }
    }

    /// One pull and what it brought.
    async fn turn(&self, consumer: &mut Option<Consumer>) -> Result<(), BusError> {
        let made = match consumer.take() {
            Some(made) => made,
            None => ensure_consumer(&self.shared, &self.intake).await?,
        };
        let messages = self.pull(&made).await?;
        *consumer = Some(made);
        match self.shared.hold.start(S::NAME, messages.len()) {
            Some(_in_hand) if !messages.is_empty() => self.process(messages).await,
            Some(_) => {}
            None => put_back(&messages).await,
        }
        Ok(())
    }

    async fn pull(&self, consumer: &Consumer) -> Result<Vec<jetstream::Message>, BusError> {
        let first = async {
            let mut batch =
                consumer.batch().max_messages(1).expires(PULL_EXPIRES).messages().await.map_err(BusError::refused)?;
            batch.next().await.transpose().map_err(BusError::refused)
        };
        let first = tokio::time::timeout(PULL_EXPIRES + PULL_GRACE, first).await.map_err(|_| BusError::Timeout)??;
        let Some(first) = first else { return Ok(Vec::new()) };
        // The server says with each message how many more there were: asking for none would cost every idle stage a round trip.
        let waiting = first.info().map_or(1, |info| info.pending);
        let mut messages = vec![first];
        if self.intake.coalesce > 1 && waiting > 0 {
            let more = async {
                let Ok(mut batch) = consumer.fetch().max_messages(self.intake.coalesce - 1).messages().await else {
                    return;
                };
                while let Some(Ok(message)) = batch.next().await {
                    messages.push(message);
                }
            };
            // What came is kept; what the server handed out and we did not see comes again after ACK_WAIT.
            let _ = tokio::time::timeout(PULL_GRACE, more).await;
        }
        Ok(messages)
    }

    async fn process(&self, messages: Vec<jetstream::Message>) {
        let labels = [("stage", S::NAME), ("lane", self.intake.lane.as_str())];
        Counter::StageReceivedTotal.add(messages.len() as u64, labels);
        Gauge::StageInFlight.add(messages.len() as f64, labels);
        let held: Vec<Held> = messages.into_iter().map(|message| self.held(message)).collect();
        // A panic in here is none of a handler's: what is not settled comes again.
        let _ = caught(S::NAME, "worker", async {
            tokio::select! {
                () = self.work_on(&held) => {}
                () = self.keep_alive(&held) => {}
            }
        })
        .await;
        Gauge::StageInFlight.add(-(held.len() as f64), labels);
    }

    fn held(&self, message: jetstream::Message) -> Held {
        let incoming = Incoming::of(&self.shared.bus, &message);
        let (deliveries, key) = (incoming.deliveries, Key::of(&incoming, &self.intake.durable));
        Held { message, deliveries, key, is_settled: AtomicBool::new(false) }
    }

    /// Gives JetStream a sign of life of everything in hand, for as long as it is polled.
    async fn keep_alive(&self, held: &[Held]) {
        loop {
            tokio::time::sleep(self.shared.ack_wait / 3).await;
            for held in held.iter().filter(|held| !held.is_settled.load(Ordering::Relaxed)) {
                // Failing to say so costs a redelivery, nothing else.
                let _ = held.message.ack_with(AckKind::Progress).await;
            }
        }
    }

    async fn work_on(&self, held: &[Held]) {
        let work = self.decode(held).await;
        let (together, suspects) = self.begin(work).await;
        if !together.is_empty() {
            let _beside_others = self.shared.starts.beside_others().await;
            self.handle(together).await;
        }
        for suspect in suspects {
            self.handle_alone(suspect).await;
        }
    }

    /// Decodes; what does not decode is poison and set aside at once.
    async fn decode<'a>(&self, held: &'a [Held]) -> Vec<Work<'a, S::Input>> {
        let mut work = Vec::with_capacity(held.len());
        for held in held {
            if held.deliveries > 1 {
                Counter::StageRedeliveredTotal.add(1, [("stage", S::NAME), ("lane", self.intake.lane.as_str())]);
            }
            let incoming = Incoming::of(&self.shared.bus, &held.message);
            let decoded = caught_here(S::NAME, "handler", || S::Input::decode(&incoming))
                .unwrap_or_else(|panicked| Err(panicked.into()));
            match decoded {
                Ok(input) => work.push(Work { held, input }),
                Err(error) => self.set_aside(held, &error).await,
            }
        }
        work
    }

    /// Records the start of what comes again, and tells it from what has been begun too often: that is to be handled alone.
    async fn begin<'a>(&self, work: Vec<Work<'a, S::Input>>) -> (Vec<Work<'a, S::Input>>, Vec<Work<'a, S::Input>>) {
        let (again, mut together): (Vec<_>, Vec<_>) = work.into_iter().partition(|work| work.held.deliveries > 1);
        let keys: Vec<Key> = again.iter().map(|work| work.held.key.clone()).collect();
        match self.shared.starts.begin(&keys, starts::TOGETHER).await {
            Ok(begun) => {
                let mut suspects = Vec::new();
                for (work, may_begin) in again.into_iter().zip(begun) {
                    if may_begin { together.push(work) } else { suspects.push(work) }
                }
                (together, suspects)
            }
            Err(error) => {
                for work in &again {
                    self.give_back_uncounted(work.held, &error).await;
                }
                (together, Vec::new())
            }
        }
    }

    /// Handles a message that was begun before and never finished, with no other in hand in this process: should it end the process,
    /// it ends nothing else. One that was handled alone before is set aside.
    async fn handle_alone(&self, work: Work<'_, S::Input>) {
        let held = work.held;
        let Some(_alone) = self.shared.starts.alone().await else {
            tracing::warn!(stage = S::NAME, lane = %self.intake.lane, "a message that is to be handled alone waits for others");
            self.give_back(held, backoff(held.deliveries)).await;
            return;
        };
        match self.shared.starts.begin(std::slice::from_ref(&held.key), starts::ALONE).await.as_deref() {
            Ok([true]) => {
                tracing::warn!(
                    stage = S::NAME, lane = %self.intake.lane, deliveries = held.deliveries,
                    "begun several times and never finished: handled alone"
                );
                self.handle(vec![work]).await;
            }
            Ok(_) => {
                let error = StageError::rejected(
                    NEVER_FINISHED,
                    "it was begun several times, the last time alone; each time its process ended",
                );
                trace::within(trace_of(&held.message), self.set_aside(held, &error)).await;
                if held.is_settled.load(Ordering::Relaxed) {
                    self.shared.starts.end(vec![held.key.clone()]).await;
                }
            }
            Err(error) => self.give_back_uncounted(held, error).await,
        }
    }

    async fn handle(&self, work: Vec<Work<'_, S::Input>>) {
        let (held, inputs): (Vec<&Held>, Vec<S::Input>) = work.into_iter().map(|work| (work.held, work.input)).unzip();
        match self.attempt(&held, &inputs).await {
            Ok(()) => {
                self.end(&held).await;
                future::join_all(held.iter().map(|held| self.acknowledge(held))).await;
            }
            Err(error) if error.is_transient() || inputs.len() == 1 => {
                self.end(&held).await;
                for held in held {
                    trace::within(trace_of(&held.message), self.settle_failure(held, &error)).await;
                }
            }
            // One of several is poison: find it by handing them in alone.
            Err(_) => {
                for (held, input) in held.iter().zip(&inputs) {
                    let attempted = self.attempt(std::slice::from_ref(held), std::slice::from_ref(input)).await;
                    self.end(std::slice::from_ref(held)).await;
                    match attempted {
                        Ok(()) => self.acknowledge(held).await,
                        Err(error) => {
                            trace::within(trace_of(&held.message), self.settle_failure(held, &error)).await;
                        }
                    }
                }
            }
        }
    }

    /// Handling these has ended, well or not.
    async fn end(&self, held: &[&Held]) {
        let again = held.iter().filter(|held| held.deliveries > 1);
        self.shared.starts.end(again.map(|held| held.key.clone()).collect()).await;
    }

    /// Handles and publishes. A panic is a rejection.
    async fn attempt(&self, held: &[&Held], inputs: &[S::Input]) -> Result<(), StageError> {
        let labels = [("stage", S::NAME), ("lane", self.intake.lane.as_str())];
        let started = Instant::now();
        let work = async {
            let outputs = self.stage.handle(inputs).await?;
            if self.stage.tells_facts(inputs) {
                self.shared.facts.ring();
            }
            let count = outputs.len() as u64;
            self.shared.bus.publish_all(outputs).await?;
            Counter::StagePublishedTotal.add(count, labels);
            Ok(())
        };
        let spans = self.spans(held, inputs);
        let within = trace::within(spans.as_ref().map(trace::Group::ambient), caught(S::NAME, "handler", work));
        let result: Result<(), StageError> = within.await.unwrap_or_else(|panicked| Err(panicked.into()));
        if let (Some(spans), Err(error)) = (&spans, &result) {
            spans.fail(error.code());
        }
        Histogram::StageProcessingSeconds.record(started.elapsed().as_secs_f64(), labels);
        result
    }

    /// The steps of these messages, where any of them is part of a trace.
    fn spans(&self, held: &[&Held], inputs: &[S::Input]) -> Option<trace::Group> {
        let traced = held.iter().zip(inputs).map(|(held, input)| trace::Incoming {
            parent: TraceContext::of_message(held.message.headers.as_ref()),
            about: input.about(),
            also_about: input.also_about(),
        });
        let spans = trace::Group::begin(S::SPAN, traced)?;
        spans.set("messaging.system", "nats");
        spans.set("messaging.operation.type", "process");
        spans.set("messaging.destination.name", self.intake.stream);
        spans.set("messaging.consumer.group.name", self.intake.durable.clone());
        spans.set("mail.lane", self.intake.lane.as_str());
        Some(spans)
    }

    async fn acknowledge(&self, held: &Held) {
        self.count("done");
        held.is_settled.store(true, Ordering::Relaxed);
        if let Err(error) = held.message.ack().await {
            tracing::debug!(stage = S::NAME, %error, "acknowledgement lost; the message comes again and is harmless");
        }
    }

    async fn settle_failure(&self, held: &Held, error: &StageError) {
        let deliveries = held.deliveries;
        if error.is_infrastructure() || (error.is_transient() && deliveries < MAX_DELIVERIES) {
            let delay = backoff(deliveries);
            tracing::warn!(
                stage = S::NAME, lane = %self.intake.lane, deliveries, delay_ms = delay.as_millis() as u64,
                code = error.code(), error = %error.chain(), "will be tried again"
            );
            self.give_back(held, delay).await;
        } else {
            self.set_aside(held, error).await;
        }
    }

    /// Gives back what cannot be begun, because its start cannot be recorded.
    async fn give_back_uncounted(&self, held: &Held, error: &sqlx::Error) {
        let delay = backoff(held.deliveries);
        tracing::warn!(
            stage = S::NAME, lane = %self.intake.lane, deliveries = held.deliveries, delay_ms = delay.as_millis() as u64,
            error = runtime::db::describe(error), "its start cannot be recorded; will be tried again"
        );
        self.give_back(held, delay).await;
    }

    async fn give_back(&self, held: &Held, delay: Duration) {
        self.count("retried");
        held.is_settled.store(true, Ordering::Relaxed);
        let _ = held.message.ack_with(AckKind::Nak(Some(delay))).await;
    }

    /// Publishes the copy with its reason, awaits the answer, then ends the original.
    async fn set_aside(&self, held: &Held, error: &StageError) {
        let (message, deliveries) = (&held.message, held.deliveries);
        let origin = Incoming::of(&self.shared.bus, message).origin();
        let letter = DeadLetter::of(S::NAME, &origin, message.payload.clone(), error);
        match self.shared.bus.publish_all(vec![letter.into_publication()]).await {
            Ok(()) => {
                self.count("dead_lettered");
                Counter::StageDeadLetteredTotal
                    .add(1, [("stage", S::NAME), ("lane", self.intake.lane.as_str()), ("reason", error.code())]);
                tracing::error!(stage = S::NAME, lane = %self.intake.lane, deliveries, code = error.code(), error = %error.chain(), "dead letter");
                held.is_settled.store(true, Ordering::Relaxed);
                let _ = message.ack_with(AckKind::Term).await;
            }
            Err(publish) => {
                tracing::error!(stage = S::NAME, error = %publish, "dead letter could not be stored; the message comes again");
            }
        }
    }

    fn count(&self, outcome: &'static str) {
        Counter::StageHandledTotal
            .add(1, [("stage", S::NAME), ("lane", self.intake.lane.as_str()), ("outcome", outcome)]);
    }
}

/// What is said of a message is said in its trace.
fn trace_of(message: &jetstream::Message) -> Option<trace::Ambient> {
    TraceContext::of_message(message.headers.as_ref()).map(|context| context.ambient())
}

/// Gives messages back that came while the stage was being paused.
async fn put_back(messages: &[jetstream::Message]) {
    for message in messages {
        // Failing to say so costs a later redelivery, nothing else.
        let _ = message.ack_with(AckKind::Nak(Some(HELD_BACK))).await;
    }
}

/// Makes the durable consumer, or finds it as it is to be.
async fn ensure_consumer(shared: &Shared, intake: &Intake) -> Result<Consumer, BusError> {
    let bus = &shared.bus;
    let config = pull::Config {
        durable_name: Some(intake.durable.clone()),
        filter_subjects: intake.subjects.iter().map(|subject| bus.prefixed(subject)).collect(),
        ack_policy: jetstream::consumer::AckPolicy::Explicit,
        ack_wait: shared.ack_wait,
        max_deliver: -1,
        max_ack_pending: MAX_ACK_PENDING,
        ..pull::Config::default()
    };
    let stream = bus.prefixed(intake.stream);
    match bus.jetstream().create_consumer_on_stream(config.clone(), &stream).await {
        Ok(consumer) => Ok(consumer),
        Err(error) => {
            // The store may have been emptied under us: the streams are ours to make again, the ledger refills them.
            bus.ensure_streams().await.map_err(|_| BusError::refused(error))?;
            bus.jetstream().create_consumer_on_stream(config, &stream).await.map_err(BusError::refused)
        }
    }
}

/// The pause before a message is handed out again: 1 s doubling to a minute. Longer waits are due rows in Postgres.
fn backoff(deliveries: i64) -> Duration {
    let exponent = u32::try_from(deliveries.clamp(1, 7) - 1).unwrap_or(0);
    Duration::from_secs(2_u64.pow(exponent).min(60))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backoff_doubles_to_a_minute() {
        let seconds: Vec<u64> = (1..=9).map(|deliveries| backoff(deliveries).as_secs()).collect();
        assert_eq!(seconds, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
    }
}
