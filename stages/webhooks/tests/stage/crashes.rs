//! Processes that end in the middle.

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use runner::Deps;
use stage_rig::{
    receiver::{Manner, Receiver},
    settings, until,
};
use webhooks::Settings;

use crate::world::World;

/// A process on threads of its own: what `kill -9` does to it is done by dropping them where they stand.
struct Process(Option<tokio::runtime::Runtime>);

impl Process {
    fn start(world: &Arc<World>) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let world = Arc::clone(world);
        runtime.spawn(async move {
            let deps: Deps = world.rig.process();
            webhooks::start(&deps, &settings::<Settings>(&[]));
            std::future::pending::<()>().await;
        });
        Self(Some(runtime))
    }

    fn kill(mut self) {
        self.0.take().unwrap().shutdown_background();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

/// Leases of the dead run out; here at once.
async fn end_leases(world: &World) {
    sqlx::query("update webhook_leases set lease_until = now() - interval '1 second'")
        .execute(&world.rig.pool)
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn crashes_deliver_every_fact_with_one_id_and_body() {
    let world = Arc::new(World::new().await);
    let receiver = Receiver::start(Manner::Status(200)).await;
    world.subscribe(&receiver.url, &["email.opened"]).await;
    for round in 0..8 {
        let process = Process::start(&world);
        world.opened(50).await;
        // Killed at another point each time: when so many have come, some of them are not recorded, and others under way.
        receiver.has(round * 40 + 1).await;
        process.kill();
        end_leases(&world).await;
    }
    let _last = Process::start(&world);
    until("all are delivered", async || {
        end_leases_of_nobody(&world).await;
        world.deliveries("delivered").await == 400
    })
    .await;
    let mut bodies: BTreeMap<String, Bytes> = BTreeMap::new();
    for hit in receiver.hits() {
        let body = bodies.entry(hit.event()).or_insert_with(|| hit.body.clone());
        assert_eq!(*body, hit.body, "another body for the same event");
    }
    assert_eq!(bodies.len(), 400);
    let left = "select (select count(*) from outbox) + (select count(*) from webhook_queue)";
    until("nothing is left over", async || world.rig.number(left).await == 0).await;
}

/// A process that was killed while it took a lease may still have had it committed.
async fn end_leases_of_nobody(world: &World) {
    sqlx::query(
        "delete from webhook_leases l where l.holder <> (select holder from webhook_leases order by lease_until desc limit 1)",
    )
    .execute(&world.rig.pool)
    .await
    .unwrap();
}
