//! One worker: pulls for itself, so a message is fetched only by a worker that is free to handle it. The free workers of an intake pull
//! in turn, so that those which wait cost nothing.
//!
//! A worker asks for one message and waits; when it comes, it takes up to `coalesce - 1` more that are already there. Every
//! pull is a request of its own with an end, so a subscription that lost its server cannot block: an empty pull is followed by the next one,
//! a failed one by a new consumer and subscription.

mod pull;

use std::{
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_nats::jetstream::{self, AckKind};
use futures::{StreamExt, future};
use runtime::{
    Backoff, BusError, Counter, Gauge, Histogram,
    panics::{caught, caught_here},
    trace::{self, TraceContext},
};
use tokio::{sync::MutexGuard, time::Instant};

pub(crate) use self::pull::PullTurn;
use self::pull::{IntakeConsumer, MadeConsumer, PULL_EXPIRES, PULL_GRACE};
use crate::{
    DeadLetter, Incoming, Intake, MAX_ATTEMPTS, Runner, Stage, StageError, StageInput, in_time,
    starts::{self, StartKey},
};

/// Delay until a message is delivered again that reached a stage just after it was paused.
const PAUSED_DELAY: Duration = Duration::from_secs(1);
/// The pauses before a message is delivered again.
const BACKOFF: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));
/// Pause after a failed pull.
const PULL_BACKOFF: Duration = Duration::from_millis(500);

/// The code of a message whose handling started several times and never finished.
const NEVER_FINISHED: &str = "never_finished";

pub(crate) struct Worker<S> {
    stage: Arc<S>,
    intake: Arc<Intake>,
    turn: PullTurn,
    runner: Runner,
}

/// A message that this worker has pulled and not yet answered.
struct PulledMessage {
    message: jetstream::Message,
    deliveries: i64,
    /// Which attempt at it this is.
    attempts: i64,
    key: StartKey,
    /// It is acknowledged or given back, and needs no more signs of life.
    is_answered: AtomicBool,
}

/// A decoded message.
struct Work<'a, I> {
    pulled: &'a PulledMessage,
    input: I,
}

impl<S: Stage> Worker<S> {
    pub(crate) fn new(stage: Arc<S>, intake: Arc<Intake>, turn: PullTurn, runner: Runner) -> Self {
        Self { stage, intake, turn, runner }
    }

    /// Works until shut down. After an error or a panic, the next pull follows.
    pub(crate) async fn run(self) {
        let shutdown = &self.runner.shutdown;
        while let Some(mut turn) = shutdown.run_until_cancelled(self.turn()).await {
            let pulled = caught(S::NAME, "worker", self.pull_once(&mut turn)).await;
            if let Ok(Ok(messages)) = pulled {
                drop(turn);
                // A panic here is not a handler's: unanswered messages are delivered again.
                let _ = caught(S::NAME, "worker", self.start(messages)).await;
                continue;
            }
            if let Ok(Err(error)) = &pulled {
                tracing::warn!(stage = S::NAME, lane = %self.intake.lane, %error, "pull failed, trying again");
            }
            shutdown.run_until_cancelled(tokio::time::sleep(PULL_BACKOFF)).await;
        }
    }

    /// Waits until the other workers have pulled, and the stage is not paused.
    async fn turn(&self) -> MutexGuard<'_, IntakeConsumer> {
        let turn = self.turn.lock().await;
        self.runner.pause_gate.until_running(S::NAME).await;
        turn
    }

    /// One pull; after an error or on a new connection, the next one begins with a new consumer.
    async fn pull_once(&self, turn: &mut IntakeConsumer) -> Result<Vec<jetstream::Message>, BusError> {
        let mut made = match turn.made.take() {
            Some(made) => made,
            None => Box::pin(MadeConsumer::make(&self.runner, &self.intake, turn.was_made)).await?,
        };
        turn.was_made = true;
        let mut connects = made.connects.clone();
        let messages = tokio::select! {
            messages = self.pull(&mut made) => messages?,
            _ = connects.changed() => return Ok(Vec::new()),
        };
        // While others of this process finish, a pull that is still open would take the next message, and nobody would handle it.
        if !self.runner.shutdown.is_cancelled() {
            turn.made = Some(made);
        }
        Ok(messages)
    }

    /// Processes pulled messages, unless the stage was paused meanwhile.
    async fn start(&self, messages: Vec<jetstream::Message>) {
        match self.runner.pause_gate.start(S::NAME, messages.len()) {
            Some(_in_hand) if !messages.is_empty() => self.process(messages).await,
            Some(_) => {}
            None => put_back(&messages).await,
        }
    }

    async fn pull(&self, made: &mut MadeConsumer) -> Result<Vec<jetstream::Message>, BusError> {
        let first = tokio::time::timeout(PULL_EXPIRES + PULL_GRACE, made.pull_one(&self.runner.bus));
        let first = tokio::select! {
            biased;
            first = first => first.map_err(|_| BusError::Timeout)??,
            () = self.runner.shutdown.cancelled() => None,
        };
        let Some(first) = first else { return Ok(Vec::new()) };
        // The server says with each message how many more there were: asking for none would cost every idle stage a round trip.
        let waiting = first.info().map_or(1, |info| info.pending);
        let mut messages = vec![first];
        if self.intake.coalesce > 1 && waiting > 0 {
            let more = async {
                let Ok(mut batch) = made.consumer.fetch().max_messages(self.intake.coalesce - 1).messages().await
                else {
                    return;
                };
                while let Some(Ok(message)) = batch.next().await {
                    messages.push(message);
                }
            };
            // Messages that arrived are kept; those the server sent but we did not receive are delivered again after ACK_WAIT.
            let _ = tokio::time::timeout(PULL_GRACE, more).await;
        }
        Ok(messages)
    }

    async fn process(&self, messages: Vec<jetstream::Message>) {
        let labels = [("stage", S::NAME), ("lane", self.intake.lane.as_str())];
        Counter::StageReceivedTotal.add(messages.len() as u64, labels);
        Gauge::StageInFlight.add(messages.len() as f64, labels);
        let pulled: Vec<PulledMessage> = messages.into_iter().map(|message| self.pulled(message)).collect();
        // A panic here is not a handler's: unanswered messages are delivered again.
        let _ = caught(S::NAME, "worker", async {
            tokio::select! {
                () = self.process_pulled(&pulled) => {}
                () = self.keep_alive(&pulled) => {}
            }
        })
        .await;
        Gauge::StageInFlight.add(-(pulled.len() as f64), labels);
    }

    fn pulled(&self, message: jetstream::Message) -> PulledMessage {
        let incoming = Incoming::of(&self.runner.bus, &message);
        let (deliveries, key) = (incoming.deliveries, StartKey::of(&incoming, &self.intake.durable));
        let attempts = 1 + self.runner.failures.of(&key);
        PulledMessage { message, deliveries, attempts, key, is_answered: AtomicBool::new(false) }
    }

    /// Sends JetStream signs of life for all unanswered messages, for as long as it is polled.
    async fn keep_alive(&self, pulled: &[PulledMessage]) {
        loop {
            tokio::time::sleep(self.runner.ack_wait / 3).await;
            for pulled in pulled.iter().filter(|pulled| !pulled.is_answered.load(Ordering::Relaxed)) {
                // If this fails, the message is delivered again, which is harmless.
                let _ = pulled.message.ack_with(AckKind::Progress).await;
            }
        }
    }

    async fn process_pulled(&self, pulled: &[PulledMessage]) {
        let work = self.decode(pulled).await;
        let (together, suspects) = self.begin(work).await;
        if !together.is_empty() {
            let _beside_others = self.runner.starts.beside_others().await;
            self.handle(together).await;
        }
        for suspect in suspects {
            self.handle_alone(suspect).await;
        }
    }

    /// Decodes messages. One that cannot be decoded is poison, and set aside at once.
    async fn decode<'a>(&self, pulled: &'a [PulledMessage]) -> Vec<Work<'a, S::Input>> {
        let mut work = Vec::with_capacity(pulled.len());
        for pulled in pulled {
            if pulled.deliveries > 1 {
                Counter::StageRedeliveredTotal.add(1, [("stage", S::NAME), ("lane", self.intake.lane.as_str())]);
            }
            let incoming = Incoming { attempts: pulled.attempts, ..Incoming::of(&self.runner.bus, &pulled.message) };
            let decoded = caught_here(S::NAME, "handler", || S::Input::decode(&incoming))
                .unwrap_or_else(|panicked| Err(panicked.into()));
            match decoded {
                Ok(input) => work.push(Work { pulled, input }),
                Err(error) => self.set_aside(pulled, &error).await,
            }
        }
        work
    }

    /// Records the start of redelivered messages. Answers those to be handled together, and those started too often, to be handled alone.
    async fn begin<'a>(&self, work: Vec<Work<'a, S::Input>>) -> (Vec<Work<'a, S::Input>>, Vec<Work<'a, S::Input>>) {
        let (again, mut together): (Vec<_>, Vec<_>) = work.into_iter().partition(|work| work.pulled.deliveries > 1);
        let keys: Vec<StartKey> = again.iter().map(|work| work.pulled.key.clone()).collect();
        match self.runner.starts.begin(&keys, starts::TOGETHER).await {
            Ok(begun) => {
                let mut suspects = Vec::new();
                for (work, may_begin) in again.into_iter().zip(begun) {
                    if may_begin { together.push(work) } else { suspects.push(work) }
                }
                (together, suspects)
            }
            Err(error) => {
                for work in &again {
                    self.give_back_uncounted(work.pulled, &error).await;
                }
                (together, Vec::new())
            }
        }
    }

    /// Handles a message that was started before and never finished. At first this process handles no other: if it ends the process, no
    /// other message suffers. A message that was handled alone before is set aside.
    async fn handle_alone(&self, work: Work<'_, S::Input>) {
        let pulled = work.pulled;
        let Some(alone) = self.runner.starts.alone().await else {
            tracing::warn!(stage = S::NAME, lane = %self.intake.lane, "a message that is to be handled alone waits for others");
            self.give_back(pulled, backoff(pulled.deliveries), "retried").await;
            return;
        };
        match self.runner.starts.begin(std::slice::from_ref(&pulled.key), starts::ALONE).await.as_deref() {
            Ok([true]) => {
                tracing::warn!(
                    stage = S::NAME, lane = %self.intake.lane, deliveries = pulled.deliveries,
                    "begun several times and never finished: handled alone"
                );
                let mut handled = pin!(self.handle(vec![work]));
                if tokio::time::timeout(self.runner.alone_max, &mut handled).await.is_err() {
                    let _beside_others = alone.downgrade();
                    handled.await;
                }
            }
            Ok(_) => {
                let error = StageError::rejected(
                    NEVER_FINISHED,
                    "it was begun several times, the last time alone; each time its process ended",
                );
                trace::within(trace_of(&pulled.message), self.give_up(work, &error)).await;
            }
            Err(error) => self.give_back_uncounted(pulled, error).await,
        }
    }

    /// Sets a message aside once the stage has seen to it that the same work does not come again as another message.
    async fn give_up(&self, work: Work<'_, S::Input>, error: &StageError) {
        let given_up = async {
            let outputs = in_time(S::TIMEOUT, self.stage.given_up(&work.input, error.code())).await?;
            self.runner.bus.publish_all(outputs).await?;
            Ok(())
        };
        let given_up: Result<(), StageError> =
            caught(S::NAME, "handler", given_up).await.unwrap_or_else(|panicked| Err(panicked.into()));
        match given_up {
            Ok(()) => {
                self.set_aside(work.pulled, error).await;
                if work.pulled.is_answered.load(Ordering::Relaxed) {
                    self.runner.starts.end(vec![work.pulled.key.clone()]).await;
                }
            }
            // Its starts stay recorded: it is not begun when it comes again.
            Err(failed) => {
                tracing::warn!(
                    stage = S::NAME, lane = %self.intake.lane, code = failed.code(), error = %failed.chain(),
                    "a message that is to be set aside comes again"
                );
                self.give_back(work.pulled, backoff(work.pulled.deliveries), "retried").await;
            }
        }
    }

    async fn handle(&self, work: Vec<Work<'_, S::Input>>) {
        let (pulled, inputs): (Vec<&PulledMessage>, Vec<S::Input>) =
            work.into_iter().map(|work| (work.pulled, work.input)).unzip();
        match self.attempt(&pulled, &inputs).await {
            // One of several is poison: handling them one by one finds it.
            Err(error) if !error.is_transient() && inputs.len() > 1 => {
                for (pulled, input) in pulled.iter().zip(&inputs) {
                    let pulled = std::slice::from_ref(pulled);
                    let attempted = self.attempt(pulled, std::slice::from_ref(input)).await;
                    self.answer(pulled, attempted).await;
                }
            }
            attempted => self.answer(&pulled, attempted).await,
        }
    }

    /// Records that the handling of these messages has ended, and acknowledges them or gives them back.
    async fn answer(&self, pulled: &[&PulledMessage], attempted: Result<(), StageError>) {
        let again = pulled.iter().filter(|pulled| pulled.deliveries > 1);
        self.runner.starts.end(again.map(|pulled| pulled.key.clone()).collect()).await;
        match attempted {
            Ok(()) => {
                future::join_all(pulled.iter().map(|pulled| self.acknowledge(pulled))).await;
            }
            Err(error) => {
                for pulled in pulled {
                    trace::within(trace_of(&pulled.message), self.answer_failure(pulled, &error)).await;
                }
            }
        }
    }

    /// Handles and publishes. A panic is a rejection.
    async fn attempt(&self, pulled: &[&PulledMessage], inputs: &[S::Input]) -> Result<(), StageError> {
        let labels = [("stage", S::NAME), ("lane", self.intake.lane.as_str())];
        let started = Instant::now();
        let work = async {
            let outputs = in_time(S::TIMEOUT, self.stage.handle(inputs)).await?;
            if self.stage.commits_facts(inputs) {
                self.runner.facts.notify();
            }
            let count = outputs.len() as u64;
            self.runner.bus.publish_all(outputs).await?;
            Counter::StagePublishedTotal.add(count, labels);
            Ok(())
        };
        let spans = self.spans(pulled, inputs);
        let within = trace::within(spans.as_ref().map(trace::Group::ambient), caught(S::NAME, "handler", work));
        let result: Result<(), StageError> = within.await.unwrap_or_else(|panicked| Err(panicked.into()));
        if let (Some(spans), Err(error)) = (&spans, &result) {
            spans.fail(error.code());
        }
        Histogram::StageProcessingSeconds.record(started.elapsed().as_secs_f64(), labels);
        result
    }

    /// The spans of these messages, if any of them is part of a trace.
    fn spans(&self, pulled: &[&PulledMessage], inputs: &[S::Input]) -> Option<trace::Group> {
        let traced = pulled.iter().zip(inputs).map(|(pulled, input)| trace::TracedMessage {
            parent: TraceContext::of_message(pulled.message.headers.as_ref()),
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

    async fn acknowledge(&self, pulled: &PulledMessage) {
        self.count("done");
        self.finish(pulled);
        if let Err(error) = pulled.message.ack().await {
            tracing::debug!(stage = S::NAME, %error, "acknowledgement lost; the message comes again and is harmless");
        }
    }

    /// The message does not come again.
    fn finish(&self, pulled: &PulledMessage) {
        pulled.is_answered.store(true, Ordering::Relaxed);
        if pulled.attempts > 1 {
            self.runner.failures.remove(&pulled.key);
        }
    }

    async fn answer_failure(&self, pulled: &PulledMessage, error: &StageError) {
        let (deliveries, attempts) = (pulled.deliveries, pulled.attempts);
        if let StageError::Busy { reason, wait } = error {
            tracing::debug!(stage = S::NAME, lane = %self.intake.lane, deliveries, code = reason, "given back");
            self.give_back(pulled, *wait, "busy").await;
        } else if error.is_infrastructure() || (error.is_transient() && attempts < MAX_ATTEMPTS) {
            let delay = if error.is_infrastructure() {
                backoff(deliveries)
            } else {
                self.runner.failures.add(&pulled.key);
                backoff(attempts)
            };
            tracing::warn!(
                stage = S::NAME, lane = %self.intake.lane, deliveries, attempts, delay_ms = delay.as_millis() as u64,
                code = error.code(), error = %error.chain(), "will be tried again"
            );
            self.give_back(pulled, delay, "retried").await;
        } else {
            self.set_aside(pulled, error).await;
        }
    }

    /// Gives back a message whose start cannot be recorded.
    async fn give_back_uncounted(&self, pulled: &PulledMessage, error: &sqlx::Error) {
        let delay = backoff(pulled.deliveries);
        tracing::warn!(
            stage = S::NAME, lane = %self.intake.lane, deliveries = pulled.deliveries, delay_ms = delay.as_millis() as u64,
            error = runtime::db::describe(error), "its start cannot be recorded; will be tried again"
        );
        self.give_back(pulled, delay, "retried").await;
    }

    async fn give_back(&self, pulled: &PulledMessage, delay: Duration, outcome: &'static str) {
        self.count(outcome);
        pulled.is_answered.store(true, Ordering::Relaxed);
        let _ = pulled.message.ack_with(AckKind::Nak(Some(delay))).await;
    }

    /// Publishes the dead letter with its reason, awaits the store's answer, then terminates the original.
    async fn set_aside(&self, pulled: &PulledMessage, error: &StageError) {
        let (message, deliveries) = (&pulled.message, pulled.deliveries);
        let origin = Incoming::of(&self.runner.bus, message).origin();
        let dead = DeadLetter::new(S::NAME, &origin, message.payload.clone(), error.code(), &error.chain());
        match self.runner.bus.publish_all(vec![dead.into_publication()]).await {
            Ok(()) => {
                self.count("dead_lettered");
                Counter::StageDeadLetteredTotal
                    .add(1, [("stage", S::NAME), ("lane", self.intake.lane.as_str()), ("reason", error.code())]);
                tracing::error!(stage = S::NAME, lane = %self.intake.lane, deliveries, code = error.code(), error = %error.chain(), "dead letter");
                self.finish(pulled);
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

/// The trace of a message, for log lines about it.
fn trace_of(message: &jetstream::Message) -> Option<trace::Ambient> {
    TraceContext::of_message(message.headers.as_ref()).map(|context| context.ambient())
}

/// Gives back messages that arrived while the stage was being paused.
async fn put_back(messages: &[jetstream::Message]) {
    for message in messages {
        // If this fails, the message is only delivered again later.
        let _ = message.ack_with(AckKind::Nak(Some(PAUSED_DELAY))).await;
    }
}

/// The pause before a message is delivered again. Longer waits are due rows in Postgres.
fn backoff(times: i64) -> Duration {
    BACKOFF.pause(u32::try_from(times).unwrap_or(1))
}
