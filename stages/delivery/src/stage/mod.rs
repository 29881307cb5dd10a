//! The stage: rendered → relay.
//!
//! A message is handled in four steps: claim its sends (set-based), bring each to 354, fence it through the ledger
//! writer, send the body; every result goes back through the writer, and the message is done when all are committed.
//! What is claimed and not sent, for whatever reason, is released; what a crash leaves behind is found by the lease sweep.

mod claim;
mod ledger;
mod outage;
mod prepare;
mod return_path;
mod sandbox;
mod settings;
mod sources;
mod sweep;
mod transmit;
mod verdict;

#[cfg(test)]
mod tests;

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use futures::{StreamExt, stream};
use runner::{Deps, Intake, Stage, StageError};
use runtime::{Gauge, Publication, Vault};
use schemas::{
    Lane, Rendered,
    subjects::{self, stream as streams},
    token::TokenKeys,
};
use sqlx::PgPool;
use tokio_util::sync::CancellationToken;

use self::{
    claim::{Claimed, Sendable},
    ledger::{Ledger, Recorded},
    outage::Outage,
    sources::Sources,
    transmit::Transmitter,
};
use crate::{
    dkim::SigningThreads,
    pace::DomainPaces,
    smtp::{Pool, PoolCounts, SettingsError},
};

pub use return_path::{bounced_send, return_path};
pub use settings::Settings;

/// Sends of one message on their way at once. More than a lane has connections, so that while some wait for the ledger
/// others keep the connections busy.
const IN_FLIGHT_PER_CONNECTION: usize = 2;

/// The delivery stage.
pub struct Delivery {
    pool: PgPool,
    claim_lease: Duration,
    sources: Sources,
    ledger: Ledger,
    outage: Arc<Outage>,
    bulk: Road,
    priority: Road,
    shutdown: CancellationToken,
}

/// A lane's own connections: a campaign cannot take those of a password reset.
struct Road {
    transmitter: Transmitter,
    in_flight: usize,
}

/// Builds the stage and starts its workers, its ledger writer and its sweep.
///
/// # Errors
/// When the settings cannot work; nothing is started then.
pub async fn start(deps: &Deps, settings: &Settings) -> Result<(), StageError> {
    let stage = Delivery::new(deps.pool.clone(), deps.vault.clone(), &deps.tokens, deps.shutdown.clone(), settings)?;
    let pools = [stage.bulk.transmitter.pool.clone(), stage.priority.transmitter.pool.clone()];
    let intake = |lane: Lane, workers, coalesce| Intake {
        lane,
        stream: streams::RENDERED,
        durable: format!("delivery-{lane}"),
        subjects: vec![subjects::rendered(lane)],
        workers,
        coalesce,
    };
    deps.runner.start(
        Arc::new(stage),
        vec![
            intake(Lane::Priority, settings.delivery_priority_workers, 32),
            intake(Lane::Bulk, settings.delivery_workers, 1),
        ],
    );
    deps.runner.start_sweep(Delivery::NAME, Arc::new(sweep::Leases::new(deps.pool.clone())));
    tokio::spawn(show_connections(pools, deps.shutdown.clone()));
    Ok(())
}

/// How often the connections are counted for the metrics.
const SHOW_EVERY: Duration = Duration::from_secs(5);

async fn show_connections(pools: [Pool; 2], shutdown: CancellationToken) {
    while !shutdown.is_cancelled() {
        let counts = pools.each_ref().map(Pool::counts);
        let sum = |count: fn(&PoolCounts) -> usize| counts.iter().map(count).sum::<usize>() as f64;
        Gauge::SmtpConnectionsOpen.set(sum(|counts| counts.in_use), [("state", "busy")]);
        Gauge::SmtpConnectionsOpen.set(sum(|counts| counts.idle), [("state", "idle")]);
        tokio::select! {
            () = shutdown.cancelled() => {}
            () = tokio::time::sleep(SHOW_EVERY) => {}
        }
    }
    futures::future::join_all(pools.iter().map(Pool::close_idle)).await;
}

#[async_trait]
impl Stage for Delivery {
    const NAME: &'static str = "delivery";
    type Input = Rendered;

    async fn handle(&self, inputs: &[Rendered]) -> Result<Vec<Publication>, StageError> {
        if let Some(wait) = self.outage.remaining() {
            claim::postpone(&self.pool, inputs, wait).await?;
            return Ok(Vec::new());
        }
        // Before the claim: what cannot be had must not leave sends claimed.
        let parts = self.sources.parts(inputs).await?;
        let Claimed { sendable, withheld } = claim::claim(&self.pool, inputs, self.claim_lease).await?;
        let mut recorded: Vec<Recorded> = Vec::with_capacity(sendable.len() + withheld.len());
        for change in withheld {
            recorded.push(self.ledger.record(change).await);
        }
        let road = if inputs.iter().any(|input| input.lane == Lane::Priority) { &self.priority } else { &self.bulk };
        recorded.extend(self.send_all(road, inputs, &parts, sendable).await?);
        for written in recorded {
            written.await?;
        }
        Ok(Vec::new())
    }
}

impl Delivery {
    /// The stage with its connections and its ledger writer, inside a Tokio runtime.
    ///
    /// # Errors
    /// When the settings cannot work.
    pub fn new(
        pool: PgPool,
        vault: Arc<Vault>,
        tokens: &Arc<TokenKeys>,
        shutdown: CancellationToken,
        settings: &Settings,
    ) -> Result<Self, StageError> {
        let invalid = |error: SettingsError| StageError::rejected("settings", error);
        settings.check().map_err(invalid)?;
        let ledger = Ledger::start(pool.clone(), settings.ledger_window(), settings.fence_lease());
        let outage = Arc::new(Outage::default());
        let paces = DomainPaces::new(settings.domain_connections);
        let road = |connections: usize| -> Result<Road, SettingsError> {
            let transmitter = Transmitter {
                pool: Pool::new(settings.smtp(connections)?)?,
                paces: paces.clone(),
                ledger: ledger.clone(),
                outage: outage.clone(),
                tokens: tokens.clone(),
                shutdown: shutdown.clone(),
            };
            Ok(Road { transmitter, in_flight: connections * IN_FLIGHT_PER_CONNECTION })
        };
        Ok(Self {
            bulk: road(settings.smtp_connections).map_err(invalid)?,
            priority: road(settings.smtp_priority_connections).map_err(invalid)?,
            claim_lease: settings.claim_lease,
            sources: Sources::new(pool.clone(), vault, settings.dkim_sign, SigningThreads::new()),
            ledger: ledger.clone(),
            outage: outage.clone(),
            shutdown: shutdown.clone(),
            pool,
        })
    }

    /// Prepares in chunks and transmits many at once; answers when each send has its result on the way to the ledger.
    async fn send_all(
        &self,
        road: &Road,
        inputs: &[Rendered],
        parts: &[sources::Part],
        sendable: Vec<Sendable>,
    ) -> Result<Vec<Recorded>, StageError> {
        let chunks = sendable.chunks(prepare::CHUNK).map(<[Sendable]>::to_vec).collect::<Vec<_>>();
        let prepared = stream::iter(chunks)
            .map(|chunk| prepare::prepare(&self.sources, inputs, parts, chunk, &self.shutdown))
            .buffered(prepare::AHEAD)
            .flat_map(stream::iter);
        let results = prepared.map(|ready| road.transmitter.transmit(ready)).buffer_unordered(road.in_flight);
        Ok(results.filter_map(std::future::ready).collect().await)
    }
}
