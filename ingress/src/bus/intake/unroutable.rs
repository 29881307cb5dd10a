//! Refuses and removes requests of an unknown kind: no consumer reads them.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use futures::TryStreamExt;
use runner::{Incoming, StageError, Sweep, SweepSchedule};
use runtime::{Bus, BusError};
use schemas::{DirectKind, subjects::stream};

use super::{
    direct::{DirectRequest, SUBJECT},
    reject::{self, DeadLetterQuota},
};

const INTERVAL: Duration = Duration::from_secs(10);
/// Requests handled in one run, over all subjects. The next run follows at once while there are more.
const RUN_MAX: u64 = 1_000;

pub(super) struct UnroutableRequests {
    bus: Bus,
    dead_letters: Arc<DeadLetterQuota>,
}

impl UnroutableRequests {
    pub(super) fn new(bus: Bus, dead_letters: Arc<DeadLetterQuota>) -> Self {
        Self { bus, dead_letters }
    }

    /// The subjects with messages of an unknown kind.
    async fn unroutable_subjects(
        &self,
        requests: &async_nats::jetstream::stream::Stream,
    ) -> Result<Vec<String>, StageError> {
        let filter = self.bus.prefixed(&format!("{SUBJECT}.>"));
        let mut held = requests.info_with_subjects(filter).await.map_err(refused)?;
        let mut unroutable = Vec::new();
        while let Some((subject, _)) = held.try_next().await.map_err(refused)? {
            if subject.rsplit('.').next().and_then(DirectKind::parse).is_none() {
                unroutable.push(subject);
            }
        }
        Ok(unroutable)
    }
}

fn refused(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> StageError {
    StageError::Bus(BusError::refused(error))
}

#[async_trait]
impl Sweep for UnroutableRequests {
    fn schedule(&self) -> SweepSchedule {
        SweepSchedule::every("unroutable_requests", INTERVAL)
    }

    async fn sweep(&self) -> Result<u64, StageError> {
        let name = self.bus.prefixed(stream::REQUESTS);
        let Some(requests) = self.bus.stream(stream::REQUESTS).await? else { return Ok(0) };
        let mut found = 0;
        for subject in self.unroutable_subjects(&requests).await? {
            while found < RUN_MAX {
                // Another process was faster.
                let Ok(request) = requests.get_first_raw_message_by_subject(subject.as_str(), 1).await else { break };
                let direct = DirectRequest::read(&Incoming {
                    subject: subject.strip_prefix(self.bus.prefix()).unwrap_or(&subject),
                    headers: Some(&request.headers),
                    payload: &request.payload,
                    stream: &name,
                    sequence: request.sequence,
                    published_ns: request.time.unix_timestamp_nanos(),
                    deliveries: 1,
                    attempts: 1,
                });
                if let Err(error) = direct.publisher().and_then(|_| direct.kind()) {
                    let rejection = reject::reject_message(&self.dead_letters, &direct, &error).await?;
                    self.bus.publish_all(rejection).await?;
                }
                // Published before it is deleted: a repeated event is dropped by its id, a missing one would be lost.
                if requests.delete_message(request.sequence).await.is_err() {
                    break;
                }
                found += 1;
            }
        }
        Ok(found)
    }
}
