//! Looks after endpoints: takes leases on subscriptions with something due, loads what is due, renews and gives back leases, and
//! sees when a subscription is paused, repointed or disabled.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use runner::{Runner, Stage};
use runtime::{Gauge, panics::caught};
use schemas::{SubscriptionStatus, subjects};
use tokio::time::Instant;
use uuid::Uuid;

use super::{
    Shared,
    endpoint::{Endpoint, Want},
    lock,
    store::{self, Key},
};
use crate::stage::Webhooks;

/// How often it is looked whether retries are due, and what subscriptions are like.
const TICK: Duration = Duration::from_secs(1);
/// How often leases are renewed: several times before one runs out.
const RENEW_EVERY: Duration = Duration::from_secs(10);
/// An endpoint without work is given back after this time.
const IDLE: Duration = Duration::from_secs(60);
/// Subscriptions taken over in one go.
const TAKEN_MAX: usize = 256;
/// Subscriptions with something due that are looked at in one go.
const DUE_MAX: i64 = 20_000;
/// Endpoints loaded in one go.
const LOADED_MAX: usize = 256;

struct Keeper {
    shared: Arc<Shared>,
    runner: Runner,
    renewed_at: Instant,
}

/// Keeps endpoints until shut down; then has them finish, and gives all leases back.
pub(super) async fn run(shared: Arc<Shared>, runner: Runner) {
    let shutdown = shared.shutdown.clone();
    let mut keeper = Keeper { shared, runner, renewed_at: Instant::now() };
    let mut tick = tokio::time::interval(TICK);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        let result = tokio::select! {
            () = shutdown.cancelled() => break,
            _ = tick.tick() => keeper.tick().await,
            () = keeper.shared.wake.notified() => keeper.work().await,
        };
        if let Err(error) = result {
            tracing::warn!(
                error = runtime::db::describe(&error),
                "webhook endpoints are not looked after; trying again"
            );
        }
    }
    keeper.end().await;
}

/// Hears from other processes that something is due to subscriptions held here. Losing a ring costs a second.
pub(super) async fn hear(shared: Arc<Shared>) {
    shared.bus.hear(subjects::DELIVERIES_DUE, &shared.shutdown, |payload| rung(&shared, payload)).await;
}

fn rung(shared: &Shared, payload: &[u8]) {
    let Ok(ids) = serde_json::from_slice::<Vec<Uuid>>(payload) else { return };
    let endpoints = lock(&shared.endpoints);
    ids.iter().filter_map(|id| endpoints.get(id)).for_each(|endpoint| endpoint.look_again());
    drop(endpoints);
    shared.wake();
}

impl Keeper {
    async fn tick(&mut self) -> sqlx::Result<()> {
        self.release().await?;
        if self.is_paused() {
            self.rest();
            return Ok(());
        }
        self.look().await?;
        if self.renewed_at.elapsed() >= RENEW_EVERY {
            self.renew().await?;
        }
        self.endpoints().iter().filter(|endpoint| endpoint.is_idle(IDLE)).for_each(|endpoint| endpoint.close());
        // Retries become due by themselves; one look finds all there are, and who has nothing due is not asked about.
        let due = store::due_heads(&self.shared.by_key, self.shared.id, DUE_MAX).await?;
        let (held, free): (Vec<_>, Vec<_>) = due.into_iter().partition(|(_, is_held)| *is_held);
        self.look_again(held.into_iter().map(|((_, id), _)| id));
        lock(&self.shared.wanted).extend(free.into_iter().take(TAKEN_MAX).map(|(key, _)| key));
        Gauge::WebhooksLeased.set(lock(&self.shared.endpoints).len() as f64, []);
        self.work().await
    }

    /// Says that the ledger has more for these.
    fn look_again(&self, ids: impl Iterator<Item = Uuid>) {
        let endpoints = lock(&self.shared.endpoints);
        ids.for_each(|id| endpoints.get(&id).into_iter().for_each(|endpoint| endpoint.look_again()));
    }

    async fn work(&mut self) -> sqlx::Result<()> {
        if self.is_paused() {
            return Ok(());
        }
        self.take().await?;
        self.load().await
    }

    /// Whether an operator holds the stage back.
    fn is_paused(&self) -> bool {
        self.runner.pause_gate().is_paused(Webhooks::NAME)
    }

    /// Begins nothing more: endpoints finish what is under way, and their leases are given back. What is due stands in the queue.
    fn rest(&self) {
        self.endpoints().iter().for_each(|endpoint| endpoint.close());
        lock(&self.shared.wanted).clear();
    }

    fn endpoints(&self) -> Vec<Arc<Endpoint>> {
        lock(&self.shared.endpoints).values().cloned().collect()
    }

    /// Takes the subscriptions that are wanted; whoever holds the others is rung.
    async fn take(&mut self) -> sqlx::Result<()> {
        let wanted: Vec<Key> = {
            let wanted = std::mem::take(&mut *lock(&self.shared.wanted));
            let endpoints = lock(&self.shared.endpoints);
            wanted.into_iter().filter(|(_, id)| !endpoints.contains_key(id)).collect()
        };
        if wanted.is_empty() {
            return Ok(());
        }
        let since = Instant::now();
        let lease = self.shared.lease();
        let taken = store::take_leases(&self.shared.pool, &wanted, self.shared.id, lease.as_secs_f64())
            .await
            .inspect_err(|_| lock(&self.shared.wanted).extend(&wanted))?;
        let held: BTreeSet<Uuid> = taken.iter().map(|looked| looked.id).collect();
        for looked in taken {
            // Unusable: the lease keeps it from being looked at in every round.
            let Some(target) = looked.target(&self.shared.vault) else { continue };
            self.open(Endpoint::new(looked.tenant_id, looked.id, target, since + lease, looked.failing_since));
        }
        self.ring(wanted.iter().map(|(_, id)| *id).filter(|id| !held.contains(id)).collect()).await;
        Ok(())
    }

    fn open(&self, endpoint: Endpoint) {
        let endpoint = Arc::new(endpoint);
        lock(&self.shared.endpoints).insert(endpoint.id, Arc::clone(&endpoint));
        let shared = Arc::clone(&self.shared);
        self.runner.spawn("webhooks", async move {
            let id = endpoint.id;
            // One that panicked is opened again like one that ended.
            let _ = caught("webhooks", "task", endpoint.run(Arc::clone(&shared))).await;
            lock(&shared.ended).push(id);
            shared.wake();
        });
    }

    async fn ring(&self, ids: Vec<Uuid>) {
        if ids.is_empty() {
            return;
        }
        let Ok(body) = serde_json::to_vec(&ids) else { return };
        let subject = self.shared.bus.prefixed(subjects::DELIVERIES_DUE);
        if let Err(error) = self.shared.bus.client().publish(subject, body.into()).await {
            tracing::debug!(%error, "nobody was rung; whoever holds the lease looks by himself");
        }
    }

    /// Loads what endpoints want.
    async fn load(&self) -> sqlx::Result<()> {
        let capacity = self.shared.capacity();
        let hungry: Vec<(Arc<Endpoint>, Want)> = self
            .endpoints()
            .into_iter()
            .filter_map(|endpoint| endpoint.wants(capacity).map(|want| (endpoint, want)))
            .collect();
        for part in hungry.chunks(LOADED_MAX) {
            self.load_some(part).await?;
        }
        Ok(())
    }

    async fn load_some(&self, hungry: &[(Arc<Endpoint>, Want)]) -> sqlx::Result<()> {
        let wants: Vec<(Key, Want)> =
            hungry.iter().map(|(endpoint, want)| ((endpoint.tenant_id, endpoint.id), *want)).collect();
        let mut due = store::due(&self.shared.by_key, &wants).await?;
        let mut wanted = Vec::new();
        let mut shares = Vec::with_capacity(hungry.len());
        for (endpoint, want) in hungry {
            let found = due.remove(&endpoint.id).unwrap_or_default();
            let is_all = found.len() < want.room + want.held;
            let lacking = endpoint.lacks(found, *want);
            wanted.extend(lacking.iter().map(|(id, due_at)| (endpoint.tenant_id, *id, *due_at)));
            shares.push((endpoint, *want, is_all, lacking));
        }
        let mut jobs =
            if wanted.is_empty() { Default::default() } else { store::load(&self.shared.by_key, &wanted).await? };
        let orphans: Vec<_> = wanted.iter().filter(|(_, id, _)| !jobs.contains_key(id)).copied().collect();
        for (endpoint, want, is_all, lacking) in shares {
            let jobs = lacking.iter().filter_map(|(id, _)| jobs.remove(id)).collect();
            endpoint.load(jobs, want, is_all);
        }
        store::drop_orphans(&self.shared.pool, &orphans).await
    }

    /// Sees what has changed about the subscriptions held here.
    async fn look(&self) -> sqlx::Result<()> {
        let endpoints = self.endpoints();
        if endpoints.is_empty() {
            return Ok(());
        }
        let keys: Vec<Key> = endpoints.iter().map(|endpoint| (endpoint.tenant_id, endpoint.id)).collect();
        for looked in store::look(&self.shared.by_key, &keys).await? {
            let Some(endpoint) = lock(&self.shared.endpoints).get(&looked.id).cloned() else { continue };
            if looked.status == SubscriptionStatus::Active && endpoint.is_as(looked.mark()) {
                continue;
            }
            match (looked.status, looked.target(&self.shared.vault)) {
                (SubscriptionStatus::Active, Some(target)) => drop(endpoint.retarget(target)),
                _ => endpoint.close(),
            }
        }
        Ok(())
    }

    async fn renew(&mut self) -> sqlx::Result<()> {
        let since = Instant::now();
        let lease = self.shared.lease();
        let endpoints = self.endpoints();
        let ids: Vec<Uuid> = endpoints.iter().map(|endpoint| endpoint.id).collect();
        let renewed: BTreeSet<Uuid> = store::renew_leases(&self.shared.pool, &ids, self.shared.id, lease.as_secs_f64())
            .await?
            .into_iter()
            .collect();
        for endpoint in endpoints {
            if renewed.contains(&endpoint.id) {
                endpoint.renewed(since + lease);
            } else {
                // Lost while Postgres was away; whoever took it loads what is due.
                endpoint.close();
            }
        }
        self.renewed_at = since;
        Ok(())
    }

    /// Gives the leases of endpoints back that have ended.
    async fn release(&self) -> sqlx::Result<()> {
        let ended = std::mem::take(&mut *lock(&self.shared.ended));
        if ended.is_empty() {
            return Ok(());
        }
        store::release_leases(&self.shared.pool, &ended, self.shared.id)
            .await
            .inspect_err(|_| lock(&self.shared.ended).extend(&ended))?;
        let mut endpoints = lock(&self.shared.endpoints);
        for id in ended {
            endpoints.remove(&id);
        }
        Ok(())
    }

    /// Has every endpoint finish what is under way. Attempts take seconds, and a process that is stopped waits for them.
    async fn end(&self) {
        self.endpoints().iter().for_each(|endpoint| endpoint.close());
        while lock(&self.shared.ended).len() < lock(&self.shared.endpoints).len() {
            self.shared.wake.notified().await;
        }
        if let Err(error) = self.release().await {
            tracing::debug!(error = runtime::db::describe(&error), "leases are not given back; they run out");
        }
    }
}
