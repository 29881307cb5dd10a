//! Requests of a kind there is not: no consumer takes them, so they are looked for, refused and removed.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use futures::TryStreamExt;
use runner::{Incoming, StageError, Sweep};
use runtime::{Bus, BusError};
use schemas::{DirectKind, subjects::stream};

use super::{
    direct::{Direct, SUBJECT},
    letters::Letters,
    reject,
};

const INTERVAL: Duration = Duration::from_secs(2);
/// Strays of one run at most, over all subjects. The next run follows at once while there are any.
const AT_ONCE: u64 = 1_000;

pub(super) struct Strays {
    bus: Bus,
    letters: Arc<Letters>,
}

impl Strays {
    pub(super) fn new(bus: Bus, letters: Arc<Letters>) -> Self {
        Self { bus, letters }
    }

    /// The subjects with messages that nobody takes.
    async fn subjects(&self, requests: &async_nats::jetstream::stream::Stream) -> Result<Vec<String>, StageError> {
        let filter = self.bus.prefixed(&format!("{SUBJECT}.>"));
        let mut held = requests.info_with_subjects(filter).await.map_err(refused)?;
        let mut strays = Vec::new();
        while let Some((subject, _)) = held.try_next().await.map_err(refused)? {
            if subject.rsplit('.').next().and_then(DirectKind::parse).is_none() {
                strays.push(subject);
            }
        }
        Ok(strays)
    }
}

fn refused(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> StageError {
    StageError::Bus(BusError::refused(error))
}

#[async_trait]
impl Sweep for Strays {
    fn name(&self) -> &'static str {
        "strays"
    }

    fn interval(&self) -> Duration {
        INTERVAL
    }

    async fn sweep(&self) -> Result<u64, StageError> {
        let name = self.bus.prefixed(stream::REQUESTS);
        let Some(requests) = self.bus.stream(stream::REQUESTS).await? else { return Ok(0) };
        let mut found = 0;
        for subject in self.subjects(&requests).await? {
            while found < AT_ONCE {
                // Gone: another process was faster.
                let Ok(stray) = requests.get_first_raw_message_by_subject(subject.as_str(), 1).await else { break };
                let direct = Direct::read(&Incoming {
                    subject: subject.strip_prefix(self.bus.prefix()).unwrap_or(&subject),
                    headers: Some(&stray.headers),
                    payload: &stray.payload,
                    stream: &name,
                    sequence: stray.sequence,
                    published_ns: stray.time.unix_timestamp_nanos(),
                    deliveries: 1,
                });
                if let Err(error) = direct.publisher().and_then(|_| direct.kind()) {
                    self.bus.publish_all(reject::whole(&self.letters, &direct, &error)?).await?;
                }
                // Told first: one that is told twice is dropped by its id, one that is never told is lost.
                let _ = requests.delete_message(stray.sequence).await;
                found += 1;
            }
        }
        Ok(found)
    }
}
