//! The stage: rendered → relay.
//!
//! A message is handled in four steps: claim its sends (set-based), bring each to 354, fence it through the ledger
//! writer, send the body; every result goes back through the writer, and the message is done when all are committed.
//! What is claimed and not sent, for whatever reason, is released, a panic of the handler included; what a crash leaves behind is found
//! by the lease sweep, at once where the process is known to be gone.

mod attachments;
mod notifier;
mod outage;
mod passage;
mod ping;
mod prepare;
mod return_path;
mod sandbox;
mod settings;
mod sources;
mod transmit;
mod verdict;
mod ways;

#[cfg(test)]
mod tests;

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use futures::{StreamExt, stream};
use runner::{Deps, Intake, Stage, StageError};
use runtime::{Bus, Gauge, Publication, Vault, panics::caught, plans::PreparedPool, trace};
use schemas::{
    Lane, Rendered,
    subjects::{self, stream as streams},
    token::TokenKeys,
};
use sqlx::PgPool;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use self::{
    notifier::OutcomeNotifier,
    passage::Sendable,
    sandbox::Capture,
    sources::Sources,
    transmit::Transmitter,
    ways::{Way, Ways},
};
use crate::{
    pace::Share,
    provider::{Provider, SmtpProvider},
};
use dkim::SigningThreads;
use ledger::{
    claim::{Claimed, claim},
    fence::{Ledger, Recorded},
    leases::ExpireLeases,
    warmup::WarmupPermits,
};
use smtp::{Pool, PoolCounts, SettingsError};

pub use return_path::return_path;
pub use settings::Settings;

/// Sends of one message on their way at once. More than a lane has connections, so that while some wait for the ledger
/// others keep the connections busy.
const IN_FLIGHT_PER_CONNECTION: usize = 2;
/// Claims of campaigns at once: the messages of a batch come together, and their claims would stand in line for its row, the ledger writer
/// behind all of them (measured: with three at once it waited for a third of its time, and a campaign of 10,000 took a tenth longer).
/// They are short: who comes meanwhile waits for the connection, not for a plan.
const BULK_CLAIMS_AT_ONCE: usize = 1;

/// The delivery stage.
pub struct Delivery {
    pool: PgPool,
    bulk_claims: PreparedPool,
    priority_claims: PreparedPool,
    claim_lease: Duration,
    sources: Sources,
    ledger: Ledger,
    ways: Ways,
    transmitter: Transmitter,
    /// What of the days' caps of domains that are warmed up is in hand.
    warm: WarmupPermits,
    /// Sends of one message on their way at once, by lane.
    bulk_in_flight: usize,
    priority_in_flight: usize,
    relay: [Arc<SmtpProvider>; 2],
    shutdown: CancellationToken,
    bus: Option<Bus>,
}

/// Builds the stage and starts its workers, its ledger writer and its sweep.
///
/// # Errors
/// When the settings cannot work; nothing is started then.
pub async fn start(deps: &Deps, settings: &Settings) -> Result<(), StageError> {
    let (pool, vault, shutdown) = (deps.pool.clone(), deps.vault.clone(), deps.shutdown.clone());
    let stage = Delivery::new(pool, &deps.by_key, vault, &deps.tokens, shutdown, settings)?.telling(deps.bus.clone());
    let relay = stage.relay.clone();
    let share = Share::new(deps.pool.clone(), stage.transmitter.paces.clone());
    let pings = ping::Pings::new(deps.pool.clone(), relay[1].clone(), settings.provider_ping_interval);
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
    deps.runner.start_sweep(Delivery::NAME, Arc::new(ExpireLeases::new(deps.pool.clone())));
    deps.runner.start_sweep(Delivery::NAME, Arc::new(pings));
    deps.runner.start_sweep(Delivery::NAME, Arc::new(share));
    tokio::spawn(show_connections(relay, deps.shutdown.clone()));
    Ok(())
}

/// How often the connections are counted for the metrics.
const SHOW_EVERY: Duration = Duration::from_secs(5);

async fn show_connections(relay: [Arc<SmtpProvider>; 2], shutdown: CancellationToken) {
    let pools: [&Pool; 2] = relay.each_ref().map(|provider| provider.pool());
    while !shutdown.is_cancelled() {
        let counts = pools.map(Pool::counts);
        let sum = |count: fn(&PoolCounts) -> usize| counts.iter().map(count).sum::<usize>() as f64;
        Gauge::SmtpConnectionsOpen.set(sum(|counts| counts.in_use), [("state", "busy")]);
        Gauge::SmtpConnectionsOpen.set(sum(|counts| counts.idle), [("state", "idle")]);
        tokio::select! {
            () = shutdown.cancelled() => {}
            () = tokio::time::sleep(SHOW_EVERY) => {}
        }
    }
    futures::future::join_all(relay.iter().map(|provider| provider.close_idle())).await;
}

#[async_trait]
impl Stage for Delivery {
    const NAME: &'static str = "delivery";
    const SPAN: &'static str = "delivery transact";
    type Input = Rendered;

    async fn handle(&self, inputs: &[Rendered]) -> Result<Vec<Publication>, StageError> {
        let token = self.ledger.session().token();
        match caught(Self::NAME, "handler", self.claim_and_send(inputs, token)).await {
            Ok(handled) => handled,
            Err(panicked) => {
                self.release_claims(inputs, token).await;
                Err(panicked.into())
            }
        }
    }
}

impl Delivery {
    /// Claims the sends of these messages under the token, and brings each to its result.
    async fn claim_and_send(&self, inputs: &[Rendered], token: Uuid) -> Result<Vec<Publication>, StageError> {
        let admitted = self.ways.admit(inputs).await?;
        let (inputs, ways) = (admitted.inputs.as_ref(), admitted.ways.as_slice());
        if inputs.is_empty() {
            return Ok(Vec::new());
        }
        // Before the claim: what cannot be had must not leave sends claimed.
        let parts = self.sources.parts(inputs, ways).await?;
        let claims = if has_priority(inputs) { &self.priority_claims } else { &self.bulk_claims };
        let held = (token, self.claim_lease);
        let Claimed { sendable, withheld } = claim(claims, inputs, held, &self.warm).await?;
        let sendable: Vec<Sendable> = sendable.into_iter().map(Sendable::from).collect();
        let bells = OutcomeNotifier::new(self.bus.as_ref(), inputs, &sendable);
        let mut recorded: Vec<Recorded> = Vec::with_capacity(sendable.len() + withheld.len());
        for change in withheld {
            recorded.push(self.ledger.record(change).await);
        }
        let capture = Capture::default();
        let road = Road { inputs, parts: &parts, ways, capture: &capture, bells: &bells };
        recorded.extend(self.send_all(&road, sendable).await);
        for written in recorded {
            written.await?;
        }
        bells.ring_idle().await;
        capture.publications()
    }

    /// Puts back what a handler has claimed and not fenced that has panicked. Where Postgres is away for this, the lease does it.
    async fn release_claims(&self, inputs: &[Rendered], token: Uuid) {
        match ledger::leases::release_claims(&self.pool, inputs, token).await {
            Ok(sends) => {
                tracing::warn!(stage = "delivery", sends, "what a handler had claimed that panicked is put back")
            }
            Err(error) => {
                tracing::warn!(stage = "delivery", error = %error.chain(), "claims of a handler that panicked wait for their lease");
            }
        }
    }

    /// The stage with its connections and its ledger writer, inside a Tokio runtime.
    ///
    /// # Errors
    /// When the settings cannot work.
    pub fn new(
        pool: PgPool,
        by_key: &PreparedPool,
        vault: Arc<Vault>,
        tokens: &Arc<TokenKeys>,
        shutdown: CancellationToken,
        settings: &Settings,
    ) -> Result<Self, StageError> {
        let invalid = |error: SettingsError| StageError::rejected("settings", error);
        settings.check().map_err(invalid)?;
        let ledger = Ledger::start(&pool, settings.ledger()).map_err(|error| StageError::rejected("ledger", error))?;
        let relay = |connections: usize| -> Result<Arc<SmtpProvider>, SettingsError> {
            Ok(Arc::new(SmtpProvider::new(Pool::new(settings.smtp(connections)?)?)))
        };
        let relay = [
            relay(settings.smtp_connections).map_err(invalid)?,
            relay(settings.smtp_priority_connections).map_err(invalid)?,
        ];
        let means = settings.means().map_err(invalid)?;
        let transmitter = Transmitter {
            paces: settings.paces(),
            ledger: ledger.clone(),
            tokens: tokens.clone(),
            shutdown: shutdown.clone(),
        };
        Ok(Self {
            pool: pool.clone(),
            ways: Ways::new(pool.clone(), vault.clone(), relay.clone(), means),
            transmitter,
            warm: WarmupPermits::default(),
            bulk_in_flight: settings.smtp_connections * IN_FLIGHT_PER_CONNECTION,
            priority_in_flight: settings.smtp_priority_connections * IN_FLIGHT_PER_CONNECTION,
            relay,
            claim_lease: settings.claim_lease,
            sources: Sources::new(pool.clone(), vault, settings.dkim_sign, SigningThreads::new()),
            ledger,
            shutdown,
            bulk_claims: by_key.bulk(Self::NAME).at_most(BULK_CLAIMS_AT_ONCE),
            priority_claims: by_key.priority(Self::NAME),
            bus: None,
        })
    }

    /// The same, telling those who wait for a batch when its sends are decided.
    #[must_use]
    pub fn telling(mut self, bus: Bus) -> Self {
        self.bus = Some(bus);
        self
    }

    /// The paces of its paths.
    #[cfg(test)]
    pub(crate) fn paces(&self) -> &crate::pace::Paces {
        &self.transmitter.paces
    }

    /// Prepares in chunks and transmits many at once; answers when each send has its result on the way to the ledger.
    async fn send_all(&self, road: &Road<'_>, sendable: Vec<Sendable>) -> Vec<Recorded> {
        let in_flight = if has_priority(road.inputs) { self.priority_in_flight } else { self.bulk_in_flight };
        let (sendable, put_off) = passage::sort(&self.transmitter.paces, road.inputs, sendable);
        let mut recorded = Vec::with_capacity(sendable.len() + put_off.len());
        for change in put_off {
            let batch = change.send.batch.batch_id;
            recorded.extend(road.bells.after(batch, Some(self.ledger.record(change).await)).await);
        }
        let prepared = stream::iter(prepare::chunks(road.parts, sendable))
            .map(|chunk| prepare::prepare(&self.sources, road.inputs, road.parts, chunk, &self.shutdown))
            .buffered(prepare::AHEAD)
            .flat_map(stream::iter);
        let results = prepared.map(|ready| async {
            let (batch, way) = (ready.send.batch.batch_id, &road.ways[ready.input]);
            // Of messages handled together each is of its own trace: a provider that is called hears of it.
            let recorded =
                trace::within(trace::of_work(batch), self.transmitter.transmit(ready, way, road.capture)).await;
            road.bells.after(batch, recorded).await
        });
        recorded.extend(results.buffer_unordered(in_flight).filter_map(std::future::ready).collect::<Vec<_>>().await);
        recorded
    }
}

fn has_priority(inputs: &[Rendered]) -> bool {
    inputs.iter().any(|input| input.lane == Lane::Priority)
}

/// What the sends of the messages in hand share.
struct Road<'a> {
    inputs: &'a [Rendered],
    parts: &'a [sources::Part],
    ways: &'a [Way],
    capture: &'a Capture,
    bells: &'a OutcomeNotifier<'a>,
}
