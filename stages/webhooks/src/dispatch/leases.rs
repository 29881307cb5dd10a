//! Manages the leases on subscriptions: takes leases on subscriptions with due deliveries, loads these deliveries, renews and
//! releases leases. An endpoint whose subscription was paused or disabled is closed by its next attempt, which reads it.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use runner::Runner;
use runtime::{
    Gauge,
    db::{ANSWER_TIMEOUT, within},
    panics::caught,
};
use schemas::subjects;
use tokio::time::Instant;
use uuid::Uuid;

use super::{
    Dispatcher, NAME,
    endpoint::{LoadRequest, SubscriberEndpoint},
    lock,
    store::{self, QueueEntry, SubscriptionKey},
};

/// How often due retries are read.
const TICK_INTERVAL: Duration = Duration::from_secs(1);
/// How often leases are renewed: several times before one expires.
const RENEW_EVERY: Duration = Duration::from_secs(10);
/// The lease of an endpoint without work is released after this time.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// Leases taken in one statement.
const LEASES_MAX: usize = 256;
/// Subscriptions with due deliveries that are read in one statement.
const DUE_MAX: i64 = 20_000;
/// Endpoints whose deliveries are loaded in one statement.
const ENDPOINTS_MAX: usize = 256;

struct LeaseManager {
    shared: Arc<Dispatcher>,
    runner: Runner,
    renewed_at: Instant,
}

/// Manages leases until shutdown; then waits for the endpoints and releases all leases.
pub(super) async fn run(shared: Arc<Dispatcher>, runner: Runner) {
    let shutdown = shared.shutdown.clone();
    let mut manager = LeaseManager { shared, runner, renewed_at: Instant::now() };
    let mut tick = tokio::time::interval(TICK_INTERVAL);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        let result = tokio::select! {
            () = shutdown.cancelled() => break,
            _ = tick.tick() => within(ANSWER_TIMEOUT, manager.tick()).await,
            () = manager.shared.request_work.notified() => within(ANSWER_TIMEOUT, manager.take_and_load()).await,
        };
        if let Err(error) = result {
            tracing::warn!(error = runtime::db::describe(&error), "webhook leases cannot be managed; trying again");
        }
    }
    manager.finish_all().await;
}

/// Receives notifications of other processes about due deliveries of subscriptions leased here. A lost one costs a second.
pub(super) async fn receive_due_notifications(shared: Arc<Dispatcher>) {
    let notify = |payload: &[u8]| {
        let Ok(ids) = serde_json::from_slice::<Vec<Uuid>>(payload) else { return };
        shared.mark_more_due(ids);
        shared.request_work();
    };
    shared.bus.receive(subjects::DELIVERIES_DUE, &shared.shutdown, notify).await;
}

impl LeaseManager {
    async fn tick(&mut self) -> sqlx::Result<()> {
        self.release_ended().await?;
        if self.is_paused() {
            self.close_all();
            return Ok(());
        }
        if self.renewed_at.elapsed() >= RENEW_EVERY {
            self.renew_leases().await?;
        }
        self.endpoints().iter().filter(|endpoint| endpoint.is_idle(IDLE_TIMEOUT)).for_each(|endpoint| endpoint.close());
        // Retries become due with time. One statement finds all of them, and only subscriptions with due deliveries.
        let due = store::due_subscriptions(&self.shared.by_key, self.shared.id, DUE_MAX).await?;
        let (ours, free): (Vec<_>, Vec<_>) = due.into_iter().partition(|(_, is_ours)| *is_ours);
        self.shared.mark_more_due(ours.into_iter().map(|((_, id), _)| id));
        lock(&self.shared.wanted).extend(free.into_iter().take(LEASES_MAX).map(|(key, _)| key));
        Gauge::WebhooksLeased.set(lock(&self.shared.endpoints).len() as f64, []);
        self.take_and_load().await
    }

    async fn take_and_load(&mut self) -> sqlx::Result<()> {
        if self.is_paused() {
            return Ok(());
        }
        self.take_wanted_leases().await?;
        self.load_due().await
    }

    /// True if an operator paused the stage.
    fn is_paused(&self) -> bool {
        self.runner.pause_gate().is_paused(NAME)
    }

    /// Closes all endpoints: they finish the attempts in flight, and their leases are released. Due deliveries stay in the queue.
    fn close_all(&self) {
        self.endpoints().iter().for_each(|endpoint| endpoint.close());
        lock(&self.shared.wanted).clear();
    }

    fn endpoints(&self) -> Vec<Arc<SubscriberEndpoint>> {
        lock(&self.shared.endpoints).values().cloned().collect()
    }

    /// Takes the wanted leases, and notifies the processes that hold the others. They are wanted until the answer is here: a lease whose
    /// answer is given up may be committed all the same, and is taken again.
    async fn take_wanted_leases(&mut self) -> sqlx::Result<()> {
        let wanted: Vec<SubscriptionKey> = {
            let mut wanted = lock(&self.shared.wanted);
            let endpoints = lock(&self.shared.endpoints);
            wanted.retain(|(_, id)| !endpoints.contains_key(id));
            wanted.iter().copied().collect()
        };
        if wanted.is_empty() {
            return Ok(());
        }
        let since = Instant::now();
        let lease = self.shared.lease();
        let taken = store::take_leases(&self.shared.pool, &wanted, self.shared.id, lease.as_secs_f64()).await?;
        lock(&self.shared.wanted).retain(|key| wanted.binary_search(key).is_err());
        let held: BTreeSet<Uuid> = taken.iter().map(|state| state.id).collect();
        for state in taken {
            // The target is unusable. The lease keeps it from being read in every round.
            let Some(target) = state.target(&self.shared.vault) else { continue };
            self.open(SubscriberEndpoint::new(state.tenant_id, state.id, target, since + lease, state.failing_since));
        }
        self.notify_holders(wanted.iter().map(|(_, id)| *id).filter(|id| !held.contains(id)).collect()).await;
        Ok(())
    }

    fn open(&self, endpoint: SubscriberEndpoint) {
        let endpoint = Arc::new(endpoint);
        lock(&self.shared.endpoints).insert(endpoint.id, Arc::clone(&endpoint));
        let shared = Arc::clone(&self.shared);
        self.runner.spawn(NAME, async move {
            let id = endpoint.id;
            // An endpoint that panicked is opened again like one that ended.
            let _ = caught("webhooks", "task", endpoint.run(Arc::clone(&shared))).await;
            lock(&shared.ended).push(id);
            shared.request_work();
        });
    }

    async fn notify_holders(&self, ids: Vec<Uuid>) {
        if ids.is_empty() {
            return;
        }
        let Ok(body) = serde_json::to_vec(&ids) else { return };
        let subject = self.shared.bus.prefixed(subjects::DELIVERIES_DUE);
        if let Err(error) = self.shared.bus.client().publish(subject, body.into()).await {
            tracing::debug!(%error, "the lease holders are not notified; they read the ledger themselves");
        }
    }

    /// Loads due deliveries for the endpoints that can take more.
    async fn load_due(&self) -> sqlx::Result<()> {
        let capacity = self.shared.capacity();
        let requests: Vec<(Arc<SubscriberEndpoint>, LoadRequest)> = self
            .endpoints()
            .into_iter()
            .filter_map(|endpoint| endpoint.load_request(capacity).map(|request| (endpoint, request)))
            .collect();
        for part in requests.chunks(ENDPOINTS_MAX) {
            self.load_due_for(part).await?;
        }
        Ok(())
    }

    async fn load_due_for(&self, requests: &[(Arc<SubscriberEndpoint>, LoadRequest)]) -> sqlx::Result<()> {
        let load_request: Vec<(SubscriptionKey, LoadRequest)> =
            requests.iter().map(|(endpoint, request)| ((endpoint.tenant_id, endpoint.id), *request)).collect();
        let mut due = store::due_deliveries(&self.shared.by_key, &load_request).await?;
        let mut wanted = Vec::new();
        let mut shares = Vec::with_capacity(requests.len());
        for (endpoint, request) in requests {
            let found = due.remove(&endpoint.id).unwrap_or_default();
            let is_all = found.len() < request.capacity + request.known;
            let lacking = endpoint.filter_unknown(found, *request);
            wanted.extend(lacking.iter().map(|&(delivery_id, due_at)| QueueEntry {
                tenant_id: endpoint.tenant_id,
                subscription_id: endpoint.id,
                due_at,
                delivery_id,
            }));
            shares.push((endpoint, *request, is_all, lacking));
        }
        let mut jobs =
            if wanted.is_empty() { Default::default() } else { store::load_jobs(&self.shared.by_key, &wanted).await? };
        let orphans: Vec<_> = wanted.iter().filter(|entry| !jobs.contains_key(&entry.delivery_id)).copied().collect();
        for (endpoint, request, is_all, lacking) in shares {
            let jobs = lacking.iter().filter_map(|(id, _)| jobs.remove(id)).collect();
            endpoint.add_loaded(jobs, request, is_all);
        }
        store::drop_orphans(&self.shared.pool, &orphans).await
    }

    async fn renew_leases(&mut self) -> sqlx::Result<()> {
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
                // Lost while Postgres was unavailable; the new holder loads what is due.
                endpoint.close();
            }
        }
        self.renewed_at = since;
        Ok(())
    }

    /// Releases the leases of endpoints that have ended.
    async fn release_ended(&self) -> sqlx::Result<()> {
        let ended = lock(&self.shared.ended).clone();
        if ended.is_empty() {
            return Ok(());
        }
        store::release_leases(&self.shared.pool, &ended, self.shared.id).await?;
        lock(&self.shared.ended).drain(..ended.len());
        let mut endpoints = lock(&self.shared.endpoints);
        for id in ended {
            endpoints.remove(&id);
        }
        Ok(())
    }

    /// Waits until every endpoint has finished its attempts in flight, which takes seconds.
    async fn finish_all(&self) {
        self.close_all();
        while lock(&self.shared.ended).len() < lock(&self.shared.endpoints).len() {
            self.shared.request_work.notified().await;
        }
        if let Err(error) = within(ANSWER_TIMEOUT, self.release_ended()).await {
            tracing::debug!(error = runtime::db::describe(&error), "leases are not released; they expire");
        }
    }
}

#[cfg(test)]
mod tests {
    use schemas::webhook::{SECRET_PURPOSE, WebhookSecret};
    use stage_rig::{Rig, settings, until};
    use tokio::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn a_lease_whose_answer_is_given_up_is_taken_again() {
        let rig = Rig::new().await;
        let (deps, tenant, subscription) = (rig.process(), rig.tenant().await.id, Uuid::now_v7());
        let secret = WebhookSecret::generate().expose();
        let secret = deps.vault.seal(tenant, SECRET_PURPOSE, secret.as_bytes()).unwrap();
        sqlx::query(
            "insert into webhook_subscriptions (tenant_id, id, product, environment, url, events, secret)
             values ($1, $2, 'crm', 'production', 'https://x.example/', '{email.sent}', $3)",
        )
        .bind(tenant)
        .bind(subscription)
        .bind(secret)
        .execute(&rig.pool)
        .await
        .unwrap();
        let (results, _results) = mpsc::channel(1);
        let (queries, _queries) = mpsc::channel(1);
        let shared = Arc::new(Dispatcher::new(&deps, &settings(&[]), results, queries));
        lock(&shared.wanted).insert((tenant, subscription));
        let mut manager =
            LeaseManager { shared: Arc::clone(&shared), runner: deps.runner.clone(), renewed_at: Instant::now() };
        // Another process takes the lease and does not commit it. (A lock on the table would stop the statement before it is sent.)
        let mut other = rig.pool.begin().await.unwrap();
        sqlx::query("insert into webhook_leases (subscription_id, holder, lease_until) values ($1, $1, now())")
            .bind(subscription)
            .execute(&mut *other)
            .await
            .unwrap();
        tokio::select! {
            taken = manager.take_wanted_leases() => panic!("{taken:?}"),
            () = until("the statement waits", async || rig.statements_waiting().await > 0) => {}
        }
        other.rollback().await.unwrap();
        let leases = "select count(*) from webhook_leases";
        until("the lease is committed unanswered", async || rig.number(leases).await == 1).await;
        manager.take_wanted_leases().await.unwrap();
        assert!(lock(&shared.endpoints).contains_key(&subscription), "it delivers");
        assert!(lock(&shared.wanted).is_empty());
    }
}
