//! Refuses and removes requests of an unknown kind: no consumer reads them. A newer ingress may know the kind, so each is left to it for a
//! while.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use chrono::{TimeDelta, Utc};
use futures::TryStreamExt;
use runner::{Incoming, StageError, Sweep, SweepSchedule};
use runtime::{Bus, BusError};
use schemas::{DirectKind, subjects::stream};

use super::{
    direct::{DirectRequest, SUBJECT},
    reject::{self, DeadLetterQuota},
};

const INTERVAL: Duration = Duration::from_secs(10);
/// How long a request is left to an ingress that knows its kind.
pub(super) const LEFT_FOR: TimeDelta = TimeDelta::minutes(10);
/// Requests handled in one run, over all subjects. The next run follows at once while there are more.
const RUN_MAX: u64 = 1_000;

pub(super) struct UnroutableRequests {
    bus: Bus,
    dead_letters: Arc<DeadLetterQuota>,
    left_for: TimeDelta,
}

impl UnroutableRequests {
    pub(super) fn new(bus: Bus, dead_letters: Arc<DeadLetterQuota>) -> Self {
        Self { bus, dead_letters, left_for: LEFT_FOR }
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
                // The oldest of its subject.
                if Utc::now() - direct.published_at < self.left_for {
                    break;
                }
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

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use devtools::servers::TestDatabase;
    use runtime::Publication;
    use schemas::EventType;

    use super::*;

    #[tokio::test]
    async fn a_request_of_an_unknown_kind_is_left_to_a_newer_ingress_first() {
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let database = TestDatabase::migrated(&runtime::db::MIGRATIONS).await.unwrap();
        let (url, prefix) = (database.nats_url().to_owned().into(), format!("{}_", database.name()));
        let bus = Bus::connect(&url, None, &prefix, 1, "test").await.unwrap();
        bus.apply_streams().await.unwrap();
        let request = Publication {
            subject: format!("{SUBJECT}.shop.production.postcard"),
            message_id: "m-1".to_owned(),
            schema: "mail.v1.request",
            body: Bytes::from_static(b"{}"),
            headers: Vec::new(),
        };
        bus.publish_all(vec![request]).await.unwrap();
        let held = async |name: &str| {
            let mut held = bus.stream(name).await.unwrap().unwrap();
            held.info().await.unwrap().state.messages
        };
        let mut sweep = UnroutableRequests::new(bus.clone(), Arc::new(DeadLetterQuota::new()));
        assert_eq!(sweep.sweep().await.unwrap(), 0);
        assert_eq!((held(stream::REQUESTS).await, held(stream::DEAD).await), (1, 0));
        sweep.left_for = TimeDelta::zero();
        assert_eq!(sweep.sweep().await.unwrap(), 1);
        assert_eq!((held(stream::REQUESTS).await, held(stream::DEAD).await), (0, 1));
        let events = bus.stream(stream::EVENTS).await.unwrap().unwrap();
        let event = events.get_raw_message(1).await.unwrap();
        assert!(event.subject.ends_with(EventType::RequestRejected.as_str()), "{}", event.subject);
    }
}
