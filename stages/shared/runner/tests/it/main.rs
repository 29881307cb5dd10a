//! The loop of all stages against real servers.
#![allow(clippy::unwrap_used, missing_docs)]

mod crashes;
mod pause_switches;
mod schedule;
mod the_loop;

use std::time::Duration;

use runner::Intake;
use runtime::{Bus, Publication};
use schemas::{
    Lane, Resolved,
    subjects::{self, stream},
};
use uuid::Uuid;

const PATIENCE: Duration = Duration::from_secs(120);

async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while !holds().await {
        assert!(tokio::time::Instant::now() < deadline, "waited in vain for: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// An intake of the priority lane.
fn intake(durable: &str, workers: usize, coalesce: usize) -> Intake {
    Intake {
        lane: Lane::Priority,
        stream: stream::RESOLVED,
        durable: durable.to_owned(),
        subjects: vec![subjects::resolved(Lane::Priority)],
        workers,
        coalesce,
    }
}

/// An input of that intake.
fn input(announcement: i32) -> Resolved {
    let (tenant_id, batch_id) = (Uuid::nil(), schemas::new_id());
    Resolved { tenant_id, batch_id, lane: Lane::Priority, announcement, notify: None }
}

/// Publishes an input, and answers its batch.
async fn publish(bus: &Bus, announcement: i32) -> Uuid {
    let input = input(announcement);
    let publication = Publication::json(subjects::resolved(Lane::Priority), input.message_id(), &input).unwrap();
    bus.publish_all(vec![publication]).await.unwrap();
    input.batch_id
}
