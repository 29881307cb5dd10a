//! The state that all provider webhooks share.

use std::time::Duration;

use feedback::SOURCE;
use runtime::{Bus, Notifier, Outbound, OutboundSettings, outbound::SetupError};
use schemas::{InboundAnnounced, subjects};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::{check::sns::Sns, connection::Connections};
use crate::settings::HookSettings;

/// Events stored within this time are one notification: its subscriber reads all there are.
const GATHER: Duration = Duration::from_millis(10);
/// Events stored at a time in each process: they share the pool with the API.
const CONCURRENT_MAX: usize = 8;

#[derive(Debug)]
pub struct Hooks {
    pub(super) connections: Connections,
    pub(super) sns: Sns,
    pub(super) permits: Semaphore,
    pub(super) stored: Notifier,
}

impl Hooks {
    /// Touches neither network nor database. Within a runtime.
    ///
    /// # Errors
    /// When the client that fetches certificates cannot be set up.
    pub fn new(settings: &HookSettings, outbound: &OutboundSettings) -> Result<Self, SetupError> {
        Ok(Self {
            connections: Connections::new(settings.hook_rate_per_second),
            sns: Sns::new(Outbound::new(outbound)?, &settings.hook_sns_hosts),
            permits: Semaphore::new(CONCURRENT_MAX),
            stored: Notifier::default(),
        })
    }

    /// Has stored events read at once, until shut down: the engagement stage is notified.
    pub(crate) async fn carry(&self, bus: Bus, shutdown: CancellationToken) {
        self.stored.clone().carry::<InboundAnnounced>(bus, subjects::signal(SOURCE), GATHER, shutdown).await;
    }
}
