//! The delivery stage: rendered batch → provider.
//!
//! A batch is handled in four steps: read its owed sends (set-based), take a connection for each, fence it through the ledger
//! writer, send envelope and body. Every result goes back through the writer, and the batch is done when all results are committed.
//! Reading takes nothing: a send that is not fenced, also after a panic or a crash, is still owed, and of two workers that read it one
//! passes the fence.

mod attachments;
mod circuit_breaker;
mod health;
mod notifier;
mod on_bus;
mod prepare;
mod routes;
mod sandbox;
mod settings;
mod sources;
mod throttling;
mod transmit;

#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use async_trait::async_trait;
use futures::{StreamExt, future::join_all, stream};
use runner::{Deps, Intake, Stage, StageError};
use runtime::{
    Bus, Gauge, Publication, Vault,
    db::{ANSWER_TIMEOUT, within},
    plans::PreparedPool,
    trace,
};
use schemas::{
    Lane, Rendered,
    subjects::{self, stream as streams},
    token::TokenKeys,
};
use sqlx::PgPool;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use self::{
    health::{CheckConnections, RelayPing, ReportHealth},
    notifier::OutcomeNotifier,
    routes::{AdmittedMessages, ProviderRoute, ProviderRoutes},
    sources::SourceCache,
    throttling::Sendable,
};
use crate::pace::{PaceShare, Pacer};
use ledger::{
    fence::{Ledger, Recorded},
    leases::{ExpireLeases, SERVED_BEFORE},
    owed::{DueAttempt, DueAttempts, find_owed},
    warmup::WarmupPermits,
};
use smtp::{Pool, PoolCounts, SmtpSettingsError};

pub use settings::Settings;

/// Sends in flight per connection, of those that are handled together. More than one, so that connections stay busy while sends wait for
/// the ledger.
const IN_FLIGHT_PER_CONNECTION: usize = 2;

/// The delivery stage.
pub struct Delivery {
    by_key: PreparedPool,
    sources: SourceCache,
    ledger: Ledger,
    routes: Arc<ProviderRoutes>,
    pacer: Pacer,
    /// The share of the daily warm-up caps that this process holds.
    warm: WarmupPermits,
    /// Sends in flight at once of those that are handled together and have one route, by lane.
    bulk_in_flight: usize,
    priority_in_flight: usize,
    relay: [Pool; 2],
    shutdown: CancellationToken,
    /// Gets a notification when the sends of an awaited batch are decided, and the facts of the sandbox.
    bus: Option<Bus>,
}

/// Builds the stage and starts its workers, its ledger writer and its sweep.
///
/// # Errors
/// If the settings cannot work. Nothing is started then.
pub async fn start(deps: &Deps, settings: &Settings) -> Result<(), StageError> {
    let (vault, shutdown) = (deps.vault.clone(), deps.shutdown.clone());
    let mut stage = Delivery::new(deps.pool.clone(), &deps.by_key, vault, &deps.tokens, shutdown, settings)?;
    stage.bus = Some(deps.bus.clone());
    let relay = stage.relay.clone();
    let share = PaceShare::new(&deps.by_key, stage.pacer.clone());
    let pool = &deps.pool;
    let pings = RelayPing {
        pool: pool.clone(),
        provider: Arc::new(relay[1].clone()),
        interval: settings.provider_ping_interval,
    };
    let health = ReportHealth { pool: pool.clone(), routes: stage.routes.clone() };
    let checks = CheckConnections { pool: pool.clone(), routes: stage.routes.clone() };
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
        vec![intake(Lane::Priority, settings.priority_workers(), 32), intake(Lane::Bulk, settings.delivery_workers, 1)],
    );
    deps.runner.start_sweep(Delivery::NAME, Arc::new(ExpireLeases::new(&deps.by_key, SERVED_BEFORE)));
    deps.runner.start_sweep(Delivery::NAME, Arc::new(pings));
    deps.runner.start_sweep(Delivery::NAME, Arc::new(health));
    deps.runner.start_sweep(Delivery::NAME, Arc::new(share));
    deps.runner.start_sweep(Delivery::NAME, Arc::new(checks));
    tokio::spawn(report_connections(relay, deps.shutdown.clone()));
    Ok(())
}

/// How often the connection gauges are updated.
const REPORT_INTERVAL: Duration = Duration::from_secs(5);

async fn report_connections(relay: [Pool; 2], shutdown: CancellationToken) {
    while !shutdown.is_cancelled() {
        let counts = relay.each_ref().map(Pool::counts);
        let sum = |count: fn(&PoolCounts) -> usize| counts.iter().map(count).sum::<usize>() as f64;
        Gauge::SmtpConnectionsOpen.set(sum(|counts| counts.in_use), [("state", "busy")]);
        Gauge::SmtpConnectionsOpen.set(sum(|counts| counts.idle), [("state", "idle")]);
        tokio::select! {
            () = shutdown.cancelled() => {}
            () = tokio::time::sleep(REPORT_INTERVAL) => {}
        }
    }
    join_all(relay.iter().map(Pool::close_idle)).await;
}

#[async_trait]
impl Stage for Delivery {
    const NAME: &'static str = "delivery";
    const SPAN: &'static str = "delivery transact";
    /// A slow relay takes hours over a batch; what is read for it has a limit of its own.
    const TIMEOUT: Duration = Duration::MAX;
    type Input = Rendered;

    async fn handle(&self, inputs: &[Rendered]) -> Result<Vec<Publication>, StageError> {
        let read = within(ANSWER_TIMEOUT, async {
            let admitted = self.routes.admit(inputs).await?;
            let parts = self.sources.parts(&admitted.inputs, &admitted.routes).await?;
            let lane = if has_priority(inputs) { Lane::Priority } else { Lane::Bulk };
            let (by_key, token) = (self.by_key.of_lane(lane, Self::NAME), self.ledger.session().token());
            let due = find_owed(&by_key, &admitted.inputs, token, &self.warm).await?;
            Ok::<_, StageError>((admitted, parts, due))
        });
        let (admitted, parts, DueAttempts { sendable, withheld }) = read.await?;
        let AdmittedMessages { inputs, routes, workers } = admitted;
        let (inputs, routes) = (inputs.as_ref(), routes.as_slice());
        // The sends keep the permits to use this worker, each until it is done.
        let with_permit = |due: DueAttempt| Sendable { _worker: workers[due.input].clone(), due, pending_permit: None };
        let sendable: Vec<Sendable> = sendable.into_iter().map(with_permit).collect();
        drop(workers);
        let outcomes = OutcomeNotifier::new(self.bus.as_ref(), inputs, &sendable);
        let mut recorded: Vec<Recorded> = Vec::with_capacity(sendable.len() + withheld.len());
        for change in withheld {
            recorded.push(self.ledger.record(change).await);
        }
        let context = SendContext { inputs, parts: &parts, routes, outcomes: &outcomes };
        recorded.extend(self.send_all(&context, sendable).await);
        for written in recorded {
            written.await?;
        }
        outcomes.notify_empty_batches().await;
        Ok(Vec::new())
    }

    async fn given_up(&self, input: &Rendered, _: &'static str) -> Result<Vec<Publication>, StageError> {
        ledger::owed::set_aside(&self.by_key.of_lane(input.lane, Self::NAME), input.tenant_id, input.batch_id).await?;
        Ok(Vec::new())
    }
}

impl Delivery {
    /// Builds the stage with its connections and its ledger writer. Must run inside a Tokio runtime.
    ///
    /// # Errors
    /// If the settings cannot work.
    pub fn new(
        pool: PgPool,
        by_key: &PreparedPool,
        vault: Arc<Vault>,
        tokens: &Arc<TokenKeys>,
        shutdown: CancellationToken,
        settings: &Settings,
    ) -> Result<Self, StageError> {
        let invalid = |error: SmtpSettingsError| StageError::rejected("settings", error);
        settings.check().map_err(invalid)?;
        let ledger = Ledger::start(&pool, settings.ledger()).map_err(|error| StageError::rejected("ledger", error))?;
        let relay = |connections| settings.smtp(connections).and_then(Pool::new).map_err(invalid);
        let relay = [relay(settings.smtp_connections)?, relay(settings.smtp_priority_connections)?];
        let route_settings = settings.route_settings().map_err(invalid)?;
        Ok(Self {
            routes: Arc::new(ProviderRoutes::new(pool.clone(), vault.clone(), relay.clone(), route_settings)),
            pacer: settings.pacer(),
            warm: WarmupPermits::default(),
            bulk_in_flight: settings.smtp_connections * IN_FLIGHT_PER_CONNECTION,
            priority_in_flight: settings.smtp_priority_connections * IN_FLIGHT_PER_CONNECTION,
            relay,
            sources: SourceCache::new(pool, vault, settings.dkim_sign, tokens.clone()),
            ledger,
            shutdown,
            by_key: by_key.clone(),
            bus: None,
        })
    }

    /// Sends what may go now, through all routes at once: messages of several tenants are handled together in the priority lane, and one
    /// tenant's slow connection must not delay the others. Returns when every result has been given to the ledger writer.
    async fn send_all(&self, context: &SendContext<'_>, sendable: Vec<Sendable>) -> Vec<Recorded> {
        let (sendable, throttled) = throttling::throttle_sends(&self.pacer, context.inputs, context.routes, sendable);
        let mut recorded = Vec::with_capacity(sendable.len() + throttled.len());
        for change in throttled {
            let batch = change.send.batch.batch_id;
            recorded.extend(context.outcomes.after(batch, Some(self.ledger.record(change).await)).await);
        }
        // The sandbox has the platform's route, but does not wait for its server.
        let mut by_route: BTreeMap<(Option<Uuid>, bool), Vec<Sendable>> = BTreeMap::new();
        for sendable in sendable {
            let route = (context.routes[sendable.due.input].connection, sendable.due.send.batch.sandbox);
            by_route.entry(route).or_default().push(sendable);
        }
        let sent = by_route.into_values().map(|sendable| self.send_through_route(context, sendable));
        recorded.extend(join_all(sent).await.into_iter().flatten());
        recorded
    }

    /// Prepares the sends of one route in chunks and transmits many at once.
    async fn send_through_route(&self, context: &SendContext<'_>, sendable: Vec<Sendable>) -> Vec<Recorded> {
        let in_flight = if has_priority(context.inputs) { self.priority_in_flight } else { self.bulk_in_flight };
        let prepared = stream::iter(prepare::chunks(context.parts, sendable))
            .map(|chunk| prepare::prepare(&self.sources, context, chunk, &self.shutdown))
            .buffered(prepare::AHEAD)
            .flat_map(stream::iter);
        let results = prepared.map(|ready| async {
            let batch = ready.sendable.due.send.batch.batch_id;
            // Messages that are handled together have traces of their own: each call of a provider carries its own.
            let recorded = trace::within(trace::of_work(batch), self.transmit(ready, context)).await;
            context.outcomes.after(batch, recorded).await
        });
        results.buffer_unordered(in_flight).filter_map(std::future::ready).collect().await
    }
}

fn has_priority(inputs: &[Rendered]) -> bool {
    inputs.iter().any(|input| input.lane == Lane::Priority)
}

/// What all sends of one call of the handler share.
struct SendContext<'a> {
    inputs: &'a [Rendered],
    parts: &'a [sources::MessageSource],
    routes: &'a [ProviderRoute],
    outcomes: &'a OutcomeNotifier<'a>,
}
