//! Gauges of the messages that wait for a stage, measured at JetStream: they show which stage is behind, and how old its oldest work is.

use std::{sync::Arc, time::Duration};

use async_nats::jetstream::consumer::{Consumer, pull};
use runtime::{Bus, Counter, Gauge, Histogram};
use schemas::Lane;
use tokio_util::sync::CancellationToken;

use crate::Intake;

const EVERY: Duration = Duration::from_secs(5);

/// Sets the counters of a stage and lane to zero, so that they are exported from the start.
pub(crate) fn begin(stage: &'static str, lane: Lane) {
    let labels = [("stage", stage), ("lane", lane.as_str())];
    for counter in [Counter::StageReceivedTotal, Counter::StagePublishedTotal, Counter::StageRedeliveredTotal] {
        counter.add(0, labels);
    }
    for outcome in ["done", "retried", "busy", "dead_lettered"] {
        Counter::StageHandledTotal.add(0, [labels[0], labels[1], ("outcome", outcome)]);
    }
    Counter::StageDeadLetteredTotal.add(0, [labels[0], labels[1], ("reason", "malformed")]);
    Gauge::StageInFlight.set(0.0, labels);
    Histogram::StageProcessingSeconds.begin(labels);
}

/// Exports the gauges of one lane until shut down: messages summed over its intakes, and the age of the oldest of all.
pub(crate) async fn export(
    stage: &'static str,
    lane: Lane,
    intakes: Vec<Arc<Intake>>,
    bus: Bus,
    shutdown: CancellationToken,
) {
    let labels = [("stage", stage), ("lane", lane.as_str())];
    while shutdown.run_until_cancelled(tokio::time::sleep(EVERY)).await.is_some() {
        if let Some((pending, ack_pending, age)) = measure(&intakes, &bus).await {
            Gauge::StagePending.set(pending as f64, labels);
            Gauge::StageAckPending.set(ack_pending as f64, labels);
            Gauge::StageOldestMessageAgeSeconds.set(age, labels);
        }
    }
}

/// `None` while JetStream is away: the gauges keep their last values, and the health check reports the bus.
async fn measure(intakes: &[Arc<Intake>], bus: &Bus) -> Option<(u64, usize, f64)> {
    let (mut pending, mut ack_pending, mut age) = (0, 0, 0.0_f64);
    for intake in intakes {
        let stream = bus.prefixed(intake.stream);
        let consumer: Consumer<pull::Config> =
            bus.jetstream().get_consumer_from_stream(&intake.durable, &stream).await.ok()?;
        let info = consumer.cached_info();
        pending += info.num_pending;
        ack_pending += info.num_ack_pending;
        if info.num_pending > 0 || info.num_ack_pending > 0 {
            let stream = bus.jetstream().get_stream_no_info(&stream).await.ok()?;
            for subject in &intake.subjects {
                if let Ok(message) = stream.get_first_raw_message_by_subject(bus.prefixed(subject), 1).await {
                    let seconds = chrono::Utc::now().timestamp() - message.time.unix_timestamp();
                    age = age.max(seconds as f64);
                }
            }
        }
    }
    Some((pending, ack_pending, age))
}
