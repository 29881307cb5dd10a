//! One worker: pulls for itself, so a message is only ever fetched by somebody free to handle it.
//!
//! A worker asks for one message and waits; when it comes, it takes up to `coalesce - 1` more that are already there. Every
//! pull is a request of its own with an end, so nothing is ever stuck in a subscription that stopped hearing its server: a
//! pull that comes back empty or fails is simply followed by the next, on a consumer made afresh when it is gone.

use std::{sync::Arc, time::Duration};

use async_nats::jetstream::{self, AckKind, consumer::pull};
use futures::{StreamExt, future};
use runtime::{
    Bus, BusError, Counter, FactBell, Gauge, Histogram,
    trace::{self, TraceContext},
};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::{ACK_WAIT, DeadLetter, Decode, Hold, Incoming, Intake, MAX_ACK_PENDING, MAX_DELIVERIES, Stage, StageError};

type Consumer = jetstream::consumer::Consumer<pull::Config>;

/// How long one pull waits at the server. Also the longest an idle worker takes to stop.
const PULL_EXPIRES: Duration = Duration::from_secs(2);
/// Past its end by this much, a pull is given up: the server forgot it or is gone.
const PULL_GRACE: Duration = Duration::from_secs(3);
/// When a message comes again that came to a stage which had just been paused.
const HELD_BACK: Duration = Duration::from_secs(1);
/// Pause after a failed pull.
const PULL_BACKOFF: Duration = Duration::from_millis(500);

pub(crate) struct Worker<S> {
    stage: Arc<S>,
    intake: Arc<Intake>,
    bus: Bus,
    facts: FactBell,
    hold: Hold,
    shutdown: CancellationToken,
}

/// A message that decoded, with what acknowledges it.
struct Work<I> {
    message: jetstream::Message,
    input: I,
    deliveries: i64,
}

impl<S: Stage> Worker<S> {
    pub(crate) fn new(
        stage: Arc<S>,
        intake: Arc<Intake>,
        bus: Bus,
        facts: FactBell,
        hold: Hold,
        shutdown: CancellationToken,
    ) -> Self {
        Self { stage, intake, bus, facts, hold, shutdown }
    }

    pub(crate) async fn run(self) {
        let mut consumer = None;
        while self.shutdown.run_until_cancelled(self.hold.until_running(S::NAME)).await.is_some() {
            match self.turn(&mut consumer).await {
                Ok(()) => {}
                Err(error) => {
                    tracing::warn!(stage = S::NAME, lane = %self.intake.lane, %error, "pull failed, trying again");
                    consumer = None;
                    tokio::select! {
                        () = self.shutdown.cancelled() => {}
                        () = tokio::time::sleep(PULL_BACKOFF) => {}
                    }
                }
            }
        }
    }

    /// One pull and what it brought.
    async fn turn(&self, consumer: &mut Option<Consumer>) -> Result<(), BusError> {
        let made = match consumer.take() {
            Some(made) => made,
            None => ensure_consumer(&self.bus, &self.intake).await?,
        };
        let messages = self.pull(&made).await?;
        *consumer = Some(made);
        match self.hold.start(S::NAME, messages.len()) {
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
        let count = messages.len();
        let work = self.decode(messages).await;
        if !work.is_empty() {
            self.handle(work).await;
        }
        Gauge::StageInFlight.add(-(count as f64), labels);
    }

    /// Decodes; what does not decode is poison and set aside at once.
    async fn decode(&self, messages: Vec<jetstream::Message>) -> Vec<Work<S::Input>> {
        let mut work = Vec::with_capacity(messages.len());
        for message in messages {
            let incoming = Incoming::of(&self.bus, &message);
            let deliveries = incoming.deliveries;
            if deliveries > 1 {
                Counter::StageRedeliveredTotal.add(1, [("stage", S::NAME), ("lane", self.intake.lane.as_str())]);
            }
            match S::Input::decode(&incoming) {
                Ok(input) => work.push(Work { message, input, deliveries }),
                Err(error) => self.set_aside(&message, deliveries, &error).await,
            }
        }
        work
    }

    async fn handle(&self, work: Vec<Work<S::Input>>) {
        let (metas, inputs): (Vec<_>, Vec<_>) =
            work.into_iter().map(|work| ((work.message, work.deliveries), work.input)).unzip();
        match self.attempt(&metas, &inputs).await {
            Ok(()) => {
                future::join_all(metas.iter().map(|(message, _)| self.acknowledge(message))).await;
            }
            Err(error) if error.is_transient() || inputs.len() == 1 => {
                for (message, deliveries) in &metas {
                    trace::within(trace_of(message), self.settle_failure(message, *deliveries, &error)).await;
                }
            }
            // One of several is poison: find it by handing them in alone.
            Err(_) => {
                for (meta, input) in metas.iter().zip(&inputs) {
                    match self.attempt(std::slice::from_ref(meta), std::slice::from_ref(input)).await {
                        Ok(()) => self.acknowledge(&meta.0).await,
                        Err(error) => {
                            trace::within(trace_of(&meta.0), self.settle_failure(&meta.0, meta.1, &error)).await;
                        }
                    }
                }
            }
        }
    }

    /// Handles and publishes, giving JetStream a sign of life meanwhile.
    async fn attempt(&self, metas: &[(jetstream::Message, i64)], inputs: &[S::Input]) -> Result<(), StageError> {
        let labels = [("stage", S::NAME), ("lane", self.intake.lane.as_str())];
        let started = Instant::now();
        let work = async {
            let outputs = self.stage.handle(inputs).await?;
            if self.stage.tells_facts(inputs) {
                self.facts.ring();
            }
            let count = outputs.len() as u64;
            self.bus.publish_all(outputs).await?;
            Counter::StagePublishedTotal.add(count, labels);
            Ok(())
        };
        let alive = async {
            loop {
                tokio::time::sleep(ACK_WAIT / 3).await;
                for (message, _) in metas {
                    // Failing to say so costs a redelivery, nothing else.
                    let _ = message.ack_with(AckKind::Progress).await;
                }
            }
        };
        let spans = self.spans(metas, inputs);
        let result: Result<(), StageError> = trace::within(spans.as_ref().map(trace::Group::ambient), async {
            tokio::select! {
                result = work => result,
                () = alive => Ok(()),
            }
        })
        .await;
        if let (Some(spans), Err(error)) = (&spans, &result) {
            spans.fail(error.code());
        }
        Histogram::StageProcessingSeconds.record(started.elapsed().as_secs_f64(), labels);
        result
    }

    /// The steps of these messages, where any of them is part of a trace.
    fn spans(&self, metas: &[(jetstream::Message, i64)], inputs: &[S::Input]) -> Option<trace::Group> {
        let traced = metas.iter().zip(inputs).map(|((message, _), input)| trace::Incoming {
            parent: TraceContext::of_message(message.headers.as_ref()),
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

    async fn acknowledge(&self, message: &jetstream::Message) {
        self.count("done");
        if let Err(error) = message.ack().await {
            tracing::debug!(stage = S::NAME, %error, "acknowledgement lost; the message comes again and is harmless");
        }
    }

    async fn settle_failure(&self, message: &jetstream::Message, deliveries: i64, error: &StageError) {
        if error.is_infrastructure() || (error.is_transient() && deliveries < MAX_DELIVERIES) {
            self.count("retried");
            let delay = backoff(deliveries);
            tracing::warn!(
                stage = S::NAME, lane = %self.intake.lane, deliveries, delay_ms = delay.as_millis() as u64,
                code = error.code(), error = %error.chain(), "will be tried again"
            );
            let _ = message.ack_with(AckKind::Nak(Some(delay))).await;
        } else {
            self.set_aside(message, deliveries, error).await;
        }
    }

    /// Publishes the copy with its reason, awaits the answer, then ends the original.
    async fn set_aside(&self, message: &jetstream::Message, deliveries: i64, error: &StageError) {
        let origin = Incoming::of(&self.bus, message).origin();
        let letter = DeadLetter::of(S::NAME, &origin, message.payload.clone(), error);
        match self.bus.publish_all(vec![letter.into_publication()]).await {
            Ok(()) => {
                self.count("dead_lettered");
                Counter::StageDeadLetteredTotal
                    .add(1, [("stage", S::NAME), ("lane", self.intake.lane.as_str()), ("reason", error.code())]);
                tracing::error!(stage = S::NAME, lane = %self.intake.lane, deliveries, code = error.code(), error = %error.chain(), "dead letter");
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
async fn ensure_consumer(bus: &Bus, intake: &Intake) -> Result<Consumer, BusError> {
    let config = pull::Config {
        durable_name: Some(intake.durable.clone()),
        filter_subjects: intake.subjects.iter().map(|subject| bus.prefixed(subject)).collect(),
        ack_policy: jetstream::consumer::AckPolicy::Explicit,
        ack_wait: ACK_WAIT,
        max_deliver: -1,
        max_ack_pending: MAX_ACK_PENDING,
        ..pull::Config::default()
    };
    let stream = bus.prefixed(intake.stream);
    match bus.jetstream().create_consumer_on_stream(config.clone(), &stream).await {
        Ok(consumer) => Ok(consumer),
        Err(error) => {
            // The store may have been emptied under us: the streams are ours to make again, the ledger refills them.
            bus.apply_streams().await.map_err(|_| BusError::refused(error))?;
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
