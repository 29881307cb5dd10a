//! What waits for a stage: asked of JetStream now and then, so an SRE sees which stage is behind and how old its oldest work is.

use std::{sync::Arc, time::Duration};

use async_nats::jetstream::consumer::pull;
use runtime::{Bus, Gauge};
use tokio_util::sync::CancellationToken;

use crate::Intake;

const EVERY: Duration = Duration::from_secs(5);

pub(crate) async fn watch(stage: &'static str, intake: Arc<Intake>, bus: Bus, shutdown: CancellationToken) {
    let labels = [("stage", stage), ("lane", intake.lane.as_str())];
    loop {
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = tokio::time::sleep(EVERY) => {}
        }
        if let Some((pending, ack_pending, age)) = measure(&intake, &bus).await {
            Gauge::StagePending.set(pending as f64, labels);
            Gauge::StageAckPending.set(ack_pending as f64, labels);
            Gauge::StageOldestMessageAgeSeconds.set(age, labels);
        }
    }
}

/// `None` while JetStream is away: the last levels stand, and `mail_stage_…` of a dead bus is the health check's to tell.
async fn measure(intake: &Intake, bus: &Bus) -> Option<(u64, usize, f64)> {
    let stream = bus.jetstream().get_stream(bus.prefixed(intake.stream)).await.ok()?;
    let mut consumer = stream.get_consumer::<pull::Config>(&intake.durable).await.ok()?;
    let info = consumer.info().await.ok()?;
    let (pending, ack_pending) = (info.num_pending, info.num_ack_pending);
    let mut age: f64 = 0.0;
    if pending > 0 || ack_pending > 0 {
        for subject in &intake.subjects {
            if let Ok(message) = stream.get_first_raw_message_by_subject(bus.prefixed(subject), 1).await {
                let seconds = chrono::Utc::now().timestamp() - message.time.unix_timestamp();
                age = age.max(seconds as f64);
            }
        }
    }
    Some((pending, ack_pending, age))
}
