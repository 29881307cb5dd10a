//! Rings for events that were stored, so that they are read at once. A ring that is lost costs a second: the stage looks by itself.

use std::{sync::Arc, time::Duration};

use feedback::SOURCE;
use schemas::{
    InboundAnnounced,
    messages::Message,
    subjects::{self, header},
};
use tokio_util::sync::CancellationToken;

use crate::Ingress;

/// Events stored within this time ring once: whoever hears takes all there is.
const GATHER: Duration = Duration::from_millis(10);

/// Carries rings to the bus until shut down.
pub(crate) async fn carry(ingress: Arc<Ingress>, shutdown: CancellationToken) {
    let subject = ingress.bus.prefixed(&subjects::signal(SOURCE));
    let mut headers = async_nats::HeaderMap::new();
    headers.insert(header::SCHEMA, InboundAnnounced::SCHEMA);
    while shutdown.run_until_cancelled(ingress.hooks.stored.notified()).await.is_some() {
        let rung = ingress.bus.client().publish_with_headers(subject.clone(), headers.clone(), "{}".into()).await;
        if let Err(error) = rung {
            tracing::debug!(%error, "nobody was rung; the stage looks by itself");
        }
        tokio::time::sleep(GATHER).await;
    }
}
